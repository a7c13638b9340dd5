//! The queue's algorithm over shared atomics: it knows no mapping, no file and no process, so a model checker can run
//! it.
//!
//! [`Ring`] is the shared state as seen by one process. Every change happens through [`Locked`] (`steps`), which
//! exists only while this process holds the lock. A change is committed by one store of a slot's word; all counters are derived.
//! A process may die at any point: the next holder of the lock repairs what was derived (`recovery`), and the
//! launcher takes back what the dead one owned.

pub(crate) mod audit;
pub(crate) mod bell;
pub(crate) mod layout;
pub(crate) mod ledger;
pub(crate) mod lock;
pub(crate) mod policy;
mod recovery;
pub(crate) mod statistics;
mod steps;
#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests;
pub(crate) mod word;

use crate::ids::{BatchId, SlotIndex};
use crate::sync::{AtomicU64, Ordering, fence};
use layout::{Bucket, Control, Event, Participant, Slot, Tally};
use ledger::{BatchState, Ledger};
use lock::{Holder, Peers, Taken};
use policy::{Gate, Rules};
pub use recovery::Reclaimed;
use statistics::{About, Deed};
pub(crate) use steps::Locked;
use word::{SlotState, Word};

/// The shared state, by reference.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    pub(crate) control: &'a Control,
    pub(crate) buckets: &'a [Bucket],
    /// Histograms by bucket; none are kept if empty.
    pub(crate) tallies: &'a [Tally],
    /// What happened last, in turn; nothing is kept if empty.
    pub(crate) events: &'a [Event],
    /// Targets first.
    pub(crate) participants: &'a [Participant],
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
    /// Which making of the arena's memory the slot had.
    pub(crate) arena_version: u32,
}

/// The outcome of asking for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked<T = Hold> {
    /// It is yours.
    Got(T),
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
    /// This target fills its share of the slots, and another waits for one.
    Share { writing: usize, share: usize },
    /// Every batch is somewhere on its way, none needs a target; they may yet come back.
    NothingPending,
    /// Fewer are ready than the gate wants.
    Gate { ready: u64, needed: u64 },
    /// This batch, or under `strict` the next one, is not ready.
    NotThisOne(BatchState),
    /// Fewer can be popped than were asked for in one step.
    Group { available: u64, asked: u64 },
}

impl Blocked {
    /// Waiting for a free slot.
    pub(crate) const SLOT_CODE: u32 = 1;
    /// Waiting for the lock, whose holder does not run.
    pub(crate) const LOCK_CODE: u32 = 7;

    /// The number in [`Participant::waits_for`].
    pub(crate) fn code(self) -> u32 {
        match self {
            Blocked::NoFreeSlot => Blocked::SLOT_CODE,
            Blocked::Gate { .. } => 2,
            Blocked::NotThisOne(_) => 3,
            Blocked::Group { .. } => 4,
            Blocked::NothingPending => 5,
            Blocked::Share { .. } => 6,
        }
    }

    /// What a number in [`Participant::waits_for`] says.
    pub(crate) fn in_words(code: u32) -> Option<&'static str> {
        const WORDS: [&str; 7] = [
            "a free slot",
            "the gate",
            "the next batch in order",
            "enough batches for one step",
            "the drafters to finish",
            "others to get their share of the slots",
            "the lock",
        ];
        WORDS.get(code.checked_sub(1)? as usize).copied()
    }
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
        let locked = Locked::new(self, me, peers);
        if taken == Taken::Stolen {
            add(&self.control.steals, 1);
            locked.repair();
            self.note(Deed::Steal, me.code, About::default(), peers.now());
        }
        Ok(locked)
    }

    pub(crate) fn word(&self, slot: SlotIndex) -> Word {
        // COMMIT: Acquire, paired with the Release of `Locked::commit`.
        Word::unpack(self.slots[slot.0 as usize].word.load(Ordering::Acquire))
    }

    /// The part of the arena that a slot lies in: one for each target, whose holder codes start with 1.
    fn part_of(&self, slot: SlotIndex) -> u32 {
        policy::part_of(slot.0, self.slots.len() as u32, self.rules.targets)
    }

    /// What a slot is, in the hands that `word` names.
    fn hold(&self, slot: SlotIndex, word: Word, batch: BatchId) -> Hold {
        let arena_version = self.slots[slot.0 as usize].arena_version.load(Ordering::Relaxed) / 2;
        Hold { slot, word, batch, arena_version }
    }

    /// Whether the arena has memory for the slot: not while the part that it lies in is lost.
    fn has_memory(&self, slot: SlotIndex) -> bool {
        self.slots[slot.0 as usize].arena_version.load(Ordering::Relaxed).is_multiple_of(2)
    }

    fn batch(&self, slot: SlotIndex) -> BatchId {
        BatchId(self.slots[slot.0 as usize].batch.load(Ordering::Relaxed))
    }

    fn in_state(&self, state: SlotState) -> impl Iterator<Item = SlotIndex> + Clone {
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
        Gate::of(self.ledger.counts(), &self.rules, self.control.latched.load(Ordering::Relaxed) != 0)
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}
