//! Which rows go into which batch: a pure function of the rows' lengths, the seed and the epoch, so that every process
//! can compute it.
//!
//! In each epoch the rows are shuffled and then, in that order, put into the batches of their length bucket: into the
//! first open one with room, else into a new one. Rows are never split or padded; each comes exactly once an epoch. The
//! order of the batches is shuffled again, so that buckets and fill are mixed over the epoch.

use common::config::Config;
use common::ids::BatchId;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha12Rng;
use rayon::prelude::*;

use crate::store::TokenStore;

/// Open batches of a bucket. More fill better; beyond this the gain is below a thousandth.
const OPEN_BATCHES: usize = 32;

/// What a plan depends on besides the rows' lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Seeds the order.
    pub seed: u64,
    /// Passes over the rows.
    pub epochs: u32,
    /// Tokens of a batch at most; no row is longer.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    batches: Vec<PlannedBatch>,
    batches_per_epoch: Vec<u64>,
    max_documents: u32,
}

impl BatchPlan {
    /// Plans the store's rows.
    #[must_use]
    pub fn new(store: &TokenStore, options: &PlanOptions) -> BatchPlan {
        let lengths: Vec<u32> = (0..store.len()).map(|row| store.row_len(row) as u32).collect();
        BatchPlan::of_lengths(&lengths, options)
    }

    /// Plans rows of these lengths, none of them above `batch_tokens`.
    #[must_use]
    pub fn of_lengths(lengths: &[u32], options: &PlanOptions) -> BatchPlan {
        let limit = options.max_batches.unwrap_or(u64::MAX);
        let (mut batches, mut batches_per_epoch) = (Vec::new(), Vec::new());
        let planned = (0..options.epochs).into_par_iter().map(|epoch| plan_epoch(lengths, options, epoch));
        for mut planned in planned.collect::<Vec<_>>() {
            let room = limit - batches.len() as u64;
            if room == 0 {
                break;
            }
            planned.truncate(usize::try_from(room).unwrap_or(usize::MAX));
            batches_per_epoch.push(planned.len() as u64);
            batches.append(&mut planned);
        }
        let max_documents = batches.iter().map(|batch| batch.rows.len() as u32).max().unwrap_or(0);
        BatchPlan { batches, batches_per_epoch, max_documents }
    }

    /// Batches over all epochs.
    #[must_use]
    pub fn total_batches(&self) -> u64 {
        self.batches.len() as u64
    }

    /// Batches of each epoch, in order. A limit may cut the last one short and leave later ones out.
    #[must_use]
    pub fn batches_per_epoch(&self) -> &[u64] {
        &self.batches_per_epoch
    }

    /// Batch `id`; `None` from `total_batches` on.
    #[must_use]
    pub fn batch(&self, id: BatchId) -> Option<&PlannedBatch> {
        self.batches.get(usize::try_from(id.0).ok()?)
    }

    /// Rows of the fullest batch.
    #[must_use]
    pub fn max_documents(&self) -> u32 {
        self.max_documents
    }
}

fn plan_epoch(lengths: &[u32], options: &PlanOptions, epoch: u32) -> Vec<PlannedBatch> {
    let mut random = random(options.seed, epoch);
    let mut order: Vec<u32> = (0..lengths.len() as u32).collect();
    order.shuffle(&mut random);
    let bounds = options.bounds();
    let mut packers: Vec<Packer> = (0..bounds.len()).map(|bucket| Packer::new(bucket as u32, epoch, options)).collect();
    for row in order {
        let length = lengths[row as usize];
        let bucket = bounds.partition_point(|&bound| bound < length);
        packers[bucket].add(row, length);
    }
    let mut batches: Vec<_> = packers.into_iter().flat_map(Packer::finish).collect();
    batches.shuffle(&mut random);
    batches
}

/// Its own stream of numbers for every seed and epoch.
fn random(seed: u64, epoch: u32) -> ChaCha12Rng {
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    random.set_stream(epoch.into());
    random
}

/// Packs the rows of one bucket.
struct Packer {
    bucket: u32,
    epoch: u32,
    batch_tokens: u32,
    /// Rows of the open batches, oldest first.
    open: Vec<Vec<u32>>,
    /// Their free tokens; apart from the rows, as they are searched for every row.
    free: Vec<u32>,
    full: Vec<Vec<u32>>,
}

impl Packer {
    fn new(bucket: u32, epoch: u32, options: &PlanOptions) -> Packer {
        Packer {
            bucket,
            epoch,
            batch_tokens: options.batch_tokens,
            open: Vec::new(),
            free: Vec::new(),
            full: Vec::new(),
        }
    }

    fn add(&mut self, row: u32, length: u32) {
        if let Some(index) = self.free.iter().position(|&free| free >= length) {
            self.free[index] -= length;
            self.open[index].push(row);
            return;
        }
        if self.open.len() == OPEN_BATCHES {
            let fullest = (0..OPEN_BATCHES).min_by_key(|&index| self.free[index]).expect("there are open batches");
            self.free.remove(fullest);
            self.full.push(self.open.remove(fullest));
        }
        self.free.push(self.batch_tokens.checked_sub(length).expect("no row is longer than a batch"));
        self.open.push(vec![row]);
    }

    fn finish(self) -> impl Iterator<Item = PlannedBatch> {
        let (bucket, epoch) = (self.bucket, self.epoch);
        let batches = self.full.into_iter().chain(self.open);
        batches.map(move |rows| PlannedBatch { bucket, epoch, rows })
    }
}
