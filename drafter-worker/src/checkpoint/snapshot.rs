//! Snapshots: a copy of the state in memory that outlives the process.
//!
//! There are two folders at most, the newest snapshot's and the one before, which the next is written over. From the third
//! one on training stands still for no longer than the copy takes; for each of the first two its memory is taken first.

use std::fs;
use std::path::{Path, PathBuf};

use common::exit::AnyError;
use common::ids::Step;
use common::manifest::{self, Manifest};
use model::optimizer::AdamW;
use model::weights::Mirror;

use super::{PARTIAL, STATE_FILE, in_folder, remove};

/// A drafter's snapshots in one folder.
pub(crate) struct Snapshots {
    folder: PathBuf,
    /// Made by this process. Of what another one left, the newest stays until the first snapshot is taken.
    newest: Option<(PathBuf, Mirror)>,
    /// The state in the folder under the name `PARTIAL`, while that is this process's.
    spare: Option<Mirror>,
}

impl Snapshots {
    /// None taken yet.
    pub(crate) fn in_folder(folder: PathBuf) -> Snapshots {
        Snapshots { folder, newest: None, spare: None }
    }

    /// Takes the snapshot of the manifest's step; those before go.
    ///
    /// # Errors
    /// There is no room in memory; the one before stays as it is.
    pub(crate) fn take(&mut self, manifest: &Manifest, optimizer: &AdamW) -> Result<(), AnyError> {
        // Of another process's snapshots one is enough: it may have died before it removed the last but one.
        if self.newest.is_none()
            && let Some((newest, _)) = manifest::newest_snapshot(&self.folder)?
        {
            self.remove_but(&newest)?;
        }
        let partial = self.folder.join(PARTIAL);
        let filled = self.fill(&partial, manifest, optimizer);
        if filled.is_err() {
            // Memory that is taken to no use is missing elsewhere. Why it was not filled comes first.
            let _ = remove(&partial);
        }
        let (state, folder) = (filled?, self.folder.join(manifest::folder_name(Step(manifest.step))));
        // One of the same step is no older one that the next may be written over.
        self.newest.take_if(|(path, _)| *path == folder);
        remove(&folder)?;
        in_folder(&folder, |folder| fs::rename(&partial, folder))?;
        let before = self.newest.replace((folder.clone(), state));
        self.spare = self.retire(&folder, before).unwrap_or_else(|error| {
            tracing::warn!("snapshots before step {} stay behind: {error}", manifest.step);
            None
        });
        Ok(())
    }

    /// Writes state and manifest into the folder `partial`, over what is there if that is this process's.
    fn fill(&mut self, partial: &Path, manifest: &Manifest, optimizer: &AdamW) -> Result<Mirror, AnyError> {
        let mut state = match self.spare.take() {
            Some(spare) => spare,
            None => room_for(optimizer, partial)?,
        };
        optimizer.copy_into(&mut state)?;
        manifest.write(partial)?;
        Ok(state)
    }

    /// Removes all snapshots but the newest; `before`, which this process made, is kept to be written over.
    fn retire(&self, newest: &Path, before: Option<(PathBuf, Mirror)>) -> Result<Option<Mirror>, AnyError> {
        let mut kept = None;
        if let Some((folder, state)) = before {
            in_folder(&folder, |folder| fs::rename(folder, self.folder.join(PARTIAL)))?;
            kept = Some(state);
        }
        self.remove_but(newest)?;
        Ok(kept)
    }

    /// Removes all folders but that one and `PARTIAL`.
    fn remove_but(&self, kept: &Path) -> Result<(), AnyError> {
        for entry in in_folder(&self.folder, |folder| fs::read_dir(folder))? {
            let path = in_folder(&self.folder, |_| Ok(entry?.path()))?;
            if path != kept && !path.ends_with(PARTIAL) {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Room for a state in a new folder of that name.
fn room_for(optimizer: &AdamW, partial: &Path) -> Result<Mirror, AnyError> {
    remove(partial)?;
    in_folder(partial, |folder| fs::create_dir_all(folder))?;
    Ok(optimizer.mirror(&partial.join(STATE_FILE))?)
}

#[cfg(test)]
mod tests {
    use common::config::TrainingSection;
    use model::drafter::Parameters;
    use tch::{Device, Kind, Tensor};

    use super::*;

    fn manifest(step: u64) -> Manifest {
        let (run_id, trained) = ("run".to_owned(), Vec::new());
        Manifest { run_id, step, trained, mask_token_id: 0, tokens: 0, scored_slots: 0 }
    }

    /// A drafter of four weights, each of this value.
    fn state(value: f64) -> (AdamW, Parameters) {
        let shapes = [("w".to_owned(), vec![2, 2])];
        let mut parameters = Parameters::zeros(&shapes, Kind::Float, Device::Cpu).unwrap();
        parameters.assign(&Tensor::full(4, value, (Kind::Float, Device::Cpu)));
        (AdamW::new(&parameters, &TrainingSection::default()), parameters)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn read(folder: &Path) -> f64 {
        let (mut optimizer, mut parameters) = state(0.0);
        optimizer.load(&folder.join(STATE_FILE), &mut parameters).unwrap();
        parameters.values().mean(Kind::Double).double_value(&[])
    }

    /// What a launcher finds in the folder: step and state.
    fn found(folder: &Path) -> Option<(u64, f64)> {
        let newest = manifest::restart_point(Path::new("/nowhere"), folder).unwrap();
        newest.map(|(path, manifest)| (manifest.step, read(&path)))
    }

    #[test]
    fn the_newest_is_whole_under_its_name_and_there_are_two_folders_at_most() {
        let folder = tempfile::tempdir().unwrap();
        // The second life finds what the first one left.
        for life in 0..2 {
            let mut snapshots = Snapshots::in_folder(folder.path().into());
            for step in life * 10 + 1..life * 10 + 5 {
                snapshots.take(&manifest(step), &state(step as f64).0).unwrap();
                assert_eq!(found(folder.path()), Some((step, step as f64)));
                let names = names(folder.path());
                assert!(names.len() <= 2, "{names:?}");
            }
        }
        assert_eq!(names(folder.path()), [PARTIAL, "step-000014"]);
    }

    /// As two that are whole: its process died between their renames.
    #[test]
    fn a_new_process_makes_room_first() {
        let folder = tempfile::tempdir().unwrap();
        for step in [1, 2] {
            let aside = tempfile::tempdir().unwrap();
            Snapshots::in_folder(aside.path().into()).take(&manifest(step), &state(step as f64).0).unwrap();
            let name = manifest::folder_name(Step(step));
            fs::create_dir(folder.path().join(&name)).unwrap();
            for file in manifest::SNAPSHOT_FILES {
                fs::copy(aside.path().join(&name).join(file), folder.path().join(&name).join(file)).unwrap();
            }
        }
        // Something in the way of the third one.
        fs::write(folder.path().join(PARTIAL), "").unwrap();
        let mut snapshots = Snapshots::in_folder(folder.path().into());
        assert!(snapshots.take(&manifest(3), &state(3.0).0).is_err());
        assert_eq!(names(folder.path()), [PARTIAL, "step-000002"]);
        fs::remove_file(folder.path().join(PARTIAL)).unwrap();
        snapshots.take(&manifest(3), &state(3.0).0).unwrap();
        assert_eq!((found(folder.path()), names(folder.path())), (Some((3, 3.0)), vec!["step-000003".to_owned()]));
    }

    #[test]
    fn a_step_may_be_taken_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut snapshots = Snapshots::in_folder(folder.path().into());
        for (step, value) in [(1, 10.0), (2, 20.0), (2, 30.0), (3, 40.0), (4, 50.0)] {
            snapshots.take(&manifest(step), &state(value).0).unwrap();
            assert_eq!(found(folder.path()), Some((step, value)));
        }
    }

    #[test]
    fn one_that_fails_leaves_the_one_before_and_the_next_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let mut snapshots = Snapshots::in_folder(folder.path().into());
        (1..4).for_each(|step| snapshots.take(&manifest(step), &state(step as f64).0).unwrap());
        fs::remove_dir_all(folder.path().join(PARTIAL)).unwrap();
        let error = snapshots.take(&manifest(4), &state(4.0).0).unwrap_err().to_string();
        assert!(error.contains(PARTIAL), "{error}");
        assert_eq!((found(folder.path()), names(folder.path())), (Some((3, 3.0)), vec!["step-000003".to_owned()]));
        for step in 5..8 {
            snapshots.take(&manifest(step), &state(step as f64).0).unwrap();
            assert_eq!(found(folder.path()), Some((step, step as f64)));
        }
        assert_eq!(names(folder.path()), [PARTIAL, "step-000007"]);
    }
}
