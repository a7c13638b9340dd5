//! A stretch of a run: samples added up, and shares of them.

use std::collections::BTreeMap;

use super::sample::{Sample, Stages};
use crate::ids::{Rank, Role};
use crate::queue::{Phase, Track};

/// Samples added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Period {
    /// How long it is.
    pub seconds: f64,
    /// READY batches, on average.
    pub ready: f64,
    /// Slots.
    pub capacity: u32,
    /// READY batches that open the gate.
    pub min_ready: u64,
    workers: BTreeMap<(Role, Rank), Times>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Times {
    stages: Stages,
    runnable_ns: u64,
}

/// Phases that say nothing about the pace of a run: before its first batch and after its last one.
const ASIDE: [Phase; 5] = [Phase::Starting, Phase::Loading, Phase::Ready, Phase::Finished, Phase::WaitDrafters];

impl Period {
    /// Adds a sample.
    pub fn add(&mut self, sample: &Sample) {
        let seconds = self.seconds + sample.elapsed_s;
        if seconds > 0.0 {
            self.ready = (self.ready * self.seconds + f64::from(sample.slots.ready) * sample.elapsed_s) / seconds;
        }
        self.seconds = seconds;
        self.capacity = sample.slots.total();
        self.min_ready = sample.gate.min_ready;
        for worker in &sample.workers {
            let times = self.workers.entry((worker.role, worker.rank)).or_default();
            times.runnable_ns += worker.runnable_ns;
            for (track, phases) in &worker.stages {
                let sums = times.stages.entry(*track).or_default();
                for (phase, spent) in phases {
                    let sum = sums.entry(*phase).or_default();
                    sum.count += spent.count;
                    sum.ns += spent.ns;
                }
            }
        }
    }

    /// What one worker spent.
    pub fn stages(&self, worker: (Role, Rank)) -> Option<&Stages> {
        self.workers.get(&worker).map(|times| &times.stages)
    }

    /// Nanoseconds that the workers of a role spent in these phases, on that track.
    pub fn ns(&self, role: Role, track: Track, phases: &[Phase]) -> u64 {
        let of_role = self.workers.iter().filter(|((found, _), _)| *found == role);
        let of_track = of_role.filter_map(|(_, times)| times.stages.get(&track));
        of_track.flat_map(|spent| phases.iter().filter_map(|phase| spent.get(phase))).map(|spent| spent.ns).sum()
    }

    /// Nanoseconds in which the main threads of a role had batches to care for.
    pub fn active_ns(&self, role: Role) -> u64 {
        self.active_ns_of(role, Track::Main)
    }

    fn active_ns_of(&self, role: Role, track: Track) -> u64 {
        let cared = Phase::ALL.iter().copied().filter(|phase| !ASIDE.contains(phase)).collect::<Vec<_>>();
        self.ns(role, track, &cared)
    }

    /// Share of that time that they spent in these phases.
    pub fn share(&self, role: Role, phases: &[Phase]) -> f64 {
        self.share_of(role, Track::Main, phases)
    }

    fn share_of(&self, role: Role, track: Track, phases: &[Phase]) -> f64 {
        self.ns(role, track, phases) as f64 / (self.active_ns_of(role, track) as f64).max(1.0)
    }

    /// Share of their time in which the GPUs of a role had nothing to do; none without a GPU.
    pub fn gpu_idle(&self, role: Role) -> Option<f64> {
        (self.active_ns_of(role, Track::Gpu) > 0).then(|| self.share_of(role, Track::Gpu, &[Phase::Idle]))
    }

    /// Share of the whole period in which the main threads of a role could have run, but had no core.
    pub fn starved(&self, role: Role) -> f64 {
        let of_role = || self.workers.iter().filter(|((found, _), _)| *found == role);
        let runnable: u64 = of_role().map(|(_, times)| times.runnable_ns).sum();
        runnable as f64 / 1e9 / (self.seconds * of_role().count() as f64).max(1e-9)
    }

    /// The phase of work, no wait, that takes most of a role's time on that track, with its share.
    pub fn busiest(&self, role: Role, track: Track) -> Option<(Phase, f64)> {
        let work = Phase::ALL.iter().filter(|phase| !phase.is_wait() && !ASIDE.contains(phase));
        let shares = work.map(|phase| (*phase, self.share_of(role, track, &[*phase])));
        shares.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, share)| *share > 0.0)
    }
}

impl Sample {
    /// Whether every worker was at its work all the time: what it says of the run's pace is not of its start or end.
    pub fn is_steady(&self) -> bool {
        let aside = |stages: &Stages| {
            let main = stages.get(&Track::Main);
            main.is_some_and(|phases| phases.iter().any(|(phase, spent)| ASIDE.contains(phase) && spent.ns > 0))
        };
        !self.workers.is_empty() && self.workers.iter().all(|worker| worker.alive && !aside(&worker.stages))
    }
}
