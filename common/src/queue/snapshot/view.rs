//! What a snapshot shows.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ids::{Rank, Role};
use crate::queue::activity::{Gauge, Phase};

/// The queue at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// The segment's name.
    pub name: String,
    /// The run.
    pub run_id: String,
    /// False if the queue changed during every attempt to read it, or its lock's holder died: numbers may not add up.
    pub consistent: bool,
    /// Process id of the launcher.
    pub launcher_pid: u32,
    /// Whether the launcher lives.
    pub launcher_alive: bool,
    /// The launcher gave the run up.
    pub aborted: bool,
    /// Bytes of a slot's payload in the arena.
    pub slot_bytes: u64,
    /// Slots by state.
    pub slots: SlotCounts,
    /// Whether drafters get anything, and why not.
    pub gate: GateView,
    /// Batches by state.
    pub batches: BatchCounts,
    /// By length bucket.
    pub buckets: Vec<BucketView>,
    /// Every worker, targets first.
    pub participants: Vec<ParticipantView>,
    /// The lock.
    pub lock: LockView,
    /// Slots taken back from dead workers.
    pub reclaimed: u64,
}

/// Slots by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SlotCounts {
    /// Nobody's.
    pub free: u32,
    /// Being filled by targets.
    pub writing: u32,
    /// Waiting for drafters.
    pub ready: u32,
    /// Being copied by drafters.
    pub reading: u32,
}

/// The gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GateView {
    /// Whether pops are let through.
    pub open: bool,
    /// READY batches.
    pub ready: u64,
    /// READY batches that open it.
    pub min_ready: u64,
    /// Why it is as it is, in words.
    pub reason: String,
}

/// Batches of the run, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BatchCounts {
    /// All.
    pub total: u64,
    /// Waiting for a target.
    pub pending: u64,
    /// In a target's work.
    pub claimed: u64,
    /// In a READY slot.
    pub ready: u64,
    /// With a drafter, not yet in the weights.
    pub held: u64,
    /// In the weights.
    pub trained: u64,
}

/// One length bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BucketView {
    /// Rows have this many tokens at most.
    pub bound: u32,
    /// READY batches.
    pub ready: u32,
    /// Most READY batches ever.
    pub high_water: u32,
    /// Batches published.
    pub produced: u64,
    /// Batches released by drafters.
    pub consumed: u64,
    /// Batches that came back from a drafter.
    pub redelivered: u64,
}

/// One worker.
#[derive(Clone, Debug, Serialize)]
pub struct ParticipantView {
    /// Target or drafter.
    pub role: Role,
    /// Its number within the role.
    pub rank: Rank,
    /// Its process; `None` if it never started.
    pub pid: Option<u32>,
    /// Whether that process lives.
    pub alive: bool,
    /// How often the place was taken: 1 plus its restarts.
    pub incarnation: u32,
    /// What it is doing.
    pub phase: Phase,
    /// For how long.
    pub phase_s: f64,
    /// What it waits for, if it waits.
    pub waits_for: Option<&'static str>,
    /// For how long.
    pub waits_s: f64,
    /// Batches published or released by it.
    pub batches: u64,
    /// Its numbers.
    pub gauges: BTreeMap<Gauge, f64>,
}

/// The lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockView {
    /// Who holds it at this moment.
    pub held_by: Option<String>,
    /// How often it was taken over from the dead.
    pub steals: u64,
}
