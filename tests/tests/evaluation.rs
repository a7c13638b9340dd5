//! Decoding around a run: what is decoded when, and what is said meanwhile.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use tests::{Run, program, root};

const TINY: &str = "examples/tiny/train.toml";
const LIMIT: Duration = Duration::from_secs(240);

#[test]
fn decoding_says_how_far_it_is_and_does_before_training_no_more_than_it_must() {
    let run = Run::new();
    let short =
        ["training.max_steps=2", "data.batch_tokens=512", "evaluation.num_prompts=3", "evaluation.max_new_tokens=4"];
    let trained = run.finish(TINY, &short, LIMIT).success().stderr();
    let (before, after) = trained.split_once("training from").unwrap();
    assert!(before.contains("untrained drafter: 3 of 3 prompts, accepted length 1."), "{before}");
    assert!(!before.contains("plain: ") && after.contains("plain: 3 of 3 prompts, accepted length 1.00"), "{trained}");

    let mut command = std::process::Command::new(program("tandem"));
    command.current_dir(root()).args(["evaluate", TINY, "--json", "run.device=cpu"]).args(&short[2..]);
    command.arg(format!("run.output_dir={}", run.dir().display()));
    let evaluated = tests::finish(command, LIMIT).success();
    assert!(evaluated.stderr().contains("with the drafter: 3 of 3 prompts, "), "{}", evaluated.stderr());
    let report: serde_json::Value = serde_json::from_str(&evaluated.stdout()).unwrap();
    assert!(report["plain_tokens_per_s"].as_f64().unwrap() > 0.0 && report["lossless"] == true, "{report}");
}
