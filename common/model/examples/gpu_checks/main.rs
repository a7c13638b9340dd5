//! Holds the GPU arena to its promises on real GPUs: speed of every way, what it costs beside work, torn reads, taps that
//! arrive bit for bit, deaths of either side at any moment, leaks, refusals. Prints one JSON object a line, `{test, name, value, unit, bar, ok}`; exits with 2 if one is
//! not `ok`.
//!
//! ```sh
//! gpu_checks            # all checks, devices 0 and 1 (one device twice if there is only one)
//! gpu_checks speed torn # some of them
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints its findings")]

mod checks;
mod deaths;
mod findings;
mod overhead;
mod spec;
mod taps;
mod worker;
mod world;

use std::process::ExitCode;

use common::exit::AnyError;

use checks::CHECKS;
use findings::Findings;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("gpu_checks: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[String]) -> Result<bool, AnyError> {
    if let [spec, job, rank] = args
        && spec.starts_with('{')
    {
        let done = worker::run(&serde_json::from_str(spec)?, serde_json::from_str(job)?, rank.parse()?);
        done.inspect_err(|error| drop(worker::say(&format!("failed: {error}"))))?;
        return Ok(true);
    }
    let mut findings = Findings::new();
    let wanted = |name: &str| args.is_empty() || args.iter().any(|arg| arg == name);
    CHECKS.iter().filter(|(name, ..)| wanted(name)).for_each(|check| findings.make(*check));
    Ok(findings.all_ok())
}
