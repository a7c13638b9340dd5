//! What a GPU does when: tracks whose phases are known late.
//!
//! The host runs ahead of its GPU. So at each change of the main thread's phase a mark is left among the GPU's work, and
//! whoever watches the GPU says later when it came there. Between two marks the GPU may still run out of work, where the
//! host is slower than it: the watcher looks now and then, and what it finds is taken off the phase.

use std::sync::Arc;

use super::activity::{Phase, Track};
use super::place::{Place, now};
use super::ring::layout::NUM_PHASES;
use super::track::Times;

/// A phase that lasts longer is counted in pieces of this, in nanoseconds: what a GPU did is known that late at most.
const PIECE_NS: u64 = 1_000_000_000;

/// A place in the order of a GPU's work: what comes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What the work after it is for.
    pub phase: Phase,
    /// The step or batch it is for.
    pub about: u64,
}

/// Leaves a mark behind all work that a GPU was given so far.
pub type Marker = Box<dyn Fn(Mark) + Send + Sync>;

/// Writes one track of a GPU. It keeps its worker's place at the queue until it is dropped.
pub struct GpuTrack {
    place: Arc<Place>,
    track: Track,
    progress: Progress,
}

/// What is still to be taken off each phase for want of work, in nanoseconds.
#[derive(Debug, Default)]
struct Progress {
    starved_ns: [u64; NUM_PHASES],
}

impl GpuTrack {
    /// Starts with a GPU that has nothing to do.
    pub(super) fn start(place: &Arc<Place>, track: Track) -> GpuTrack {
        place.times(track).start(Phase::Idle as u32, now());
        GpuTrack { place: Arc::clone(place), track, progress: Progress::default() }
    }

    /// The GPU came to a mark at that time of the monotonic clock, in nanoseconds. Marks come in their order.
    pub fn pass(&mut self, mark: Mark, at_ns: u64) {
        self.progress.pass(self.place.times(self.track), mark, at_ns);
    }

    /// Whether the GPU has nothing to do, by the last mark that it passed.
    pub fn is_idle(&self) -> bool {
        self.place.times(self.track).present().phase() == Some(Phase::Idle as u32)
    }

    /// At that time the GPU had not come to any other mark than those told.
    pub fn goes_on(&mut self, at_ns: u64) {
        self.progress.goes_on(self.place.times(self.track), at_ns);
    }

    /// The GPU was seen without work, behind the last mark that it passed; this stands for so many nanoseconds.
    pub fn starve(&mut self, ns: u64) {
        self.progress.starve(self.place.times(self.track), ns);
    }
}

impl Drop for GpuTrack {
    fn drop(&mut self) {
        self.place.times(self.track).stop(now());
    }
}

impl Progress {
    fn pass(&mut self, times: Times<'_>, mark: Mark, at_ns: u64) {
        // Clocks that are set by each other anew may step back a little.
        let at = at_ns.max(times.since());
        self.take_idle(times, at);
        times.enter_about(mark.phase as u32, mark.about, at);
    }

    fn goes_on(&mut self, times: Times<'_>, at_ns: u64) {
        if at_ns.saturating_sub(times.since()) >= PIECE_NS {
            let phase = times.present();
            self.take_idle(times, at_ns);
            times.resume(phase, at_ns);
        }
    }

    /// The present phase ends: want of work, as far as it fits, is its last part.
    fn take_idle(&mut self, times: Times<'_>, at: u64) {
        let Some(starved) = times.present().phase().and_then(|phase| self.starved_ns.get_mut(phase as usize)) else {
            return;
        };
        let idle = (*starved).min(at - times.since());
        *starved -= idle;
        if idle > 0 {
            times.enter(Phase::Idle as u32, at - idle);
        }
    }

    fn starve(&mut self, times: Times<'_>, ns: u64) {
        let phase = times.present().phase().filter(|phase| *phase != Phase::Idle as u32);
        let starved = phase.and_then(|phase| self.starved_ns.get_mut(phase as usize));
        starved.into_iter().for_each(|starved| *starved += ns);
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use crate::queue::ring::layout::{NUM_SPANS, Span, TrackRecord};

    fn memory() -> (TrackRecord, Vec<Span>) {
        (TrackRecord::default(), (0..NUM_SPANS).map(|_| Span::default()).collect())
    }

    fn mark(phase: Phase, about: u64) -> Mark {
        Mark { phase, about }
    }

    fn spans(times: Times<'_>) -> Vec<(u32, u64, u64, u64)> {
        let spans = times.spans(0).into_iter();
        spans.map(|span| (span.phase, span.from_ns, span.to_ns, span.about)).collect()
    }

    #[test]
    fn marks_part_the_time_and_every_moment_is_somebodys() {
        let (track, memory) = memory();
        let times = Times { track: &track, spans: &memory };
        times.start(Phase::Idle as u32, 1_000);
        let mut progress = Progress::default();
        progress.pass(times, mark(Phase::Draft, 1), 2_000);
        progress.pass(times, mark(Phase::Backward, 1), 5_000);
        progress.pass(times, mark(Phase::Idle, 1), 9_000);
        progress.pass(times, mark(Phase::Draft, 2), 9_000);
        progress.pass(times, mark(Phase::Idle, 2), 9_500);
        let [idle, draft, backward] = [Phase::Idle, Phase::Draft, Phase::Backward].map(|phase| phase as u32);
        let wanted =
            [(idle, 1_000, 2_000, 0), (draft, 2_000, 5_000, 1), (backward, 5_000, 9_000, 1), (idle, 9_000, 9_000, 1)];
        assert_eq!(spans(times), [&wanted[..], &[(draft, 9_000, 9_500, 2)]].concat());
        let (read, _) = times.read();
        assert_eq!(read.visits.iter().map(|visits| visits.total_ns).sum::<u64>(), 8_500);
    }

    #[test]
    fn want_of_work_is_taken_off_its_phase_and_what_does_not_fit_off_its_next_visit() {
        let (track, memory) = memory();
        let times = Times { track: &track, spans: &memory };
        times.start(Phase::Idle as u32, 0);
        let mut progress = Progress::default();
        progress.starve(times, 700);
        progress.pass(times, mark(Phase::Draft, 1), 1_000);
        progress.starve(times, 400);
        progress.starve(times, 400);
        progress.pass(times, mark(Phase::Loss, 1), 1_500);
        progress.pass(times, mark(Phase::Draft, 2), 1_600);
        progress.pass(times, mark(Phase::Idle, 2), 2_600);
        let total = |phase: Phase| times.read().0.visits[phase as usize].total_ns;
        // Idle: before the first mark, 500 of the first visit, 300 of the second; never what was idle already.
        assert_eq!([Phase::Idle, Phase::Draft, Phase::Loss].map(total), [1_800, 700, 100]);
        assert!(spans(times).contains(&(Phase::Idle as u32, 2_300, 2_600, 2)), "{:?}", spans(times));
    }

    #[test]
    fn a_phase_that_lasts_is_counted_meanwhile_as_one_visit() {
        let (track, memory) = memory();
        let times = Times { track: &track, spans: &memory };
        times.start(Phase::Idle as u32, 0);
        let mut progress = Progress::default();
        progress.pass(times, mark(Phase::AllReduce, 1), 1_000);
        progress.goes_on(times, PIECE_NS);
        assert_eq!(times.since(), 1_000);
        progress.starve(times, 300);
        progress.goes_on(times, 1_000 + PIECE_NS);
        let visits = |phase: Phase| times.read().0.visits[phase as usize];
        assert_eq!((visits(Phase::AllReduce).total_ns, visits(Phase::Idle).total_ns), (PIECE_NS - 300, 1_300));
        assert_eq!(times.present().phase(), Some(Phase::AllReduce as u32));
        progress.pass(times, mark(Phase::Idle, 1), 2_000 + PIECE_NS);
        assert_eq!((visits(Phase::AllReduce).total_ns, visits(Phase::AllReduce).count), (PIECE_NS + 700, 1));
    }

    #[test]
    fn a_clock_that_steps_back_and_marks_of_a_life_before_move_nothing() {
        let (track, memory) = memory();
        let times = Times { track: &track, spans: &memory };
        times.start(Phase::Idle as u32, 5_000);
        let mut progress = Progress::default();
        progress.pass(times, mark(Phase::Loss, 7), 3_000);
        progress.pass(times, mark(Phase::Draft, 8), 6_000);
        progress.pass(times, mark(Phase::Backward, 8), 5_990);
        progress.pass(times, mark(Phase::Idle, 8), 7_000);
        let found = spans(times);
        assert!(found.windows(2).all(|pair| pair[0].2 == pair[1].1), "{found:?}");
        assert_eq!(times.read().0.visits.iter().map(|visits| visits.total_ns).sum::<u64>(), 2_000);
    }
}
