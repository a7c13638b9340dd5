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
const LOOK: Duration = Duration::from_millis(50);

/// The next message, as long as patience lasts.
pub(super) fn await_next(link: &dyn Link, patience: &Patience, what: &str) -> Result<Incoming, LinkError> {
    let started = Instant::now();
    loop {
        if let Some(incoming) = link.receive(LOOK)? {
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
