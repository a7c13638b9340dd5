//! What a snapshot leaves out: every slot, the last events, and whether all that must hold does.

use std::time::Duration;

use serde::Serialize;

use super::consistently;
use crate::ids::{BatchId, SlotIndex};
use crate::queue::header::{self, Facts, HeaderError};
use crate::queue::place::{now, ring};
use crate::queue::ring::Ring;
use crate::queue::ring::audit::audit;
use crate::queue::ring::lock::Holder;
use crate::queue::ring::statistics::Happened;
use crate::queue::ring::word::SlotState;
use crate::shm::{CREATOR_BYTE, Mapped, ReadOnly};
use crate::sync::Ordering;

/// A queue slot by slot and step by step.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    /// The run.
    pub run_id: String,
    /// Every slot.
    pub slots: Vec<SlotView>,
    /// What happened last, oldest first.
    pub events: Vec<EventView>,
    /// Whether the queue is as it must be.
    pub check: CheckView,
}

/// One slot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlotView {
    /// Its number.
    pub slot: SlotIndex,
    /// `free`, `writing`, `ready` or `reading`.
    pub state: &'static str,
    /// Who fills or reads it.
    pub owner: Option<String>,
    /// What it carries.
    pub batch: Option<BatchId>,
    /// That batch's length bucket, once it is known.
    pub bucket: Option<u32>,
    /// How often the batch was in a drafter's hands without being trained.
    pub returns: u8,
    /// For how long it has been in this state, in seconds.
    pub since_s: f64,
}

/// One step that was taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventView {
    /// Counts all events of the run.
    pub number: u64,
    /// How long ago, in seconds.
    pub ago_s: f64,
    /// Which step.
    pub what: &'static str,
    /// Who took it; for `reclaim`: whose things were taken back.
    pub who: String,
    /// In which slot.
    pub slot: Option<SlotIndex>,
    /// With which batch.
    pub batch: Option<BatchId>,
}

/// Every invariant of the queue, held against its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckView {
    /// False if somebody was inside the lock during every attempt: see `lock`.
    pub settled: bool,
    /// Who is inside the lock, and what follows from that.
    pub lock: Option<String>,
    /// What does not hold. Not settled, these are the traces of a step half done, and no fault.
    pub problems: Vec<String>,
}

impl CheckView {
    /// Whether something is wrong that no repair is due for.
    pub fn is_broken(&self) -> bool {
        self.settled && !self.problems.is_empty()
    }
}

impl Details {
    /// Reads the queue of that name through a read-only map.
    ///
    /// # Errors
    /// [`HeaderError`] if there is none, or none that this build can read.
    pub fn read(name: &str) -> Result<Details, HeaderError> {
        let memory = ReadOnly::open(name)?;
        let facts = header::read(&memory, name)?;
        let (mut details, settled) = consistently(&ring(&memory, &facts), || Details::collect(&memory, &facts));
        details.check.settled = settled;
        if !settled {
            let holder = Holder::of_lock_word(ring(&memory, &facts).control.lock.word.load(Ordering::Relaxed));
            details.check.lock = holder.map(|holder| inside(&memory, &facts, holder));
        }
        Ok(details)
    }

    fn collect(memory: &impl Mapped, facts: &Facts) -> Details {
        let (ring, now) = (ring(memory, facts), now());
        let slots = (0..ring.slots.len() as u32).map(|slot| slot_view(&ring, facts, SlotIndex(slot), now)).collect();
        let events = ring.happened().into_iter().map(|event| event_view(&event, facts, now)).collect();
        let check = CheckView { settled: false, lock: None, problems: audit(&ring) };
        Details { run_id: facts.run_id.clone(), slots, events, check }
    }
}

fn inside(memory: &ReadOnly, facts: &Facts, holder: Holder) -> String {
    let byte = if holder.code == Holder::LAUNCHER { CREATOR_BYTE } else { holder.code };
    let name = facts.name_of(holder.code);
    if memory.is_held(byte) {
        format!("{name} is inside the lock")
    } else {
        format!("{name} died inside the lock: whoever takes it next repairs what was left half done")
    }
}

fn seconds(from_ns: u64, now: u64) -> f64 {
    Duration::from_nanos(now.saturating_sub(from_ns)).as_secs_f64()
}

fn slot_view(ring: &Ring<'_>, facts: &Facts, slot: SlotIndex, now: u64) -> SlotView {
    let (shared, word) = (&ring.slots[slot.0 as usize], ring.word(slot));
    let state = match word.state {
        SlotState::Free => "free",
        SlotState::Writing => "writing",
        SlotState::Ready => "ready",
        SlotState::Reading => "reading",
    };
    let carried = BatchId(shared.batch.load(Ordering::Relaxed));
    let batch = (word.state != SlotState::Free && carried.0 < ring.ledger.len()).then_some(carried);
    let is_published = matches!(word.state, SlotState::Ready | SlotState::Reading);
    let code = Holder::code_of(word.owner);
    let since = shared.since_ns.load(Ordering::Relaxed);
    SlotView {
        slot,
        state,
        owner: (code != 0).then(|| facts.name_of(code)),
        batch,
        bucket: is_published.then(|| shared.bucket.load(Ordering::Relaxed)),
        returns: batch.map_or(0, |batch| ring.ledger.returns(batch)),
        since_s: if since == 0 { 0.0 } else { seconds(since, now) },
    }
}

fn event_view(event: &Happened, facts: &Facts, now: u64) -> EventView {
    EventView {
        number: event.number,
        ago_s: seconds(event.at_ns, now),
        what: event.deed.name(),
        who: facts.name_of(event.code),
        slot: event.slot,
        batch: event.batch,
    }
}
