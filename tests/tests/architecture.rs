//! Invariants A1 and A2, and the house rules that a machine can check.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};
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

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "runs" {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

#[test]
fn files_are_short_and_unsafe_stays_in_its_rooms() {
    let rooms = [
        "common/src/shm",
        "common/src/queue/",
        "common/src/reduce",
        "common/tests/loom.rs",
        "common/data/src/store/mapping.rs",
        "common/model/src/arena/",
        "common/model/src/runtime.rs",
        "launcher/src/child",
    ];
    let mut files = Vec::new();
    sources(tests::root(), &mut files);
    assert!(files.len() > 30, "only {} files found", files.len());
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let relative = path.strip_prefix(tests::root()).unwrap().display().to_string();
        assert!(text.lines().count() <= 400, "{relative} has more than 400 lines");
        let opens = text.contains(concat!("(unsafe", "_code"));
        assert!(!opens || rooms.iter().any(|room| relative.starts_with(room)), "{relative} opens unsafe");
    }
}
