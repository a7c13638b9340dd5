//! What a drafter does when another one dies: it leaves its step and its place at the queue, says so, and goes on from
//! where the launcher says, together with the one that was started again.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use common::exit::AnyError;
use common::launched::Launcher;
use common::line::{RestartPoint, ToLauncher, ToWorker};
use common::reduce::SumError;
use common::shutdown::Shutdown;
use common::wait::{Patience, WaitError};

use super::exchange::ExchangeError;

/// Between two looks at whether the end was asked for.
const LOOK: Duration = Duration::from_millis(50);

/// Where training goes on, and until when.
pub(crate) struct Start {
    /// Its state; none at the beginning.
    pub(crate) checkpoint: Option<PathBuf>,
    /// Set when the process is to end, or this drafter is to leave.
    pub(crate) end: Shutdown,
}

/// The launcher's word on leaving and going on.
pub(crate) struct Regroup {
    launcher: Launcher,
    rejoin: Receiver<(RestartPoint, Shutdown)>,
    patience: Patience,
}

impl Regroup {
    /// Listens to the launcher from here on. The second is the end of the training that is about to begin.
    pub(crate) fn new(launcher: &Launcher, patience: &Patience) -> (Regroup, Shutdown) {
        let (sender, rejoin) = channel();
        let (whole, first) = (patience.shutdown.clone(), patience.shutdown.part());
        let mut end = first.clone();
        let ours = |message: &ToWorker| matches!(message, ToWorker::Leave | ToWorker::Rejoin(_));
        launcher.listen(ours, move |received| match received.message {
            ToWorker::Rejoin(from) => {
                end = whole.part();
                // Nobody is left to hear it only when the process ends.
                let _ = sender.send((from, end.clone()));
            }
            _ => end.request(),
        });
        (Regroup { launcher: launcher.clone(), rejoin, patience: patience.clone() }, first)
    }

    /// Whether training ended because another drafter is gone.
    pub(crate) fn is_due(error: &AnyError) -> bool {
        matches!(error.downcast_ref(), Some(ExchangeError::Meeting(SumError::Wait(WaitError::Aborted))))
    }

    /// Says that this drafter has left and waits to be told where to go on; none if it was asked to end meanwhile.
    ///
    /// # Errors
    /// The launcher is gone or says nothing for too long.
    pub(crate) fn wait(&self, run: &Path, snapshots: &Path) -> Result<Option<Start>, AnyError> {
        self.launcher.tell(&ToLauncher::Left, None)?;
        tracing::info!("another drafter is gone: waiting to go on with it");
        let started = Instant::now();
        while !self.patience.shutdown.is_set() {
            match self.rejoin.recv_timeout(LOOK) {
                Ok((from, end)) => return Ok(Some(Start { checkpoint: from.folder(run, snapshots), end })),
                Err(RecvTimeoutError::Timeout) if started.elapsed() < self.patience.timeout => {}
                Err(_) => {
                    let what = "the launcher to say where to go on".into();
                    return Err(WaitError::Timeout { what, after: started.elapsed() }.into());
                }
            }
        }
        Ok(None)
    }
}
