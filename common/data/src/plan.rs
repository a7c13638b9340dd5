//! Which rows go into which batch.
use common::config::Config;
use common::ids::BatchId;

use crate::store::TokenStore;

/// What a plan depends on besides the rows' lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Seeds the order.
    pub seed: u64,
    /// Passes over the rows.
    pub epochs: u32,
    /// Tokens of a batch at most.
    pub batch_tokens: u32,
    /// Upper row lengths of the buckets, ascending; the last is raised to `max_length`. Empty: one bucket.
    pub bucket_bounds: Vec<u32>,
    /// Longest row.
    pub max_length: u32,
    /// Ends the plan after this many batches.
    pub max_batches: Option<u64>,
}

impl PlanOptions {
    /// The options of a run: `max_steps` steps of `batches_per_step` batches limit the plan.
    #[must_use]
    pub fn of(config: &Config) -> PlanOptions {
        let (data, training) = (&config.data, &config.training);
        PlanOptions {
            seed: training.seed,
            epochs: training.num_epochs,
            batch_tokens: data.batch_tokens,
            bucket_bounds: data.bucket_bounds.clone(),
            max_length: data.max_length,
            max_batches: training.max_steps.map(|steps| steps.saturating_mul(training.batches_per_step.into())),
        }
    }

    /// The buckets' upper row lengths as used: at least one, the last at least `max_length`.
    #[must_use]
    pub fn bounds(&self) -> Vec<u32> {
        let mut bounds = self.bucket_bounds.clone();
        match bounds.last_mut() {
            Some(last) => *last = (*last).max(self.max_length),
            None => bounds.push(self.max_length),
        }
        bounds
    }
}

/// One packed batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBatch {
    /// Index into [`PlanOptions::bounds`].
    pub bucket: u32,
    /// The pass it belongs to, from 0.
    pub epoch: u32,
    /// Row numbers of the store, in packing order.
    pub rows: Vec<u32>,
}

/// All batches of a run, epochs one after the other.
pub struct BatchPlan {}

impl BatchPlan {
    /// Plans the store's rows.
    #[must_use]
    pub fn new(store: &TokenStore, options: &PlanOptions) -> BatchPlan {
        unimplemented!("{} {options:?}", store.len())
    }

    /// Batches over all epochs.
    #[must_use]
    pub fn total_batches(&self) -> u64 {
        unimplemented!()
    }

    /// Batches of each epoch, in order.
    #[must_use]
    pub fn batches_per_epoch(&self) -> Vec<u64> {
        unimplemented!()
    }

    /// Batch `id`; `None` from `total_batches` on.
    #[must_use]
    pub fn batch(&self, id: BatchId) -> Option<PlannedBatch> {
        unimplemented!("{id}")
    }

    /// Rows of the fullest batch.
    #[must_use]
    pub fn max_documents(&self) -> u32 {
        unimplemented!()
    }
}
