//! The steps that slots and batches take, one critical section each.

use std::cell::Cell;

use super::bell::{Group, Waits, raise};
use super::layout::{HISTOGRAM_BINS, Participant, Tally};
use super::ledger::BatchState;
use super::lock::{self, Holder, Peers};
use super::policy::{self, Gate};
use super::statistics::{self, About, Deed};
use super::word::{SlotState, Word};
use super::{Asked, Blocked, Hold, Lost, Ring, add};
use crate::ids::{BatchId, SlotIndex, Step};
use crate::sync::{AtomicU64, Ordering};

/// The shared state while this process may change it. Dropping it gives the lock back and then wakes who waits.
pub(crate) struct Locked<'a, P: Peers> {
    pub(super) ring: Ring<'a>,
    pub(super) me: Holder,
    pub(super) peers: &'a P,
    pub(super) ring_ready: Cell<bool>,
    pub(super) ring_space: Cell<bool>,
}

impl<'a, P: Peers> Locked<'a, P> {
    pub(super) fn new(ring: Ring<'a>, me: Holder, peers: &'a P) -> Locked<'a, P> {
        Locked { ring, me, peers, ring_ready: Cell::new(false), ring_space: Cell::new(false) }
    }

    /// The lowest PENDING batch and a slot for it, in one step. `waited` is how long the target has asked, in
    /// nanoseconds.
    pub(crate) fn claim(&self, waited: u64, now: u64) -> Asked {
        let ledger = self.ring.ledger;
        let Some(batch) = ledger.lowest_pending() else {
            return if self.all_trained() { Asked::Finished } else { Asked::Blocked(Blocked::NothingPending) };
        };
        if let Some(blocked) = self.beyond_its_share() {
            return Asked::Blocked(blocked);
        }
        let Some(slot) = self.free_slot().or_else(|| self.evict_above(batch, now)) else {
            return Asked::Blocked(Blocked::NoFreeSlot);
        };
        let shared = &self.ring.slots[slot.0 as usize];
        shared.batch.store(batch.0, Ordering::Relaxed);
        shared.waited_ns.store(waited, Ordering::Relaxed);
        let word = self.ring.word(slot).owned(SlotState::Writing, self.me.owner());
        let hold = self.ring.hold(slot, word, batch);
        self.commit(slot, hold.word, now);
        ledger.set(batch, BatchState::Claimed(self.me.code));
        self.note(Deed::Claim, hold, now);
        Asked::Got(hold)
    }

    /// A free slot that the arena has memory for: on GPUs this target's own part is the nearest.
    fn free_slot(&self) -> Option<SlotIndex> {
        let ring = &self.ring;
        let free = || ring.in_state(SlotState::Free).filter(|slot| ring.has_memory(*slot));
        free().find(|slot| ring.part_of(*slot) + 1 == u32::from(self.me.code)).or_else(|| free().next())
    }

    /// One target cannot fill every slot while another waits for one.
    fn beyond_its_share(&self) -> Option<Blocked> {
        let ring = &self.ring;
        let targets = ring.participants.iter().take(ring.rules.targets as usize);
        let waits = |(code, record): (u8, &Participant)| {
            code != self.me.code && record.waits_for.load(Ordering::Relaxed) == Blocked::SLOT_CODE
        };
        if !(1..).zip(targets).any(waits) {
            return None;
        }
        let mine = |slot: &SlotIndex| Holder::code_of(ring.word(*slot).owner) == self.me.code;
        let writing = ring.in_state(SlotState::Writing).filter(mine).count();
        let share = policy::share(ring.slots.len(), ring.rules.targets);
        (writing >= share).then_some(Blocked::Share { writing, share })
    }

    /// WRITING to READY.
    pub(crate) fn publish(&self, hold: Hold, bucket: u32, now: u64) -> Result<(), Lost> {
        self.check(hold)?;
        let (shared, control) = (&self.ring.slots[hold.slot.0 as usize], self.ring.control);
        shared.bucket.store(bucket, Ordering::Relaxed);
        if self.is_trained(hold.batch) {
            // A rewind to a state that has it overtook this publication.
            self.free_undelivered(hold, now);
            return Ok(());
        }
        let ticket = control.next_ticket.load(Ordering::Relaxed);
        control.next_ticket.store(ticket + 1, Ordering::Relaxed);
        shared.ticket.store(ticket, Ordering::Relaxed);
        self.commit(hold.slot, hold.word.published(), now);
        self.ring.ledger.set(hold.batch, BatchState::Ready);
        add(&self.ring.buckets[bucket as usize].produced, 1);
        self.count(hold, |tally| &tally.waited, shared.waited_ns.load(Ordering::Relaxed));
        self.note_depth(bucket);
        self.note(Deed::Publish, hold, now);
        self.ring_ready.set(true);
        if self.ring.rules.strict {
            // A target may wait for a READY slot that it can evict.
            self.ring_space.set(true);
        }
        Ok(())
    }

    /// WRITING to FREE; the batch is PENDING again.
    pub(crate) fn abort(&self, hold: Hold, now: u64) -> Result<(), Lost> {
        self.check(hold)?;
        self.commit(hold.slot, hold.word.given_back(SlotState::Free), now);
        self.back_to_pending(hold.batch);
        self.note(Deed::Abort, hold, now);
        Ok(())
    }

    /// A READY batch becomes READING: `want`, or the policy's choice.
    pub(crate) fn pop(&self, want: Option<BatchId>, now: u64) -> Asked {
        match self.choose(want, now) {
            Ok(slot) => Asked::Got(self.take(slot, now)),
            Err(asked) => asked,
        }
    }

    /// `count` batches of the policy's choice become READING in one step: all of them or none. Fewer only when fewer
    /// are left and none will come.
    pub(crate) fn pop_group(&self, count: u32, now: u64) -> Asked<Vec<Hold>> {
        let ring = &self.ring;
        let available = policy::available(ring);
        let asked = match self.open() {
            Err(None) => return Asked::Finished,
            Err(Some(blocked)) => return Asked::Blocked(blocked),
            Ok(Gate::Draining) => u64::from(count).min(available.max(1)),
            Ok(_) => u64::from(count),
        };
        if available < asked {
            return Asked::Blocked(Blocked::Group { available, asked });
        }
        let chosen = (0..asked).map_while(|_| policy::choose(ring, now).map(|slot| self.take(slot, now)));
        Asked::Got(chosen.collect())
    }

    fn take(&self, slot: SlotIndex, now: u64) -> Hold {
        let (ring, shared) = (&self.ring, &self.ring.slots[slot.0 as usize]);
        let word = ring.word(slot).owned(SlotState::Reading, self.me.owner());
        let hold = ring.hold(slot, word, ring.batch(slot));
        let age = now.saturating_sub(shared.since_ns.load(Ordering::Relaxed));
        self.commit(slot, word, now);
        ring.ledger.set(hold.batch, BatchState::Held(self.me.code));
        if self.open() == Err(None) {
            // It was the last one: others wait for nothing.
            self.ring_ready.set(true);
        }
        self.count(hold, |tally| &tally.aged, age);
        self.note(Deed::Pop, hold, now);
        hold
    }

    /// Whether the gate lets something through; an error without a reason if nothing will ever come.
    fn open(&self) -> Result<Gate, Option<Blocked>> {
        let [pending, claimed, ready, ..] = self.ring.ledger.counts();
        match self.ring.gate() {
            _ if pending + claimed + ready == 0 => Err(None),
            Gate::Closed { ready, needed } => Err(Some(Blocked::Gate { ready, needed })),
            open => Ok(open),
        }
    }

    fn choose(&self, want: Option<BatchId>, now: u64) -> Result<SlotIndex, Asked> {
        let ring = &self.ring;
        if want.is_some_and(|batch| batch.0 >= ring.ledger.len() || self.is_trained(batch)) {
            return Err(Asked::Finished);
        }
        match (self.open(), want) {
            (Err(Some(blocked)), _) => return Err(Asked::Blocked(blocked)),
            (Err(None), None) => return Err(Asked::Finished),
            // Another drafter has it; its death may bring it back.
            (Err(None), Some(_)) | (Ok(_), _) => {}
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
        let shared = &self.ring.slots[hold.slot.0 as usize];
        let held = now.saturating_sub(shared.since_ns.load(Ordering::Relaxed));
        self.commit(hold.slot, hold.word.given_back(SlotState::Free), now);
        add(&self.ring.buckets[self.bucket(hold.slot) as usize].consumed, 1);
        self.count(hold, |tally| &tally.held, held);
        self.note(Deed::Release, hold, now);
        self.ring_space.set(true);
        Ok(())
    }

    /// READING to READY, for another drafter; FREE if the batch was trained all the same.
    pub(crate) fn nack(&self, hold: Hold, now: u64) -> Result<(), Lost> {
        self.check(hold)?;
        if self.is_trained(hold.batch) {
            return self.release(hold, now);
        }
        self.ring.ledger.mark_return(hold.batch);
        self.commit(hold.slot, hold.word.given_back(SlotState::Ready), now);
        self.ring.ledger.set(hold.batch, BatchState::Ready);
        let bucket = self.bucket(hold.slot);
        add(&self.ring.buckets[bucket as usize].redelivered, 1);
        self.note_depth(bucket);
        self.note(Deed::Return, hold, now);
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
        let now = self.peers.now();
        for batch in batches {
            ledger.set(*batch, BatchState::Trained(step));
            self.ring.note(Deed::Trained, self.me.code, About { slot: None, batch: Some(*batch) }, now);
        }
        if self.all_trained() {
            // Targets that wait for that may go.
            self.ring_space.set(true);
        }
        Ok(())
    }

    /// Under `strict`, frees the READY slot with the highest id above `batch`: without that, batches nobody may take
    /// yet could hold every slot while the one that everybody waits for has none.
    fn evict_above(&self, batch: BatchId, now: u64) -> Option<SlotIndex> {
        if !self.ring.rules.strict {
            return None;
        }
        let slot = self.ring.in_state(SlotState::Ready).max_by_key(|slot| self.ring.batch(*slot))?;
        let evicted = self.ring.hold(slot, self.ring.word(slot), self.ring.batch(slot));
        if evicted.batch < batch {
            return None;
        }
        self.free_undelivered(evicted, now);
        self.back_to_pending(evicted.batch);
        Some(slot)
    }

    /// Frees the slot of a batch that no drafter had.
    pub(super) fn free_undelivered(&self, hold: Hold, now: u64) {
        self.commit(hold.slot, hold.word.given_back(SlotState::Free), now);
        add(&self.ring.buckets[self.bucket(hold.slot) as usize].dropped, 1);
        self.note(Deed::Drop, hold, now);
        self.ring_space.set(true);
    }

    pub(super) fn back_to_pending(&self, batch: BatchId) {
        if !self.is_trained(batch) {
            self.ring.ledger.set(batch, BatchState::Pending);
        }
        self.ring_space.set(true);
    }

    fn all_trained(&self) -> bool {
        self.ring.ledger.counts()[BatchState::Trained(Step(0)).kind()] == self.ring.ledger.len()
    }

    pub(super) fn is_trained(&self, batch: BatchId) -> bool {
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

    fn bucket(&self, slot: SlotIndex) -> u32 {
        self.ring.slots[slot.0 as usize].bucket.load(Ordering::Relaxed)
    }

    fn note_depth(&self, bucket: u32) {
        let high_water = &self.ring.buckets[bucket as usize].high_water;
        let most = high_water.load(Ordering::Relaxed);
        // A bucket is no deeper than all of them together.
        if self.ring.ledger.counts()[BatchState::Ready.kind()] > u64::from(most) {
            high_water.store(most.max(self.ring.depth(bucket)), Ordering::Relaxed);
        }
    }

    fn note(&self, deed: Deed, hold: Hold, now: u64) {
        self.ring.note(deed, self.me.code, About { slot: Some(hold.slot), batch: Some(hold.batch) }, now);
    }

    fn count(&self, hold: Hold, bins: fn(&Tally) -> &[AtomicU64; HISTOGRAM_BINS], nanoseconds: u64) {
        if let Some(tally) = self.ring.tallies.get(self.bucket(hold.slot) as usize) {
            statistics::count(bins(tally), nanoseconds);
        }
    }

    /// Says that this participant waits on the group's bell from here on.
    pub(crate) fn wait_on(&self, group: Group, waits: Waits) {
        group.wait(self.ring.control, waits);
    }

    /// Under `latch` the gate, once open, stays so until nothing is ready.
    pub(super) fn settle_gate(&self) {
        let (rules, latched) = (&self.ring.rules, &self.ring.control.latched);
        let ready = self.ring.ledger.counts()[BatchState::Ready.kind()];
        if rules.latch && (ready == 0 || ready >= rules.min_ready) {
            latched.store(u32::from(ready != 0), Ordering::Relaxed);
        }
    }
}

impl<P: Peers> Drop for Locked<'_, P> {
    fn drop(&mut self) {
        self.settle_gate();
        let control = self.ring.control;
        let rung = [(Group::Ready, self.ring_ready.get()), (Group::Space, self.ring_space.get())];
        let waiting = rung.map(|(group, rung)| rung.then(|| group.take_waits(control)).flatten());
        let sequence = control.lock.sequence.load(Ordering::Relaxed);
        // SEQUENCE: even again, after every change; paired with the Acquire load of the snapshot.
        control.lock.sequence.store(sequence.wrapping_add(1), Ordering::Release);
        lock::release(&control.lock.word, self.me, self.peers);
        for (group, waits) in Group::ALL.into_iter().zip(waiting) {
            let bell = group.bell(control);
            if waits.is_some() {
                raise(bell);
            }
            if waits == Some(Waits::Asleep) {
                self.peers.wake_all(&bell.word);
            }
        }
    }
}
