//! The queue between targets and drafters: bounded, bucketed, gated, and safe against the death of any process.
//!
//! One control segment per run holds slots, a ledger of batch ids, and every process's record. The hidden states lie in
//! the arena, one place per slot; the queue says whose each slot is.
//!
//! ```text
//!            claim            publish           pop              release             trained
//!  slot   FREE ─────► WRITING ───────► READY ─────────► READING ─────────► FREE
//!  batch  PENDING ──► CLAIMED ───────► READY ─────────► HELD ────────────────────────► TRAINED
//! ```
//!
//! # Promises
//! - A published batch is never lost, though its target die; a batch in a dead drafter's hands is delivered again.
//! - The gate is exact: a pop succeeds only while READY >= `min_ready`, or when nothing is pending or claimed any more.
//! - The stream ends for a drafter only when nothing is pending, claimed or ready, for a target only when all is
//!   trained.
//! - A dead process holds nobody up: its lock is taken over at once, its slots are the launcher's to take back.
//! - Slot words are the only truth about slots; every counter is derived. A stopped process is not a dead one.

mod activity;
mod consumer;
mod gpu;
mod header;
mod owner;
mod place;
mod producer;
mod ring;
mod rows;
mod snapshot;
mod spec;
mod timed;
mod track;

use std::sync::Arc;

use thiserror::Error;

pub use activity::{Gauge, Phase, Track};
pub use consumer::{Consumer, ReadLease};
pub use gpu::{GpuTrack, Mark, Marker};
pub use header::HeaderError;
pub use owner::{CreateError, QueueOwner, ReclaimError};
pub use place::now as monotonic_ns;
use place::{Place, Shared};
pub use producer::{Producer, WriteLease};
pub use ring::Reclaimed;
pub(crate) use ring::policy::part_of;
pub use rows::{Rows, RowsError};
pub use snapshot::{
    BatchCounts, BucketView, CheckView, Details, EventView, GateView, Histogram, LockView, ParticipantView, PhaseView,
    Profile, SlotCounts, SlotView, Snapshot, SpanView, Spans,
};
pub use spec::{QueueSpec, SpecError, arena_name, queue_name, reduce_name, snapshots_name};
pub use timed::Timed;
pub use track::COUNTED;

use crate::ids::{BatchId, Rank, Role};
use crate::shm::{Presence, Segment, ShmError};
use crate::sync::Ordering;
use crate::wait::WaitError;

/// A place at the queue could not be taken.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The segment is no queue that this build can use.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// There is no such place.
    #[error("this run has {count} {role}s, there is no {role} {rank}")]
    NoSuchRank {
        /// The role asked for.
        role: Role,
        /// The rank asked for.
        rank: Rank,
        /// Places of that role.
        count: u32,
    },
    /// A living process has it.
    #[error("{role} {rank} is running already (pid {pid}): each rank is one process")]
    Taken {
        /// The role asked for.
        role: Role,
        /// The rank asked for.
        rank: Rank,
        /// Who has it.
        pid: u32,
    },
}

impl From<ShmError> for AttachError {
    fn from(error: ShmError) -> AttachError {
        AttachError::Header(error.into())
    }
}

/// A lease could not be settled as asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The rows do not go into a slot.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// There is no such bucket.
    #[error("bucket {found}: this queue has {buckets}, counted from 0")]
    Bucket {
        /// The bucket asked for.
        found: u32,
        /// Buckets there are.
        buckets: u32,
    },
    /// So many batches can never be ready at once.
    #[error(
        "{asked} batches in one step: this queue has {capacity} slots, so it would wait for ever; ask for 1 to {capacity}"
    )]
    Group {
        /// Batches asked for.
        asked: u32,
        /// Slots there are.
        capacity: u32,
    },
    /// The launcher took the slot back: it counted this process as dead.
    #[error("batch {0} was taken back: the launcher counted this process as dead")]
    Lost(BatchId),
    /// Not this drafter's to mark.
    #[error("batches {0:?} cannot be marked as trained: this drafter does not hold all of them")]
    NotHeld(Vec<BatchId>),
    /// The lock could not be had.
    #[error("settling a lease: {0}")]
    Wait(#[from] WaitError),
}

/// A run's queue, mapped. Workers take a place at it with [`Queue::producer`] or [`Queue::consumer`].
#[derive(Clone)]
pub struct Queue {
    shared: Arc<Shared>,
}

impl Queue {
    /// Creates the run's queue; for the launcher alone.
    ///
    /// # Errors
    /// [`CreateError`]; nothing is left behind.
    pub fn create(spec: &QueueSpec) -> Result<QueueOwner, CreateError> {
        QueueOwner::create(spec)
    }

    /// Maps the queue of that name (see [`queue_name`]).
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn attach(name: &str) -> Result<Queue, HeaderError> {
        Ok(Queue { shared: Arc::new(Shared::open(Segment::attach(name)?)?) })
    }

    /// Takes a target's place.
    ///
    /// # Errors
    /// [`AttachError::NoSuchRank`], [`AttachError::Taken`].
    pub fn producer(&self, rank: Rank) -> Result<Producer, AttachError> {
        Ok(Producer { place: self.place(Role::Target, rank)?, track: Track::Main })
    }

    /// Takes a drafter's place.
    ///
    /// # Errors
    /// [`AttachError::NoSuchRank`], [`AttachError::Taken`].
    pub fn consumer(&self, rank: Rank) -> Result<Consumer, AttachError> {
        Ok(Consumer { place: self.place(Role::Drafter, rank)?, track: Track::Main })
    }

    fn place(&self, role: Role, rank: Rank) -> Result<Arc<Place>, AttachError> {
        let count = self.workers(role);
        let code = self.shared.facts.code(role, rank).ok_or(AttachError::NoSuchRank { role, rank, count })?;
        let file = self.shared.segment.open_file()?;
        let presence = Presence::take(file, code).map_err(|e| ShmError::os("lock", self.shared.segment.name(), e))?;
        let pid = self.shared.participants()[usize::from(code) - 1].pid.load(Ordering::Relaxed);
        let presence = presence.ok_or(AttachError::Taken { role, rank, pid })?;
        Ok(Arc::new(Place::take(Arc::clone(&self.shared), code, presence)))
    }

    /// The trained batches as half-open id ranges, ascending: what a checkpoint stores. Exact while no drafter is
    /// inside [`Consumer::trained`].
    pub fn trained_ranges(&self) -> Vec<(u64, u64)> {
        self.shared.ring().ledger.trained_ranges()
    }

    /// Workers of a role in the run.
    pub(crate) fn workers(&self, role: Role) -> u32 {
        let facts = &self.shared.facts;
        if role == Role::Target { facts.targets } else { facts.drafters }
    }

    /// Batches of the run.
    pub fn total_batches(&self) -> u64 {
        self.shared.ring().ledger.len()
    }

    /// Slots.
    pub fn capacity(&self) -> u32 {
        self.shared.facts.geometry.sizes.capacity
    }

    /// What a thread of a worker is doing and since when, in nanoseconds of the monotonic clock; none if nobody is there,
    /// or it changes just now.
    pub(crate) fn at_work(&self, (role, rank): (Role, Rank), track: Track) -> Option<(Phase, u64)> {
        let code = self.shared.facts.code(role, rank)?;
        let times = timed::times(&self.shared.segment, &self.shared.facts, code, track);
        let (read, whole) = times.read();
        let phase = read.phase.filter(|_| whole && times.is_used())?;
        Some((Phase::from_number(phase), read.since_ns))
    }

    /// What the queue looks like now, without the lock.
    pub fn snapshot(&self) -> Snapshot {
        let shared = &*self.shared;
        Snapshot::of(&shared.segment, shared.segment.name(), &shared.facts, &|byte| shared.is_present(byte))
    }
}
