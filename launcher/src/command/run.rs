//! `tandem run`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::evaluation::EvaluationReport;
use common::exit::{Blame, Code, Fault, SHARED_MEMORY_HINT};
use common::manifest::{self, Manifest};
use common::queue::CreateError;
use common::reduce::SumError;
use common::shm::{self, ShmError};
use common::telemetry::verdict::Verdict;

use super::decode::{decode, stopped_by};
use super::{held_out_prompts, load, print, programs};
use crate::args::RunArgs;
use crate::child::signal_name;
use crate::fleet::{Fleet, FleetError, FleetSpec, LOGS};
use crate::forecast;
use crate::history::Rows;
use crate::inspect::Watch;
use crate::output::OutputArgs;
use crate::page;
use crate::plan::{Models, Plan, RunFolder, Volume};
use crate::progress::Console;
use crate::recorder::{Recorder, Steps};
use crate::report::{self, RunFailure, Summary};
use crate::supervise::{self, Outcome, Rules, Signals, Story};
use crate::tensorboard::Events;

/// What every shared memory segment of Tandem starts with.
const SEGMENT_PREFIX: &str = "tandem-";

/// Trains: from chats to a checkpoint and a summary.
///
/// # Errors
/// Input that cannot work, a worker that fails too often, or a signal.
pub(crate) fn run(args: &RunArgs) -> Result<(), Fault> {
    let console = Console::start();
    let done = Run::prepare(args, &console).and_then(|mut run| {
        let done = run.whole();
        run.tell();
        done
    });
    console.clear_progress();
    console.flush();
    done
}

/// A run whose plan stands and whose folder is made.
struct Run<'a> {
    plan: Plan,
    folder: RunFolder,
    programs: PathBuf,
    logs: PathBuf,
    output: OutputArgs,
    /// Whether it goes on where an earlier one ended.
    resume: bool,
    /// Steps and volume of the checkpoint that it goes on from; nothing from the beginning.
    earlier: (u64, Volume),
    /// Held-out prompts to decode; none if nothing is to be evaluated.
    prompts: Option<usize>,
    signals: Signals,
    /// Steps to trace.
    steps: Option<Steps>,
    events: Events,
    console: &'a Console,
}

impl<'a> Run<'a> {
    /// Everything that can be refused is refused here, before the folder is touched.
    fn prepare(args: &RunArgs, console: &'a Console) -> Result<Run<'a>, Fault> {
        let models = Models::read(load(&args.config, &args.overrides())?, None)?;
        models.demand_weights()?;
        let (programs, prompts) = (programs()?, held_out_prompts(&models)?);
        let plan = Plan::new(models, console)?;
        plan.lines().into_iter().for_each(|line| console.say(format!("tandem: {line}")));
        sweep(console)?;
        let warnings = forecast::demand(&plan, args.resume)?;
        warnings.into_iter().for_each(|warning| console.say(format!("tandem: {warning}")));
        let signals = Signals::install(&args.signals_to_handle).your_input("leave it out of --signals-to-handle")?;
        let folder = take_folder(&plan, args.resume)?;
        let earlier = trained(&plan, newest_checkpoint(&folder)?.as_ref());
        let logs = args.log_dir.clone().unwrap_or_else(|| folder.path.join(LOGS));
        make_logs(&logs)?;
        let wanted = plan.models.config.telemetry.tensorboard;
        let events = if wanted { Events::of_run(&folder.path, console) } else { Events::none(console) };
        let (output, resume, steps) = (args.output.clone(), args.resume, args.trace_steps);
        let run =
            Run { plan, folder, programs, logs, output, resume, earlier, prompts, signals, steps, events, console };
        run.write_down()?;
        Ok(run)
    }

    fn write_down(&self) -> Result<(), Fault> {
        let path = &self.folder.path;
        if let Some(moved) = &self.folder.moved {
            self.say(&format!("the earlier run in {} is now {}", path.display(), moved.display()));
        }
        self.plan.models.config.write(path).your_input("the run folder cannot be written to")?;
        self.plan.run.write(path).your_input("the run folder cannot be written to")?;
        Rows::of(&self.plan.accounting).write(path).your_input("the run folder cannot be written to")?;
        self.say(&format!("run {} in {}", self.plan.run.run_id, path.display()));
        Ok(())
    }

    /// Writes the run's page; a run is no worse without one.
    fn tell(&self) {
        if let Err(error) = page::write(&self.folder.path, None) {
            self.say(&format!("{error}: the run has no page"));
        }
    }

    fn whole(&mut self) -> Result<(), Fault> {
        let before = self.decode(None)?;
        before.iter().for_each(|report| self.events.evaluated(0, report));
        let (story, verdict) = self.train()?;
        if let Outcome::Failed(worker, reason) = story.outcome {
            let failure = RunFailure::new(&self.plan.run.run_id, worker, reason, &story);
            let (lines, fault) = failure.page();
            if let Err(error) = failure.write(&self.folder.path) {
                // A full disk may be what the run failed of: the cause comes first.
                self.say(&error.to_string());
            }
            lines.iter().for_each(|line| self.say(line));
            return Err(fault);
        }
        self.conclude(before.as_ref(), &story, verdict)
    }

    /// The trained drafter's worth: `summary.json` and the last page, written whatever decoding says.
    fn conclude(
        &mut self,
        before: Option<&EvaluationReport>,
        story: &Story,
        verdict: Option<Verdict>,
    ) -> Result<(), Fault> {
        let newest = newest_checkpoint(&self.folder)?;
        let mut summary = self.summary(story, newest.as_ref());
        summary.verdict = verdict;
        summary.accepted_length_before = before.map(|report| report.accepted_length);
        let after = match (story.outcome, &newest) {
            (Outcome::Stopped(signal), _) => Err(self.stopped(signal, newest.as_ref())),
            (_, Some((folder, _))) => self.decode(Some(folder)),
            (_, None) => Err(Fault::new(Code::Failure, "the drafters ended well, but no whole checkpoint is there")
                .with_hint(format!("see the logs in {}", self.folder.path.display()))),
        };
        if let Ok(Some(report)) = &after {
            summary.after(report);
            self.events.evaluated(summary.steps, report);
        }
        summary.write(&self.folder.path).your_input("the run folder cannot be written to")?;
        self.console.flush();
        print(&summary.page(&self.folder.path))?;
        after?.as_ref().map_or(Ok(()), report::demand_lossless)
    }

    /// Decodes the held-out prompts, if there are any.
    fn decode(&mut self, draft: Option<&Path>) -> Result<Option<EvaluationReport>, Fault> {
        let Some(prompts) = self.prompts else { return Ok(None) };
        let which = if draft.is_some() { "trained" } else { "untrained" };
        self.say(&format!("decoding {prompts} held-out prompts with the {which} drafter"));
        decode(&self.folder.path, self.programs.clone(), draft, &mut self.signals, self.console).map(Some)
    }

    /// The fleet's whole life, and what limited it. Its shared memory is gone when this returns, however it returns.
    fn train(&mut self) -> Result<(Story, Option<Verdict>), Fault> {
        let queue = self.plan.queue();
        let parameters = self.plan.run.draft.parameter_count() as usize;
        let (run_dir, programs, logs) = (self.folder.path.clone(), self.programs.clone(), self.logs.clone());
        let (output, arena) = (self.output.clone(), self.plan.run.arena);
        let spec = FleetSpec { run_dir, logs, output, programs, queue, arena, preflight: false, parameters };
        let mut watch = Watch::new(&self.plan.run);
        let mut recorder = Recorder::new(&self.plan.models.config, &self.plan.run, self.steps, self.console);
        recorder.listen().our_failure("the system refuses a handler for SIGUSR2")?;
        let mut fleet = Fleet::create(spec, self.console).map_err(fleet_fault)?;
        fleet.adopt_orphans().our_failure("the system refuses to make this process a subreaper")?;
        let from = if self.resume { fleet.rewind().map_err(fleet_fault)? } else { "the beginning".into() };
        self.say(&format!("training from {from}"));
        let (console, events) = (self.console, &mut self.events);
        let mut show = || {
            let now = Instant::now();
            recorder.look(now);
            events.look(now);
            watch.progress().into_iter().for_each(|progress| console.progress(progress));
        };
        let story = supervise::supervise(&mut fleet, &mut self.signals, rules(&self.plan), console, &mut show);
        console.clear_progress();
        let story = story.our_failure(super::PROGRAMS_HINT)?;
        let verdict = recorder.end();
        self.events.catch_up();
        Ok((story, verdict))
    }

    fn summary(&self, story: &Story, newest: Option<&(PathBuf, Manifest)>) -> Summary {
        let run = &self.plan.run;
        let ((steps_before, before), (steps, volume)) = (self.earlier, trained(&self.plan, newest));
        let train_seconds = story.training.as_secs_f64();
        let stopped_by = match story.outcome {
            Outcome::Stopped(signal) => Some(signal_name(signal)),
            _ => None,
        };
        Summary {
            run_id: run.run_id.clone(),
            stopped_by,
            train_seconds,
            tokens_per_s: volume.tokens.saturating_sub(before.tokens) as f64 / train_seconds.max(1e-9),
            steps_before,
            tokens_before: before.tokens,
            checkpoint: newest.map(|(folder, _)| folder.clone()),
            steps,
            total_steps: run.total_steps,
            rows: volume.rows,
            tokens: volume.tokens,
            rows_kept: self.plan.accounting.rows_kept,
            rows_dropped: self.plan.accounting.dropped.len() as u64,
            target_restarts: story.target_restarts,
            drafter_restarts: story.drafter_restarts,
            ..Summary::default()
        }
    }

    fn stopped(&self, signal: i32, newest: Option<&(PathBuf, Manifest)>) -> Fault {
        let kept = newest.map_or_else(
            || "it had saved no checkpoint yet".to_owned(),
            |(folder, manifest)| format!("step {} is saved in {}", manifest.step, folder.display()),
        );
        stopped_by(signal).with_hint(kept)
    }

    fn say(&self, text: &str) {
        self.console.say(format!("tandem: {text}"));
    }
}

fn make_logs(folder: &Path) -> Result<(), Fault> {
    let made = fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()));
    made.your_input("choose a --log-dir that can be written to")
}

pub(super) fn sweep(console: &Console) -> Result<(), Fault> {
    let swept = shm::sweep_stale(SEGMENT_PREFIX).our_failure("/dev/shm has to be readable")?;
    if !swept.is_empty() {
        console.say(format!("tandem: removed what dead runs left in /dev/shm: {}", swept.join(", ")));
    }
    Ok(())
}

fn take_folder(plan: &Plan, resume: bool) -> Result<RunFolder, Fault> {
    let path = &plan.models.config.run.output_dir;
    if !resume {
        return RunFolder::create(path).your_input("choose another run.output_dir, or wait for the run that uses it");
    }
    let folder = RunFolder::resume(path).your_input("without --resume a run starts from the beginning")?;
    plan.continues(path).your_input("resume with the configuration of the run, or start a new one without --resume")?;
    Ok(folder)
}

fn newest_checkpoint(folder: &RunFolder) -> Result<Option<(PathBuf, Manifest)>, Fault> {
    manifest::newest_checkpoint(&folder.path).your_input("the run folder has to be readable")
}

/// Steps and volume in a checkpoint's weights.
fn trained(plan: &Plan, checkpoint: Option<&(PathBuf, Manifest)>) -> (u64, Volume) {
    checkpoint.map_or_else(Default::default, |(_, manifest)| (manifest.step, plan.volume(&manifest.trained)))
}

fn rules(plan: &Plan) -> Rules {
    let run = &plan.models.config.run;
    Rules {
        max_restarts: run.max_restarts,
        window: Duration::from_secs(run.restart_window_s),
        startup_retries: run.startup_retries,
        grace_target: Duration::from_secs(run.grace_target_s),
        grace_drafter: Duration::from_secs(run.grace_drafter_s),
    }
}

/// Too little shared memory is the user's to change, all else is ours.
pub(super) fn fleet_fault(error: FleetError) -> Fault {
    match error {
        FleetError::Queue(CreateError::Shm(ShmError::NoSpace { .. }))
        | FleetError::Arena(ShmError::NoSpace { .. })
        | FleetError::Sum(SumError::Shm(ShmError::NoSpace { .. })) => {
            Fault::new(Code::Input, error).with_hint(SHARED_MEMORY_HINT)
        }
        error => Fault::new(Code::Failure, error).with_hint("`ls -l /dev/shm` shows what stands in the way"),
    }
}
