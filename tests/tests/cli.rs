//! What a user gets wrong: each one line with a hint, exit code 1, nothing left in /dev/shm.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tests::{Run, root};

const TINY: &str = "examples/tiny/train.toml";

/// Runs with `overrides` and expects a refusal whose one line holds all of `words`.
fn refused(overrides: &[&str], words: &[&str]) {
    let finished = Run::new().finish(TINY, overrides, Duration::from_secs(120));
    let stderr = finished.stderr();
    assert_eq!(finished.code(), Some(1), "{overrides:?}: {stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    let error = lines.iter().rev().find(|line| !line.starts_with("hint: ")).copied().unwrap_or_default();
    assert!(error.starts_with("tandem: "), "{overrides:?}: {stderr}");
    assert!(lines.last().is_some_and(|line| line.starts_with("hint: ")), "no hint for {overrides:?}: {stderr}");
    for word in words {
        assert!(error.contains(word), "{overrides:?}: no '{word}' in: {error}");
    }
    assert_eq!(tests::shared_memory_of(finished.pid), Vec::<String>::new(), "{overrides:?} left shared memory behind");
}

/// A copy of the tiny target with `change` made to its config.json.
fn changed_target(folder: &Path, change: impl FnOnce(&mut Value)) -> String {
    let target = folder.join("target");
    std::fs::create_dir(&target).unwrap();
    for entry in std::fs::read_dir(root().join("examples/tiny/target")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, target.join(path.file_name().unwrap())).unwrap();
    }
    let path = target.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(&path, config.to_string()).unwrap();
    format!("model.target_model_path={}", target.display())
}

fn data_file(folder: &Path, text: &str) -> (PathBuf, String) {
    let path = folder.join("chats.jsonl");
    std::fs::write(&path, text).unwrap();
    (path.clone(), format!("data.train_data_path={}", path.display()))
}

#[test]
fn a_missing_model_folder_is_named() {
    refused(&["model.target_model_path=no/such/model"], &["no/such/model"]);
}

#[test]
fn an_unsupported_architecture_is_named_with_what_works() {
    let folder = tempfile::tempdir().unwrap();
    let target = changed_target(folder.path(), |config| config["architectures"] = json!(["MambaForCausalLM"]));
    refused(&[&target], &["MambaForCausalLM", "Qwen3"]);
}

#[test]
fn a_missing_tensor_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let more_layers = |config: &mut Value| {
        let layers = config["num_hidden_layers"].as_u64().unwrap() + 1;
        config["num_hidden_layers"] = json!(layers);
    };
    let target = changed_target(folder.path(), more_layers);
    refused(&[&target], &["model.layers.", "missing"]);
}

#[test]
fn a_tokenizer_that_does_not_go_with_the_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let target = changed_target(folder.path(), |config| config["vocab_size"] = json!(1000));
    refused(&[&target], &["the tokenizer's ids go up to 1023", "1000 rows"]);
}

#[test]
fn a_mask_token_outside_the_table_or_equal_to_an_end_is_refused() {
    refused(&["drafter.mask_token_id=9999999"], &["mask_token_id", "9999999"]);
    let config = std::fs::read(root().join("examples/tiny/target/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let end = config["eos_token_id"].as_u64().expect("one end token");
    refused(&[&format!("drafter.mask_token_id={end}")], &["mask_token_id", "eos"]);
}

#[test]
fn a_tap_outside_the_model_is_refused() {
    refused(&["drafter.target_layer_ids=[1, 77]"], &["target_layer_ids", "77"]);
}

#[test]
fn data_without_a_usable_row_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (path, empty) = data_file(folder.path(), "");
    let name = path.display().to_string();
    refused(&[&empty], &[&name, "empty"]);
    let (_, useless) = data_file(folder.path(), "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
    refused(&[&useless], &[&name, "assistant"]);
}

#[test]
fn an_unknown_key_is_refused_with_the_known_ones() {
    refused(&["training.learning_rat=1"], &["learning_rat", "expected"]);
    refused(&["trainig.max_steps=1"], &["trainig", "expected"]);
}

/// A small file system, gone when dropped. None where mounting is not allowed.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(megabytes: u32) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={megabytes}m");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tandem-test"]).arg(folder.path()).output();
        mount.is_ok_and(|output| output.status.success()).then_some(SmallDisk(folder))
    }

    fn run_dir(&self) -> PathBuf {
        self.0.path().join("run")
    }

    /// Takes all but about a megabyte, once the run there has begun.
    fn fill_up(&self) {
        let begun = self.run_dir().join("plan.json");
        assert!(tests::wait_until(Duration::from_secs(60), || begun.exists()), "no run begins");
        let megabyte = vec![0_u8; 1 << 20];
        let mut last = None;
        for number in 0.. {
            let path = self.0.path().join(format!("filler-{number}"));
            match std::fs::write(&path, &megabyte) {
                Ok(()) => last = Some(path),
                Err(_) => {
                    return [Some(path), last]
                        .into_iter()
                        .flatten()
                        .for_each(|path| std::fs::remove_file(path).unwrap());
                }
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg(self.0.path()).status().ok();
    }
}

/// Trains two steps on that disk and expects a refusal.
fn refused_on(disk: &SmallDisk, words: &[&str]) {
    let output = format!("run.output_dir={}", disk.run_dir().display());
    let quick = ["training.max_steps=2", "evaluation.num_prompts=1", "evaluation.max_new_tokens=2"];
    refused(&[&quick[..], &[&output]].concat(), words);
}

#[test]
fn a_full_disk_is_named_with_the_file_that_did_not_fit() {
    let Some(disk) = SmallDisk::mount(12) else {
        return tests::skipped("mounting a small file system is not allowed here");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| disk.fill_up());
        refused_on(&disk, &["checkpoints", "No space left"]);
    });
    let names: Vec<_> = std::fs::read_dir(disk.run_dir().join("checkpoints")).unwrap().collect();
    assert!(names.is_empty(), "what does not fit takes no room: {names:?}");
}

#[test]
fn without_room_for_the_checkpoints_nothing_is_begun() {
    let Some(disk) = SmallDisk::mount(2) else {
        return tests::skipped("mounting a small file system is not allowed here");
    };
    refused_on(&disk, &["the disk has no room for 1 checkpoint of 5.9 MiB", "2.0 MiB free"]);
    assert!(!disk.run_dir().exists());
}

#[test]
fn without_room_for_the_slots_nothing_is_begun() {
    let run = Run::new();
    let much = ["queue.capacity=4096", "data.batch_tokens=4000000"];
    let finished = run.finish(TINY, &much, Duration::from_secs(120));
    let stderr = finished.stderr();
    assert_eq!(finished.code(), Some(1), "{stderr}");
    let last: Vec<&str> = stderr.lines().rev().take(2).collect();
    for words in ["tandem: /dev/shm has no room for this run: ", " bytes needed (4096 slots of ", " free"] {
        assert!(last[1].contains(words), "{stderr}");
    }
    assert!(last[0].starts_with("hint: lower queue.capacity or data.batch_tokens"), "{stderr}");
    assert!(!stderr.contains("decoding") && !run.dir().exists(), "{stderr}");
}

#[test]
fn help_works_with_nothing_else_there() {
    for name in ["tandem", "tandem-queue", "target-worker", "drafter-worker"] {
        let mut command = Command::new(tests::program(name));
        command.arg("--help").current_dir(std::env::temp_dir());
        let finished = tests::finish(command, Duration::from_secs(60)).success();
        assert!(finished.stdout().contains("Usage"), "{name}: {}", finished.stdout());
    }
}
