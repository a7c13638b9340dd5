//! The folder in `/dev/shm` where drafters keep their state between checkpoints.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use common::manifest;

/// The drafters' memory of their state, gone when dropped.
pub(crate) struct Snapshots(PathBuf);

impl Snapshots {
    /// Makes the run's folder.
    ///
    /// # Errors
    /// The folder, and why it cannot be made.
    pub(crate) fn create(run_id: &str) -> Result<Snapshots, (PathBuf, io::Error)> {
        let path = manifest::snapshots(run_id);
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Snapshots(path)),
            Err(error) => Err((path, error)),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        // What stays behind, the next start sweeps.
        let _ = fs::remove_dir_all(&self.0);
    }
}
