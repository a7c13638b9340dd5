//! The main job on the tiny model, shortened: launcher, target and drafter processes, queue, checkpoint, summary.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use common::manifest::newest_checkpoint;
use common::run_plan::RunPlan;
use tch::{Kind, Tensor};
use tests::Run;

const TINY: &str = "examples/tiny/train.toml";
const LIMIT: Duration = Duration::from_secs(600);
/// Small steps: 20 of them in seconds.
const SHORT: [&str; 7] = [
    "training.max_steps=20",
    "data.batch_tokens=512",
    "training.num_anchors=8",
    "training.batches_per_step=2",
    "queue.policy=strict",
    "training.save_interval=8",
    "evaluation.num_prompts=4",
];

fn train(pairs: u32) -> Run {
    let run = Run::new();
    let pairs = format!("run.pairs={pairs}");
    let overrides: Vec<&str> = SHORT.into_iter().chain([pairs.as_str()]).collect();
    let finished = run.finish(TINY, &overrides, LIMIT).success();
    assert_eq!(tests::shared_memory_of(finished.pid), Vec::<String>::new());
    run
}

/// The float32 masters and moments of the last checkpoint, by name.
fn state(run: &Path) -> BTreeMap<String, Tensor> {
    let (folder, _) = newest_checkpoint(run).unwrap().expect("the run saved one");
    Tensor::read_safetensors(folder.join("state.safetensors")).unwrap().into_iter().collect()
}

fn furthest(a: &BTreeMap<String, Tensor>, b: &BTreeMap<String, Tensor>) -> f64 {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    let distance = |name: &String| (&a[name] - &b[name]).abs().max().to_kind(Kind::Double).double_value(&[]);
    a.keys().map(distance).fold(0.0, f64::max)
}

#[test]
fn a9_and_data_parallel_the_same_batches_give_the_same_weights() {
    let (once, again, two) = (train(1), train(1), train(2));
    let (once_state, again_state, two_state) = (state(&once.dir()), state(&again.dir()), state(&two.dir()));
    assert_eq!(furthest(&once_state, &again_state), 0.0, "a repeat differs");
    let distance = furthest(&once_state, &two_state);
    assert!(distance <= 1e-6, "one and two drafters differ by {distance:e}");
    let twice = state(&train(2).dir());
    assert_eq!(furthest(&two_state, &twice), 0.0, "a repeat of two pairs differs");
    finished_run_shows_its_work(&once.dir());
}

fn finished_run_shows_its_work(run: &Path) {
    let plan = RunPlan::read(run).unwrap();
    assert_eq!((plan.total_steps, plan.total_batches), (20, 40));
    let (folder, manifest) = newest_checkpoint(run).unwrap().unwrap();
    assert_eq!(manifest.trained, [(0, 40)], "A12: every batch of the plan, once");
    let summary: serde_json::Value = serde_json::from_slice(&std::fs::read(run.join("summary.json")).unwrap()).unwrap();
    for key in ["accepted_length_before", "accepted_length_after", "lossless", "train_seconds", "tokens_per_s"] {
        assert!(!summary[key].is_null(), "summary.json lacks {key}: {summary}");
    }
    assert_eq!(summary["lossless"], true);
    plan_knew_the_checkpoint_and_knows_the_speed(run, &folder);
    assert_eq!(summary["checkpoint"].as_str().map(Path::new), Some(folder.as_path()));
    assert!(run.join("config.toml").is_file() && run.join("metrics.jsonl").is_file());
}

/// `tandem plan` on the run's own configuration: a checkpoint's bytes to two in a hundred, and the run's speed for the next.
fn plan_knew_the_checkpoint_and_knows_the_speed(run: &Path, checkpoint: &Path) {
    let mut plan = std::process::Command::new(tests::program("tandem"));
    plan.current_dir(tests::root()).arg("plan").arg(run.join("config.toml")).arg("--json");
    let report = tests::finish(plan, LIMIT).success().stdout();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let files = std::fs::read_dir(checkpoint).unwrap().map(|file| file.unwrap().metadata().unwrap().len());
    let (found, said) = (files.sum::<u64>() as f64, report["checkpoint_bytes"].as_f64().unwrap());
    assert!((said / found - 1.0).abs() < 0.02, "{said} bytes said, {found} found");
    let speed = report["tokens_per_s"].as_f64().expect("an earlier run tells the speed");
    assert!((report["seconds"].as_f64().unwrap() * speed / report["tokens"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    assert_eq!(report["seconds_source"], format!("measured in {}", run.display()));
}
