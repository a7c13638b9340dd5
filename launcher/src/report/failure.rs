//! What went wrong: for the last page, the cause last, and for programs as `failure.json`, the cause first.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use common::exit::{Code, Fault};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::{SummaryError, write_json};
use crate::child::{Ended, Ending, signal_name};
use crate::fleet::Death;
use crate::supervise::{Reason, Story, WorkerId};

/// Lines of a failed worker's output that are shown again.
const TAIL_LINES: usize = 12;

/// A process that failed, as a person is told of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// Its name.
    pub(crate) worker: String,
    /// How it ended, in words.
    pub(crate) ending: String,
    /// Its exit code, if it had one.
    pub(crate) exit_code: Option<i32>,
    /// The signal that killed it, if one did.
    pub(crate) signal: Option<String>,
    /// From its start.
    pub(crate) uptime_s: f64,
    /// What it was doing.
    pub(crate) doing: Option<String>,
    /// Why, in its own words.
    pub(crate) error: Option<String>,
    /// What to do about it.
    pub(crate) hint: String,
    /// Its last lines.
    pub(crate) tail: Vec<String>,
    /// All its lines.
    pub(crate) log: PathBuf,
}

impl Failure {
    pub(crate) fn new(worker: impl Display, end: &Ended, doing: Option<&str>, log: &Path) -> Failure {
        let (exit_code, signal) = match end.ending {
            Ending::Exit(code) => (Some(code), None),
            Ending::Signal(signal) => (None, Some(signal_name(signal))),
        };
        let (error, hint) = match &end.words {
            Some(words) => (Some(words.error.clone()), words.hint.clone()),
            None => spoken(&end.tail),
        };
        let shown = end.tail.len().saturating_sub(TAIL_LINES);
        Failure {
            worker: worker.to_string(),
            ending: end.ending.to_string(),
            exit_code,
            signal,
            uptime_s: end.uptime.as_secs_f64(),
            doing: doing.map(str::to_owned),
            error,
            hint: hint.unwrap_or_else(|| failure_hint(end.ending, log)),
            tail: end.tail[shown..].to_vec(),
            log: log.to_owned(),
        }
    }

    /// `target 0 was killed by SIGKILL after 1.5 s (forward): why`.
    fn line(&self) -> String {
        let doing = self.doing.as_ref().map(|doing| format!(" ({doing})")).unwrap_or_default();
        let why = self.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        format!("{} {} after {:.1} s{doing}{why}", self.worker, self.ending, self.uptime_s)
    }

    /// The last lines to show, and what goes behind them as the very last. What the user has to change comes alone.
    pub(crate) fn page(&self, reason: Option<&str>) -> (Vec<String>, Fault) {
        if let (Some(1), Some(error)) = (self.exit_code, &self.error) {
            let fault = Fault::new(Code::Input, format!("{}: {error}", self.worker));
            return (Vec::new(), fault.with_hint(self.hint.clone()));
        }
        let heading = format!("last lines of {} ({}):", self.worker, self.log.display());
        let lines = [heading].into_iter().chain(self.tail.iter().map(|line| format!("  {line}"))).collect();
        let reason = reason.map(|reason| format!("; given up: {reason}")).unwrap_or_default();
        let code = if self.exit_code == Some(1) { Code::Input } else { Code::Failure };
        (lines, Fault::new(code, self.line() + &reason).with_hint(self.hint.clone()))
    }
}

/// A worker's end on one line.
pub(crate) fn death(worker: WorkerId, death: &Death) -> String {
    Failure::new(worker, &death.end, death.doing.as_deref(), &death.log).line()
}

/// `failure.json`: why a run failed, the cause first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunFailure {
    /// The run.
    pub(crate) run_id: String,
    /// What the launcher's exit code is.
    pub(crate) exit_code: u8,
    /// Why the worker was not tried again.
    pub(crate) reason: String,
    /// Restarts of the worker that was given up.
    pub(crate) restarts: u32,
    /// The worker that was given up.
    pub(crate) cause: Failure,
    /// What was last heard of the others that had not ended well.
    pub(crate) others: Vec<Failure>,
}

/// The failure's name in a run folder.
pub(crate) const FAILURE_FILE: &str = "failure.json";

impl RunFailure {
    /// Tells a failed run's story from its end.
    pub(crate) fn new(run_id: &str, worker: WorkerId, reason: Reason, story: &Story) -> RunFailure {
        let failure =
            |worker: WorkerId, death: &Death| Failure::new(worker, &death.end, death.doing.as_deref(), &death.log);
        let gone =
            |(other, death): &(&WorkerId, &Death)| **other != worker && !death.end.ending.is_success_when_asked();
        let mut others: Vec<_> = story.ended.iter().filter(gone).map(|(other, death)| failure(*other, death)).collect();
        others.sort_by(|a, b| a.worker.cmp(&b.worker));
        let cause = story.ended.get(&worker).map_or_else(|| unkillable(worker), |death| failure(worker, death));
        RunFailure {
            run_id: run_id.to_owned(),
            exit_code: if cause.exit_code == Some(1) { Code::Input } else { Code::Failure }.number(),
            reason: reason.to_string(),
            restarts: story.restarts.get(&worker).copied().unwrap_or_default(),
            cause,
            others,
        }
    }

    /// What to say, the cause last, and how the program ends.
    pub(crate) fn page(&self) -> (Vec<String>, Fault) {
        let others = self.others.iter().map(|other| format!("also: {}", other.line()));
        let (tail, fault) = self.cause.page(Some(&self.reason));
        (others.chain(tail).collect(), fault)
    }

    /// Writes `failure.json`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, run_dir: &Path) -> Result<(), SummaryError> {
        write_json(run_dir.join(FAILURE_FILE), self)
    }
}

/// A worker of whose end nothing is known: there was none.
fn unkillable(worker: WorkerId) -> Failure {
    Failure {
        worker: worker.to_string(),
        ending: "does not end, though killed".into(),
        exit_code: None,
        signal: None,
        uptime_s: 0.0,
        doing: None,
        error: None,
        hint: "it hangs in the kernel (`ps` shows state D): a driver or a file system does not answer".into(),
        tail: Vec::new(),
        log: PathBuf::new(),
    }
}

/// Error and hint on stderr: where a worker has to leave them when its error file cannot be written.
fn spoken(tail: &[String]) -> (Option<String>, Option<String>) {
    let after = |start: &str| tail.iter().rev().find_map(|line| line.strip_prefix(start)).map(str::to_owned);
    (after("target-worker: ").or_else(|| after("drafter-worker: ")), after("hint: "))
}

fn failure_hint(ending: Ending, log: &Path) -> String {
    let log = log.display();
    match ending {
        Ending::Signal(signal) if signal == Signal::SIGKILL as i32 => {
            format!(
                "if nobody sent it, the machine ran out of memory (dmesg tells): lower data.batch_tokens; see {log}"
            )
        }
        Ending::Exit(101) => format!("a panic is a bug in Tandem: please report it with {log}"),
        _ => format!("see {log}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use common::exit::Verdict;
    use common::launched::LastWords;

    use super::*;

    fn failure(ending: Ending, words: Option<&str>) -> Failure {
        let words =
            words.map(|error| LastWords { code: 2, error: error.into(), hint: Some("take a whole folder".into()) });
        let tail = ["a", "b"].map(str::to_owned).to_vec();
        let end = Ended { ending, tail, words, uptime: Duration::from_millis(1500), data: Vec::new() };
        Failure::new("drafter 1", &end, Some("backward"), Path::new("logs/d.log"))
    }

    #[test]
    fn what_a_worker_says_of_your_input_is_the_last_word_and_the_only_one() {
        let (lines, fault) = failure(Ending::Exit(1), Some("weights: norm.weight is missing")).page(Some("r"));
        let verdict = Verdict::of(&fault);
        assert!(lines.is_empty());
        assert_eq!(verdict.line, "drafter 1: weights: norm.weight is missing");
        assert_eq!((verdict.code, verdict.hint.as_deref()), (Code::Input, Some("take a whole folder")));
    }

    #[test]
    fn a_killed_worker_is_named_with_signal_work_reason_and_tail() {
        let (lines, fault) = failure(Ending::Signal(9), None).page(Some("3 restarts"));
        let verdict = Verdict::of(&fault);
        assert_eq!(lines, ["last lines of drafter 1 (logs/d.log):", "  a", "  b"]);
        let line = "drafter 1 was killed by SIGKILL after 1.5 s (backward); given up: 3 restarts";
        assert_eq!(verdict.line, line);
        assert!(verdict.code == Code::Failure && verdict.hint.unwrap().contains("memory"));
    }

    #[test]
    fn without_an_error_file_the_last_lines_speak() {
        let tail = ["x", "drafter-worker: disk full", "hint: make room"].map(str::to_owned);
        assert_eq!(spoken(&tail), (Some("disk full".into()), Some("make room".into())));
        assert_eq!(spoken(&tail[..1]), (None, None));
    }

    #[test]
    fn a_failure_of_ours_keeps_its_reason() {
        let (_, fault) = failure(Ending::Exit(2), Some("no GPU")).page(None);
        assert_eq!(Verdict::of(&fault).line, "drafter 1 failed (exit code 2) after 1.5 s (backward): no GPU");
    }
}
