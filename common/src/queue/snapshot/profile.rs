//! Where a worker's time went, by thread and phase.

use std::collections::BTreeMap;

use serde::Serialize;

use super::view::Histogram;
use crate::ids::{Rank, Role};
use crate::queue::activity::{Phase, Track};
use crate::queue::header::{self, Facts, HeaderError};
use crate::queue::timed::times;
use crate::queue::track::{SpanRead, Times, VisitsRead};
use crate::shm::{Mapped, ReadOnly};

/// A worker's tracks, those it uses; of each the phases that took time.
pub type Profile = BTreeMap<Track, BTreeMap<Phase, PhaseView>>;

/// What a track spent in one phase, over all of the worker's lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PhaseView {
    /// Visits that are over.
    pub count: u64,
    /// Time in it, the present visit's until now included (a GPU's, until a little before now), in nanoseconds.
    pub total_ns: u64,
    /// The longest visit that is over, without the time of phases nested in it.
    pub max_ns: u64,
    /// Visits that are over, by their time.
    pub histogram: Histogram,
}

/// A stretch of time that one of a worker's tracks spent in one phase. Those of a track never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanView {
    /// Counts the track's spans.
    pub number: u64,
    /// Its start on the monotonic clock, in nanoseconds.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// What was done.
    pub phase: Phase,
    /// The step or batch it was done for; 0 before the first.
    pub about: u64,
}

/// A participant's times as they are now; whether it is `alive` says whether its present phase goes on.
pub(in crate::queue) fn profile(memory: &impl Mapped, facts: &Facts, (code, alive): (u8, bool), now: u64) -> Profile {
    let used = Track::ALL.iter().map(|track| (*track, times(memory, facts, code, *track)));
    used.filter(|(_, times)| times.is_used())
        .map(|(track, times)| (track, phases(times, alive, known_until(track, now))))
        .collect()
}

/// Until when the last phase that is known of a track is taken to go on: no reading takes back what one before it said.
fn known_until(track: Track, now: u64) -> u64 {
    now.saturating_sub(track.late_ns())
}

fn phases(times: Times<'_>, at_work: bool, now: u64) -> BTreeMap<Phase, PhaseView> {
    // A reading that is not whole is that of a writer that died in the middle: one visit's numbers do not add up.
    let (read, _) = times.read();
    let present = |phase: Phase| at_work && read.phase == Some(phase as u32);
    let mut views = BTreeMap::new();
    for (phase, visits) in Phase::ALL.iter().zip(&read.visits) {
        let open = if present(*phase) { now.saturating_sub(read.since_ns) } else { 0 };
        if visits.total_ns + open > 0 || visits.count > 0 {
            views.insert(*phase, PhaseView::of(visits, open));
        }
    }
    views
}

impl PhaseView {
    fn of(visits: &VisitsRead, open: u64) -> PhaseView {
        PhaseView {
            count: visits.count,
            total_ns: visits.total_ns + open,
            max_ns: visits.max_ns,
            histogram: Histogram::of(&visits.bins),
        }
    }
}

/// A run's spans, through a read-only map.
pub struct Spans {
    memory: ReadOnly,
    facts: Facts,
}

impl Spans {
    /// Opens the queue of that name.
    ///
    /// # Errors
    /// [`HeaderError`] if there is none, or none that this build can read.
    pub fn open(name: &str) -> Result<Spans, HeaderError> {
        let memory = ReadOnly::open(name)?;
        let facts = header::read(&memory, name)?;
        Ok(Spans { memory, facts })
    }

    /// A track's spans from number `first` on, oldest first; the last thousand are kept. None at all if there is no
    /// such worker.
    pub fn of(&self, (role, rank): (Role, Rank), track: Track, first: u64) -> Vec<SpanView> {
        let code = self.facts.code(role, rank);
        code.map_or_else(Vec::new, |code| times(&self.memory, &self.facts, code, track).spans(first))
            .into_iter()
            .map(SpanView::of)
            .collect()
    }
}

impl SpanView {
    fn of(read: SpanRead) -> SpanView {
        let SpanRead { number, from_ns, to_ns, phase, about } = read;
        SpanView { number, from_ns, to_ns, phase: Phase::from_number(phase), about }
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use crate::queue::ring::layout::{Span, TrackRecord};

    #[test]
    fn what_a_gpu_does_now_is_not_known_yet() {
        let (track, spans): (TrackRecord, [Span; 0]) = (TrackRecord::default(), []);
        let (times, late) = (Times { track: &track, spans: &spans }, Track::Gpu.late_ns());
        let total = |now: u64, phase: Phase| {
            let seen = phases(times, true, known_until(Track::Gpu, now));
            seen.get(&phase).map_or(0, |view| view.total_ns)
        };
        times.start(Phase::Idle as u32, 0);
        times.enter(Phase::Backward as u32, 1_000);
        assert_eq!(total(1_000 + late - 1, Phase::Backward), 0);
        assert_eq!(total(1_000 + late + 500, Phase::Backward), 500);
        // Its end becomes known, and lies after all that was said.
        times.enter(Phase::Idle as u32, 1_600);
        assert_eq!(total(1_600 + late, Phase::Backward), 600);
        assert_eq!(known_until(Track::Main, 7), 7);
    }
}
