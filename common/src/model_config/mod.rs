//! Shapes of target and drafter as their `config.json` says: plain serde, no tensors, so that the launcher can plan.
//!
//! [`TargetConfig`] reads a Hugging Face folder and refuses by name what Tandem cannot run. [`DraftConfig`] is decided
//! from it, from `[drafter]` and from the tokenizer, and is written and read in the z-lab format that servers load.

mod draft;
mod draft_file;
mod error;
mod fields;
mod resolve;
mod rope;
mod target;
mod weights;

pub use draft::DraftConfig;
pub use error::ModelConfigError;
pub use resolve::default_target_layer_ids;
pub use rope::{Rope, RopeScaling};
pub use target::{Architecture, TargetConfig};
pub use weights::{WEIGHTS_FILE, weight_files};

#[cfg(test)]
pub(crate) use {draft::tests::qwen3_8b, resolve::tests::qwen3_8b_target};

/// The configuration's file name in a model folder, target's and drafter's alike.
pub const CONFIG_FILE: &str = "config.json";
