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
}

/// What was spent until the last line.
#[derive(Default)]
pub(crate) struct Times {
    before: BTreeMap<Phase, u64>,
    steps: u64,
}

impl Times {
    /// One more step is done.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
    }

    /// Since the last call.
    pub(crate) fn spent(&mut self, consumer: &Consumer) -> Spent {
        let steps = std::mem::take(&mut self.steps).max(1);
        let now = nanoseconds(&consumer.profile());
        let before = std::mem::replace(&mut self.before, now.clone());
        let since = |(phase, ns): (&Phase, &u64)| (*phase, ns - before.get(phase).copied().unwrap_or(0).min(*ns));
        let spent: BTreeMap<Phase, u64> = now.iter().map(since).filter(|(_, ns)| *ns > 0).collect();
        let all: u64 = spent.values().sum();
        let waited: u64 = spent.iter().filter(|(phase, _)| phase.is_wait()).map(|(_, ns)| ns).sum();
        Spent {
            queue_ready: consumer.ready(),
            wait_share: waited as f64 / (all as f64).max(1.0),
            stage_ms: spent.into_iter().map(|(phase, ns)| (phase, ns as f64 / 1e6 / steps as f64)).collect(),
        }
    }
}

fn nanoseconds(profile: &Profile) -> BTreeMap<Phase, u64> {
    let main = profile.get(&Track::Main).into_iter().flatten();
    main.map(|(phase, view)| (*phase, view.total_ns)).collect()
}
