//! `telemetry.jsonl`: what a run's queue and workers did since the line before, one JSON object a line.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::ids::{Rank, Role};
use crate::queue::{BatchCounts, Gauge, ParticipantView, Phase, PhaseView, Profile, SlotCounts, Snapshot, Track};

/// The file's name in a run folder.
pub const SAMPLES_FILE: &str = "telemetry.jsonl";

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When, on the monotonic clock, in nanoseconds.
    pub at_ns: u64,
    /// When, in seconds since 1970.
    pub wall_s: f64,
    /// Seconds since the line before; in the first one, since the first worker was started.
    pub elapsed_s: f64,
    /// Optimizer steps done.
    pub step: u64,
    /// The last step's training loss; none if it is no number.
    pub loss: Option<f64>,
    /// Slots by state.
    pub slots: SlotCounts,
    /// The gate.
    pub gate: GateSample,
    /// By length bucket.
    pub buckets: Vec<BucketSample>,
    /// Batches by state.
    pub batches: BatchCounts,
    /// Every worker, targets first.
    pub workers: Vec<WorkerSample>,
}

/// The gate at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateSample {
    /// Whether pops are let through.
    pub open: bool,
    /// READY batches.
    pub ready: u64,
    /// READY batches that open it.
    pub min_ready: u64,
}

/// A length bucket at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketSample {
    /// Rows have this many tokens at most.
    pub bound: u32,
    /// READY batches.
    pub ready: u32,
}

/// A worker since the line before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSample {
    /// Target or drafter.
    pub role: Role,
    /// Its number within the role.
    pub rank: Rank,
    /// Whether its process lives.
    pub alive: bool,
    /// How often its place was taken again, in all.
    pub restarts: u32,
    /// Time that its main thread ran, in nanoseconds; 0 where the kernel does not count it.
    pub cpu_ns: u64,
    /// Time that its main thread could have run, but had no core.
    pub runnable_ns: u64,
    /// By track and phase.
    pub stages: Stages,
}

/// Time by track and phase.
pub type Stages = BTreeMap<Track, BTreeMap<Phase, Spent>>;

/// Time in a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Visits that ended.
    pub count: u64,
    /// Nanoseconds, those of a visit that goes on included.
    pub ns: u64,
}

/// Makes samples out of snapshots of one queue.
#[derive(Debug, Default)]
pub struct Sampler {
    /// When the last one was taken.
    before_ns: Option<u64>,
    seen: BTreeMap<(Role, Rank), Seen>,
}

/// What the last sample saw of a worker.
#[derive(Debug, Default)]
struct Seen {
    profile: Profile,
    pid: Option<u32>,
    running: Running,
}

/// A process's main thread's times, as its kernel counts them.
#[derive(Clone, Copy, Debug, Default)]
struct Running {
    cpu_ns: u64,
    runnable_ns: u64,
}

impl Sampler {
    /// What happened since the last call; since the start, at the first one.
    pub fn sample(&mut self, snapshot: &Snapshot) -> Sample {
        let workers: Vec<WorkerSample> = snapshot.participants.iter().map(|worker| self.worker(worker)).collect();
        let elapsed_ns = match self.before_ns.replace(snapshot.at_ns) {
            Some(before) => snapshot.at_ns.saturating_sub(before),
            None => workers.iter().map(WorkerSample::main_ns).max().unwrap_or(0),
        };
        let drafter = snapshot.participants.iter().find(|worker| worker.role == Role::Drafter);
        let gauge = |gauge| drafter.and_then(|drafter| drafter.gauges.get(&gauge)).copied().unwrap_or_default();
        let gate = &snapshot.gate;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Sample {
            at_ns: snapshot.at_ns,
            wall_s: since_1970.as_secs_f64(),
            elapsed_s: Duration::from_nanos(elapsed_ns).as_secs_f64(),
            step: gauge(Gauge::Step) as u64,
            loss: Some(gauge(Gauge::Loss)).filter(|loss| loss.is_finite()),
            slots: snapshot.slots,
            gate: GateSample { open: gate.open, ready: gate.ready, min_ready: gate.min_ready },
            buckets: snapshot.buckets.iter().map(|one| BucketSample { bound: one.bound, ready: one.ready }).collect(),
            batches: snapshot.batches,
            workers,
        }
    }

    fn worker(&mut self, worker: &ParticipantView) -> WorkerSample {
        let seen = self.seen.entry((worker.role, worker.rank)).or_default();
        let before = if seen.pid == worker.pid { seen.running } else { Running::default() };
        // Of a process that is gone nothing can be read any more.
        let running = worker.pid.filter(|_| worker.alive).and_then(running).unwrap_or(before);
        let sample = WorkerSample {
            role: worker.role,
            rank: worker.rank,
            alive: worker.alive,
            restarts: worker.incarnation.saturating_sub(1),
            cpu_ns: running.cpu_ns.saturating_sub(before.cpu_ns),
            runnable_ns: running.runnable_ns.saturating_sub(before.runnable_ns),
            stages: spent(&seen.profile, &worker.profile),
        };
        *seen = Seen { profile: worker.profile.clone(), pid: worker.pid, running };
        sample
    }
}

impl WorkerSample {
    /// All time of its main thread.
    pub fn main_ns(&self) -> u64 {
        self.stages.get(&Track::Main).map_or(0, |phases| phases.values().map(|spent| spent.ns).sum())
    }
}

fn spent(before: &Profile, after: &Profile) -> Stages {
    let phases = |(track, views): (&Track, &BTreeMap<Phase, _>)| (*track, since(before.get(track), views));
    after.iter().map(phases).collect()
}

fn since(before: Option<&BTreeMap<Phase, PhaseView>>, after: &BTreeMap<Phase, PhaseView>) -> BTreeMap<Phase, Spent> {
    let mut stages = BTreeMap::new();
    for (phase, view) in after {
        let before = before.and_then(|before| before.get(phase));
        let (count, ns) = before.map_or((0, 0), |before| (before.count, before.total_ns));
        let spent = Spent { count: view.count.saturating_sub(count), ns: view.total_ns.saturating_sub(ns) };
        if spent != Spent::default() {
            stages.insert(*phase, spent);
        }
    }
    stages
}

/// None where the kernel does not count.
fn running(pid: u32) -> Option<Running> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let mut numbers = text.split_whitespace().map(str::parse);
    Some(Running { cpu_ns: numbers.next()?.ok()?, runnable_ns: numbers.next()?.ok()? })
}
