//! What happened, for those who look in from outside: histograms and a ring of events. Nobody decides by them.
//!
//! Written under the lock; a death may lose the last entry, never more.

use super::Ring;
use super::layout::{Event, HISTOGRAM_BINS};
use crate::ids::{BatchId, SlotIndex};
use crate::sync::{AtomicU64, Ordering};

/// A step that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Claim = 1,
    Publish,
    Abort,
    Pop,
    Release,
    Return,
    /// A READY or just published batch left its slot undelivered.
    Drop,
    Trained,
    Steal,
    Reclaim,
    Rewind,
}

impl Deed {
    const ALL: [Deed; 11] = [
        Deed::Claim,
        Deed::Publish,
        Deed::Abort,
        Deed::Pop,
        Deed::Release,
        Deed::Return,
        Deed::Drop,
        Deed::Trained,
        Deed::Steal,
        Deed::Reclaim,
        Deed::Rewind,
    ];

    /// The word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Deed::Claim => "claim",
            Deed::Publish => "publish",
            Deed::Abort => "abort",
            Deed::Pop => "pop",
            Deed::Release => "release",
            Deed::Return => "return",
            Deed::Drop => "drop",
            Deed::Trained => "trained",
            Deed::Steal => "steal",
            Deed::Reclaim => "reclaim",
            Deed::Rewind => "rewind",
        }
    }
}

/// One event as read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Happened {
    pub(crate) number: u64,
    pub(crate) at_ns: u64,
    pub(crate) deed: Deed,
    /// Holder code of who did it.
    pub(crate) code: u8,
    pub(crate) slot: Option<SlotIndex>,
    pub(crate) batch: Option<BatchId>,
}

const NONE: u64 = u64::MAX;

/// What an event is about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct About {
    pub(super) slot: Option<SlotIndex>,
    pub(super) batch: Option<BatchId>,
}

impl Ring<'_> {
    pub(super) fn note(&self, deed: Deed, code: u8, about: About, now: u64) {
        let number = self.control.lock.next_event.load(Ordering::Relaxed);
        let Some(event) = place(self.events, number) else { return };
        event.at_ns.store(now, Ordering::Relaxed);
        let slot = about.slot.map_or(u32::MAX, |slot| slot.0);
        event.what.store((deed as u64) << 48 | u64::from(code) << 32 | u64::from(slot), Ordering::Relaxed);
        event.batch.store(about.batch.map_or(NONE, |batch| batch.0), Ordering::Relaxed);
        self.control.lock.next_event.store(number + 1, Ordering::Relaxed);
    }

    /// The last events that are still there, oldest first.
    pub(crate) fn happened(&self) -> Vec<Happened> {
        let next = self.control.lock.next_event.load(Ordering::Relaxed);
        let first = next.saturating_sub(self.events.len() as u64);
        (first..next).filter_map(|number| read(number, place(self.events, number)?)).collect()
    }
}

fn place(events: &[Event], number: u64) -> Option<&Event> {
    events.get(number.checked_rem(events.len() as u64)? as usize)
}

fn read(number: u64, event: &Event) -> Option<Happened> {
    let what = event.what.load(Ordering::Relaxed);
    let batch = event.batch.load(Ordering::Relaxed);
    Some(Happened {
        number,
        at_ns: event.at_ns.load(Ordering::Relaxed),
        deed: *Deed::ALL.get((what >> 48).checked_sub(1)? as usize)?,
        code: (what >> 32) as u8,
        slot: (what as u32 != u32::MAX).then_some(SlotIndex(what as u32)),
        batch: (batch != NONE).then_some(BatchId(batch)),
    })
}

/// Counts a duration: bin 0 is below a microsecond, bin `i` below `2^i` of them, the last one open.
pub(super) fn count(bins: &[AtomicU64; HISTOGRAM_BINS], nanoseconds: u64) {
    let microseconds = nanoseconds / 1000;
    let bin = (u64::BITS - microseconds.leading_zeros()) as usize;
    super::add(&bins[bin.min(HISTOGRAM_BINS - 1)], 1);
}
