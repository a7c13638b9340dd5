//! The drafter process of a pair: trains the draft model on what its target captures, and decodes with it.

use std::process::ExitCode;

fn main() -> ExitCode {
    common::launched::run_worker("drafter-worker", drafter_worker::run)
}
