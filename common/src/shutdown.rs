//! The wish to end, as a cheap value that every wait looks at.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Set once, by a signal or by [`Shutdown::request`]; never unset. Clones share it.
#[derive(Clone, Debug)]
pub struct Shutdown {
    asked: Arc<AtomicBool>,
    above: Option<Arc<Shutdown>>,
}

impl Shutdown {
    /// SIGTERM and SIGINT set it. A second one ends the process at once, with exit code 128 + signal.
    ///
    /// # Errors
    /// If the system refuses the handlers.
    pub fn install() -> io::Result<Shutdown> {
        let shutdown = Shutdown::never();
        for signal in [SIGTERM, SIGINT] {
            // In this order: the first signal finds the flag unset and only sets it, the second one finds it set.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&shutdown.asked))?;
            flag::register(signal, Arc::clone(&shutdown.asked))?;
        }
        Ok(shutdown)
    }

    /// Bound to no signal: set only by [`Shutdown::request`].
    pub fn never() -> Shutdown {
        Shutdown { asked: Arc::default(), above: None }
    }

    /// A wish to end a part: set by itself, and whenever this one is.
    #[must_use]
    pub fn part(&self) -> Shutdown {
        Shutdown { asked: Arc::default(), above: Some(Arc::new(self.clone())) }
    }

    /// Asks for the end.
    pub fn request(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether the end was asked for.
    pub fn is_set(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.above.as_ref().is_some_and(|above| above.is_set())
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[test]
    fn clones_share_one_wish() {
        let shutdown = Shutdown::never();
        let other = shutdown.clone();
        assert!(!other.is_set());
        shutdown.request();
        assert!(other.is_set());
    }

    #[test]
    fn a_part_ends_alone_or_with_the_whole() {
        let whole = Shutdown::never();
        let (one, other) = (whole.part(), whole.part().part());
        one.request();
        assert!(one.is_set() && !other.is_set() && !whole.is_set());
        whole.request();
        assert!(other.is_set());
    }

    #[test]
    fn a_signal_sets_it() {
        let shutdown = Shutdown::install().unwrap();
        assert!(!shutdown.is_set());
        raise(Signal::SIGTERM).unwrap();
        assert!(shutdown.is_set());
    }
}
