//! The shared memory and the processes of a run: made here, ended here, and gone when a [`Fleet`] is dropped.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::ids::{Rank, Role};
use common::manifest::{self, ManifestError};
use common::queue::{CreateError, Queue, QueueOwner, QueueSpec, ReclaimError, arena_name, reduce_name};
use common::reduce::{Sum, SumError, SumOwner};
use common::shm::{Segment, ShmError};
use common::wait::WaitError;

use crate::child::{Child, Ended, Launch, SpawnError};
use crate::progress::Console;
use crate::supervise::{Signals, WorkerId, wait};

/// Values that drafters sum in one go at most; each takes 8 bytes of shared memory a drafter.
const SUM_CHUNK: usize = 1 << 20;

/// What a fleet is made from.
#[derive(Clone, Debug)]
pub(crate) struct FleetSpec {
    /// The run folder, as workers are told.
    pub(crate) run_dir: PathBuf,
    /// Where the workers' programs lie.
    pub(crate) programs: PathBuf,
    /// The queue.
    pub(crate) queue: QueueSpec,
    /// Numbers that drafters sum the gradients of.
    pub(crate) parameters: usize,
}

/// A fleet that cannot be made or kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FleetError {
    /// The queue cannot be made.
    #[error(transparent)]
    Queue(#[from] CreateError),
    /// The arena cannot be made.
    #[error(transparent)]
    Arena(#[from] ShmError),
    /// The gradient sum cannot be made.
    #[error(transparent)]
    Sum(#[from] SumError),
    /// What a dead worker had cannot be taken back.
    #[error("cannot take back what {worker} had: {source}")]
    Reclaim {
        /// Who.
        worker: WorkerId,
        /// Why.
        source: ReclaimError,
    },
    /// The queue's ledger cannot be taken back.
    #[error("cannot take the queue back to the newest checkpoint: {0}")]
    Rewind(#[from] WaitError),
    /// Nobody knows which checkpoint is the newest.
    #[error(transparent)]
    Checkpoints(#[from] ManifestError),
    /// A worker does not start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// A worker's end was not ours to see.
    #[error("cannot collect {worker}: {source}")]
    Reap {
        /// Who.
        worker: WorkerId,
        /// Why.
        source: io::Error,
    },
}

/// A running fleet. Fields are dropped in this order: processes first, then the memory they map.
pub(crate) struct Fleet {
    children: Vec<(WorkerId, Child)>,
    sum: Option<SumOwner>,
    _arena: Segment,
    queue: QueueOwner,
    spec: FleetSpec,
    checkpoint: Option<PathBuf>,
    console: Console,
}

impl Fleet {
    /// Makes the shared memory; starts nobody yet.
    ///
    /// # Errors
    /// `/dev/shm` has no room, or a segment of that name exists.
    pub(crate) fn create(spec: FleetSpec, console: &Console) -> Result<Fleet, FleetError> {
        let queue = Queue::create(&spec.queue)?;
        let arena_bytes = u64::from(spec.queue.capacity) * spec.queue.slot_bytes;
        let arena = Segment::create(&arena_name(&spec.queue.run_id), arena_bytes as usize)?;
        let sum = Some(create_sum(&spec)?);
        let console = console.clone();
        Ok(Fleet { children: Vec::new(), sum, _arena: arena, queue, spec, checkpoint: None, console })
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
        let child = Child::spawn(&self.launch(worker), &self.console)?;
        self.children.push((worker, child));
        Ok(())
    }

    fn launch(&self, worker: WorkerId) -> Launch {
        let WorkerId { role, rank } = worker;
        let run_dir = self.spec.run_dir.as_os_str();
        let mut args: Vec<OsString> = match role {
            Role::Target => Vec::new(),
            Role::Drafter => vec!["train".into()],
        };
        args.extend(["--run".into(), run_dir.into(), "--rank".into(), rank.to_string().into()]);
        if let (Role::Drafter, Some(checkpoint)) = (role, &self.checkpoint) {
            args.extend(["--checkpoint".into(), checkpoint.into()]);
        }
        Launch {
            name: worker.to_string(),
            program: self.spec.programs.join(format!("{role}-worker")),
            args,
            log: log_file(&self.spec.run_dir, worker),
            stdout_is_data: false,
        }
    }

    /// Sleeps until something happens or `timeout` is over; who has ended.
    ///
    /// # Errors
    /// The system is out of memory.
    pub(crate) fn wait(&self, signals: &Signals, timeout: Duration) -> io::Result<Vec<WorkerId>> {
        let pidfds: Vec<_> = self.children.iter().map(|(_, child)| child.pidfd()).collect();
        let ended = wait(signals, &pidfds, timeout)?;
        Ok(ended.into_iter().map(|index| self.children[index].0).collect())
    }

    /// Collects a worker that has ended.
    ///
    /// # Errors
    /// Somebody else collected it.
    pub(crate) fn reap(&mut self, worker: WorkerId) -> Result<Ended, FleetError> {
        let index = self.children.iter().position(|(id, _)| *id == worker).expect("only running workers end");
        let (_, child) = self.children.swap_remove(index);
        child.reap().map_err(|source| FleetError::Reap { worker, source })
    }

    /// Asks a worker to end.
    pub(crate) fn terminate(&self, worker: WorkerId) {
        self.child(worker).into_iter().for_each(Child::terminate);
    }

    /// Ends a worker.
    pub(crate) fn kill(&self, worker: WorkerId) {
        self.child(worker).into_iter().for_each(Child::kill);
    }

    /// None if it has ended in the meantime.
    fn child(&self, worker: WorkerId) -> Option<&Child> {
        self.children.iter().find(|(id, _)| *id == worker).map(|(_, child)| child)
    }

    /// Gives what a dead worker held back to the queue.
    ///
    /// # Errors
    /// The queue is beyond repair.
    pub(crate) fn reclaim(&self, worker: WorkerId) -> Result<(), FleetError> {
        let reclaimed = self.queue.reclaim(worker.role, worker.rank);
        reclaimed.map(drop).map_err(|source| FleetError::Reclaim { worker, source })
    }

    /// With all drafters dead: takes the ledger back to what the newest checkpoint was trained on (to nothing, without
    /// one), from where the next drafters go on; says where that is.
    ///
    /// # Errors
    /// The queue is beyond repair, or `/dev/shm` has no room.
    pub(crate) fn rewind(&mut self) -> Result<String, FleetError> {
        for worker in self.workers().into_iter().filter(|worker| worker.role == Role::Drafter) {
            self.reclaim(worker)?;
        }
        let newest = manifest::newest_checkpoint(&self.spec.run_dir)?;
        self.queue.rewind(newest.as_ref().map_or(&[], |(_, manifest)| &manifest.trained))?;
        // The old one first: a rank that died in the middle of a sum has left it unusable, and its name is needed again.
        self.sum = None;
        self.sum = Some(create_sum(&self.spec)?);
        let from = newest.as_ref().map_or("the beginning".into(), |(_, manifest)| format!("step {}", manifest.step));
        self.checkpoint = newest.map(|(folder, _)| folder);
        Ok(from)
    }
}

fn create_sum(spec: &FleetSpec) -> Result<SumOwner, SumError> {
    Sum::create(&reduce_name(&spec.queue.run_id), spec.queue.drafters, spec.parameters.min(SUM_CHUNK))
}

/// Where a worker's output is kept.
pub(crate) fn log_file(run_dir: &Path, worker: WorkerId) -> PathBuf {
    run_dir.join(LOGS).join(format!("{}-{}.log", worker.role, worker.rank))
}

/// Folder of all logs in a run folder.
pub(crate) const LOGS: &str = "logs";
