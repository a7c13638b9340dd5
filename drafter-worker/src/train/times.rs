//! Where a drafter's time went since its last line in metrics.jsonl, and what the queue held for it.

use std::collections::BTreeMap;

use common::queue::{Consumer, Phase, Profile, Track};
use serde::Serialize;

/// Of the steps since the last line.
#[derive(Serialize)]
pub(crate) struct Spent {
    /// READY batches at this moment.
    queue_ready: u64,
    /// Share of the main thread's time that it waited for batches.
    wait_share: f64,
    /// Milliseconds of the main thread in each phase, a step.
    stage_ms: BTreeMap<Phase, f64>,
    /// The same of the GPU, as far as it has come.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    gpu_ms: BTreeMap<Phase, f64>,
}

/// What was spent until the last line.
#[derive(Default)]
pub(crate) struct Times {
    main: Totals,
    gpu: Totals,
    steps: u64,
}

/// Nanoseconds of a track by phase.
#[derive(Default)]
struct Totals(BTreeMap<Phase, u64>);

impl Times {
    /// One more step is done.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
    }

    /// Since the last call.
    pub(crate) fn spent(&mut self, consumer: &Consumer) -> Spent {
        let steps = std::mem::take(&mut self.steps).max(1);
        let profile = consumer.profile();
        let a_step = |spent: BTreeMap<Phase, u64>| {
            spent.into_iter().map(|(phase, ns)| (phase, ns as f64 / 1e6 / steps as f64)).collect()
        };
        let spent = self.main.since(&profile, Track::Main);
        let all: u64 = spent.values().sum();
        let waited: u64 = spent.iter().filter(|(phase, _)| phase.is_wait()).map(|(_, ns)| ns).sum();
        Spent {
            queue_ready: consumer.ready(),
            wait_share: waited as f64 / (all as f64).max(1.0),
            stage_ms: a_step(spent),
            gpu_ms: a_step(self.gpu.since(&profile, Track::Gpu)),
        }
    }
}

impl Totals {
    /// What was spent in each phase since the last call.
    fn since(&mut self, profile: &Profile, track: Track) -> BTreeMap<Phase, u64> {
        let phases = profile.get(&track).into_iter().flatten();
        let now: BTreeMap<Phase, u64> = phases.map(|(phase, view)| (*phase, view.total_ns)).collect();
        let since = |(phase, ns): (&Phase, &u64)| (*phase, ns.saturating_sub(self.0.get(phase).copied().unwrap_or(0)));
        let spent = now.iter().map(since).filter(|(_, ns)| *ns > 0).collect();
        self.0 = now;
        spent
    }
}

#[cfg(test)]
mod tests {
    use common::queue::PhaseView;

    use super::*;

    fn profile(track: Track, parts: &[(Phase, u64)]) -> Profile {
        let view = |&(phase, total_ns): &(Phase, u64)| (phase, PhaseView { total_ns, ..PhaseView::default() });
        [(track, parts.iter().map(view).collect())].into()
    }

    #[test]
    fn totals_are_told_once_and_a_track_that_is_not_there_has_none() {
        let mut totals = Totals::default();
        let first = profile(Track::Gpu, &[(Phase::Draft, 5), (Phase::Idle, 2)]);
        assert_eq!(totals.since(&first, Track::Gpu), [(Phase::Draft, 5), (Phase::Idle, 2)].into());
        let second = profile(Track::Gpu, &[(Phase::Draft, 9), (Phase::Idle, 2)]);
        assert_eq!(totals.since(&second, Track::Gpu), [(Phase::Draft, 4)].into());
        assert_eq!(totals.since(&second, Track::Main), [].into());
    }
}
