//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// The drafter process of a pair; started by `tandem`.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Train on what the targets capture.
    Train(TrainArgs),
    /// Decode held-out prompts with a drafter and print one JSON object.
    Evaluate(EvaluateArgs),
}

#[derive(clap::Args)]
pub(crate) struct TrainArgs {
    /// The run folder, with config.toml and plan.json.
    #[arg(long)]
    pub(crate) run: PathBuf,
    /// This worker's number among the drafters, from 0.
    #[arg(long)]
    pub(crate) rank: u32,
    /// Continue from this checkpoint.
    #[arg(long)]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Try the way to every part of the arena, and end.
    #[arg(long)]
    pub(crate) preflight: bool,
}

#[derive(clap::Args)]
pub(crate) struct EvaluateArgs {
    /// The run folder, with config.toml and plan.json.
    #[arg(long)]
    pub(crate) run: PathBuf,
    /// A drafter in the z-lab format; without it, the run's untrained one.
    #[arg(long)]
    pub(crate) draft: Option<PathBuf>,
}
