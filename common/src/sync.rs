//! The seam for the queue's atomics: its algorithm takes them from `crate::sync`, so that `tests/loom.rs` can put
//! modelled ones in their place and run every interleaving.
//!
//! Rule of the house: an `Acquire` load names the `Release` store that it pairs with, and the other way round.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Looks at a taken lock before going to sleep.
pub(crate) const SPINS: u32 = 32;

/// Waits for a fraction of a microsecond between two looks at a word: each look takes the word's cache line from whoever
/// is about to write it.
pub(crate) fn spin_loop() {
    (0..8).for_each(|_| std::hint::spin_loop());
}
