//! What a queue is made for, and which wishes cannot work.

use std::time::Duration;

use thiserror::Error;

use super::ring::layout::RUN_ID_BYTES;
use super::ring::layout::geometry::{Geometry, Sizes};
use crate::config::{GateMode, PopPolicy};

/// Everything about a queue that is decided before the run starts.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSpec {
    /// Names the segment; letters, digits, `-`, `_`, at most 64.
    pub run_id: String,
    /// Slots, shared by all buckets.
    pub capacity: u32,
    /// Tokens of a batch at most.
    pub batch_tokens: u32,
    /// Rows of a batch at most.
    pub max_documents: u32,
    /// Bytes of a slot's payload in the arena; for display only, the payload is not in the queue's segment.
    pub slot_bytes: u64,
    /// Upper row lengths of the length buckets, ascending; empty for one bucket.
    pub bucket_bounds: Vec<u32>,
    /// The gate: READY batches below which nothing is popped, until no target will bring more.
    pub min_ready: u32,
    /// Whether the gate is asked anew at each pop.
    pub gate: GateMode,
    /// Which READY batch goes next.
    pub policy: PopPolicy,
    /// Under `mixed`, a batch READY for longer goes first.
    pub max_age: Duration,
    /// Target processes.
    pub targets: u32,
    /// Drafter processes.
    pub drafters: u32,
    /// Batches of the run; ids are `0..total_batches`.
    pub total_batches: u64,
    /// Seeds the bucket lottery of `mixed`.
    pub seed: u64,
}

/// A wish that no queue can grant.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SpecError {
    /// The run id cannot name a segment.
    #[error("run id {0:?}: use letters, digits, '-' and '_', at most {RUN_ID_BYTES}")]
    RunId(String),
    /// A number that must be positive is zero.
    #[error("{0} is 0: a queue needs at least 1")]
    Zero(&'static str),
    /// The gate could never open.
    #[error("queue.min_ready is {min_ready}, but queue.capacity is {capacity}: the gate would never open; lower it")]
    MinReady {
        /// The gate's threshold.
        min_ready: u32,
        /// Slots.
        capacity: u32,
    },
    /// Buckets that do not ascend, or too many.
    #[error("bucket bounds {0:?}: they must ascend, at most {MAX_BUCKETS}")]
    Buckets(Vec<u32>),
    /// More processes than presence bytes.
    #[error("{0} targets and drafters: at most {MAX_PARTICIPANTS}")]
    Participants(u64),
    /// The segment would not fit an address space.
    #[error("a queue of {capacity} slots of {batch_tokens} tokens and {total_batches} batches is beyond any memory")]
    TooLarge {
        /// Slots.
        capacity: u32,
        /// Tokens of a slot.
        batch_tokens: u32,
        /// Ledger words.
        total_batches: u64,
    },
}

const MAX_BUCKETS: usize = 64;
/// Holder codes 1..=254; 255 is the launcher's.
const MAX_PARTICIPANTS: u64 = 254;

impl QueueSpec {
    /// The name of the queue's segment.
    pub fn name(&self) -> String {
        queue_name(&self.run_id)
    }

    /// Bytes of the queue's segment in `/dev/shm` (without the arena).
    ///
    /// # Errors
    /// As [`QueueSpec::check`].
    pub fn segment_bytes(&self) -> Result<u64, SpecError> {
        Ok(self.geometry()?.total as u64)
    }

    /// Refuses what cannot work.
    ///
    /// # Errors
    /// The first wish that cannot be granted.
    pub fn check(&self) -> Result<(), SpecError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if self.run_id.is_empty() || self.run_id.len() > RUN_ID_BYTES || !self.run_id.chars().all(plain) {
            return Err(SpecError::RunId(self.run_id.clone()));
        }
        let positive = [
            ("queue.capacity", u64::from(self.capacity)),
            ("queue.min_ready", u64::from(self.min_ready)),
            ("the number of batches", self.total_batches),
            ("tokens of a batch", u64::from(self.batch_tokens)),
            ("rows of a batch", u64::from(self.max_documents)),
            ("the number of targets", u64::from(self.targets)),
            ("the number of drafters", u64::from(self.drafters)),
        ];
        if let Some((what, _)) = positive.iter().find(|(_, number)| *number == 0) {
            return Err(SpecError::Zero(what));
        }
        if self.min_ready > self.capacity {
            return Err(SpecError::MinReady { min_ready: self.min_ready, capacity: self.capacity });
        }
        if self.bucket_bounds.len() > MAX_BUCKETS || !self.bucket_bounds.is_sorted_by(|a, b| a < b) {
            return Err(SpecError::Buckets(self.bucket_bounds.clone()));
        }
        let participants = u64::from(self.targets) + u64::from(self.drafters);
        if participants > MAX_PARTICIPANTS { Err(SpecError::Participants(participants)) } else { Ok(()) }
    }

    pub(super) fn geometry(&self) -> Result<Geometry, SpecError> {
        self.check()?;
        let sizes = Sizes {
            capacity: self.capacity,
            participants: self.targets + self.drafters,
            buckets: self.buckets().len() as u32,
            batch_tokens: self.batch_tokens,
            max_documents: self.max_documents,
            total_batches: self.total_batches,
        };
        let (capacity, batch_tokens, total_batches) = (self.capacity, self.batch_tokens, self.total_batches);
        Geometry::new(sizes).ok_or(SpecError::TooLarge { capacity, batch_tokens, total_batches })
    }

    /// The bounds; one bucket for all if none are given.
    pub(super) fn buckets(&self) -> Vec<u32> {
        if self.bucket_bounds.is_empty() { vec![self.batch_tokens] } else { self.bucket_bounds.clone() }
    }
}

/// The name of a run's control segment in `/dev/shm`.
pub fn queue_name(run_id: &str) -> String {
    format!("tandem-{run_id}")
}

/// The name of a run's host arena in `/dev/shm`.
pub fn arena_name(run_id: &str) -> String {
    format!("tandem-{run_id}-arena")
}

/// The name of a run's folder of drafter snapshots in `/dev/shm`.
pub fn snapshots_name(run_id: &str) -> String {
    format!("tandem-{run_id}-snapshots")
}

/// The name of a run's gradient sum in `/dev/shm`.
pub fn reduce_name(run_id: &str) -> String {
    format!("tandem-{run_id}-reduce")
}
