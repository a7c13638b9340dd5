//! Whether a worker that failed is tried again, and when: pure, the time is the caller's.
//!
//! A failure is *fruitless* if the worker had finished no batch since it was started. The first failure is answered at
//! once, further fruitless ones after a rest that doubles; too many of those, or too many restarts within the window,
//! and the worker is given up. A worker that was never ready has its own, smaller budget: what does not start once
//! rarely starts later.

use std::fmt;
use std::time::Duration;

use super::decide::WorkerId;
use crate::child::Ending;

/// Fruitless failures in a row after which a worker that was ready before is given up.
const FRUITLESS: u32 = 3;

/// The longest rest, before it is spread.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// The rules of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// How often one worker may be restarted within `window`.
    pub(crate) max_restarts: u32,
    /// Restarts longer ago are forgiven.
    pub(crate) window: Duration,
    /// How often a worker that was never ready is tried again.
    pub(crate) startup_retries: u32,
    /// How long targets may take to end once asked, or once all is trained.
    pub(crate) grace_target: Duration,
    /// How long drafters may take to finish their step and save once asked.
    pub(crate) grace_drafter: Duration,
}

/// A worker's end, with what it had reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Code or signal.
    pub(crate) ending: Ending,
    /// It had loaded all it needs.
    pub(crate) ready: bool,
    /// Batches it had finished since it was started.
    pub(crate) batches: u64,
}

/// Why a worker is not started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Its exit code says that trying again will not help.
    Refused,
    /// It was never ready, that often.
    StartUp(u32),
    /// That many failures in a row without a batch in between.
    Fruitless(u32),
    /// That many restarts within the window, the most there may be.
    Budget(u32, Duration),
    /// The run was ending already.
    Ending,
    /// It is still there after SIGKILL.
    Unkillable,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Refused => f.write_str("this exit code is not retried"),
            Reason::StartUp(tries) => write!(f, "it was never ready in {tries} tries (run.startup_retries)"),
            Reason::Fruitless(failures) => write!(f, "{failures} failures in a row without a batch in between"),
            Reason::Budget(restarts, window) => {
                write!(f, "{restarts} restarts within {} s are the most (run.max_restarts)", window.as_secs())
            }
            Reason::Ending => f.write_str("the run was ending"),
            Reason::Unkillable => f.write_str("it does not end, though killed"),
        }
    }
}

/// What a worker's failures have been so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    /// Restarts in all.
    pub(super) restarts: u32,
    /// When it was restarted, within the window.
    recent: Vec<Duration>,
    fruitless: u32,
    was_ready: bool,
}

impl Record {
    /// Takes note of an end that was not the worker's fault.
    pub(super) fn ended(&mut self, exit: Exit) {
        self.was_ready |= exit.ready;
        if exit.batches > 0 {
            self.fruitless = 0;
        }
    }

    /// Takes note of a failure at `now`: how long to rest before the restart, or why there is none.
    pub(super) fn failed(
        &mut self,
        id: WorkerId,
        exit: Exit,
        now: Duration,
        rules: &Rules,
    ) -> Result<Duration, Reason> {
        self.ended(exit);
        self.fruitless += u32::from(exit.batches == 0);
        self.recent.retain(|at| now.saturating_sub(*at) < rules.window);
        self.refusal(exit, rules).map_or(Ok(()), Err)?;
        if self.was_ready {
            self.recent.push(now);
        }
        self.restarts += 1;
        Ok(self.rest(id))
    }

    fn refusal(&self, exit: Exit, rules: &Rules) -> Option<Reason> {
        if exit.ending == Ending::YOUR_INPUT {
            return Some(Reason::Refused);
        }
        if !self.was_ready {
            return (self.fruitless > rules.startup_retries).then_some(Reason::StartUp(self.fruitless));
        }
        if self.fruitless > FRUITLESS.max(rules.startup_retries) {
            return Some(Reason::Fruitless(self.fruitless));
        }
        let restarts = self.recent.len() as u32;
        (restarts >= rules.max_restarts).then_some(Reason::Budget(restarts, rules.window))
    }

    /// Nothing, then 1, 2, 4, ... seconds, each a fifth more or less, so that workers that failed together do not all
    /// come back in one moment.
    fn rest(&self, id: WorkerId) -> Duration {
        match self.fruitless {
            0 | 1 => Duration::ZERO,
            n => LONGEST_REST.min(Duration::from_secs(1 << (n - 2).min(6))).mul_f64(spread(id, self.restarts)),
        }
    }
}

/// From 0.8 to 1.2, the same for the same worker and restart.
fn spread(id: WorkerId, restarts: u32) -> f64 {
    let seed = (u64::from(id.rank.0) << 33 | (id.role as u64) << 32 | u64::from(restarts)) + 1;
    // The finaliser of splitmix64: neighbouring seeds give unrelated numbers.
    let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    0.8 + 0.4 * ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use common::ids::{Rank, Role};

    use super::*;

    const ID: WorkerId = WorkerId { role: Role::Target, rank: Rank(1) };
    const RULES: Rules = Rules {
        max_restarts: 3,
        window: Duration::from_secs(600),
        startup_retries: 2,
        grace_target: Duration::ZERO,
        grace_drafter: Duration::ZERO,
    };
    const AT_START: Exit = Exit { ending: Ending::Exit(2), ready: false, batches: 0 };
    const LATER: Exit = Exit { ending: Ending::Signal(9), ready: true, batches: 5 };

    fn fail(record: &mut Record, exit: Exit, seconds: u64) -> Result<Duration, Reason> {
        record.failed(ID, exit, Duration::from_secs(seconds), &RULES)
    }

    #[test]
    fn a_worker_that_never_starts_has_its_own_budget() {
        let mut record = Record::default();
        assert_eq!(fail(&mut record, AT_START, 0), Ok(Duration::ZERO));
        assert!(fail(&mut record, AT_START, 0).is_ok());
        assert_eq!(fail(&mut record, AT_START, 0), Err(Reason::StartUp(3)));
        assert_eq!(record.restarts, 2);
    }

    #[test]
    fn restarts_within_the_window_are_counted_and_older_ones_forgiven() {
        let mut record = Record::default();
        assert!((0..3).all(|n| fail(&mut record, LATER, n * 100) == Ok(Duration::ZERO)));
        assert_eq!(fail(&mut record.clone(), LATER, 599), Err(Reason::Budget(3, RULES.window)));
        assert_eq!(fail(&mut record, LATER, 600), Ok(Duration::ZERO), "the first one was 600 s ago");
        assert_eq!(fail(&mut record, LATER, 699), Err(Reason::Budget(3, RULES.window)));
    }

    #[test]
    fn fruitless_failures_rest_longer_and_end_soon() {
        let mut record = Record::default();
        let generous = Rules { max_restarts: 99, startup_retries: 9, ..RULES };
        let mut fail = |exit: Exit| record.failed(ID, exit, Duration::ZERO, &generous);
        assert_eq!(fail(LATER), Ok(Duration::ZERO));
        let fruitless = Exit { batches: 0, ..LATER };
        for seconds in [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            let rest = fail(fruitless).unwrap().as_secs_f64();
            assert!((seconds * 0.8..=seconds * 1.2).contains(&rest), "{rest} for {seconds}");
        }
        assert_eq!(fail(fruitless), Err(Reason::Fruitless(10)));
        assert_eq!(fail(LATER), Ok(Duration::ZERO), "a batch in between starts the count anew");
    }

    #[test]
    fn three_fruitless_restarts_are_enough_by_default() {
        let mut record = Record::default();
        let rules = Rules { max_restarts: 99, startup_retries: 0, ..RULES };
        let mut fail = |batches| record.failed(ID, Exit { batches, ..LATER }, Duration::ZERO, &rules);
        assert!([5, 0, 0, 0].into_iter().all(|batches| fail(batches).is_ok()));
        assert_eq!(fail(0), Err(Reason::Fruitless(4)));
    }

    #[test]
    fn your_input_is_not_tried_again_however_far_it_came() {
        let exit = Exit { ending: Ending::YOUR_INPUT, ..LATER };
        assert_eq!(fail(&mut Record::default(), exit, 0), Err(Reason::Refused));
    }

    #[test]
    fn rests_are_spread() {
        let spreads: Vec<f64> = (0..50).map(|restarts| spread(ID, restarts)).collect();
        assert!(spreads.iter().all(|spread| (0.8..1.2).contains(spread)));
        assert!(spreads.iter().any(|s| *s < 0.9) && spreads.iter().any(|s| *s > 1.1), "{spreads:?}");
    }
}
