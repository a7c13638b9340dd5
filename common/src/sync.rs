//! The seam between real atomics and loom's: the queue takes its atomics from here, so that every interleaving of its
//! algorithm can be explored (`--cfg loom`).
//!
//! Rule of the house: an `Acquire` load names the `Release` store that it pairs with, and the other way round.

#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};
