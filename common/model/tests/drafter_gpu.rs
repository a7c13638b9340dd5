//! The drafter's step on a GPU is a processor's: loss, metrics and gradient, with the kernels that only a GPU has.
//! Skipped where there is none.

#[expect(dead_code, reason = "each test takes what it needs of it")]
mod tiny;

use common::config::Device as Wanted;
use common::ids::Rank;
use model::drafter::{AnchorDraw, BlockPlan, BlockTotals, Drafter, PlanOptions, Weighting, anchors, loss};
use tch::{Device, Kind, Tensor};
use tiny::{Batch, HIDDEN, KINDS, VOCABULARY, config, difference, drafter, random};

const BLOCK: usize = 8;

/// Loss sums and gradient, on the host, of one step on the device and in the type of `drafter`.
fn step(drafter: &mut Drafter, batch: &Batch, group_blocks: usize, weighting: Weighting) -> (BlockTotals, Tensor) {
    let options = PlanOptions { group_blocks, ..drafter.plan_options() };
    let placed = |tensor: &Tensor| tensor.to_device(options.device).to_kind(options.kind);
    let anchors = anchors::draw(&batch.rows(), &AnchorDraw { num_anchors: 12, seed: 9, epoch: 1 });
    let plan = BlockPlan::new(&batch.rows(), &anchors, &options);
    let noise = Tensor::embedding(&placed(&batch.embedding), &plan.token_ids, -1, false, false);
    let hidden = drafter.forward(&placed(&batch.taps), &noise, &plan);
    let parts = loss::block_loss(&hidden, &placed(&random(&[VOCABULARY, HIDDEN], 200)), &plan, weighting);
    drafter.parameters_mut().zero_gradient();
    drafter.parameters_mut().backward(&hidden, &parts.d_hidden);
    (parts.totals(), drafter.parameters().gradient().to_device(Device::Cpu))
}

fn near(left: &BlockTotals, right: &BlockTotals, tolerance: f64) -> bool {
    let close = |left: f64, right: f64| (left - right).abs() <= tolerance * right.abs().max(1.0);
    close(left.numerator, right.numerator) && left.denominator == right.denominator && left.counted == right.counted
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn a_gpus_step_is_a_processors() {
    let Ok(device) = model::runtime::start(Wanted::Cuda, Rank(0), 2) else {
        return eprintln!("skipped: no GPU");
    };
    let batch = Batch::new(&[20, 90, 75, 9, 130], 11);
    for kinds in KINDS {
        let mut plain = drafter(&config(kinds, BLOCK), 5);
        let on_gpu = |kind| {
            let mut drafter = Drafter::new(plain.config(), 0, device, kind).unwrap();
            drafter.parameters_mut().assign(plain.parameters().values());
            drafter
        };
        let (mut wide, mut narrow) = (on_gpu(Kind::Float), on_gpu(Kind::BFloat16));
        for weighting in [Weighting::Decay { gamma: 4.0 }, Weighting::Dpace { alpha: 0.5 }] {
            for group_blocks in [4, 32] {
                let (totals, gradient) = step(&mut plain, &batch, 3, weighting);
                let (found, of_gpu) = step(&mut wide, &batch, group_blocks, weighting);
                assert!(near(&found, &totals, 1e-3), "{found:?} {totals:?}");
                assert!(difference(&of_gpu, &gradient) < 1e-2, "{}", difference(&of_gpu, &gradient));
                let (found, of_gpu) = step(&mut narrow, &batch, group_blocks, weighting);
                assert!(near(&found, &totals, 0.03), "{found:?} {totals:?}");
                let cosine = gradient.dot(&of_gpu) / (gradient.norm() * of_gpu.norm());
                assert!(cosine.double_value(&[]) > 0.99, "{cosine:?}");
                let (again, same) = step(&mut narrow, &batch, group_blocks, weighting);
                assert!(again == found && same == of_gpu, "the same batch gives the same step, bit for bit");
            }
        }
    }
}
