//! Writing: a folder beside, synced, renamed; then the oldest ones go. Checkpoints to the disk, snapshots to memory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use common::exit::AnyError;
use common::ids::Step;
use common::manifest::{self, Manifest};
use model::drafter::Drafter;

use super::{CheckpointError, STATE_FILE};
use model::optimizer::AdamW;

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
    let folder = write(&run.join(manifest::CHECKPOINTS), manifest, |partial| {
        drafter.save(partial)?;
        Ok(optimizer.save(&partial.join(STATE_FILE))?)
    })?;
    tracing::info!("saved {}", folder.display());
    let whole = manifest::checkpoints(run);
    whole.iter().rev().skip(keep).try_for_each(|folder| remove(folder))?;
    Ok(())
}

/// Writes the snapshot of the manifest's step into `snapshots` and removes those before.
///
/// # Errors
/// There is no room in memory; the one before stays as it is.
pub(crate) fn snapshot(snapshots: &Path, manifest: &Manifest, optimizer: &AdamW) -> Result<(), AnyError> {
    let written = write(snapshots, manifest, |partial| Ok(optimizer.save(&partial.join(STATE_FILE))?));
    let newest = written?;
    in_folder(snapshots, |snapshots| {
        for entry in fs::read_dir(snapshots)? {
            let path = entry?.path();
            if path != newest {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    })?;
    Ok(())
}

/// Makes `parent`'s folder of the manifest's step from what `fill` puts into it and the manifest; all of it or nothing.
fn write(
    parent: &Path,
    manifest: &Manifest,
    fill: impl FnOnce(&Path) -> Result<(), AnyError>,
) -> Result<PathBuf, AnyError> {
    let folder = parent.join(manifest::folder_name(Step(manifest.step)));
    let partial = parent.join(PARTIAL);
    remove(&partial)?;
    in_folder(&partial, |folder| fs::create_dir_all(folder))?;
    let filled = fill(&partial).and_then(|()| Ok(manifest.write(&partial)?)).and_then(|()| Ok(sync(&partial)?));
    if filled.is_err() {
        // Why it was not filled comes first, and the next try removes what stays behind.
        let _ = remove(&partial);
    }
    filled?;
    remove(&folder)?;
    in_folder(&folder, |folder| fs::rename(&partial, folder))?;
    in_folder(parent, |path| File::open(path)?.sync_all())?;
    Ok(folder)
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
