//! Chats in, token rows and batch plans out. No torch.
//!
//! ```text
//! file -> chats (rows, each with its line) -> template (text) -> tokenizer (ids, offsets) -> mask (assistant only)
//!      -> pass (every row with what became of it) -> store (memory-mapped, built once)
//!      -> plan (batches: a pure function of rows, seed and epoch)
//! ```
//!
//! Every input row is either kept or counted with its line and the reason; nothing is guessed and nothing vanishes.

pub mod chats;
mod encoder;
pub mod mask;
pub mod pass;
pub mod plan;
pub mod prompts;
pub mod row;
pub mod store;
pub mod template;
pub mod tokenizer;
