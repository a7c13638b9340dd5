//! What stands in the way of a run: everything that makes it impossible, and what leaves it little room.

use std::collections::BTreeMap;

use common::arena::ArenaKind;
use common::exit::{Code, Fault, SHARED_MEMORY_HINT};
use common::footprint::Fit;
use serde::Serialize;

use super::needs::{Needs, Process};
use super::words::{bytes, counted};
use crate::machine::{Gpu, Host, Machine};
use crate::plan::{FolderError, Plan};

/// One thing that makes a run impossible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Refusal {
    /// In words.
    pub(crate) what: String,
    /// How much it takes, where that is a number: bytes, or devices.
    pub(crate) needs: Option<u64>,
    /// How much there is.
    pub(crate) has: Option<u64>,
    /// What helps.
    pub(crate) hint: String,
    /// Whether there would be enough if others gave back what they have.
    #[serde(skip)]
    pub(crate) may_pass: bool,
}

impl Refusal {
    /// As the error that a run ends with.
    pub(crate) fn fault(&self) -> Fault {
        Fault::new(Code::Input, self.what.clone()).with_hint(&self.hint)
    }
}

/// Everything that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) refusals: Vec<Refusal>,
    /// What a run may yet come through.
    pub(crate) warnings: Vec<String>,
}

impl Findings {
    /// Holds a run's needs against a machine; `earlier` checkpoints are in the run folder already.
    pub(crate) fn of(plan: &Plan, needs: &Needs, machine: &Machine, earlier: u64) -> Findings {
        let mut findings = Findings::default();
        if let Ok(gpus) = &machine.gpus {
            findings.missing(needs, gpus.visible.len() as u64);
            for (device, bytes) in needs.gpus() {
                gpus.get(device).into_iter().for_each(|gpu| findings.gpu((device, gpu), bytes, needs));
            }
        }
        if let Some(host) = &machine.host {
            findings.shared_memory(plan, needs, host);
            findings.memory(needs, host);
            match &host.disk {
                Ok(free) => findings.disk(plan, needs, (*free, earlier)),
                Err(error) => findings.folder(error),
            }
        }
        findings
    }

    fn refuse(&mut self, what: String, (needs, has): (u64, u64), hint: impl Into<String>) {
        self.refusals.push(Refusal { what, needs: Some(needs), has: Some(has), hint: hint.into(), may_pass: false });
    }

    /// Refuses memory of which there is `total`, whoever has it now.
    fn refuse_memory(&mut self, what: String, (needs, has, total): (u64, u64, u64), hint: &str) {
        self.refuse(what, (needs, has), hint);
        self.refusals.last_mut().into_iter().for_each(|refusal| refusal.may_pass = needs <= total);
    }

    /// Devices that are not there.
    fn missing(&mut self, needs: &Needs, visible: u64) {
        let missing: BTreeMap<u32, &str> = needs
            .workers
            .iter()
            .filter_map(|worker| Some((worker.device?, worker.name.as_str())))
            .filter(|(device, _)| u64::from(*device) >= visible)
            .collect();
        let Some((last, name)) = missing.last_key_value() else { return };
        let seen = match visible {
            0 => "there is none".to_owned(),
            1 => "only GPU 0 is there".to_owned(),
            _ => format!("there are GPUs 0 to {}", visible - 1),
        };
        let hint = "--pairs, --targets and --drafters say which GPUs are used; CUDA_VISIBLE_DEVICES may hide some";
        self.refuse(format!("{name} wants GPU {last}, but {seen}"), (u64::from(*last) + 1, visible), hint);
    }

    fn gpu(&mut self, (device, gpu): (u32, &Gpu), needed: u64, needs: &Needs) {
        let of = |process: &&Process| process.device == Some(device);
        let workers: Vec<&Process> = needs.workers.iter().filter(of).collect();
        let at_work: u64 = workers.iter().flat_map(|worker| &worker.gpu).map(|part| part.bytes).sum();
        let (who, hint) = match workers.len() {
            _ if at_work < needed => {
                ("the evaluation".to_owned(), "evaluation.lossless_check=false decodes in the compute type alone")
            }
            1 => (workers[0].name.clone(), "lower data.batch_tokens, training.num_anchors or queue.capacity"),
            _ => (
                workers.iter().map(|worker| worker.name.as_str()).collect::<Vec<_>>().join(" and "),
                "give each worker a GPU of its own (--pairs 0:1), or lower data.batch_tokens, training.num_anchors or queue.capacity",
            ),
        };
        let numbers = format!("{} needed, {} free", bytes(needed), bytes(gpu.free));
        let gpu_says = |what| format!("GPU {device} ({}) {what} for {who}: {numbers}", gpu.name);
        match Fit::of(needed, gpu.free) {
            Fit::Loose => {}
            Fit::Tight => self.warnings.push(gpu_says("is tight")),
            Fit::Not => self.refuse_memory(gpu_says("has no room"), (needed, gpu.free, gpu.total), hint),
        }
    }

    fn shared_memory(&mut self, plan: &Plan, needs: &Needs, host: &Host) {
        let (needed, free) = (needs.shared_memory, host.shared_memory);
        if needed > free {
            let queue = plan.queue();
            let (capacity, slot) = (queue.capacity, queue.slot_bytes);
            let what = format!(
                "/dev/shm has no room for this run: {needed} bytes needed ({capacity} slots of {slot}, and the queue), {free} free"
            );
            let hint = match plan.run.arena {
                ArenaKind::Host => SHARED_MEMORY_HINT,
                ArenaKind::Fd | ArenaKind::Cuipc => {
                    "give /dev/shm more room (docker run --shm-size), or remove what lies there"
                }
            };
            self.refuse_memory(what, (needed, free, host.shared_memory_total), hint);
        } else if needed + needs.snapshots > free {
            self.warnings.push(format!(
                "/dev/shm has no room for snapshots ({} of {} are free beside the queue): a drafter's death costs the steps since \
                 the last checkpoint",
                bytes(free - needed),
                bytes(needs.snapshots)
            ));
        }
    }

    fn memory(&mut self, needs: &Needs, host: &Host) {
        let (needed, memory) = (needs.host(host.shared_memory), host.memory);
        if needed > memory.bytes {
            let what = format!(
                "this machine has no memory for this run: {} needed, {} {}",
                bytes(needed),
                bytes(memory.bytes),
                memory.bound
            );
            let hint = match needs.snapshots {
                0 => "lower data.batch_tokens, training.num_anchors or queue.capacity, or end what runs beside it",
                _ => {
                    "training.snapshot_interval=0 takes no snapshots; or lower data.batch_tokens, training.num_anchors or queue.capacity"
                }
            };
            self.refuse_memory(what, (needed, memory.bytes, memory.total), hint);
        }
    }

    /// A run folder that cannot be made.
    fn folder(&mut self, error: &FolderError) {
        let hint = "choose another run.output_dir".to_owned();
        self.refusals.push(Refusal { what: error.to_string(), needs: None, has: None, hint, may_pass: false });
    }

    fn disk(&mut self, plan: &Plan, needs: &Needs, (free, earlier): (u64, u64)) {
        // The next one is written before one of the others goes.
        let new = needs.checkpoints.saturating_sub(earlier).max(1);
        let needed = new * needs.checkpoint;
        if needed > free {
            let what = format!(
                "{}: the disk has no room for {} of {}: {} needed, {} free",
                plan.models.config.run.output_dir.display(),
                counted(new, "checkpoint"),
                bytes(needs.checkpoint),
                bytes(needed),
                bytes(free)
            );
            let hint = "free some, choose another run.output_dir, or lower training.max_checkpoints (one more is there while it is written)";
            self.refuse(what, (needed, free), hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use common::footprint::Part;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn process(name: &str, device: u32, gib: u64) -> Process {
        let part = Part { what: "all", bytes: gib * GIB };
        Process { name: name.into(), device: Some(device), gpu: vec![part], host: Vec::new() }
    }

    fn needs(workers: Vec<Process>, evaluation: Option<Process>) -> Needs {
        let (shared_memory, queue, snapshots, checkpoint, checkpoints, token_store) = Default::default();
        Needs { workers, evaluation, shared_memory, queue, snapshots, checkpoint, checkpoints, token_store }
    }

    fn gpu(needs: &Needs, gib: u64) -> Findings {
        let mut findings = Findings::default();
        let gpu = Gpu { name: "NVIDIA H200".into(), free: gib * GIB, ..Gpu::default() };
        needs.gpus().into_iter().for_each(|(device, bytes)| findings.gpu((device, &gpu), bytes, needs));
        findings
    }

    #[test]
    fn a_gpu_that_is_too_small_is_named_with_who_wants_it_and_what_helps() {
        let shared = needs(vec![process("target 0", 0, 20), process("drafter 0", 0, 60)], None);
        let refusal = gpu(&shared, 75).refusals.remove(0);
        let what = "GPU 0 (NVIDIA H200) has no room for target 0 and drafter 0: 80.0 GiB needed, 75.0 GiB free";
        assert_eq!((refusal.what.as_str(), refusal.needs, refusal.has), (what, Some(80 * GIB), Some(75 * GIB)));
        assert!(refusal.hint.starts_with("give each worker a GPU of its own"), "{}", refusal.hint);

        let apart = needs(vec![process("target 0", 0, 90), process("drafter 0", 1, 60)], Some(process("e", 1, 95)));
        let refusals = gpu(&apart, 80).refusals;
        assert_eq!(refusals.len(), 2, "all of them are found");
        assert!(refusals[0].hint.starts_with("lower data.batch_tokens"), "{}", refusals[0].hint);
        assert!(refusals[1].what.contains("no room for the evaluation: 95.0 GiB"), "{}", refusals[1].what);
        assert!(refusals[1].hint.starts_with("evaluation.lossless_check=false"), "{}", refusals[1].hint);
    }

    #[test]
    fn what_just_fits_is_a_warning_and_what_fits_is_nothing() {
        let needs = needs(vec![process("drafter 0", 1, 96)], None);
        let tight = gpu(&needs, 100);
        assert_eq!(tight.refusals, []);
        assert_eq!(tight.warnings, ["GPU 1 (NVIDIA H200) is tight for drafter 0: 96.0 GiB needed, 100.0 GiB free"]);
        assert_eq!((gpu(&needs, 95).refusals, gpu(&needs, 95).warnings.len()), (vec![], 1), "within the doubt");
        assert_eq!(gpu(&needs, 102), Findings::default());
    }

    #[test]
    fn a_device_that_is_not_there_is_refused_once_and_with_what_is() {
        let needs =
            needs(vec![process("target 0", 0, 1), process("drafter 0", 2, 1), process("drafter 1", 3, 1)], None);
        let missing = |visible| {
            let mut findings = Findings::default();
            findings.missing(&needs, visible);
            findings.refusals
        };
        assert_eq!(missing(4), []);
        let refusals = missing(2);
        let what = "drafter 1 wants GPU 3, but there are GPUs 0 to 1";
        assert_eq!((refusals.len(), refusals[0].what.as_str(), refusals[0].needs), (1, what, Some(4)));
        assert!(missing(1)[0].what.ends_with("only GPU 0 is there") && missing(0)[0].what.ends_with("there is none"));
    }
}
