//! Decoding held-out prompts in a process of its own, as part of a run and for `tandem evaluate`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use common::evaluation::EvaluationReport;
use common::exit::{Blame, Code, Fault};

use crate::child::{Launch, Streams, signal_name};
use crate::fleet::LOGS;
use crate::progress::Console;
use crate::report;
use crate::supervise::{Signals, run_alone};

/// Runs `drafter-worker evaluate` on a run folder with the drafter in `draft`, or with the run's untrained one.
///
/// # Errors
/// It fails, or a signal stops it.
pub(super) fn decode(
    run_dir: &Path,
    programs: PathBuf,
    draft: Option<&Path>,
    signals: &mut Signals,
    console: &Console,
) -> Result<EvaluationReport, Fault> {
    let log = run_dir.join(LOGS).join("evaluate.log");
    let mut args: Vec<OsString> = vec!["evaluate".into(), "--run".into(), run_dir.into()];
    args.extend(draft.into_iter().flat_map(|folder| ["--draft".into(), folder.into()]));
    let launch = Launch {
        name: "evaluate".into(),
        program: programs.join("drafter-worker"),
        args,
        // cuDNN's attention builds a plan for every new shape, and caches grow token by token: the other kernels go first.
        env: vec![("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1".to_owned())],
        log: log.clone(),
        shown: Streams::ALL,
        stdout_is_data: true,
    };
    let (end, stopped) = run_alone(&launch, signals, console).our_failure(super::PROGRAMS_HINT)?;
    if let Some(signal) = stopped {
        return Err(stopped_by(signal));
    }
    if !end.ending.is_success() {
        let (lines, fault) = report::Failure::new("evaluation", &end, None, &log).page(None);
        lines.into_iter().for_each(|line| console.say(format!("tandem: {line}")));
        return Err(fault);
    }
    serde_json::from_slice(&end.data).our_failure(format!("evaluation printed no report: see {}", log.display()))
}

/// A run that ends because it was told to.
pub(super) fn stopped_by(signal: i32) -> Fault {
    let number = u8::try_from(signal).unwrap_or(u8::MAX);
    Fault::new(Code::Signal(number), format!("stopped by {}", signal_name(signal)))
}
