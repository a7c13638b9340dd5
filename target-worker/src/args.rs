//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// The target process of a pair; started by `tandem run`.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Args {
    /// The run folder, with config.toml and plan.json.
    #[arg(long)]
    pub(crate) run: PathBuf,
    /// This worker's number among the targets, from 0.
    #[arg(long)]
    pub(crate) rank: u32,
    /// Try the way to every part of the arena, and end.
    #[arg(long)]
    pub(crate) preflight: bool,
}
