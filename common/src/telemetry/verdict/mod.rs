//! Who limits a run, in one sentence: from who waits for whom, and what the others spend their time on.
//!
//! Targets that wait for slots are too fast for the drafters; drafters that wait for batches are too fast for the
//! targets. Where both wait, neither is at fault: what lies between them is too small. The side that is waited for is
//! looked at for what makes it slow: its data, its want of cores, or its work itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::period::Period;
use crate::ids::Role;
use crate::queue::{Phase, Track};

/// From this share of its time on, a side's waiting counts.
const WAITS: f64 = 0.10;
/// Both sides' waiting counts as one trouble if the lesser is this share of the greater.
const BOTH: f64 = 0.35;
/// From this share of a target's work on, reading rows is what makes it slow.
const DATA: f64 = 0.40;
/// From this share of the time on, a process without a core is what makes its side slow.
const STARVED: f64 = 0.30;
/// From this share of the time on, a GPU that its host gives nothing to do is what makes its side slow.
const GPU_WAITS: f64 = 0.20;

/// What a target waits for the drafters in.
const FOR_SLOTS: [Phase; 2] = [Phase::WaitSlot, Phase::WaitShare];
/// What keeps a GPU without work and is not its host being slow to find it some; neither is waiting for the other side.
const ELSEWHERE: [Phase; 3] = [Phase::AllReduce, Phase::Checkpoint, Phase::Snapshot];

/// What a drafter waits for the targets in; its main thread waits for a second one that fetches batches.
const FOR_BATCHES: [Phase; 4] = [Phase::WaitGate, Phase::WaitOrder, Phase::WaitGroup, Phase::Await];

/// Who or what limits a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The drafters' work.
    Drafters,
    /// The targets' work.
    Targets,
    /// What the targets read.
    Data,
    /// The number of slots.
    Queue,
    /// The gate's threshold.
    MinReady,
    /// The processor: processes that could run do not, or GPUs wait for what it is to give them.
    Host,
    /// Nobody waits for anybody.
    Balanced,
}

/// Who limits the run, and what would help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Who or what.
    pub limit: Limit,
    /// All of it in words.
    pub sentence: String,
    /// Shares of time between 0 and 1, and numbers of batches, by name.
    pub figures: BTreeMap<String, f64>,
}

struct Figures<'a> {
    period: &'a Period,
    targets_wait: f64,
    drafters_wait: f64,
}

impl Verdict {
    /// The verdict on a period; none if nobody had a batch to care for.
    pub fn on(period: &Period) -> Option<Verdict> {
        if period.active_ns(Role::Drafter) == 0 || period.active_ns(Role::Target) == 0 {
            return None;
        }
        let figures = Figures {
            period,
            targets_wait: period.share(Role::Target, &FOR_SLOTS),
            drafters_wait: period.share(Role::Drafter, &FOR_BATCHES),
        };
        let limit = figures.limit();
        Some(Verdict { limit, sentence: figures.sentence(limit), figures: figures.named() })
    }
}

impl Figures<'_> {
    fn limit(&self) -> Limit {
        let Figures { targets_wait, drafters_wait, .. } = *self;
        let (less, more) = (targets_wait.min(drafters_wait), targets_wait.max(drafters_wait));
        let both = less >= WAITS && less >= more * BOTH;
        let slow: &[Role] = match () {
            () if both => return self.between(),
            () if more < WAITS => &[Role::Target, Role::Drafter],
            () if targets_wait > drafters_wait => &[Role::Drafter],
            () => &[Role::Target],
        };
        let slow_by = |share: &dyn Fn(Role) -> f64, limit| slow.iter().any(|role| share(*role) >= limit);
        match slow {
            _ if slow_by(&|role| self.starved(role), STARVED) => Limit::Host,
            [Role::Target] if self.data() >= DATA => Limit::Data,
            _ if slow_by(&|role| self.gpu_waits(role), GPU_WAITS) => Limit::Host,
            [Role::Drafter] => Limit::Drafters,
            [Role::Target] => Limit::Targets,
            _ => Limit::Balanced,
        }
    }

    /// What is too small between the two sides; cores, if it is for want of them that both stand still.
    fn between(&self) -> Limit {
        let Period { min_ready, capacity, .. } = *self.period;
        match () {
            () if min_ready > 1 && min_ready * 2 > u64::from(capacity) => Limit::MinReady,
            () if self.starved(Role::Target).max(self.starved(Role::Drafter)) >= STARVED => Limit::Host,
            () => Limit::Queue,
        }
    }

    fn starved(&self, role: Role) -> f64 {
        self.period.starved(role)
    }

    /// Share of their time in which a role's GPUs waited for their hosts, which waited for nobody.
    fn gpu_waits(&self, role: Role) -> f64 {
        let waits = if role == Role::Target { self.targets_wait } else { self.drafters_wait };
        let elsewhere = waits + self.period.share(role, &ELSEWHERE);
        self.period.gpu_idle(role).map_or(0.0, |idle| (idle - elsewhere).max(0.0))
    }

    /// Reading rows' share of the targets' work.
    fn data(&self) -> f64 {
        self.period.share(Role::Target, &[Phase::Data]) / (1.0 - self.targets_wait).max(1e-9)
    }

    fn sentence(&self, limit: Limit) -> String {
        let (capacity, min_ready) = (self.period.capacity, self.period.min_ready);
        let (who, help) = match limit {
            Limit::Drafters => (
                "the drafters limit the run".into(),
                "more drafters for each target or a smaller training.num_anchors would help".into(),
            ),
            Limit::Targets => (
                "the targets limit the run".into(),
                "more targets for each drafter or a larger data.batch_tokens would help".into(),
            ),
            Limit::Data => (
                format!("reading data limits the run: {} of the targets' work", percent(self.data())),
                "data.cache_dir on a faster disk, or more memory for its pages, would help".into(),
            ),
            Limit::Queue => {
                (format!("the queue of {capacity} slots limits the run"), "a larger queue.capacity would help".into())
            }
            Limit::MinReady => (
                format!("the gate limits the run: it wants {min_ready} of {capacity} batches ready"),
                "a smaller queue.min_ready or a larger queue.capacity would help".into(),
            ),
            Limit::Host => self.host_and_help(),
            Limit::Balanced => (
                "nobody limits the run: targets and drafters keep pace".into(),
                "only faster devices, or more of both, would help".into(),
            ),
        };
        format!("{who}; {}; {help}", self.waits())
    }

    /// Who the host keeps waiting: processes that want a core, or else GPUs that want work.
    fn host_and_help(&self) -> (String, String) {
        if self.starved(Role::Target).max(self.starved(Role::Drafter)) >= STARVED {
            let help = "more cores, fewer run.threads or less beside the run would help";
            return ("the host limits the run".into(), format!("{}: {help}", self.want_of_cores()));
        }
        let [targets, drafters] = [Role::Target, Role::Drafter].map(|role| self.gpu_waits(role));
        let (who, share) = if targets > drafters { ("targets", targets) } else { ("drafters", drafters) };
        (
            format!("the host limits the run: the {who}' GPUs wait for it {} of their time", percent(share)),
            "a larger data.batch_tokens or faster cores would help".into(),
        )
    }

    fn waits(&self) -> String {
        format!(
            "targets waited {} of their time for slots, drafters {} for batches{}, {:.1} of {} ready on average",
            percent(self.targets_wait),
            percent(self.drafters_wait),
            self.drafters_work(),
            self.period.ready,
            self.period.capacity
        )
    }

    /// What the drafters' time went into, or their GPUs'.
    fn drafters_work(&self) -> String {
        let busiest = |track| self.period.busiest(Role::Drafter, track);
        let words = |(phase, share): (Phase, f64)| format!("{} took {} of", phase.name(), percent(share));
        match (self.period.gpu_idle(Role::Drafter), busiest(Track::Gpu)) {
            (Some(idle), Some(most)) => {
                format!(", whose GPUs were busy {} ({} their time)", percent(1.0 - idle), words(most))
            }
            _ => busiest(Track::Main).map_or(String::new(), |most| format!(", {} theirs", words(most))),
        }
    }

    fn want_of_cores(&self) -> String {
        let [targets, drafters] = [Role::Target, Role::Drafter].map(|role| percent(self.starved(role)));
        format!("without a core targets stood ready {targets} of the time, drafters {drafters}")
    }

    fn named(&self) -> BTreeMap<String, f64> {
        let share = |role, phase| self.period.share(role, &[phase]);
        let gpus = [("targets_gpu_busy", Role::Target), ("drafters_gpu_busy", Role::Drafter)];
        let gpus = gpus.into_iter().filter_map(|(name, role)| Some((name, 1.0 - self.period.gpu_idle(role)?)));
        let figures = [
            ("targets_wait", self.targets_wait),
            ("drafters_wait", self.drafters_wait),
            ("targets_data", share(Role::Target, Phase::Data)),
            ("targets_forward", share(Role::Target, Phase::Forward)),
            ("targets_without_core", self.starved(Role::Target)),
            ("drafters_without_core", self.starved(Role::Drafter)),
            ("ready", self.period.ready),
            ("capacity", f64::from(self.period.capacity)),
            ("min_ready", self.period.min_ready as f64),
            ("seconds", self.period.seconds),
        ];
        figures.into_iter().chain(gpus).map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests;
