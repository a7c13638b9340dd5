use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::Command;

use super::*;
use crate::history::samples_line;

/// A run folder that is followed.
struct Run {
    folder: tempfile::TempDir,
    events: Events,
}

impl Run {
    fn new() -> Run {
        let folder = tempfile::tempdir().unwrap();
        let events = Events::of_run(folder.path(), &Console::silent());
        Run { folder, events }
    }

    fn append(&mut self, file: &str, line: &str) {
        let path = self.folder.path().join(file);
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
        self.events.catch_up();
    }

    fn step(&mut self, step: u64, loss: f64) {
        let line =
            format!(r#"{{"step":{step},"loss":{loss},"accuracy":null,"slot_accuracy":[0.5,0.25],"tokens_per_s":7}}"#);
        self.append(METRICS_FILE, &line);
    }

    fn tensorboard(&self) -> PathBuf {
        self.folder.path().join(FOLDER)
    }

    /// Files in the order in which TensorBoard reads them.
    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(self.tensorboard()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// What counts, by the rule of starts: every tag's steps and values.
    fn scalars(&self) -> BTreeMap<String, Vec<(i64, f32)>> {
        let mut scalars: BTreeMap<String, Vec<(i64, f32)>> = BTreeMap::new();
        for event in self.files().iter().flat_map(|path| record::tests::read(path)) {
            match event.what.unwrap() {
                What::FileVersion(version) => assert_eq!(version, "brain.Event:2"),
                What::SessionLog(_) => {
                    scalars.values_mut().for_each(|points| points.retain(|point| point.0 < event.step))
                }
                What::Summary(summary) => summary.value.into_iter().for_each(|value| {
                    scalars.entry(value.tag).or_default().push((event.step, value.simple_value.unwrap()));
                }),
            }
        }
        scalars
    }
}

fn untrained() -> EvaluationReport {
    EvaluationReport {
        accepted_length: 1.0,
        prompts: 2,
        new_tokens: 8,
        verifies: 8,
        tokens_per_s: 100.0,
        plain_tokens_per_s: None,
        lossless: None,
    }
}

/// A run that was restarted from step 10.
fn restarted() -> Run {
    let mut run = Run::new();
    run.events.evaluated(0, &untrained());
    run.step(10, 3.0);
    run.append(SAMPLES_FILE, &samples_line(15, 0));
    run.step(20, 2.5);
    run.step(30, 2.0);
    run.step(20, 0.0);
    run
}

#[test]
fn steps_waits_and_evaluations_are_scalars_and_repeated_steps_count_once() {
    let scalars = restarted().scalars();
    assert_eq!(scalars["train/loss"], [(10, 3.0), (20, 0.0)]);
    assert_eq!(scalars["slot_accuracy/02"], [(10, 0.25), (20, 0.25)]);
    assert_eq!(scalars["speed/tokens_per_s"], [(10, 7.0), (20, 7.0)]);
    assert_eq!(scalars["evaluation/accepted_length"], [(0, 1.0)]);
    assert!(!scalars.contains_key("train/accuracy"), "null is no number");
    assert_eq!(scalars["waits/targets"], [], "taken back with the step it was seen at");
    let mut steady = Run::new();
    steady.append(SAMPLES_FILE, &samples_line(15, 0));
    steady.step(15, 1.0);
    assert_eq!(
        (&*steady.scalars()["waits/targets"], &*steady.scalars()["waits/drafters"]),
        (&[(15, 0.4)][..], &[(15, 0.0)][..])
    );
}

#[test]
fn what_cannot_be_written_is_said_once_and_left_out() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(FOLDER), "in the way").unwrap();
    let (console, lines) = Console::overheard();
    let mut events = Events::of_run(folder.path(), &console);
    fs::write(folder.path().join(METRICS_FILE), "{\"step\":1,\"loss\":1.0}\n").unwrap();
    events.catch_up();
    events.evaluated(1, &untrained());
    let lines = lines();
    assert!(lines.len() == 1 && lines[0].contains("no more events"), "{lines:?}");
}

/// Skipped where `python3` has no tensorboard.
#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn tensorboards_own_reader_finds_them() {
    if !Command::new("python3").args(["-c", "import tensorboard"]).output().is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: python3 has no tensorboard");
        return;
    }
    let run = restarted();
    let read = Command::new("python3").args(["-c", include_str!("read.py")]).arg(run.tensorboard()).output().unwrap();
    let (found, errors) = (String::from_utf8(read.stdout).unwrap(), String::from_utf8_lossy(&read.stderr).into_owned());
    for line in ["train/loss 10:3 20:0", "slot_accuracy/01 10:0.5 20:0.5", "evaluation/accepted_length 0:1"] {
        assert!(found.lines().any(|found| found == line), "{line} is not in {found}{errors}");
    }
}
