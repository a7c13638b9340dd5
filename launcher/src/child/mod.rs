//! One process of a run: its start, its output, its end.
//!
//! - It leads a process group of its own, so that ending it ends what it started, and a Ctrl-C reaches it through the
//!   launcher alone.
//! - It dies with the launcher, however the launcher dies: the kernel sends it SIGKILL when the *thread* that started it
//!   ends. So only the launcher's main thread may call [`Child::spawn`].
//! - Its end is seen through a pidfd, not by asking again and again.
//! - Its output is drained by threads of its own, whatever the console does.
#![expect(
    unsafe_code,
    reason = "pidfd_open has no wrapper, and what runs between fork and exec is the caller's promise"
)]

mod ending;
mod pump;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getppid};

use crate::progress::Console;

pub(crate) use ending::{Ending, signal_name};
use pump::{Data, Pump, Sink, Tail};

/// How long to wait for the output's end once the process is gone: somebody who left its group may hold the pipe.
const DRAIN: Duration = Duration::from_secs(2);

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// Marks its lines on the console.
    pub(crate) name: String,
    /// The executable.
    pub(crate) program: PathBuf,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// Where its output is kept; appended to.
    pub(crate) log: PathBuf,
    /// Whether stdout is data for the launcher, not lines for people.
    pub(crate) stdout_is_data: bool,
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

    /// Readable once the process has ended.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Asks the process, and what it started, to end.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Ends the process and what it started.
    pub(crate) fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    fn signal(&self, signal: Signal) {
        // The group keeps its number until the leader is reaped, so this never reaches a stranger. What has ended
        // needs no signal.
        let _ = killpg(self.group(), signal);
    }

    fn group(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed())
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
        Ok(Ended { ending: Ending::of(status), tail: self.tail.lines(), uptime, data })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            // It was killed: this ends. Nobody is left to hear how.
            let _ = self.process.wait();
        }
    }
}

fn start(launch: &Launch, console: &Console) -> io::Result<Child> {
    let tail = Tail::default();
    let sink = Sink::open(launch, console.clone(), tail.clone())?;
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
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
    let mut pumps = vec![Pump::start(stderr.expect("stderr was asked for"), sink.clone())];
    let data = if launch.stdout_is_data {
        Some(Data::collect(stdout))
    } else {
        pumps.push(Pump::start(stdout, sink));
        None
    };
    Ok(Child { process, pidfd, pumps, data, tail, started, reaped: false })
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
