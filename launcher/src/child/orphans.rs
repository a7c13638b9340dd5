//! Processes that workers started and left behind outside their group.
//!
//! The launcher is their subreaper: when a worker ends, the kernel makes them the launcher's own children, as it makes
//! every orphan of a container the child of process 1. Those of this run are ended, all are collected.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// Between two looks when nobody has ended.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long orphans may take to end once killed.
const PATIENCE: Duration = Duration::from_secs(1);

/// Collects the orphans of one run. For a process that starts children through [`super::Child`] alone.
pub(crate) struct Orphans {
    /// As it stands in the environment of everything that the run started.
    mark: String,
    looked: Instant,
}

impl Orphans {
    /// Makes orphans come to this process. `mark` is `NAME=value` in the environment of the run's workers.
    ///
    /// # Errors
    /// The system does not allow it.
    pub(crate) fn adopt(mark: String) -> io::Result<Orphans> {
        prctl::set_child_subreaper(true)?;
        Ok(Orphans { mark, looked: Instant::now() })
    }

    /// Kills and collects what came to this process, but for its own `children`; at most once in a while.
    pub(crate) fn look(&mut self, children: &[Pid]) {
        if self.looked.elapsed() >= INTERVAL {
            self.look_now(children);
        }
    }

    /// As [`Orphans::look`], at once.
    pub(crate) fn look_now(&mut self, children: &[Pid]) {
        self.looked = Instant::now();
        for orphan in adopted(children) {
            if self.is_of_this_run(orphan) {
                // Gone already is as good.
                let _ = kill(orphan, Signal::SIGKILL);
            }
            // Of another it only takes the exit code that nobody waits for.
            let _ = waitpid(orphan, Some(WaitPidFlag::WNOHANG));
        }
    }

    /// With no child left: ends and collects all of this run, as far as they let themselves be ended in a second.
    pub(crate) fn end(&mut self) {
        let end = Instant::now() + PATIENCE;
        while adopted(&[]).into_iter().any(|orphan| self.is_of_this_run(orphan)) && Instant::now() < end {
            self.look_now(&[]);
            std::thread::sleep(Duration::from_millis(2));
        }
        self.look_now(&[]);
    }

    fn is_of_this_run(&self, process: Pid) -> bool {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == self.mark.as_bytes())
    }
}

/// Children of this process besides `children`.
fn adopted(children: &[Pid]) -> Vec<Pid> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw);
    pids.filter(|pid| !children.contains(pid) && parent(*pid) == Some(Pid::this())).collect()
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: state, then the parent.
    let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?;
    parent.parse().ok().map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_found_by_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("600").env("RUN_ID", "of this test").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        assert_eq!(parent(pid), Some(Pid::this()));
        assert!(adopted(&[]).contains(&pid) && !adopted(&[pid]).contains(&pid));
        let orphans = |mark: &str| Orphans { mark: mark.into(), looked: Instant::now() };
        // Until the new program runs, the environment is the test's own.
        let end = Instant::now() + Duration::from_secs(60);
        while !orphans("RUN_ID=of this test").is_of_this_run(pid) {
            assert!(Instant::now() < end, "the mark is not seen");
        }
        assert!(!orphans("RUN_ID=of this").is_of_this_run(pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
