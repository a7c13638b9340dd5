//! One batch's share of a step: anchors, forward, loss, backward. Gradients of the numerator pile up in the parameters.

use common::config::{Config, LossType};
use common::queue::{Consumer, Phase};
use common::run_plan::RunPlan;
use model::drafter::loss::block_loss;
use model::drafter::{AnchorDraw, BlockPlan, BlockTotals, Drafter, PackedRows, Weighting, anchors};
use model::target::Vocabulary;

use super::receive::Batch;

/// Sums over a rank's batches and, after the exchange, over ranks: everything that a step is decided and reported by.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sums {
    pub(crate) blocks: BlockTotals,
    /// Tokens of the packed rows.
    pub(crate) tokens: f64,
    /// Batches.
    pub(crate) batches: f64,
    /// Ranks that were asked to stop.
    pub(crate) stopping: f64,
    /// Ranks that were asked to stop before they had their batches: the step must not be applied.
    pub(crate) short: f64,
}

impl Sums {
    pub(crate) fn zero(block_size: usize) -> Sums {
        Sums { blocks: BlockTotals::zero(block_size), tokens: 0.0, batches: 0.0, stopping: 0.0, short: 0.0 }
    }

    /// As one list of numbers, for the sum over drafters.
    pub(crate) fn to_scalars(&self) -> Vec<f64> {
        let mut scalars = vec![self.tokens, self.batches, self.stopping, self.short];
        scalars.extend(self.blocks.to_scalars());
        scalars
    }

    /// The inverse of [`Sums::to_scalars`].
    pub(crate) fn from_scalars(scalars: &[f64]) -> Sums {
        let (single, blocks) = scalars.split_at(4);
        Sums {
            blocks: BlockTotals::from_scalars(blocks),
            tokens: single[0],
            batches: single[1],
            stopping: single[2],
            short: single[3],
        }
    }
}

/// What turns a batch into gradients.
pub(crate) struct Objective {
    vocabulary: Vocabulary,
    weighting: Weighting,
    num_anchors: usize,
    seed: u64,
    plan: RunPlan,
}

impl Objective {
    pub(crate) fn new(config: &Config, plan: &RunPlan, vocabulary: Vocabulary) -> Objective {
        let training = &config.training;
        Objective {
            vocabulary,
            weighting: match training.loss_type {
                LossType::Decay => Weighting::Decay { gamma: training.loss_decay_gamma },
                LossType::Dpace => Weighting::Dpace { alpha: training.dpace_alpha },
            },
            num_anchors: training.num_anchors as usize,
            seed: training.seed,
            plan: plan.clone(),
        }
    }

    /// Adds the batch's gradient to the drafter's and its numbers to `sums`. A batch without a valid anchor adds nothing
    /// but its tokens.
    pub(crate) fn accumulate(&self, drafter: &mut Drafter, batch: &Batch, sums: &mut Sums, consumer: &Consumer) {
        sums.tokens += batch.rows.token_ids.len() as f64;
        sums.batches += 1.0;
        consumer.phase(Phase::Anchors);
        let rows = packed(batch);
        let draw = AnchorDraw { num_anchors: self.num_anchors, seed: self.seed, epoch: self.plan.epoch_of(batch.id) };
        let anchors = anchors::draw(&rows, &draw);
        if anchors.is_empty() {
            return;
        }
        let plan = BlockPlan::new(&rows, &anchors, &drafter.plan_options());
        consumer.phase(Phase::Draft);
        let hidden = drafter.forward(&batch.taps, &self.vocabulary.embed(&plan.token_ids), &plan);
        consumer.phase(Phase::Loss);
        let parts = block_loss(&hidden, self.vocabulary.head(), &plan, self.weighting);
        consumer.phase(Phase::Backward);
        drafter.parameters_mut().backward(&hidden, &parts.d_hidden);
        sums.blocks += &parts.totals();
    }
}

fn packed(batch: &Batch) -> PackedRows<'_> {
    PackedRows {
        token_ids: &batch.rows.token_ids,
        loss_mask: &batch.rows.loss_mask,
        document_offsets: &batch.rows.document_offsets,
        row_ids: &batch.rows.row_ids,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_carry_every_field() {
        let numbers: Vec<f64> = (1..=14).map(f64::from).collect();
        let sums = Sums::from_scalars(&numbers);
        assert_eq!((sums.tokens, sums.batches, sums.stopping, sums.short), (1.0, 2.0, 3.0, 4.0));
        assert_eq!(sums.to_scalars(), numbers);
        assert_eq!(Sums::zero(4).to_scalars(), vec![0.0; 14]);
    }
}
