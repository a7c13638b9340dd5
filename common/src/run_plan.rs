//! `plan.json`: what the launcher worked out once and every worker of the run reads.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::arena::ArenaKind;
use crate::footprint::BatchShape;
use crate::ids::BatchId;
use crate::model_config::{DraftConfig, TargetConfig};
use crate::{manifest, queue};

/// The plan's name in a run folder.
pub const PLAN_FILE: &str = "plan.json";

/// A run, worked out: the configuration ([`crate::config::Config`]) met the model's and the data's files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunPlan {
    /// Names the run's shared memory; unique on this machine.
    pub run_id: String,
    /// The tokenised rows that batch ids refer to; none in a plan for evaluation alone.
    pub token_store: Option<PathBuf>,
    /// Packed batches to train on, over all epochs; ids run from 0 to here.
    pub total_batches: u64,
    /// Optimizer steps.
    pub total_steps: u64,
    /// Batches of each epoch, before `training.max_steps` cuts the last ones off.
    pub batches_per_epoch: Vec<u64>,
    /// The batch that takes most of a drafter's memory.
    #[serde(default)]
    pub heaviest: BatchShape,
    /// Compute threads of each worker.
    pub threads: u32,
    /// Where hidden states lie.
    pub arena: ArenaKind,
    /// The frozen model.
    pub target: TargetConfig,
    /// The draft model, every shape filled in.
    pub draft: DraftConfig,
}

/// A plan that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RunPlanError {
    /// The file system said no.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not a plan of this version.
    #[error("{path}: not a plan of this version of Tandem: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's words.
        source: serde_json::Error,
    },
}

impl RunPlan {
    /// The queue's shared memory.
    pub fn queue_name(&self) -> String {
        queue::queue_name(&self.run_id)
    }

    /// The host arena's shared memory: the slots' payload.
    pub fn arena_name(&self) -> String {
        queue::arena_name(&self.run_id)
    }

    /// The shared memory in which drafters sum their gradients.
    pub fn reduce_name(&self) -> String {
        queue::reduce_name(&self.run_id)
    }

    /// Where drafters keep snapshots in memory.
    pub fn snapshots(&self) -> PathBuf {
        manifest::snapshots(&self.run_id)
    }

    /// The pass over the data that a batch belongs to, from 0.
    pub fn epoch_of(&self, batch: BatchId) -> u64 {
        let mut end = 0;
        let ends = self.batches_per_epoch.iter().map(|batches| {
            end += batches;
            end
        });
        ends.take_while(|end| *end <= batch.0).count() as u64
    }

    /// Writes `plan.json` into the run folder.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, run_dir: &Path) -> Result<(), RunPlanError> {
        let path = run_dir.join(PLAN_FILE);
        let text = serde_json::to_string_pretty(self).expect("a RunPlan has only values that JSON can hold");
        std::fs::write(&path, text + "\n").map_err(|source| RunPlanError::File { path, source })
    }

    /// Reads `plan.json` of a run folder.
    ///
    /// # Errors
    /// Unreadable file, or not a plan.
    pub fn read(run_dir: &Path) -> Result<RunPlan, RunPlanError> {
        let path = run_dir.join(PLAN_FILE);
        let text =
            std::fs::read_to_string(&path).map_err(|source| RunPlanError::File { path: path.clone(), source })?;
        serde_json::from_str(&text).map_err(|source| RunPlanError::Parse { path, source })
    }
}
