//! `tandem`: trains a DFlash drafter.

use std::process::ExitCode;

use launcher::args::{self, Args};

fn main() -> ExitCode {
    match args::parse::<Args>() {
        Ok(args) => common::exit::run_program("tandem", || launcher::run(&args)),
        Err(code) => code,
    }
}
