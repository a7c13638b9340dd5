//! A child's output, line by line: into its log file, onto the console, and the last lines kept for the last page.
//!
//! A pump never waits for the console and never holds more than one bounded line, so a child cannot stall on a full pipe
//! and a flood cannot grow the launcher.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use common::launched::LastWords;

use super::Launch;
use crate::progress::Console;

/// Longer lines are shown and kept in pieces of this many bytes.
const LONGEST_LINE: u64 = 8 * 1024;

/// Lines kept for the last page.
const TAIL_LINES: usize = 50;

/// The most of a child's data that is kept; the rest is read and let go.
const LONGEST_DATA: u64 = 16 * 1024 * 1024;

/// The last lines of a child.
#[derive(Clone, Default)]
pub(super) struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Oldest first.
    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Where lines go.
#[derive(Clone)]
pub(super) struct Sink {
    prefix: String,
    log: Arc<File>,
    console: Console,
    tail: Tail,
}

impl Sink {
    pub(super) fn open(launch: &Launch, console: Console, tail: Tail) -> io::Result<Sink> {
        let log = OpenOptions::new().create(true).append(true).open(&launch.log);
        let log = log.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", launch.log.display())))?;
        Ok(Sink { prefix: format!("[{}] ", launch.name), log: Arc::new(log), console, tail })
    }

    /// Keeps last words in the log; the console gets them from the supervision.
    pub(super) fn note(&self, words: &LastWords) {
        let hint = words.hint.iter().map(|hint| format!("hint: {hint}\n"));
        let text = [format!("{}\n", words.error)].into_iter().chain(hint).collect::<String>();
        // As in `line`.
        let _ = (&*self.log).write_all(text.as_bytes());
    }

    fn line(&self, bytes: &[u8], shown: bool) {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end_matches(['\n', '\r']);
        // A full disk must not stop the run here: the checkpoint's writer will say so, and the console still shows it.
        let _ = (&*self.log).write_all(format!("{text}\n").as_bytes());
        // Workers mark their own log lines; panics and libraries do not.
        let marked = || if text.starts_with(&self.prefix) { text.to_owned() } else { format!("{}{text}", self.prefix) };
        if shown {
            self.console.pass_on(marked());
        }
        self.tail.push(text.to_owned());
    }
}

/// A thread that empties one stream.
pub(super) struct Pump {
    done: Receiver<()>,
}

impl Pump {
    pub(super) fn start(stream: impl Read + Send + 'static, sink: Sink, shown: bool) -> Pump {
        let (alive, done) = channel();
        thread::spawn(move || {
            pump(stream, |line| sink.line(line, shown));
            drop(alive);
        });
        Pump { done }
    }

    /// Returns when the stream has ended and every line is passed on, or at the deadline.
    pub(super) fn drain_until(&self, deadline: Instant) {
        // Either way there is nothing more to wait for.
        let _ = self.done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

fn pump(stream: impl Read, mut line: impl FnMut(&[u8])) {
    let mut stream = BufReader::new(stream);
    let mut piece = Vec::new();
    loop {
        piece.clear();
        match (&mut stream).take(LONGEST_LINE).read_until(b'\n', &mut piece) {
            Ok(0) => return,
            Ok(_) => line(&piece),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// What a stream says, kept by a thread.
pub(super) struct Data(Receiver<Vec<u8>>);

impl Data {
    pub(super) fn collect(mut stream: impl Read + Send + 'static) -> Data {
        let (whole, data) = channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            // What cannot be read is missing from the data, and its reader says so.
            let _ = (&mut stream).take(LONGEST_DATA).read_to_end(&mut bytes);
            let _ = io::copy(&mut stream, &mut io::sink());
            // The child may have been given up meanwhile.
            let _ = whole.send(bytes);
        });
        Data(data)
    }

    /// All of it, or nothing if the stream has not ended at the deadline.
    pub(super) fn take_until(&self, deadline: Instant) -> Vec<u8> {
        self.0.recv_timeout(deadline.saturating_duration_since(Instant::now())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_come_in_pieces_and_the_last_needs_no_end() {
        let text = format!("one\n{}\nlast", "x".repeat(LONGEST_LINE as usize + 5));
        let mut pieces = Vec::new();
        pump(text.as_bytes(), |line| pieces.push(line.len()));
        assert_eq!(pieces, [4, LONGEST_LINE as usize, 6, 4]);
    }

    #[test]
    fn the_tail_keeps_the_last_lines() {
        let tail = Tail::default();
        (0..TAIL_LINES + 3).for_each(|n| tail.push(n.to_string()));
        let lines = tail.lines();
        assert_eq!((lines.len(), lines[0].as_str()), (TAIL_LINES, "3"));
    }
}
