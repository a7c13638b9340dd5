//! The loop: claim, gather, forward with capture, publish.
//!
//! On a GPU forwards and copies are only enqueued here: while they run, the next batch is claimed and gathered, and a
//! thread of its own publishes each slot once its copies are done.

use std::thread;

use common::config::{Config, DataSection};
use common::exit::{AnyError, Blame};
use common::footprint::{self, IN_FLIGHT};
use common::ids::{BatchId, Rank, Role};
use common::launched::Launcher;
use common::queue::{LeaseError, Phase, Producer, Queue, Rows};
use common::run_plan::RunPlan;
use common::shutdown::Shutdown;
use common::telemetry;
use common::wait::{Patience, WaitError};
use common::watchdog;
use data::plan::{BatchPlan, PlanOptions, PlannedBatch};
use data::store::TokenStore;
use model::arena::{Arena, ArenaError, LauncherLink, Seat, SlotWriter};
use model::cuda::GpuWatch;
use model::room::Room;
use model::runtime::DeviceError;
use model::target::Backbone;
use tch::{Device, Tensor};

use crate::args::Args;
use crate::publish::{Filled, Publisher};

const STORE_HINT: &str = "tokenised rows have to stay where they are while a run lasts: start it again with --resume";

pub(crate) fn run(args: &Args, launcher: &Launcher) -> Result<(), AnyError> {
    let config = Config::of_run(&args.run)?;
    let plan = RunPlan::read(&args.run)?;
    let patience = Patience { timeout: config.run.wait_timeout(), shutdown: Shutdown::install()? };
    telemetry::init(&telemetry::worker_name(Role::Target, Rank(args.rank)));
    let gpu = Rank(config.run.device_of(Role::Target, Rank(args.rank)));
    let device = model::runtime::start(config.run.device, gpu, plan.threads).your_input(DeviceError::HINT)?;
    let queue = Queue::attach(&plan.queue_name())?;
    let producer = queue.producer(Rank(args.rank))?;
    producer.phase(Phase::Loading);
    let worker = (Role::Target, Rank(args.rank));
    watchdog::start(&queue, worker, patience.timeout, model::runtime::name(device), launcher);
    let room = Room::on(device, footprint::of_worker(&config, &plan, worker.0, worker.1))?;
    let seat = Seat { worker, device, link: Box::new(LauncherLink::new(launcher)), patience: &patience };
    let arena = match Arena::attach(&config, &plan, seat) {
        Err(error) if error.is_shutdown() => return Ok(()),
        attached => attached.map_err(ArenaError::blamed)?,
    };
    room.demand()?;
    if args.preflight {
        return Ok(());
    }
    let worker = room.within(|| Worker::load(&config, &plan, arena, device))?;
    producer.phase(Phase::Ready);
    match worker.serve(&producer, &patience) {
        Err(error) if error.is_shutdown() => tracing::info!("stopped as asked"),
        served => served?,
    }
    producer.phase(Phase::Finished);
    Ok(())
}

/// Why serving ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("waiting for a slot: {0}")]
    Wait(#[source] WaitError),
    #[error("publishing a batch: {0}")]
    Lease(#[from] LeaseError),
    #[error("filling a slot: {0}")]
    Arena(#[from] ArenaError),
    #[error("batch {0} is not in this worker's batch plan: the data changed after the run was planned")]
    Plan(BatchId),
}

impl ServeError {
    fn is_shutdown(&self) -> bool {
        match self {
            ServeError::Wait(error) => *error == WaitError::Shutdown,
            ServeError::Arena(error) => error.is_shutdown(),
            ServeError::Lease(_) | ServeError::Plan(_) => false,
        }
    }
}

struct Worker {
    backbone: Backbone,
    taps: Vec<usize>,
    store: TokenStore,
    batches: BatchPlan,
    writer: SlotWriter,
}

impl Worker {
    fn load(config: &Config, plan: &RunPlan, arena: Arena, device: Device) -> Result<Worker, AnyError> {
        let kind = model::runtime::kind(config.model.torch_dtype);
        let folder = &config.model.target_model_path;
        let taps = plan.draft.target_layer_ids.clone();
        let depth = taps.last().map_or(0, |last| last + 1);
        let backbone = Backbone::load(folder, &plan.target, depth, device, kind)
            .your_input("the folder model.target_model_path must hold the weights that its config.json describes")?;
        let store = plan.token_store.as_deref().ok_or("plan.json names no token store")?;
        let store = TokenStore::reopen(store).your_input(STORE_HINT)?;
        let batches = BatchPlan::new(&store, &PlanOptions::of(config));
        let writer = SlotWriter::new(arena, config.run.verify_payload).map_err(ArenaError::blamed)?;
        let worker = Worker { backbone, taps, store, batches, writer };
        if device.is_cuda() {
            worker.rehearse(&config.data, plan.target.vocab_size as u32);
        }
        tracing::info!(?device, "ready, {} batches planned", plan.total_batches);
        Ok(worker)
    }

    /// Captures full batches of made-up rows, as many as are ever in flight, and throws them away: memory that does not
    /// suffice is known before the first slot is taken, and what is taken never grows afterwards. Kernels for the target's
    /// products are tried out on these batches, so their tokens are as different as those of real ones.
    fn rehearse(&self, data: &DataSection, vocab_size: u32) {
        let token_ids: Vec<u32> = (0..data.batch_tokens).map(|place| place % vocab_size).collect();
        let mut offsets: Vec<u32> = (0..data.batch_tokens).step_by(data.max_length as usize).collect();
        offsets.push(data.batch_tokens);
        let mut kept = Vec::new();
        let in_flight = if self.writer.is_asynchronous() { IN_FLIGHT } else { 1 };
        for _ in 0..in_flight {
            let mut keep =
                |_, hidden: &Tensor| kept.extend(self.writer.is_asynchronous().then(|| hidden.shallow_clone()));
            self.backbone.capture(&token_ids, &offsets, &self.taps, &mut keep);
        }
    }

    /// Until every batch is trained.
    fn serve(&self, producer: &Producer, patience: &Patience) -> Result<(), ServeError> {
        let watch = GpuWatch::start(self.backbone.device(), || self.writer.marks(), |track| producer.gpu_track(track));
        watch.iter().for_each(|watch| producer.mark_phases(watch.marker()));
        thread::scope(|scope| {
            let publisher = match self.writer.is_asynchronous() {
                true => Publisher::start(scope, producer.side(), &patience.shutdown),
                false => Publisher::Caller(producer.clone()),
            };
            let served = self.fill_all(producer, &publisher, patience);
            // Its failure is the cause of what the loop saw.
            publisher.finish()?;
            served
        })
    }

    fn fill_all(&self, producer: &Producer, publisher: &Publisher, patience: &Patience) -> Result<(), ServeError> {
        while let Some(lease) = producer.claim(patience).map_err(ServeError::Wait)? {
            producer.phase(Phase::Data);
            let planned = self.batches.batch(lease.batch_id()).ok_or(ServeError::Plan(lease.batch_id()))?;
            let rows = gather(&self.store, planned);
            // Memory that was made anew is mapped by another thread.
            producer.phase(Phase::Await);
            let mut filling = match self.writer.fill(&lease, patience) {
                Err(_) if lease.is_lost() => continue,
                filling => filling?,
            };
            producer.phase(Phase::Forward);
            let mut write = |tap, hidden: &Tensor| filling.write_tap(tap, hidden);
            self.backbone.capture(&rows.token_ids, &rows.document_offsets, &self.taps, &mut write);
            let written = filling.finish()?;
            // From here on the main thread only waits for the device to finish earlier batches, when too many are in flight.
            if self.writer.is_asynchronous() {
                producer.phase(Phase::Device);
            }
            if !publisher.hand_over(Filled { lease, written, bucket: planned.bucket, rows })? {
                break;
            }
        }
        Ok(())
    }
}

/// The planned rows, packed one after another.
fn gather(store: &TokenStore, planned: &PlannedBatch) -> Rows {
    let mut rows = Rows { document_offsets: vec![0], ..Rows::default() };
    for &row in &planned.rows {
        let tokens = store.row(row as usize);
        rows.token_ids.extend_from_slice(tokens.token_ids);
        rows.loss_mask.extend_from_slice(tokens.loss_mask);
        rows.document_offsets.push(rows.token_ids.len() as u32);
        rows.row_ids.push(u64::from(row));
    }
    rows
}
