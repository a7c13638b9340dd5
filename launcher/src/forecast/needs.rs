//! What a run takes, in bytes: of each GPU, of the machine's memory, of `/dev/shm` and of the run folder's disk.

use std::collections::BTreeMap;

use common::arena::machine_has_gpus;
use common::config::{Config, Device};
use common::exit::{Blame, Fault};
use common::footprint::{self, Footprint, Part};
use common::ids::{Rank, Role};
use common::run_plan::RunPlan;
use serde::Serialize;

use crate::fleet;
use crate::plan::Plan;
use crate::supervise::WorkerId;

/// Memory of the machine that a process takes for itself and its libraries, beside pages of files: libtorch 2.11.0 on a
/// processor (0.1 GB), and with CUDA 13.0 (a target 0.4, a drafter 1.1 GB; H200, driver 580), 2026-11-30.
const ON_CPU: u64 = 100 << 20;
const ON_GPU: u64 = 1100 << 20;

/// Bytes of a parameter: in float32 masters and two moments, and in a checkpoint, which holds bfloat16 weights besides.
const STATE: u64 = 12;
const SAVED: u64 = STATE + 2;

/// What a checkpoint's two large files say of a tensor, for each of the four tensors of a parameter.
const ENTRY: u64 = 130;

/// A process of the run, and what it takes at its peak.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Process {
    pub(crate) name: String,
    /// None on a processor.
    pub(crate) device: Option<u32>,
    /// Of its GPU.
    #[serde(serialize_with = "parts")]
    pub(crate) gpu: Vec<Part>,
    /// Of the machine's memory, files' pages left out.
    #[serde(serialize_with = "parts")]
    pub(crate) host: Vec<Part>,
}

/// What a run takes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Needs {
    /// All at work at the same time: targets, then drafters.
    pub(crate) workers: Vec<Process>,
    /// Decodes held-out prompts before and after, with nobody beside it.
    pub(crate) evaluation: Option<Process>,
    /// Of `/dev/shm`: queue, gradient sums, and slots where they lie there.
    pub(crate) shared_memory: u64,
    /// The control segment, and all slots wherever they lie.
    pub(crate) queue: u64,
    /// Of `/dev/shm`, if there is room: the newest snapshot and the one before, which the next is written over.
    pub(crate) snapshots: u64,
    /// One checkpoint.
    pub(crate) checkpoint: u64,
    /// Checkpoints that are there at the same time, the one being written among them.
    pub(crate) checkpoints: u64,
    /// The tokenised rows, which are on their disk already.
    pub(crate) token_store: u64,
}

impl Needs {
    /// By arithmetic over shapes.
    ///
    /// # Errors
    /// There can be no such queue; the tokenised rows are gone.
    pub(crate) fn of(plan: &Plan) -> Result<Needs, Fault> {
        let (config, run, queue) = (&plan.models.config, &plan.run, plan.queue());
        let of_role = |role| (0..config.run.workers(role)).map(Rank).map(move |rank| WorkerId { role, rank });
        let workers = of_role(Role::Target).chain(of_role(Role::Drafter)).map(|worker| process(config, run, worker));
        let evaluated = config.evaluation.eval_data_path.is_some() || config.data.held_out_share > 0.0;
        let parameters = run.draft.parameter_count();
        let hint = "docs/configuration.md describes the keys of [queue]";
        let shared_memory = fleet::shared_memory(&queue, run.arena, parameters as usize).your_input(hint)?;
        let slots = u64::from(queue.capacity) * queue.slot_bytes;
        Ok(Needs {
            workers: workers.collect(),
            evaluation: evaluated.then(|| evaluation(config, run)),
            shared_memory,
            queue: slots + queue.segment_bytes().your_input(hint)?,
            snapshots: if takes_snapshots(config, run) { 2 * STATE * parameters } else { 0 },
            checkpoint: SAVED * parameters + 4 * ENTRY * run.draft.parameter_shapes().len() as u64,
            checkpoints: checkpoints(config, run.total_steps),
            token_store: plan.store_bytes().your_input("data.cache_dir has to be readable")?,
        })
    }

    /// Peak memory of each device: all its workers together, or the evaluation.
    pub(crate) fn gpus(&self) -> BTreeMap<u32, u64> {
        let mut devices = BTreeMap::new();
        for (device, bytes) in self.workers.iter().filter_map(Process::gpu_bytes) {
            *devices.entry(device).or_default() += bytes;
        }
        if let Some((device, bytes)) = self.evaluation.as_ref().and_then(Process::gpu_bytes) {
            let peak: &mut u64 = devices.entry(device).or_default();
            *peak = bytes.max(*peak);
        }
        devices
    }

    /// Peak memory of the machine: all workers with what they share in `/dev/shm`, or the evaluation. Snapshots take the
    /// `room` that is there at most.
    pub(crate) fn host(&self, room: u64) -> u64 {
        let workers: u64 = self.workers.iter().map(Process::host_bytes).sum();
        let shared = self.shared_memory.max(room.min(self.shared_memory + self.snapshots));
        let evaluation = self.evaluation.as_ref().map_or(0, Process::host_bytes);
        evaluation.max(workers + shared)
    }

    /// Of the disk.
    pub(crate) fn disk(&self) -> u64 {
        self.checkpoint * self.checkpoints
    }
}

impl Process {
    fn gpu_bytes(&self) -> Option<(u32, u64)> {
        Some((self.device?, self.gpu.iter().map(|part| part.bytes).sum()))
    }

    /// Of what it computes on.
    pub(crate) fn parts(&self) -> &[Part] {
        if self.device.is_some() { &self.gpu } else { &self.host }
    }

    pub(crate) fn host_bytes(&self) -> u64 {
        self.host.iter().map(|part| part.bytes).sum()
    }
}

/// Whether workers compute on GPUs.
pub(crate) fn on_gpus(device: Device) -> bool {
    match device {
        Device::Cuda => true,
        Device::Cpu => false,
        Device::Auto => machine_has_gpus(),
    }
}

fn process(config: &Config, run: &RunPlan, worker: WorkerId) -> Process {
    let WorkerId { role, rank } = worker;
    let footprint = footprint::of_worker(config, run, role, rank);
    placed(worker.to_string(), config.run.device_of(role, rank), footprint, (config, run))
}

fn evaluation(config: &Config, run: &RunPlan) -> Process {
    let device = config.run.device_of(Role::Target, Rank(0));
    placed("evaluation".into(), device, footprint::of_evaluation(config, run), (config, run))
}

/// On a GPU its memory is the GPU's, but for what is read or written; else all of it is the machine's.
fn placed(name: String, device: u32, footprint: Footprint, (config, run): (&Config, &RunPlan)) -> Process {
    let own = |bytes| {
        vec![Part { what: "libraries", bytes }, Part { what: "a tensor on its way", bytes: on_its_way(config, run) }]
    };
    if on_gpus(config.run.device) {
        return Process { name, device: Some(device), gpu: footprint.parts, host: own(ON_GPU) };
    }
    let models = footprint.parts.into_iter().filter(|part| part.what != footprint::LIBRARIES);
    Process { name, device: None, gpu: Vec::new(), host: own(ON_CPU).into_iter().chain(models).collect() }
}

/// The largest tensor that is read or written, once as the file's bytes and once as a tensor.
fn on_its_way(config: &Config, run: &RunPlan) -> u64 {
    let embedding = (run.target.vocab_size * run.target.hidden_size) as u64 * config.model.torch_dtype.size();
    let largest = run.draft.parameter_shapes().iter().map(|(_, shape)| shape.iter().product::<i64>() as u64).max();
    2 * embedding.max(4 * largest.unwrap_or(0))
}

fn takes_snapshots(config: &Config, run: &RunPlan) -> bool {
    (1..run.total_steps).contains(&config.training.snapshot_interval)
}

/// The last step is saved too, and one more than are kept is there until the oldest is removed.
fn checkpoints(config: &Config, steps: u64) -> u64 {
    let training = &config.training;
    let saves = if training.save_interval == 0 { 1 } else { steps.div_ceil(training.save_interval) };
    saves.min(u64::from(training.max_checkpoints) + 1)
}

fn parts<S: serde::Serializer>(parts: &[Part], to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Named {
        what: &'static str,
        bytes: u64,
    }
    to.collect_seq(parts.iter().map(|part| Named { what: part.what, bytes: part.bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::config;

    fn on(device: u32, gpu: u64, host: u64) -> Process {
        let part = |bytes| vec![Part { what: "all", bytes }];
        Process { name: "x".into(), device: Some(device), gpu: part(gpu), host: part(host) }
    }

    #[test]
    fn workers_of_a_device_add_up_and_the_evaluation_is_alone() {
        let mut needs = Needs {
            workers: vec![on(0, 10, 1), on(1, 20, 2), on(0, 5, 4)],
            evaluation: Some(on(0, 12, 50)),
            shared_memory: 30,
            queue: 0,
            snapshots: 8,
            checkpoint: 7,
            checkpoints: 3,
            token_store: 0,
        };
        assert_eq!(needs.gpus(), BTreeMap::from([(0, 15), (1, 20)]));
        assert_eq!((needs.host(u64::MAX), needs.disk()), (50, 21));
        needs.evaluation = Some(on(1, 22, 5));
        assert_eq!(needs.gpus(), BTreeMap::from([(0, 15), (1, 22)]));
        let with_snapshots = 1 + 2 + 4 + 30 + 8;
        assert_eq!(
            [0, 35, 1000].map(|room| needs.host(room)),
            [with_snapshots - 8, with_snapshots - 3, with_snapshots]
        );
    }

    #[test]
    fn one_checkpoint_more_than_are_kept_is_there_unless_there_are_fewer() {
        let at_once = |overrides: &[&str], steps| checkpoints(&config(overrides), steps);
        assert_eq!(at_once(&["training.save_interval=0"], 1000), 1);
        let often = ["training.save_interval=100", "training.max_checkpoints=2"];
        assert_eq!(
            (at_once(&often, 90), at_once(&often, 200), at_once(&often, 201), at_once(&often, 9000)),
            (1, 2, 3, 3)
        );
    }
}
