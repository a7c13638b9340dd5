//! A run under attack: started, watched through its queue and its console, its processes stopped and killed at will.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::ids::{Rank, Role};
use common::queue::{ParticipantView, Snapshot};
use common::run_plan::RunPlan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Run, program, root, shared_memory_of, wait_until};

/// The longest that anything awaited here may take.
const LIMIT: Duration = Duration::from_secs(600);

/// Between two looks at the queue: phases of the tiny model last milliseconds.
const LOOK: Duration = Duration::from_micros(300);

/// A running launcher. Dropping it kills it.
pub struct Live {
    launcher: Child,
    run_dir: PathBuf,
    lines: Arc<Mutex<Vec<(Instant, String)>>>,
}

/// How the launcher ended.
pub struct End {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it said on stderr.
    pub stderr: String,
    /// What it left in /dev/shm.
    pub left: Vec<String>,
}

impl Run {
    /// `tandem run` on the tiny model without evaluation; all such runs share their tokenised chats.
    pub fn training(&self, overrides: &[&str]) -> Command {
        let tiny = std::fs::read_to_string(root().join("examples/tiny/train.toml")).expect("it is in the repository");
        let (training, _) = tiny.split_once("[evaluation]").expect("evaluation is its last section");
        let config = self.dir().with_file_name("train.toml");
        std::fs::write(&config, training).expect("the test's own folder");
        let store = program("tandem").with_file_name("token-store-of-tests");
        let mut command = self.command(&config.display().to_string(), overrides);
        command.arg(format!("data.cache_dir={}", store.display()));
        command
    }
}

impl Live {
    /// Starts the command of a run.
    pub fn start(run: &Run, mut command: Command) -> Live {
        let mut launcher = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the launcher starts");
        let stderr = launcher.stderr.take().expect("stderr was asked for");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&lines);
        thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                heard.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), line));
            }
        });
        Live { launcher, run_dir: run.dir(), lines }
    }

    /// The launcher's process id.
    pub fn pid(&self) -> u32 {
        self.launcher.id()
    }

    /// All lines so far, and when they came.
    pub fn lines(&self) -> Vec<(Instant, String)> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a line that holds `text`, said after `since`; when it came.
    pub fn await_line(&self, text: &str, since: Instant) -> Instant {
        let mut found = None;
        self.await_that(text, || {
            found = self.lines().into_iter().find(|(at, line)| *at >= since && line.contains(text));
            found.is_some()
        });
        found.expect("it was awaited").0
    }

    /// The queue of this launcher, once it is there.
    pub fn queue(&self) -> Option<Snapshot> {
        let plan = RunPlan::read(&self.run_dir).ok()?;
        // An earlier launcher's plan may still lie there.
        let ours = plan.run_id.ends_with(&format!("-{:x}", self.pid()));
        ours.then(|| Snapshot::read(&plan.queue_name()).ok()).flatten()
    }

    /// What a living worker shows of itself.
    pub fn worker(&self, role: Role, rank: u32) -> Option<ParticipantView> {
        let mut workers = self.queue()?.participants.into_iter();
        workers.find(|seen| seen.role == role && seen.rank == Rank(rank) && seen.alive)
    }

    /// Waits for a worker to be as `holds` says, stops it there and makes sure; it stays stopped. Its process id.
    pub fn catch(&self, (role, rank): (Role, u32), holds: impl Fn(&ParticipantView) -> bool) -> u32 {
        let end = Instant::now() + LIMIT;
        loop {
            self.assert_alive(end, "a worker to be caught");
            thread::sleep(LOOK);
            let Some(pid) = self.worker(role, rank).filter(|seen| holds(seen)).and_then(|seen| seen.pid) else {
                continue;
            };
            self.send(pid, Signal::SIGSTOP);
            wait_until(Duration::from_secs(5), || self.worker(role, rank).is_none_or(|seen| seen.stopped));
            if self.worker(role, rank).is_some_and(|seen| seen.pid == Some(pid) && seen.stopped && holds(&seen)) {
                return pid;
            }
            self.send(pid, Signal::SIGCONT);
        }
    }

    /// Kills a worker where [`Live::catch`] catches it; as [`Live::kill`].
    pub fn kill_in(&self, worker: (Role, u32), holds: impl Fn(&ParticipantView) -> bool) -> Duration {
        let pid = self.catch(worker, holds);
        self.kill(worker, pid)
    }

    /// Kills a worker and waits for the launcher to say so; how long after the process's end that was. The end itself
    /// takes the kernel a while: it has a model's memory to take back.
    pub fn kill(&self, (role, rank): (Role, u32), pid: u32) -> Duration {
        let asked = Instant::now();
        self.send(pid, Signal::SIGKILL);
        while is_running(pid) {
            thread::sleep(LOOK);
        }
        let ended = Instant::now();
        let noticed = self.await_line(&format!("tandem: {role} {rank} was killed by SIGKILL"), asked);
        noticed.saturating_duration_since(ended)
    }

    /// Sends a signal; a process that is gone does not mind.
    pub fn send(&self, pid: u32, signal: Signal) {
        let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
    }

    /// Waits until `holds`; panics with the console if that takes too long or the launcher ends before.
    pub fn await_that(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + LIMIT;
        while !holds() {
            self.assert_alive(end, what);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn assert_alive(&self, end: Instant, what: &str) {
        assert!(is_running(self.pid()) && Instant::now() < end, "waiting for {what}:\n{}", self.console());
    }

    fn console(&self) -> String {
        self.lines().into_iter().map(|(_, line)| line + "\n").collect()
    }

    /// Waits for the launcher's end.
    pub fn end(mut self) -> End {
        let mut status = None;
        wait_until(LIMIT, || {
            status = self.launcher.try_wait().expect("own child");
            status.is_some()
        });
        // The last lines are still on their way.
        thread::sleep(Duration::from_millis(50));
        let status = status.unwrap_or_else(|| panic!("it does not end:\n{}", self.console()));
        End { status, stderr: self.console(), left: shared_memory_of(self.pid()) }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// Processes whose parent is `pid`.
pub fn children_of(pid: u32) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = |child: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    pids.filter(|child| parent(*child) == Some(pid)).collect()
}

/// Whether a process, or a thread of it, is there and not only waiting to be collected.
pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    let fields: Vec<&str> = rest.split(' ').collect();
    let threads = fields.get(17).and_then(|threads| threads.parse().ok()).unwrap_or(0);
    !rest.starts_with('Z') || threads > 1
}
