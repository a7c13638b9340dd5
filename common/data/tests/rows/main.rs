//! Whole paths through the crate, over tokenizers and templates made for the test.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod folder;
mod golden;
mod inputs;
mod masks;
mod odd;
mod plan;
mod prompts;
mod shapes;
mod store;
mod templates;
