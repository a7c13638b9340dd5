//! One step's batches out of the queue: popped, copied to this process, released at once.

use common::config::{Config, PopPolicy};
use common::ids::{BatchId, Rank, Role, Step};
use common::queue::{Consumer, LeaseError, Phase, ReadLease, Rows, RowsError};
use common::run_plan::RunPlan;
use common::wait::{Patience, WaitError};
use model::arena::HostArena;
use tch::{Device, Tensor};

/// A batch in this process's own memory.
pub(crate) struct Batch {
    pub(crate) id: BatchId,
    pub(crate) rows: Rows,
    /// [T, K*H] hidden states of the tapped layers.
    pub(crate) taps: Tensor,
}

/// Why a step's batches did not come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("waiting for a batch: {0}")]
    Wait(#[source] WaitError),
    #[error("batch {0} is damaged in its slot: {1}")]
    Rows(BatchId, #[source] RowsError),
    #[error("releasing a slot: {0}")]
    Lease(#[from] LeaseError),
}

/// What a drafter takes of each step.
pub(crate) struct Share {
    rank: u64,
    ranks: u64,
    batches_per_step: u64,
    total_batches: u64,
    policy: PopPolicy,
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

    /// How many batches of a full step fall to this rank.
    fn count(&self) -> u64 {
        self.batches_per_step / self.ranks + u64::from(self.rank < self.batches_per_step % self.ranks)
    }

    /// The ids of this rank in a step under `strict`: every `ranks`-th of the step's run of ids.
    fn ids(&self, step: Step) -> impl Iterator<Item = BatchId> + use<> {
        let (first, rank, ranks, total) =
            ((step.0 - 1) * self.batches_per_step, self.rank, self.ranks, self.total_batches);
        (0..self.count()).map(move |k| first + rank + k * ranks).filter(move |&id| id < total).map(BatchId)
    }
}

pub(crate) struct Receiver {
    pub(crate) consumer: Consumer,
    pub(crate) arena: HostArena,
    pub(crate) device: Device,
    pub(crate) share: Share,
}

impl Receiver {
    /// This rank's batches of `step`; fewer, or none, at the end of the stream.
    ///
    /// # Errors
    /// [`ReceiveError`]; what was taken before stays held by this drafter.
    pub(crate) fn receive(&self, step: Step, patience: &Patience) -> Result<Vec<Batch>, ReceiveError> {
        let pop = |lease: Result<Option<ReadLease>, WaitError>| lease.map_err(ReceiveError::Wait);
        let mut batches = Vec::new();
        match self.share.policy {
            PopPolicy::Strict => {
                for id in self.share.ids(step) {
                    let lease = pop(self.consumer.pop_batch(id, patience))?;
                    batches.extend(lease.map(|lease| self.copy(lease)).transpose()?);
                }
            }
            PopPolicy::Mixed => {
                for _ in 0..self.share.count() {
                    let Some(lease) = pop(self.consumer.pop(patience))? else { break };
                    batches.push(self.copy(lease)?);
                }
            }
        }
        Ok(batches)
    }

    fn copy(&self, lease: ReadLease) -> Result<Batch, ReceiveError> {
        self.consumer.phase(Phase::Copy);
        let id = lease.batch_id();
        let rows = lease.rows().map_err(|error| ReceiveError::Rows(id, error))?;
        let taps = self.arena.read(lease.slot(), rows.token_ids.len(), self.device);
        lease.release()?;
        Ok(Batch { id, rows, taps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(rank: u64, ranks: u64, batches_per_step: u64, total_batches: u64) -> Share {
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
}
