//! Whole paths through the crate, over tokenizers and templates made for the test.

mod folder;
mod masks;
mod plan;
mod prompts;
mod store;
mod templates;
