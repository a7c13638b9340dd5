//! A launcher in small: queue, broker and processes, without policy. It makes no CUDA context.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use common::arena::{ArenaRequest, Broker, Delivery, Worker};
use common::config::{GateMode, PopPolicy};
use common::exit::AnyError;
use common::ids::{Rank, Role};
use common::line::Line;
use common::queue::{ParticipantView, Phase, Queue, QueueOwner, QueueSpec, queue_name};

use crate::spec::{Job, MOST_DOCUMENTS, Spec};

/// Between two looks at the workers.
const LOOK: Duration = Duration::from_millis(1);

pub(crate) struct World {
    pub(crate) spec: Spec,
    pub(crate) queue: QueueOwner,
    broker: Broker,
    running: BTreeMap<(u8, u32), Running>,
    /// Batches whose memory was lost with a target.
    pub(crate) forfeited: u64,
    /// When a part was last made anew.
    pub(crate) remade: Option<Instant>,
    /// Everything that workers said.
    pub(crate) said: Vec<String>,
}

struct Running {
    worker: Worker,
    job: Job,
    child: Child,
    line: Line,
    lines: Receiver<String>,
}

impl World {
    pub(crate) fn new(name: &str, mut spec: Spec) -> Result<World, AnyError> {
        let run_id = format!("checks-{name}-{:x}", std::process::id());
        spec.queue = queue_name(&run_id);
        let queue = Queue::create(&QueueSpec {
            run_id,
            capacity: spec.slots,
            batch_tokens: spec.tokens,
            max_documents: spec.tokens.min(MOST_DOCUMENTS),
            slot_bytes: spec.shape().bytes() as u64,
            bucket_bounds: Vec::new(),
            min_ready: 1,
            gate: GateMode::Level,
            policy: PopPolicy::Mixed,
            max_age: Duration::from_secs(5),
            targets: spec.targets.len() as u32,
            drafters: spec.drafters.len() as u32,
            total_batches: spec.batches,
            seed: 1,
        })?;
        let broker = Broker::new(spec.kind, spec.targets.len() as u32);
        Ok(World { spec, queue, broker, running: BTreeMap::new(), forfeited: 0, remade: None, said: Vec::new() })
    }

    /// Starts a worker.
    pub(crate) fn start(&mut self, role: Role, rank: u32, job: Job) -> Result<(), AnyError> {
        let (line, theirs) = Line::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args([serde_json::to_string(&self.spec)?, serde_json::to_string(&job)?, rank.to_string()]);
        if self.spec.hides {
            let devices = if role == Role::Target { &self.spec.targets } else { &self.spec.drafters };
            command.env("CUDA_VISIBLE_DEVICES", devices[rank as usize].to_string());
        }
        let mut child = command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("stdout was asked for")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|l| sender.send(l)));
        let worker = (role, Rank(rank));
        self.running.insert(key(worker), Running { worker, job, child, line, lines });
        Ok(())
    }

    /// Starts everybody: targets with one job, drafters with another.
    pub(crate) fn start_all(&mut self, target: Job, drafter: Job) -> Result<(), AnyError> {
        (0..self.spec.targets.len() as u32).try_for_each(|rank| self.start(Role::Target, rank, target))?;
        (0..self.spec.drafters.len() as u32).try_for_each(|rank| self.start(Role::Drafter, rank, drafter))
    }

    /// Hears and answers everybody, collects the dead; who has ended, how, and doing what.
    pub(crate) fn look(&mut self) -> Result<Vec<(Worker, Job, std::process::ExitStatus)>, AnyError> {
        thread::sleep(LOOK);
        let mut heard = Vec::new();
        for running in self.running.values() {
            self.said.extend(running.lines.try_iter());
            // A closed line is the end, which is collected below.
            while let Ok(Some(received)) = running.line.try_receive::<ArenaRequest>() {
                heard.push((running.worker, received));
            }
        }
        for (worker, received) in heard {
            self.answer(worker, received.message, received.file)?;
        }
        self.collect()
    }

    fn answer(&mut self, worker: Worker, request: ArenaRequest, fd: Option<OwnedFd>) -> Result<(), AnyError> {
        let made = if let ArenaRequest::Made(part) = &request { Some((part.part, part.version)) } else { None };
        let deliveries = self.broker.hear(worker, request, fd)?;
        self.deliver(deliveries);
        if let Some((part, version)) = made.filter(|(_, version)| *version > 0) {
            self.queue.restore_slots(self.spec.layout().parts.slots_of(part), version)?;
            self.remade = Some(Instant::now());
        }
        Ok(())
    }

    fn deliver(&self, deliveries: Vec<Delivery>) {
        for Delivery { to, reply, fd } in deliveries {
            if let Some(to) = self.running.get(&key(to)) {
                // Whoever does not take it is ending.
                let _ = to.line.send(&reply, fd.as_ref().map(AsFd::as_fd), Duration::from_secs(1));
            }
        }
    }

    fn collect(&mut self) -> Result<Vec<(Worker, Job, std::process::ExitStatus)>, AnyError> {
        let mut ended = Vec::new();
        for running in self.running.values_mut() {
            if let Some(status) = running.child.try_wait()? {
                ended.push((running.worker, running.job, status));
            }
        }
        for (worker, ..) in &ended {
            let gone = self.running.remove(&key(*worker)).ok_or("it was there")?;
            self.said.extend(gone.lines.iter());
            self.queue.reclaim(worker.0, worker.1)?;
            if let Some(lost) = self.broker.ended(*worker) {
                self.forfeited += self.queue.forfeit_slots(self.spec.layout().parts.slots_of(lost.part))?;
                self.deliver(lost.deliveries);
            }
        }
        Ok(ended)
    }

    /// Looks until `holds`, for `limit` at most; a worker that fails ends it.
    pub(crate) fn until(
        &mut self,
        what: &str,
        limit: Duration,
        holds: impl Fn(&World) -> bool,
    ) -> Result<Duration, AnyError> {
        let started = Instant::now();
        while !holds(self) {
            for (worker, _, status) in self.look()? {
                if !status.success() {
                    return Err(format!("{worker:?} ended with {status} while waiting for {what}").into());
                }
            }
            if started.elapsed() > limit {
                return Err(format!("{what}: not within {limit:?}; {:?}", self.queue.snapshot().batches).into());
            }
        }
        Ok(started.elapsed())
    }

    /// Kills a worker with SIGKILL; its end is seen by [`World::look`].
    pub(crate) fn kill(&mut self, (role, rank): (Role, u32)) -> Result<(), AnyError> {
        if let Some(running) = self.running.get_mut(&key((role, Rank(rank)))) {
            running.child.kill()?;
        }
        Ok(())
    }

    /// Kills all of a role and collects them.
    pub(crate) fn kill_all(&mut self, role: Role) -> Result<(), AnyError> {
        let of_role = |worker: Worker| worker.0 == role;
        for running in self.running.values_mut().filter(|running| of_role(running.worker)) {
            running.child.kill()?;
        }
        while self.running.values().any(|running| of_role(running.worker)) {
            self.look()?;
        }
        Ok(())
    }

    pub(crate) fn is_running(&self, role: Role, rank: u32) -> bool {
        self.running.contains_key(&key((role, Rank(rank))))
    }

    /// What the living workers of a role that are past loading show.
    pub(crate) fn at_work(&self, role: Role) -> Vec<ParticipantView> {
        let loaded = |seen: &ParticipantView| !matches!(seen.phase, Phase::Starting | Phase::Loading);
        let participants = self.queue.snapshot().participants.into_iter();
        participants.filter(|seen| seen.role == role && seen.alive && loaded(seen)).collect()
    }

    /// Lines that start with `word`.
    pub(crate) fn count(&self, word: &str) -> usize {
        self.said.iter().filter(|line| line.starts_with(word)).count()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for running in self.running.values_mut() {
            // Gone already is as good.
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

fn key((role, rank): Worker) -> (u8, u32) {
    (u8::from(role == Role::Drafter), rank.0)
}
