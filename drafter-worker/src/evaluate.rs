//! Real draft-verify decoding of held-out prompts, beside plain decoding of the same prompts.
//!
//! Before training, with the untrained drafter, only the accepted length is of interest: plain decoding and the lossless
//! check, which tell the same again after training, would double the wait for the first step, or worse.

use std::io::Write;
use std::time::{Duration, Instant};

use common::config::Config;
use common::evaluation::EvaluationReport;
use common::exit::{AnyError, Blame};
use common::ids::{Rank, Role};
use common::run_plan::RunPlan;
use common::telemetry;
use data::prompts::{self, Prompt};
use data::tokenizer::ChatTokenizer;
use model::drafter::Drafter;
use model::runtime::{self, DeviceError};
use model::speculate::{self, Generation, Limits};
use model::target::Target;
use tch::{Device, Kind, TchError};

use crate::args::EvaluateArgs;
use crate::{WEIGHTS_HINT, checkpoint};

/// Between two lines on how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &EvaluateArgs) -> Result<(), AnyError> {
    telemetry::init("evaluate");
    let config = Config::of_run(&args.run)?;
    let plan = RunPlan::read(&args.run)?;
    let first = Rank(config.run.device_of(Role::Target, Rank(0)));
    let device = runtime::start(config.run.device, first, plan.threads).your_input(DeviceError::HINT)?;
    if args.draft.is_none() {
        every_device(&config)?;
    }
    let tokenizer = ChatTokenizer::of(&config)?;
    let prompts =
        prompts::of_run(&config, &tokenizer)?.ok_or("no held-out rows: set evaluation.eval_data_path")?.prompts;
    let kind = runtime::kind(config.model.torch_dtype);
    let report = Bench { args, config: &config, plan: &plan, prompts: &prompts, device }.report(kind)?;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &report)?;
    writeln!(out)?;
    Ok(())
}

/// Before training: a worker's missing device shall not be found out after minutes of decoding.
fn every_device(config: &Config) -> Result<(), AnyError> {
    for role in [Role::Target, Role::Drafter] {
        for rank in (0..config.run.workers(role)).map(Rank) {
            let device = runtime::device(config.run.device, Rank(config.run.device_of(role, rank)));
            let worker = telemetry::worker_name(role, rank);
            device.map_err(|error| format!("{worker}: {error}")).your_input(DeviceError::HINT)?;
        }
    }
    Ok(())
}

/// One evaluation: all prompts, in one precision or two.
struct Bench<'a> {
    args: &'a EvaluateArgs,
    config: &'a Config,
    plan: &'a RunPlan,
    prompts: &'a [Prompt],
    device: Device,
}

/// Target and drafter of one precision.
struct Models {
    target: Target,
    drafter: Drafter,
}

/// Generations of all prompts.
#[derive(Default)]
struct Decoded(Vec<Generation>);

impl Decoded {
    /// Tokens after the first of each prompt, which the prompt's own pass yields.
    fn tokens(&self) -> usize {
        self.0.iter().map(|generation| generation.tokens.len().saturating_sub(1)).sum()
    }

    fn verifies(&self) -> usize {
        self.0.iter().map(|generation| generation.verifies).sum()
    }

    /// Tokens a verification.
    fn accepted_length(&self) -> f64 {
        self.tokens() as f64 / (self.verifies() as f64).max(1.0)
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
        let (plain, drafted) = match self.args.draft {
            None => (None, self.drafted("untrained drafter", &self.load(kind)?)?),
            Some(_) => self.both(kind).map(|(plain, drafted)| (Some(plain), drafted))?,
        };
        let lossless = match &plain {
            Some(plain) if self.config.evaluation.lossless_check => Some(self.lossless(kind, plain, &drafted)?),
            _ => None,
        };
        Ok(EvaluationReport {
            accepted_length: drafted.accepted_length(),
            prompts: self.prompts.len() as u64,
            new_tokens: drafted.tokens() as u64,
            verifies: drafted.verifies() as u64,
            tokens_per_s: drafted.tokens_per_s(),
            plain_tokens_per_s: plain.as_ref().map(Decoded::tokens_per_s),
            lossless,
        })
    }

    /// In a lower precision a pass over a block and passes over single tokens round differently, and near-ties may fall
    /// either way (spec 4.5); float32 is where equality is owed.
    fn lossless(&self, kind: Kind, plain: &Decoded, drafted: &Decoded) -> Result<bool, AnyError> {
        if kind == Kind::Float {
            return Ok(plain.same_tokens(drafted));
        }
        tracing::info!("lossless check: once more, in float32");
        let (plain, drafted) = self.both(Kind::Float)?;
        Ok(plain.same_tokens(&drafted))
    }

    /// All prompts, plain and drafted, in the given precision.
    fn both(&self, kind: Kind) -> Result<(Decoded, Decoded), AnyError> {
        let models = self.load(kind)?;
        let plain = self.each("plain", |prompt, limits| speculate::plain(&models.target, prompt, limits))?;
        Ok((plain, self.drafted("with the drafter", &models)?))
    }

    fn drafted(&self, what: &str, Models { target, drafter }: &Models) -> Result<Decoded, TchError> {
        self.each(what, |prompt, limits| speculate::drafted(target, drafter, prompt, limits))
    }

    /// Generates for every prompt, and says now and then how far it is.
    fn each(
        &self,
        what: &str,
        generate: impl Fn(&[u32], &Limits) -> Result<Generation, TchError>,
    ) -> Result<Decoded, TchError> {
        let limits = Limits {
            max_new_tokens: self.config.evaluation.max_new_tokens as usize,
            stop_ids: self.plan.target.eos_token_ids.clone(),
        };
        let mut decoded = Decoded::default();
        let mut told = Instant::now();
        for prompt in self.prompts {
            decoded.0.push(generate(&prompt.token_ids, &limits)?);
            let (done, total) = (decoded.0.len(), self.prompts.len());
            if told.elapsed() >= PROGRESS_INTERVAL || done == total {
                told = Instant::now();
                let (length, speed) = (decoded.accepted_length(), decoded.tokens_per_s());
                tracing::info!("{what}: {done} of {total} prompts, accepted length {length:.2}, {speed:.0} tokens/s");
            }
        }
        Ok(decoded)
    }

    fn load(&self, kind: Kind) -> Result<Models, AnyError> {
        tracing::info!("loading target and drafter in {kind:?}");
        let folder = &self.config.model.target_model_path;
        let target = Target::load(folder, &self.plan.target, self.device, kind).your_input(WEIGHTS_HINT)?;
        let drafter = match &self.args.draft {
            Some(folder) => Drafter::load(folder, &self.plan.draft, self.device, kind)
                .your_input("--draft takes a drafter of this target in the z-lab format")?,
            None => checkpoint::first_drafter(self.config, self.plan, self.device, kind)?,
        };
        Ok(Models { target, drafter })
    }
}
