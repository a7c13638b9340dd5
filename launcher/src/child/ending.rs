//! How a process ended, in words.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::Signal;

/// Exit code, or the signal that killed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It returned this code.
    Exit(i32),
    /// This signal killed it.
    Signal(i32),
}

impl Ending {
    /// The worker says that the user has to change something: trying again will not help.
    pub(crate) const YOUR_INPUT: Ending = Ending::Exit(1);

    /// What the system says of an ended process.
    pub(crate) fn of(status: ExitStatus) -> Ending {
        match status.code() {
            Some(code) => Ending::Exit(code),
            None => Ending::Signal(status.signal().expect("an ended process has a code or a signal")),
        }
    }

    /// It did what it was started for.
    pub(crate) fn is_success(self) -> bool {
        self == Ending::Exit(0)
    }

    /// It did that, or ended at SIGTERM before it was able to do anything.
    pub(crate) fn is_success_when_asked(self) -> bool {
        self.is_success() || self == Ending::Signal(Signal::SIGTERM as i32)
    }

    /// It ended because another one did.
    pub(crate) fn is_collateral(self) -> bool {
        self == Ending::Exit(3)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Exit(0) => f.write_str("ended well"),
            Ending::Exit(1) => f.write_str("refused its input (exit code 1)"),
            Ending::Exit(2) => f.write_str("failed (exit code 2)"),
            Ending::Exit(3) => f.write_str("lost its peers (exit code 3)"),
            Ending::Exit(101) => f.write_str("panicked (exit code 101)"),
            Ending::Exit(code) => write!(f, "ended with exit code {code}"),
            Ending::Signal(signal) => write!(f, "was killed by {}", signal_name(*signal)),
        }
    }
}

/// `SIGKILL` for 9.
pub(crate) fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |signal| signal.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_in_words() {
        let words = |status| Ending::of(ExitStatus::from_raw(status)).to_string();
        assert_eq!(words(9), "was killed by SIGKILL");
        assert_eq!(words(63), "was killed by signal 63");
        assert_eq!(words(2 << 8), "failed (exit code 2)");
        assert_eq!(words(7 << 8), "ended with exit code 7");
    }
}
