//! The training loop: receive, accumulate, exchange, update, log, save.

mod exchange;
mod log;
#[cfg(test)]
mod overfit;
mod receive;
mod regroup;
mod rehearsal;
mod schedule;
mod share;
mod step;
mod times;

use std::sync::Arc;

use common::config::Config;
use common::exit::{AnyError, Blame};
use common::footprint;
use common::ids::{Rank, Role, Step};
use common::launched::Launcher;
use common::manifest::Manifest;
use common::queue::{Consumer, Phase, Queue};
use common::run_plan::RunPlan;
use common::shutdown::Shutdown;
use common::telemetry;
use common::wait::{Patience, WaitError};
use common::watchdog;
use model::arena::{Arena, ArenaError, LauncherLink, Seat, SlotReader};
use model::cuda::GpuWatch;
use model::drafter::Drafter;
use model::room::Room;
use model::runtime::DeviceError;
use model::target::Vocabulary;

use crate::WEIGHTS_HINT;
use crate::args::TrainArgs;
use crate::checkpoint::{self, Snapshots};
use exchange::Exchange;
use log::{Log, Report};
use model::optimizer::AdamW;
use receive::{ReceiveError, Receiver};
use regroup::{Regroup, Start};
use schedule::Schedule;
use share::Share;
use step::{Objective, Sums};

const SAVE_HINT: &str = "the run folder must stay writable; earlier checkpoints are as they were";

pub(crate) fn run(args: &TrainArgs, launcher: &Launcher) -> Result<(), AnyError> {
    let config = Config::of_run(&args.run)?;
    let plan = RunPlan::read(&args.run)?;
    let patience = Patience { timeout: config.run.wait_timeout(), shutdown: Shutdown::install()? };
    telemetry::init(&telemetry::worker_name(Role::Drafter, Rank(args.rank)));
    let (regroup, end) = Regroup::new(launcher, &patience);
    let rank = Rank(args.rank);
    let gpu = Rank(config.run.device_of(Role::Drafter, rank));
    let device = model::runtime::start(config.run.device, gpu, plan.threads).your_input(DeviceError::HINT)?;
    let queue = Queue::attach(&plan.queue_name())?;
    let mut consumer = queue.consumer(rank)?;
    consumer.phase(Phase::Loading);
    let worker = (Role::Drafter, rank);
    watchdog::start(&queue, worker, patience.timeout, model::runtime::name(device), launcher);
    let room = Room::on(device, footprint::of_worker(&config, &plan, Role::Drafter, rank))?;
    let seat = Seat { worker, device, link: Box::new(LauncherLink::new(launcher)), patience: &patience };
    let arena = match Arena::attach(&config, &plan, seat) {
        Err(error) if error.is_shutdown() => return Ok(()),
        attached => attached.map_err(ArenaError::blamed)?,
    };
    room.demand()?;
    if args.preflight {
        return Ok(());
    }
    let reader = Arc::new(SlotReader::new(arena, device, rank)?);
    let job = room.within(|| Job::load(args, (&config, &plan, &patience), (queue, reader)))?;
    let mut start = Start { checkpoint: args.checkpoint.clone(), end };
    loop {
        let trainer = room.within(|| Trainer::new(&job, consumer, &start));
        match trainer.and_then(|mut trainer| trainer.train()) {
            Err(error) if Regroup::is_due(&error) => {}
            ended => return ended,
        }
        let Some(next) = regroup.wait(&args.run, &plan.snapshots())? else { return Ok(()) };
        (start, consumer) = (next, job.queue.consumer(rank)?);
    }
}

/// What stays the same however often training starts anew.
struct Job<'a> {
    args: &'a TrainArgs,
    config: &'a Config,
    plan: &'a RunPlan,
    /// Deaf to another drafter's death.
    patience: &'a Patience,
    queue: Queue,
    reader: Arc<SlotReader>,
    objective: Objective,
}

impl<'a> Job<'a> {
    fn load(
        args: &'a TrainArgs,
        (config, plan, patience): (&'a Config, &'a RunPlan, &'a Patience),
        (queue, reader): (Queue, Arc<SlotReader>),
    ) -> Result<Job<'a>, AnyError> {
        let kind = model::runtime::kind(config.model.torch_dtype);
        let vocabulary = Vocabulary::load(&config.model.target_model_path, &plan.target, reader.device(), kind)
            .your_input(WEIGHTS_HINT)?;
        let objective = Objective::new(config, plan, vocabulary);
        Ok(Job { args, config, plan, patience, queue, reader, objective })
    }
}

/// Training from one point until its end, or until another drafter dies.
struct Trainer<'a> {
    job: &'a Job<'a>,
    /// Ends also when this drafter is to leave.
    patience: Patience,
    /// Before the receiver: its end frees a GPU's queue that waits for a rank, and with it the thread that fetches.
    exchange: Exchange,
    /// Keeps the place at the queue, too.
    _watch: Option<GpuWatch>,
    receiver: Receiver,
    drafter: Drafter,
    optimizer: AdamW,
    schedule: Schedule,
    snapshots: Snapshots,
    log: Log,
    /// Completed steps.
    step: Step,
    saved: Option<Step>,
}

impl<'a> Trainer<'a> {
    fn new(job: &'a Job<'a>, consumer: Consumer, start: &Start) -> Result<Trainer<'a>, AnyError> {
        let Job { args, config, plan, .. } = *job;
        consumer.phase(Phase::Loading);
        let (rank, device) = (Rank(args.rank), job.reader.device());
        let kind = model::runtime::kind(config.model.torch_dtype);
        let mut drafter = checkpoint::first_drafter(config, plan, device, kind)?;
        let mut optimizer = AdamW::new(drafter.parameters(), &config.training);
        let from = match &start.checkpoint {
            Some(folder) => Some(checkpoint::restore(folder, plan, &mut drafter, &mut optimizer)?),
            None => None,
        };
        let step = Step(from.as_ref().map_or(0, |manifest| manifest.step));
        let exchange = Exchange::new(config, plan, (rank, device), job.patience)?;
        let log = Log::new(&args.run, config, plan, rank, from.as_ref())?;
        // A processor's memory does not run out at once, and its time is dear.
        if device.is_cuda() {
            rehearsal::rehearse(&job.objective, &mut drafter, plan, config.data.batch_tokens);
        }
        consumer.phase(Phase::Ready);
        tracing::info!(?device, "ready at step {step} of {}", plan.total_steps);
        let patience = Patience { timeout: job.patience.timeout, shutdown: start.end.clone() };
        let watch = GpuWatch::start(device, || job.reader.marks(), |track| consumer.gpu_track(track));
        watch.iter().for_each(|watch| consumer.mark_phases(watch.marker()));
        let (share, first) = (Share::new(config, plan, rank), Step(step.0 + 1));
        let receiver = Receiver::start(consumer, Arc::clone(&job.reader), share, first, &patience)?;
        Ok(Trainer {
            job,
            patience,
            _watch: watch,
            receiver,
            drafter,
            optimizer,
            schedule: Schedule::new(&config.training, plan.total_steps),
            exchange,
            snapshots: Snapshots::in_folder(plan.snapshots()),
            log,
            step,
            // Before the first step there is nothing to save. A snapshot is no checkpoint: it is gone after the run.
            saved: start.checkpoint.as_ref().is_none_or(|folder| folder.starts_with(&args.run)).then_some(step),
        })
    }

    fn train(&mut self) -> Result<(), AnyError> {
        let training = &self.job.config.training;
        let due = |interval: u64, step: Step| interval > 0 && step.0.is_multiple_of(interval);
        while self.step.0 < self.job.plan.total_steps {
            let Some(sums) = self.one_step()? else { break };
            if due(training.save_interval, self.step) {
                self.save()?;
            } else if due(training.snapshot_interval, self.step) {
                self.snapshot()?;
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

    /// The next step's sums over all ranks; `None` at the end of the stream, or when a rank was stopped while waiting. A
    /// wait that ends because another drafter is gone goes on to the sum, which says so.
    fn one_step(&mut self) -> Result<Option<Sums>, AnyError> {
        let next = Step(self.step.0 + 1);
        let consumer = self.receiver.consumer.clone();
        consumer.about(next.0);
        let mut sums = Sums::zero(self.job.plan.draft.block_size, self.drafter.parameters().values().device());
        let mut ids = Vec::new();
        loop {
            match self.receiver.next(next, &self.patience) {
                Ok(Some(batch)) => {
                    self.job.objective.accumulate(&mut self.drafter, &batch, &mut sums, &consumer);
                    ids.push(batch.id);
                    self.receiver.give_back(batch)?;
                }
                Ok(None) => break,
                Err(ReceiveError::Wait(WaitError::Shutdown)) => {
                    sums.short = 1.0;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        sums.stopping = f64::from(u8::from(self.job.patience.shutdown.is_set()));
        consumer.phase(Phase::AllReduce);
        let sums = self.exchange.sum(self.drafter.parameters_mut(), sums, &consumer)?;
        if sums.short > 0.0 || sums.batches == 0.0 {
            return Ok(None);
        }
        consumer.phase(Phase::Optimizer);
        let rate = self.schedule.rate(next);
        // A step whose batches hold nothing to learn counts, but moves nothing: there is no mean of no losses.
        let norm = (sums.denominator > 0.0)
            .then(|| self.optimizer.update(self.drafter.parameters_mut(), sums.denominator, rate));
        consumer.trained(&ids, next)?;
        self.step = next;
        let reported = self.log.step(Report::new(next, &sums, rate, norm.as_ref()), &consumer);
        self.exchange.whole()?;
        reported?;
        Ok(Some(sums))
    }

    /// Where training stands, at rank 0, once every rank has noted its batches of the last step as trained.
    fn standing(&mut self) -> Result<Option<Manifest>, AnyError> {
        let consumer = &self.receiver.consumer;
        let meeting = consumer.time(Phase::AllReduce);
        self.exchange.meet()?;
        drop(meeting);
        self.log.flush(consumer)?;
        Ok((self.job.args.rank == 0).then(|| Manifest {
            run_id: self.job.plan.run_id.clone(),
            step: self.step.0,
            trained: self.job.queue.trained_ranges(),
            mask_token_id: self.job.plan.draft.mask_token_id,
            tokens: self.log.tokens as u64,
            scored_slots: self.log.scored as u64,
        }))
    }

    /// Rank 0 copies the state into memory that outlives it. Without room there, a death costs more steps, that is all.
    fn snapshot(&mut self) -> Result<(), AnyError> {
        let Some(manifest) = self.standing()? else { return Ok(()) };
        self.receiver.consumer.phase(Phase::Snapshot);
        if let Err(error) = self.snapshots.take(&manifest, &self.optimizer) {
            tracing::warn!("no snapshot of step {}: {error}", self.step);
        }
        Ok(())
    }

    /// Rank 0 writes a checkpoint.
    fn save(&mut self) -> Result<(), AnyError> {
        if let Some(manifest) = self.standing()? {
            self.receiver.consumer.phase(Phase::Checkpoint);
            let keep = self.job.config.training.max_checkpoints as usize;
            checkpoint::save(&self.job.args.run, keep, &manifest, &self.drafter, &self.optimizer)
                .your_input(SAVE_HINT)?;
        }
        self.saved = Some(self.step);
        Ok(())
    }
}
