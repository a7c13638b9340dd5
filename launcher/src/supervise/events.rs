//! One wait for everything that can happen: signals to the launcher, ends of workers, alarms.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use signal_hook::consts::FORBIDDEN;

use super::decide::Alarm;

/// Signals to the launcher, as something to poll. From the first `install` on they end nobody by themselves.
pub(crate) struct Signals {
    pipe: UnixStream,
    last: Arc<AtomicUsize>,
}

impl Signals {
    /// Those that end a program.
    pub(crate) const USUAL: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

    /// Takes the given signals.
    ///
    /// # Errors
    /// The system refuses a handler: SIGKILL's, for one.
    pub(crate) fn install(signals: &[Signal]) -> io::Result<Signals> {
        if let Some(signal) = signals.iter().find(|signal| FORBIDDEN.contains(&(**signal as i32))) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{signal} cannot be handled")));
        }
        let (pipe, sender) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        let last = Arc::new(AtomicUsize::new(0));
        for signal in signals.iter().map(|signal| *signal as i32) {
            // In this order: the number is there when the pipe wakes us.
            signal_hook::flag::register_usize(signal, Arc::clone(&last), signal.unsigned_abs() as usize)?;
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Signals { pipe, last })
    }

    /// The signals that came since the last call, oldest first. Of several different ones in one moment the last one's
    /// number stands for all.
    pub(crate) fn pending(&mut self) -> Vec<i32> {
        let mut bytes = [0; 16];
        let number = |count| vec![self.last.load(Ordering::SeqCst) as i32; count];
        self.pipe.read(&mut bytes).map_or_else(|_| Vec::new(), number)
    }

    /// Signals that a test sends.
    #[cfg(test)]
    pub(crate) fn from_test() -> (Signals, impl Fn(i32) + use<>) {
        let (pipe, sender) = UnixStream::pair().unwrap();
        pipe.set_nonblocking(true).unwrap();
        let last = Arc::new(AtomicUsize::new(0));
        let signals = Signals { pipe, last: Arc::clone(&last) };
        let send = move |signal: i32| {
            last.store(signal as usize, Ordering::SeqCst);
            io::Write::write_all(&mut &sender, &[0]).unwrap();
        };
        (signals, send)
    }
}

/// Sleeps until a signal comes, one of `files` is readable or `timeout` is over; which of `files` are.
///
/// # Errors
/// The system is out of memory.
pub(crate) fn wait(signals: &Signals, files: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<usize>> {
    let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds = vec![readable(signals.pipe.as_fd())];
    fds.extend(files.iter().copied().map(readable));
    // Rounded up, or the last millisecond would be spent asking again and again.
    let timeout = timeout + Duration::from_micros(999);
    match poll(&mut fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)) {
        Err(Errno::EINTR) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
        Ok(_) => {
            let ready = |fd: &PollFd| fd.any().unwrap_or(true);
            Ok(fds[1..].iter().enumerate().filter(|(_, fd)| ready(fd)).map(|(index, _)| index).collect())
        }
    }
}

/// Alarms to come.
#[derive(Default)]
pub(super) struct Alarms(Vec<(Instant, Alarm)>);

impl Alarms {
    pub(super) fn set(&mut self, alarm: Alarm, after: Duration) {
        self.0.push((Instant::now() + after, alarm));
    }

    /// Takes out those whose time has come, in order.
    pub(super) fn rung(&mut self) -> Vec<Alarm> {
        let now = Instant::now();
        self.0.sort_by_key(|(at, _)| *at);
        let rung = self.0.iter().take_while(|(at, _)| *at <= now).count();
        self.0.drain(..rung).map(|(_, alarm)| alarm).collect()
    }

    /// Until the next one, `longest` at most.
    pub(super) fn next(&self, longest: Duration) -> Duration {
        let now = Instant::now();
        let next = self.0.iter().map(|(at, _)| at.saturating_duration_since(now)).min();
        next.map_or(longest, |next| next.min(longest))
    }
}

#[cfg(test)]
mod tests {
    use common::ids::Role;

    use super::*;

    #[test]
    fn sigkill_is_refused() {
        assert!(Signals::install(&[Signal::SIGKILL]).is_err());
    }

    #[test]
    fn alarms_ring_in_order_and_once() {
        let mut alarms = Alarms::default();
        alarms.set(Alarm::Grace(Role::Target), Duration::from_secs(3600));
        alarms.set(Alarm::RespawnDrafters(1), Duration::ZERO);
        assert_eq!(alarms.next(Duration::from_secs(9)), Duration::ZERO);
        assert_eq!(alarms.rung(), [Alarm::RespawnDrafters(1)]);
        assert_eq!(alarms.rung(), []);
        assert_eq!(alarms.next(Duration::from_secs(9)), Duration::from_secs(9));
    }

    #[test]
    fn each_signal_is_seen_once_and_ends_the_wait() {
        let (mut signals, send) = Signals::from_test();
        assert!(signals.pending().is_empty());
        send(2);
        send(15);
        let started = Instant::now();
        assert!(wait(&signals, &[], Duration::from_secs(60)).unwrap().is_empty());
        assert!(started.elapsed() < Duration::from_secs(30));
        assert_eq!(signals.pending(), [15, 15]);
        assert!(signals.pending().is_empty());
    }
}
