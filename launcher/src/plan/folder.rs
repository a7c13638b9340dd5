//! The run folder: made fresh, an earlier run moved aside, never two runs in one.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::fleet::LOGS;

/// Locked while its launcher lives, however that ends.
const LOCK: &str = "run.lock";

/// A run folder that is ours until this value, or the process, is gone.
pub(crate) struct RunFolder {
    /// Where.
    pub(crate) path: PathBuf,
    /// Where the run that was there before has gone.
    pub(crate) moved: Option<PathBuf>,
    _lock: File,
}

/// A run folder that cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FolderError {
    /// There is nothing to go on with.
    #[error("{0}: no run is there to resume")]
    NoRun(PathBuf),
    /// Another launcher is at work there.
    #[error("{0}: another run is going on there")]
    InUse(PathBuf),
    /// Somebody's files that are no run's.
    #[error("{0}: not empty, and not the folder of a run")]
    Foreign(PathBuf),
    /// The file system said no.
    #[error("{path}: {source}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl RunFolder {
    /// Refuses a place where no run could have its folder: one is made there, or as near as there is a folder, and
    /// removed again.
    ///
    /// # Errors
    /// The folder holds something else, or the file system says no.
    pub(crate) fn check(path: &Path) -> Result<(), FolderError> {
        let whole = at(path, std::path::absolute(path))?;
        let there = whole.ancestors().find(|place| place.exists()).unwrap_or(Path::new("/"));
        if there == whole && !is_free(path)? && !path.join(LOCK).is_file() {
            return Err(FolderError::Foreign(path.to_owned()));
        }
        let trial = there.join(format!(".tandem-{}", std::process::id()));
        at(path, fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial)))
    }

    /// Makes `path` and its `logs` folder.
    ///
    /// # Errors
    /// Another run is at work there, the folder holds something else, or the file system says no.
    pub(crate) fn create(path: &Path) -> Result<RunFolder, FolderError> {
        let moved = make_way(path)?;
        RunFolder::at(path, moved)
    }

    /// Takes the folder of an earlier run as it is.
    ///
    /// # Errors
    /// There is no run, or another launcher is at work there.
    pub(crate) fn resume(path: &Path) -> Result<RunFolder, FolderError> {
        if path.join(LOCK).is_file() { RunFolder::at(path, None) } else { Err(FolderError::NoRun(path.to_owned())) }
    }

    fn at(path: &Path, moved: Option<PathBuf>) -> Result<RunFolder, FolderError> {
        let logs = path.join(LOGS);
        at(&logs, fs::create_dir_all(&logs))?;
        let lock = lock(path)?;
        Ok(RunFolder { path: path.to_owned(), moved, _lock: lock })
    }
}

/// Whether nothing is there, or an empty folder.
fn is_free(path: &Path) -> Result<bool, FolderError> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        entries => Ok(at(path, entries)?.next().is_none()),
    }
}

/// Moves an earlier run aside; where to.
fn make_way(path: &Path) -> Result<Option<PathBuf>, FolderError> {
    if is_free(path)? {
        return Ok(None);
    }
    let foreign = || FolderError::Foreign(path.to_owned());
    let name = path.file_name().filter(|_| path.join(LOCK).is_file()).ok_or_else(foreign)?;
    let _ours = lock(path)?;
    let numbered = |number: u32| path.with_file_name(format!("{}.{number}", name.to_string_lossy()));
    let aside = (1..).map(numbered).find(|aside| !aside.exists()).expect("some number is free");
    at(path, fs::rename(path, &aside))?;
    Ok(Some(aside))
}

fn lock(folder: &Path) -> Result<File, FolderError> {
    let path = folder.join(LOCK);
    let file = at(&path, File::options().create(true).truncate(false).write(true).open(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(FolderError::InUse(folder.to_owned())),
        Err(TryLockError::Error(source)) => Err(FolderError::File { path, source }),
    }
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, FolderError> {
    result.map_err(|source| FolderError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_runs_are_moved_aside_and_kept() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("runs/tiny");
        for earlier in ["first", "second"] {
            let folder = RunFolder::create(&path).unwrap();
            fs::write(folder.path.join("summary.json"), earlier).unwrap();
        }
        let third = RunFolder::create(&path).unwrap();
        assert_eq!(third.moved, Some(parent.path().join("runs/tiny.2")));
        let summary = |name: &str| fs::read_to_string(parent.path().join(name).join("summary.json")).unwrap();
        assert_eq!((summary("runs/tiny.1"), summary("runs/tiny.2")), ("first".into(), "second".into()));
        assert!(path.join(LOGS).is_dir() && !path.join("summary.json").exists());
    }

    #[test]
    fn a_run_is_resumed_where_it_is_and_nowhere_else() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        assert!(matches!(RunFolder::resume(&path), Err(FolderError::NoRun(_))));
        assert!(!path.exists());
        drop(RunFolder::create(&path).unwrap());
        let resumed = RunFolder::resume(&path).unwrap();
        assert!(matches!(RunFolder::resume(&path), Err(FolderError::InUse(_))));
        assert_eq!((resumed.moved.as_ref(), resumed.path.as_path()), (None, path.as_path()));
    }

    #[test]
    fn a_run_at_work_and_somebody_elses_folder_are_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let busy = parent.path().join("busy");
        let _run = RunFolder::create(&busy).unwrap();
        assert!(matches!(RunFolder::create(&busy), Err(FolderError::InUse(_))));
        let home = parent.path().join("home");
        fs::create_dir(&home).unwrap();
        assert_eq!(RunFolder::create(&home).unwrap().moved, None);
        fs::remove_file(home.join(LOCK)).unwrap();
        assert!(matches!(RunFolder::create(&home), Err(FolderError::Foreign(_))));
        assert!(matches!(RunFolder::check(&home), Err(FolderError::Foreign(_))));
    }

    #[test]
    fn a_place_where_nothing_can_be_made_is_refused_and_a_good_one_left_as_it_is() {
        let parent = tempfile::tempdir().unwrap();
        let good = parent.path().join("runs/tiny");
        RunFolder::check(&good).unwrap();
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        drop(RunFolder::create(&good).unwrap());
        RunFolder::check(&good).unwrap();
        fs::write(parent.path().join("file"), "").unwrap();
        for bad in [parent.path().join("file"), parent.path().join("file/x"), "/proc/x".into()] {
            assert!(matches!(RunFolder::check(&bad), Err(FolderError::File { path, .. }) if path == bad), "{bad:?}");
        }
    }
}
