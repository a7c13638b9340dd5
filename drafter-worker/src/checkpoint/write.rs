//! Writing to the disk: a folder beside, synced, renamed; then the oldest ones go.

use std::fs::{self, File};
use std::path::Path;

use common::exit::AnyError;
use common::ids::Step;
use common::manifest::{self, Manifest};
use model::drafter::Drafter;

use super::{CheckpointError, PARTIAL, STATE_FILE, in_folder, remove};
use model::optimizer::AdamW;

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
    let parent = run.join(manifest::CHECKPOINTS);
    let (folder, partial) = (parent.join(manifest::folder_name(Step(manifest.step))), parent.join(PARTIAL));
    remove(&partial)?;
    let filled = fill(&partial, manifest, drafter, optimizer);
    if filled.is_err() {
        // Why it was not filled comes first, and the next try removes what stays behind.
        let _ = remove(&partial);
    }
    filled?;
    remove(&folder)?;
    in_folder(&folder, |folder| fs::rename(&partial, folder))?;
    in_folder(&parent, |path| File::open(path)?.sync_all())?;
    tracing::info!("saved {}", folder.display());
    let whole = manifest::checkpoints(run);
    whole.iter().rev().skip(keep).try_for_each(|folder| remove(folder))?;
    Ok(())
}

/// All that a checkpoint holds, the manifest last.
fn fill(partial: &Path, manifest: &Manifest, drafter: &Drafter, optimizer: &AdamW) -> Result<(), AnyError> {
    in_folder(partial, |folder| fs::create_dir_all(folder))?;
    drafter.save(partial)?;
    optimizer.save(&partial.join(STATE_FILE))?;
    manifest.write(partial)?;
    Ok(sync(partial)?)
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
