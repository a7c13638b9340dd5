//! The console: workers' lines, the launcher's own, and one progress bar beneath them.
//!
//! One thread owns it; everybody else sends. Workers' lines and progress are dropped when the terminal is too slow (and
//! that is said): a stopped terminal must stop neither a worker's pump nor the supervision. Their log files have all.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Messages under way at most.
const BACKLOG: usize = 4096;

/// Where there is no terminal to redraw, progress is a line this often.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// How long the launcher waits for the console before it goes on without.
const FLUSH: Duration = Duration::from_secs(2);

/// How far something is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Progress {
    /// What, in a word or two.
    pub(crate) what: &'static str,
    /// Done, of `total`.
    pub(crate) done: u64,
    /// All of it; 0 where nobody knows.
    pub(crate) total: u64,
    /// What else there is to say.
    pub(crate) text: String,
}

enum Message {
    Line(String),
    Progress(Progress),
    ClearProgress,
    Flush(Sender<()>),
}

/// A cheap sender to the console.
#[derive(Clone)]
pub(crate) struct Console {
    to: SyncSender<Message>,
    left_out: Arc<AtomicU64>,
}

impl Console {
    /// Takes stderr over.
    pub(crate) fn start() -> Console {
        let (to, from) = sync_channel(BACKLOG);
        let left_out = Arc::new(AtomicU64::new(0));
        let screen = Screen::new(io::stderr().is_terminal(), Arc::clone(&left_out));
        thread::spawn(move || screen.run(&from));
        Console { to, left_out }
    }

    /// A console that shows nothing.
    #[cfg(test)]
    pub(crate) fn silent() -> Console {
        Console { to: sync_channel(0).0, left_out: Arc::default() }
    }

    /// A console whose lines a test reads.
    #[cfg(test)]
    pub(crate) fn overheard() -> (Console, impl FnOnce() -> Vec<String>) {
        let (to, from) = sync_channel(BACKLOG);
        let lines = move || {
            let line = |message| if let Message::Line(line) = message { Some(line) } else { None };
            from.try_iter().filter_map(line).collect()
        };
        (Console { to, left_out: Arc::default() }, lines)
    }

    /// A line of the launcher's own.
    pub(crate) fn say(&self, text: impl Into<String>) {
        // The thread ends only with the process.
        let _ = self.to.send(Message::Line(text.into()));
    }

    /// A worker's line; left out when the console is behind.
    pub(crate) fn pass_on(&self, line: String) {
        if let Err(TrySendError::Full(_)) = self.to.try_send(Message::Line(line)) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves the bar.
    pub(crate) fn progress(&self, progress: Progress) {
        // The next one will do as well.
        let _ = self.to.try_send(Message::Progress(progress));
    }

    /// Takes the bar away.
    pub(crate) fn clear_progress(&self) {
        let _ = self.to.send(Message::ClearProgress);
    }

    /// Returns when everything said before is shown, or when the terminal takes too long.
    pub(crate) fn flush(&self) {
        let (done, shown) = channel();
        if self.to.try_send(Message::Flush(done)).is_ok() {
            let _ = shown.recv_timeout(FLUSH);
        }
    }
}

/// What the console's thread owns.
struct Screen {
    bar: Option<ProgressBar>,
    terminal: bool,
    left_out: Arc<AtomicU64>,
    last_plain: Option<Instant>,
}

impl Screen {
    fn new(terminal: bool, left_out: Arc<AtomicU64>) -> Screen {
        Screen { bar: None, terminal, left_out, last_plain: None }
    }

    fn run(mut self, from: &Receiver<Message>) {
        for message in from {
            match message {
                Message::Line(line) => self.line(&line),
                Message::Progress(progress) => self.progress(&progress),
                Message::ClearProgress => self.clear(),
                Message::Flush(done) => drop(done),
            }
            let left_out = self.left_out.swap(0, Ordering::Relaxed);
            if left_out > 0 {
                self.line(&format!("tandem: {left_out} lines left out here; the log files have them"));
            }
        }
    }

    fn line(&self, line: &str) {
        // Nobody is left to be told when stderr is gone.
        let write = || drop(writeln!(io::stderr().lock(), "{line}"));
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn progress(&mut self, progress: &Progress) {
        if self.terminal {
            let bar = self.bar.get_or_insert_with(new_bar);
            bar.set_prefix(progress.what);
            bar.set_length(progress.total);
            bar.set_position(progress.done);
            bar.set_message(progress.text.clone());
        } else if self.last_plain.is_none_or(|last| last.elapsed() >= PLAIN_INTERVAL) {
            self.last_plain = Some(Instant::now());
            self.line(&plain(progress));
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.last_plain = None;
    }
}

fn new_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} {wide_msg} {elapsed}<{eta}");
    let style = style.expect("the template is right").progress_chars("=> ");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style)
}

fn plain(progress: &Progress) -> String {
    let Progress { what, done, total, text } = progress;
    format!("tandem: {what} {done}/{total} {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_terminal_stops_nobody() {
        let (to, from) = sync_channel(2);
        let console = Console { to, left_out: Arc::default() };
        (0..5).for_each(|n| console.pass_on(n.to_string()));
        console.progress(Progress { what: "steps", done: 1, total: 2, text: String::new() });
        assert_eq!(console.left_out.load(Ordering::Relaxed), 3);
        assert_eq!(from.try_iter().count(), 2);
    }
}
