//! A checkpoint's manifest: what a launcher or an inspector needs to know of it, readable without torch.
//!
//! A checkpoint is the folder `checkpoints/step-NNNNNN` of a run folder. The drafter writes all its files into a
//! temporary folder and renames it last, so a folder of that name is whole or absent; what is not whole is passed over
//! here all the same. A snapshot is a checkpoint in memory that holds only what a restart needs.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ids::Step;
use crate::queue::snapshots_name;

/// Folder of all checkpoints in a run folder.
pub const CHECKPOINTS: &str = "checkpoints";

/// The manifest's name in a checkpoint.
pub const MANIFEST_FILE: &str = "manifest.json";

/// The files of a whole checkpoint: z-lab format, then what a restart needs.
pub const CHECKPOINT_FILES: [&str; 4] = ["config.json", "model.safetensors", "state.safetensors", MANIFEST_FILE];

/// The files of a whole snapshot.
pub const SNAPSHOT_FILES: [&str; 2] = ["state.safetensors", MANIFEST_FILE];

/// Where training stood when the checkpoint was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The run that wrote it.
    pub run_id: String,
    /// Optimizer steps taken.
    pub step: u64,
    /// Batch ids that these weights were trained on, as half-open ranges, ascending.
    pub trained: Vec<(u64, u64)>,
    /// The embedding row that stands for "not known yet"; served models need it.
    pub mask_token_id: u32,
    /// Tokens of all rows trained so far; a row counts once per epoch. 0 in checkpoints from before this was counted.
    #[serde(default)]
    pub tokens: u64,
    /// Block slots scored so far: what losses and accuracies are means over. 0 as above.
    #[serde(default, alias = "supervised_tokens")]
    pub scored_slots: u64,
}

/// A manifest that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file system said no.
    #[error("{path}: {source}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not a manifest.
    #[error("{path}: not a checkpoint manifest: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's words.
        source: serde_json::Error,
    },
}

impl Manifest {
    /// Writes `manifest.json` into a checkpoint folder.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, checkpoint: &Path) -> Result<(), ManifestError> {
        let path = checkpoint.join(MANIFEST_FILE);
        let text = serde_json::to_string_pretty(self).expect("a Manifest has only values that JSON can hold");
        std::fs::write(&path, text + "\n").map_err(|source| ManifestError::File { path, source })
    }

    /// Reads `manifest.json` of a checkpoint folder.
    ///
    /// # Errors
    /// Unreadable file, or not a manifest.
    pub fn read(checkpoint: &Path) -> Result<Manifest, ManifestError> {
        let path = checkpoint.join(MANIFEST_FILE);
        let text =
            std::fs::read_to_string(&path).map_err(|source| ManifestError::File { path: path.clone(), source })?;
        serde_json::from_str(&text).map_err(|source| ManifestError::Parse { path, source })
    }
}

/// The folder name of a step's checkpoint: `step-000200`.
pub fn folder_name(step: Step) -> String {
    format!("step-{:06}", step.0)
}

/// The whole checkpoints of a run folder, oldest first; none where the folder cannot be listed.
pub fn checkpoints(run_dir: &Path) -> Vec<PathBuf> {
    let whole = whole_ones(&run_dir.join(CHECKPOINTS), &CHECKPOINT_FILES).unwrap_or_default();
    whole.into_iter().map(|(folder, _)| folder).collect()
}

/// The newest whole checkpoint of a run folder and its manifest, if there is one.
///
/// # Errors
/// The checkpoints folder is there and cannot be listed: what training goes on from must not be guessed.
pub fn newest_checkpoint(run_dir: &Path) -> Result<Option<(PathBuf, Manifest)>, ManifestError> {
    newest(run_dir.join(CHECKPOINTS), &CHECKPOINT_FILES)
}

/// The folder in memory where a run's drafters keep snapshots.
pub fn snapshots(run_id: &str) -> PathBuf {
    Path::new("/dev/shm").join(snapshots_name(run_id))
}

/// The newest whole snapshot in a folder and its manifest, if there is one.
///
/// # Errors
/// The folder is there and cannot be listed.
pub fn newest_snapshot(folder: &Path) -> Result<Option<(PathBuf, Manifest)>, ManifestError> {
    newest(folder.to_owned(), &SNAPSHOT_FILES)
}

/// Where training goes on from: the newest of a run folder's checkpoints and of the snapshots in a folder.
///
/// # Errors
/// As [`newest_checkpoint`].
pub fn restart_point(run_dir: &Path, snapshots: &Path) -> Result<Option<(PathBuf, Manifest)>, ManifestError> {
    let both = newest_snapshot(snapshots)?.into_iter().chain(newest_checkpoint(run_dir)?);
    Ok(both.max_by_key(|(_, manifest)| manifest.step))
}

fn newest(folder: PathBuf, files: &[&str]) -> Result<Option<(PathBuf, Manifest)>, ManifestError> {
    match whole_ones(&folder, files) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ManifestError::File { path: folder, source }),
        Ok(mut whole) => Ok(whole.pop()),
    }
}

fn whole_ones(folder: &Path, files: &[&str]) -> io::Result<Vec<(PathBuf, Manifest)>> {
    let paths: Vec<PathBuf> = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    let mut whole: Vec<_> = paths.into_iter().filter_map(|folder| whole(folder, files)).collect();
    whole.sort_by_key(|(_, manifest)| manifest.step);
    Ok(whole)
}

/// The folder with its manifest, if every file is there and its name is its step's.
fn whole(folder: PathBuf, files: &[&str]) -> Option<(PathBuf, Manifest)> {
    let complete = files.iter().all(|name| folder.join(name).is_file());
    let manifest = Manifest::read(&folder).ok().filter(|_| complete)?;
    folder.ends_with(folder_name(Step(manifest.step))).then_some((folder, manifest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_step(step: u64) -> Manifest {
        let run_id = "r".into();
        Manifest { run_id, step, trained: Vec::new(), mask_token_id: 9, tokens: 0, scored_slots: 0 }
    }

    fn save(run_dir: &Path, step: u64) -> PathBuf {
        let folder = run_dir.join(CHECKPOINTS).join(folder_name(Step(step)));
        std::fs::create_dir_all(&folder).unwrap();
        for name in CHECKPOINT_FILES {
            std::fs::write(folder.join(name), "x").unwrap();
        }
        let manifest = Manifest { trained: vec![(0, 3), (4, 7)], tokens: 70, scored_slots: 30, ..of_step(step) };
        manifest.write(&folder).unwrap();
        assert_eq!(Manifest::read(&folder).unwrap(), manifest);
        folder
    }

    #[test]
    fn the_newest_is_the_one_of_the_highest_step() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(newest_checkpoint(run.path()).unwrap(), None);
        let older = save(run.path(), 999_999);
        let newest = save(run.path(), 1_000_000);
        let oldest = save(run.path(), 20);
        assert_eq!(checkpoints(run.path()), [oldest, older, newest.clone()]);
        let (folder, manifest) = newest_checkpoint(run.path()).unwrap().unwrap();
        assert_eq!((folder, manifest.step), (newest, 1_000_000));
    }

    #[test]
    fn what_is_not_whole_is_passed_over() {
        let run = tempfile::tempdir().unwrap();
        let whole = save(run.path(), 1);
        for (step, file) in (2..).zip(CHECKPOINT_FILES) {
            std::fs::remove_file(save(run.path(), step).join(file)).unwrap();
        }
        std::fs::write(save(run.path(), 7).join(MANIFEST_FILE), "{").unwrap();
        std::fs::rename(save(run.path(), 8), run.path().join(CHECKPOINTS).join("step-000008.partial")).unwrap();
        assert_eq!(newest_checkpoint(run.path()).unwrap().unwrap().0, whole);
    }

    #[test]
    fn training_goes_on_from_the_newest_of_checkpoint_and_snapshot() {
        let (run, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let point = || restart_point(run.path(), memory.path()).unwrap().map(|(folder, _)| folder);
        assert_eq!(point(), None);
        let snapshot = |step| {
            let folder = memory.path().join(folder_name(Step(step)));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("state.safetensors"), "x").unwrap();
            of_step(step).write(&folder).unwrap();
            folder
        };
        let first = snapshot(4);
        assert_eq!(point(), Some(first));
        let saved = save(run.path(), 4);
        assert_eq!(point(), Some(saved), "what is on the disk is good for more");
        let later = snapshot(5);
        assert_eq!(point(), Some(later));
    }
}
