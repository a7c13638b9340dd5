//! The queue's algorithm over shared atomics: it knows no mapping, no file and no process, so a model checker can run
//! it.
//!
//! [`Ring`] is the shared state as seen by one process. Every change happens through [`Locked`], which exists only
//! while this process holds the lock. A change is committed by one store of a slot's word; all counters are derived.
//! A process may die at any point: the next holder of the lock repairs what was derived (`recovery`), and the
//! launcher takes back what the dead one owned.

pub(crate) mod geometry;
pub(crate) mod layout;
pub(crate) mod ledger;
pub(crate) mod lock;
pub(crate) mod policy;
mod recovery;
#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests;
pub(crate) mod word;

use std::cell::Cell;

use crate::ids::{BatchId, SlotIndex, Step};
use crate::sync::{AtomicU64, Ordering, fence};
use layout::{Bell, Bucket, Control, Slot};
use ledger::{BatchState, Ledger};
use lock::{Holder, Peers, Taken};
use policy::{Gate, Rules};
pub use recovery::Reclaimed;
use word::{SlotState, Word};

/// The shared state, by reference.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    pub(crate) control: &'a Control,
    pub(crate) buckets: &'a [Bucket],
    pub(crate) slots: &'a [Slot],
    pub(crate) ledger: Ledger<'a>,
    pub(crate) rules: Rules,
}

/// A slot in somebody's hands: which, with the word that proves it, and the batch it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) slot: SlotIndex,
    pub(crate) word: Word,
    pub(crate) batch: BatchId,
}

/// The outcome of asking for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is yours.
    Got(Hold),
    /// Not now.
    Blocked(Blocked),
    /// Never again.
    Finished,
}

/// Why not now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// No slot is free.
    NoFreeSlot,
    /// Every batch is somewhere on its way, none needs a target; they may yet come back.
    NothingPending,
    /// Fewer are ready than the gate wants.
    Gate { ready: u64, needed: u64 },
    /// This batch, or under `strict` the next one, is not ready.
    NotThisOne(BatchState),
}

/// The slot was taken back: its launcher counted the owner as dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

impl<'a> Ring<'a> {
    /// Takes the lock, and repairs what a dead holder left half done. `go_on` as in [`lock::acquire`].
    pub(crate) fn lock<P: Peers, E>(
        self,
        me: Holder,
        peers: &'a P,
        go_on: impl FnMut(Holder) -> Result<(), E>,
    ) -> Result<Locked<'a, P>, E> {
        let line = &self.control.lock;
        let taken = lock::acquire(&line.word, me, peers, go_on)?;
        let sequence = line.sequence.load(Ordering::Relaxed);
        line.sequence.store(sequence | 1, Ordering::Relaxed);
        // SEQUENCE: after the odd number, before any change; paired with the Acquire fence of the snapshot.
        fence(Ordering::Release);
        let locked = Locked { ring: self, me, peers, ring_ready: Cell::new(false), ring_space: Cell::new(false) };
        if taken == Taken::Stolen {
            add(&line.steals, 1);
            locked.repair();
        }
        Ok(locked)
    }

    pub(crate) fn word(&self, slot: SlotIndex) -> Word {
        // COMMIT: Acquire, paired with the Release of `Locked::commit`.
        Word::unpack(self.slots[slot.0 as usize].word.load(Ordering::Acquire))
    }

    fn batch(&self, slot: SlotIndex) -> BatchId {
        BatchId(self.slots[slot.0 as usize].batch.load(Ordering::Relaxed))
    }

    fn in_state(&self, state: SlotState) -> impl Iterator<Item = SlotIndex> {
        let ring = *self;
        (0..self.slots.len() as u32).map(SlotIndex).filter(move |slot| ring.word(*slot).state == state)
    }

    /// Slots in that state.
    pub(crate) fn slots_in(&self, state: SlotState) -> usize {
        self.in_state(state).count()
    }

    /// READY slots of a bucket.
    pub(crate) fn depth(&self, bucket: u32) -> u32 {
        let of_bucket = |slot: &SlotIndex| self.slots[slot.0 as usize].bucket.load(Ordering::Relaxed) == bucket;
        self.in_state(SlotState::Ready).filter(of_bucket).count() as u32
    }

    /// Whether pops are let through now.
    pub(crate) fn gate(&self) -> Gate {
        Gate::of(self.ledger.counts(), &self.rules)
    }
}

/// The shared state while this process may change it. Dropping it gives the lock back and then wakes who waits.
pub(crate) struct Locked<'a, P: Peers> {
    ring: Ring<'a>,
    me: Holder,
    peers: &'a P,
    ring_ready: Cell<bool>,
    ring_space: Cell<bool>,
}

impl<P: Peers> Locked<'_, P> {
    /// The lowest PENDING batch and a slot for it, in one step.
    pub(crate) fn claim(&self, now: u64) -> Asked {
        let ledger = self.ring.ledger;
        let Some(batch) = ledger.lowest_pending() else {
            let trained = ledger.counts()[BatchState::Trained(Step(0)).kind()];
            return if trained == ledger.len() { Asked::Finished } else { Asked::Blocked(Blocked::NothingPending) };
        };
        let Some(slot) = self.ring.in_state(SlotState::Free).next().or_else(|| self.evict_above(batch, now)) else {
            return Asked::Blocked(Blocked::NoFreeSlot);
        };
        let shared = &self.ring.slots[slot.0 as usize];
        shared.batch.store(batch.0, Ordering::Relaxed);
        shared.returns.store(0, Ordering::Relaxed);
        let word = self.ring.word(slot).owned(SlotState::Writing, self.me.owner());
        self.commit(slot, word, now);
        ledger.set(batch, BatchState::Claimed(self.me.code));
        Asked::Got(Hold { slot, word, batch })
    }

    /// WRITING to READY.
    pub(crate) fn publish(&self, hold: Hold, bucket: u32, now: u64) -> Result<(), Lost> {
        self.check(hold)?;
        if self.is_trained(hold.batch) {
            // A rewind to a state that has it overtook this publication.
            self.commit(hold.slot, hold.word.given_back(SlotState::Free), now);
            self.ring_space.set(true);
            return Ok(());
        }
        let (shared, control) = (&self.ring.slots[hold.slot.0 as usize], self.ring.control);
        let ticket = control.next_ticket.load(Ordering::Relaxed);
        control.next_ticket.store(ticket + 1, Ordering::Relaxed);
        shared.ticket.store(ticket, Ordering::Relaxed);
        shared.bucket.store(bucket, Ordering::Relaxed);
        self.commit(hold.slot, hold.word.published(), now);
        self.ring.ledger.set(hold.batch, BatchState::Ready);
        add(&self.ring.buckets[bucket as usize].produced, 1);
        self.note_depth(bucket);
        self.ring_ready.set(true);
        // Under `strict` a target may wait for a READY slot that it can evict.
        self.ring_space.set(true);
        Ok(())
    }

    /// WRITING to FREE; the batch is PENDING again.
    pub(crate) fn abort(&self, hold: Hold, now: u64) -> Result<(), Lost> {
        self.check(hold)?;
        self.commit(hold.slot, hold.word.given_back(SlotState::Free), now);
        self.back_to_pending(hold.batch);
        Ok(())
    }

    /// A READY batch becomes READING: `want`, or the policy's choice.
    pub(crate) fn pop(&self, want: Option<BatchId>, now: u64) -> Asked {
        let slot = match self.choose(want, now) {
            Ok(slot) => slot,
            Err(asked) => return asked,
        };
        let batch = self.ring.batch(slot);
        let word = self.ring.word(slot).owned(SlotState::Reading, self.me.owner());
        self.commit(slot, word, now);
        self.ring.ledger.set(batch, BatchState::Held(self.me.code));
        Asked::Got(Hold { slot, word, batch })
    }

    fn choose(&self, want: Option<BatchId>, now: u64) -> Result<SlotIndex, Asked> {
        let ring = &self.ring;
        let [pending, claimed, ready, ..] = ring.ledger.counts();
        let finished = match want {
            Some(batch) => batch.0 >= ring.ledger.len() || self.is_trained(batch),
            None => pending + claimed + ready == 0,
        };
        if finished {
            return Err(Asked::Finished);
        }
        if let Gate::Closed { ready, needed } = ring.gate() {
            return Err(Asked::Blocked(Blocked::Gate { ready, needed }));
        }
        let chosen = match want {
            Some(batch) => ring.in_state(SlotState::Ready).find(|slot| ring.batch(*slot) == batch),
            None => policy::choose(ring, now),
        };
        let state = want.map_or(BatchState::Pending, |batch| ring.ledger.get(batch));
        chosen.ok_or(Asked::Blocked(Blocked::NotThisOne(state)))
    }

    /// READING to FREE; the ledger keeps the batch as held.
    pub(crate) fn release(&self, hold: Hold, now: u64) -> Result<(), Lost> {
        self.check(hold)?;
        let bucket = self.ring.slots[hold.slot.0 as usize].bucket.load(Ordering::Relaxed);
        self.commit(hold.slot, hold.word.given_back(SlotState::Free), now);
        add(&self.ring.buckets[bucket as usize].consumed, 1);
        self.ring_space.set(true);
        Ok(())
    }

    /// READING to READY, for another drafter; FREE if the batch was trained all the same.
    pub(crate) fn nack(&self, hold: Hold, now: u64) -> Result<(), Lost> {
        self.check(hold)?;
        if self.is_trained(hold.batch) {
            return self.release(hold, now);
        }
        let shared = &self.ring.slots[hold.slot.0 as usize];
        shared.returns.store(shared.returns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.commit(hold.slot, hold.word.given_back(SlotState::Ready), now);
        self.ring.ledger.set(hold.batch, BatchState::Ready);
        let bucket = shared.bucket.load(Ordering::Relaxed);
        add(&self.ring.buckets[bucket as usize].redelivered, 1);
        self.note_depth(bucket);
        self.ring_ready.set(true);
        self.ring_space.set(true);
        Ok(())
    }

    /// HELD to TRAINED. All or none: `Lost` if this participant does not hold one of them.
    pub(crate) fn trained(&self, batches: &[BatchId], step: Step) -> Result<(), Lost> {
        let ledger = self.ring.ledger;
        let held = |batch: &BatchId| batch.0 < ledger.len() && ledger.get(*batch) == BatchState::Held(self.me.code);
        if !batches.iter().all(held) {
            return Err(Lost);
        }
        batches.iter().for_each(|batch| ledger.set(*batch, BatchState::Trained(step)));
        self.ring_space.set(true);
        Ok(())
    }

    /// Under `strict`, frees the READY slot with the highest id above `batch`: without that, batches nobody may take
    /// yet could hold every slot while the one that everybody waits for has none.
    fn evict_above(&self, batch: BatchId, now: u64) -> Option<SlotIndex> {
        if !self.ring.rules.strict {
            return None;
        }
        let last = self.ring.in_state(SlotState::Ready).max_by_key(|slot| self.ring.batch(*slot))?;
        let evicted = self.ring.batch(last);
        if evicted < batch {
            return None;
        }
        self.commit(last, self.ring.word(last).given_back(SlotState::Free), now);
        self.back_to_pending(evicted);
        Some(last)
    }

    fn back_to_pending(&self, batch: BatchId) {
        if !self.is_trained(batch) {
            self.ring.ledger.set(batch, BatchState::Pending);
        }
        self.ring_space.set(true);
    }

    fn is_trained(&self, batch: BatchId) -> bool {
        matches!(self.ring.ledger.get(batch), BatchState::Trained(_))
    }

    fn check(&self, hold: Hold) -> Result<(), Lost> {
        if self.ring.word(hold.slot) == hold.word { Ok(()) } else { Err(Lost) }
    }

    /// The one store that moves a slot on. All that its new state speaks of was written before.
    fn commit(&self, slot: SlotIndex, word: Word, now: u64) {
        let shared = &self.ring.slots[slot.0 as usize];
        shared.since_ns.store(now, Ordering::Relaxed);
        // COMMIT: Release, paired with the Acquire of `Ring::word`.
        shared.word.store(word.pack(), Ordering::Release);
    }

    fn note_depth(&self, bucket: u32) {
        let depth = self.ring.depth(bucket);
        let high_water = &self.ring.buckets[bucket as usize].high_water;
        high_water.store(high_water.load(Ordering::Relaxed).max(depth), Ordering::Relaxed);
    }
}

impl<P: Peers> Drop for Locked<'_, P> {
    fn drop(&mut self) {
        let control = self.ring.control;
        let bells = [(&control.ready, self.ring_ready.get()), (&control.space, self.ring_space.get())];
        for (bell, _) in bells.iter().filter(|(_, rung)| *rung) {
            raise(bell);
        }
        let sequence = control.lock.sequence.load(Ordering::Relaxed);
        // SEQUENCE: even again, after every change; paired with the Acquire load of the snapshot.
        control.lock.sequence.store(sequence.wrapping_add(1), Ordering::Release);
        lock::release(&control.lock.word, self.me, self.peers);
        for (bell, _) in bells.iter().filter(|(_, rung)| *rung) {
            self.peers.wake_all(&bell.word);
        }
    }
}

/// Makes every sleeper that has not yet slept look again.
pub(crate) fn raise(bell: &Bell) {
    // BELL: Release, paired with the Acquire load before a wait's attempt.
    bell.word.fetch_add(1, Ordering::Release);
}

fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}
