//! One process of a run: its start, its output, its end.
//!
//! - It leads a process group of its own, so that ending it ends what it started, and a Ctrl-C reaches it through the
//!   launcher alone.
//! - It dies with the launcher, however the launcher dies: the kernel sends it SIGKILL when the *thread* that started it
//!   ends. So only the launcher's main thread may call [`Child::spawn`].
//! - Its stdin is one end of a line whose other end is the launcher's alone: where the kernel sends no signal, the line's
//!   end tells it ([`common::launched`]). Messages go both ways; a worker that sends nonsense is killed.
//! - What it leaves behind outside its group comes to the launcher, which ends it ([`Orphans`]).
//! - Its end is seen through a pidfd, not by asking again and again.
//! - Its output is drained by threads of its own, whatever the console does.
#![expect(
    unsafe_code,
    reason = "pidfd_open has no wrapper, and what runs between fork and exec is the caller's promise"
)]

mod ending;
mod link;
mod orphans;
mod pump;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::exit::Code;
use common::launched::{ERROR_FILE, LastWords};
use common::line::{Line, LineError, Received, ToLauncher, ToWorker};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getppid};

use crate::progress::Console;

pub(crate) use ending::{Ending, signal_name};
use link::{Link, LinkError};
pub(crate) use orphans::Orphans;
use pump::{Data, Pump, Sink, Tail};

/// How long to wait for the output's end once the process is gone: somebody who left its group may hold the pipe.
const DRAIN: Duration = Duration::from_secs(2);

/// How long to wait for a killed process: one that hangs in the kernel must not hold the launcher.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// Marks its lines on the console.
    pub(crate) name: String,
    /// The executable.
    pub(crate) program: PathBuf,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// What its environment has besides the launcher's.
    pub(crate) env: Vec<(&'static str, String)>,
    /// Where its output is kept; appended to.
    pub(crate) log: PathBuf,
    /// Which of its streams appear on the console too.
    pub(crate) shown: Streams,
    /// Whether stdout is data for the launcher, not lines for people.
    pub(crate) stdout_is_data: bool,
}

/// Some of a process's output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streams {
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

impl Streams {
    pub(crate) const ALL: Streams = Streams { stdout: true, stderr: true };
}

impl Launch {
    /// Where the process leaves its last words: beside its log.
    fn error_file(&self) -> PathBuf {
        self.log.with_extension("error.json")
    }
}

/// A process that did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {program}: {source}")]
pub(crate) struct SpawnError {
    program: PathBuf,
    source: io::Error,
}

/// A started process. Dropping it kills it and all of its group.
pub(crate) struct Child {
    process: std::process::Child,
    pidfd: OwnedFd,
    link: Link,
    /// What it did to be killed by the launcher.
    fault: Option<String>,
    sink: Sink,
    error_file: PathBuf,
    pumps: Vec<Pump>,
    data: Option<Data>,
    tail: Tail,
    started: Instant,
    reaped: bool,
}

/// What is left of a process.
pub(crate) struct Ended {
    /// Exit code or signal.
    pub(crate) ending: Ending,
    /// Its last lines.
    pub(crate) tail: Vec<String>,
    /// Why it ended, if it said so.
    pub(crate) words: Option<LastWords>,
    /// From start to end.
    pub(crate) uptime: Duration,
    /// Its stdout, where that was data.
    pub(crate) data: Vec<u8>,
}

impl Child {
    /// Starts a process. Main thread only: the child dies with the thread that started it.
    ///
    /// # Errors
    /// The program is missing, the log cannot be opened, or the system is out of processes.
    pub(crate) fn spawn(launch: &Launch, console: &Console) -> Result<Child, SpawnError> {
        start(launch, console).map_err(|source| SpawnError { program: launch.program.clone(), source })
    }

    /// Its process id, until it is reaped.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed())
    }

    /// Readable once the process has ended.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Readable when the process has said something; none if it never will again.
    pub(crate) fn line(&self) -> Option<BorrowedFd<'_>> {
        self.link.fd()
    }

    /// What the process has said since the last call. One that sends nonsense is killed, and its last words name it.
    pub(crate) fn hear(&mut self) -> Vec<Received<ToLauncher>> {
        let said = self.link.hear();
        said.unwrap_or_else(|error| {
            self.fail("its line to the launcher", &error);
            Vec::new()
        })
    }

    /// Tells the process something, with a file that it gets as its own. One that does not listen is killed.
    pub(crate) fn tell(&mut self, message: &ToWorker, file: Option<BorrowedFd<'_>>) {
        match self.link.tell(message, file) {
            Ok(()) => {}
            // Most likely it is ending, for a reason of its own.
            Err(LinkError::Line(LineError::Closed)) => self.kill(),
            Err(error) => self.fail("a message from the launcher", &error),
        }
    }

    /// Ends the process for what it did.
    pub(crate) fn fail(&mut self, what: &str, error: &dyn std::error::Error) {
        self.fault.get_or_insert_with(|| format!("{what}: {error}"));
        self.kill();
    }

    /// Asks the process, and what it started, to end.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Ends the process and what it started.
    pub(crate) fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Leaves the process to itself: it was killed and does not end.
    pub(crate) fn abandon(mut self) {
        self.reaped = true;
    }

    fn signal(&self, signal: Signal) {
        // The group keeps its number until the leader is reaped, so this never reaches a stranger. What has ended
        // needs no signal.
        let _ = killpg(self.pid(), signal);
    }

    /// Collects a process that has ended (or is about to: it waits), after ending what it left in its group and reading
    /// its output to the end.
    ///
    /// # Errors
    /// Somebody else collected it.
    pub(crate) fn reap(mut self) -> io::Result<Ended> {
        waitid(Id::PIDFd(self.pidfd.as_fd()), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)?;
        let uptime = self.started.elapsed();
        self.kill();
        let status = self.process.wait()?;
        self.reaped = true;
        let deadline = Instant::now() + DRAIN;
        self.pumps.iter().for_each(|pump| pump.drain_until(deadline));
        let data = self.data.as_ref().map_or_else(Vec::new, |data| data.take_until(deadline));
        let killed = self.fault.take().map(|error| LastWords { code: Code::Failure.number(), error, hint: None });
        let words = LastWords::read(&self.error_file).or(killed);
        words.iter().for_each(|words| self.sink.note(words));
        Ok(Ended { ending: Ending::of(status), tail: self.tail.lines(), words, uptime, data })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            let mut ended = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
            let patience = PollTimeout::try_from(KILL_PATIENCE).unwrap_or(PollTimeout::MAX);
            if poll(&mut ended, patience).is_ok_and(|ready| ready > 0) {
                // Nobody is left to hear how it ended.
                let _ = self.process.wait();
            }
        }
    }
}

fn start(launch: &Launch, console: &Console) -> io::Result<Child> {
    let tail = Tail::default();
    let sink = Sink::open(launch, console.clone(), tail.clone())?;
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).envs(launch.env.iter().map(|(key, value)| (key, value)));
    command.env(ERROR_FILE, launch.error_file()).process_group(0);
    let (line, theirs) = Line::pair()?;
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
    match std::fs::remove_file(launch.error_file()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let launcher = Pid::this();
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(move || die_with(launcher)) };
    let started = Instant::now();
    let mut process = command.spawn()?;
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let pidfd = open_pidfd(process.id()).inspect_err(|_| {
        // Without a pidfd its end would go unseen, so it must not run; both calls can only fail if it is gone.
        let _ = process.kill();
        let _ = process.wait();
    })?;
    let stdout = stdout.expect("stdout was asked for");
    let mut pumps = vec![Pump::start(stderr.expect("stderr was asked for"), sink.clone(), launch.shown.stderr)];
    let data = if launch.stdout_is_data {
        Some(Data::collect(stdout))
    } else {
        pumps.push(Pump::start(stdout, sink.clone(), launch.shown.stdout));
        None
    };
    let error_file = launch.error_file();
    let link = Link::new(line);
    Ok(Child { process, pidfd, link, fault: None, sink, error_file, pumps, data, tail, started, reaped: false })
}

/// Ties this process's life to its parent's. Runs between fork and exec.
fn die_with(launcher: Pid) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // Had the launcher died before that call, nobody would have sent the signal.
    if getppid() == launcher { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).expect("the kernel's file numbers fit an int");
    // SAFETY: the kernel has just made this file number for us, close-on-exec; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests;
