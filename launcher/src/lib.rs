//! Starts, watches and ends a run: the programs `tandem` and `tandem-queue`. No torch, no CUDA.
//!
//! What the launcher promises:
//! 1. **Refusals first.** Whatever can be known to be wrong is said before a folder is made or a process started.
//! 2. **Nothing left.** Every way out, errors and signals included, ends all processes and removes the run's shared
//!    memory; what a killed launcher leaves behind, the kernel (processes) and the next start (memory) take away.
//! 3. **Restart of what failed.** A failed target comes back alone. A failed drafter takes the other drafters back to the
//!    newest checkpoint or snapshot, and the queue's ledger with them, so the weights' history holds every batch once.
//!    `--resume` does the same after the launcher's own death.
//! 4. **Escalation.** A signal asks, a second one kills, and a grace period bounds the wait in between.
//! 5. **First cause last.** The failure that ended a run is the last line, with what to do about it; the exit code is
//!    its.
//!
//! ```text
//! args ─► command::run ─► plan ─► forecast ─► fleet (queue, arena, gradient sum, children) ─► supervise ─► report
//!                                                                       events ─► decide ─► actions
//! ```

mod arena;
pub mod args;
mod child;
mod command;
pub mod devices;
mod fleet;
mod forecast;
mod history;
pub mod inspect;
mod machine;
pub mod output;
mod page;
mod plan;
mod progress;
mod recorder;
mod report;
mod snapshots;
mod supervise;
mod tensorboard;
#[cfg(test)]
mod testing;

use common::exit::Fault;

use args::{Args, Command};

/// Does what `tandem`'s command line says. Main thread only: workers die with the thread that started them.
///
/// # Errors
/// Whatever stopped it, with who has to act and what helps.
pub fn run(args: &Args) -> Result<(), Fault> {
    match &args.command {
        Command::Run(args) => command::run(args),
        Command::Preview(args) => command::preview(args),
        Command::Plan(args) => command::plan(args),
        Command::Prepare(args) => command::prepare(args),
        Command::Evaluate(args) => command::evaluate(args),
        Command::Report(args) => command::report(args),
    }
}
