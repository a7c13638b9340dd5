//! The queue's lock: short, in shared memory, and taken over from a holder that is provably dead.
//!
//! Dead means: the holder's presence byte is free, or its place was taken by a newer process (a higher epoch). A
//! stopped holder is alive, and everybody waits for it.

use crate::sync::{AtomicU32, Ordering, SPINS, spin_loop};

/// Who holds, or wants, the lock: a participant in one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Participant number + 1, or [`Holder::LAUNCHER`]. Also the number of its presence byte.
    pub(crate) code: u8,
    pub(crate) epoch: u32,
}

const WAITERS: u32 = 1 << 31;
const EPOCH_BITS: u32 = (1 << 23) - 1;

impl Holder {
    /// The launcher's code; its presence byte is the one that every creator of a segment locks.
    pub(crate) const LAUNCHER: u8 = 255;

    fn lock_word(self) -> u32 {
        (self.epoch & EPOCH_BITS) << 8 | u32::from(self.code)
    }

    /// Reads a lock word; `None` if the lock is free.
    pub(crate) fn of_lock_word(word: u32) -> Option<Holder> {
        let holder = Holder { code: word as u8, epoch: (word & !WAITERS) >> 8 };
        (holder.code != 0).then_some(holder)
    }

    /// For slot words: the code and the low bits of the epoch.
    pub(crate) fn owner(self) -> u16 {
        (self.epoch as u16 & 0xF) << 8 | u16::from(self.code)
    }

    /// The code in an owner field.
    pub(crate) fn code_of(owner: u16) -> u8 {
        owner as u8
    }

    /// Whether `epoch`, as its place's record shows it, is still this holder's.
    pub(crate) fn is_incarnation(self, epoch: u32) -> bool {
        self.epoch & EPOCH_BITS == epoch & EPOCH_BITS
    }
}

/// What the lock needs to know about the world; real, or played in a model.
pub(crate) trait Peers {
    /// Whether that incarnation of a participant lives.
    fn lives(&self, holder: Holder) -> bool;
    /// The time in nanoseconds, for statistics.
    fn now(&self) -> u64;
    /// Sleeps for a short while unless `word` no longer holds `seen`.
    fn sleep(&self, word: &AtomicU32, seen: u32);
    /// Wakes one sleeper of `word`.
    fn wake_one(&self, word: &AtomicU32);
    /// Wakes every sleeper of `word`.
    fn wake_all(&self, word: &AtomicU32);
}

/// How the lock came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was free.
    Clean,
    /// From the dead, who may have left a step half done.
    Stolen,
}

/// Takes the lock. Between sleeps asks `go_on`, with the holder that is waited for, whether to go on.
pub(crate) fn acquire<E>(
    word: &AtomicU32,
    me: Holder,
    peers: &impl Peers,
    mut go_on: impl FnMut(Holder) -> Result<(), E>,
) -> Result<Taken, E> {
    let mut mine = me.lock_word();
    loop {
        // The first try does not look before: that would fetch the word's cache line twice.
        let mut free = true;
        for _ in 0..SPINS {
            // LOCK: Acquire, paired with the Release of `release`.
            if free && word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(Taken::Clean);
            }
            spin_loop();
            free = word.load(Ordering::Relaxed) == 0;
        }
        let seen = word.load(Ordering::Relaxed);
        let Some(holder) = Holder::of_lock_word(seen) else { continue };
        // From here on others may sleep too: whoever takes the lock keeps the bit, so that its release wakes one.
        mine |= WAITERS;
        if !peers.lives(holder) {
            if word.compare_exchange(seen, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(Taken::Stolen);
            }
            continue;
        }
        go_on(holder)?;
        let marked = seen | WAITERS;
        if seen == marked || word.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            peers.sleep(word, marked);
        }
    }
}

/// Gives the lock back, if it is still `me` who holds it.
pub(crate) fn release(word: &AtomicU32, me: Holder, peers: &impl Peers) {
    let mut seen = word.load(Ordering::Relaxed);
    while seen & !WAITERS == me.lock_word() {
        // LOCK: Release, paired with the Acquire of `acquire`.
        match word.compare_exchange_weak(seen, 0, Ordering::Release, Ordering::Relaxed) {
            Ok(_) if seen & WAITERS != 0 => return peers.wake_one(word),
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}
