//! The seam for the queue's atomics: its algorithm takes them from `crate::sync`, so that `tests/loom.rs` can put
//! modelled ones in their place and run every interleaving.
//!
//! Rule of the house: an `Acquire` load names the `Release` store that it pairs with, and the other way round.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Looks at a taken lock before going to sleep.
pub(crate) const SPINS: u32 = 64;
