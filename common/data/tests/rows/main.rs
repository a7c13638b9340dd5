//! Whole paths through the crate, over tokenizers and templates made for the test.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod folder;
mod masks;
mod plan;
mod prompts;
mod store;
mod templates;
