//! What a death leaves behind: repairing derived state, taking slots back, going back to a checkpoint.

use std::ops::Range;

use super::bell::{Group, Waits};
use super::ledger::BatchState;
use super::lock::{Holder, Peers};
use super::statistics::{About, Deed};
use super::word::{SlotState, Word};
use super::{Locked, add};
use crate::ids::{BatchId, SlotIndex, Step};
use crate::sync::Ordering;

/// What a dead participant had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// WRITING slots that are FREE again, their batches PENDING.
    pub unfinished: u64,
    /// READING slots that are READY again.
    pub returned: u64,
    /// Batches in the dead drafter's own memory that are PENDING again.
    pub forgotten: u64,
}

impl<P: Peers> Locked<'_, P> {
    /// Makes everything derived anew from the slot words: the ledger words of the batches in slots, and all counters.
    /// A holder may have died between a slot's commit and any of these.
    pub(super) fn repair(&self) {
        let (ring, ledger) = (&self.ring, self.ring.ledger);
        let mut carried = Vec::new();
        for slot in (0..ring.slots.len() as u32).map(SlotIndex) {
            let (word, batch) = (ring.word(slot), ring.batch(slot));
            if word.state == SlotState::Free {
                continue;
            }
            if !self.is_trained(batch) {
                ledger.set(batch, carried_state(word));
                carried.push(batch);
            } else if word.state == SlotState::Ready {
                self.free_undelivered(self.ring.hold(slot, word, batch), self.peers.now());
            }
        }
        carried.sort_unstable();
        for batch in ledger.ids() {
            let needs_slot = matches!(ledger.get(batch), BatchState::Claimed(_) | BatchState::Ready);
            if needs_slot && carried.binary_search(&batch).is_err() {
                ledger.set(batch, BatchState::Pending);
            }
        }
        ledger.recount();
        self.settle_gate();
        self.wake_everybody();
    }

    /// Also those that the dead one should have woken: it may have raised a bell and then not come to it.
    fn wake_everybody(&self) {
        for group in Group::ALL {
            self.wait_on(group, Waits::Asleep);
        }
        self.ring_ready.set(true);
        self.ring_space.set(true);
    }

    /// Takes back all that participant `code` had. Only after its process is really gone.
    pub(crate) fn reclaim(&self, code: u8, now: u64) -> Reclaimed {
        let (ring, ledger) = (&self.ring, self.ring.ledger);
        let mut reclaimed = Reclaimed::default();
        for slot in (0..ring.slots.len() as u32).map(SlotIndex) {
            let hold = ring.hold(slot, ring.word(slot), ring.batch(slot));
            let of_the_dead = Holder::code_of(hold.word.owner) == code;
            if of_the_dead && hold.word.state == SlotState::Writing {
                reclaimed.unfinished += u64::from(self.abort(hold, now).is_ok());
            } else if of_the_dead && hold.word.state == SlotState::Reading {
                reclaimed.returned += u64::from(self.nack(hold, now).is_ok());
            }
        }
        for batch in ledger.ids().filter(|batch| ledger.get(*batch) == BatchState::Held(code)) {
            ledger.mark_return(batch);
            ledger.set(batch, BatchState::Pending);
            reclaimed.forgotten += 1;
        }
        ring.note(Deed::Reclaim, code, About::default(), now);
        add(&ring.control.reclaimed, reclaimed.unfinished + reclaimed.returned);
        self.wake_everybody();
        reclaimed
    }

    /// The memory of these slots is gone: what they carry is PENDING again, whoever has it, and nobody gets them until
    /// [`Locked::restore`]. How many batches were READY or READING.
    pub(crate) fn forfeit(&self, slots: Range<u32>, now: u64) -> u64 {
        let ring = &self.ring;
        let mut lost = 0;
        for slot in slots.map(SlotIndex) {
            let version = &ring.slots[slot.0 as usize].arena_version;
            version.store(version.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
            let hold = ring.hold(slot, ring.word(slot), ring.batch(slot));
            match hold.word.state {
                SlotState::Free => continue,
                SlotState::Writing => {}
                SlotState::Ready | SlotState::Reading => lost += 1,
            }
            if hold.word.state == SlotState::Reading && !self.is_trained(hold.batch) {
                ring.ledger.mark_return(hold.batch);
            }
            self.free_undelivered(hold, now);
            self.back_to_pending(hold.batch);
        }
        self.ring_ready.set(true);
        lost
    }

    /// These slots have memory again, the given version of it.
    pub(crate) fn restore(&self, slots: Range<u32>, version: u32) {
        for slot in slots {
            self.ring.slots[slot as usize].arena_version.store(version * 2, Ordering::Relaxed);
        }
        self.ring_space.set(true);
    }

    /// Makes `trained` (half-open id ranges, ascending) the trained set. Other TRAINED batches, and those held in no
    /// slot, are PENDING again; slots stay with whoever has them.
    pub(crate) fn rewind(&self, trained: &[(u64, u64)], now: u64) {
        let (ring, ledger) = (&self.ring, self.ring.ledger);
        let in_hand = |slot: SlotIndex| (ring.batch(slot), Holder::code_of(ring.word(slot).owner));
        let reading: Vec<(BatchId, u8)> = ring.in_state(SlotState::Reading).map(in_hand).collect();
        let reader = |batch: BatchId| reading.iter().find(|(held, _)| *held == batch).map(|(_, code)| *code);
        for batch in ledger.ids() {
            match (contains(trained, batch), ledger.get(batch)) {
                (true, BatchState::Trained(_)) => {}
                (true, _) => ledger.set(batch, BatchState::Trained(Step(0))),
                (false, BatchState::Trained(_) | BatchState::Held(_)) => {
                    ledger.mark_return(batch);
                    ledger.set(batch, reader(batch).map_or(BatchState::Pending, BatchState::Held));
                }
                (false, _) => {}
            }
        }
        for slot in ring.in_state(SlotState::Ready) {
            if self.is_trained(ring.batch(slot)) {
                self.free_undelivered(ring.hold(slot, ring.word(slot), ring.batch(slot)), now);
            }
        }
        ring.note(Deed::Rewind, self.me.code, About::default(), now);
        self.wake_everybody();
    }
}

fn contains(ranges: &[(u64, u64)], batch: BatchId) -> bool {
    let after = ranges.partition_point(|(start, _)| *start <= batch.0);
    after > 0 && batch.0 < ranges[after - 1].1
}

/// What the ledger says of a batch that a slot carries.
fn carried_state(word: Word) -> BatchState {
    let code = Holder::code_of(word.owner);
    match word.state {
        SlotState::Writing => BatchState::Claimed(code),
        SlotState::Reading => BatchState::Held(code),
        SlotState::Ready | SlotState::Free => BatchState::Ready,
    }
}
