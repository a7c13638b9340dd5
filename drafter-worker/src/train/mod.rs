//! The training loop: receive, accumulate, exchange, update, log, save.

mod exchange;
mod log;
pub(crate) mod optimizer;
#[cfg(test)]
mod overfit;
mod receive;
mod schedule;
mod step;

use common::config::Config;
use common::exit::{AnyError, Blame};
use common::ids::{BatchId, Rank, Role, Step};
use common::manifest::Manifest;
use common::queue::{Phase, Queue};
use common::run_plan::RunPlan;
use common::shutdown::Shutdown;
use common::telemetry;
use common::wait::{Patience, WaitError};
use model::arena::{HostArena, SlotShape};
use model::drafter::Drafter;
use model::target::Vocabulary;

use crate::args::TrainArgs;
use crate::{WEIGHTS_HINT, checkpoint};
use exchange::Exchange;
use log::Log;
use optimizer::AdamW;
use receive::{ReceiveError, Receiver, Share};
use schedule::Schedule;
use step::{Objective, Sums};

const DEVICE_HINT: &str = "set run.device to cpu, or make the GPUs visible to libtorch";
const SAVE_HINT: &str = "the run folder must stay writable; earlier checkpoints are as they were";

pub(crate) fn run(args: &TrainArgs) -> Result<(), AnyError> {
    let config = Config::of_run(&args.run)?;
    let plan = RunPlan::read(&args.run)?;
    let patience = Patience { timeout: config.run.wait_timeout(), shutdown: Shutdown::install()? };
    telemetry::init(&telemetry::worker_name(Role::Drafter, Rank(args.rank)));
    let mut trainer = Trainer::new(args, &config, &plan, &patience)?;
    trainer.train()
}

struct Trainer<'a> {
    args: &'a TrainArgs,
    config: &'a Config,
    plan: &'a RunPlan,
    patience: &'a Patience,
    queue: Queue,
    receiver: Receiver,
    objective: Objective,
    drafter: Drafter,
    optimizer: AdamW,
    schedule: Schedule,
    exchange: Exchange,
    log: Log,
    /// Completed steps.
    step: Step,
    saved: Option<Step>,
}

impl<'a> Trainer<'a> {
    fn new(
        args: &'a TrainArgs,
        config: &'a Config,
        plan: &'a RunPlan,
        patience: &'a Patience,
    ) -> Result<Trainer<'a>, AnyError> {
        let rank = Rank(args.rank);
        let device = model::runtime::start(config.run.device, rank, plan.threads).your_input(DEVICE_HINT)?;
        let queue = Queue::attach(&plan.queue_name()).peer_gone("the run has ended: its launcher says why")?;
        let consumer = queue.consumer(rank)?;
        consumer.phase(Phase::Loading);
        let dtype = config.model.torch_dtype;
        let kind = model::runtime::kind(dtype);
        let vocabulary =
            Vocabulary::load(&config.model.target_model_path, &plan.target, device, kind).your_input(WEIGHTS_HINT)?;
        let mut drafter = checkpoint::first_drafter(config, plan, device, kind)?;
        let mut optimizer = AdamW::new(drafter.parameters(), &config.training);
        let step = match &args.checkpoint {
            Some(folder) => checkpoint::restore(folder, plan, &mut drafter, &mut optimizer)?,
            None => Step(0),
        };
        let shape = SlotShape {
            tokens: config.data.batch_tokens as usize,
            taps: plan.draft.num_taps(),
            hidden: plan.draft.hidden_size,
            dtype,
        };
        let arena = HostArena::attach(&plan.arena_name(), shape)?;
        let exchange = Exchange::new(config, plan, rank, patience)?;
        let log = Log::new(&args.run, config, plan, rank)?;
        tracing::info!(?device, "ready at step {step} of {}", plan.total_steps);
        let receiver = Receiver { consumer, arena, device, share: Share::new(config, plan, rank) };
        let objective = Objective::new(config, plan, vocabulary);
        let schedule = Schedule::new(&config.training, plan.total_steps);
        Ok(Trainer {
            args,
            config,
            plan,
            patience,
            queue,
            receiver,
            objective,
            drafter,
            optimizer,
            schedule,
            exchange,
            log,
            step,
            saved: args.checkpoint.is_some().then_some(step),
        })
    }

    fn train(&mut self) -> Result<(), AnyError> {
        let interval = self.config.training.save_interval;
        while self.step.0 < self.plan.total_steps {
            let Some(sums) = self.one_step()? else { break };
            if interval > 0 && self.step.0.is_multiple_of(interval) {
                self.save()?;
            }
            if sums.stopping > 0.0 {
                break;
            }
        }
        if self.saved != Some(self.step) {
            self.save()?;
        }
        tracing::info!("ended after step {}", self.step);
        Ok(())
    }

    /// The next step's sums over all ranks; `None` at the end of the stream, or when a rank was stopped while waiting.
    fn one_step(&mut self) -> Result<Option<Sums>, AnyError> {
        let next = Step(self.step.0 + 1);
        let consumer = self.receiver.consumer.clone();
        let mut sums = Sums::zero(self.plan.draft.block_size);
        let batches = match self.receiver.receive(next, self.patience) {
            Err(ReceiveError::Wait(WaitError::Shutdown)) => {
                sums.short = 1.0;
                Vec::new()
            }
            batches => batches?,
        };
        for batch in &batches {
            self.objective.accumulate(&mut self.drafter, batch, &mut sums, &consumer);
        }
        sums.stopping = f64::from(u8::from(self.patience.shutdown.is_set()));
        consumer.phase(Phase::AllReduce);
        let sums = self.exchange.sum(self.drafter.parameters_mut(), sums)?;
        if sums.short > 0.0 || sums.batches == 0.0 {
            return Ok(None);
        }
        consumer.phase(Phase::Optimizer);
        let rate = self.schedule.rate(next);
        let denominator = sums.blocks.denominator.max(f64::MIN_POSITIVE);
        let norm = self.optimizer.update(self.drafter.parameters_mut(), denominator, rate)?;
        let ids: Vec<BatchId> = batches.iter().map(|batch| batch.id).collect();
        consumer.trained(&ids, next)?;
        self.step = next;
        self.log.step(next, &sums, (rate, norm), &consumer)?;
        Ok(Some(sums))
    }

    /// Rank 0 writes a checkpoint once every rank has noted its batches of the last step as trained.
    fn save(&mut self) -> Result<(), AnyError> {
        self.exchange.meet()?;
        if self.args.rank == 0 {
            self.receiver.consumer.phase(Phase::Checkpoint);
            let manifest = Manifest {
                run_id: self.plan.run_id.clone(),
                step: self.step.0,
                trained: self.queue.trained_ranges(),
                mask_token_id: self.plan.draft.mask_token_id,
            };
            let keep = self.config.training.max_checkpoints as usize;
            checkpoint::save(&self.args.run, keep, &manifest, &self.drafter, &self.optimizer).your_input(SAVE_HINT)?;
        }
        self.saved = Some(self.step);
        Ok(())
    }
}
