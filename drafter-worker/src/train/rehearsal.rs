//! One step's work before the first: on the plan's heaviest batch with made-up hidden states, its gradient thrown away. Memory
//! that does not suffice is known before training begins, and what a step takes never grows afterwards.

use common::footprint::{BatchShape, RECEIVED, RowShape};
use common::queue::Rows;
use common::run_plan::RunPlan;
use model::drafter::Drafter;
use tch::Tensor;

use super::step::{Objective, Sums};

/// Leaves no trace in the drafter. The optimizer's kernel takes no memory of its own.
pub(super) fn rehearse(objective: &Objective, drafter: &mut Drafter, plan: &RunPlan, batch_tokens: u32) {
    train_on_made_up(objective, drafter, plan, batch_tokens);
    drafter.parameters_mut().zero_gradient();
}

/// Adds the gradient, and returns the sums with it.
fn train_on_made_up(objective: &Objective, drafter: &mut Drafter, plan: &RunPlan, batch_tokens: u32) -> Sums {
    let rows = made_up(&plan.heaviest);
    let values = drafter.parameters().values();
    let (kind, device) = (values.kind(), values.device());
    let width = (plan.draft.num_taps() * plan.draft.hidden_size) as i64;
    // They stand for the receiver's buffers, which come later.
    let buffers = Tensor::zeros([RECEIVED as i64, i64::from(batch_tokens), width], (kind, device));
    let taps = buffers.get(0).narrow(0, 0, rows.token_ids.len() as i64);
    let mut sums = Sums::zero(plan.draft.block_size, device);
    objective.add(drafter, (&rows, &taps, 0), &mut sums, &|_| ());
    sums
}

/// Rows of that shape. Learnt is the end of each, as of an answer: one token more than may be anchors.
fn made_up(BatchShape(shapes): &BatchShape) -> Rows {
    let mut rows = Rows { document_offsets: vec![0], ..Rows::default() };
    for (id, RowShape { tokens, anchors }) in shapes.iter().enumerate() {
        let learnt = if *anchors == 0 { 0 } else { anchors + 1 };
        rows.loss_mask.extend((0..*tokens).map(|token| u8::from(token + learnt >= *tokens)));
        rows.token_ids.resize(rows.loss_mask.len(), 0);
        rows.document_offsets.push(rows.token_ids.len() as u32);
        rows.row_ids.push(id as u64);
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use common::arena::ArenaKind;
    use common::config::{Config, DrafterSection};
    use common::model_config::{DraftConfig, TargetConfig};
    use model::drafter::anchors;
    use model::target::Vocabulary;
    use tch::{Device, Kind};

    use super::*;

    fn shape() -> BatchShape {
        BatchShape([(40, 20), (9, 0), (30, 29), (2, 1)].map(|(tokens, anchors)| RowShape { tokens, anchors }).to_vec())
    }

    #[test]
    fn made_up_rows_have_the_shape_that_was_asked_for() {
        let rows = made_up(&shape());
        let lengths: Vec<u32> = rows.document_offsets.windows(2).map(|ends| ends[1] - ends[0]).collect();
        assert_eq!((lengths, rows.row_ids.len()), (vec![40, 9, 30, 2], 4));
        let valid = |ends: &[u32]| anchors::valid(&rows.loss_mask[ends[0] as usize..ends[1] as usize]).len();
        assert_eq!(rows.document_offsets.windows(2).map(valid).collect::<Vec<_>>(), [20, 0, 29, 1]);
    }

    #[test]
    fn a_rehearsal_does_a_steps_work_and_leaves_no_trace() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/qwen3-sharded");
        let target = TargetConfig::read(&folder).unwrap();
        let section = DrafterSection {
            block_size: 4,
            num_hidden_layers: 1,
            target_layer_ids: Some(vec![1, 2]),
            ..DrafterSection::default()
        };
        let draft = DraftConfig::resolve(&section, &target, target.vocab_size - 1).unwrap();
        let vocabulary = Vocabulary::load(&folder, &target, Device::Cpu, Kind::Float).unwrap();
        let plan = RunPlan {
            run_id: String::new(),
            token_store: None,
            total_batches: 1,
            total_steps: 1,
            batches_per_epoch: vec![1],
            heaviest: shape(),
            threads: 1,
            arena: ArenaKind::Host,
            target,
            draft,
        };
        let config = tempfile::tempdir().unwrap();
        let path = config.path().join("train.toml");
        let text = "[run]\noutput_dir='o'\n[model]\ntarget_model_path='t'\n[data]\ntrain_data_path='d'\n";
        std::fs::write(&path, text).unwrap();
        let objective = Objective::new(&Config::load(&path, &[]).unwrap(), &plan, vocabulary);
        let mut drafter = Drafter::new(&plan.draft, 1, Device::Cpu, Kind::Float).unwrap();
        let before = drafter.parameters().values().copy();
        let sums = train_on_made_up(&objective, &mut drafter, &plan, 100);
        assert!(sums.scored > 0.0 && sums.denominator > 0.0, "{} slots scored", sums.scored);
        assert_ne!(*drafter.parameters().gradient(), drafter.parameters().gradient().zeros_like());
        let random = |rehearse: &mut dyn FnMut()| {
            tch::manual_seed(5);
            rehearse();
            Tensor::randn([8], (Kind::Float, Device::Cpu))
        };
        let undisturbed = random(&mut || ());
        assert_eq!(random(&mut || rehearse(&objective, &mut drafter, &plan, 100)), undisturbed);
        assert_eq!(*drafter.parameters().values(), before);
        assert_eq!(*drafter.parameters().gradient(), drafter.parameters().gradient().zeros_like());
    }
}
