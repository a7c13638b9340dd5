//! Invariants A1 and A2, and the house rules that a machine can check.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::PathBuf;
use std::process::Command;

/// Every crate that `package` is built from.
fn tree(package: &str) -> String {
    let arguments = ["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(tests::root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn depends(package: &str, on: &str) -> bool {
    tree(package).lines().any(|line| line.split(' ').next() == Some(on))
}

#[test]
fn a1_launcher_common_and_data_link_no_torch_and_no_cuda() {
    for package in ["launcher", "common", "data"] {
        for banned in ["tch", "torch-sys", "cudarc", "model"] {
            assert!(!depends(package, banned), "{package} depends on {banned}");
        }
    }
    assert!(depends("target-worker", "tch"), "the check itself works");
}

#[test]
fn a2_workers_do_not_know_each_other() {
    assert!(!depends("target-worker", "drafter-worker"));
    assert!(!depends("drafter-worker", "target-worker"));
}

/// Whether any source of these folders has one of `words`.
fn mentions(folders: &[&str], words: &[&str]) -> Vec<String> {
    let files: Vec<PathBuf> = folders.iter().flat_map(|folder| tests::sources(&tests::root().join(folder))).collect();
    assert!(!files.is_empty());
    let found = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        words.iter().filter(|word| text.contains(**word)).map(|word| format!("{word} in {}", path.display())).collect()
    };
    files.iter().flat_map(|path| -> Vec<String> { found(path) }).collect()
}

#[test]
fn a3_only_the_launcher_creates_and_reclaims() {
    let creators = ["Queue::create", "Segment::create", "Sum::create", "QueueOwner", ".unlink("];
    let workers = ["target-worker/src", "drafter-worker/src", "common/model/src", "common/data/src"];
    assert_eq!(mentions(&workers, &creators), Vec::<String>::new());
    assert!(!mentions(&["launcher/src"], &creators).is_empty(), "the check itself works");
}

#[test]
fn a8_a_target_worker_reads_nothing_that_a_drafter_writes() {
    let drafters = ["model::drafter", "checkpoint", "Consumer", "metrics"];
    assert_eq!(mentions(&["target-worker/src"], &drafters), Vec::<String>::new());
}

#[test]
fn files_are_short_and_unsafe_stays_in_its_rooms() {
    let rooms = [
        "common/src/shm",
        "common/src/line/",
        "common/src/queue/",
        "common/src/reduce",
        "common/tests/",
        "common/benches/",
        "common/examples/",
        "common/data/src/store/mapping.rs",
        "common/model/src/arena/",
        "common/model/src/cuda/",
        "common/model/src/runtime.rs",
        "common/model/src/sum/",
        "common/model/src/weights/mirror.rs",
        "launcher/src/child",
    ];
    let files = tests::sources(tests::root());
    assert!(files.len() > 30, "only {} files found", files.len());
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let relative = path.strip_prefix(tests::root()).unwrap().display().to_string();
        assert!(text.lines().count() <= 400, "{relative} has more than 400 lines");
        let opens = text.contains(concat!("(unsafe", "_code"));
        assert!(!opens || rooms.iter().any(|room| relative.starts_with(room)), "{relative} opens unsafe");
    }
}
