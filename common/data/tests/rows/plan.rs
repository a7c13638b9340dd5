//! The batch plan's promises over any rows, seeds and limits.

use common::ids::BatchId;
use data::plan::{BatchPlan, PlanOptions, PlannedBatch};
use proptest::prelude::*;

fn options() -> PlanOptions {
    PlanOptions {
        seed: 7,
        epochs: 3,
        batch_tokens: 64,
        bucket_bounds: vec![8, 20, 40],
        max_length: 40,
        max_batches: None,
    }
}

fn batches(plan: &BatchPlan) -> Vec<PlannedBatch> {
    (0..plan.total_batches()).map(|id| plan.batch(BatchId(id)).unwrap().clone()).collect()
}

proptest! {
    #[test]
    fn every_row_exactly_once_an_epoch(
        lengths in prop::collection::vec(2u32..=40, 0..300),
        seed in any::<u64>(),
        epochs in 1u32..4,
        batch_tokens in 40u32..200,
        bounds in prop::sample::subsequence(vec![3u32, 8, 9, 20, 33, 40, 100], 0..4),
    ) {
        let options = PlanOptions { seed, epochs, batch_tokens, bucket_bounds: bounds, ..options() };
        let plan = BatchPlan::of_lengths(&lengths, &options);
        let bounds = options.bounds();
        let mut seen = vec![vec![0u32; lengths.len()]; epochs as usize];
        for batch in batches(&plan) {
            prop_assert!(!batch.rows.is_empty() && batch.rows.len() <= plan.max_documents() as usize);
            let tokens: u32 = batch.rows.iter().map(|&row| lengths[row as usize]).sum();
            prop_assert!(tokens <= batch_tokens);
            for &row in &batch.rows {
                seen[batch.epoch as usize][row as usize] += 1;
                let length = lengths[row as usize];
                let bucket = batch.bucket as usize;
                prop_assert!(length <= bounds[bucket] && (bucket == 0 || length > bounds[bucket - 1]));
            }
        }
        prop_assert!(seen.iter().flatten().all(|&count| count == 1));
        let per_epoch = plan.batches_per_epoch();
        prop_assert_eq!(per_epoch.iter().sum::<u64>(), plan.total_batches());
        let epochs_in_order: Vec<u32> = batches(&plan).iter().map(|batch| batch.epoch).collect();
        prop_assert!(epochs_in_order.is_sorted());
        prop_assert_eq!(plan.batch(BatchId(plan.total_batches())), None);
        prop_assert_eq!(&plan, &BatchPlan::of_lengths(&lengths, &options));
    }

    #[test]
    fn a_limit_takes_the_first_batches(max_batches in 0u64..60) {
        let lengths: Vec<u32> = (0..100).map(|row| 2 + row % 39).collect();
        let whole = BatchPlan::of_lengths(&lengths, &options());
        let cut = BatchPlan::of_lengths(&lengths, &PlanOptions { max_batches: Some(max_batches), ..options() });
        prop_assert_eq!(cut.total_batches(), max_batches.min(whole.total_batches()));
        prop_assert_eq!(cut.batches_per_epoch().iter().sum::<u64>(), cut.total_batches());
        prop_assert_eq!(&batches(&whole)[..cut.total_batches() as usize], &batches(&cut)[..]);
    }
}

#[test]
fn epochs_and_seeds_differ_and_repeat() {
    let lengths: Vec<u32> = (0..200).map(|row| 2 + row % 39).collect();
    let plan = BatchPlan::of_lengths(&lengths, &options());
    let rows = |epoch: u32| -> Vec<u32> {
        batches(&plan).into_iter().filter(|batch| batch.epoch == epoch).flat_map(|batch| batch.rows).collect()
    };
    assert_ne!(rows(0), rows(1));
    assert_ne!(rows(1), rows(2));
    let other = BatchPlan::of_lengths(&lengths, &PlanOptions { seed: 8, ..options() });
    assert_ne!(batches(&plan), batches(&other));
    let buckets: Vec<u32> = batches(&plan).iter().map(|batch| batch.bucket).take(20).collect();
    assert!(!buckets.is_sorted(), "buckets come mixed: {buckets:?}");
}

#[test]
fn batches_are_well_filled() {
    let lengths: Vec<u32> = (0..5000).map(|row| 100 + (row * 7919) % 2972).collect();
    let options = PlanOptions { batch_tokens: 12_288, bucket_bounds: vec![], max_length: 3072, epochs: 1, ..options() };
    let plan = BatchPlan::of_lengths(&lengths, &options);
    let tokens: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
    let fill = tokens as f64 / (plan.total_batches() * 12_288) as f64;
    assert!(fill > 0.97, "{fill}");
}
