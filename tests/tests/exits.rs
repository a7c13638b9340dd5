//! Exit codes that only real failures give: 3 and 101 of workers, and what is not tried again. 0, 1, 2 and 128 + signal
//! are in launcher.rs and cli.rs.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::ids::Role;
use common::queue::{ParticipantView, Phase};
use common::run_plan::RunPlan;
use tests::live::Live;
use tests::{Run, program};

const SHORT: [&str; 4] =
    ["training.max_steps=4", "data.batch_tokens=512", "training.num_anchors=8", "queue.policy=strict"];
const LIMIT: Duration = Duration::from_secs(240);

#[test]
fn a_worker_without_its_run_lost_its_peers_code_3() {
    let run = Run::new();
    tests::finish(run.training(&SHORT), LIMIT).success();
    for (name, arguments) in [("target-worker", vec![]), ("drafter-worker", vec!["train"])] {
        let mut command = Command::new(program(name));
        command.args(arguments).arg("--run").arg(run.dir()).args(["--rank", "0"]);
        let finished = tests::finish(command, LIMIT);
        let stderr = finished.stderr();
        assert_eq!(finished.code(), Some(3), "{stderr}");
        assert!(
            stderr.contains("does not exist") && stderr.ends_with("hint: the run has ended: its launcher says why\n")
        );
    }
}

/// Token ids that no embedding has: nothing looks at a store's rows again once it is whole.
#[test]
fn a_worker_that_panics_ends_with_101_and_its_run_with_2() {
    let run = Run::new();
    let store = run.dir().with_file_name("store");
    let command = || {
        let mut command = run.training(&SHORT);
        command.arg(format!("data.cache_dir={}", store.display()));
        command
    };
    tests::finish(command(), LIMIT).success();
    let file = file_below(&store, "token_ids");
    std::fs::write(&file, vec![0xee; file.metadata().unwrap().len() as usize]).unwrap();
    let mut command = command();
    command.args(["--max-restarts", "0"]);
    let finished = tests::finish(command, LIMIT);
    let stderr = finished.stderr();
    assert_eq!(finished.code(), Some(2), "{stderr}");
    let (hint, line) = (stderr.lines().next_back().unwrap(), stderr.lines().nth_back(1).unwrap());
    assert!(line.starts_with("tandem: target 0 panicked (exit code 101) after "), "{stderr}");
    assert!(hint.starts_with("hint: a panic is a bug in Tandem"), "{stderr}");
    let words = std::fs::read_to_string(run.dir().join("logs/target-0.error.json")).unwrap();
    assert!(words.contains("\"code\":101"), "{words}");
}

fn file_below(folder: &Path, start: &str) -> PathBuf {
    let stores = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = stores.filter(|path| path.is_dir()).flat_map(|store| std::fs::read_dir(store).unwrap());
    let mut files = files.map(|entry| entry.unwrap().path());
    files.find(|path| path.file_name().unwrap().to_string_lossy().starts_with(start)).expect("the store has it")
}

#[test]
fn training_that_diverges_ends_the_run_at_once_with_what_helps() {
    let run = Run::new();
    let mut command = run.training(&SHORT);
    command.args(["training.learning_rate=1e38", "training.warmup_ratio=0"]);
    let finished = tests::finish(command, LIMIT);
    let stderr = finished.stderr();
    assert_eq!(finished.code(), Some(1), "{stderr}");
    assert!(stderr.contains("gradient") && !stderr.contains("starting drafter 0 again"), "{stderr}");
    assert!(
        stderr.lines().next_back().unwrap().starts_with("hint: training diverged: lower training.learning_rate"),
        "{stderr}"
    );
}

/// A device that hangs, as far as a CPU can show it: a phase that does not end.
#[test]
fn a_worker_whose_device_does_not_answer_ends_and_names_device_and_phase() {
    let run = Run::new();
    let mut command = run.training(&SHORT);
    command.args(["--max-restarts", "0", "run.wait_timeout_s=20"]).env("TANDEM_TEST_DELAYS", "backward=3600000");
    let finished = tests::finish(command, LIMIT);
    let stderr = finished.stderr();
    assert_eq!(finished.code(), Some(2), "{stderr}");
    let (hint, line) = (stderr.lines().next_back().unwrap(), stderr.lines().nth_back(1).unwrap());
    assert!(line.starts_with("tandem: drafter 0 ") && line.contains("(backward)"), "{stderr}");
    assert!(line.contains("the phase `backward` has not ended for 18.0 s on cpu"), "{stderr}");
    assert!(hint.starts_with("hint: for a GPU, nvidia-smi and dmesg (Xid)"), "{stderr}");
}

/// As after a build in the middle of a run: the worker that is started again is newer than the queue.
#[test]
fn what_another_build_made_is_refused_at_once() {
    for role in [Role::Target, Role::Drafter] {
        let run = Run::new();
        // Retries are left, so that a refusal is what ends it. A forged header also hides from the launcher who was ready.
        let mut command = run.training(&SHORT);
        command.args(["--startup-retries", "3"]);
        let live = Live::start(&run, command);
        let is_ready = |seen: &ParticipantView| !matches!(seen.phase, Phase::Starting | Phase::Loading);
        let pid = live.catch((role, 0), is_ready);
        let other = if role == Role::Target { Role::Drafter } else { Role::Target };
        live.await_that("the other worker", || live.worker(other, 0).is_some_and(|seen| is_ready(&seen)));
        let queue = format!("/dev/shm/{}", RunPlan::read(&run.dir()).unwrap().queue_name());
        File::options().write(true).open(queue).unwrap().write_all_at(&u64::MAX.to_le_bytes(), 16).unwrap();
        live.send(pid, nix::sys::signal::Signal::SIGKILL);
        let end = live.end();
        assert_eq!((end.status.code(), end.left), (Some(1), Vec::new()), "{}", end.stderr);
        assert_eq!(end.stderr.matches(&format!("starting {role} 0 again")).count(), 1, "{}", end.stderr);
        assert_eq!(end.stderr.matches("made by another build").count(), 1, "{}", end.stderr);
        let last: Vec<&str> = end.stderr.lines().rev().take(2).collect();
        assert!(last[1].starts_with(&format!("tandem: {role} 0: /dev/shm/tandem-")), "{}", end.stderr);
        assert!(last[0].starts_with("hint: build tandem, target-worker and drafter-worker together"), "{}", end.stderr);
    }
}
