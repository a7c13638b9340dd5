//! Packing is only a layout: loss and gradient of a packed batch are those of its documents one by one, and no label
//! belongs to another document than its anchor.

#[expect(dead_code, reason = "each test takes what it needs of it")]
mod tiny;

use common::config::LayerType;
use model::drafter::{AnchorDraw, BlockTotals, Drafter, Weighting, anchors, loss};
use proptest::prelude::*;
use tch::Tensor;
use tiny::{Batch, HIDDEN, KINDS, VOCABULARY, config, difference, drafter, given, random};

const BLOCK: usize = 8;

/// Loss sums and gradient of one step over `batch`.
fn step(drafter: &mut Drafter, batch: &Batch, blocks: &[usize]) -> (BlockTotals, Tensor) {
    let plan = batch.plan(drafter, blocks);
    let hidden = batch.hidden_of(drafter, &plan);
    let parts = loss::block_loss(&hidden, &random(&[VOCABULARY, HIDDEN], 200), &plan, Weighting::Decay { gamma: 4.0 });
    drafter.parameters_mut().zero_gradient();
    drafter.parameters_mut().backward(&hidden, &parts.d_hidden);
    (parts.totals(), drafter.parameters().gradient().copy())
}

/// Document `index` of a packed batch as a batch of its own, under the same row id.
fn alone(batch: &Batch, index: usize) -> Batch {
    let document = batch.rows().document(index);
    let (start, length) = (document.start as i64, document.len() as i64);
    Batch {
        token_ids: batch.token_ids[document.clone()].to_vec(),
        loss_mask: batch.loss_mask[document].to_vec(),
        document_offsets: vec![0, length as u32],
        row_ids: vec![batch.row_ids[index]],
        taps: batch.taps.narrow(0, start, length),
        embedding: batch.embedding.shallow_clone(),
    }
}

fn compare(lengths: &[usize], kinds: [LayerType; 2], num_anchors: usize, unsupervised: &[usize]) {
    let mut batch = Batch::new(lengths, 11);
    unsupervised.iter().for_each(|&token| batch.loss_mask[token % lengths.iter().sum::<usize>()] = 0);
    let mut drafter = drafter(&config(kinds, BLOCK), 5);
    let draw = AnchorDraw { num_anchors, seed: 9, epoch: 1 };
    let blocks = anchors::draw(&batch.rows(), &draw);
    if blocks.is_empty() {
        return;
    }
    let (packed, packed_gradient) = step(&mut drafter, &batch, &blocks);
    let (mut numerator, mut denominator, mut count, mut gradient) = (0.0, 0.0, 0, Tensor::zeros_like(&packed_gradient));
    for index in 0..lengths.len() {
        let document = alone(&batch, index);
        let blocks = anchors::draw(&document.rows(), &draw);
        if blocks.is_empty() {
            continue;
        }
        let (totals, part) = step(&mut drafter, &document, &blocks);
        numerator += totals.numerator;
        denominator += totals.denominator;
        count += blocks.len();
        gradient += part;
    }
    assert_eq!(count, blocks.len());
    assert!((packed.numerator - numerator).abs() < 1e-5 * numerator, "{} {numerator}", packed.numerator);
    assert!((packed.denominator - denominator).abs() < 1e-6 * denominator);
    assert!(difference(&packed_gradient, &gradient) < 1e-4, "{}", difference(&packed_gradient, &gradient));
}

#[test]
fn documents_of_20_20_and_400_tokens_train_packed_as_they_do_alone() {
    for kinds in KINDS {
        compare(&[20, 20, 400], kinds, 16, &[]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn packed_loss_and_gradient_are_the_documents_sums(
        lengths in prop::collection::vec(2..30_usize, 1..5),
        kinds in 0..KINDS.len(),
        num_anchors in 1..20_usize,
        unsupervised in prop::collection::vec(any::<u16>().prop_map(usize::from), 0..12),
    ) {
        compare(&lengths, KINDS[kinds], num_anchors, &unsupervised);
    }

    #[test]
    fn no_label_that_counts_lies_in_another_document(
        lengths in prop::collection::vec(2..12_usize, 1..6),
        num_anchors in 1..12_usize,
        seed in any::<u64>(),
    ) {
        let batch = Batch::new(&lengths, seed % 1000);
        let rows = batch.rows();
        let blocks = anchors::draw(&rows, &AnchorDraw { num_anchors, seed, epoch: 0 });
        let plan = batch.plan(&drafter(&config(KINDS[0], BLOCK), 1), &blocks);
        let supervised = Vec::<f32>::try_from(given(&plan.supervised, &plan).flatten(0, -1)).unwrap();
        let labels = Vec::<i64>::try_from(given(&plan.labels, &plan).flatten(0, -1)).unwrap();
        prop_assert_eq!(plan.scored.size()[0], supervised.iter().sum::<f32>() as i64);
        for (index, anchor) in blocks.iter().enumerate() {
            let end = rows.document(rows.document_of(*anchor)).end;
            for slot in 0..BLOCK {
                let counts = slot > 0 && anchor + slot < end;
                prop_assert_eq!(supervised[index * BLOCK + slot] == 1.0, counts);
                prop_assert!(!counts || labels[index * BLOCK + slot] == i64::from(batch.token_ids[anchor + slot]));
            }
        }
    }
}
