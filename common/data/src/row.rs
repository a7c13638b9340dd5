//! A conversation as token ids with its loss mask.

/// A tokenised row. Both vectors have the same length, at most `max_length`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenRow {
    /// The whole rendering.
    pub token_ids: Vec<u32>,
    /// 1 where the token is supervised, else 0.
    pub loss_mask: Vec<u8>,
}
