//! What a drafter worker promises.
//!
//! - Each batch is trained once in the history of the final weights; a checkpoint says which batches it holds.
//! - Gradients are sums over all drafters' batches of a step in rank order, divided once by the summed weights, so the
//!   number of drafters does not change the result.
//! - A checkpoint is whole or absent: written beside, synced, renamed.
//! - On SIGTERM the step is finished, saved, and the process ends well.
//! - When another drafter dies this one leaves its step, waits, and goes on with it from where the launcher says.

mod args;
mod checkpoint;
mod evaluate;
mod train;

use clap::Parser;
use common::exit::AnyError;
use common::launched::Launcher;

use args::{Args, Command};

/// What helps when a target's weights are not what its folder promises.
const WEIGHTS_HINT: &str = "the folder model.target_model_path must hold the weights that its config.json describes";

/// Parses the command line and trains or evaluates.
///
/// # Errors
/// Whatever stops it, with what it was doing.
pub fn run(launcher: &Launcher) -> Result<(), AnyError> {
    match Args::parse().command {
        Command::Train(args) => train::run(&args, launcher),
        Command::Evaluate(args) => evaluate::run(&args),
    }
}
