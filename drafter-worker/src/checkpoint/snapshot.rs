//! Snapshots: a copy of the state in memory that outlives the process.
//!
//! There are two folders at most, the newest snapshot's and the one before, which the next is written over: training
//! stands still for no longer than the copy takes.

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
    /// Made by this process; what another one left is removed after the first snapshot.
    newest: Option<(PathBuf, Mirror)>,
    /// The state of the folder under the name `PARTIAL`.
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
        let partial = self.folder.join(PARTIAL);
        let mut state = match self.spare.take() {
            Some(spare) => spare,
            None => first(&partial, optimizer)?,
        };
        optimizer.copy_into(&mut state)?;
        manifest.write(&partial)?;
        let folder = self.folder.join(manifest::folder_name(Step(manifest.step)));
        remove(&folder)?;
        in_folder(&folder, |folder| fs::rename(&partial, folder))?;
        let before = self.newest.replace((folder.clone(), state));
        self.spare = self.retire(&folder, before)?;
        Ok(())
    }

    /// Removes all snapshots but the newest; `before`, which this process made, is kept to be written over.
    fn retire(&self, newest: &Path, before: Option<(PathBuf, Mirror)>) -> Result<Option<Mirror>, AnyError> {
        let mut kept = None;
        if let Some((folder, state)) = before {
            in_folder(&folder, |folder| fs::rename(folder, self.folder.join(PARTIAL)))?;
            kept = Some(state);
        }
        for entry in in_folder(&self.folder, |folder| fs::read_dir(folder))? {
            let path = in_folder(&self.folder, |_| Ok(entry?.path()))?;
            if path != newest && !path.ends_with(PARTIAL) {
                remove(&path)?;
            }
        }
        Ok(kept)
    }
}

/// A folder for state, and room for it.
fn first(partial: &Path, optimizer: &AdamW) -> Result<Mirror, AnyError> {
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

    #[test]
    fn the_newest_is_whole_under_its_name_and_there_are_two_folders_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let newest = || manifest::restart_point(Path::new("/nowhere"), folder.path()).unwrap();
        // The second life finds what the first one left.
        for life in 0..2 {
            let mut snapshots = Snapshots::in_folder(folder.path().into());
            for step in life * 10 + 1..life * 10 + 5 {
                snapshots.take(&manifest(step), &state(step as f64).0).unwrap();
                let (path, found) = newest().expect("the launcher finds it");
                assert_eq!((found.step, read(&path)), (step, step as f64));
                let names = names(folder.path());
                assert!(names.len() <= 2, "{names:?}");
            }
        }
        assert_eq!(names(folder.path()), [PARTIAL, "step-000014"]);
    }
}
