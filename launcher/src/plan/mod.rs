//! Configuration and machine to a plan: every check that needs no worker is here, before anything is created.

mod accounting;
mod folder;
mod heaviest;
mod resume;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::arena::ArenaKind;
use common::config::{Config, DrafterSection};
use common::exit::{AnyError, Blame, Code, Fault};
use common::footprint::BatchShape;
use common::ids::{BatchId, Role};
use common::model_config::{DraftConfig, TargetConfig, weight_files};
use common::queue::QueueSpec;
use common::run_plan::RunPlan;
use data::plan::{BatchPlan, PlanOptions};
use data::store::{Accounting, StoreOptions, TokenStore};
use data::tokenizer::ChatTokenizer;

use crate::progress::{Console, Progress};

pub(crate) use accounting::lines as accounting_lines;
pub(crate) use folder::{FolderError, RunFolder};
pub(crate) use resume::ResumeError;

const TARGET_HINT: &str =
    "set model.target_model_path to the Hugging Face folder of a dense Llama, Qwen2 or Qwen3 model";
const TOKENIZER_HINT: &str = "tokenizer.json and config.json in model.target_model_path have to be those of one model";
const DRAFTER_HINT: &str = "change that key of [drafter], or leave it out to have it decided from the target";

/// The models' side of a plan: what evaluation alone needs too.
pub(crate) struct Models {
    /// As written, with what was left out of `[drafter]` filled in.
    pub(crate) config: Config,
    pub(crate) target: TargetConfig,
    pub(crate) draft: DraftConfig,
    pub(crate) tokenizer: ChatTokenizer,
}

impl Models {
    /// Reads the target's folder and decides the drafter's shape: that of the drafter in `draft`, if given.
    ///
    /// # Errors
    /// A folder, model or `[drafter]` key that cannot work.
    pub(crate) fn read(mut config: Config, draft: Option<&Path>) -> Result<Models, Fault> {
        let folder = &config.model.target_model_path;
        let target = TargetConfig::read(folder).your_input(TARGET_HINT)?;
        let tokenizer = ChatTokenizer::of(&config).map_err(|error| refusal(error.hint(), error))?;
        target.check_tokenizer(tokenizer.vocab_len()).your_input(TOKENIZER_HINT)?;
        if let Some(draft) = draft {
            let shape = DraftConfig::read(draft).your_input("--draft takes a drafter's folder in the z-lab format")?;
            config.drafter = filled_in(&shape, Some(draft.to_owned()));
        }
        let draft = DraftConfig::resolve(&config.drafter, &target, tokenizer.vocab_len()).your_input(DRAFTER_HINT)?;
        config.drafter = filled_in(&draft, config.drafter.draft_checkpoint_path);
        Ok(Models { config, target, draft, tokenizer })
    }

    /// That the weights' files are there, of the target and of the drafter that training starts from, if from any; what
    /// is in them is for workers to see.
    ///
    /// # Errors
    /// One is not.
    pub(crate) fn demand_weights(&self) -> Result<(), Fault> {
        weight_files(&self.config.model.target_model_path).your_input(TARGET_HINT)?;
        let start = self.config.drafter.draft_checkpoint_path.as_deref();
        start.map(weight_files).transpose().map(drop).your_input(DRAFTER_HINT)
    }

    /// The plan that workers read.
    pub(crate) fn run_plan(&self, data: Option<(&TokenStore, &BatchPlan)>) -> RunPlan {
        let total_batches = data.map_or(0, |(_, batches)| batches.total_batches());
        let (per_step, num_anchors) =
            (u64::from(self.config.training.batches_per_step), self.config.training.num_anchors);
        RunPlan {
            run_id: run_id(),
            token_store: data.map(|(store, _)| store.path().to_owned()),
            total_batches,
            total_steps: total_batches.div_ceil(per_step),
            batches_per_epoch: data.map_or_else(Vec::new, |(_, batches)| batches.batches_per_epoch().to_vec()),
            heaviest: data
                .map_or_else(BatchShape::default, |(store, batches)| heaviest::of(store, batches, num_anchors)),
            threads: threads(&self.config),
            arena: ArenaKind::resolve(self.config.run.arena, self.config.run.device),
            target: self.target.clone(),
            draft: self.draft.clone(),
        }
    }
}

/// A whole run, worked out.
pub(crate) struct Plan {
    pub(crate) models: Models,
    pub(crate) run: RunPlan,
    pub(crate) accounting: Accounting,
    store: TokenStore,
    batches: BatchPlan,
}

impl Plan {
    /// Tokenises the chats (or finds them tokenised) and packs them into batches.
    ///
    /// # Errors
    /// Data that cannot be used.
    pub(crate) fn new(models: Models, console: &Console) -> Result<Plan, Fault> {
        let (store, accounting) = tokenise(&models.config, &models.tokenizer, console)?;
        let batches = BatchPlan::new(&store, &PlanOptions::of(&models.config));
        let run = models.run_plan(Some((&store, &batches)));
        Ok(Plan { models, run, accounting, store, batches })
    }

    /// Rows and tokens of the batches in these half-open id ranges.
    pub(crate) fn volume(&self, trained: &[(u64, u64)]) -> Volume {
        let ids = trained.iter().flat_map(|(start, end)| *start..*end);
        let rows = ids.filter_map(|id| self.batches.batch(BatchId(id))).flat_map(|batch| &batch.rows);
        rows.fold(Volume::default(), |sum, row| Volume {
            rows: sum.rows + 1,
            tokens: sum.tokens + self.store.row_len(*row as usize) as u64,
        })
    }

    /// Rows and tokens of the whole run.
    pub(crate) fn whole(&self) -> Volume {
        self.volume(&[(0, self.run.total_batches)])
    }

    /// Tokens, and how many of them are learnt, of `most` rows at most, evenly spread.
    pub(crate) fn sample_rows(&self, most: usize) -> impl Iterator<Item = (usize, usize)> {
        let rows = (0..self.store.len()).step_by(self.store.len().div_ceil(most));
        rows.map(|row| (self.store.row_len(row), self.store.supervised_tokens(row)))
    }

    /// Bytes of the tokenised rows on disk.
    ///
    /// # Errors
    /// They are not there any more.
    pub(crate) fn store_bytes(&self) -> io::Result<u64> {
        let files = fs::read_dir(self.store.path())?;
        files.map(|file| Ok(file?.metadata()?.len())).sum()
    }

    /// Refuses to go on with a run whose weights were decided by something else.
    ///
    /// # Errors
    /// What differs, or the earlier run cannot be read.
    pub(crate) fn continues(&self, run_dir: &Path) -> Result<(), ResumeError> {
        resume::check(&self.models.config, &self.run, run_dir)
    }

    /// What the queue of this run is made from.
    pub(crate) fn queue(&self) -> QueueSpec {
        let (config, run) = (&self.models.config, &self.run);
        let slot_bytes = run.draft.slot_token_bytes(config.model.torch_dtype) * u64::from(config.data.batch_tokens);
        QueueSpec {
            run_id: run.run_id.clone(),
            capacity: config.queue.capacity,
            batch_tokens: config.data.batch_tokens,
            max_documents: self.batches.max_documents(),
            slot_bytes,
            bucket_bounds: PlanOptions::of(config).bounds(),
            min_ready: config.queue.min_ready,
            gate: config.queue.gate,
            policy: config.queue.policy,
            max_age: Duration::from_secs_f64(config.queue.max_age_s),
            targets: config.run.workers(Role::Target),
            drafters: config.run.workers(Role::Drafter),
            total_batches: run.total_batches,
            seed: config.training.seed,
        }
    }

    /// The plan in a few lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        let (config, run) = (&self.models.config, &self.run);
        let (target, draft) = (&run.target, &run.draft);
        let mut lines = vec![
            format!(
                "target: {}, {:?}, {} layers, hidden {}",
                config.model.target_model_path.display(),
                target.architecture,
                target.num_hidden_layers,
                target.hidden_size
            ),
            format!(
                "drafter: {} layers, {:.1} M parameters, blocks of {}, taps {:?}, mask token {}",
                draft.num_hidden_layers,
                draft.parameter_count() as f64 / 1e6,
                draft.block_size,
                draft.target_layer_ids,
                draft.mask_token_id
            ),
        ];
        lines.extend(accounting::lines(&self.accounting, config));
        lines.push(format!(
            "plan: {} steps, {} batches of up to {} tokens; {} target and {} drafter workers, threads of each {}",
            run.total_steps,
            run.total_batches,
            config.data.batch_tokens,
            config.run.workers(Role::Target),
            config.run.workers(Role::Drafter),
            run.threads
        ));
        let (slots, mib) = (config.queue.capacity, self.queue().slot_bytes as f64 / f64::from(1 << 20));
        lines.push(format!("arena: {slots} slots of {mib:.1} MiB in {}", run.arena));
        lines
    }
}

/// The store of a run's rows, built if it is not there yet.
///
/// # Errors
/// Data that cannot be used.
pub(crate) fn tokenise(
    config: &Config,
    tokenizer: &ChatTokenizer,
    console: &Console,
) -> Result<(TokenStore, Accounting), Fault> {
    let opened = TokenStore::open_or_build(&StoreOptions::of(config), tokenizer, &tokenising(console));
    console.clear_progress();
    opened.map_err(|error| refusal(error.hint(), error))
}

/// Moves the console's bar while data are tokenised.
pub(crate) fn tokenising(console: &Console) -> impl Fn(data::pass::Progress) {
    |progress| {
        let text = format!("bytes, {} rows", progress.rows);
        console.progress(Progress { what: "tokenising", done: progress.bytes, total: progress.total_bytes, text });
    }
}

/// An amount of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) rows: u64,
    pub(crate) tokens: u64,
}

fn refusal(hint: &str, error: impl Into<AnyError>) -> Fault {
    Fault::new(Code::Input, error).with_hint(hint)
}

/// `[drafter]` with everything said that makes up `draft`.
fn filled_in(draft: &DraftConfig, draft_checkpoint_path: Option<PathBuf>) -> DrafterSection {
    let size = |value: usize| u32::try_from(value).expect("a model's sizes fit 32 bits");
    DrafterSection {
        block_size: size(draft.block_size),
        num_hidden_layers: size(draft.num_hidden_layers),
        target_layer_ids: Some(draft.target_layer_ids.iter().copied().map(size).collect()),
        num_target_layer_ids: size(draft.num_taps()),
        mask_token_id: Some(draft.mask_token_id),
        num_attention_heads: Some(size(draft.num_attention_heads)),
        num_key_value_heads: Some(size(draft.num_key_value_heads)),
        head_dim: Some(size(draft.head_dim)),
        intermediate_size: Some(size(draft.intermediate_size)),
        rope_theta: Some(draft.rope_theta),
        layer_types: Some(draft.layer_types.clone()),
        sliding_window: draft.sliding_window.map(size),
        draft_checkpoint_path,
    }
}

/// Names a run on this machine: when it started, and which process started it.
fn run_id() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", now.as_secs(), std::process::id())
}

/// `run.threads`, or the machine's cores shared out evenly among all workers.
fn threads(config: &Config) -> u32 {
    if config.run.threads > 0 {
        return config.run.threads;
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    (cores / (config.run.workers(Role::Target) + config.run.workers(Role::Drafter))).max(1)
}

#[cfg(test)]
pub(crate) mod tests;
