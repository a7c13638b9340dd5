//! The last page: what the run gained and where it lies, or what went wrong first.

mod failure;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use common::evaluation::EvaluationReport;
use common::exit::{Code, Fault};
use common::telemetry::verdict::Verdict;
use serde::{Deserialize, Serialize};

pub(crate) use failure::{FAILURE_FILE, Failure, RunFailure, death};

/// The summary's name in a run folder.
pub(crate) const SUMMARY_FILE: &str = "summary.json";

/// `summary.json`: what a run gained.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Summary {
    pub(crate) run_id: String,
    /// The signal that stopped the run early, if one did.
    pub(crate) stopped_by: Option<String>,
    pub(crate) accepted_length_before: Option<f64>,
    pub(crate) accepted_length_after: Option<f64>,
    /// Whether greedy decoding with the trained drafter gave plain decoding's tokens, in float32.
    pub(crate) lossless: Option<bool>,
    /// From the start of the workers to the end of the last drafter; after `--resume` of this start alone.
    pub(crate) train_seconds: f64,
    /// Tokens of rows trained in `train_seconds`, those without loss included, per second.
    pub(crate) tokens_per_s: f64,
    /// The newest checkpoint.
    pub(crate) checkpoint: Option<PathBuf>,
    pub(crate) steps: u64,
    pub(crate) total_steps: u64,
    /// Rows in the weights' history; a row counts once per epoch.
    pub(crate) rows: u64,
    pub(crate) tokens: u64,
    /// Steps in the checkpoint that `--resume` went on from.
    pub(crate) steps_before: u64,
    /// Tokens in it.
    pub(crate) tokens_before: u64,
    pub(crate) rows_kept: u64,
    pub(crate) rows_dropped: u64,
    pub(crate) plain_tokens_per_s: Option<f64>,
    pub(crate) speculative_tokens_per_s: Option<f64>,
    pub(crate) speedup: Option<f64>,
    pub(crate) eval_prompts: Option<u64>,
    pub(crate) target_restarts: u32,
    pub(crate) drafter_restarts: u32,
    /// What limited the run's speed.
    pub(crate) verdict: Option<Verdict>,
}

/// A summary that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub(crate) struct SummaryError {
    path: PathBuf,
    source: std::io::Error,
}

impl Summary {
    /// Fills in what decoding with the trained drafter gave.
    pub(crate) fn after(&mut self, report: &EvaluationReport) {
        self.accepted_length_after = Some(report.accepted_length);
        self.lossless = report.lossless;
        self.plain_tokens_per_s = report.plain_tokens_per_s;
        self.speculative_tokens_per_s = Some(report.tokens_per_s);
        self.speedup = report.plain_tokens_per_s.map(|plain| speedup(report.tokens_per_s, plain));
        self.eval_prompts = Some(report.prompts);
    }

    /// Writes `summary.json`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, run_dir: &Path) -> Result<(), SummaryError> {
        write_json(run_dir.join(SUMMARY_FILE), self)
    }

    /// The summary as a page.
    pub(crate) fn page(&self, run_dir: &Path) -> String {
        let mut page = String::from("\n");
        if let (Some(before), Some(after), Some(prompts)) =
            (self.accepted_length_before, self.accepted_length_after, self.eval_prompts)
        {
            row(
                &mut page,
                "accepted length",
                &format!(
                    "{before:.2} before training, {after:.2} after: tokens per target pass, {prompts} held-out prompts"
                ),
            );
        }
        if let (Some(with), Some(plain), Some(speedup)) =
            (self.speculative_tokens_per_s, self.plain_tokens_per_s, self.speedup)
        {
            row(&mut page, "decoding", &decoding(with, plain, speedup));
        }
        if let Some(lossless) = self.lossless {
            row(&mut page, "lossless check", lossless_words(lossless));
        }
        row(&mut page, "training", &self.training());
        if self.target_restarts + self.drafter_restarts > 0 {
            row(
                &mut page,
                "restarts",
                &format!("{} of targets, {} of drafters", self.target_restarts, self.drafter_restarts),
            );
        }
        if let Some(verdict) = &self.verdict {
            row(&mut page, "speed", &verdict.sentence);
        }
        let checkpoint = self.checkpoint.as_ref().map_or("none".into(), |folder| folder.display().to_string());
        row(&mut page, "checkpoint", &checkpoint);
        row(&mut page, "summary", &run_dir.join(SUMMARY_FILE).display().to_string());
        page
    }

    /// Speed and volume in words.
    fn training(&self) -> String {
        let Summary { steps, total_steps, rows, tokens, train_seconds, tokens_per_s, .. } = self;
        let whole = format!("{steps} of {total_steps} steps, {rows} rows, {tokens} tokens");
        if self.steps_before == 0 {
            return format!("{tokens_per_s:.0} tokens/s: {whole} in {train_seconds:.1} s");
        }
        let new = tokens.saturating_sub(self.tokens_before);
        let from = self.steps_before;
        format!("{tokens_per_s:.0} tokens/s: {new} tokens in {train_seconds:.1} s, from step {from} on; in all {whole}")
    }
}

/// An evaluation as a page.
pub(crate) fn evaluation_page(report: &EvaluationReport, draft: &Path) -> String {
    let EvaluationReport { accepted_length, prompts, new_tokens, verifies, .. } = report;
    let mut page = String::new();
    row(
        &mut page,
        "accepted length",
        &format!("{accepted_length:.2}: {new_tokens} tokens in {verifies} target passes, {prompts} prompts"),
    );
    if let Some(plain) = report.plain_tokens_per_s {
        row(&mut page, "decoding", &decoding(report.tokens_per_s, plain, speedup(report.tokens_per_s, plain)));
    }
    if let Some(lossless) = report.lossless {
        row(&mut page, "lossless check", lossless_words(lossless));
    }
    row(&mut page, "drafter", &draft.display().to_string());
    page
}

/// A lossless check that failed is a bug of ours, whatever else went well.
///
/// # Errors
/// If it failed.
pub(crate) fn demand_lossless(report: &EvaluationReport) -> Result<(), Fault> {
    match report.lossless {
        Some(false) => {
            Err(Fault::new(Code::Failure, "the lossless check failed: decoding with the drafter changed tokens")
                .with_hint("this is a bug in Tandem: please report it with the run folder's config.toml and plan.json"))
        }
        _ => Ok(()),
    }
}

fn speedup(with: f64, plain: f64) -> f64 {
    with / plain.max(f64::MIN_POSITIVE)
}

fn decoding(with: f64, plain: f64, speedup: f64) -> String {
    format!("{with:.0} tokens/s with the drafter, {plain:.0} without: {speedup:.2} times")
}

fn lossless_words(lossless: bool) -> &'static str {
    if lossless {
        "passed: in float32 the same tokens as plain greedy decoding"
    } else {
        "FAILED: tokens differ from plain greedy decoding's"
    }
}

fn row(page: &mut String, name: &str, text: &str) {
    writeln!(page, "{name:<17}{text}").expect("text takes any text");
}

/// Writes a file of the run folder.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write_json(path: PathBuf, value: &impl Serialize) -> Result<(), SummaryError> {
    let text = serde_json::to_string_pretty(value).expect("a report has only values that JSON can hold");
    std::fs::write(&path, text + "\n").map_err(|source| SummaryError { path, source })
}
