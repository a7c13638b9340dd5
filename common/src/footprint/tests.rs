//! The arithmetic against what the driver counted in real runs (`scripts/gpu-memory.py`).

use super::*;
use crate::arena::ArenaKind;
use crate::model_config::{Architecture, DraftConfig, TargetConfig, qwen3_8b, qwen3_8b_target};

/// How far the arithmetic may be off, where several drafters meet through NCCL: the least certain number.
const NCCL_TOLERANCE: f64 = 0.06;

/// A run of one pair: `slots` slots of `batch_tokens` tokens, `num_anchors` anchors a row.
fn run(target: TargetConfig, draft: DraftConfig, heaviest: BatchShape, keys: [u32; 3]) -> (Config, RunPlan) {
    let [slots, batch_tokens, num_anchors] = keys;
    let text = format!(
        "[run]\noutput_dir='out'\n[model]\ntarget_model_path='target'\n[data]\ntrain_data_path='chats'\n\
         batch_tokens={batch_tokens}\n[training]\nnum_anchors={num_anchors}\n[queue]\ncapacity={slots}\n"
    );
    let plan = RunPlan {
        run_id: String::new(),
        token_store: None,
        total_batches: 1,
        total_steps: 1,
        batches_per_epoch: vec![1],
        heaviest,
        threads: 1,
        arena: ArenaKind::Fd,
        target,
        draft,
    };
    (toml::from_str(&text).unwrap(), plan)
}

fn smollm2_135m() -> (TargetConfig, DraftConfig) {
    let target = TargetConfig {
        architecture: Architecture::Llama,
        vocab_size: 49_152,
        hidden_size: 576,
        intermediate_size: 1536,
        num_hidden_layers: 30,
        num_attention_heads: 9,
        num_key_value_heads: 3,
        head_dim: 64,
        tie_word_embeddings: true,
        ..qwen3_8b_target()
    };
    let draft = DraftConfig {
        block_size: 8,
        hidden_size: 576,
        intermediate_size: 1536,
        num_attention_heads: 9,
        num_key_value_heads: 3,
        head_dim: 64,
        vocab_size: 49_152,
        target_layer_ids: vec![1, 8, 14, 20, 27],
        num_target_layers: 30,
        ..qwen3_8b()
    };
    (target, draft)
}

fn rows(rows: &[(u32, u32)]) -> BatchShape {
    BatchShape(rows.iter().map(|&(tokens, anchors)| RowShape { tokens, anchors }).collect())
}

/// Gigabytes that the driver counted of target and drafter.
fn holds(run: (Config, RunPlan), target: f64, drafter: f64) {
    within(DOUBT, &run, Role::Target, target);
    within(DOUBT, &run, Role::Drafter, drafter);
}

fn within(tolerance: f64, (config, plan): &(Config, RunPlan), role: Role, seen: f64) {
    let footprint = of_worker(config, plan, role, Rank(0));
    let said = footprint.total() as f64 / 1e9;
    assert!((said / seen - 1.0).abs() < tolerance, "{role}: {seen} GB seen, {said:.2} GB said ({footprint})");
}

/// Two H200, driver 580, torch 2.11.0+cu130, bfloat16, 2026-11-30.
#[test]
fn a_large_pair_takes_what_was_said() {
    let heaviest = rows(&[
        (2228, 1461),
        (1708, 1126),
        (1498, 939),
        (1472, 927),
        (1309, 835),
        (1111, 738),
        (876, 555),
        (534, 328),
        (527, 323),
        (521, 333),
        (416, 241),
    ]);
    holds(run(qwen3_8b_target(), qwen3_8b(), heaviest.clone(), [8, 12_288, 512]), 22.09, 106.02);
    let short = DraftConfig { block_size: 8, ..qwen3_8b() };
    holds(run(qwen3_8b_target(), short, heaviest, [16, 12_288, 256]), 26.41, 49.27);
}

/// As above.
#[test]
fn a_small_pair_takes_what_was_said() {
    let heaviest = rows(&[
        (512, 323),
        (471, 321),
        (429, 261),
        (372, 228),
        (363, 233),
        (360, 242),
        (351, 228),
        (279, 204),
        (278, 171),
        (187, 127),
        (184, 128),
        (169, 123),
        (73, 43),
        (64, 42),
    ]);
    let (target, draft) = smollm2_135m();
    holds(run(target.clone(), draft.clone(), heaviest, [32, 4096, 512]), 1.94, 5.52);
    // 49 rows of up to 320 tokens, here all of one length.
    let mut pair = run(target, draft, rows(&[(209, 131); 49]), [16, 10_240, 64]);
    holds(pair.clone(), 2.41, 5.89);
    pair.0.run.pairs = 2;
    within(DOUBT, &pair, Role::Target, 1.95);
    within(NCCL_TOLERANCE, &pair, Role::Drafter, 6.70);
}

#[test]
fn what_is_off_by_more_than_the_doubt_is_refused_and_what_is_within_it_is_tight() {
    let fit = |needed| Fit::of(needed, 1_000_000);
    assert_eq!(
        [fit(950_000), fit(950_001), fit(1_050_000), fit(1_053_000)],
        [Fit::Loose, Fit::Tight, Fit::Tight, Fit::Not]
    );
    // 2.00 GB said, 1.94 GB taken (docs/benchmarks.md), 1.97 GB free: that fits.
    assert_eq!(Fit::of(2_000_000_000, 1_970_000_000), Fit::Tight);
    assert_eq!((Fit::of(0, 0), Fit::of(u64::MAX, 0)), (Fit::Loose, Fit::Not));
}

#[test]
fn shared_parts_lie_with_their_target_and_masters_are_weights_in_float32() {
    let (target, draft) = smollm2_135m();
    let (mut config, mut plan) = run(target, draft, rows(&[(100, 99)]), [5, 4096, 16]);
    config.run.targets = Some(vec![0, 1]);
    let part =
        |footprint: &Footprint, what| footprint.parts.iter().find(|part| part.what == what).map(|part| part.bytes);
    let slots = |config: &Config, plan: &RunPlan, rank| part(&of_worker(config, plan, Role::Target, Rank(rank)), SLOTS);
    let slot = plan.draft.slot_token_bytes(config.model.torch_dtype) * 4096;
    let lanes = 3 * (8 << 20);
    assert_eq!([0, 1].map(|rank| slots(&config, &plan, rank)), [Some(2 * slot + lanes), Some(3 * slot + lanes)]);
    plan.arena = ArenaKind::Host;
    assert_eq!(slots(&config, &plan, 0), None);
    let drafter = |config: &Config| of_worker(config, &plan, Role::Drafter, Rank(0));
    assert!(part(&drafter(&config), "float32 masters").is_some() && part(&drafter(&config), "NCCL").is_none());
    config.model.torch_dtype = crate::config::Dtype::Float32;
    assert_eq!(part(&drafter(&config), "float32 masters"), None);
    config.run.drafters = Some(vec![2, 3]);
    assert!(part(&drafter(&config), "NCCL").is_some());
}
