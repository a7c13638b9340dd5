//! The launcher's side: it alone creates the queue, takes back what the dead had, and unlinks the name.

use std::ops::{Deref, Range};
use std::sync::Arc;

use thiserror::Error;

use super::place::{Shared, now};
use super::ring::Reclaimed;
use super::ring::bell::{Group, raise};
use super::ring::lock::{Holder, Peers};
use super::spec::{QueueSpec, SpecError};
use super::{Queue, header, ring};
use crate::ids::{Rank, Role};
use crate::shm::{Segment, ShmError};
use crate::sync::Ordering;
use crate::wait::WaitError;

/// A queue could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// What was asked for cannot work.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The memory cannot be had.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// The segment just written does not read.
    #[error(transparent)]
    Header(#[from] header::HeaderError),
}

/// A dead participant's things could not be taken back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReclaimError {
    /// There is no such participant.
    #[error("this run has no {role} {rank}")]
    NoSuchRank {
        /// Its role.
        role: Role,
        /// Its rank.
        rank: Rank,
    },
    /// It is not dead: it, or a process that inherited its files, still holds the place.
    #[error("{role} {rank} (pid {pid}), or a process it started, is still alive: end it before taking its slots back")]
    Alive {
        /// Its role.
        role: Role,
        /// Its rank.
        rank: Rank,
        /// Its process id.
        pid: u32,
    },
    /// The lock could not be had.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// The launcher's queue. Dropping it unlinks the name; who has it mapped keeps it.
pub struct QueueOwner {
    queue: Queue,
}

const LAUNCHER: Holder = Holder { code: Holder::LAUNCHER, epoch: 0 };

impl QueueOwner {
    pub(super) fn create(spec: &QueueSpec) -> Result<QueueOwner, CreateError> {
        let geometry = spec.geometry()?;
        let segment = Segment::create(&spec.name(), geometry.total)?;
        header::write(&segment, spec, &geometry);
        header::open_for_use(&segment);
        let shared = Shared::open(segment)?;
        let ring = shared.ring();
        ring.ledger.recount();
        ring.control.lottery.store(ring::policy::draw(spec.seed | 1 << 63), Ordering::Relaxed);
        Ok(QueueOwner { queue: Queue { shared: Arc::new(shared) } })
    }

    /// Takes back all that a participant had. Call it only when its process is gone: waited for, not merely silent.
    /// WRITING slots are free again and their batches pending, READING slots ready, batches in its own memory pending.
    ///
    /// # Errors
    /// [`ReclaimError`].
    pub fn reclaim(&self, role: Role, rank: Rank) -> Result<Reclaimed, ReclaimError> {
        let shared = &self.queue.shared;
        let code = shared.facts.code(role, rank).ok_or(ReclaimError::NoSuchRank { role, rank })?;
        if shared.is_present(code) {
            let pid = shared.participants()[usize::from(code) - 1].pid.load(Ordering::Relaxed);
            return Err(ReclaimError::Alive { role, rank, pid });
        }
        Ok(shared.lock(LAUNCHER, || ())?.reclaim(code, now()))
    }

    /// Makes `trained` (half-open id ranges, ascending) the trained set: the one of the checkpoint that training goes
    /// on from. Other trained batches, and those that drafters held in their own memory, are pending again. Call it
    /// when all drafters are gone and reclaimed.
    ///
    /// # Errors
    /// [`WaitError`] if the lock cannot be had.
    pub fn rewind(&self, trained: &[(u64, u64)]) -> Result<(), WaitError> {
        self.queue.shared.lock(LAUNCHER, || ())?.rewind(trained, now());
        Ok(())
    }

    /// The arena's memory of these slots is gone: their batches are pending again, a drafter that reads one loses its
    /// lease, and no target gets these slots until [`QueueOwner::restore_slots`]. How many batches were ready or being
    /// read.
    ///
    /// # Errors
    /// [`WaitError`] if the lock cannot be had.
    pub fn forfeit_slots(&self, slots: Range<u32>) -> Result<u64, WaitError> {
        Ok(self.queue.shared.lock(LAUNCHER, || ())?.forfeit(slots, now()))
    }

    /// These slots have memory again: that version of their part.
    ///
    /// # Errors
    /// [`WaitError`] if the lock cannot be had.
    pub fn restore_slots(&self, slots: Range<u32>, version: u32) -> Result<(), WaitError> {
        self.queue.shared.lock(LAUNCHER, || ())?.restore(slots, version);
        Ok(())
    }

    /// Gives the run up: every wait ends with [`WaitError::Aborted`], now and later.
    pub fn abort(&self) {
        let shared = &self.queue.shared;
        let control = shared.control();
        control.aborted.store(1, Ordering::Relaxed);
        for group in Group::ALL {
            let bell = group.bell(control);
            raise(bell);
            shared.wake_all(&bell.word);
        }
    }
}

impl Drop for QueueOwner {
    fn drop(&mut self) {
        self.queue.shared.segment.unlink();
    }
}

impl Deref for QueueOwner {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}
