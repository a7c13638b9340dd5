//! What a run folder tells of its run: finished, failed, cut short or going on, of this build or an older one.
//!
//! Whatever is missing or cannot be read is left out, and said.

mod rows;
mod samples;
mod steps;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use common::run_plan::PLAN_FILE;
use serde::de::DeserializeOwned;

use crate::report::{FAILURE_FILE, RunFailure, SUMMARY_FILE, Summary};
#[cfg(test)]
pub(crate) use rows::ROWS_FILE;
pub(crate) use rows::Rows;
#[cfg(test)]
pub(crate) use samples::tests::line as samples_line;
pub(crate) use samples::{Depth, Samples};
pub(crate) use steps::{StepRecord, Steps};

/// The configuration's name in a run folder.
const CONFIG_FILE: &str = "config.toml";

/// All that a run folder holds.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The folder.
    pub(crate) folder: PathBuf,
    /// `config.toml`, as it stands there.
    pub(crate) config: Option<String>,
    /// The id in `plan.json`.
    plan_id: Option<String>,
    /// `summary.json`, of a run that ended well or was stopped.
    pub(crate) summary: Option<Summary>,
    /// `failure.json`, of a run that failed.
    pub(crate) failure: Option<RunFailure>,
    /// What became of the data's rows.
    pub(crate) rows: Option<Rows>,
    /// `metrics.jsonl`; empty before its first line.
    pub(crate) steps: Steps,
    /// `telemetry.jsonl`.
    pub(crate) samples: Option<Samples>,
    /// Files that are there and cannot be read, with the reason.
    pub(crate) unread: Vec<String>,
}

/// There is nothing to tell.
#[derive(Debug, thiserror::Error)]
#[error("{0}: no run folder: it holds no {CONFIG_FILE}")]
pub(crate) struct NoRun(PathBuf);

impl History {
    /// Reads a run folder.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn read(folder: &Path) -> Result<History, NoRun> {
        if !folder.join(CONFIG_FILE).is_file() {
            return Err(NoRun(folder.to_owned()));
        }
        let mut reader = Reader { folder, unread: Vec::new() };
        let config = reader.file(CONFIG_FILE, |path| fs::read_to_string(path));
        let plan: Option<serde_json::Value> = reader.json(PLAN_FILE);
        let plan_id = plan.and_then(|plan| Some(plan["run_id"].as_str()?.to_owned()));
        let (summary, failure) = (reader.json(SUMMARY_FILE), reader.json(FAILURE_FILE));
        let rows = reader.json(rows::ROWS_FILE);
        let steps = reader.file(common::telemetry::metrics::METRICS_FILE, Steps::read).unwrap_or_default();
        let samples = reader.file(common::telemetry::sample::SAMPLES_FILE, Samples::read);
        let unread = reader.unread;
        Ok(History { folder: folder.to_owned(), config, plan_id, summary, failure, rows, steps, samples, unread })
    }

    /// The run's id, where one is known.
    pub(crate) fn run_id(&self) -> Option<&str> {
        self.plan_id.as_deref().or_else(|| self.summary.as_ref().map(|summary| summary.run_id.as_str()))
    }
}

struct Reader<'a> {
    folder: &'a Path,
    unread: Vec<String>,
}

impl Reader<'_> {
    /// None for a file that is not there, or cannot be read: then it is noted.
    fn file<T>(&mut self, name: &str, read: impl FnOnce(&Path) -> io::Result<T>) -> Option<T> {
        match read(&self.folder.join(name)) {
            Ok(value) => Some(value),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.unread.push(format!("{name}: {error}"));
                None
            }
        }
    }

    fn json<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        self.file(name, |path| Ok(serde_json::from_str(&fs::read_to_string(path)?)?))
    }
}
