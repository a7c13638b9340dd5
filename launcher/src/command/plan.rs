//! `tandem plan`.

use std::time::Duration;

use common::config::Device;
use common::exit::{Blame, Code, Fault, Verdict};

use super::evaluate::{temporary_folder, write_run};
use super::run::sweep;
use super::{held_out_prompts, load, print, programs};
use crate::args::PlanArgs;
use crate::fleet::{Fleet, FleetSpec, LOGS};
use crate::forecast::{Against, Forecast, Refusal, Report};
use crate::output::OutputArgs;
use crate::plan::{Models, Plan};
use crate::progress::Console;
use crate::report::RunFailure;
use crate::supervise::{self, Outcome, Rules, Signals};

/// How long workers may take to end once the way to every part is tried.
const GRACE: Duration = Duration::from_secs(30);

/// Works a run out without starting it: what it takes of the machine, how long it lasts, and all that stands in its way.
/// With `--preflight`, workers try the way to every part of the arena.
///
/// # Errors
/// Input that cannot work, or a way that does not.
pub(crate) fn plan(args: &PlanArgs) -> Result<(), Fault> {
    let console = Console::start();
    let planned = work_out(args, &console);
    console.clear_progress();
    console.flush();
    let plan = planned.or_else(|fault| refuse(args, fault))?;
    let forecast = Forecast::new(&plan, Against { gpu: args.gpu, like: args.like.as_deref() });
    let forecast = forecast.or_else(|fault| refuse(args, fault))?;
    print(&if args.json { Report::of(&forecast).json() } else { forecast.page() })?;
    if let Some(refusal) = forecast.refusals().first() {
        return Err(refusal.fault());
    }
    if args.preflight { preflight(&plan, args.json, &console) } else { Ok(()) }
}

fn work_out(args: &PlanArgs, console: &Console) -> Result<Plan, Fault> {
    let config = load(&args.config, &args.overrides())?;
    if args.gpu.is_some() && config.run.device != Device::Cuda {
        let fault = Fault::new(Code::Input, "--gpu plans for GPUs, and run.device= says something else");
        return Err(fault.with_hint("leave one of the two out"));
    }
    let models = Models::read(config, None)?;
    held_out_prompts(&models)?;
    let plan = Plan::new(models, console)?;
    sweep(console)?;
    Ok(plan)
}

/// Programs get input that cannot be worked out as one more refusal.
fn refuse<T>(args: &PlanArgs, fault: Fault) -> Result<T, Fault> {
    let Verdict { code, line, hint } = Verdict::of(&fault);
    if args.json && code == Code::Input {
        let hint = hint.unwrap_or_default();
        let refusal = Refusal { what: line, needs: None, has: None, hint, may_pass: false };
        print(&Report::refused(&[refusal]).json())?;
    }
    Err(fault)
}

/// Starts every worker of the run to try its ways, and no further.
fn preflight(plan: &Plan, json: bool, console: &Console) -> Result<(), Fault> {
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
        Outcome::Trained if json => Ok(()),
        Outcome::Trained => print("\npreflight: every worker reaches every part of the arena\n"),
        Outcome::Stopped(signal) => Err(super::decode::stopped_by(signal)),
        Outcome::Failed(worker, reason) => {
            let (lines, fault) = RunFailure::new(&plan.run.run_id, worker, reason, &story).page();
            lines.iter().for_each(|line| console.say(format!("tandem: {line}")));
            Err(fault)
        }
    }
}
