//! Checkpoints in the z-lab format, with what a restart needs beside it.
//!
//! `checkpoints/step-000200/` holds config.json and model.safetensors (what vLLM, SGLang and transformers load),
//! state.safetensors (float32 masters and moments) and manifest.json (step and trained batches). The manifest is written
//! last and the folder renamed into place, so a folder under its final name is whole. So it is with snapshots in memory, of
//! state and manifest alone, but that they are written over one that was whole.

mod read;
mod snapshot;
mod write;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) use read::{first_drafter, restore};
pub(crate) use snapshot::Snapshots;
pub(crate) use write::save;

/// Optimizer state's file name.
const STATE_FILE: &str = "state.safetensors";

/// The name of a folder that is being written, or waits for that: nobody goes on from it, whatever it holds.
const PARTIAL: &str = ".partial";

/// What goes wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    /// A folder or file cannot be made, synced, renamed or removed.
    #[error("checkpoint {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    /// The checkpoint was trained with another mask token.
    #[error("checkpoint {path} was trained with mask token {found}, this run says {expected}")]
    MaskToken { path: PathBuf, found: u32, expected: u32 },
}

fn in_folder<T>(path: &Path, action: impl FnOnce(&Path) -> io::Result<T>) -> Result<T, CheckpointError> {
    action(path).map_err(|source| CheckpointError::File { path: path.into(), source })
}

fn remove(folder: &Path) -> Result<(), CheckpointError> {
    if folder.exists() { in_folder(folder, |folder| fs::remove_dir_all(folder)) } else { Ok(()) }
}
