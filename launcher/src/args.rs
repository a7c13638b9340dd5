//! The command line of `tandem`; nothing else.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use common::exit::Code;

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
Every key of the file can be overridden: training.max_steps=20 data.train_data_path=chats.jsonl";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train: one target and one drafter process per pair, from chats to a checkpoint and a summary
    #[command(after_help = OVERRIDES)]
    Run(RunArgs),
    /// Decode held-out prompts with a drafter: accepted length, speed against plain decoding, lossless check
    #[command(after_help = OVERRIDES)]
    Evaluate(EvaluateArgs),
}

/// `tandem run`
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The configuration, a TOML file
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,
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

/// Looks into the queue of a run, live or dead, and changes nothing.
#[derive(Debug, Parser)]
#[command(name = "tandem-queue", version)]
pub struct QueueArgs {
    /// What to show.
    #[command(subcommand)]
    pub command: QueueCommand,
}

/// What to show.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// The queues in this machine's shared memory
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// One run: depth per bucket, gate, totals, ledger, workers
    Show {
        /// Its run folder, or its id
        #[arg(value_name = "RUN")]
        run: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Reads the command line. Asked for help or the version, or given what it does not know, it prints and says how to end.
///
/// # Errors
/// The exit code: 0 after help or version, 1 after a refusal.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse().map_err(|error| {
        // Nobody is left to be told when both streams are gone.
        let _ = error.print();
        if error.use_stderr() { ExitCode::from(Code::Input.number()) } else { ExitCode::SUCCESS }
    })
}
