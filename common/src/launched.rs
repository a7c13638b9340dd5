//! What a worker owes the launcher that started it: last words in a file, an ear for its messages, and an end when the
//! launcher is gone.
//!
//! The launcher names the file in `ERROR_FILE` and holds the other end of the worker's stdin, a [`Line`]. The end of the
//! line is the launcher's end, seen where the kernel's own parent-death signal is not: across set-uid programs, or when a
//! thread that is not the main one started the worker.

use std::env;
use std::io;
use std::os::fd::BorrowedFd;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};

use crate::exit::{AnyError, Fault, Verdict, run_program};
use crate::line::{Line, LineError, Received, ToLauncher, ToWorker};

/// The environment variable that names the file for last words.
pub const ERROR_FILE: &str = "ERROR_FILE";

/// Rust's exit code of a panic.
const PANIC: u8 = 101;

/// How long the launcher may be too busy to take a message.
const PATIENCE: Duration = Duration::from_secs(30);

/// Messages that nobody listens for yet; more than these means that nobody ever will.
const MOST_UNHEARD: usize = 64;

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

/// The launcher, as the worker that it started sees it. Clones are the same.
#[derive(Clone)]
pub struct Launcher {
    /// None in a program that was started by hand.
    line: Option<Arc<Line>>,
    inbox: Arc<Mutex<Inbox>>,
}

/// A message that is for somebody; the listener gets it on the line's thread and must not wait for anything.
type Listener = (fn(&ToWorker) -> bool, Box<dyn FnMut(Received<ToWorker>) + Send>);

#[derive(Default)]
struct Inbox {
    listeners: Vec<Listener>,
    /// Oldest first.
    unheard: Vec<Received<ToWorker>>,
}

impl Inbox {
    fn deliver(&mut self, received: Received<ToWorker>) {
        let mut listeners = self.listeners.iter_mut();
        match listeners.find(|(wanted, _)| wanted(&received.message)) {
            Some((_, listener)) => listener(received),
            None if self.unheard.len() < MOST_UNHEARD => self.unheard.push(received),
            None => tracing::warn!("nobody listens to the launcher: {:?}", received.message),
        }
    }
}

impl Launcher {
    /// Nobody: of a program that was started by hand.
    pub fn none() -> Launcher {
        Launcher { line: None, inbox: Arc::default() }
    }

    /// Tells it something, with a file that it gets as its own.
    ///
    /// # Errors
    /// [`LineError`]; [`LineError::Closed`] also in a program that was started by hand.
    pub fn tell(&self, message: &ToLauncher, file: Option<BorrowedFd<'_>>) -> Result<(), LineError> {
        let line = self.line.as_ref().ok_or(LineError::Closed)?;
        line.send(message, file, PATIENCE)
    }

    /// Gives `listener` every message that `wanted` says yes to and no earlier listener wanted, also those that came
    /// before this call. It runs on the line's own thread and must not wait: let it send into a channel or set a flag.
    pub fn listen(&self, wanted: fn(&ToWorker) -> bool, listener: impl FnMut(Received<ToWorker>) + Send + 'static) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.listeners.push((wanted, Box::new(listener)));
        let unheard = std::mem::take(&mut inbox.unheard);
        unheard.into_iter().for_each(|received| inbox.deliver(received));
    }

    /// Ends the worker from any thread while others hang in calls that nothing ends: last words, and no destructor.
    pub(crate) fn end_at_once(&self, fault: &Fault) {
        let Verdict { code, line, hint } = Verdict::of(fault);
        tracing::error!("{line}");
        let words = LastWords { code: code.number(), error: line, hint };
        if let Some(file) = env::var_os(ERROR_FILE) {
            // The log has the words too.
            let _ = words.write(Path::new(&file));
        }
        let _ = raise(Signal::SIGKILL);
    }

    /// Reads the line until its end, which is this process's end too.
    fn attend(&self, line: Arc<Line>) {
        let inbox = Arc::clone(&self.inbox);
        thread::spawn(move || {
            let error = loop {
                match line.receive() {
                    Ok(received) => inbox.lock().unwrap_or_else(PoisonError::into_inner).deliver(received),
                    Err(error) => break error,
                }
            };
            if !matches!(error, LineError::Closed) {
                tracing::error!("the line to the launcher: {error}");
            }
            // Not an exit: destructors of libraries at work in other threads must not run.
            let _ = raise(Signal::SIGKILL);
        });
    }
}

/// As [`run_program`], for a worker: under a launcher its error goes into the error file, and the launcher shows it.
pub fn run_worker<E: Into<AnyError>>(name: &str, worker: impl FnOnce(&Launcher) -> Result<(), E>) -> ExitCode {
    let Some(file) = env::var_os(ERROR_FILE).map(PathBuf::from) else {
        return run_program(name, || worker(&Launcher::none()));
    };
    let line = match Line::of_stdin() {
        Ok(line) => Arc::new(line),
        Err(error) => return run_program(name, || Err::<(), _>(error)),
    };
    let launcher = Launcher { line: Some(Arc::clone(&line)), inbox: Arc::default() };
    launcher.attend(line);
    note_panics(file.clone());
    let Err(error) = worker(&launcher) else { return ExitCode::SUCCESS };
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
    #[test]
    fn a_message_reaches_the_first_who_wants_it_also_if_it_came_before() {
        let (ours, theirs) = Line::pair().unwrap();
        let launcher = Launcher { line: Some(Arc::new(ours)), inbox: Arc::default() };
        let hear = |received| launcher.inbox.lock().unwrap().deliver(received);
        let heard = |name: &'static str, wanted: fn(&ToWorker) -> bool| {
            let (sender, receiver) = std::sync::mpsc::channel();
            launcher.listen(wanted, move |received| sender.send((name, received.message)).unwrap());
            receiver
        };
        hear(Received { message: ToWorker::Leave, file: None });
        let nobody = heard("nobody", |_| false);
        let first = heard("first", |message| *message == ToWorker::Leave);
        let second = heard("second", |_| true);
        hear(Received { message: ToWorker::Leave, file: None });
        assert_eq!(first.try_iter().collect::<Vec<_>>(), [("first", ToWorker::Leave), ("first", ToWorker::Leave)]);
        assert!(nobody.try_recv().is_err() && second.try_recv().is_err());
        launcher.tell(&ToLauncher::Left, None).unwrap();
        assert_eq!(theirs.receive::<ToLauncher>().unwrap().message, ToLauncher::Left);
        assert!(matches!(Launcher::none().tell(&ToLauncher::Left, None), Err(LineError::Closed)));
    }
}
