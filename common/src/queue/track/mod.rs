//! Where a thread's time goes: counted by phase as it goes from one to the next, by the thread itself. A GPU's time is counted
//! in the same way, by a thread that watches it.
//!
//! A change of phase books the time since the last change to the phase that is left, so the phases of a track cover all
//! of its time, and no two of its spans overlap. A track has one writer and any number of readers, none of which waits:
//! a reader repeats a reading that a change fell into (TRACK), and passes over spans that were overwritten meanwhile
//! (SPAN).

use std::time::Duration;

use super::ring::layout::{HISTOGRAM_BINS, NUM_PHASES, Span, TrackRecord, Visits};
use crate::sync::{AtomicU64, Ordering, fence};

/// Whether time is counted by phase. It always is, but for builds that are to show what that costs:
/// `RUSTFLAGS="--cfg no_telemetry"`. Their watchdog sees nobody at work, so they have no deadline for a device that does
/// not answer.
pub const COUNTED: bool = !cfg!(no_telemetry);

/// In [`TrackRecord::phase`]: nobody is at work.
const IDLE: u32 = u32::MAX;
/// Set in [`TrackRecord::phase`] of a phase that was gone back to after a nested one: what follows is more of the same
/// visit, which is counted already.
const RESUMED: u32 = 1 << 31;
const ABOUT: u64 = u64::MAX >> 8;
/// Readings before one that a change fell into is taken as it is: its writer died in the middle, or is very busy.
const ATTEMPTS: u32 = 100;

/// A track in shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Times<'a> {
    pub(crate) track: &'a TrackRecord,
    pub(crate) spans: &'a [Span],
}

/// The phase that a nested one, or a wait, interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted(u32);

impl Interrupted {
    /// Which; none if nobody was at work.
    pub(crate) fn phase(self) -> Option<u32> {
        (self.0 != IDLE).then_some(self.0 & !RESUMED)
    }
}

/// One phase of a track, as read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VisitsRead {
    pub(crate) count: u64,
    pub(crate) total_ns: u64,
    pub(crate) max_ns: u64,
    pub(crate) bins: [u64; HISTOGRAM_BINS],
}

/// A track, as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrackRead {
    /// The phase that it is in; none while nobody is at work.
    pub(crate) phase: Option<u32>,
    pub(crate) since_ns: u64,
    pub(crate) visits: [VisitsRead; NUM_PHASES],
}

/// One span, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanRead {
    pub(crate) number: u64,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    pub(crate) phase: u32,
    pub(crate) about: u64,
}

/// The writer's side; one thread at a time.
impl Times<'_> {
    /// Starts a life of the track; time since the end of the last one is nobody's.
    pub(crate) fn start(self, phase: u32, since: u64) {
        // What a killed writer was doing when it died is not known to have lasted.
        self.forget();
        self.change(phase, since.max(self.track.since_ns.load(Ordering::Relaxed)));
    }

    /// Whatever a killed writer was doing, nobody does it any more.
    pub(crate) fn forget(self) {
        self.track.phase.store(IDLE, Ordering::Relaxed);
    }

    /// Ends it.
    pub(crate) fn stop(self, now: u64) {
        self.change(IDLE, now);
    }

    /// Goes from the present phase to this one.
    pub(crate) fn enter(self, phase: u32, now: u64) -> Interrupted {
        Interrupted(self.change(phase, now))
    }

    /// Goes back to a phase that another one interrupted.
    pub(crate) fn resume(self, Interrupted(phase): Interrupted, now: u64) {
        self.change(if phase == IDLE { IDLE } else { phase | RESUMED }, now);
    }

    /// Goes from the present phase to this one; the spans from here on are about `number`.
    pub(crate) fn enter_about(self, phase: u32, number: u64, now: u64) {
        self.change(phase, now);
        self.track.about.store(number & ABOUT, Ordering::Relaxed);
    }

    /// Since when it is in the present phase, in nanoseconds.
    pub(crate) fn since(self) -> u64 {
        self.track.since_ns.load(Ordering::Relaxed)
    }

    /// The present phase.
    pub(crate) fn present(self) -> Interrupted {
        Interrupted(self.track.phase.load(Ordering::Relaxed))
    }

    /// Says what the spans from here on are about; the present one is cut in two.
    pub(crate) fn about(self, number: u64, now: u64) {
        self.resume(self.present(), now);
        self.track.about.store(number & ABOUT, Ordering::Relaxed);
    }

    fn change(self, next: u32, now: u64) -> u32 {
        let track = self.track;
        let (before, since) = (track.phase.load(Ordering::Relaxed), track.since_ns.load(Ordering::Relaxed));
        self.write(|| {
            if before != IDLE {
                self.book(before, now.saturating_sub(since));
                self.note(before, since, now);
            }
            track.phase.store(next, Ordering::Relaxed);
            track.since_ns.store(now, Ordering::Relaxed);
        });
        before
    }

    fn write(self, change: impl FnOnce()) {
        if !COUNTED {
            return;
        }
        let sequence = self.track.sequence.load(Ordering::Relaxed) | 1;
        self.track.sequence.store(sequence, Ordering::Relaxed);
        // TRACK: after the odd number, before any change; paired with the Acquire fence of `Times::read`. SPAN: after
        // the last span's number, before the next span's fields; paired with the Acquire fence of `Times::spans`.
        fence(Ordering::Release);
        change();
        // TRACK: Release, paired with the Acquire load of `Times::read`.
        self.track.sequence.store(sequence + 1, Ordering::Release);
    }

    fn book(self, phase: u32, nanoseconds: u64) {
        let Some(visits) = self.track.visits.get((phase & !RESUMED) as usize) else { return };
        add(&visits.total_ns, nanoseconds);
        if phase & RESUMED == 0 {
            add(&visits.count, 1);
            add(&visits.bins[bin(nanoseconds)], 1);
            if visits.max_ns.load(Ordering::Relaxed) < nanoseconds {
                visits.max_ns.store(nanoseconds, Ordering::Relaxed);
            }
        }
    }

    fn note(self, phase: u32, from: u64, to: u64) {
        let number = self.track.next_span.load(Ordering::Relaxed);
        let Some(span) = place(self.spans, number) else { return };
        span.from_ns.store(from, Ordering::Relaxed);
        span.to_ns.store(to, Ordering::Relaxed);
        let about = self.track.about.load(Ordering::Relaxed);
        span.what.store(u64::from(phase & !RESUMED) << 56 | about, Ordering::Relaxed);
        // SPAN: Release, paired with the Acquire load of `Times::spans`.
        self.track.next_span.store(number + 1, Ordering::Release);
    }
}

/// The reader's side.
impl Times<'_> {
    /// Whether anybody ever used the track.
    pub(crate) fn is_used(self) -> bool {
        self.track.sequence.load(Ordering::Relaxed) != 0
    }

    /// All of its phases, no change having fallen into the reading; false if every attempt met one.
    pub(crate) fn read(self) -> (TrackRead, bool) {
        let mut attempt = 1;
        loop {
            // TRACK: Acquire, paired with the Release store of `Times::write`.
            let before = self.track.sequence.load(Ordering::Acquire);
            let phase = self.track.phase.load(Ordering::Relaxed);
            let read = TrackRead {
                phase: (phase != IDLE).then_some(phase & !RESUMED),
                since_ns: self.track.since_ns.load(Ordering::Relaxed),
                visits: self.track.visits.each_ref().map(VisitsRead::of),
            };
            // TRACK: paired with the Release fence of `Times::write`.
            fence(Ordering::Acquire);
            let whole = before.is_multiple_of(2) && self.track.sequence.load(Ordering::Relaxed) == before;
            if whole || attempt == ATTEMPTS {
                return (read, whole);
            }
            attempt += 1;
        }
    }

    /// Spans from number `first` on that are still there, oldest first.
    pub(crate) fn spans(self, first: u64) -> Vec<SpanRead> {
        let kept = self.spans.len() as u64;
        // SPAN: Acquire, paired with the Release store of `Times::note`.
        let end = self.track.next_span.load(Ordering::Acquire);
        let numbers = first.max(end.saturating_sub(kept))..end;
        let mut read: Vec<SpanRead> =
            numbers.filter_map(|number| Some(SpanRead::of(number, place(self.spans, number)?))).collect();
        // SPAN: paired with the Release fence of `Times::write`.
        fence(Ordering::Acquire);
        // The one that is written next may have been begun.
        let overwritten = (self.track.next_span.load(Ordering::Relaxed) + 1).saturating_sub(kept);
        read.retain(|span| span.number >= overwritten);
        read
    }
}

impl VisitsRead {
    fn of(visits: &Visits) -> VisitsRead {
        VisitsRead {
            count: visits.count.load(Ordering::Relaxed),
            total_ns: visits.total_ns.load(Ordering::Relaxed),
            max_ns: visits.max_ns.load(Ordering::Relaxed),
            bins: visits.bins.each_ref().map(|bin| bin.load(Ordering::Relaxed)),
        }
    }
}

impl SpanRead {
    fn of(number: u64, span: &Span) -> SpanRead {
        let what = span.what.load(Ordering::Relaxed);
        SpanRead {
            number,
            from_ns: span.from_ns.load(Ordering::Relaxed),
            to_ns: span.to_ns.load(Ordering::Relaxed),
            phase: (what >> 56) as u32,
            about: what & ABOUT,
        }
    }
}

/// Bin 0 is below a microsecond, bin `i` below `2^i` of them, the last one open.
fn bin(nanoseconds: u64) -> usize {
    let microseconds = Duration::from_nanos(nanoseconds).as_micros() as u64;
    ((u64::BITS - microseconds.leading_zeros()) as usize).min(HISTOGRAM_BINS - 1)
}

fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

fn place(spans: &[Span], number: u64) -> Option<&Span> {
    spans.get(number.checked_rem(spans.len() as u64)? as usize)
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests;
