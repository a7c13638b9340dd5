//! What launcher and workers say to each other.

use std::path::{Path, PathBuf};

use bincode::{Decode, Encode};

use crate::arena::{ArenaReply, ArenaRequest};
use crate::ids::Step;
use crate::manifest::{CHECKPOINTS, folder_name};

/// From the launcher to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ToWorker {
    /// To a drafter: another one died. Leave the step and the place at the queue, then say [`ToLauncher::Left`].
    Leave,
    /// To a drafter that left: take the place again, and a part in the new sum, and go on from here.
    Rejoin(RestartPoint),
    /// About the arena on GPUs; the file is a part's.
    Arena(ArenaReply),
}

/// From a worker to the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ToLauncher {
    /// A drafter has given up its place at the queue and waits to be told where to go on.
    Left,
    /// About the arena on GPUs; the file is a part's.
    Arena(ArenaRequest),
}

/// Where drafters go on from after one of them failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum RestartPoint {
    /// The weights that the run began with.
    Beginning,
    /// This step's checkpoint in the run folder.
    Checkpoint(Step),
    /// This step's snapshot in memory.
    Snapshot(Step),
}

impl RestartPoint {
    /// The folder that holds the state, given the run folder and the snapshots' one; none for the beginning.
    pub fn folder(self, run_dir: &Path, snapshots: &Path) -> Option<PathBuf> {
        match self {
            RestartPoint::Beginning => None,
            RestartPoint::Checkpoint(step) => Some(run_dir.join(CHECKPOINTS).join(folder_name(step))),
            RestartPoint::Snapshot(step) => Some(snapshots.join(folder_name(step))),
        }
    }
}
