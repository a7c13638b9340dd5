//! What can be wrong with a model's shape.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Each names the file or the configuration key, what was found and what would do.
#[derive(Debug, thiserror::Error)]
pub enum ModelConfigError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not JSON, a key missing, or a value of the wrong kind.
    #[error("{path}: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's words.
        source: serde_json::Error,
    },
    /// Neither a single file of weights nor an index of shards.
    #[error("{folder}: neither model.safetensors nor model.safetensors.index.json is there")]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// A model that Tandem cannot run.
    #[error("{path}: architecture {found} is not supported, only LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM")]
    Architecture {
        /// The model's config.json.
        path: PathBuf,
        /// What it says it is.
        found: String,
    },
    /// A rotary embedding that Tandem cannot compute.
    #[error("{path}: rope type {found} is not supported, only default, llama3, yarn")]
    RopeType {
        /// The model's config.json.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// A value in a model's file that Tandem cannot run.
    #[error("{path}: {key}: found {found}, supported: {allowed}")]
    Unsupported {
        /// The model's config.json.
        path: PathBuf,
        /// Key in that file.
        key: &'static str,
        /// The value.
        found: String,
        /// What would do.
        allowed: String,
    },
    /// The tokenizer has tokens that the target's embedding has no row for.
    #[error("the tokenizer's ids go up to {highest}, the target's embedding has {rows} rows (config.json: vocab_size)")]
    Tokenizer {
        /// Its highest id.
        highest: usize,
        /// Rows there are.
        rows: usize,
    },
    /// A value in `[drafter]` that does not fit the target, the tokenizer or the checkpoint to start from.
    #[error("drafter.{key}: found {found}, allowed: {allowed}")]
    Drafter {
        /// Key in `[drafter]`.
        key: &'static str,
        /// The value.
        found: String,
        /// What would do.
        allowed: String,
    },
}

impl ModelConfigError {
    pub(super) fn unsupported(path: &Path, key: &'static str, found: impl Display, allowed: impl Display) -> Self {
        Self::Unsupported { path: path.into(), key, found: found.to_string(), allowed: allowed.to_string() }
    }

    pub(super) fn drafter(key: &'static str, found: impl Display, allowed: impl Display) -> Self {
        Self::Drafter { key, found: found.to_string(), allowed: allowed.to_string() }
    }
}
