//! Why a fleet cannot be made or kept.

use std::io;
use std::path::PathBuf;

use common::manifest::ManifestError;
use common::queue::{CreateError, ReclaimError};
use common::reduce::SumError;
use common::shm::ShmError;
use common::wait::WaitError;

use crate::child::SpawnError;
use crate::supervise::WorkerId;

/// A fleet that cannot be made or kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FleetError {
    /// The queue cannot be made.
    #[error(transparent)]
    Queue(#[from] CreateError),
    /// The arena cannot be made.
    #[error(transparent)]
    Arena(#[from] ShmError),
    /// The gradient sum cannot be made.
    #[error(transparent)]
    Sum(#[from] SumError),
    /// What a dead worker had cannot be taken back.
    #[error("cannot take back what {worker} had: {source}")]
    Reclaim {
        /// Who.
        worker: WorkerId,
        /// Why.
        source: ReclaimError,
    },
    /// The queue's ledger cannot be taken back.
    #[error("cannot take the queue back to the newest checkpoint: {0}")]
    Rewind(#[from] WaitError),
    /// The snapshots' folder cannot be made.
    #[error("{path}: {source}")]
    Snapshots {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nobody knows which checkpoint is the newest.
    #[error(transparent)]
    Checkpoints(#[from] ManifestError),
    /// A worker does not start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// A worker's end was not ours to see.
    #[error("cannot collect {worker}: {source}")]
    Reap {
        /// Who.
        worker: WorkerId,
        /// Why.
        source: io::Error,
    },
}
