//! The target's tokenizer together with its chat template.

use std::path::{Path, PathBuf};

use common::config::Config;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;
use tokenizers::processors::PostProcessorWrapper;

use crate::chats::{Conversation, Record};
use crate::encoder::{Encoded, Encoder};
use crate::mask::{Marking, Supervision, TurnShape, mark_up, marked_text, token_mask};
use crate::row::{RowFault, TokenRow};
use crate::template::{ChatTemplate, Ending, RenderError, TemplateError, TemplateSource};

/// Why a folder's tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// `tokenizer.json` cannot be read or is broken.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// No usable chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The template cannot render a plain question and answer.
    #[error("{origin}: the chat template cannot write a user's and an assistant's turn: {source}")]
    Shape {
        /// The template's file.
        origin: PathBuf,
        /// Its words.
        source: RenderError,
    },
}

impl TokenizerError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            TokenizerError::File { .. } => {
                "the target's folder needs the tokenizer.json of its model (fast tokenizer, Hugging Face format)"
            }
            TokenizerError::Template(error) => error.hint(),
            TokenizerError::Shape { .. } => "name a chat template that takes plain chats in data.chat_template_path",
        }
    }
}

/// What is made of chats besides what the model's folder says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatOptions {
    /// A template to use instead of the model's.
    pub template_path: Option<PathBuf>,
    /// Variables for the template.
    pub template_variables: Map<String, Value>,
    /// What is supervised of a chat.
    pub supervision: Supervision,
    /// What opens and ends the assistant's words in rows of rendered text.
    pub text_markers: Option<[String; 2]>,
}

impl ChatOptions {
    /// The options of a run.
    #[must_use]
    pub fn of(config: &Config) -> ChatOptions {
        let data = &config.data;
        let variables = data.template_variables.clone().into_iter();
        let json = |value| serde_json::to_value(value).expect("TOML's values are JSON's");
        ChatOptions {
            template_path: data.chat_template_path.clone(),
            template_variables: variables.map(|(name, value): (String, toml::Value)| (name, json(value))).collect(),
            supervision: Supervision { turns: data.supervised_turns, answers_only: !data.supervise_reasoning },
            text_markers: data.text_markers.clone(),
        }
    }
}

/// A target folder's tokenizer with its chat template. Shared by any number of threads.
pub struct ChatTokenizer {
    encoder: Encoder,
    template: ChatTemplate,
    shape: TurnShape,
    options: ChatOptions,
    vocab_len: usize,
    fingerprint: [u8; 32],
}

impl ChatTokenizer {
    /// The tokenizer of a run's target.
    ///
    /// # Errors
    /// As [`ChatTokenizer::load`].
    pub fn of(config: &Config) -> Result<ChatTokenizer, TokenizerError> {
        ChatTokenizer::load(&config.model.target_model_path, ChatOptions::of(config))
    }

    /// Reads `tokenizer.json` and the chat template (`chat_template.jinja`, else `tokenizer_config.json`) of `dir`.
    ///
    /// # Errors
    /// A file is missing or broken, the template cannot render a plain chat, or it does not read one of the variables.
    pub fn load(dir: &Path, options: ChatOptions) -> Result<ChatTokenizer, TokenizerError> {
        let path = dir.join("tokenizer.json");
        let failed = |message: String| TokenizerError::File { path: path.clone(), message };
        let bytes = std::fs::read(&path).map_err(|error| failed(error.to_string()))?;
        let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(|error| failed(error.to_string()))?;
        let source = TemplateSource::read(dir, options.template_path.as_deref())?;
        // Rows are cut by us alone and the template writes every token it wants. A post-processor could only add
        // tokens, which is never asked for, or trim the offsets that the mask is made from.
        tokenizer.with_padding(None).with_truncation(None).map_err(|error| failed(error.to_string()))?;
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        let template = ChatTemplate::new(&source, &options.template_variables)?;
        let added = tokenizer.get_added_tokens_decoder();
        let special_tokens = added.into_values().filter(|token| token.special).map(|token| token.content).collect();
        let shape = TurnShape::probe(&template, special_tokens)
            .map_err(|error| TokenizerError::Shape { origin: source.origin.clone(), source: error })?;
        let vocab_len = tokenizer.get_vocab(true).into_values().max().map_or(0, |highest| highest as usize + 1);
        let encoder = Encoder::new(tokenizer);
        let fingerprint = fingerprint(&bytes, &source, &options);
        Ok(ChatTokenizer { encoder, template, shape, options, vocab_len, fingerprint })
    }

    /// The whole conversation as text.
    ///
    /// # Errors
    /// The template refuses it.
    pub fn render(&self, conversation: &Conversation) -> Result<String, RenderError> {
        self.template.render(conversation, Ending::Closed)
    }

    /// The conversation as text, with the opening of the assistant's next turn.
    ///
    /// # Errors
    /// The template refuses it.
    pub fn render_prompt(&self, conversation: &Conversation) -> Result<String, RenderError> {
        self.template.render(conversation, Ending::Prompt)
    }

    /// Token ids of text as it stands: nothing is added.
    ///
    /// # Errors
    /// The tokenizer has no way to write it (one without byte fallback or unknown token).
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, RowFault> {
        self.encoded(text).map(|encoded| encoded.ids)
    }

    fn encoded(&self, text: &str) -> Result<Encoded, RowFault> {
        self.encoder.encode(text).map_err(|error| RowFault::Tokenizer(error.to_string()))
    }

    /// Text of token ids, special tokens included. Ids without a token are left out.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        // A decoder fails on nothing that a vocabulary holds.
        self.encoder.tokenizer().decode(ids, false).unwrap_or_default()
    }

    /// One more than the highest token id: embedding rows from here on are unused.
    #[must_use]
    pub fn vocab_len(&self) -> usize {
        self.vocab_len
    }

    /// Changes with tokenizer, template and special tokens.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// A row's tokens with their mask, uncut: one encoding of the whole text.
    ///
    /// # Errors
    /// The template or the tokenizer refuses it, or it has no exact mask.
    pub fn token_row(&self, record: Record) -> Result<TokenRow, RowFault> {
        match record {
            Record::Chat(conversation) => self.masked(&self.mark_up(&conversation)?),
            Record::Text(text) => self.masked(&marked_text(text, self.options.text_markers.as_ref())?),
            Record::Tokens(row) => match row.token_ids.iter().find(|&&id| id as usize >= self.vocab_len) {
                Some(id) => Err(RowFault::Field("input_ids".to_owned(), format!("has {id}, which is no token"))),
                None => Ok(row),
            },
        }
    }

    /// A conversation as text, with what is supervised of it.
    ///
    /// # Errors
    /// The template refuses it, or it has no exact mask.
    pub fn mark_up(&self, conversation: &Conversation) -> Result<Marking, RowFault> {
        mark_up(conversation, &self.template, &self.shape, self.options.supervision)
    }

    fn masked(&self, marking: &Marking) -> Result<TokenRow, RowFault> {
        let encoded = self.encoded(&marking.text)?;
        let loss_mask = token_mask(&encoded.offsets, &marking.spans)
            .map_err(|span| RowFault::Mask(span + 1, "a token lies across its border"))?;
        Ok(TokenRow { token_ids: encoded.ids, loss_mask })
    }
}

/// Over everything that decides tokens and masks.
fn fingerprint(tokenizer: &[u8], source: &TemplateSource, options: &ChatOptions) -> [u8; 32] {
    let mut hash = Sha256::new();
    let json = |value: &Map<String, Value>| serde_json::to_vec(value).expect("a JSON map is always JSON");
    let (special_tokens, variables) = (json(&source.special_tokens), json(&options.template_variables));
    let tool_use = source.tool_use.as_deref().unwrap_or_default();
    let rest = format!("{:?} {:?}", options.supervision, options.text_markers);
    let texts = [source.text.as_bytes(), tool_use.as_bytes(), rest.as_bytes()];
    for part in [tokenizer, &special_tokens, &variables].into_iter().chain(texts) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
