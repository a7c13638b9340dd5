//! What the queue looks like, read without the lock and without writing a byte; of a living run or a dead one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::activity::{Gauge, Phase};
use super::header::{self, Facts, HeaderError};
use super::place::{now, participants, ring};
use super::ring::Ring;
use super::ring::layout::{Bucket, Participant};
use super::ring::lock::Holder;
use super::ring::policy::Gate;
use super::ring::word::SlotState;
use crate::ids::{Rank, Role};
use crate::shm::{CREATOR_BYTE, Mapped, ReadOnly};
use crate::sync::{Ordering, fence};

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

/// Reads are repeated this often before the snapshot is called inconsistent.
const ATTEMPTS: u32 = 100;

impl Snapshot {
    /// Reads the queue of that name through a read-only map.
    ///
    /// # Errors
    /// [`HeaderError`] if there is none, or none that this build can read.
    pub fn read(name: &str) -> Result<Snapshot, HeaderError> {
        let memory = ReadOnly::open(name)?;
        let facts = header::read(&memory, name)?;
        Ok(Snapshot::of(&memory, name, &facts, &|byte| memory.is_held(byte)))
    }

    /// Repeats the reading until no change fell into it.
    pub(super) fn of(memory: &impl Mapped, name: &str, facts: &Facts, is_present: &dyn Fn(u8) -> bool) -> Snapshot {
        let sequence = &ring(memory, facts).control.lock.sequence;
        let mut attempt = 1;
        loop {
            // SEQUENCE: Acquire, paired with the Release store of `Locked::drop`.
            let before = sequence.load(Ordering::Acquire);
            let mut snapshot = Snapshot::collect(memory, name, facts, is_present);
            // SEQUENCE: paired with the Release fence of `Ring::lock`.
            fence(Ordering::Acquire);
            snapshot.consistent = before.is_multiple_of(2) && sequence.load(Ordering::Relaxed) == before;
            if snapshot.consistent || attempt == ATTEMPTS {
                return snapshot;
            }
            attempt += 1;
        }
    }

    fn collect(memory: &impl Mapped, name: &str, facts: &Facts, is_present: &dyn Fn(u8) -> bool) -> Snapshot {
        let ring = ring(memory, facts);
        let records = participants(memory, facts);
        let codes = (1..=records.len() as u8).zip(records);
        let participants: Vec<ParticipantView> =
            codes.filter_map(|(code, record)| participant(code, record, facts, is_present(code))).collect();
        let held_by = Holder::of_lock_word(ring.control.lock.word.load(Ordering::Relaxed));
        Snapshot {
            name: name.to_owned(),
            run_id: facts.run_id.clone(),
            consistent: false,
            launcher_pid: facts.creator_pid,
            launcher_alive: is_present(CREATOR_BYTE),
            aborted: ring.control.aborted.load(Ordering::Relaxed) != 0,
            slot_bytes: facts.slot_bytes,
            slots: slots(&ring),
            gate: gate(&ring, &participants),
            batches: batches(&ring),
            buckets: buckets(&ring),
            participants,
            lock: LockView {
                held_by: held_by.map(|holder| facts.name_of(holder.code)),
                steals: ring.control.lock.steals.load(Ordering::Relaxed),
            },
            reclaimed: ring.control.reclaimed.load(Ordering::Relaxed),
        }
    }
}

fn slots(ring: &Ring<'_>) -> SlotCounts {
    let count = |state| ring.slots_in(state) as u32;
    SlotCounts {
        free: count(SlotState::Free),
        writing: count(SlotState::Writing),
        ready: count(SlotState::Ready),
        reading: count(SlotState::Reading),
    }
}

fn batches(ring: &Ring<'_>) -> BatchCounts {
    let [pending, claimed, ready, held, trained] = ring.ledger.counts();
    BatchCounts { total: ring.ledger.len(), pending, claimed, ready, held, trained }
}

fn buckets(ring: &Ring<'_>) -> Vec<BucketView> {
    let view = |(number, bucket): (usize, &Bucket)| BucketView {
        bound: bucket.bound.load(Ordering::Relaxed),
        ready: ring.depth(number as u32),
        high_water: bucket.high_water.load(Ordering::Relaxed),
        produced: bucket.produced.load(Ordering::Relaxed),
        consumed: bucket.consumed.load(Ordering::Relaxed),
        redelivered: bucket.redelivered.load(Ordering::Relaxed),
    };
    ring.buckets.iter().enumerate().map(view).collect()
}

fn participant(code: u8, record: &Participant, facts: &Facts, alive: bool) -> Option<ParticipantView> {
    let (role, rank) = facts.participant(code)?;
    let pid = record.pid.load(Ordering::Relaxed);
    let now = now();
    let since = |then: u64| Duration::from_nanos(now.saturating_sub(then)).as_secs_f64();
    let waits_for = match record.waits_for.load(Ordering::Relaxed) {
        1 => Some("a free slot"),
        2 => Some("a batch"),
        _ => None,
    };
    let gauge = |gauge: &Gauge| (*gauge, f64::from_bits(record.gauges[*gauge as usize].load(Ordering::Relaxed)));
    Some(ParticipantView {
        role,
        rank,
        pid: (pid != 0).then_some(pid),
        alive,
        incarnation: record.epoch.load(Ordering::Relaxed),
        phase: Phase::from_number(record.phase.load(Ordering::Relaxed)),
        phase_s: if pid == 0 { 0.0 } else { since(record.phase_since_ns.load(Ordering::Relaxed)) },
        waits_for,
        waits_s: waits_for.map_or(0.0, |_| since(record.waits_since_ns.load(Ordering::Relaxed))),
        batches: record.batches.load(Ordering::Relaxed),
        gauges: Gauge::ALL.iter().map(gauge).collect(),
    })
}

fn gate(ring: &Ring<'_>, participants: &[ParticipantView]) -> GateView {
    let [pending, claimed, ready, ..] = ring.ledger.counts();
    let min_ready = ring.rules.min_ready;
    let state = ring.gate();
    let reason = match state {
        Gate::Open => format!("open: {ready} ready, {min_ready} needed"),
        Gate::Draining => format!("open: no batch is pending or being written, the last {ready} go out"),
        Gate::Closed { ready, needed } => {
            format!(
                "closed: {ready} of {needed} batches ready; {claimed} being written, {pending} pending; {}",
                who(participants)
            )
        }
    };
    GateView { open: !matches!(state, Gate::Closed { .. }), ready, min_ready, reason }
}

/// What the targets, on which a closed gate waits, are doing.
fn who(participants: &[ParticipantView]) -> String {
    let alive: Vec<String> = participants
        .iter()
        .filter(|one| one.role == Role::Target && one.alive)
        .map(|one| match one.waits_for {
            Some(what) => format!("target {} waits for {what} ({:.1} s)", one.rank, one.waits_s),
            None => format!("target {}: {:?} ({:.1} s)", one.rank, one.phase, one.phase_s).to_lowercase(),
        })
        .collect();
    if alive.is_empty() { "no target is running".into() } else { alive.join(", ") }
}
