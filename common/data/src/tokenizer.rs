//! The target's tokenizer together with its chat template.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;
use tokenizers::processors::PostProcessorWrapper;

use crate::chats::Conversation;
use crate::mask::{TurnShape, spans, token_mask};
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
            TokenizerError::Shape { .. } => {
                "put a chat template that takes plain chats into the folder as chat_template.jinja"
            }
        }
    }
}

/// A target folder's tokenizer with its chat template. Shared by any number of threads.
pub struct ChatTokenizer {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    shape: TurnShape,
    vocab_len: usize,
    fingerprint: [u8; 32],
}

impl ChatTokenizer {
    /// Reads `tokenizer.json` and the chat template (`chat_template.jinja`, else `tokenizer_config.json`) of `dir`.
    ///
    /// # Errors
    /// A file is missing or broken, or the template cannot render a plain chat.
    pub fn load(dir: &Path) -> Result<ChatTokenizer, TokenizerError> {
        let path = dir.join("tokenizer.json");
        let failed = |message: String| TokenizerError::File { path: path.clone(), message };
        let bytes = std::fs::read(&path).map_err(|error| failed(error.to_string()))?;
        let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(|error| failed(error.to_string()))?;
        let source = TemplateSource::read(dir)?;
        // Rows are cut by us alone and the template writes every token it wants. A post-processor could only add
        // tokens, which is never asked for, or trim the offsets that the mask is made from.
        tokenizer.with_padding(None).with_truncation(None).map_err(|error| failed(error.to_string()))?;
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        let template = ChatTemplate::new(&source)?;
        let added = tokenizer.get_added_tokens_decoder();
        let special_tokens = added.into_values().filter(|token| token.special).map(|token| token.content).collect();
        let shape = TurnShape::probe(&template, special_tokens)
            .map_err(|error| TokenizerError::Shape { origin: source.origin.clone(), source: error })?;
        let vocab_len = tokenizer.get_vocab(true).into_values().max().map_or(0, |highest| highest as usize + 1);
        Ok(ChatTokenizer { tokenizer, template, shape, vocab_len, fingerprint: fingerprint(&bytes, &source) })
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
        self.encoding(text).map(|encoding| encoding.get_ids().to_vec())
    }

    fn encoding(&self, text: &str) -> Result<tokenizers::Encoding, RowFault> {
        self.tokenizer.encode(text, false).map_err(|error| RowFault::Tokenizer(error.to_string()))
    }

    /// Text of token ids, special tokens included. Ids without a token are left out.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        // A decoder fails on nothing that a vocabulary holds.
        self.tokenizer.decode(ids, false).unwrap_or_default()
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

    /// A conversation's tokens with their mask, uncut: one encoding of the whole rendering.
    ///
    /// # Errors
    /// The template or the tokenizer refuses it, or it has no exact mask.
    pub fn supervised_row(&self, conversation: &Conversation) -> Result<TokenRow, RowFault> {
        let text = self.render(conversation)?;
        let spans = spans(&text, conversation, &self.template, &self.shape)?;
        let encoding = self.encoding(&text)?;
        let loss_mask = token_mask(encoding.get_offsets(), &spans)
            .map_err(|turn| RowFault::Mask(turn + 1, "a token lies across its border"))?;
        Ok(TokenRow { token_ids: encoding.get_ids().to_vec(), loss_mask })
    }
}

fn fingerprint(tokenizer: &[u8], source: &TemplateSource) -> [u8; 32] {
    let mut hash = Sha256::new();
    let special_tokens = serde_json::to_vec(&source.special_tokens).expect("a JSON map is always JSON");
    let tool_use = source.tool_use.as_deref().unwrap_or_default();
    for part in [tokenizer, source.text.as_bytes(), tool_use.as_bytes(), &special_tokens] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
