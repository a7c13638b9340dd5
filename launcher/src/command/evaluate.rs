//! `tandem evaluate`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use common::config::Config;
use common::evaluation::EvaluationReport;
use common::exit::{Blame, Fault};
use common::manifest;
use common::run_plan::RunPlan;

use super::{decode, held_out_prompts, load, print, programs};
use crate::args::EvaluateArgs;
use crate::fleet::LOGS;
use crate::plan::Models;
use crate::progress::Console;
use crate::report;
use crate::supervise::Signals;

/// Decodes the configuration's held-out prompts with a trained drafter and prints what it gains.
///
/// # Errors
/// Input that cannot work, a failing worker, or tokens that differ from plain decoding's.
pub(crate) fn evaluate(args: &EvaluateArgs) -> Result<(), Fault> {
    let config = load(&args.config, &args.overrides)?;
    let draft = args.draft.clone().map_or_else(|| newest(&config), Ok)?;
    let models = Models::read(config, Some(&draft))?;
    let prompts = held_out_prompts(&models)?.ok_or("neither evaluation.eval_data_path nor data.held_out_share is set");
    prompts.your_input("set the first to a file of held-out chats")?;
    let programs = programs()?;
    let folder = temporary_run(&models)?;
    let console = Console::start();
    let mut signals = Signals::install(&Signals::USUAL).our_failure("the system refuses signal handlers")?;
    let report = decode::decode(folder.path(), programs, Some(&draft), &mut signals, &console);
    console.flush();
    let report = report?;
    print(&shown(&report, &draft, args.json))?;
    report::demand_lossless(&report)
}

fn newest(config: &Config) -> Result<PathBuf, Fault> {
    let run_dir = &config.run.output_dir;
    let hint = "train first, or name a drafter with --draft DIR";
    let newest = manifest::newest_checkpoint(run_dir).your_input(hint)?;
    let missing = || format!("{}: no checkpoint there", run_dir.display());
    newest.map(|(folder, _)| folder).ok_or_else(missing).your_input(hint)
}

/// A run folder that lasts as long as the evaluation: workers read nothing else.
fn temporary_run(models: &Models) -> Result<tempfile::TempDir, Fault> {
    let folder = temporary_folder()?;
    write_run(&models.config, &models.run_plan(None), folder.path())?;
    Ok(folder)
}

/// A run folder, gone when dropped.
pub(super) fn temporary_folder() -> Result<tempfile::TempDir, Fault> {
    let make = || -> io::Result<tempfile::TempDir> {
        let folder = tempfile::Builder::new().prefix("tandem-").tempdir()?;
        fs::create_dir(folder.path().join(LOGS))?;
        Ok(folder)
    };
    make().your_input("a temporary folder is needed: set TMPDIR to a place with room")
}

/// Writes what workers read of a run.
pub(super) fn write_run(config: &Config, plan: &RunPlan, run_dir: &Path) -> Result<(), Fault> {
    config.write(run_dir).our_failure("the resolved configuration cannot be written")?;
    plan.write(run_dir).our_failure("the plan cannot be written")
}

fn shown(report: &EvaluationReport, draft: &Path, json: bool) -> String {
    if !json {
        return report::evaluation_page(report, draft);
    }
    serde_json::to_string(report).expect("a report has only values that JSON can hold") + "\n"
}
