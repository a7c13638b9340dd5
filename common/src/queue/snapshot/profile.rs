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
    /// Time in it, the present visit's until now included unless it is a GPU's, in nanoseconds.
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
        .map(|(track, times)| (track, phases(times, alive && !track.is_of_gpu(), now)))
        .collect()
}

/// A GPU's present phase is known late: it goes on for as long as its track says, and no longer.
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

    /// Whether a track goes on: somebody started it, and has not ended it.
    pub fn goes_on(&self, (role, rank): (Role, Rank), track: Track) -> bool {
        let code = self.facts.code(role, rank);
        code.is_some_and(|code| times(&self.memory, &self.facts, code, track).present().phase().is_some())
    }
}

impl SpanView {
    fn of(read: SpanRead) -> SpanView {
        let SpanRead { number, from_ns, to_ns, phase, about } = read;
        SpanView { number, from_ns, to_ns, phase: Phase::from_number(phase), about }
    }
}
