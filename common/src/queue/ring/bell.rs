//! Bells: what a group of processes waits on until somebody changes what they wait for.
//!
//! Whoever waits says so under the lock; whoever makes a change, under the lock too, therefore sees it, and asks the
//! kernel for a wake only if somebody sleeps. A wake that is lost with its sender is the sleeper's to survive: every
//! sleep is bounded, and whoever repairs or takes back after a death wakes everybody.

use super::layout::{Bell, Control};
use crate::sync::Ordering;

/// Which bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Drafters, who wait for READY batches.
    Ready = 0,
    /// Targets, who wait for free slots.
    Space = 2,
}

/// How somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Looks at the bell's word again and again, for a short while.
    Awake = 1,
    /// Sleeps on the word: the kernel has to be asked to wake it.
    Asleep = 2,
}

impl Group {
    pub(crate) const ALL: [Group; 2] = [Group::Ready, Group::Space];

    pub(crate) fn bell(self, control: &Control) -> &Bell {
        match self {
            Group::Ready => &control.ready,
            Group::Space => &control.space,
        }
    }

    /// Says that somebody waits on the bell from here on. Under the lock.
    pub(super) fn wait(self, control: &Control, waits: Waits) {
        let bits = &control.lock.waits;
        let said = bits.load(Ordering::Relaxed);
        let now = said | (waits as u32) << self as u32;
        if now != said {
            bits.store(now, Ordering::Relaxed);
        }
    }

    /// How somebody waits on the bell, if anybody does; nobody counts as waiting afterwards. Under the lock.
    pub(super) fn take_waits(self, control: &Control) -> Option<Waits> {
        let bits = &control.lock.waits;
        let said = bits.load(Ordering::Relaxed);
        let mine = said >> self as u32 & 0b11;
        if mine != 0 {
            bits.store(said & !(0b11 << self as u32), Ordering::Relaxed);
        }
        match mine {
            0 => None,
            1 => Some(Waits::Awake),
            _ => Some(Waits::Asleep),
        }
    }
}

/// Makes everybody who waits on the bell look again; who sleeps has to be woken too.
pub(crate) fn raise(bell: &Bell) {
    // BELL: Release, paired with the Acquire load before a wait's attempt.
    bell.word.fetch_add(1, Ordering::Release);
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_kept_by_group_the_deepest_sleep_counts_and_is_taken_once() {
        let control = Control::default();
        assert_eq!(Group::ALL.map(|group| group.take_waits(&control)), [None, None]);
        Group::Ready.wait(&control, Waits::Asleep);
        Group::Ready.wait(&control, Waits::Awake);
        Group::Space.wait(&control, Waits::Awake);
        assert_eq!(Group::Ready.take_waits(&control), Some(Waits::Asleep));
        assert_eq!(Group::ALL.map(|group| group.take_waits(&control)), [None, Some(Waits::Awake)]);
    }
}
