//! May a run go on where an earlier one ended? Only if the same things decide the weights: batch ids in a checkpoint mean
//! rows of one plan, and a learning rate at step N means a schedule.

use std::path::{Path, PathBuf};

use common::config::{Config, ConfigError};
use common::run_plan::{RunPlan, RunPlanError};
use serde::Serialize;
use serde_json::Value;

/// Keys of the sections below that do not touch the weights.
const FREE: [&str; 7] = [
    "data.cache_dir",
    "data.max_dropped",
    "training.save_interval",
    "training.snapshot_interval",
    "training.max_checkpoints",
    "training.log_interval",
    "model.target_model_path",
];

/// A run that cannot be resumed like this.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResumeError {
    /// Another configuration.
    #[error("{key} was {earlier} in the run in {run}, and is {now} now")]
    Differs {
        /// The run folder.
        run: PathBuf,
        /// Section and key.
        key: String,
        /// Its value then.
        earlier: String,
        /// Its value now.
        now: String,
    },
    /// Other chats, or another model behind the same path.
    #[error("{what} is not what it was when the run in {run} was planned")]
    Changed {
        /// The run folder.
        run: PathBuf,
        /// What.
        what: &'static str,
    },
    /// The earlier configuration cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The earlier plan cannot be read.
    #[error(transparent)]
    Plan(#[from] RunPlanError),
}

pub(super) fn check(config: &Config, plan: &RunPlan, run_dir: &Path) -> Result<(), ResumeError> {
    let (earlier_config, earlier) = (Config::of_run(run_dir)?, RunPlan::read(run_dir)?);
    let run = run_dir.to_owned();
    if let Some((key, earlier, now)) = first_difference(&earlier_config, config) {
        return Err(ResumeError::Differs { run, key, earlier: earlier.to_string(), now: now.to_string() });
    }
    let file_name =
        |plan: &RunPlan| plan.token_store.as_ref().and_then(|store| store.file_name().map(ToOwned::to_owned));
    let changed = [
        ("the target model", earlier.target != plan.target),
        ("the drafter's shape", earlier.draft != plan.draft),
        ("the tokenised data", file_name(&earlier) != file_name(plan)),
        ("the batch plan", earlier.batches_per_epoch != plan.batches_per_epoch),
        ("the number of batches", earlier.total_batches != plan.total_batches),
    ];
    match changed.into_iter().find(|(_, differs)| *differs) {
        Some((what, _)) => Err(ResumeError::Changed { run, what }),
        None => Ok(()),
    }
}

/// Key, earlier value and value now of the first key that decides weights.
fn first_difference(earlier: &Config, now: &Config) -> Option<(String, Value, Value)> {
    let sections = |config: &Config| {
        let Config { model, drafter, data, training, .. } = config;
        [("model", json(model)), ("drafter", json(drafter)), ("data", json(data)), ("training", json(training))]
    };
    sections(earlier).into_iter().zip(sections(now)).find_map(|((name, earlier), (_, now))| {
        let keys = now.as_object()?;
        keys.iter().find_map(|(key, now)| {
            let (key, earlier) = (format!("{name}.{key}"), earlier.get(key).unwrap_or(&Value::Null));
            (earlier != now && !FREE.contains(&key.as_str())).then(|| (key, earlier.clone(), now.clone()))
        })
    })
}

fn json(section: &impl Serialize) -> Value {
    serde_json::to_value(section).expect("a configuration has only values that JSON can hold")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::config;

    #[test]
    fn what_decides_the_weights_must_be_the_same_and_the_rest_need_not() {
        let earlier = config(&["training.seed=1"]);
        let difference = |now: &[&str]| first_difference(&earlier, &config(now));
        assert_eq!(difference(&["training.seed=1", "training.save_interval=7", "run.threads=2"]), None);
        let seed = ("training.seed".to_owned(), Value::from(1), Value::from(2));
        assert_eq!(difference(&["training.seed=2"]), Some(seed));
        assert_eq!(
            difference(&["training.seed=1", "data.max_length=9"]).map(|found| found.0),
            Some("data.max_length".into())
        );
    }
}
