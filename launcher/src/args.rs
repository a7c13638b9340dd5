//! The command line of `tandem`; nothing else.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use common::exit::Code;
use nix::sys::signal::Signal;

use crate::devices::Pairs;
use crate::machine::GpuModel;
use crate::output::OutputArgs;
use crate::recorder::Steps;

/// Trains a DFlash drafter for your model on your chats, and shows what it gained.
#[derive(Debug, Parser)]
#[command(name = "tandem", version, after_help = EXIT_CODES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 something in your input has to change (the hint says what), 2 a failure of ours,
128 + signal when a signal stopped it. TANDEM_LOG=debug shows what workers decide and why.";

const OVERRIDES: &str = "\
Every key of the file can be overridden: training.max_steps=20 data.train_data_path=chats.jsonl
With nothing behind the = it has its default again: training.max_steps=";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train: one target and one drafter process per pair, from chats to a checkpoint and a summary
    #[command(after_help = OVERRIDES)]
    Run(Box<RunArgs>),
    /// Work a run out without starting it: steps, bytes, time, what stands in its way; --preflight tries the ways between GPUs
    #[command(after_help = OVERRIDES)]
    Plan(Box<PlanArgs>),
    /// Show rows as they would be learnt, what is learnt of them set apart, and why rows are dropped
    #[command(after_help = OVERRIDES)]
    Preview(PreviewArgs),
    /// Tokenise the chats without training, and say what became of every row
    #[command(after_help = OVERRIDES)]
    Prepare(PrepareArgs),
    /// Decode held-out prompts with a drafter: accepted length, speed against plain decoding, lossless check
    #[command(after_help = OVERRIDES)]
    Evaluate(EvaluateArgs),
    /// Write one HTML page about a run, also one that failed or goes on: curves, where the time went, what limits it
    Report(ReportArgs),
}

/// `tandem run`
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The configuration, a TOML file
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,
    /// Go on in the run folder from its newest checkpoint, instead of moving it aside
    #[arg(long)]
    pub resume: bool,
    /// Trace these steps over all processes into trace.json in the run folder, as 20..30
    #[arg(long, value_name = "FIRST..LAST")]
    pub(crate) trace_steps: Option<Steps>,
    /// Where logs are kept [default: logs in the run folder]
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Signals that end the run: the first asks the workers to save and end, the second kills them
    #[arg(
        long,
        value_name = "SIGNALS",
        value_delimiter = ',',
        value_parser = signal,
        default_value = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    )]
    pub signals_to_handle: Vec<Signal>,
    /// What is on the console
    #[command(flatten)]
    pub output: OutputArgs,
    /// Keys with a flag of their own
    #[command(flatten)]
    pub keys: KeyArgs,
    /// Keys to override
    #[arg(value_name = "section.key=value")]
    pub overrides: Vec<String>,
}

impl RunArgs {
    /// All keys that the command line overrides; what is said as `section.key=value` wins over flags.
    pub fn overrides(&self) -> Vec<String> {
        self.keys.overrides().into_iter().chain(self.overrides.iter().cloned()).collect()
    }
}

/// Flags that torchrun's users look for, each short for a key of `[run]`.
#[derive(Debug, Default, clap::Args)]
pub struct KeyArgs {
    /// Target-drafter pairs: how many (run.pairs), or the devices of each as TARGET:DRAFTER, like 0:1,2:3
    #[arg(long, visible_alias = "nproc-per-node", value_name = "PAIRS", conflicts_with_all = ["targets", "drafters"])]
    pairs: Option<Pairs>,
    /// Devices of the targets, as 0,1: run.targets
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    targets: Vec<u32>,
    /// Devices of the drafters, as 2,3,4, more or fewer than targets: run.drafters
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    drafters: Vec<u32>,
    /// Restarts of one worker within the window: run.max_restarts
    #[arg(long, value_name = "N")]
    max_restarts: Option<u32>,
    /// Restarts longer ago are forgiven: run.restart_window_s
    #[arg(long, value_name = "SECONDS")]
    restart_window: Option<u32>,
    /// Tries of a worker that has never been ready: run.startup_retries
    #[arg(long, value_name = "N")]
    startup_retries: Option<u32>,
    /// How long a target may take to end once asked: run.grace_target_s
    #[arg(long, value_name = "SECONDS")]
    grace_target: Option<u32>,
    /// How long a drafter may take to save and end once asked: run.grace_drafter_s
    #[arg(long, value_name = "SECONDS")]
    grace_drafter: Option<u32>,
    /// The run folder: run.output_dir
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

impl KeyArgs {
    fn overrides(&self) -> Vec<String> {
        let numbers = [
            ("max_restarts", self.max_restarts),
            ("restart_window_s", self.restart_window),
            ("startup_retries", self.startup_retries),
            ("grace_target_s", self.grace_target),
            ("grace_drafter_s", self.grace_drafter),
        ];
        let lists = [("targets", &self.targets), ("drafters", &self.drafters)];
        let numbers = numbers.into_iter().filter_map(|(key, value)| Some(format!("run.{key}={}", value?)));
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        let lists = lists.map(|(key, list)| format!("run.{key}={list:?}"));
        let pairs = self.pairs.iter().flat_map(Pairs::keys).map(|(key, value)| format!("run.{key}={value}"));
        let run_dir = self.run_dir.iter().map(|folder| format!("run.output_dir={}", folder.display()));
        pairs.chain(lists).chain(numbers).chain(run_dir).collect()
    }
}

/// `tandem plan`
#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    /// The configuration, a TOML file
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,
    /// Start every worker to try the way to each part of the arena, and end
    #[arg(long)]
    pub preflight: bool,
    /// Plan for GPUs of this model instead of this machine's, like h200
    #[arg(long, value_name = "MODEL", value_parser = GpuModel::named, conflicts_with = "preflight")]
    pub(crate) gpu: Option<&'static GpuModel>,
    /// Take the speed of this earlier run of the same shapes [default: that in the run folder, if there is one]
    #[arg(long, value_name = "RUN")]
    pub like: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Keys with a flag of their own
    #[command(flatten)]
    pub keys: KeyArgs,
    /// Keys to override
    #[arg(value_name = "section.key=value")]
    pub overrides: Vec<String>,
}

impl PlanArgs {
    /// All keys that the command line overrides, as [`RunArgs::overrides`]; GPUs that are thought of are computed on, whatever
    /// the file says.
    pub fn overrides(&self) -> Vec<String> {
        let gpu = self.gpu.map(|_| "run.device=cuda".to_owned());
        gpu.into_iter().chain(self.keys.overrides()).chain(self.overrides.iter().cloned()).collect()
    }
}

/// `tandem preview`
#[derive(Debug, clap::Args)]
pub struct PreviewArgs {
    /// The configuration, a TOML file
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,
    /// Show this many rows from the start
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rows: usize,
    /// Show the row that starts in this line
    #[arg(long, value_name = "N", conflicts_with = "rows")]
    pub line: Option<u64>,
    /// Show token ids too
    #[arg(long)]
    pub ids: bool,
    /// Print one JSON object: the rows, and what became of every row of the data
    #[arg(long)]
    pub json: bool,
    /// Keys to override
    #[arg(value_name = "section.key=value")]
    pub overrides: Vec<String>,
}

/// `tandem prepare`
#[derive(Debug, clap::Args)]
pub struct PrepareArgs {
    /// The configuration, a TOML file
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Keys to override
    #[arg(value_name = "section.key=value")]
    pub overrides: Vec<String>,
}

/// `tandem evaluate`
#[derive(Debug, clap::Args)]
pub struct EvaluateArgs {
    /// The configuration, a TOML file
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,
    /// A drafter in the z-lab format [default: the newest checkpoint in run.output_dir]
    #[arg(long, value_name = "DIR")]
    pub draft: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Keys to override
    #[arg(value_name = "section.key=value")]
    pub overrides: Vec<String>,
}

/// `tandem report`
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// A run folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Where the page is written to [default: report.html in the run folder]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Looks into the queue of a run, live, stopped or dead, and changes nothing.
#[derive(Debug, Parser)]
#[command(name = "tandem-queue", version, after_help = QUEUE_HELP)]
pub struct QueueArgs {
    /// What to show.
    #[command(subcommand)]
    pub command: QueueCommand,
}

const QUEUE_HELP: &str = "\
Examples:
  tandem-queue list                          which runs have a queue on this machine
  tandem-queue watch runs/tiny               follow one; q ends it
  tandem-queue show runs/tiny --json         its state for a program
  tandem-queue events runs/tiny | tail       what happened last
  tandem-queue check runs/tiny && echo good  is everything as it must be?

RUN is a run folder or a run id of `list`. docs/queue.md says what the words and columns mean.
Exit codes: 0 done, 1 there is no such queue or this build cannot read it, 2 `check` found something broken.";

/// What to show.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// The queues in this machine's shared memory
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// One run once: gate, slots, batches, buckets with their times, workers
    Show(OneQueue),
    /// One run on the whole terminal, until q
    Watch {
        /// Which run, and how to print it: with --json one object a line, until it is ended.
        #[command(flatten)]
        queue: OneQueue,
        /// Seconds between two looks
        #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
        interval: f64,
    },
    /// Every slot: state, owner, batch, and since when
    Slots(OneQueue),
    /// What happened last, oldest first
    Events(OneQueue),
    /// Numbers for Prometheus over HTTP, at /metrics, until it is ended
    Serve {
        /// A run folder or a run id [default: all runs of this machine]
        #[arg(value_name = "RUN")]
        run: Option<String>,
        /// Where to listen
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9464")]
        listen: String,
    },
    /// Every invariant of the queue held against its memory
    Check(OneQueue),
}

/// Which queue, and in what form.
#[derive(Debug, clap::Args)]
pub struct OneQueue {
    /// Its run folder, or its id
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads the command line. Asked for help or the version, or given what it does not know, it prints and says how to end.
///
/// # Errors
/// The exit code: 0 after help or version, 1 after a refusal.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse_from(std::env::args_os().map(with_dashes)).map_err(|error| {
        // Nobody is left to be told when both streams are gone.
        let _ = error.print();
        if error.use_stderr() { ExitCode::from(Code::Input.number()) } else { ExitCode::SUCCESS }
    })
}

fn signal(name: &str) -> Result<Signal, String> {
    name.parse().map_err(|_| "there is no such signal: names are like SIGTERM or SIGUSR1".to_owned())
}

/// Flags may be written with underscores too, as torchrun's.
fn with_dashes(word: OsString) -> OsString {
    let Some(text) = word.to_str().filter(|text| text.starts_with("--")) else { return word };
    match text.split_once('=') {
        Some((flag, value)) => format!("{}={value}", flag.replace('_', "-")).into(),
        None => text.replace('_', "-").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<RunArgs, clap::Error> {
        let words = ["tandem", "run", "c.toml"].into_iter().chain(line.split_whitespace());
        match Args::try_parse_from(words.map(|word| with_dashes(word.into())))?.command {
            Command::Run(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    fn run(line: &str) -> RunArgs {
        parsed(line).unwrap()
    }

    #[test]
    fn flags_are_short_for_keys_and_keys_win() {
        let args = run("--targets 0,1 --drafters 2,3,14 --max-restarts=5 --run-dir r run.pairs=3");
        let expected = ["targets=[0, 1]", "drafters=[2, 3, 14]", "max_restarts=5", "output_dir=r", "pairs=3"];
        assert_eq!(args.overrides(), expected.map(|key| format!("run.{key}")));
        let count = ["run.pairs=2", "run.targets=", "run.drafters="];
        assert_eq!(
            (run("--nproc-per-node 2").overrides(), run("--nproc_per_node=2").overrides()),
            (count.map(str::to_owned).into(), count.map(str::to_owned).into())
        );
        assert_eq!(run("--pairs 0:1,2:3").overrides(), ["run.targets=[0, 2]", "run.drafters=[1, 3]"]);
    }

    #[test]
    fn what_names_no_devices_is_refused_with_the_reason() {
        let reasons = [
            ("--pairs 0:1,0:2", "device 0 is there twice"),
            ("--pairs two", "neither a number of pairs nor a list"),
            ("--pairs 2 --targets 0,1", "cannot be used with"),
            ("--targets 0,x", "invalid digit"),
            ("--targets=", "empty"),
            ("--signals-to-handle SIGFOO", "there is no such signal"),
        ];
        for (line, reason) in reasons {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn signals_are_given_by_name() {
        assert_eq!(run("").signals_to_handle.len(), 4);
        assert_eq!(run("--signals-to-handle SIGUSR1,SIGTERM").signals_to_handle, [Signal::SIGUSR1, Signal::SIGTERM]);
    }
}
