//! What a drafter's outputs may and may not depend on: spec 7.9 and 7.10's P1 to P10.

mod tiny;

use model::drafter::{AnchorDraw, BlockPlan, BlockTotals, Drafter, PlanOptions, Weighting, anchors, loss};
use proptest::prelude::*;
use tch::{Device, Kind, Tensor};
use tiny::{Batch, HIDDEN, KINDS, TAPS, VOCABULARY, config, difference, drafter, given, random};

const BLOCK: usize = 4;
const WEIGHTING: Weighting = Weighting::Decay { gamma: 3.0 };
/// Rounding may differ where keys are grouped otherwise; a real dependence shows as 1e-3 and more.
const SAME: f64 = 2e-5;
const OTHER: f64 = 1e-3;

/// A drafter, a packed batch and drawn blocks.
struct Case {
    drafter: Drafter,
    batch: Batch,
    blocks: Vec<usize>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds = &self.drafter.config().layer_types;
        write!(f, "{kinds:?}, documents {:?}, blocks {:?}", self.batch.document_offsets, self.blocks)
    }
}

impl Case {
    fn hidden(&self) -> Tensor {
        self.batch.hidden(&self.drafter, &self.blocks)
    }

    /// Loss sums and the flat gradient of a fresh step.
    fn step(&mut self, blocks: &[usize]) -> (BlockTotals, Tensor) {
        self.step_of(&self.batch.plan(&self.drafter, blocks))
    }

    fn step_of(&mut self, plan: &BlockPlan) -> (BlockTotals, Tensor) {
        let hidden = self.batch.hidden_of(&self.drafter, plan);
        let parts = loss::block_loss(&hidden, &head(), plan, WEIGHTING);
        self.drafter.parameters_mut().zero_gradient();
        self.drafter.parameters_mut().backward(&hidden, &parts.d_hidden);
        (parts.totals(), self.drafter.parameters().gradient().copy())
    }

    /// The document of a block.
    fn document(&self, block: usize) -> std::ops::Range<usize> {
        self.batch.rows().document(self.batch.rows().document_of(self.blocks[block]))
    }
}

/// The target's output table [V, H].
fn head() -> Tensor {
    random(&[VOCABULARY, HIDDEN], 200)
}

/// Any layer kinds, one to three documents, a few blocks of each.
fn cases() -> impl Strategy<Value = Case> {
    (0..KINDS.len(), prop::collection::vec(2..14_usize, 1..=3), 1..6_usize, 0..1000_u64).prop_map(
        |(kinds, lengths, num_anchors, seed)| {
            let batch = Batch::new(&lengths, seed);
            let blocks = anchors::draw(&batch.rows(), &AnchorDraw { num_anchors, seed, epoch: 0 });
            Case { drafter: drafter(&config(KINDS[kinds], BLOCK), seed), batch, blocks }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p1_hidden_states_from_the_anchor_on_do_not_matter(case in cases(), pick in any::<prop::sample::Index>()) {
        let block = pick.index(case.blocks.len());
        let before = case.hidden();
        let anchor = case.blocks[block];
        let start = case.document(block).start;
        let mut changed = case;
        for (first, last, matters) in [(anchor, changed.batch.token_ids.len(), false), (0, start, false), (start, anchor, true)] {
            let kept_taps = changed.batch.taps.copy();
            changed.batch.taps.narrow(0, first as i64, (last - first) as i64).copy_(&random(&[(last - first) as i64, TAPS * HIDDEN], 7));
            let moved = difference(&before.get(block as i64), &changed.hidden().get(block as i64));
            changed.batch.taps = kept_taps;
            prop_assert!(if matters && last > first { moved > OTHER } else { moved < SAME }, "{first}..{last}: {moved}");
        }
    }

    #[test]
    fn p2_blocks_do_not_see_each_other(case in cases(), pick in any::<prop::sample::Index>()) {
        let plan = case.batch.plan(&case.drafter, &case.blocks);
        let block = plan.places[pick.index(case.blocks.len())] as i64;
        let noise = case.batch.embed(&plan.token_ids);
        let before = case.drafter.forward(&case.batch.taps, &noise, &plan);
        let other = random(&noise.size(), 9);
        other.get(block).copy_(&noise.get(block));
        let after = case.drafter.forward(&case.batch.taps, &other, &plan);
        prop_assert!(difference(&before.get(block), &after.get(block)) < SAME);
        for other in (0..plan.num_blocks() as i64).filter(|other| *other != block) {
            prop_assert!(difference(&before.get(other), &after.get(other)) > OTHER);
        }
    }

    #[test]
    fn p3_the_order_of_blocks_is_only_an_order(case in cases(), order in any::<u64>()) {
        let before = case.hidden();
        let count = case.blocks.len() as i64;
        let places: Vec<i64> = (0..2 * count).map(|place| (place * (2 * (order % 97) as i64 + 1) + 3).rem_euclid(count)).collect();
        let shuffled: Vec<usize> = places.iter().map(|place| case.blocks[*place as usize]).collect();
        let after = case.batch.hidden(&case.drafter, &shuffled);
        prop_assert!(difference(&before.index_select(0, &Tensor::from_slice(&places)), &after) < SAME);
    }

    #[test]
    fn p4_fillers_change_nothing(mut case in cases()) {
        let groups_of = |group_blocks| PlanOptions { group_blocks, ..case.drafter.plan_options() };
        let [single, padded] = [1, 8].map(|size| BlockPlan::new(&case.batch.rows(), &case.blocks, &groups_of(size)));
        prop_assert!(single.num_blocks() == case.blocks.len() && padded.num_blocks() % 8 == 0);
        prop_assert!(case.batch.hidden_of(&case.drafter, &padded).isfinite().all().double_value(&[]) == 1.0);
        let (totals, gradient) = case.step_of(&single);
        let (padded_totals, padded_gradient) = case.step_of(&padded);
        prop_assert!((totals.numerator - padded_totals.numerator).abs() < 1e-5 * totals.numerator);
        prop_assert_eq!((totals.denominator, totals.accepted, totals.blocks), (padded_totals.denominator, padded_totals.accepted, padded_totals.blocks));
        prop_assert!(difference(&gradient, &padded_gradient) < SAME);
    }

    #[test]
    fn p5_tokens_behind_a_row_change_nothing(mut case in cases(), extra in 1..6_u32, same_document in any::<bool>()) {
        let (totals, gradient) = case.step(&case.blocks.clone());
        let batch = &mut case.batch;
        batch.token_ids.extend((0..extra).map(|token| token % 30));
        batch.loss_mask.extend((0..extra).map(|_| 0));
        batch.taps = Tensor::cat(&[&batch.taps, &random(&[i64::from(extra), TAPS * HIDDEN], 11)], 0);
        let end = batch.token_ids.len() as u32;
        if same_document {
            *batch.document_offsets.last_mut().unwrap() = end;
        } else {
            batch.document_offsets.push(end);
            batch.row_ids.push(77);
        }
        let (padded_totals, padded_gradient) = case.step(&case.blocks.clone());
        prop_assert!((totals.numerator - padded_totals.numerator).abs() < 1e-5 * totals.numerator);
        prop_assert_eq!(totals.denominator, padded_totals.denominator);
        prop_assert!(difference(&gradient, &padded_gradient) < SAME);
    }

    #[test]
    fn p6_chunks_of_the_loss_add_up_to_the_plain_loss(case in cases(), chunk_rows in 1..9_i64) {
        let plan = case.batch.plan(&case.drafter, &case.blocks);
        let hidden = case.batch.hidden_of(&case.drafter, &plan).detach().set_requires_grad(true);
        let nll = hidden.matmul(&head().tr()).log_softmax(-1, Kind::Float).gather(2, &plan.labels.unsqueeze(2), false).squeeze_dim(2).neg();
        let plain = (&nll * WEIGHTING.weights(&nll.detach(), &plan.supervised)).sum(Kind::Float);
        plain.backward();
        let parts = loss::block_loss_in_chunks(&hidden, &head(), &plan, WEIGHTING, chunk_rows);
        prop_assert!(difference(&parts.d_hidden, &hidden.grad()) < 1e-5);
        prop_assert!((parts.totals().numerator - plain.double_value(&[])).abs() < 1e-5 * plain.double_value(&[]));
    }

    #[test]
    fn p7_groups_equal_the_dense_mask(mut case in cases(), group_blocks in 1..5_usize) {
        let mut options = case.drafter.plan_options();
        options.group_blocks = group_blocks;
        let grouped = BlockPlan::new(&case.batch.rows(), &case.blocks, &options);
        let dense = BlockPlan::dense(&case.batch.rows(), &case.blocks, &options);
        let hidden = |plan| given(&case.batch.hidden_of(&case.drafter, plan), plan);
        prop_assert!(difference(&hidden(&grouped), &hidden(&dense)) < SAME);
        let (_, grouped) = case.step_of(&grouped);
        let (_, dense) = case.step_of(&dense);
        prop_assert!(difference(&grouped, &dense) < SAME);
    }

    /// Spec 7.9: positions matter by their differences alone.
    #[test]
    fn shifting_all_positions_changes_nothing(case in cases(), shift in 1..500_i64) {
        let mut plan = case.batch.plan(&case.drafter, &case.blocks);
        let before = case.batch.hidden_of(&case.drafter, &plan);
        plan.positions = &plan.positions + shift;
        prop_assert!(difference(&before, &case.batch.hidden_of(&case.drafter, &plan)) < 1e-4);
    }

    /// Spec 7.9: a packed document is as if alone.
    #[test]
    fn a_packed_document_is_as_if_alone(case in cases()) {
        let last = case.document(case.blocks.len() - 1);
        let start = last.start;
        let alone = Batch {
            token_ids: case.batch.token_ids[last.clone()].to_vec(),
            loss_mask: case.batch.loss_mask[last.clone()].to_vec(),
            document_offsets: vec![0, last.len() as u32],
            row_ids: vec![0],
            taps: case.batch.taps.narrow(0, start as i64, last.len() as i64),
            ..Batch::new(&[1], 0)
        };
        let alone = Batch { embedding: case.batch.embedding.shallow_clone(), ..alone };
        let mine: Vec<usize> = case.blocks.iter().filter(|anchor| **anchor >= start).map(|anchor| anchor - start).collect();
        let packed = case.hidden().narrow(0, (case.blocks.len() - mine.len()) as i64, mine.len() as i64);
        prop_assert!(difference(&packed, &alone.hidden(&case.drafter, &mine)) < SAME);
    }
}

/// P8, with K and V projections reached through the context and through the block alone.
#[test]
fn p8_every_parameter_learns_and_the_target_does_not() {
    for (anchors, context_matters) in [(&[0, 3, 9][..], true), (&[0][..], false)] {
        let batch = Batch::new(&[12], 3);
        let mut case = Case { drafter: drafter(&config(KINDS[2], BLOCK), 3), batch, blocks: anchors.to_vec() };
        let _ = case.step(&case.blocks.clone());
        for (name, gradient) in case.drafter.parameters().named_gradients() {
            let learns = gradient.abs().max().double_value(&[]) > 0.0;
            let of_context = name == "fc.weight" || name == "hidden_norm.weight";
            assert_eq!(learns, context_matters || !of_context, "{name} with anchors {anchors:?}");
        }
        assert!(!case.batch.embedding.requires_grad(), "the embedding is frozen");
    }
}

#[test]
fn p9_in_sliding_layers_no_slot_depends_on_a_later_one() {
    for (kinds, causal) in [(KINDS[1], true), (KINDS[0], false)] {
        let (batch, drafter) = (Batch::new(&[12], 5), drafter(&config(kinds, BLOCK), 5));
        let plan = batch.plan(&drafter, &[6]);
        let noise = batch.embed(&plan.token_ids);
        let before = drafter.forward(&batch.taps, &noise, &plan).narrow(0, 0, 1);
        for slot in 1..BLOCK as i64 {
            let other = noise.copy();
            other.narrow(1, slot, 1).copy_(&random(&[1, 1, HIDDEN], 21));
            let after = drafter.forward(&batch.taps, &other, &plan).narrow(0, 0, 1);
            let earlier = difference(&before.narrow(1, 0, slot), &after.narrow(1, 0, slot));
            assert!(if causal { earlier == 0.0 } else { earlier > OTHER }, "slot {slot}: {earlier}");
            assert!(difference(&before.narrow(1, slot, 1), &after.narrow(1, slot, 1)) > OTHER);
        }
    }
}

/// P10: a consequence of looking both ways, not a fault: serve with the block size that was trained.
#[test]
fn p10_in_full_layers_a_slot_depends_on_the_block_size() {
    let batch = Batch::new(&[12], 5);
    let slot_1 = |kinds, block_size| {
        let drafter = drafter(&config(kinds, block_size), 5);
        batch.hidden(&drafter, &[6]).select(1, 1)
    };
    assert!(difference(&slot_1(KINDS[0], 8), &slot_1(KINDS[0], 16)) > OTHER);
    assert!(difference(&slot_1(KINDS[1], 8), &slot_1(KINDS[1], 16)) < SAME);
}

/// Training in bfloat16 with float32 norms, rotary tables, softmax and sums: near what float32 gives.
#[test]
fn bfloat16_stays_near_float32() {
    let batch = Batch::new(&[24, 9], 8);
    let wide = drafter(&config(KINDS[2], BLOCK), 8);
    let mut narrow = Drafter::new(wide.config(), 0, Device::Cpu, Kind::BFloat16).unwrap();
    narrow.parameters_mut().assign(wide.parameters().values());
    let blocks = vec![3, 8, 15, 26, 30];
    let half = |tensor: &Tensor| tensor.to_kind(Kind::BFloat16);
    let plan = batch.plan(&narrow, &blocks);
    let hidden = narrow.forward(&half(&batch.taps), &half(&batch.embed(&plan.token_ids)), &plan);
    let parts = loss::block_loss(&hidden, &half(&head()), &plan, WEIGHTING);
    narrow.parameters_mut().backward(&hidden, &parts.d_hidden);
    let mut case = Case { drafter: wide, batch, blocks: blocks.clone() };
    let (totals, gradient) = case.step(&blocks);
    assert_eq!((hidden.kind(), narrow.parameters().gradient().kind()), (Kind::BFloat16, Kind::Float));
    assert!((parts.totals().loss() / totals.loss() - 1.0).abs() < 0.02);
    let cosine =
        gradient.dot(narrow.parameters().gradient()) / (gradient.norm() * narrow.parameters().gradient().norm());
    assert!(cosine.double_value(&[]) > 0.995, "{cosine:?}");
}
