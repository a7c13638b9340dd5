//! The target process of a pair: runs the frozen model over packed batches and captures hidden states into slots.

use std::process::ExitCode;

fn main() -> ExitCode {
    common::exit::run_program("target-worker", target_worker::run)
}
