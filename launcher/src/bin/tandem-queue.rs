//! `tandem-queue`: looks into a run's queue from outside.

use std::process::ExitCode;

use launcher::args::{self, QueueArgs};

fn main() -> ExitCode {
    match args::parse::<QueueArgs>() {
        Ok(args) => common::exit::run_program("tandem-queue", || launcher::inspect::inspect(&args.command)),
        Err(code) => code,
    }
}
