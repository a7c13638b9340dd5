//! Atomics that count stores down to a death. One thread plays everybody, so the fuse is the thread's.

use std::cell::Cell;
use std::panic;
use std::sync::atomic;

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{Ordering, fence};

pub(crate) const SPINS: u32 = 1;

thread_local! {
    /// Stores left to whoever acts now; none means immortal.
    static FUSE: Cell<Option<u32>> = const { Cell::new(None) };
    static DEAD: Cell<bool> = const { Cell::new(false) };
}

/// What a step unwinds with when it dies.
struct Died;

/// Runs a step that may do `stores` stores and dies before the next. True if it died.
pub(crate) fn dies_after(stores: u32, step: impl FnOnce()) -> bool {
    FUSE.set(Some(stores));
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(step));
    FUSE.set(None);
    let died = DEAD.replace(false);
    match outcome {
        Err(payload) if payload.downcast_ref::<Died>().is_none() => panic::resume_unwind(payload),
        _ => died,
    }
}

/// Whether a store still happens. Unwinding drops guards; what they store does not count any more.
fn lives() -> bool {
    if DEAD.get() {
        return false;
    }
    match FUSE.get() {
        None => true,
        Some(0) => {
            DEAD.set(true);
            panic::resume_unwind(Box::new(Died))
        }
        Some(left) => {
            FUSE.set(Some(left - 1));
            true
        }
    }
}

macro_rules! counted {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$name);

        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }
            pub(crate) fn load(&self, ordering: Ordering) -> $value {
                self.0.load(ordering)
            }
            pub(crate) fn store(&self, value: $value, ordering: Ordering) {
                if lives() {
                    self.0.store(value, ordering);
                }
            }
            pub(crate) fn fetch_add(&self, value: $value, ordering: Ordering) -> $value {
                if lives() { self.0.fetch_add(value, ordering) } else { self.0.load(Ordering::Relaxed) }
            }
            pub(crate) fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                if lives() { self.0.compare_exchange(old, new, success, failure) } else { Ok(old) }
            }
            pub(crate) fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }
        }
    };
}

counted!(AtomicU32, u32);
counted!(AtomicU64, u64);
