//! The target process of a pair: runs the frozen model over packed batches and captures hidden states into slots.

use std::process::ExitCode;

fn main() -> ExitCode {
    common::launched::run_worker("target-worker", target_worker::run)
}
