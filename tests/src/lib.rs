//! What every test from outside needs: the real programs, a folder of its own, and an end to waiting.

pub mod live;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests crate lies in the workspace")
}

/// Every Rust source below a folder of the repository; build products and hidden folders are left out.
pub fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of the repository");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let skipped = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with('.') || name == "target" || name == "runs"
    };
    let mut found = Vec::new();
    for path in paths.into_iter().filter(|path| !skipped(path)) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// A program of the workspace. Builds all of them first: cargo gives a separate test crate no binaries.
pub fn program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let executable = std::env::current_exe().expect("a test has a path");
        let folder = executable.ancestors().nth(2).expect("target/PROFILE/deps/test").to_owned();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--workspace", "--bins", "--quiet"]).current_dir(root());
        if folder.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo starts").success(), "the programs do not build");
        folder
    });
    folder.join(name)
}

/// A run's folder and the command line around it.
pub struct Run {
    folder: TempDir,
}

impl Default for Run {
    fn default() -> Self {
        Run { folder: tempfile::tempdir().expect("a temporary folder") }
    }
}

impl Run {
    /// A folder of its own for one run.
    pub fn new() -> Run {
        Run::default()
    }

    /// The run folder.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// `tandem run` on a configuration of the repository, with results and token store in the own folder, one thread a
    /// worker, no evaluation, and `overrides` last.
    pub fn command(&self, config: &str, overrides: &[&str]) -> Command {
        let mut command = Command::new(program("tandem"));
        command.current_dir(root()).stdin(Stdio::null()).args(["run", config]);
        command.arg(format!("run.output_dir={}", self.dir().display()));
        command.arg(format!("data.cache_dir={}", self.folder.path().join("store").display()));
        command.args(["run.threads=1", "run.device=cpu"]).args(overrides);
        command
    }

    /// Runs it to the end within `limit`.
    pub fn finish(&self, config: &str, overrides: &[&str], limit: Duration) -> Finished {
        finish(self.command(config, overrides), limit)
    }
}

/// How a program ended.
pub struct Finished {
    /// Its process id.
    pub pid: u32,
    /// Exit status and streams.
    pub output: Output,
}

impl Finished {
    /// The exit code.
    pub fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    /// Standard error as text.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Standard output as text.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// Panics with both streams unless it ended well.
    pub fn success(self) -> Finished {
        assert_eq!(self.code(), Some(0), "stdout:\n{}\nstderr:\n{}", self.stdout(), self.stderr());
        self
    }
}

/// Runs `command` to its end; one that outlives `limit` is killed and fails the test.
pub fn finish(mut command: Command, limit: Duration) -> Finished {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    let readers = [drain(child.stdout.take()), drain(child.stderr.take())];
    let late = !wait_until(limit, || child.try_wait().expect("own child").is_some());
    if late {
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).ok();
        wait_until(Duration::from_secs(10), || child.try_wait().expect("own child").is_some());
        child.kill().ok();
    }
    let status = child.wait().expect("own child");
    let [stdout, stderr] = readers.map(|reader| reader.join().expect("a reader ends with its pipe"));
    let finished = Finished { pid: child.id(), output: Output { status, stdout, stderr } };
    assert!(!late, "not done in {limit:?}; stdout:\n{}\nstderr:\n{}", finished.stdout(), finished.stderr());
    finished
}

fn drain(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    let mut pipe = pipe.expect("the stream is piped");
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).ok();
        bytes
    })
}

/// Asks `done` until it says yes or `limit` has passed; returns whether it said yes.
pub fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    done()
}

/// Names in /dev/shm whose run id ends with the process id of the launcher that made them.
pub fn shared_memory_of(launcher: u32) -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").expect("/dev/shm can be listed");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let run = format!("-{launcher:x}");
    names
        .filter(|name| name.starts_with("tandem-") && (name.ends_with(&run) || name.contains(&format!("{run}-"))))
        .collect()
}

/// Writes a line to stderr, past the test harness.
pub fn say(line: &str) {
    use std::io::Write;
    writeln!(std::io::stderr(), "{line}").ok();
}

/// Says on stderr why a test did not look at what it is for.
pub fn skipped(why: &str) {
    say(&format!("skipped: {why}"));
}
