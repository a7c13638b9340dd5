//! The shared memory and the processes of a run: made here, ended here, and gone when a [`Fleet`] is dropped.

mod error;
mod launch;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use common::arena::{ArenaKind, ArenaRequest, Delivery};
use common::ids::{Rank, Role, Step};
use common::line::{Received, RestartPoint, ToLauncher, ToWorker};
use common::manifest;
use common::queue::{ParticipantView, Phase, Queue, QueueOwner, QueueSpec, Snapshot, SpecError, reduce_name};
use common::reduce::{Sum, SumError, SumOwner};

use crate::arena::{self, Arena};
use crate::child::{Child, Ended, Orphans};
use crate::output::OutputArgs;
use crate::progress::Console;
use crate::snapshots::Snapshots;
use crate::supervise::{Exit, Signals, WorkerId, wait};
pub(crate) use error::FleetError;

/// Values that drafters sum in one go at most; each takes 8 bytes of shared memory a drafter.
const SUM_CHUNK: usize = 1 << 20;

/// What a fleet is made from.
#[derive(Clone, Debug)]
pub(crate) struct FleetSpec {
    /// The run folder, as workers are told.
    pub(crate) run_dir: PathBuf,
    /// Where their output is kept.
    pub(crate) logs: PathBuf,
    /// What of it appears on the console.
    pub(crate) output: OutputArgs,
    /// Where the workers' programs lie.
    pub(crate) programs: PathBuf,
    /// The queue.
    pub(crate) queue: QueueSpec,
    /// Where the slots' payload lies.
    pub(crate) arena: ArenaKind,
    /// Workers only try the way to every part of the arena, and end.
    pub(crate) preflight: bool,
    /// Numbers that drafters sum the gradients of.
    pub(crate) parameters: usize,
}

/// A running fleet. Fields are dropped in this order: processes first, then the memory they map.
pub(crate) struct Fleet {
    children: Vec<Running>,
    orphans: Option<Orphans>,
    sum: Option<SumOwner>,
    arena: Arena,
    snapshots: Snapshots,
    queue: QueueOwner,
    spec: FleetSpec,
    /// Where drafters go on from.
    restart: RestartPoint,
    console: Console,
    /// How often each worker was started.
    lives: HashMap<WorkerId, u32>,
}

struct Running {
    worker: WorkerId,
    child: Child,
    /// Batches that its place had seen before.
    batches: u64,
    log: PathBuf,
}

/// What happened to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// It ended, and is to be collected.
    Ended(WorkerId),
    /// A drafter has given up its place at the queue.
    Left(WorkerId),
}

/// What is left of a worker.
pub(crate) struct Death {
    /// Exit, last words and last lines.
    pub(crate) end: Ended,
    /// What the rules go by.
    pub(crate) exit: Exit,
    /// What it was doing, if it ever took its place.
    pub(crate) doing: Option<String>,
    /// All its lines.
    pub(crate) log: PathBuf,
}

impl Fleet {
    /// Makes the shared memory; starts nobody yet.
    ///
    /// # Errors
    /// `/dev/shm` has no room, or a segment of that name exists.
    pub(crate) fn create(spec: FleetSpec, console: &Console) -> Result<Fleet, FleetError> {
        let queue = Queue::create(&spec.queue)?;
        let snapshots = Snapshots::create(&spec.queue.run_id);
        let snapshots = snapshots.map_err(|(path, source)| FleetError::Snapshots { path, source })?;
        let arena = Arena::create(spec.arena, &spec.queue)?;
        let sum = Some(create_sum(&spec)?);
        let console = console.clone();
        Ok(Fleet {
            children: Vec::new(),
            orphans: None,
            sum,
            arena,
            snapshots,
            queue,
            spec,
            restart: RestartPoint::Beginning,
            console,
            lives: HashMap::new(),
        })
    }

    /// Ends what workers leave behind from here on. For a process that has no other children.
    ///
    /// # Errors
    /// The system does not allow it.
    pub(crate) fn adopt_orphans(&mut self) -> io::Result<()> {
        self.orphans = Some(Orphans::adopt(format!("RUN_ID={}", self.spec.queue.run_id))?);
        Ok(())
    }

    /// Everybody who belongs to the run, targets first.
    pub(crate) fn workers(&self) -> Vec<WorkerId> {
        let of = |role, count| (0..count).map(move |rank| WorkerId { role, rank: Rank(rank) });
        of(Role::Target, self.spec.queue.targets).chain(of(Role::Drafter, self.spec.queue.drafters)).collect()
    }

    /// Starts a worker. Main thread only.
    ///
    /// # Errors
    /// Its program does not start.
    pub(crate) fn spawn(&mut self, worker: WorkerId) -> Result<(), FleetError> {
        let launch = self.launch(worker);
        let child = Child::spawn(&launch, &self.console)?;
        *self.lives.entry(worker).or_default() += 1;
        let batches = self.seen(worker).map_or(0, |seen| seen.batches);
        self.children.push(Running { worker, child, batches, log: launch.log });
        Ok(())
    }

    /// What the worker's place at the queue shows.
    fn seen(&self, worker: WorkerId) -> Option<ParticipantView> {
        let snapshot = Snapshot::read(&self.spec.queue.name()).ok()?;
        snapshot.participants.into_iter().find(|seen| (seen.role, seen.rank) == (worker.role, worker.rank))
    }

    /// Sleeps until something happens or `timeout` is over; what has happened to workers.
    ///
    /// # Errors
    /// The system is out of memory.
    pub(crate) fn wait(&mut self, signals: &Signals, timeout: Duration) -> io::Result<Vec<Happening>> {
        let (ended, speaking) = self.ready(signals, timeout)?;
        let mut happenings: Vec<_> = speaking.into_iter().flat_map(|worker| self.hear(worker)).collect();
        happenings.extend(ended.into_iter().map(Happening::Ended));
        let children: Vec<_> = self.children.iter().map(|running| running.child.pid()).collect();
        self.orphans.iter_mut().for_each(|orphans| orphans.look(&children));
        Ok(happenings)
    }

    /// Who has ended, and who has something to say.
    fn ready(&self, signals: &Signals, timeout: Duration) -> io::Result<(Vec<WorkerId>, Vec<WorkerId>)> {
        let speakers = self.children.iter().filter_map(|running| Some((running.worker, running.child.line()?)));
        let (speakers, lines): (Vec<_>, Vec<_>) = speakers.unzip();
        let pidfds = self.children.iter().map(|running| running.child.pidfd());
        let ready = wait(signals, &pidfds.chain(lines).collect::<Vec<_>>(), timeout)?;
        let (ended, speaking) = ready.split_at(ready.partition_point(|index| *index < self.children.len()));
        Ok((
            ended.iter().map(|index| self.children[*index].worker).collect(),
            speaking.iter().map(|index| speakers[*index - self.children.len()]).collect(),
        ))
    }

    fn hear(&mut self, worker: WorkerId) -> Vec<Happening> {
        let said = self.child(worker).map(Child::hear).unwrap_or_default();
        said.into_iter().filter_map(|received| self.answer(worker, received)).collect()
    }

    /// Does what a worker's message asks for, or passes it on.
    fn answer(&mut self, worker: WorkerId, Received { message, file }: Received<ToLauncher>) -> Option<Happening> {
        match message {
            ToLauncher::Left => Some(Happening::Left(worker)),
            ToLauncher::Arena(request) => {
                self.hand_out(worker, request, file);
                None
            }
        }
    }

    /// Answers a worker that asks for the arena, or has made a part of it.
    fn hand_out(&mut self, worker: WorkerId, request: ArenaRequest, file: Option<OwnedFd>) {
        match self.arena.hear(worker, (request, file), &self.queue) {
            Ok(deliveries) => self.deliver(deliveries),
            Err(error) => self.child(worker).into_iter().for_each(|child| child.fail("its part of the arena", &error)),
        }
    }

    fn deliver(&mut self, deliveries: Vec<Delivery>) {
        for Delivery { to: (role, rank), reply, fd } in deliveries {
            let child = self.child(WorkerId { role, rank });
            child
                .into_iter()
                .for_each(|child| child.tell(&ToWorker::Arena(reply.clone()), fd.as_ref().map(AsFd::as_fd)));
        }
    }

    /// Collects a worker that has ended.
    ///
    /// # Errors
    /// Somebody else collected it.
    pub(crate) fn reap(&mut self, worker: WorkerId) -> Result<Death, FleetError> {
        let index = self.children.iter().position(|running| running.worker == worker);
        let Running { child, batches, log, .. } = self.children.swap_remove(index.expect("only running workers end"));
        let pid = child.pid().as_raw().unsigned_abs();
        let ended = self.arena.ended(worker, &self.queue);
        let (lost, deliveries) = ended.map_err(|source| FleetError::Reclaim { worker, source })?;
        self.deliver(deliveries);
        if lost > 0 {
            let which = format!("{lost} ready batches went with the GPU memory of {worker}");
            self.console.say(format!("tandem: {which}; they are computed again"));
        }
        let end = child.reap().map_err(|source| FleetError::Reap { worker, source })?;
        let children: Vec<_> = self.children.iter().map(|running| running.child.pid()).collect();
        self.orphans.iter_mut().for_each(|orphans| orphans.look_now(&children));
        let seen = self.seen(worker).filter(|seen| seen.pid == Some(pid));
        let exit = Exit {
            ending: end.ending,
            ready: seen.as_ref().is_some_and(|seen| !matches!(seen.phase, Phase::Starting | Phase::Loading)),
            batches: seen.as_ref().map_or(0, |seen| seen.batches.saturating_sub(batches)),
        };
        Ok(Death { end, exit, doing: seen.as_ref().map(doing), log })
    }

    /// No longer waits for a worker's end.
    pub(crate) fn abandon(&mut self, worker: WorkerId) {
        let gone = self.children.extract_if(.., |running| running.worker == worker);
        gone.for_each(|running| running.child.abandon());
    }

    /// Asks a worker to end.
    pub(crate) fn terminate(&mut self, worker: WorkerId) {
        self.child(worker).into_iter().for_each(|child| child.terminate());
    }

    /// Ends a worker.
    pub(crate) fn kill(&mut self, worker: WorkerId) {
        self.child(worker).into_iter().for_each(|child| child.kill());
    }

    /// Tells a worker something.
    pub(crate) fn tell(&mut self, worker: WorkerId, message: &ToWorker) {
        self.child(worker).into_iter().for_each(|child| child.tell(message, None));
    }

    /// Lets a drafter that left go on from where the queue was taken back to.
    pub(crate) fn rejoin(&mut self, drafter: WorkerId) {
        self.tell(drafter, &ToWorker::Rejoin(self.restart));
    }

    /// Ends every drafter's wait for the others' gradients, until the sum is made anew.
    pub(crate) fn abort_sum(&self) {
        self.sum.iter().for_each(SumOwner::abort);
    }

    /// None if it has ended in the meantime.
    fn child(&mut self, worker: WorkerId) -> Option<&mut Child> {
        self.children.iter_mut().find(|running| running.worker == worker).map(|running| &mut running.child)
    }

    /// Gives what a dead worker held back to the queue.
    ///
    /// # Errors
    /// The queue is beyond repair.
    pub(crate) fn reclaim(&self, worker: WorkerId) -> Result<(), FleetError> {
        let reclaimed = self.queue.reclaim(worker.role, worker.rank);
        reclaimed.map(drop).map_err(|source| FleetError::Reclaim { worker, source })
    }

    /// With every drafter gone or away from the queue: takes the ledger to what the newest checkpoint or snapshot was
    /// trained on (to nothing, without one), from where they go on; says where that is.
    ///
    /// # Errors
    /// The queue is beyond repair, or `/dev/shm` has no room.
    pub(crate) fn rewind(&mut self) -> Result<String, FleetError> {
        for worker in self.workers().into_iter().filter(|worker| worker.role == Role::Drafter) {
            self.reclaim(worker)?;
        }
        let newest = manifest::restart_point(&self.spec.run_dir, self.snapshots.path())?;
        self.queue.rewind(newest.as_ref().map_or(&[], |(_, manifest)| &manifest.trained))?;
        // The old one first: a rank that died in the middle of a sum has left it unusable, and its name is needed again.
        self.sum = None;
        self.sum = Some(create_sum(&self.spec)?);
        let from = newest.as_ref().map_or("the beginning".into(), |(_, manifest)| format!("step {}", manifest.step));
        self.restart = newest.map_or(RestartPoint::Beginning, |(folder, manifest)| {
            let in_memory = folder.starts_with(self.snapshots.path());
            let step = Step(manifest.step);
            if in_memory { RestartPoint::Snapshot(step) } else { RestartPoint::Checkpoint(step) }
        });
        Ok(from)
    }
}

/// Bytes of `/dev/shm` that [`Fleet::create`] takes for a queue, its slots and the sum of a gradient of so many numbers.
///
/// # Errors
/// No queue can be made like this.
pub(crate) fn shared_memory(queue: &QueueSpec, arena: ArenaKind, parameters: usize) -> Result<u64, SpecError> {
    let slots = arena::host_bytes(arena, queue);
    Ok(queue.segment_bytes()? + slots + Sum::segment_bytes(queue.drafters, parameters.min(SUM_CHUNK)))
}

fn create_sum(spec: &FleetSpec) -> Result<SumOwner, SumError> {
    Sum::create(&reduce_name(&spec.queue.run_id), spec.queue.drafters, spec.parameters.min(SUM_CHUNK))
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.children.clear();
        self.orphans.iter_mut().for_each(Orphans::end);
    }
}

/// `backward`, or `waiting for a batch`.
fn doing(seen: &ParticipantView) -> String {
    if let Some(what) = seen.waits_for {
        return format!("waiting for {what}");
    }
    let phase = serde_json::to_value(seen.phase).ok();
    phase.as_ref().and_then(|phase| phase.as_str()).unwrap_or_default().replace('_', " ")
}

/// Folder of all logs in a run folder.
pub(crate) const LOGS: &str = "logs";
