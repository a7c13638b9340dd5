//! A worker's line to whoever hands out the arena's parts.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use common::arena::{ArenaReply, ArenaRequest};
use common::launched::Launcher;
use common::line::{Received, ToLauncher, ToWorker};
use common::wait::{Patience, WaitError};

/// What comes over a link: a message, and the file descriptor that came with it.
pub type Incoming = (ArenaReply, Option<OwnedFd>);

/// The launcher cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The message does not get through.
    #[error("the line to the launcher: {0}")]
    Line(String),
    /// Nothing came.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// The way to the launcher and back.
pub trait Link: Send {
    /// Says something, with a file descriptor perhaps.
    ///
    /// # Errors
    /// [`LinkError::Line`].
    fn send(&self, request: ArenaRequest, fd: Option<BorrowedFd<'_>>) -> Result<(), LinkError>;

    /// The next message, if one comes within `timeout`.
    ///
    /// # Errors
    /// [`LinkError::Line`].
    fn receive(&self, timeout: Duration) -> Result<Option<Incoming>, LinkError>;
}

/// The line to the launcher that started this worker.
pub struct LauncherLink {
    launcher: Launcher,
    replies: Receiver<Incoming>,
}

impl LauncherLink {
    /// Listens to what the launcher says about the arena.
    pub fn new(launcher: &Launcher) -> LauncherLink {
        let (sender, replies) = channel();
        let wanted = |message: &ToWorker| matches!(message, ToWorker::Arena(_));
        launcher.listen(wanted, move |Received { message, file }| {
            if let ToWorker::Arena(reply) = message {
                // Nobody asks any more when the worker is ending.
                let _ = sender.send((reply, file));
            }
        });
        LauncherLink { launcher: launcher.clone(), replies }
    }
}

impl Link for LauncherLink {
    fn send(&self, request: ArenaRequest, fd: Option<BorrowedFd<'_>>) -> Result<(), LinkError> {
        let told = self.launcher.tell(&ToLauncher::Arena(request), fd);
        told.map_err(|error| LinkError::Line(error.to_string()))
    }

    fn receive(&self, timeout: Duration) -> Result<Option<Incoming>, LinkError> {
        match self.replies.recv_timeout(timeout) {
            Ok(incoming) => Ok(Some(incoming)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(LinkError::Line("nobody reads it any more".into())),
        }
    }
}

/// Between two looks at whether the worker is to end.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// A link, and what came over it that nobody has asked for yet: of each part the newest word alone, as the memory that an
/// older one speaks of may be gone.
pub(super) struct Inbox {
    link: Box<dyn Link>,
    newest: Vec<Incoming>,
}

impl Inbox {
    pub(super) fn new(link: Box<dyn Link>) -> Inbox {
        Inbox { link, newest: Vec::new() }
    }

    /// As [`Link::send`].
    pub(super) fn send(&self, request: ArenaRequest, fd: Option<BorrowedFd<'_>>) -> Result<(), LinkError> {
        self.link.send(request, fd)
    }

    /// The next message, as long as patience lasts. `what` says what is waited for.
    pub(super) fn await_next(&mut self, patience: &Patience, what: &str) -> Result<Incoming, LinkError> {
        let started = Instant::now();
        loop {
            if let Some(incoming) = self.next(LOOK)? {
                return Ok(incoming);
            }
            if patience.shutdown.is_set() {
                return Err(WaitError::Shutdown.into());
            }
            let after = started.elapsed();
            if after > patience.timeout {
                return Err(WaitError::Timeout { what: what.to_owned(), after }.into());
            }
        }
    }

    /// The next message, if one comes within `timeout`.
    pub(super) fn next(&mut self, timeout: Duration) -> Result<Option<Incoming>, LinkError> {
        self.fetch(if self.newest.is_empty() { timeout } else { Duration::ZERO })?;
        Ok((!self.newest.is_empty()).then(|| self.newest.remove(0)))
    }

    /// Takes all that has come, waiting up to `timeout` for the first of it.
    fn fetch(&mut self, mut timeout: Duration) -> Result<(), LinkError> {
        while let Some(incoming) = self.link.receive(timeout)? {
            let part = subject(&incoming.0);
            self.newest.retain(|(older, _)| subject(older) != part);
            self.newest.push(incoming);
            timeout = Duration::ZERO;
        }
        Ok(())
    }
}

/// The part that a message speaks of.
fn subject(reply: &ArenaReply) -> u32 {
    match reply {
        ArenaReply::Make { part, .. } | ArenaReply::Gone { part, .. } => *part,
        ArenaReply::Map(part) => part.part,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use common::arena::{Memory, Part};
    use common::shutdown::Shutdown;

    use super::*;

    /// A link whose other end is a test.
    struct Channel(Receiver<Incoming>);

    impl Link for Channel {
        fn send(&self, _: ArenaRequest, _: Option<BorrowedFd<'_>>) -> Result<(), LinkError> {
            Ok(())
        }

        fn receive(&self, timeout: Duration) -> Result<Option<Incoming>, LinkError> {
            Ok(self.0.recv_timeout(timeout).ok())
        }
    }

    fn inbox() -> (Sender<Incoming>, Inbox) {
        let (sender, receiver) = channel();
        (sender, Inbox::new(Box::new(Channel(receiver))))
    }

    fn map(part: u32, version: u32) -> Incoming {
        (ArenaReply::Map(Part { part, version, bytes: 1, gpu: [0; 16], memory: Memory::Ipc(vec![0; 64]) }), None)
    }

    fn patience(timeout: Duration) -> Patience {
        Patience { timeout, shutdown: Shutdown::never() }
    }

    #[test]
    fn of_each_part_the_newest_word_alone_is_heard() {
        let (sender, mut inbox) = inbox();
        let gone = |part, version| (ArenaReply::Gone { part, version }, None);
        for incoming in [map(0, 1), map(1, 1), gone(0, 1), map(0, 2), map(2, 1), gone(1, 1)] {
            sender.send(incoming).unwrap();
        }
        let patience = patience(Duration::from_secs(20));
        let mut next = || inbox.await_next(&patience, "a part").unwrap().0;
        assert_eq!([next(), next(), next()], [map(0, 2).0, map(2, 1).0, gone(1, 1).0]);
    }

    #[test]
    fn a_word_that_does_not_come_ends_the_wait_with_its_name() {
        let (_sender, mut inbox) = inbox();
        let waited = inbox.await_next(&patience(Duration::from_millis(1)), "part 0").unwrap_err();
        assert!(waited.to_string().ends_with("s for part 0"), "{waited}");
        let patience = patience(Duration::from_secs(20));
        patience.shutdown.request();
        assert!(matches!(inbox.await_next(&patience, "part 0"), Err(LinkError::Wait(WaitError::Shutdown))));
    }
}
