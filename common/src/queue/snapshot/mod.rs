//! What the queue looks like, read without the lock and without writing a byte; of a living run or a dead one.

mod details;
mod profile;
mod view;

use std::fs;
use std::time::Duration;

use crate::ids::Role;
use crate::queue::activity::{Gauge, Phase};
use crate::queue::header::{self, Facts, HeaderError};
use crate::queue::place::{now, participants, ring};
use crate::queue::ring::layout::{Bucket, Participant};
use crate::queue::ring::lock::Holder;
use crate::queue::ring::policy::Gate;
use crate::queue::ring::word::SlotState;
use crate::queue::ring::{Blocked, Ring};
use crate::shm::{CREATOR_BYTE, Mapped, ReadOnly};
use crate::sync::{Ordering, fence};
pub use details::{CheckView, Details, EventView, SlotView};
pub(super) use profile::profile;
pub use profile::{PhaseView, Profile, SpanView, Spans};
pub use view::{BatchCounts, BucketView, GateView, Histogram, LockView, ParticipantView, SlotCounts, Snapshot};

/// Reads are repeated this often before the snapshot is called inconsistent.
const ATTEMPTS: u32 = 100;

/// Who lives; asked once, since the kernel's answers take longer than all the rest.
struct Presences {
    launcher: bool,
    participants: Vec<bool>,
}

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
        let present = Presences {
            launcher: is_present(CREATOR_BYTE),
            participants: (1..=facts.geometry.sizes.participants as u8).map(is_present).collect(),
        };
        let collect = || Snapshot::collect(memory, name, facts, &present);
        let (mut snapshot, consistent) = consistently(&ring(memory, facts), collect);
        snapshot.consistent = consistent;
        let now = now();
        for worker in &mut snapshot.participants {
            let code = facts.code(worker.role, worker.rank).expect("it has a record");
            worker.profile = profile(memory, facts, (code, worker.alive), now);
        }
        snapshot.at_ns = now;
        snapshot
    }

    fn collect(memory: &impl Mapped, name: &str, facts: &Facts, present: &Presences) -> Snapshot {
        let ring = ring(memory, facts);
        let records = participants(memory, facts).iter().zip(&present.participants);
        let participants: Vec<ParticipantView> =
            (1..).zip(records).filter_map(|(code, (record, alive))| participant(code, record, facts, *alive)).collect();
        let held_by = Holder::of_lock_word(ring.control.lock.word.load(Ordering::Relaxed));
        Snapshot {
            name: name.to_owned(),
            run_id: facts.run_id.clone(),
            consistent: false,
            at_ns: 0,
            launcher_pid: facts.creator_pid,
            launcher_alive: present.launcher,
            aborted: ring.control.aborted.load(Ordering::Relaxed) != 0,
            slot_bytes: facts.slot_bytes,
            slots: slots(&ring),
            gate: gate(&ring, &participants),
            batches: batches(&ring),
            buckets: buckets(&ring),
            participants,
            lock: LockView {
                held_by: held_by.map(|holder| facts.name_of(holder.code)),
                steals: ring.control.steals.load(Ordering::Relaxed),
            },
            reclaimed: ring.control.reclaimed.load(Ordering::Relaxed),
        }
    }
}

/// Reads again and again until no change fell into the reading; false if that never happened.
fn consistently<T>(ring: &Ring<'_>, collect: impl Fn() -> T) -> (T, bool) {
    let sequence = &ring.control.lock.sequence;
    let mut attempt = 1;
    loop {
        // SEQUENCE: Acquire, paired with the Release store of `Locked::drop`.
        let before = sequence.load(Ordering::Acquire);
        let collected = collect();
        // SEQUENCE: paired with the Release fence of `Ring::lock`.
        fence(Ordering::Acquire);
        let consistent = before.is_multiple_of(2) && sequence.load(Ordering::Relaxed) == before;
        if consistent || attempt == ATTEMPTS {
            return (collected, consistent);
        }
        attempt += 1;
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
        dropped: bucket.dropped.load(Ordering::Relaxed),
        waited: Histogram::of_shared(&ring.tallies[number].waited),
        aged: Histogram::of_shared(&ring.tallies[number].aged),
        held: Histogram::of_shared(&ring.tallies[number].held),
    };
    ring.buckets.iter().enumerate().map(view).collect()
}

fn participant(code: u8, record: &Participant, facts: &Facts, alive: bool) -> Option<ParticipantView> {
    let (role, rank) = facts.participant(code)?;
    let pid = record.pid.load(Ordering::Relaxed);
    let now = now();
    let since = |then: u64| Duration::from_nanos(now.saturating_sub(then)).as_secs_f64();
    let waits_for = Blocked::in_words(record.waits_for.load(Ordering::Relaxed));
    let gauge = |gauge: &Gauge| (*gauge, f64::from_bits(record.gauges[*gauge as usize].load(Ordering::Relaxed)));
    Some(ParticipantView {
        role,
        rank,
        pid: (pid != 0).then_some(pid),
        alive,
        stopped: alive && is_stopped(pid),
        incarnation: record.epoch.load(Ordering::Relaxed),
        phase: Phase::from_number(record.phase.load(Ordering::Relaxed)),
        phase_s: if pid == 0 { 0.0 } else { since(record.phase_since_ns.load(Ordering::Relaxed)) },
        waits_for,
        waits_s: waits_for.map_or(0.0, |_| since(record.waits_since_ns.load(Ordering::Relaxed))),
        batches: record.batches.load(Ordering::Relaxed),
        gauges: Gauge::ALL.iter().map(gauge).collect(),
        profile: Profile::new(),
    })
}

/// Whether the kernel has the process stopped, as by SIGSTOP or a debugger: alive, but nothing moves.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
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
            _ if one.stopped => format!("target {} is stopped", one.rank),
            Some(what) => format!("target {} waits for {what} ({:.1} s)", one.rank, one.waits_s),
            None => format!("target {}: {:?} ({:.1} s)", one.rank, one.phase, one.phase_s).to_lowercase(),
        })
        .collect();
    if alive.is_empty() { "no target is running".into() } else { alive.join(", ") }
}
