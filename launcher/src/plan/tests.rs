use super::*;

/// A configuration of a tiny run with `overrides`.
pub(crate) fn config(overrides: &[&str]) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.toml");
    let text = "[run]\noutput_dir='out'\n[model]\ntarget_model_path='target'\n[data]\ntrain_data_path='chats.jsonl'\n";
    std::fs::write(&path, text).unwrap();
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    Config::load(&path, &overrides).unwrap()
}

fn target() -> TargetConfig {
    let text = r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 128, "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 256,
        "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu"}"#;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), text).unwrap();
    TargetConfig::read(folder.path()).unwrap()
}

#[test]
fn the_resolved_configuration_decides_the_same_drafter_again() {
    let config = config(&["drafter.num_hidden_layers=2", "drafter.num_target_layer_ids=3", "drafter.block_size=8"]);
    let draft = DraftConfig::resolve(&config.drafter, &target(), 100).unwrap();
    let full = filled_in(&draft, None);
    assert_eq!((full.mask_token_id, full.target_layer_ids.clone()), (Some(100), Some(vec![1, 3, 5])));
    assert_eq!(DraftConfig::resolve(&full, &target(), 100).unwrap(), draft);
    let folder = tempfile::tempdir().unwrap();
    let config = Config { drafter: full, ..config };
    config.write(folder.path()).unwrap();
    assert_eq!(Config::of_run(folder.path()).unwrap(), config);
}

#[test]
fn threads_are_as_asked_or_a_fair_share_and_never_none() {
    assert_eq!(threads(&config(&["run.threads=7"])), 7);
    let shared = threads(&config(&["run.pairs=64", "training.batches_per_step=64"]));
    let cores = std::thread::available_parallelism().unwrap().get() as u32;
    assert_eq!(shared, (cores / 128).max(1));
}

#[test]
fn run_ids_can_name_shared_memory() {
    let id = run_id();
    assert!(id.len() < 40 && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-'), "{id}");
}
