//! The target's tokenizer and chat template.
use std::path::Path;

use crate::chats::{Conversation, Message};
use crate::template::RenderError;

/// A target folder's tokenizer with its chat template.
pub struct ChatTokenizer {}

/// Why a folder's tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {}

impl ChatTokenizer {
    /// Reads `tokenizer.json` and the chat template (`chat_template.jinja`, else `tokenizer_config.json`) of `dir`.
    ///
    /// # Errors
    /// A file is missing or broken.
    pub fn load(dir: &Path) -> Result<ChatTokenizer, TokenizerError> {
        unimplemented!("{dir:?}")
    }

    /// The whole conversation as text.
    ///
    /// # Errors
    /// The template refuses it.
    pub fn render(&self, conversation: &Conversation) -> Result<String, RenderError> {
        unimplemented!("{conversation:?}")
    }

    /// The messages as text, with the opening of the assistant's next turn.
    ///
    /// # Errors
    /// The template refuses them.
    pub fn render_prompt(&self, messages: &[Message]) -> Result<String, RenderError> {
        unimplemented!("{messages:?}")
    }

    /// Token ids of text as it stands: nothing is added.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        unimplemented!("{text:?}")
    }

    /// Text of token ids, special tokens included.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        unimplemented!("{ids:?}")
    }

    /// One more than the highest token id: embedding rows from here on are unused.
    #[must_use]
    pub fn vocab_len(&self) -> usize {
        unimplemented!()
    }
}
