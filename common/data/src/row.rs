//! A conversation as token ids with its loss mask, or the reason why not.

use crate::chats::Record;
use crate::template::RenderError;
use crate::tokenizer::ChatTokenizer;

/// A tokenised row. Both vectors have the same length, at most `max_length`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenRow {
    /// The whole rendering.
    pub token_ids: Vec<u32>,
    /// 1 where the token is supervised, else 0.
    pub loss_mask: Vec<u8>,
}

/// A row that can be trained on, and what its cut cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutRow {
    /// The row.
    pub row: TokenRow,
    /// Tokens before the cut; the row's length where it was not cut.
    pub full_length: usize,
    /// Supervised tokens behind the cut.
    pub supervised_lost: u64,
}

/// Why a row is not kept. The words before the first colon name the kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowFault {
    /// The first byte that does not belong, from 1.
    #[error("not UTF-8: the row's byte {0}")]
    NotUtf8(usize),
    /// The parser's words.
    #[error("not JSON: {0}")]
    Json(String),
    /// What it is.
    #[error("not a chat: the row is {0}, expected an object")]
    NotObject(&'static str),
    /// Keys that are there.
    #[error("no messages: neither `messages` nor `conversations` among the keys {}", .0.join(", "))]
    NoMessages(Vec<String>),
    /// Key.
    #[error("no messages: `{0}` is empty")]
    Empty(&'static str),
    /// Key, and what it is.
    #[error("no messages: `{0}` is {1}, expected a list")]
    NotList(&'static str, &'static str),
    /// It holds no messages.
    #[error("not a chat: a row of text or token ids has no prompt")]
    NotChat,
    /// Key, and what is wrong.
    #[error("bad field: `{0}` {1}")]
    Field(String, String),
    /// What is wrong.
    #[error("bad text: {0}")]
    Text(String),
    /// Number from 1, and what is wrong.
    #[error("bad message: number {0} {1}")]
    Message(usize, String),
    /// Number from 1, and the role.
    #[error("unknown role: '{1}' of message {0}")]
    Role(usize, String),
    /// What they are.
    #[error("bad tools: {0}, expected a list")]
    Tools(&'static str),
    /// There is nothing to learn.
    #[error("no assistant turn: nothing to learn from")]
    NoAssistant,
    /// There is nothing to answer.
    #[error("no user turn: nothing to answer")]
    NoUser,
    /// The template's words.
    #[error("refused by the chat template: {0}")]
    Template(#[from] RenderError),
    /// The assistant's turn, counted from 1, and what stands in the way.
    #[error("no exact mask: assistant turn {0}: {1}")]
    Mask(usize, &'static str),
    /// The tokenizer's words.
    #[error("refused by the tokenizer: {0}")]
    Tokenizer(String),
    /// No anchor to draw.
    #[error("too little to learn: no two supervised tokens in a row among its {0} tokens")]
    NoAnchor(usize),
    /// Anchors only behind the cut.
    #[error("too long: no two supervised tokens in a row among the first {max_length} of {tokens} tokens")]
    CutAway {
        /// Its length.
        tokens: usize,
        /// The cut.
        max_length: usize,
    },
}

impl RowFault {
    /// Whether the line itself cannot be read.
    #[must_use]
    pub fn is_bad_line(&self) -> bool {
        matches!(self, RowFault::NotUtf8(_) | RowFault::Json(_))
    }
}

/// Tokenises a row and cuts it to `max_length` tokens.
///
/// A kept row holds at least one anchor: two supervised tokens in a row.
///
/// # Errors
/// The template or tokenizer refuses it, it has no exact mask, or it has no anchor.
pub fn tokenize(record: Record, tokenizer: &ChatTokenizer, max_length: usize) -> Result<CutRow, RowFault> {
    let mut row = tokenizer.token_row(record)?;
    let full_length = row.token_ids.len();
    if !has_anchor(&row.loss_mask) {
        return Err(RowFault::NoAnchor(full_length));
    }
    let lost = row.loss_mask.iter().skip(max_length).map(|&bit| u64::from(bit)).sum();
    row.token_ids.truncate(max_length);
    row.loss_mask.truncate(max_length);
    if !has_anchor(&row.loss_mask) {
        return Err(RowFault::CutAway { tokens: full_length, max_length });
    }
    Ok(CutRow { row, full_length, supervised_lost: lost })
}

fn has_anchor(mask: &[u8]) -> bool {
    mask.windows(2).any(|pair| pair == [1, 1])
}
