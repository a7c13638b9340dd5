//! Held-out prompts for evaluation.
use std::path::Path;

use crate::store::Dropped;
use crate::tokenizer::ChatTokenizer;

/// A conversation up to its last user turn, with the opening of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Ends where the assistant begins.
    pub token_ids: Vec<u32>,
    /// Line of the file where the row starts, from 1.
    pub line: u64,
}

/// The first rows of a file that hold a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    /// In file order.
    pub prompts: Vec<Prompt>,
    /// Rows passed over on the way, with the reason.
    pub dropped: Vec<Dropped>,
}

/// Why there are no prompts.
#[derive(Debug, thiserror::Error)]
pub enum PromptsError {}

/// The first `count` prompts of a file of chats (fewer if it has fewer; never none).
///
/// # Errors
/// Unreadable or empty file, no row with a user turn.
pub fn read(path: &Path, tokenizer: &ChatTokenizer, count: usize) -> Result<Prompts, PromptsError> {
    unimplemented!("{path:?} {count} {}", tokenizer.vocab_len())
}
