//! `tandem run` and `tandem evaluate` as programs, on the tiny example, with workers made of shell.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Prints an evaluation: 1.0 without a drafter, 3.5 with one.
const EVALUATE: &str = r#"if [ "$1" = evaluate ]; then
    case "$*" in *--draft*) length=3.5 ;; *) length=1.0 ;; esac
    echo "{\"accepted_length\": $length, \"prompts\": 64, \"new_tokens\": 70, \"verifies\": 20, \"tokens_per_s\": 500.0, \
\"plain_tokens_per_s\": 250.0, \"lossless\": true}"
    exit 0
fi
RUN=$3
"#;

/// Saves a checkpoint of step 2, or `$step`, that was trained on as many batches, the first ones.
const SAVE: &str = r#"step=${step:-2}
folder=$RUN/checkpoints/step-00000$step
mkdir -p $folder
for name in config.json model.safetensors state.safetensors; do echo > $folder/$name; done
echo "{\"run_id\": \"r\", \"step\": $step, \"trained\": [[0, $step]], \"mask_token_id\": 9}" > $folder/manifest.json
"#;

/// Makes a program of shell. Another process writes it: what this one has open for writing, a child that another thread is just
/// starting has open too for a moment, and meanwhile nobody can run it ("text file busy").
fn write_program(path: &Path, body: &str) {
    let write = "printf '%s\\n' '#!/bin/sh' \"$1\" > \"$0\" && chmod 755 \"$0\"";
    assert!(Command::new("sh").args(["-c", write]).arg(path).arg(body).status().unwrap().success());
}

/// Programs in a folder of their own, and what they write. They get there by other processes, as above.
struct Stage(TempDir);

impl Stage {
    fn new(target: &str, drafter: &str) -> Stage {
        let stage = Stage(tempfile::tempdir().unwrap());
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_tandem")).arg(stage.0.path()).status().unwrap();
        assert!(copied.success());
        for (name, body) in [("target-worker", target), ("drafter-worker", &format!("{EVALUATE}{drafter}"))] {
            write_program(&stage.0.path().join(name), body);
        }
        stage
    }

    fn run_dir(&self) -> PathBuf {
        self.0.path().join("run")
    }

    fn command(&self, command: &str, overrides: &[&str]) -> Command {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut tandem = Command::new(self.0.path().join("tandem"));
        tandem.current_dir(root).args([command, "examples/tiny/train.toml", "training.max_steps=2"]);
        tandem.arg(format!("run.output_dir={}", self.run_dir().display()));
        tandem.arg(format!("data.cache_dir={}", self.0.path().join("store").display()));
        tandem.args(overrides).stdin(Stdio::null());
        tandem
    }

    fn finish(&self, command: &str, overrides: &[&str]) -> (Option<i32>, String, String) {
        text(&self.command(command, overrides).output().unwrap())
    }

    fn summary(&self) -> Value {
        serde_json::from_slice(&fs::read(self.run_dir().join("summary.json")).unwrap()).unwrap()
    }

    fn shared_memory(&self) -> Vec<String> {
        let plan: Value = serde_json::from_slice(&fs::read(self.run_dir().join("plan.json")).unwrap()).unwrap();
        let run_id = plan["run_id"].as_str().unwrap().to_owned();
        let names = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains(&run_id)).collect()
    }
}

fn text(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn last_lines(stderr: &str) -> (&str, &str) {
    let mut lines = stderr.lines().rev();
    let hint = lines.next().unwrap_or_default();
    (lines.next().unwrap_or_default(), hint)
}

#[test]
fn a_run_ends_with_what_it_gained() {
    let stage = Stage::new("exit 0", SAVE);
    for _ in 0..2 {
        let (code, stdout, stderr) = stage.finish("run", &[]);
        assert_eq!(code, Some(0), "{stderr}");
        for words in ["1.00 before training, 3.50 after", "2.00 times", "passed", "2 of 2 steps", "step-000002"] {
            assert!(stdout.contains(words), "no '{words}' in {stdout}");
        }
    }
    assert!(stage.0.path().join("run.1/summary.json").is_file(), "the first run is kept");
    let summary = stage.summary();
    let numbers = ["accepted_length_before", "accepted_length_after"].map(|key| summary[key].as_f64().unwrap());
    assert_eq!((numbers, &summary["lossless"]), ([1.0, 3.5], &Value::Bool(true)));
    assert!(summary["tokens_per_s"].as_f64().unwrap() > 0.0 && summary["rows"].as_u64().unwrap() > 2, "{summary}");
    assert!(summary["checkpoint"].as_str().unwrap().ends_with("run/checkpoints/step-000002"));
    assert_eq!(stage.shared_memory(), Vec::<String>::new());

    let (code, stdout, stderr) = stage.finish("evaluate", &["--json"]);
    assert_eq!(code, Some(1), "a draft that is no drafter: {stdout}{stderr}");
}

#[test]
fn after_a_resume_the_speed_is_that_of_the_new_start() {
    let drafter = format!("step=1; [ -e $RUN/checkpoints/step-000001 ] && step=2\n{SAVE}");
    let stage = Stage::new("exit 0", &drafter);
    let [first, second] = [&[] as &[&str], &["--resume"]].map(|flags| {
        let (code, stdout, stderr) = stage.finish("run", flags);
        assert_eq!(code, Some(0), "{stderr}");
        let summary = stage.summary();
        let number = |key: &str| summary[key].as_f64().unwrap();
        let trained = number("tokens_per_s") * number("train_seconds");
        (number("tokens"), trained.round(), number("tokens_before"), stdout)
    });
    assert_eq!((first.0, first.2), (first.1, 0.0));
    assert!(first.3.contains(": 1 of 2 steps, "), "{}", first.3);
    assert_eq!((second.1, second.2), (second.0 - first.0, first.0));
    let words = format!(": {} tokens in ", second.1);
    assert!(second.3.contains(&words) && second.3.contains(" from step 1 on; in all 2 of 2 steps, "), "{}", second.3);
    let page = fs::read_to_string(stage.run_dir().join("report.html")).unwrap();
    assert!(page.contains("rows in all") && page.contains("of 2, from step 1 on in "), "{page}");
}

#[test]
fn every_run_leaves_a_page_and_events_and_none_depends_on_them() {
    let train = r#"echo '{"step":2,"loss":1.25,"accuracy":0.5}' > $RUN/metrics.jsonl"#;
    let stage = Stage::new("exit 0", &format!("{train}\n{SAVE}"));
    let (code, _, stderr) = stage.finish("run", &[]);
    assert_eq!(code, Some(0), "{stderr}");
    let page = fs::read_to_string(stage.run_dir().join("report.html")).unwrap();
    for words in ["finished", "3.50", "loss: 1.25 throughout", "rows read", "max_steps = 2"] {
        assert!(page.contains(words), "no '{words}' in {page}");
    }
    let events = fs::read_dir(stage.run_dir().join("tensorboard")).unwrap().next().unwrap().unwrap();
    let bytes = fs::read(events.path()).unwrap();
    for tag in ["train/loss", "evaluation/accepted_length"] {
        assert!(bytes.windows(tag.len()).any(|window| window == tag.as_bytes()), "no {tag} in {events:?}");
    }

    let in_the_way = Stage::new("exit 0", &format!("mkdir $RUN/report.html\n{SAVE}"));
    let (code, _, stderr) = in_the_way.finish("run", &["telemetry.tensorboard=false"]);
    assert_eq!((code, stderr.contains("the run has no page")), (Some(0), true), "{stderr}");
    assert!(!in_the_way.run_dir().join("tensorboard").exists());

    let report = |run: &Path| {
        let out = stage.0.path().join("page.html");
        let mut tandem = Command::new(stage.0.path().join("tandem"));
        text(&tandem.arg("report").arg(run).arg("--out").arg(&out).output().unwrap())
    };
    let (code, stdout, _) = report(&in_the_way.run_dir());
    assert!(code == Some(0) && Path::new(stdout.trim()).is_file(), "{stdout}");
    let (code, _, stderr) = report(Path::new("examples"));
    assert!(code == Some(1) && last_lines(&stderr).0.contains("no run folder"), "{stderr}");
}

#[test]
fn a_model_without_weights_costs_nothing() {
    let stage = Stage::new("exit 0", SAVE);
    assert_eq!(stage.finish("run", &[]).0, Some(0));
    let model = stage.0.path().join("model");
    fs::create_dir(&model).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tiny/target");
        fs::copy(tiny.join(name), model.join(name)).unwrap();
    }
    let (code, _, stderr) = stage.finish("run", &[&format!("model.target_model_path={}", model.display())]);
    let (line, hint) = last_lines(&stderr);
    assert_eq!((code, line.contains("model: neither model.safetensors nor ")), (Some(1), true), "{stderr}");
    assert!(hint.starts_with("hint: set model.target_model_path to "), "{hint}");
    assert!(stage.run_dir().join("summary.json").is_file(), "the earlier run is where it was");
}

#[test]
fn what_a_worker_refuses_is_the_last_word() {
    let words = r#"{"code": 1, "error": "norm.weight is missing", "hint": "mend it"}"#;
    let stage = Stage::new(&format!("echo '{words}' > $ERROR_FILE; exit 1"), "sleep 600");
    let (code, _, stderr) = stage.finish("run", &[]);
    assert_eq!((code, last_lines(&stderr)), (Some(1), ("tandem: target 0: norm.weight is missing", "hint: mend it")));
    assert_eq!(stderr.matches("norm.weight").count(), 1, "one cause, said once: {stderr}");
    assert_eq!(stage.shared_memory(), Vec::<String>::new());
}

#[test]
fn a_worker_that_never_starts_is_named_with_its_signal() {
    let stage = Stage::new("kill -9 $$", "sleep 600");
    let (code, _, stderr) = stage.finish("run", &["--startup-retries", "1"]);
    let (line, hint) = last_lines(&stderr);
    assert_eq!(code, Some(2), "{stderr}");
    let page = fs::read_to_string(stage.run_dir().join("report.html")).unwrap();
    assert!(page.contains("failed: target 0 was killed by SIGKILL"), "{page}");
    assert!(
        line.starts_with("tandem: target 0 was killed by SIGKILL") && line.contains("never ready in 2 tries"),
        "{line}"
    );
    assert!(hint.starts_with("hint: ") && hint.contains("memory"), "{hint}");
    assert_eq!(stage.shared_memory(), Vec::<String>::new());
}

#[test]
fn a_signal_keeps_what_was_trained_and_says_so() {
    let drafter =
        format!("save() {{\n{SAVE}exit 0\n}}\ntrap save TERM\ntouch $RUN/ready; while :; do sleep 0.05; done");
    let stage = Stage::new("exec sleep 600", &drafter);
    let tandem = stage.command("run", &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    await_that("training", || stage.run_dir().join("ready").exists());
    let pid = nix::unistd::Pid::from_raw(tandem.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let (code, stdout, stderr) = text(&tandem.wait_with_output().unwrap());
    let (line, hint) = last_lines(&stderr);
    assert_eq!((code, line), (Some(143), "tandem: stopped by SIGTERM"), "{stderr}");
    assert!(hint.starts_with("hint: step 2 is saved in ") && stdout.contains("2 of 2 steps"), "{hint}{stdout}");
    assert_eq!(stage.summary()["stopped_by"], "SIGTERM");
    assert_eq!(stage.shared_memory(), Vec::<String>::new());
}

#[test]
fn a_killed_launcher_leaves_no_process_and_the_next_start_takes_its_memory_away() {
    let worker = "echo $$ > $0.pid; exec sleep 600";
    let stage = Stage::new(worker, worker);
    let mut tandem = stage.command("run", &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = |name: &str| fs::read_to_string(stage.0.path().join(name)).unwrap_or_default();
    let files = ["target-worker.pid", "drafter-worker.pid"];
    await_that("both workers", || files.iter().all(|name| pid(name).ends_with('\n')));
    assert_eq!(stage.shared_memory().len(), 3, "queue, arena and snapshots");
    tandem.kill().unwrap();
    tandem.wait().unwrap();
    let gone = |name: &&str| !Path::new(&format!("/proc/{}/fd/0", pid(name).trim())).exists();
    await_that("the workers' end", || files.iter().all(gone));
    let next = Stage::new("exit 0", SAVE);
    let (code, _, stderr) = next.finish("run", &[]);
    assert_eq!(code, Some(0), "{stderr}");
    // Another test's launcher may have been the one to sweep, and still be at it.
    await_that("the sweep", || stage.shared_memory().is_empty());
}

/// A gigabyte on stderr, without an end of line.
#[test]
fn a_flood_does_not_grow_the_launcher() {
    let flood =
        "until [ -e $2/go ]; do sleep 0.05; done; head -c 1000000000 /dev/zero >&2; touch $2/flooded; sleep 600";
    let stage = Stage::new(flood, &format!("until [ -e $RUN/flooded ]; do sleep 0.05; done\n{SAVE}"));
    let logs = format!("--log-dir={}", stage.0.path().join("logs").display());
    // Everything that is written there is gone: what counts is that it is read.
    fs::create_dir(stage.0.path().join("logs")).unwrap();
    std::os::unix::fs::symlink("/dev/null", stage.0.path().join("logs/target-0.log")).unwrap();
    let mut tandem = stage.command("run", &[&logs]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", tandem.id());
    let most_kib = || -> u64 {
        let text = fs::read_to_string(&status).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    await_that("the plan", || stage.run_dir().join("logs/evaluate.log").exists());
    let before = most_kib();
    fs::write(stage.run_dir().join("go"), "").unwrap();
    await_that("the flood's end", || stage.run_dir().join("flooded").exists());
    let growth = most_kib() - before;
    assert!(growth < 40 * 1024, "grew by {growth} KiB");
    assert!(most_kib() < 64 * 1024, "took {} KiB", most_kib());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(tandem.id() as i32), nix::sys::signal::Signal::SIGTERM).unwrap();
    tandem.wait().unwrap();
}

fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_plan_refuses_what_a_run_refuses_in_the_same_words() {
    let stage = Stage::new("", "");
    let (code, stdout, stderr) = stage.finish("plan", &[]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.lines().any(|line| line.starts_with("  /dev/shm ") && line.ends_with(" free")), "{stdout}");
    let much = ["queue.capacity=4096", "data.batch_tokens=4000000"];
    let refused = ["plan", "run"].map(|command| stage.finish(command, &much));
    let lines = refused.each_ref().map(|(code, _, stderr)| (*code, last_lines(stderr)));
    // What is free changes from one moment to the next.
    let words = |line: &str| line.rsplit_once(", ").map(|(words, _)| words.to_owned());
    assert_eq!((lines[0].0, lines[0].1.1), (Some(1), lines[1].1.1));
    assert_eq!((lines[1].0, words(lines[0].1.0)), (Some(1), words(lines[1].1.0)));
    assert!(lines[0].1.0.starts_with("tandem: /dev/shm has no room for this run: "), "{lines:?}");
    assert!(!stage.run_dir().exists(), "nothing is begun");
}
