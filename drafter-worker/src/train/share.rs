//! What a drafter takes of each step.

use common::config::{Config, PopPolicy};
use common::ids::{BatchId, Rank, Role, Step};
use common::run_plan::RunPlan;

/// What a drafter takes of each step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    rank: u64,
    ranks: u64,
    batches_per_step: u64,
    total_batches: u64,
    policy: PopPolicy,
}

/// One batch to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// Exactly this one, under `strict`.
    This(BatchId),
    /// Whatever the queue's policy chooses.
    Any,
}

impl Share {
    pub(crate) fn new(config: &Config, plan: &RunPlan, rank: Rank) -> Share {
        Share {
            rank: u64::from(rank.0),
            ranks: u64::from(config.run.workers(Role::Drafter)),
            batches_per_step: u64::from(config.training.batches_per_step),
            total_batches: plan.total_batches,
            policy: config.queue.policy,
        }
    }

    /// What this rank takes for `step`. Under `mixed` only the number is laid down: a rank that took more because it is
    /// ahead would leave others without, and the run with more steps than were planned.
    pub(super) fn wants(self, step: Step) -> impl Iterator<Item = Want> {
        self.ids(step).map(move |id| match self.policy {
            PopPolicy::Strict => Want::This(id),
            PopPolicy::Mixed => Want::Any,
        })
    }

    /// Whether no rank takes anything of `step`, nor of any after it.
    pub(super) fn is_over(self, step: Step) -> bool {
        (step.0 - 1) * self.batches_per_step >= self.total_batches
    }

    /// How many batches of a full step fall to this rank.
    fn count(self) -> u64 {
        self.batches_per_step / self.ranks + u64::from(self.rank < self.batches_per_step % self.ranks)
    }

    /// The ids of this rank in a step under `strict`: every `ranks`-th of the step's run of ids.
    fn ids(self, step: Step) -> impl Iterator<Item = BatchId> {
        let first = (step.0 - 1) * self.batches_per_step + self.rank;
        let ids = (0..self.count()).map(move |k| first + k * self.ranks);
        ids.filter(move |id| *id < self.total_batches).map(BatchId)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn share(rank: u64, ranks: u64, batches_per_step: u64, total_batches: u64) -> Share {
        Share { rank, ranks, batches_per_step, total_batches, policy: PopPolicy::Strict }
    }

    #[test]
    fn the_ranks_shares_cover_each_step_once() {
        for (ranks, per_step, total) in [(1, 1, 5), (2, 2, 7), (3, 4, 10), (4, 2, 9)] {
            for step in 1..=u64::div_ceil(total, per_step) {
                let mut ids: Vec<u64> = (0..ranks)
                    .flat_map(|rank| share(rank, ranks, per_step, total).ids(Step(step)))
                    .map(|id| id.0)
                    .collect();
                ids.sort_unstable();
                let first = (step - 1) * per_step;
                assert_eq!(ids, (first..(first + per_step).min(total)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn under_mixed_only_the_number_is_laid_down() {
        let strict = share(1, 2, 3, 8);
        let mixed = Share { policy: PopPolicy::Mixed, ..strict };
        assert_eq!(strict.wants(Step(2)).collect::<Vec<_>>(), [Want::This(BatchId(4))]);
        assert_eq!(mixed.wants(Step(2)).collect::<Vec<_>>(), [Want::Any]);
        assert_eq!(mixed.wants(Step(3)).count(), 1);
    }
}
