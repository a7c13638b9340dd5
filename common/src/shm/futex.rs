//! Sleeping on a word of shared memory until another process changes it.
//!
//! The shared form on purpose: a waiter with the PRIVATE flag is never woken by another process. A wake can also get
//! lost when its sender dies between a change and the wake, so every sleep has a bound.
#![expect(unsafe_code, reason = "neither std nor nix has the shared futex call")]

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` holds `seen`, until woken, at most for `bound`. May return early for no reason.
pub(crate) fn futex_wait(word: &AtomicU32, seen: u32, bound: Duration) {
    let timeout =
        libc::timespec { tv_sec: bound.as_secs() as libc::time_t, tv_nsec: libc::c_long::from(bound.subsec_nanos()) };
    // SAFETY: `word` and `timeout` are valid for the call; the kernel only reads both. A failure is an early return.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const timeout) };
}

/// Wakes up to `count` sleepers of `word`, in whatever process.
pub(crate) fn futex_wake(word: &AtomicU32, count: i32) {
    // SAFETY: `word` is valid for the call; the kernel uses only its address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_changed_word_is_not_waited_for_and_a_sleep_is_bounded() {
        let word = AtomicU32::new(7);
        let start = Instant::now();
        futex_wait(&word, 6, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30));
        futex_wait(&word, 7, Duration::from_millis(5));
        assert!(start.elapsed() >= Duration::from_millis(5));
    }

    #[test]
    fn a_wake_ends_a_sleep() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    futex_wait(&word, 0, Duration::from_secs(60));
                }
            });
            word.store(1, Ordering::Release);
            futex_wake(&word, 1);
        });
    }
}
