//! Real draft-verify decoding of held-out prompts, beside plain decoding of the same prompts.

use std::io::Write;
use std::time::Duration;

use common::config::Config;
use common::evaluation::EvaluationReport;
use common::exit::{AnyError, Blame};
use common::ids::Rank;
use common::run_plan::RunPlan;
use data::prompts::{self, Prompt};
use data::tokenizer::ChatTokenizer;
use model::drafter::Drafter;
use model::runtime::DeviceError;
use model::speculate::{self, Generation, Limits};
use model::target::Target;
use tch::{Device, Kind};

use crate::args::EvaluateArgs;
use crate::{WEIGHTS_HINT, checkpoint};

pub(crate) fn run(args: &EvaluateArgs) -> Result<(), AnyError> {
    let config = Config::of_run(&args.run)?;
    let plan = RunPlan::read(&args.run)?;
    let device = model::runtime::start(config.run.device, Rank(0), plan.threads).your_input(DeviceError::HINT)?;
    let tokenizer = ChatTokenizer::of(&config)?;
    let prompts =
        prompts::of_run(&config, &tokenizer)?.ok_or("no held-out rows: set evaluation.eval_data_path")?.prompts;
    let kind = model::runtime::kind(config.model.torch_dtype);
    let report = Bench { args, config: &config, plan: &plan, prompts: &prompts, device }.report(kind)?;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &report)?;
    writeln!(out)?;
    Ok(())
}

/// One evaluation: models of one type over all prompts.
struct Bench<'a> {
    args: &'a EvaluateArgs,
    config: &'a Config,
    plan: &'a RunPlan,
    prompts: &'a [Prompt],
    device: Device,
}

/// Generations of all prompts.
struct Decoded(Vec<Generation>);

impl Decoded {
    /// Tokens after the first of each prompt, which the prompt's own pass yields.
    fn tokens(&self) -> usize {
        self.0.iter().map(|generation| generation.tokens.len().saturating_sub(1)).sum()
    }

    fn verifies(&self) -> usize {
        self.0.iter().map(|generation| generation.verifies).sum()
    }

    fn tokens_per_s(&self) -> f64 {
        let decoding: Duration = self.0.iter().map(|generation| generation.decoding).sum();
        self.tokens() as f64 / decoding.as_secs_f64().max(1e-9)
    }

    fn same_tokens(&self, other: &Decoded) -> bool {
        self.0.iter().map(|generation| &generation.tokens).eq(other.0.iter().map(|generation| &generation.tokens))
    }
}

impl Bench<'_> {
    fn report(&self, kind: Kind) -> Result<EvaluationReport, AnyError> {
        let (plain, drafted) = self.decode(kind)?;
        let lossless = match self.config.evaluation.lossless_check {
            false => None,
            true if kind == Kind::Float => Some(plain.same_tokens(&drafted)),
            // In a lower precision a pass over a block and passes over single tokens round differently, and near-ties
            // may fall either way (spec 4.5); float32 is where equality is owed.
            true => self.decode(Kind::Float).map(|(plain, drafted)| Some(plain.same_tokens(&drafted)))?,
        };
        Ok(EvaluationReport {
            accepted_length: drafted.tokens() as f64 / (drafted.verifies() as f64).max(1.0),
            prompts: self.prompts.len() as u64,
            new_tokens: drafted.tokens() as u64,
            verifies: drafted.verifies() as u64,
            tokens_per_s: drafted.tokens_per_s(),
            plain_tokens_per_s: plain.tokens_per_s(),
            lossless,
        })
    }

    /// All prompts, plain and drafted, in the given precision.
    fn decode(&self, kind: Kind) -> Result<(Decoded, Decoded), AnyError> {
        let (target, drafter) = self.load(kind)?;
        let limits = Limits {
            max_new_tokens: self.config.evaluation.max_new_tokens as usize,
            stop_ids: self.plan.target.eos_token_ids.clone(),
        };
        let prompts = || self.prompts.iter().map(|prompt| prompt.token_ids.as_slice());
        let plain: Result<_, _> = prompts().map(|prompt| speculate::plain(&target, prompt, &limits)).collect();
        let drafted: Result<_, _> =
            prompts().map(|prompt| speculate::drafted(&target, &drafter, prompt, &limits)).collect();
        Ok((Decoded(plain?), Decoded(drafted?)))
    }

    fn load(&self, kind: Kind) -> Result<(Target, Drafter), AnyError> {
        let folder = &self.config.model.target_model_path;
        let target = Target::load(folder, &self.plan.target, self.device, kind).your_input(WEIGHTS_HINT)?;
        let drafter = match &self.args.draft {
            Some(folder) => Drafter::load(folder, &self.plan.draft, self.device, kind)
                .your_input("--draft takes a drafter of this target in the z-lab format")?,
            None => checkpoint::first_drafter(self.config, self.plan, self.device, kind)?,
        };
        Ok((target, drafter))
    }
}
