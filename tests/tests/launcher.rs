//! The launcher's own fate: killed, asked to end, asked twice, alone in a container, beside another.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::ids::Role;
use common::line::Line;
use common::manifest::{checkpoints, newest_checkpoint};
use common::queue::Phase;
use nix::sys::signal::Signal;
use tests::live::{Live, children_of, is_running};
use tests::{Run, program, root, wait_until};

const TARGET: (Role, u32) = (Role::Target, 0);
const DRAFTER: (Role, u32) = (Role::Drafter, 0);

const SHORT: [&str; 7] = [
    "training.max_steps=16",
    "data.batch_tokens=512",
    "training.num_anchors=8",
    "training.batches_per_step=2",
    "training.save_interval=4",
    "training.snapshot_interval=3",
    "queue.policy=strict",
];

fn start(run: &Run, flags: &[&str]) -> Live {
    let mut command = run.training(&SHORT);
    command.args(flags);
    Live::start(run, command)
}

fn whole(run: &Run) -> Vec<u8> {
    let (folder, manifest) = newest_checkpoint(&run.dir()).unwrap().expect("the run saved one");
    assert_eq!((manifest.step, manifest.trained), (16, vec![(0, 32)]));
    std::fs::read(folder.join("state.safetensors")).unwrap()
}

fn await_checkpoint(live: &Live, run: &Run) {
    live.await_that("a checkpoint", || !checkpoints(&run.dir()).is_empty());
}

#[test]
fn a_killed_launcher_takes_all_along_and_resume_finishes_with_the_same_weights() {
    let undisturbed = Run::new();
    let end = start(&undisturbed, &[]).end();
    assert!(end.status.success(), "{}", end.stderr);

    let run = Run::new();
    let live = start(&run, &[]);
    await_checkpoint(&live, &run);
    live.catch(DRAFTER, |seen| seen.phase == Phase::Backward);
    let (launcher, workers) = (live.pid(), children_of(live.pid()));
    assert_eq!(workers.len(), 2);
    live.send(launcher, Signal::SIGKILL);
    let killed = Instant::now();
    assert!(wait_until(Duration::from_secs(5), || !workers.iter().any(|worker| is_running(*worker))));
    assert!(killed.elapsed() < Duration::from_secs(1), "children took {:?} to go", killed.elapsed());
    assert!(!live.end().left.is_empty(), "what a killed launcher leaves is there to be swept");

    let end = start(&run, &["--resume"]).end();
    assert!(end.status.success(), "{}", end.stderr);
    assert!(end.stderr.contains("training from step"), "{}", end.stderr);
    assert_eq!(tests::shared_memory_of(launcher), Vec::<String>::new(), "the next start sweeps");
    assert!(whole(&run) == whole(&undisturbed), "the weights differ from those of an undisturbed run");
}

#[test]
fn a_scheduler_may_stop_a_run_and_resume_it_but_not_as_another_one() {
    let run = Run::new();
    let live = start(&run, &[]);
    live.catch(DRAFTER, |seen| seen.phase == Phase::Backward);
    let drafter = live.worker(Role::Drafter, 0).and_then(|seen| seen.pid).unwrap();
    live.send(live.pid(), Signal::SIGTERM);
    live.send(drafter, Signal::SIGCONT);
    let end = live.end();
    assert_eq!((end.status.code(), end.left), (Some(128 + 15), Vec::new()), "{}", end.stderr);
    let (_, saved) = newest_checkpoint(&run.dir()).unwrap().expect("the drafter saved before it ended");
    assert!(saved.step < 16);

    let other = start(&run, &["--resume", "training.seed=7"]).end();
    assert_eq!(other.status.code(), Some(1));
    assert!(other.stderr.contains("training.seed was 42"), "{}", other.stderr);

    let end = start(&run, &["--resume"]).end();
    assert!(end.status.success(), "{}", end.stderr);
    whole(&run);
}

#[test]
fn tokens_are_counted_on_over_a_restart_and_a_resume() {
    let run = Run::new();
    let live = start(&run, &["training.log_interval=1"]);
    await_checkpoint(&live, &run);
    live.kill_in(DRAFTER, |seen| seen.phase == Phase::Backward);
    live.await_line("drafters go on from step", Instant::now() - Duration::from_secs(60));
    live.catch(DRAFTER, |seen| seen.phase == Phase::Backward);
    live.send(live.pid(), Signal::SIGKILL);
    live.end();
    let end = start(&run, &["training.log_interval=1", "--resume"]).end();
    assert!(end.status.success(), "{}", end.stderr);
    whole(&run);
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let metrics = std::fs::read_to_string(run.dir().join("metrics.jsonl")).unwrap();
    let summary = std::fs::read_to_string(run.dir().join("summary.json")).unwrap();
    let last = json(metrics.lines().last().unwrap());
    assert_eq!((last["step"].as_u64(), last["tokens"].as_f64()), (Some(16), json(&summary)["tokens"].as_f64()));
}

#[test]
fn asked_to_end_before_its_first_step_it_saves_nothing() {
    let run = Run::new();
    let live = start(&run, &[]);
    // The target stands still, so that no batch ever comes.
    let target = live.catch(TARGET, |seen| seen.phase == Phase::Loading);
    live.await_that("a drafter that waits", || {
        live.worker(Role::Drafter, 0).is_some_and(|seen| seen.waits_for.is_some())
    });
    live.send(live.pid(), Signal::SIGTERM);
    live.send(target, Signal::SIGCONT);
    let end = live.end();
    assert_eq!((end.status.code(), end.left), (Some(128 + 15), Vec::new()), "{}", end.stderr);
    assert_eq!(newest_checkpoint(&run.dir()).unwrap(), None);
    assert_eq!(end.stderr.lines().last(), Some("hint: it had saved no checkpoint yet"));
}

#[test]
fn a_first_ctrl_c_lets_the_step_end_and_saves_it() {
    let run = Run::new();
    let live = start(&run, &["training.save_interval=0"]);
    let drafter = live.catch(DRAFTER, |seen| seen.phase == Phase::Backward);
    live.send(live.pid(), Signal::SIGINT);
    live.send(drafter, Signal::SIGCONT);
    let end = live.end();
    assert_eq!((end.status.code(), end.left), (Some(128 + 2), Vec::new()), "{}", end.stderr);
    let (folder, saved) = newest_checkpoint(&run.dir()).unwrap().expect("the drafter saved before it ended");
    assert!(saved.step >= 1 && end.stderr.contains(&format!("step {} is saved in {}", saved.step, folder.display())));
}

#[test]
fn a_second_ctrl_c_does_not_wait() {
    let run = Run::new();
    let live = start(&run, &[]);
    // It stands still: it will neither save nor end by itself.
    live.catch(DRAFTER, |seen| seen.phase == Phase::Backward);
    let since = Instant::now();
    live.send(live.pid(), Signal::SIGINT);
    live.await_line("SIGINT: drafters save", since);
    live.send(live.pid(), Signal::SIGINT);
    let end = live.end();
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    assert_eq!((end.status.code(), end.left), (Some(128 + 2), Vec::new()), "{}", end.stderr);
}

#[test]
fn a_worker_that_does_not_end_is_killed_after_its_grace() {
    let run = Run::new();
    let live = start(&run, &["--grace-drafter", "1", "--grace-target", "1"]);
    live.catch(DRAFTER, |seen| seen.phase == Phase::Backward);
    let since = Instant::now();
    live.send(live.pid(), Signal::SIGTERM);
    let end = live.end();
    let took = since.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(10), "{took:?}");
    assert_eq!((end.status.code(), end.left), (Some(128 + 15), Vec::new()), "{}", end.stderr);
}

#[test]
fn two_runs_side_by_side_do_not_meet() {
    let (one, two) = (Run::new(), Run::new());
    let (first, second) = (start(&one, &[]), start(&two, &[]));
    first.kill_in(TARGET, |seen| seen.phase == Phase::Forward);
    for (run, live) in [(&one, first), (&two, second)] {
        let end = live.end();
        assert!(end.status.success(), "{}", end.stderr);
        assert_eq!(end.left, Vec::<String>::new());
        assert_eq!(end.stderr.contains("killed by SIGKILL"), std::ptr::eq(run, &raw const one));
    }
    assert!(whole(&one) == whole(&two));
}

#[test]
fn targets_and_drafters_may_be_of_unequal_number() {
    let run = Run::new();
    let live = start(&run, &["--targets", "0,1", "--drafters", "0", "--local-ranks-filter", "1"]);
    let end = live.end();
    assert!(end.status.success(), "{}", end.stderr);
    let shown = |worker: &str| end.stderr.contains(&format!("[{worker}] "));
    assert!(!shown("target 0") && shown("target 1") && !shown("drafter 0"), "{}", end.stderr);
    whole(&run);
}

/// As the first process of a container: orphans come to it, signals it does not handle do nothing to it.
#[test]
fn as_process_1_it_collects_everybody_and_ends() {
    let isolated = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let possible = Command::new("unshare").args(isolated).arg("true").status().is_ok_and(|status| status.success());
    if !possible {
        return tests::skipped("a process namespace of its own is not allowed here");
    }
    let run = Run::new();
    let inner = run.training(&SHORT);
    let mut command = Command::new("unshare");
    command.args(isolated).arg(inner.get_program()).args(inner.get_args()).current_dir(root()).stdin(Stdio::null());
    let finished = tests::finish(command, Duration::from_secs(240)).success();
    assert!(!finished.stderr().contains("killed"), "{}", finished.stderr());
    whole(&run);
}

/// A worker's place, taken by a script that leaves a process in a session of its own and then does the worker's work.
#[test]
fn what_a_worker_leaves_behind_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tandem", "drafter-worker"] {
        // By another process, as in `write_program`.
        assert!(Command::new("cp").arg(program(name)).arg(folder.path()).status().unwrap().success());
    }
    let left = folder.path().join("left");
    let script =
        "setsid sh -c 'echo $$ > LEFT; exec sleep 600' > /dev/null 2>&1 &\nwhile [ ! -s LEFT ]; do sleep 0.01; done";
    let script = script.replace("LEFT", &left.display().to_string());
    let real = program("target-worker");
    write_program(&folder.path().join("target-worker"), &format!("{script}\nexec {} \"$@\"", real.display()));
    let run = Run::new();
    let plain = run.training(&SHORT);
    let mut command = Command::new(folder.path().join("tandem"));
    command.args(plain.get_args()).current_dir(root()).stdin(Stdio::null());
    tests::finish(command, Duration::from_secs(240)).success();
    let pid: u32 = std::fs::read_to_string(left).unwrap().trim().parse().unwrap();
    assert!(!is_running(pid));
}

/// Makes a program of shell. Another process writes it: what this one has open for writing, a child that another thread is just
/// starting has open too for a moment, and meanwhile nobody can run it ("text file busy").
fn write_program(path: &Path, body: &str) {
    let write = "printf '%s\\n' '#!/bin/sh' \"$1\" > \"$0\" && chmod 755 \"$0\"";
    assert!(Command::new("sh").args(["-c", write]).arg(path).arg(body).status().unwrap().success());
}

#[test]
fn a_worker_ends_with_the_line_to_its_launcher() {
    let folder = tempfile::tempdir().unwrap();
    // Reading a pipe that nobody writes keeps it busy for ever.
    nix::unistd::mkfifo(&folder.path().join("config.toml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, arguments) in [("target-worker", vec![]), ("drafter-worker", vec!["train"])] {
        let mut command = Command::new(program(name));
        command.args(arguments).arg("--run").arg(folder.path()).args(["--rank", "0"]);
        command.env("ERROR_FILE", folder.path().join("error.json"));
        let (line, theirs) = Line::pair().unwrap();
        let mut worker = command.stdin(OwnedFd::from(theirs)).spawn().unwrap();
        // It holds the other end open too.
        drop(command);
        // Opening waits until the worker has opened its side.
        let _config = std::fs::File::options().write(true).open(folder.path().join("config.toml")).unwrap();
        assert!(worker.try_wait().unwrap().is_none(), "{name} waits for its configuration");
        drop(line);
        assert!(wait_until(Duration::from_secs(5), || worker.try_wait().unwrap().is_some()), "{name} stays");
    }
}

/// Of two drafters one dies while the run is being stopped: the other one does not wait for its gradients.
#[test]
fn a_drafter_that_dies_while_stopping_does_not_hold_the_other() {
    let run = Run::new();
    let live = start(&run, &["--nproc-per-node", "2", "--grace-drafter", "30"]);
    let drafter = live.catch((Role::Drafter, 1), |seen| seen.phase == Phase::Backward);
    let since = Instant::now();
    live.send(live.pid(), Signal::SIGTERM);
    live.await_line("SIGTERM: drafters save", since);
    live.send(drafter, Signal::SIGKILL);
    let end = live.end();
    assert_eq!((end.status.code(), end.left), (Some(2), Vec::new()), "{}", end.stderr);
    assert_fault_of_one_alone(&run, "drafter 1");
}

/// The others ended well: nobody waited until its grace was over and it was killed.
fn assert_fault_of_one_alone(run: &Run, worker: &str) {
    let failure = std::fs::read(run.dir().join("failure.json")).unwrap();
    let failure: serde_json::Value = serde_json::from_slice(&failure).unwrap();
    let others = failure["others"].as_array().unwrap().len();
    assert_eq!((failure["cause"]["worker"].as_str(), others), (Some(worker), 0), "{failure}");
}

/// The first of two drafters cannot save: the second one does not wait for it.
#[test]
fn a_failed_save_does_not_hold_the_other_drafter() {
    let run = Run::new();
    let live = start(&run, &["--nproc-per-node", "2", "--grace-drafter", "30"]);
    live.await_that("the workers", || live.worker(Role::Drafter, 0).is_some());
    // A file where the checkpoints' folder is to be.
    let checkpoints = run.dir().join("checkpoints");
    let _ = std::fs::remove_dir(&checkpoints);
    std::fs::write(&checkpoints, "").unwrap();
    let end = live.end();
    assert_eq!((end.status.code(), end.left), (Some(1), Vec::new()), "{}", end.stderr);
    assert_fault_of_one_alone(&run, "drafter 0");
}

#[test]
fn a_model_that_does_not_load_prints_one_clear_cause() {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(root().join("examples/tiny/target")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let config = folder.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"num_hidden_layers\": 6", "\"num_hidden_layers\": 7")).unwrap();
    // The layer that is missing is one that the capture needs.
    let target = format!("model.target_model_path={}", folder.path().display());
    let end = start(&Run::new(), &[&target, "drafter.target_layer_ids=[1, 2, 6]"]).end();
    assert_eq!((end.status.code(), end.stderr.matches("missing").count()), (Some(1), 1), "{}", end.stderr);
    assert!(!end.stderr.contains("refused its input") && end.stderr.lines().last().unwrap().starts_with("hint: "));
}

#[test]
fn a_failure_says_its_cause_once_and_leaves_it_to_programs_too() {
    let run = Run::new();
    let live = start(&run, &["--max-restarts", "0"]);
    live.kill_in(TARGET, |seen| seen.phase == Phase::Forward);
    let end = live.end();
    assert_eq!((end.status.code(), end.left), (Some(2), Vec::new()), "{}", end.stderr);
    let last: Vec<&str> = end.stderr.lines().rev().take(2).collect();
    assert!(last[1].starts_with("tandem: target 0 was killed by SIGKILL after "), "{}", end.stderr);
    assert!(last[1].contains("(forward)") && last[0].contains("out of memory"), "{}", end.stderr);
    let failure: serde_json::Value =
        serde_json::from_slice(&std::fs::read(run.dir().join("failure.json")).unwrap()).unwrap();
    assert_eq!(
        (failure["cause"]["worker"].as_str(), failure["cause"]["signal"].as_str()),
        (Some("target 0"), Some("SIGKILL"))
    );
    assert_eq!(failure["exit_code"], 2);
}
