//! Writing: a folder beside, synced, renamed; then the oldest ones go.

use std::fs::{self, File};
use std::path::Path;

use common::exit::AnyError;
use common::ids::Step;
use common::manifest::{self, Manifest};
use model::drafter::Drafter;

use super::{CheckpointError, STATE_FILE};
use crate::train::optimizer::AdamW;

/// What is being written; no checkpoint until it is renamed.
const PARTIAL: &str = ".partial";

/// Writes the checkpoint of the manifest's step into the run folder and removes all but the newest `keep`.
///
/// # Errors
/// The disk is full or the folder cannot be written; earlier checkpoints stay as they are.
pub(crate) fn save(
    run: &Path,
    keep: usize,
    manifest: &Manifest,
    drafter: &Drafter,
    optimizer: &AdamW,
) -> Result<(), AnyError> {
    let checkpoints = run.join(manifest::CHECKPOINTS);
    let folder = checkpoints.join(manifest::folder_name(Step(manifest.step)));
    let partial = checkpoints.join(PARTIAL);
    remove(&partial)?;
    in_folder(&partial, |folder| fs::create_dir_all(folder))?;
    drafter.save(&partial)?;
    optimizer.save(&partial.join(STATE_FILE))?;
    manifest.write(&partial)?;
    sync(&partial)?;
    remove(&folder)?;
    in_folder(&folder, |folder| fs::rename(&partial, folder))?;
    in_folder(&checkpoints, |path| File::open(path)?.sync_all())?;
    tracing::info!("saved {}", folder.display());
    let whole = manifest::checkpoints(run);
    whole.iter().rev().skip(keep).try_for_each(|folder| remove(folder))?;
    Ok(())
}

fn in_folder(path: &Path, action: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), CheckpointError> {
    action(path).map_err(|source| CheckpointError::File { path: path.into(), source })
}

fn remove(folder: &Path) -> Result<(), CheckpointError> {
    if folder.exists() { in_folder(folder, |folder| fs::remove_dir_all(folder)) } else { Ok(()) }
}

/// Every file of the folder, then the folder itself, to the disk.
fn sync(folder: &Path) -> Result<(), CheckpointError> {
    in_folder(folder, |folder| {
        for entry in fs::read_dir(folder)? {
            File::open(entry?.path())?.sync_all()?;
        }
        File::open(folder)?.sync_all()
    })
}
