//! One word per batch id: where the batch is in the run's bookkeeping.
//!
//! Written under the queue's lock. While a slot carries the batch, the slot's word is the truth and the ledger word
//! follows it (a death in between is mended by [`super::Locked::repair`]), with one exception: TRAINED wins over any
//! slot.

use super::layout::Control;
use crate::ids::{BatchId, Step};
use crate::sync::{AtomicU64, Ordering};

/// Where a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchState {
    /// Waits for a target.
    Pending,
    /// A target (this holder code) works on it.
    Claimed(u8),
    /// In a READY slot.
    Ready,
    /// A drafter (this holder code) has it, in a slot or in its own memory.
    Held(u8),
    /// Went into the weights at this step; [`Step`] 0 if that was before this queue.
    Trained(Step),
}

/// Kind 4 bits | returns 8 bits | value 52 bits.
const KIND_SHIFT: u32 = 60;
const RETURNS_SHIFT: u32 = 52;
const RETURNS: u64 = 0xFF << RETURNS_SHIFT;
const VALUE: u64 = (1 << RETURNS_SHIFT) - 1;

impl BatchState {
    /// Index into the counters.
    pub(crate) fn kind(self) -> usize {
        match self {
            BatchState::Pending => 0,
            BatchState::Claimed(_) => 1,
            BatchState::Ready => 2,
            BatchState::Held(_) => 3,
            BatchState::Trained(_) => 4,
        }
    }

    fn pack(self) -> u64 {
        let value = match self {
            BatchState::Pending | BatchState::Ready => 0,
            BatchState::Claimed(code) | BatchState::Held(code) => u64::from(code),
            BatchState::Trained(step) => step.0 & VALUE,
        };
        (self.kind() as u64) << KIND_SHIFT | value
    }

    /// An all-zero ledger is PENDING throughout.
    pub(crate) fn unpack(bits: u64) -> BatchState {
        let value = bits & VALUE;
        match bits >> KIND_SHIFT {
            1 => BatchState::Claimed(value as u8),
            2 => BatchState::Ready,
            3 => BatchState::Held(value as u8),
            4 => BatchState::Trained(Step(value)),
            _ => BatchState::Pending,
        }
    }
}

/// The words, and the counters kept over them.
#[derive(Clone, Copy)]
pub(crate) struct Ledger<'a> {
    words: &'a [AtomicU64],
    control: &'a Control,
}

impl<'a> Ledger<'a> {
    pub(crate) fn new(words: &'a [AtomicU64], control: &'a Control) -> Ledger<'a> {
        Ledger { words, control }
    }

    pub(crate) fn len(self) -> u64 {
        self.words.len() as u64
    }

    pub(crate) fn get(self, batch: BatchId) -> BatchState {
        BatchState::unpack(self.words[batch.0 as usize].load(Ordering::Relaxed))
    }

    pub(crate) fn set(self, batch: BatchId, state: BatchState) {
        let word = &self.words[batch.0 as usize];
        let old = word.load(Ordering::Relaxed);
        word.store(state.pack() | old & RETURNS, Ordering::Relaxed);
        self.add(BatchState::unpack(old), -1);
        self.add(state, 1);
        if state == BatchState::Pending && batch.0 < self.control.pending_floor.load(Ordering::Relaxed) {
            self.control.pending_floor.store(batch.0, Ordering::Relaxed);
        }
    }

    fn add(self, state: BatchState, delta: i64) {
        let count = &self.control.lock.ledger_counts[state.kind()];
        count.store(count.load(Ordering::Relaxed).wrapping_add_signed(delta), Ordering::Relaxed);
    }

    /// How often the batch was in a drafter's hands without being trained; 255 stands for more.
    pub(crate) fn returns(self, batch: BatchId) -> u8 {
        (self.words[batch.0 as usize].load(Ordering::Relaxed) >> RETURNS_SHIFT) as u8
    }

    /// Counts one more return. Comes before the step that makes the batch available again: a death in between marks
    /// one too many, never one too few.
    pub(crate) fn mark_return(self, batch: BatchId) {
        let word = &self.words[batch.0 as usize];
        let old = word.load(Ordering::Relaxed);
        if old & RETURNS != RETURNS {
            word.store(old + (1 << RETURNS_SHIFT), Ordering::Relaxed);
        }
    }

    /// Batches in the states Pending, Claimed, Ready, Held, Trained.
    pub(crate) fn counts(self) -> [u64; 5] {
        self.control.lock.ledger_counts.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    pub(crate) fn ids(self) -> impl Iterator<Item = BatchId> {
        (0..self.len()).map(BatchId)
    }

    /// The lowest PENDING id; remembers how far it looked.
    pub(crate) fn lowest_pending(self) -> Option<BatchId> {
        let floor = self.control.pending_floor.load(Ordering::Relaxed);
        let found = (floor..self.len()).map(BatchId).find(|batch| self.get(*batch) == BatchState::Pending);
        self.control.pending_floor.store(found.map_or(self.len(), |batch| batch.0), Ordering::Relaxed);
        found
    }

    /// Makes the counters anew from the words.
    pub(crate) fn recount(self) {
        let mut counts = [0u64; 5];
        self.ids().for_each(|batch| counts[self.get(batch).kind()] += 1);
        for (shared, count) in self.control.lock.ledger_counts.iter().zip(counts) {
            shared.store(count, Ordering::Relaxed);
        }
        self.control.pending_floor.store(0, Ordering::Relaxed);
    }

    /// The TRAINED ids as half-open ranges, ascending, none touching the next.
    pub(crate) fn trained_ranges(self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for batch in self.ids().filter(|batch| matches!(self.get(*batch), BatchState::Trained(_))) {
            match ranges.last_mut() {
                Some((_, end)) if *end == batch.0 => *end += 1,
                _ => ranges.push((batch.0, batch.0 + 1)),
            }
        }
        ranges
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_and_the_lowest_pending_id_is_found_again_after_a_step_back() {
        let (control, words): (_, Vec<AtomicU64>) = (Control::default(), (0..5).map(|_| AtomicU64::new(0)).collect());
        let ledger = Ledger::new(&words, &control);
        ledger.recount();
        assert_eq!(ledger.counts(), [5, 0, 0, 0, 0]);
        for id in [0, 1, 2] {
            assert_eq!(ledger.lowest_pending(), Some(BatchId(id)));
            ledger.set(BatchId(id), BatchState::Claimed(7));
        }
        ledger.set(BatchId(1), BatchState::Pending);
        assert_eq!(ledger.lowest_pending(), Some(BatchId(1)));
        ledger.ids().for_each(|id| ledger.set(id, BatchState::Trained(Step(3))));
        assert_eq!((ledger.lowest_pending(), ledger.counts()), (None, [0, 0, 0, 0, 5]));
    }

    #[test]
    fn trained_ids_come_as_ranges() {
        let (control, words): (_, Vec<AtomicU64>) = (Control::default(), (0..6).map(|_| AtomicU64::new(0)).collect());
        let ledger = Ledger::new(&words, &control);
        [0, 1, 3, 5].into_iter().for_each(|id| ledger.set(BatchId(id), BatchState::Trained(Step(9))));
        assert_eq!(ledger.trained_ranges(), [(0, 2), (3, 4), (5, 6)]);
        assert_eq!(ledger.get(BatchId(3)), BatchState::Trained(Step(9)));
    }
}
