//! What a snapshot shows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::profile::Profile;
use crate::ids::{Rank, Role};
use crate::queue::activity::{Gauge, Phase};
use crate::sync::{AtomicU64, Ordering};

/// The queue at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// The segment's name.
    pub name: String,
    /// The run.
    pub run_id: String,
    /// False if the queue changed during every attempt to read it, or its lock's holder died: numbers may not add up.
    pub consistent: bool,
    /// When it was taken, on the monotonic clock, in nanoseconds.
    pub at_ns: u64,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

impl SlotCounts {
    /// All of them.
    pub fn total(&self) -> u32 {
        self.free + self.writing + self.ready + self.reading
    }
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    /// Batches whose slot was freed before a drafter had them: set back to pending, or trained already.
    pub dropped: u64,
    /// How long their targets waited for a slot.
    pub waited: Histogram,
    /// How long they were ready before a drafter had them.
    pub aged: Histogram,
    /// How long drafters held their slots.
    pub held: Histogram,
}

/// Durations, counted by powers of two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Bin 0 counts those below a microsecond, bin `i` those below `2^i` microseconds and not in the bin before.
    pub bins: Vec<u64>,
}

impl Histogram {
    pub(super) fn of_shared(bins: &[AtomicU64]) -> Histogram {
        Histogram::of(&bins.iter().map(|bin| bin.load(Ordering::Relaxed)).collect::<Vec<_>>())
    }

    pub(super) fn of(bins: &[u64]) -> Histogram {
        let mut bins = bins.to_vec();
        bins.truncate(bins.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1));
        Histogram { bins }
    }

    /// The time, in microseconds, below which that share of the durations lies: the upper end of its bin. None if
    /// nothing was counted.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let total: u64 = self.bins.iter().sum();
        let rank = (share * total as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        let bin = self.bins.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        Some(1 << bin)
    }

    /// Both together.
    pub fn merged(&self, other: &Histogram) -> Histogram {
        let at = |bins: &[u64], place: usize| bins.get(place).copied().unwrap_or(0);
        let len = self.bins.len().max(other.bins.len());
        Histogram { bins: (0..len).map(|place| at(&self.bins, place) + at(&other.bins, place)).collect() }
    }
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
    /// Whether the kernel has it stopped (SIGSTOP, a debugger): nothing is taken from it, and it does not move.
    pub stopped: bool,
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
    /// Where its time went.
    pub profile: Profile,
}

/// The lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockView {
    /// Who holds it at this moment.
    pub held_by: Option<String>,
    /// How often it was taken over from the dead.
    pub steals: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_upper_ends_of_their_bins() {
        let histogram = Histogram { bins: vec![0, 0, 98, 0, 1, 0, 1] };
        let quantiles = [0.5, 0.98, 0.99, 1.0].map(|share| histogram.quantile(share));
        assert_eq!(quantiles, [Some(4), Some(4), Some(16), Some(64)]);
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert_eq!(histogram.merged(&Histogram { bins: vec![1] }).bins, [1, 0, 98, 0, 1, 0, 1]);
    }
}
