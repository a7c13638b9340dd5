//! The workers as processes: forked, killed, waited for, taken back, replaced.
#![expect(unsafe_code, reason = "forks")]
#![allow(clippy::print_stderr, reason = "a program for the terminal")]

use common::ids::{Rank, Role};
use common::queue::QueueOwner;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::evidence::Evidence;
use crate::{BATCHES, DRAFTERS, TARGETS, worker};

/// One process per place, targets first; none where it has seen the end.
pub(crate) struct Fleet<'a> {
    queue: &'a QueueOwner,
    evidence: &'a Evidence,
    name: String,
    workers: Vec<Option<Pid>>,
    pub(crate) kills: u64,
    /// Workers that ended on their own with an error.
    pub(crate) failed: u64,
}

impl<'a> Fleet<'a> {
    pub(crate) fn new(queue: &'a QueueOwner, evidence: &'a Evidence, name: String) -> Fleet<'a> {
        let places = (TARGETS + DRAFTERS) as usize;
        Fleet { queue, evidence, name, workers: vec![None; places], kills: 0, failed: 0 }
    }

    /// Collects who ended, replaces them while there is work, and says whether all is trained and everybody gone.
    pub(crate) fn is_over(&mut self) -> Result<bool, String> {
        let done = self.queue.trained_ranges() == [(0, BATCHES)];
        for place in 0..self.workers.len() {
            if let Some(pid) = self.workers[place] {
                match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
                    Ok(WaitStatus::StillAlive) => continue,
                    Ok(status) => self.bury(place, status)?,
                    Err(error) => return Err(error.to_string()),
                }
            }
            if !done {
                // It saw the end of the stream before another's death brought batches back, or it failed.
                self.workers[place] = Some(self.spawn(place)?);
            }
        }
        Ok(done && self.workers.iter().all(Option::is_none))
    }

    pub(crate) fn kill_one(&mut self, choice: usize) -> Result<(), String> {
        let place = choice % self.workers.len();
        let Some(pid) = self.workers[place] else { return Ok(()) };
        kill(pid, Signal::SIGKILL).map_err(|error| error.to_string())?;
        let status = waitpid(pid, None).map_err(|error| error.to_string())?;
        self.bury(place, status)?;
        self.workers[place] = Some(self.spawn(place)?);
        Ok(())
    }

    fn bury(&mut self, place: usize, status: WaitStatus) -> Result<(), String> {
        match status {
            WaitStatus::Signaled(_, Signal::SIGKILL, _) => self.kills += 1,
            WaitStatus::Exited(_, 0) => {}
            _ => self.failed += 1,
        }
        self.workers[place] = None;
        let (role, rank) = role(place);
        self.queue.reclaim(role, rank).map(|_| ()).map_err(|error| error.to_string())
    }

    fn spawn(&self, place: usize) -> Result<Pid, String> {
        // SAFETY: this program has one thread.
        match unsafe { fork() }.map_err(|error: Errno| error.to_string())? {
            ForkResult::Parent { child } => Ok(child),
            ForkResult::Child => {
                // Without it a killed harness would leave workers behind; they end by themselves at the latest.
                let _ = prctl::set_pdeathsig(Signal::SIGKILL);
                let (role, rank) = role(place);
                let work = || worker::work(&self.name, role, rank, self.evidence);
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                let code = match outcome {
                    Ok(Ok(())) => 0,
                    Ok(Err(problem)) => {
                        eprintln!("soak: {role} {rank}: {problem}");
                        2
                    }
                    Err(_) => 101,
                };
                // SAFETY: ends the process. Not `exit`: what the parent had is not the child's to drop.
                unsafe { nix::libc::_exit(code) }
            }
        }
    }
}

fn role(place: usize) -> (Role, Rank) {
    let place = place as u32;
    if place < TARGETS { (Role::Target, Rank(place)) } else { (Role::Drafter, Rank(place - TARGETS)) }
}
