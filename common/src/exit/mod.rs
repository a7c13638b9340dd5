//! How a program ends: the exit codes, and the one place where an error becomes text.
//!
//! A program prints `program: what failed: why: root cause` on one line, then `hint: what to do`. An error says who has
//! to act by passing through [`Blame`], or by its type; any other is a failure of ours.

mod by_type;

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

pub use by_type::SHARED_MEMORY_HINT;

/// Any error that may cross a thread.
pub type AnyError = Box<dyn Error + Send + Sync + 'static>;

/// Why a program ended. 101 is Rust's own code for a panic: a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// 0: everything asked for was done.
    Done,
    /// 1: the user has to change something: a file, a key, room on a disk.
    Input,
    /// 2: we failed.
    Failure,
    /// 3: a process this one works with went away; whoever reports should name that one.
    Peer,
    /// 128 + signal: stopped by a signal, before everything was done.
    Signal(u8),
}

impl Code {
    /// What the operating system is told.
    pub fn number(self) -> u8 {
        match self {
            Code::Done => 0,
            Code::Input => 1,
            Code::Failure => 2,
            Code::Peer => 3,
            Code::Signal(signal) => 128u8.saturating_add(signal),
        }
    }
}

/// An error together with who has to act and what helps.
#[derive(Debug)]
pub struct Fault {
    code: Code,
    hint: Option<String>,
    error: AnyError,
}

impl Fault {
    /// `error` ends the program with `code`.
    pub fn new(code: Code, error: impl Into<AnyError>) -> Fault {
        Fault { code, hint: None, error: error.into() }
    }

    /// What the user can do about it, as a sentence without a full stop.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Fault {
        Fault { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// Says at the place where an error is understood who has to act.
pub trait Blame<T> {
    /// The user has to change something: `hint` says what.
    ///
    /// # Errors
    /// The error that was there.
    fn your_input(self, hint: impl Into<String>) -> Result<T, Fault>;

    /// We failed: `hint` says where to look.
    ///
    /// # Errors
    /// The error that was there.
    fn our_failure(self, hint: impl Into<String>) -> Result<T, Fault>;
}

impl<T, E: Into<AnyError>> Blame<T> for Result<T, E> {
    fn your_input(self, hint: impl Into<String>) -> Result<T, Fault> {
        self.map_err(|error| Fault::new(Code::Input, error).with_hint(hint))
    }

    fn our_failure(self, hint: impl Into<String>) -> Result<T, Fault> {
        self.map_err(|error| Fault::new(Code::Failure, error).with_hint(hint))
    }
}

/// An error ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How the program ends.
    pub code: Code,
    /// The causes, outermost first, on one line.
    pub line: String,
    /// What to do, where somebody knew.
    pub hint: Option<String>,
}

impl Verdict {
    /// Reads an error and its causes. The innermost [`Fault`] decides: it was closest to the cause. A full disk is
    /// recognised wherever it appears.
    pub fn of(error: &(dyn Error + 'static)) -> Verdict {
        let chain: Vec<_> = std::iter::successors(Some(error), |&error| error.source()).collect();
        let line = one_line(&chain);
        if chain.iter().any(|error| is_full_disk(*error)) {
            let hint = "no room is left there: free some, or choose another place (run.output_dir, data.cache_dir)";
            return Verdict { code: Code::Input, line, hint: Some(hint.to_owned()) };
        }
        let fault = chain.iter().rev().find_map(|error| error.downcast_ref::<Fault>());
        if let Some(fault) = fault {
            return Verdict { code: fault.code, line, hint: fault.hint.clone() };
        }
        let (code, hint) = by_type::told(&chain);
        Verdict { code, line, hint: hint.map(str::to_owned) }
    }
}

/// Joins the causes, leaving out those that an outer message already ends with, and takes line breaks out.
fn one_line(chain: &[&(dyn Error + 'static)]) -> String {
    let mut line = String::new();
    for cause in chain {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if line.is_empty() {
            line = text;
        } else if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

/// libtorch reports a failed write as text only, hence the second look.
fn is_full_disk(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
        || error.to_string().contains("No space left on device")
}

/// Runs a program's one function; prints its error, if any, and maps it to the exit code.
///
/// Every `main` is this call, or a worker's [`crate::launched::run_worker`].
pub fn run_program<E: Into<AnyError>>(name: &str, program: impl FnOnce() -> Result<(), E>) -> ExitCode {
    let Err(error) = program() else { return ExitCode::SUCCESS };
    let error: AnyError = error.into();
    let verdict = Verdict::of(&*error);
    let hint = verdict.hint.map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
    // Nobody is left to be told when stderr is gone.
    let _ = write!(io::stderr().lock(), "{name}: {}\n{hint}", verdict.line);
    ExitCode::from(verdict.code.number())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigError;
    use crate::wait::WaitError;

    #[derive(Debug, thiserror::Error)]
    enum Outer {
        #[error("weights of {0}")]
        Weights(&'static str, #[source] Fault),
        #[error("{0}: {1}")]
        File(&'static str, #[source] io::Error),
    }

    #[test]
    fn the_innermost_fault_decides_and_every_cause_is_named_once() {
        let missing = io::Error::new(io::ErrorKind::NotFound, "no such file");
        let inner = Err::<(), _>(Outer::File("model.safetensors", missing)).your_input("check model.target_model_path");
        let error = Outer::Weights("tiny", inner.unwrap_err());
        let outer = Err::<(), _>(error).our_failure("see the log").unwrap_err();
        let verdict = Verdict::of(&outer);
        assert_eq!(verdict.line, "weights of tiny: model.safetensors: no such file");
        assert_eq!(verdict.hint.as_deref(), Some("check model.target_model_path"));
        assert_eq!(verdict.code.number(), 1);
    }

    #[test]
    fn an_unblamed_error_is_our_failure_on_one_line() {
        let error: AnyError = "first\n   | second\nthird".into();
        let verdict = Verdict::of(&*error);
        assert_eq!(verdict, Verdict { code: Code::Failure, line: "first | second third".into(), hint: None });
    }

    #[test]
    fn a_full_disk_is_the_users_wherever_it_is_found() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = Err::<(), _>(Outer::File("runs/tiny/config.toml", full)).our_failure("see the log").unwrap_err();
        let verdict = Verdict::of(&error);
        assert_eq!(verdict.code, Code::Input);
        assert!(verdict.line.starts_with("runs/tiny/config.toml: ") && verdict.hint.unwrap().contains("room"));
        let text: AnyError = "write failed: No space left on device".into();
        assert_eq!(Verdict::of(&*text).code, Code::Input);
    }

    #[test]
    fn some_errors_say_by_themselves_who_has_to_act() {
        assert_eq!(Verdict::of(&ConfigError::Override("x".into())).code, Code::Input);
        assert_eq!(Verdict::of(&WaitError::Aborted).code, Code::Peer);
        assert_eq!(Verdict::of(&WaitError::Shutdown).code, Code::Failure);
    }

    #[test]
    fn codes_are_those_of_the_documentation() {
        let codes = [Code::Done, Code::Input, Code::Failure, Code::Peer, Code::Signal(15)].map(Code::number);
        assert_eq!(codes, [0, 1, 2, 3, 143]);
    }
}
