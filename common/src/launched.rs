//! What a worker owes the launcher that started it: last words in a file, and an end when the launcher is gone.
//!
//! The launcher names the file in `ERROR_FILE` and holds the other end of the worker's stdin, on which nothing is ever
//! written. The end of that stream is the launcher's end, seen where the kernel's own parent-death signal is not: across
//! set-uid programs, or when a thread that is not the main one started the worker.

use std::env;
use std::io;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};

use crate::exit::{AnyError, Verdict, run_program};

/// The environment variable that names the file for last words.
pub const ERROR_FILE: &str = "ERROR_FILE";

/// Rust's exit code of a panic.
const PANIC: u8 = 101;

/// Why a worker ended, in its own words: the content of its error file, JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastWords {
    /// The exit code that goes with them.
    pub code: u8,
    /// The causes, outermost first, on one line.
    pub error: String,
    /// What to do.
    pub hint: Option<String>,
}

impl LastWords {
    /// Reads a worker's error file; none if it left no words, or not all of them.
    pub fn read(path: &Path) -> Option<LastWords> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string(self).expect("last words have only values that JSON can hold");
        std::fs::write(path, text + "\n")
    }
}

/// As [`run_program`], for a worker: under a launcher its error goes into the error file, and the launcher shows it.
pub fn run_worker<E: Into<AnyError>>(name: &str, worker: impl FnOnce() -> Result<(), E>) -> ExitCode {
    let Some(file) = env::var_os(ERROR_FILE).map(PathBuf::from) else { return run_program(name, worker) };
    end_with_launcher();
    note_panics(file.clone());
    let Err(error) = worker() else { return ExitCode::SUCCESS };
    let error: AnyError = error.into();
    let Verdict { code, line, hint } = Verdict::of(&*error);
    match (LastWords { code: code.number(), error: line, hint }).write(&file) {
        Ok(()) => ExitCode::from(code.number()),
        // The launcher finds it among the last lines, then.
        Err(_) => run_program(name, || Err(error)),
    }
}

/// A panic's message and place are last words too.
fn note_panics(file: PathBuf) {
    let shown = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        shown(panic);
        let message = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(|place| format!(" at {}:{}", place.file(), place.line())).unwrap_or_default();
        let error = format!("panicked{place}: {}", message.split_whitespace().collect::<Vec<_>>().join(" "));
        // Without the file the message is still on stderr.
        let _ = LastWords { code: PANIC, error, hint: None }.write(&file);
    }));
}

fn end_with_launcher() {
    thread::spawn(|| {
        // Nothing is ever written there: however the reading ends, the launcher is gone.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        // Not an exit: destructors of libraries at work in other threads must not run.
        let _ = raise(Signal::SIGKILL);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_read_as_written_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.json");
        assert_eq!(LastWords::read(&path), None);
        let words = LastWords { code: 2, error: "weights: \"x\" is missing".into(), hint: None };
        words.write(&path).unwrap();
        assert_eq!(LastWords::read(&path), Some(words));
        std::fs::write(&path, "{\"code\": 2").unwrap();
        assert_eq!(LastWords::read(&path), None);
    }
}
