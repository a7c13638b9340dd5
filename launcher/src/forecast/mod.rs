//! What a run will take and how long, told before anything is started: `tandem plan` prints it, and `tandem run` refuses
//! what it finds impossible.
//!
//! ```text
//! plan ─► needs (bytes) ──┬─► findings: refusals, warnings
//! machine ────────────────┘
//! shapes ─► work ─► speeds ─┬─► pace: tokens/s, who limits, a better split
//! an earlier run ─► speeds ─┘
//! ```

mod calibration;
mod findings;
mod needs;
mod pace;
mod page;
mod report;
mod words;
mod work;

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::config::Config;
use common::exit::{Blame, Fault};
use common::manifest;

use crate::machine::{GpuModel, Machine};
use crate::plan::Plan;

use calibration::Measured;
use findings::Findings;
pub(crate) use findings::Refusal;
use needs::{Needs, on_gpus};
use pace::{Layout, Pace};
pub(crate) use report::Report;

/// How long processes of a dead run may take to give back their memory: a killed launcher's took 0.3 s (docs/benchmarks.md).
const LET_GO: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

/// A run, foretold.
pub(crate) struct Forecast<'a> {
    plan: &'a Plan,
    machine: Machine,
    needs: Needs,
    findings: Findings,
    /// Why nobody can tell, if nobody can.
    pace: Result<Pace, String>,
}

/// What a run is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Against<'a> {
    /// GPUs of this model, on a machine that is only thought of.
    pub(crate) gpu: Option<&'static GpuModel>,
    /// A run that was as fast as this one will be.
    pub(crate) like: Option<&'a Path>,
}

impl<'a> Forecast<'a> {
    /// Foretells a run.
    ///
    /// # Errors
    /// There can be no such queue, the run to be like is another one, or the machine cannot be asked.
    pub(crate) fn new(plan: &'a Plan, against: Against) -> Result<Forecast<'a>, Fault> {
        let config = &plan.models.config;
        let (needs, machine) = (Needs::of(plan)?, machine(config, against.gpu)?);
        let findings = Findings::of(plan, &needs, &machine, 0);
        let measured = match (against.like, against.gpu) {
            (Some(run), _) => {
                Some(Measured::read(run, plan).your_input("--like takes the folder of a run of these shapes")?)
            }
            // An earlier run in the same folder, if it was one like this; its speed says nothing of another machine.
            (None, None) => Measured::read(&config.run.output_dir, plan).ok(),
            (None, Some(_)) => None,
        };
        let gpus = machine.gpus.as_ref().ok().filter(|_| on_gpus(config.run.device));
        let pace = Pace::of(plan, measured.as_ref(), gpus);
        Ok(Forecast { plan, machine, needs, findings, pace })
    }

    /// Everything that makes it impossible.
    pub(crate) fn refusals(&self) -> &[Refusal] {
        &self.findings.refusals
    }

    fn config(&self) -> &Config {
        &self.plan.models.config
    }

    /// Peak memory of the machine.
    fn host_bytes(&self) -> u64 {
        self.needs.host(self.machine.host.as_ref().map_or(u64::MAX, |host| host.shared_memory))
    }

    /// Seconds of training, from the first step to the last.
    fn seconds(&self) -> Option<f64> {
        let pace = self.pace.as_ref().ok()?;
        Some(self.plan.whole().tokens as f64 / pace.tokens_per_s)
    }

    /// What other split of the GPUs would be faster.
    fn split(&self) -> Option<String> {
        let used = Layout::of(self.config()).used();
        let there = match (&self.machine.host, &self.machine.gpus) {
            (Some(_), Ok(gpus)) => gpus.visible.len() as u32,
            _ => 0,
        };
        let gpus = on_gpus(self.config().run.device);
        self.pace.as_ref().ok().filter(|_| gpus)?.split(self.config(), there.max(used))
    }
}

/// Refuses a run that this machine cannot do, with the first reason. Memory that a dead run's processes are just giving back
/// is waited for a few seconds.
///
/// # Errors
/// Such a reason, or the machine cannot be asked.
pub(crate) fn demand(plan: &Plan, resume: bool) -> Result<Vec<String>, Fault> {
    let config = &plan.models.config;
    let earlier = if resume { manifest::checkpoints(&config.run.output_dir).len() as u64 } else { 0 };
    let (needs, start) = (Needs::of(plan)?, Instant::now());
    loop {
        let Findings { refusals, warnings } = Findings::of(plan, &needs, &machine(config, None)?, earlier);
        match refusals.first() {
            None => return Ok(warnings),
            Some(_) if refusals.iter().all(|refusal| refusal.may_pass) && start.elapsed() < LET_GO => sleep(LOOK),
            Some(refusal) => return Err(refusal.fault()),
        }
    }
}

fn machine(config: &Config, gpu: Option<&'static GpuModel>) -> Result<Machine, Fault> {
    let devices = Layout::of(config).num_devices();
    match gpu {
        Some(model) => Ok(Machine::with(model, devices)),
        None => Machine::look(&config.run.output_dir, on_gpus(config.run.device))
            .our_failure("/proc, /dev/shm and the run folder's disk have to be readable"),
    }
}
