//! The configuration as a person writes it: one TOML file, then `section.key=value` overrides.
//!
//! Key names are those that users of other DFlash trainers know. Unknown keys and bad values are refused with file,
//! key, what was found and what is allowed. The resolved file is written into the run folder; workers read only that.
//! Relative paths are relative to the folder `tandem` was started in.

mod arena;
mod check;
mod data;
mod error;
mod layers;
mod load;
mod telemetry;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use arena::ArenaChoice;
pub use data::{BadRows, DataPaths, DataSection, SupervisedTurns};
pub use error::ConfigError;
pub use telemetry::TelemetrySection;

use crate::ids::{Rank, Role};

/// A whole run, as written.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where it runs and where results go.
    pub run: RunSection,
    /// The frozen model.
    pub model: ModelSection,
    /// The draft model's shape.
    #[serde(default)]
    pub drafter: DrafterSection,
    /// Chats in.
    pub data: DataSection,
    /// The optimizer's side.
    #[serde(default)]
    pub training: TrainingSection,
    /// The queue between the two.
    #[serde(default)]
    pub queue: QueueSection,
    /// Decoding with the trained drafter.
    #[serde(default)]
    pub evaluation: EvaluationSection,
    /// What is kept of how the run went.
    #[serde(default)]
    pub telemetry: TelemetrySection,
}

/// `[run]`
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RunSection {
    /// The run folder: resolved configuration, logs, metrics, checkpoints, summary.
    pub output_dir: PathBuf,
    /// Number of target-drafter pairs.
    #[serde(default = "one")]
    pub pairs: u32,
    /// Where tensors live.
    #[serde(default)]
    pub device: Device,
    /// Where hidden states lie between capture and training.
    #[serde(default)]
    pub arena: ArenaChoice,
    /// Targets send a checksum of each batch's hidden states along, drafters check it: for finding faults.
    #[serde(default)]
    pub verify_payload: bool,
    /// Compute threads of each worker; 0 shares the machine's cores out evenly.
    #[serde(default)]
    pub threads: u32,
    /// Devices of the targets, one worker each; instead of `pairs`.
    #[serde(default)]
    pub targets: Option<Vec<u32>>,
    /// Devices of the drafters, one worker each; instead of `pairs`.
    #[serde(default)]
    pub drafters: Option<Vec<u32>>,
    /// How often one worker may be restarted within `restart_window_s`.
    #[serde(default = "defaults::max_restarts")]
    pub max_restarts: u32,
    /// Restarts longer ago than this are forgiven, in seconds.
    #[serde(default = "defaults::restart_window_s")]
    pub restart_window_s: u64,
    /// How often a worker that has never been ready is tried again.
    #[serde(default)]
    pub startup_retries: u32,
    /// How long targets may take to end once asked, in seconds.
    #[serde(default = "defaults::grace_target_s")]
    pub grace_target_s: u64,
    /// How long drafters may take to finish their step and save once asked, in seconds.
    #[serde(default = "defaults::grace_drafter_s")]
    pub grace_drafter_s: u64,
    /// The longest any process waits for another before it gives up, in seconds.
    #[serde(default = "defaults::wait_timeout_s")]
    pub wait_timeout_s: u64,
}

impl RunSection {
    /// The longest any process waits for another.
    pub fn wait_timeout(&self) -> Duration {
        Duration::from_secs(self.wait_timeout_s)
    }

    /// How many workers of a role there are.
    pub fn workers(&self, role: Role) -> u32 {
        self.listed(role).map_or(self.pairs, |devices| devices.len() as u32)
    }

    /// The device of a worker: as listed, else its rank.
    pub fn device_of(&self, role: Role, rank: Rank) -> u32 {
        self.listed(role).and_then(|devices| devices.get(rank.0 as usize)).copied().unwrap_or(rank.0)
    }

    fn listed(&self, role: Role) -> Option<&Vec<u32>> {
        match role {
            Role::Target => self.targets.as_ref(),
            Role::Drafter => self.drafters.as_ref(),
        }
    }
}

/// Where tensors live.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// CUDA where there is a GPU, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// One GPU a worker.
    Cuda,
}

/// `[model]`: the target.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ModelSection {
    /// A Hugging Face folder: config.json, *.safetensors, tokenizer.json.
    pub target_model_path: PathBuf,
    /// Compute type of target and drafter, and the type of captured hidden states.
    #[serde(default)]
    pub torch_dtype: Dtype,
}

/// A floating-point type.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 4 bytes.
    Float32,
    /// 2 bytes; masters and optimizer stay in float32.
    #[default]
    Bfloat16,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> u64 {
        match self {
            Dtype::Float32 => 4,
            Dtype::Bfloat16 => 2,
        }
    }
}

/// `[drafter]`: what is left out is taken from the target's config.json or the published rule.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct DrafterSection {
    /// Slots of a block, the anchor's included.
    pub block_size: u32,
    /// Draft layers.
    pub num_hidden_layers: u32,
    /// Tapped target layers (0-based layer outputs), ascending; default: `num_target_layer_ids` by the published rule.
    pub target_layer_ids: Option<Vec<u32>>,
    /// How many layers to tap when `target_layer_ids` is not given.
    pub num_target_layer_ids: u32,
    /// The embedding row that stands for "not known yet"; default: first row that the tokenizer does not use.
    pub mask_token_id: Option<u32>,
    /// Default: the target's.
    pub num_attention_heads: Option<u32>,
    /// Default: the target's.
    pub num_key_value_heads: Option<u32>,
    /// Default: the target's.
    pub head_dim: Option<u32>,
    /// Default: the target's.
    pub intermediate_size: Option<u32>,
    /// Default: the target's.
    pub rope_theta: Option<f64>,
    /// One of `full_attention` or `sliding_attention` per layer; default: all full.
    pub layer_types: Option<Vec<LayerType>>,
    /// Window of the sliding layers, in positions.
    pub sliding_window: Option<u32>,
    /// A z-lab format folder to start from instead of random weights.
    pub draft_checkpoint_path: Option<PathBuf>,
}

/// How a draft layer sees: over the whole context and both ways in its block, or causally through a window.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// Whole context, whole block.
    FullAttention,
    /// Moving window, causal inside the block.
    SlidingAttention,
}

/// `[training]`
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingSection {
    /// Passes over the data.
    pub num_epochs: u32,
    /// Ends earlier, after this many optimizer steps.
    pub max_steps: Option<u64>,
    /// Packed batches summed into one optimizer step, over all drafters.
    pub batches_per_step: u32,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// The cosine ends here.
    pub min_learning_rate: f64,
    /// Share of the steps that warm up.
    pub warmup_ratio: f64,
    /// Gradients are clipped to this global norm.
    pub max_grad_norm: f64,
    /// AdamW's decoupled decay.
    pub weight_decay: f64,
    /// Blocks drawn per row at most.
    pub num_anchors: u32,
    /// How much each slot of a block weighs.
    pub loss_type: LossType,
    /// Under `decay`, slot i weighs exp(-(i-1)/gamma).
    pub loss_decay_gamma: f64,
    /// Under `dpace`, the floor under the drafter's confidence.
    pub dpace_alpha: f64,
    /// Steps between checkpoints; 0 saves only at the end.
    pub save_interval: u64,
    /// Steps between snapshots in memory, from which drafters go on when one dies; 0 takes none.
    pub snapshot_interval: u64,
    /// Checkpoints kept.
    pub max_checkpoints: u32,
    /// Steps between lines in metrics.jsonl.
    pub log_interval: u64,
    /// Seeds data order, anchors and first weights.
    pub seed: u64,
}

/// How much each slot of a block weighs in the loss.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LossType {
    /// Exponentially less the farther from the anchor; the weighted mean of the losses.
    #[default]
    Decay,
    /// D-PACE: as much as accepted length hinges on it under the drafter's present confidence.
    Dpace,
}

/// `[queue]`
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSection {
    /// Batches in flight at most, over all buckets.
    pub capacity: u32,
    /// The gate: nothing is popped while fewer are ready, until the targets are done.
    pub min_ready: u32,
    /// Whether the gate is asked anew at each pop.
    pub gate: GateMode,
    /// Which ready batch is popped next.
    pub policy: PopPolicy,
    /// Under `mixed`, a batch that waited this long goes next whatever its bucket, in seconds.
    pub max_age_s: f64,
}

/// When the gate closes again.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum GateMode {
    /// As soon as fewer than `min_ready` are ready.
    #[default]
    Level,
    /// Once open, only when nothing is ready any more.
    Latch,
}

/// Which ready batch is popped next.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PopPolicy {
    /// Random bucket weighted by what is ready in it, oldest first.
    #[default]
    Mixed,
    /// Batch order: the same seed gives the same losses whatever the timing (on a GPU nearly).
    Strict,
}

/// `[evaluation]`
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSection {
    /// Held-out chats; the last user turn is answered. Default: the rows that `data.held_out_share` holds out; without
    /// either a run is not evaluated.
    pub eval_data_path: Option<PathBuf>,
    /// Prompts taken from the start of the file.
    pub num_prompts: u32,
    /// Tokens generated per prompt at most.
    pub max_new_tokens: u32,
    /// Decodes again in float32 without a drafter and compares token for token.
    pub lossless_check: bool,
}

fn one() -> u32 {
    1
}

mod defaults {
    pub(super) fn max_restarts() -> u32 {
        3
    }
    pub(super) fn restart_window_s() -> u64 {
        600
    }
    pub(super) fn grace_target_s() -> u64 {
        30
    }
    pub(super) fn grace_drafter_s() -> u64 {
        120
    }
    pub(super) fn wait_timeout_s() -> u64 {
        1800
    }
}

impl Default for DrafterSection {
    fn default() -> Self {
        DrafterSection {
            block_size: 16,
            num_hidden_layers: 5,
            target_layer_ids: None,
            num_target_layer_ids: 5,
            mask_token_id: None,
            num_attention_heads: None,
            num_key_value_heads: None,
            head_dim: None,
            intermediate_size: None,
            rope_theta: None,
            layer_types: None,
            sliding_window: None,
            draft_checkpoint_path: None,
        }
    }
}

impl Default for TrainingSection {
    fn default() -> Self {
        TrainingSection {
            num_epochs: 6,
            max_steps: None,
            batches_per_step: 1,
            learning_rate: 6e-4,
            min_learning_rate: 0.0,
            warmup_ratio: 0.04,
            max_grad_norm: 1.0,
            weight_decay: 0.0,
            num_anchors: 512,
            loss_type: LossType::Decay,
            loss_decay_gamma: 7.0,
            dpace_alpha: 0.5,
            save_interval: 1000,
            snapshot_interval: 100,
            max_checkpoints: 3,
            log_interval: 10,
            seed: 42,
        }
    }
}

impl Default for QueueSection {
    fn default() -> Self {
        QueueSection { capacity: 8, min_ready: 2, gate: GateMode::Level, policy: PopPolicy::Mixed, max_age_s: 5.0 }
    }
}

impl Default for EvaluationSection {
    fn default() -> Self {
        EvaluationSection { eval_data_path: None, num_prompts: 32, max_new_tokens: 128, lossless_check: true }
    }
}
