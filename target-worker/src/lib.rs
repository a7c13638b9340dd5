//! What a target worker promises.
//!
//! - It claims the lowest pending batch and a free slot in one step, so that targets balance themselves.
//! - Each tapped layer's output goes straight into its columns of the slot; the forward stops after the last tap.
//! - A slot is published only when its payload is whole, which on a GPU a thread waits for; dying before that leaves the batch pending for another.
//! - It keeps waiting after the last batch until all are trained, since a restarted drafter may hand some back.

mod args;
mod publish;
mod worker;

use clap::Parser;
use common::exit::AnyError;
use common::launched::Launcher;

/// Parses the command line and runs the worker to the end of the plan.
///
/// # Errors
/// Whatever stops it, with what it was doing.
pub fn run(launcher: &Launcher) -> Result<(), AnyError> {
    worker::run(&args::Args::parse(), launcher)
}
