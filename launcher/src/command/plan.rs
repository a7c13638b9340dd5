//! `tandem plan`.

use std::time::Duration;

use common::arena::{ArenaKind, Parts, machine_has_gpus};
use common::config::Device;
use common::exit::{Blame, Fault};
use common::ids::{Rank, Role};

use super::evaluate::{temporary_folder, write_run};
use super::run::{demand_room, shared_memory, sweep};
use super::{load, print, programs};
use crate::args::PlanArgs;
use crate::fleet::{Fleet, FleetSpec, LOGS};
use crate::output::OutputArgs;
use crate::plan::{Models, Plan};
use crate::progress::Console;
use crate::report::RunFailure;
use crate::supervise::{self, Outcome, Rules, Signals};

/// How long workers may take to end once the way to every part is tried.
const GRACE: Duration = Duration::from_secs(30);

/// Works a run out without starting it: data, steps, devices, bytes. With `--preflight`, workers try the way to every
/// part of the arena.
///
/// # Errors
/// Input that cannot work, or a way that does not.
pub(crate) fn plan(args: &PlanArgs) -> Result<(), Fault> {
    let console = Console::start();
    let planned =
        Models::read(load(&args.config, &args.overrides)?, None).and_then(|models| Plan::new(models, &console));
    console.flush();
    let plan = planned?;
    let lines = plan.lines().into_iter().chain(places(&plan)).chain(memory(&plan)?);
    print(&(lines.collect::<Vec<_>>().join("\n") + "\n"))?;
    sweep(&console)?;
    demand_room(&plan)?;
    if args.preflight { preflight(&plan, &console) } else { Ok(()) }
}

/// Which worker computes where.
fn places(plan: &Plan) -> Vec<String> {
    let run = &plan.models.config.run;
    let gpus = match run.device {
        Device::Cuda => true,
        Device::Cpu => false,
        Device::Auto => machine_has_gpus(),
    };
    let place = |role, rank| match gpus {
        true => format!("{role} {rank} on cuda:{}", run.device_of(role, rank)),
        false => format!("{role} {rank} on the CPU"),
    };
    let of = |role| (0..run.workers(role)).map(Rank).map(move |rank| place(role, rank));
    let workers: Vec<String> = of(Role::Target).chain(of(Role::Drafter)).collect();
    vec![format!("devices: {}", workers.join(", "))]
}

/// What is allocated, and where, before the models.
fn memory(plan: &Plan) -> Result<Vec<String>, Fault> {
    let queue = plan.queue();
    let mut lines = vec![format!("shared memory: {} in /dev/shm", mib(shared_memory(plan)?))];
    if plan.run.arena != ArenaKind::Host {
        let parts = Parts::new(queue.capacity, queue.targets);
        lines.extend((0..queue.targets).map(|part| {
            let device = plan.models.config.run.device_of(Role::Target, Rank(part));
            let slots = parts.slots_of(part).len() as u64;
            format!("part {part}: {slots} slots, {} on cuda:{device}", mib(slots * queue.slot_bytes))
        }));
    }
    Ok(lines)
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Starts every worker of the run to try its ways, and no further.
fn preflight(plan: &Plan, console: &Console) -> Result<(), Fault> {
    let folder = temporary_folder()?;
    write_run(&plan.models.config, &plan.run, folder.path())?;
    let mut signals = Signals::install(&Signals::USUAL).our_failure("the system refuses signal handlers")?;
    let spec = FleetSpec {
        run_dir: folder.path().to_owned(),
        logs: folder.path().join(LOGS),
        output: OutputArgs::default(),
        programs: programs()?,
        queue: plan.queue(),
        arena: plan.run.arena,
        preflight: true,
        parameters: 1,
    };
    let mut fleet = Fleet::create(spec, console).map_err(super::run::fleet_fault)?;
    fleet.adopt_orphans().our_failure("the system refuses to make this process a subreaper")?;
    let rules = Rules { max_restarts: 0, window: GRACE, startup_retries: 0, grace_target: GRACE, grace_drafter: GRACE };
    let story =
        supervise::supervise(&mut fleet, &mut signals, rules, console, &mut || {}).our_failure(super::PROGRAMS_HINT)?;
    console.flush();
    match story.outcome {
        Outcome::Trained => print("preflight: every worker reaches every part of the arena\n"),
        Outcome::Stopped(signal) => Err(super::decode::stopped_by(signal)),
        Outcome::Failed(worker, reason) => {
            let (lines, fault) = RunFailure::new(&plan.run.run_id, worker, reason, &story).page();
            lines.iter().for_each(|line| console.say(format!("tandem: {line}")));
            Err(fault)
        }
    }
}
