//! One batch's share of a step: anchors, forward, loss, backward. Gradients of the numerator pile up in the parameters.

use common::config::{Config, LossType};
use common::queue::{Consumer, Phase, Rows};
use common::run_plan::RunPlan;
use model::drafter::loss::block_loss;
use model::drafter::{AnchorDraw, BlockPlan, BlockTotals, Drafter, PackedRows, Weighting, anchors};
use model::target::Vocabulary;
use tch::{Device, Kind, Tensor};

use super::receive::Batch;

/// Sums over a rank's batches and, after the exchange, over ranks: everything that a step is decided and reported by. What
/// decides is known on the host; the rest stays on the device until it is reported.
#[derive(Debug)]
pub(crate) struct Sums {
    /// f64 on the device, see [`BlockTotals::from_sums`].
    pub(crate) blocks: Tensor,
    /// What the blocks' numerator is divided by.
    pub(crate) denominator: f64,
    /// Block slots scored.
    pub(crate) scored: f64,
    /// Tokens of the packed rows.
    pub(crate) tokens: f64,
    /// Batches.
    pub(crate) batches: f64,
    /// Ranks that were asked to stop.
    pub(crate) stopping: f64,
    /// Ranks that were asked to stop before they had their batches: the step must not be applied.
    pub(crate) short: f64,
}

/// How many numbers decide a step.
const DECISIVE: usize = 6;

impl Sums {
    pub(crate) fn zero(block_size: usize, device: Device) -> Sums {
        let blocks = Tensor::zeros(BlockTotals::num_sums(block_size) as i64, (Kind::Double, device));
        Sums { blocks, denominator: 0.0, scored: 0.0, tokens: 0.0, batches: 0.0, stopping: 0.0, short: 0.0 }
    }

    /// What decides the step, as one list of numbers on the host.
    pub(crate) fn decisive(&self) -> [f64; DECISIVE] {
        [self.denominator, self.scored, self.tokens, self.batches, self.stopping, self.short]
    }

    /// The inverse of [`Sums::decisive`], with the blocks' sums.
    pub(crate) fn of(decisive: &[f64; DECISIVE], blocks: Tensor) -> Sums {
        let [denominator, scored, tokens, batches, stopping, short] = *decisive;
        Sums { blocks, denominator, scored, tokens, batches, stopping, short }
    }

    /// All of it as one list of numbers, for a sum over drafters on the host. Waits for the device.
    pub(crate) fn to_scalars(&self) -> Vec<f64> {
        let blocks = Vec::<f64>::try_from(&self.blocks).expect("sums are one row of f64");
        [self.decisive().as_slice(), &blocks].concat()
    }

    /// The inverse of [`Sums::to_scalars`].
    pub(crate) fn from_scalars(scalars: &[f64]) -> Sums {
        let (decisive, blocks) = scalars.split_first_chunk().expect("a step's numbers are never fewer");
        Sums::of(decisive, Tensor::from_slice(blocks))
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
        let epoch = self.plan.epoch_of(batch.id);
        self.add(drafter, (&batch.rows, &batch.taps, epoch), sums, &|phase| consumer.phase(phase));
    }

    /// The same for rows with their hidden states [T, K*H] in a pass over the data; `enter` is told each phase.
    pub(super) fn add(
        &self,
        drafter: &mut Drafter,
        (rows, taps, epoch): (&Rows, &Tensor, u64),
        sums: &mut Sums,
        enter: &dyn Fn(Phase),
    ) {
        sums.tokens += rows.token_ids.len() as f64;
        sums.batches += 1.0;
        enter(Phase::Anchors);
        let rows = packed(rows);
        let anchors = anchors::draw(&rows, &AnchorDraw { num_anchors: self.num_anchors, seed: self.seed, epoch });
        if anchors.is_empty() {
            return;
        }
        let plan = BlockPlan::new(&rows, &anchors, &drafter.plan_options());
        enter(Phase::Draft);
        let hidden = drafter.forward(taps, &self.vocabulary.embed(&plan.token_ids), &plan);
        enter(Phase::Loss);
        let parts = block_loss(&hidden, self.vocabulary.head(), &plan, self.weighting);
        enter(Phase::Backward);
        drafter.parameters_mut().backward(&hidden, &parts.d_hidden);
        sums.blocks += parts.sums;
        sums.denominator += parts.denominator;
        sums.scored += plan.slot_counts.iter().sum::<u64>() as f64;
    }
}

fn packed(rows: &Rows) -> PackedRows<'_> {
    PackedRows {
        token_ids: &rows.token_ids,
        loss_mask: &rows.loss_mask,
        document_offsets: &rows.document_offsets,
        row_ids: &rows.row_ids,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_carry_every_field() {
        let numbers: Vec<f64> = (1..=15).map(f64::from).collect();
        let sums = Sums::from_scalars(&numbers);
        assert_eq!((sums.denominator, sums.scored, sums.tokens), (1.0, 2.0, 3.0));
        assert_eq!((sums.batches, sums.stopping, sums.short), (4.0, 5.0, 6.0));
        assert_eq!(sums.to_scalars(), numbers);
        assert_eq!(Sums::zero(4, Device::Cpu).to_scalars(), vec![0.0; 15]);
    }
}
