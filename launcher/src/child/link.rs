//! The launcher's end of the line to one worker: never waits for it, and takes nothing amiss from it for long.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use common::line::{Line, LineError, Received, ToLauncher, ToWorker};

/// Messages taken in one go, so that one worker does not keep the others waiting.
const AT_ONCE: usize = 16;

/// More messages than these within [`WINDOW`] are a flood: a worker at work sends a few in its whole life.
const FLOOD: u32 = 256;

const WINDOW: Duration = Duration::from_secs(1);

/// Why a worker cannot be talked with.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error(transparent)]
    Line(#[from] LineError),
    #[error("more than {FLOOD} messages in {} s", WINDOW.as_secs())]
    Flood,
}

pub(super) struct Link {
    /// None once the worker has closed its end, or was found to send nonsense.
    line: Option<Line>,
    since: Instant,
    heard: u32,
}

impl Link {
    pub(super) fn new(line: Line) -> Link {
        Link { line: Some(line), since: Instant::now(), heard: 0 }
    }

    /// Readable when there is something to [`Link::hear`]; none once there never will be.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.line.as_ref().map(Line::as_fd)
    }

    /// Tells the worker something, if it takes it at once.
    pub(super) fn tell(&mut self, message: &ToWorker, file: Option<BorrowedFd<'_>>) -> Result<(), LinkError> {
        let line = self.line.as_ref().ok_or(LineError::Closed)?;
        Ok(line.send(message, file, Duration::ZERO)?)
    }

    /// What the worker has said. An error ends the line; that it closed its end is none, it may be about to end.
    pub(super) fn hear(&mut self) -> Result<Vec<Received<ToLauncher>>, LinkError> {
        let mut said = Vec::new();
        while let Some(line) = self.line.as_ref().filter(|_| said.len() < AT_ONCE) {
            match line.try_receive() {
                Ok(Some(received)) => said.push(received),
                Ok(None) => break,
                Err(LineError::Closed) => self.line = None,
                Err(error) => {
                    self.line = None;
                    return Err(error.into());
                }
            }
        }
        self.count(said.len() as u32)?;
        Ok(said)
    }

    fn count(&mut self, messages: u32) -> Result<(), LinkError> {
        if self.since.elapsed() > WINDOW {
            (self.since, self.heard) = (Instant::now(), 0);
        }
        self.heard += messages;
        if self.heard <= FLOOD {
            return Ok(());
        }
        self.line = None;
        Err(LinkError::Flood)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> (Link, Line) {
        let (ours, theirs) = Line::pair().unwrap();
        (Link::new(ours), theirs)
    }

    fn say(line: &Line) {
        line.send(&ToLauncher::Left, None, Duration::ZERO).unwrap();
    }

    #[test]
    fn a_few_messages_are_heard_and_the_end_is_no_error() {
        let (mut link, worker) = link();
        assert!(link.hear().unwrap().is_empty());
        (0..AT_ONCE + 1).for_each(|_| say(&worker));
        assert_eq!([link.hear().unwrap().len(), link.hear().unwrap().len()], [AT_ONCE, 1]);
        link.tell(&ToWorker::Leave, None).unwrap();
        assert_eq!(worker.receive::<ToWorker>().unwrap().message, ToWorker::Leave);
        say(&worker);
        drop(worker);
        assert_eq!(link.hear().unwrap().len(), 1);
        assert!(link.fd().is_none() && link.hear().unwrap().is_empty());
        assert!(matches!(link.tell(&ToWorker::Leave, None), Err(LinkError::Line(LineError::Closed))));
    }

    #[test]
    fn a_flood_ends_the_line() {
        let (mut link, worker) = link();
        let flood = (0..=FLOOD).find_map(|_| {
            say(&worker);
            link.hear().err()
        });
        assert!(matches!(flood, Some(LinkError::Flood)), "{flood:?}");
        assert!(link.fd().is_none());
        assert!(matches!(worker.send(&ToLauncher::Left, None, Duration::ZERO), Err(LineError::Closed)));
    }

    #[test]
    fn nonsense_ends_the_line() {
        let (mut link, worker) = link();
        worker.send(&u64::MAX, None, Duration::ZERO).unwrap();
        assert!(matches!(link.hear(), Err(LinkError::Line(LineError::Wire(_)))));
        assert!(link.fd().is_none());
    }

    #[test]
    fn a_worker_that_hears_nothing_is_not_waited_for() {
        let (mut link, _worker) = link();
        let full = (0..100_000).find_map(|_| link.tell(&ToWorker::Leave, None).err());
        assert!(matches!(full, Some(LinkError::Line(LineError::Full(_)))), "{full:?}");
    }
}
