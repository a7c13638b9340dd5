//! Checkpoints in the z-lab format, with what a restart needs beside it.
//!
//! `checkpoints/step-000200/` holds config.json and model.safetensors (what vLLM, SGLang and transformers load),
//! state.safetensors (float32 masters and moments) and manifest.json (step and trained batches). The manifest is written
//! last and the folder renamed into place, so a folder under its final name is whole. Snapshots in memory are made the
//! same way, of state and manifest alone.

mod read;
mod write;

pub(crate) use read::{first_drafter, restore};
pub(crate) use write::{save, snapshot};

/// Optimizer state's file name.
const STATE_FILE: &str = "state.safetensors";

/// What goes wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    /// A folder or file cannot be made, synced, renamed or removed.
    #[error("checkpoint {path}: {source}")]
    File { path: std::path::PathBuf, source: std::io::Error },
    /// The checkpoint was trained with another mask token.
    #[error("checkpoint {path} was trained with mask token {found}, this run says {expected}")]
    MaskToken { path: std::path::PathBuf, found: u32, expected: u32 },
}
