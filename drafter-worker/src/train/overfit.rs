//! Spec 7.15: what is learnt by heart is served. A drafter trained on one row of the target's own words drafts them at
//! decoding time, or training and decoding do not show it the same things.

use std::path::Path;

use common::config::{LayerType, TrainingSection};
use common::ids::Step;
use common::model_config::{DraftConfig, TargetConfig};
use model::drafter::{AnchorDraw, BlockPlan, Drafter, PackedRows, Weighting, anchors, loss};
use model::speculate::{self, Limits};
use model::target::Target;
use tch::{Device, Kind, Tensor};

use super::schedule::Schedule;
use model::optimizer::AdamW;

const BLOCK: usize = 8;
const STEPS: u64 = 250;
const PROMPT: [u32; 6] = [11, 7, 101, 42, 5, 63];
const TAPS: [usize; 2] = [1, 2];

/// A random target, and its own continuation of the prompt.
fn target_and_row() -> (Target, Vec<u32>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/qwen3-sharded");
    let target = Target::load(&folder, &TargetConfig::read(&folder).unwrap(), Device::Cpu, Kind::Float).unwrap();
    let said = speculate::plain(&target, &PROMPT, &limits()).unwrap();
    let row = [&PROMPT[..], &said.tokens].concat();
    (target, row)
}

fn limits() -> Limits {
    Limits { max_new_tokens: 1 + 10 * BLOCK, stop_ids: vec![] }
}

fn draft_config(target: &Target, row: &[u32], layer_types: [LayerType; 2]) -> DraftConfig {
    let target = target.config();
    DraftConfig {
        block_size: BLOCK,
        num_hidden_layers: 2,
        hidden_size: target.hidden_size,
        intermediate_size: 128,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 16,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        vocab_size: target.vocab_size,
        mask_token_id: (0..).find(|token| !row.contains(token)).unwrap(),
        target_layer_ids: TAPS.to_vec(),
        num_target_layers: target.num_hidden_layers,
        layer_types: layer_types.to_vec(),
        sliding_window: Some(24),
        max_position_embeddings: 256,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

fn taps(target: &Target, row: &[u32]) -> Tensor {
    let mut captured = Vec::new();
    target.backbone().capture(row, &[0, row.len() as u32], &TAPS, &mut |_, x| captured.push(x.copy()));
    Tensor::cat(&captured, 1)
}

/// Trains on the one row; gives the last step's loss.
fn train(drafter: &mut Drafter, target: &Target, row: &[u32]) -> f64 {
    let training = TrainingSection { learning_rate: 3e-3, ..TrainingSection::default() };
    let schedule = Schedule::new(&training, STEPS);
    let mut optimizer = AdamW::new(drafter.parameters(), &training);
    let loss_mask: Vec<u8> = (0..row.len()).map(|place| u8::from(place >= PROMPT.len())).collect();
    let offsets = [0, row.len() as u32];
    let rows = PackedRows { token_ids: row, loss_mask: &loss_mask, document_offsets: &offsets, row_ids: &[0] };
    let taps = taps(target, row);
    let mut loss = f64::NAN;
    for step in 1..=STEPS {
        let anchors = anchors::draw(&rows, &AnchorDraw { num_anchors: 64, seed: 1, epoch: step });
        let plan = BlockPlan::new(&rows, &anchors, &drafter.plan_options());
        let noise = target.vocabulary().embed(&plan.token_ids);
        let hidden = drafter.forward(&taps, &noise, &plan);
        let parts = loss::block_loss(&hidden, target.vocabulary().head(), &plan, Weighting::Decay { gamma: 4.0 });
        drafter.parameters_mut().backward(&hidden, &parts.d_hidden);
        loss = parts.totals().loss();
        optimizer.update(drafter.parameters_mut(), parts.denominator, schedule.rate(Step(step))).fetch().unwrap();
    }
    loss
}

#[test]
fn what_is_learnt_by_heart_is_served() {
    tch::set_num_threads(1); // at this size threads only wait for each other
    let (target, row) = target_and_row();
    for layer_types in [[LayerType::FullAttention; 2], [LayerType::SlidingAttention, LayerType::FullAttention]] {
        let config = draft_config(&target, &row, layer_types);
        let mut drafter = Drafter::new(&config, 1, Device::Cpu, Kind::Float).unwrap();
        let served = |drafter: &Drafter| {
            let generation = speculate::drafted(&target, drafter, &PROMPT, &limits()).unwrap();
            assert_eq!(generation.tokens, row[PROMPT.len()..], "the text is the target's own");
            (generation.tokens.len() - 1) as f64 / generation.verifies as f64
        };
        let before = served(&drafter);
        let loss = train(&mut drafter, &target, &row);
        let after = served(&drafter);
        assert!(before < 1.5 && loss < 0.05 && after >= 0.8 * BLOCK as f64, "{before} -> {after}, loss {loss}");
    }
}
