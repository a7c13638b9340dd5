//! Waiting for another process: never without a deadline, never deaf to a shutdown.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::shutdown::Shutdown;

/// How long to wait, and what ends a wait early. Every blocking call takes one.
#[derive(Clone, Debug)]
pub struct Patience {
    /// The longest wait; from the call on.
    pub timeout: Duration,
    /// Ends every wait with [`WaitError::Shutdown`].
    pub shutdown: Shutdown,
}

impl Patience {
    /// Looks again and again, `pause` apart, until `look` finds something: for what rings no bell.
    ///
    /// # Errors
    /// [`WaitError::Timeout`] naming `what`, [`WaitError::Shutdown`].
    pub fn poll<T>(
        &self,
        what: impl Fn() -> String,
        pause: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, WaitError> {
        let wait = Wait::new(self);
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            std::thread::sleep(wait.sleep(&what)?.min(pause));
        }
    }
}

/// A wait ended without what was waited for.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum WaitError {
    /// It took too long.
    #[error("waited {:.1} s for {what}", after.as_secs_f64())]
    Timeout {
        /// What was waited for, and what stood in the way.
        what: String,
        /// How long.
        after: Duration,
    },
    /// This process was asked to end.
    #[error("asked to end while waiting")]
    Shutdown,
    /// The launcher gave the run up.
    #[error("the run was aborted")]
    Aborted,
}

/// Sleeps are cut to this, so that a lost wake or a shutdown costs no more.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// One wait in progress.
pub(crate) struct Wait<'a> {
    patience: &'a Patience,
    started: OnceCell<Instant>,
}

impl<'a> Wait<'a> {
    /// Its time starts with its first sleep: whoever need not wait reads no clock.
    pub(crate) fn new(patience: &'a Patience) -> Wait<'a> {
        Wait { patience, started: OnceCell::new() }
    }

    /// How long to sleep before looking again, or why not to.
    pub(crate) fn sleep(&self, what: impl FnOnce() -> String) -> Result<Duration, WaitError> {
        if self.patience.shutdown.is_set() {
            return Err(WaitError::Shutdown);
        }
        let after = self.started.get_or_init(Instant::now).elapsed();
        match self.patience.timeout.checked_sub(after) {
            Some(left) if !left.is_zero() => Ok(left.min(LONGEST_SLEEP)),
            _ => Err(WaitError::Timeout { what: what(), after }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shutdown_comes_before_the_deadline_and_sleeps_are_short() {
        let mut patience = Patience { timeout: Duration::from_secs(3600), shutdown: Shutdown::never() };
        assert_eq!(Wait::new(&patience).sleep(String::new), Ok(LONGEST_SLEEP));
        patience.timeout = Duration::ZERO;
        let error = Wait::new(&patience).sleep(|| "a slot".into()).unwrap_err();
        assert!(error.to_string().ends_with("s for a slot"), "{error}");
        patience.shutdown.request();
        assert_eq!(Wait::new(&patience).sleep(String::new), Err(WaitError::Shutdown));
    }

    #[test]
    fn polling_ends_with_what_was_looked_for_or_with_its_name() {
        let patience = Patience { timeout: Duration::from_secs(3600), shutdown: Shutdown::never() };
        let mut looks = 0;
        let found = patience.poll(String::new, Duration::from_millis(1), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, Ok(3));
        let none = Patience { timeout: Duration::ZERO, ..patience };
        let error = none.poll(|| "a bell".into(), Duration::from_millis(1), || None::<()>).unwrap_err();
        assert!(error.to_string().ends_with("s for a bell"), "{error}");
    }
}
