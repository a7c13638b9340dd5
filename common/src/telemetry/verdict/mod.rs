//! Who limits a run, in one sentence: from who waits for whom, and what the others spend their time on.
//!
//! Targets that wait for slots are too fast for the drafters; drafters that wait for batches are too fast for the
//! targets. Where both wait, neither is at fault: what lies between them is too small. The side that is waited for is
//! looked at for what makes it slow: its data, its want of cores, or its work itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::period::Period;
use crate::ids::Role;
use crate::queue::Phase;

/// From this share of its time on, a side's waiting counts.
const WAITS: f64 = 0.10;
/// Both sides' waiting counts as one trouble if the lesser is this share of the greater.
const BOTH: f64 = 0.35;
/// From this share of a target's work on, reading rows is what makes it slow.
const DATA: f64 = 0.40;
/// From this share of the time on, a process without a core is what makes its side slow.
const STARVED: f64 = 0.30;

/// What a target waits for the drafters in.
const FOR_SLOTS: [Phase; 2] = [Phase::WaitSlot, Phase::WaitShare];
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
    /// Cores: processes that could run do not.
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
        if slow.iter().any(|role| self.starved(*role) >= STARVED) {
            return Limit::Host;
        }
        match slow {
            [Role::Drafter] => Limit::Drafters,
            [Role::Target] if self.data() >= DATA => Limit::Data,
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
            Limit::Host => (
                "the host limits the run".into(),
                format!("{}: more cores, fewer run.threads or less beside the run would help", self.want_of_cores()),
            ),
            Limit::Balanced => (
                "nobody limits the run: targets and drafters keep pace".into(),
                "only faster devices, or more of both, would help".into(),
            ),
        };
        format!("{who}; {}; {help}", self.waits())
    }

    fn waits(&self) -> String {
        let busiest = match self.period.busiest(Role::Drafter) {
            Some((phase, share)) => format!(", {} took {} of theirs", phase.name(), percent(share)),
            None => String::new(),
        };
        format!(
            "targets waited {} of their time for slots, drafters {} for batches{busiest}, {:.1} of {} ready on average",
            percent(self.targets_wait),
            percent(self.drafters_wait),
            self.period.ready,
            self.period.capacity
        )
    }

    fn want_of_cores(&self) -> String {
        let [targets, drafters] = [Role::Target, Role::Drafter].map(|role| percent(self.starved(role)));
        format!("without a core targets stood ready {targets} of the time, drafters {drafters}")
    }

    fn named(&self) -> BTreeMap<String, f64> {
        let share = |role, phase| self.period.share(role, &[phase]);
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
        figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests;
