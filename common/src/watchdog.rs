//! Ends a worker that stays in one phase of work for longer than the others would wait for it.
//!
//! A device that does not answer holds a thread in a call that nothing ends from inside: a copy, a launch, a wait for an
//! event. So another thread looks at the phases that the worker tells about anyway, and its work pays nothing for it.
//! Waits for other processes, sums over drafters among them, have deadlines of their own. So a worker tells of them as
//! waits; those inside of loading it does not, and loading may take longer than they do.

use std::thread;
use std::time::Duration;

use thiserror::Error;

use crate::exit::{Code, Fault};
use crate::ids::{Rank, Role};
use crate::launched::Launcher;
use crate::queue::{Phase, Queue, Track};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);

const HINT: &str =
    "for a GPU, nvidia-smi and dmesg (Xid) tell more; if the device is only slow, raise run.wait_timeout_s";

/// What else may be to blame in a drafter among several.
const OTHERS: &str = ", or, if drafters sum through NCCL, another drafter's GPU is not done with its gradient";

/// A worker's phase that does not end.
#[derive(Debug, Error)]
#[error(
    "the phase `{}` has not ended for {:.1} s on {device}: the device does not answer, or is slower than anybody \
     waits{others}",
    phase.name(),
    after.as_secs_f64()
)]
struct Stuck {
    phase: Phase,
    after: Duration,
    device: String,
    others: &'static str,
}

/// Watches the two threads of a worker that computes on `device`, for the life of its process. `patience` is how long
/// others wait: a phase of work may take nine tenths of that, so that the one who hangs speaks first. Where drafters sum
/// through NCCL all of them wait on their devices for the slowest: any of them may speak first.
pub fn start(queue: &Queue, worker: (Role, Rank), patience: Duration, device: String, launcher: &Launcher) {
    let (queue, launcher) = (queue.clone(), launcher.clone());
    thread::spawn(move || {
        let mut watches = [Track::Main, Track::Side].map(|track| (track, Watch::default()));
        let others = if worker.0 == Role::Drafter && queue.workers(Role::Drafter) > 1 { OTHERS } else { "" };
        loop {
            thread::sleep(LOOK);
            for (track, watch) in &mut watches {
                let Some(phase) = watch.look(queue.at_work(worker, *track), patience) else { continue };
                let stuck = Stuck { phase, after: watch.same, device: device.clone(), others };
                launcher.end_at_once(&Fault::new(Code::Failure, stuck).with_hint(HINT));
            }
        }
    });
}

/// How long a phase of work may take; any patience is good, for ever included.
fn limit(phase: Phase, patience: Duration) -> Duration {
    match phase {
        // It waits for the others' parts of the arena, and for the other drafters: each of these may take the patience.
        Phase::Loading => patience.saturating_mul(2),
        _ => patience - patience / 10,
    }
}

/// A thread as it was seen last.
#[derive(Default)]
struct Watch {
    seen: Option<(Phase, u64)>,
    /// How long it was seen so. Looks are counted, not the clock: a process that was stopped has not worked.
    same: Duration,
}

impl Watch {
    /// The phase of work, entered at that time, that has lasted for too long; none if all is well.
    fn look(&mut self, present: Option<(Phase, u64)>, patience: Duration) -> Option<Phase> {
        let works = |(phase, _): (Phase, u64)| !phase.is_wait() && !matches!(phase, Phase::AllReduce | Phase::Finished);
        let lasts = present == self.seen && present.is_some_and(works);
        self.same = if lasts { self.same + LOOK } else { Duration::ZERO };
        self.seen = present;
        present.map(|(phase, _)| phase).filter(|phase| lasts && self.same >= limit(*phase, patience))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = LOOK.saturating_mul(3);

    fn looks(seen: &[Option<(Phase, u64)>]) -> Vec<Option<Phase>> {
        let mut watch = Watch::default();
        seen.iter().map(|present| watch.look(*present, PATIENCE)).collect()
    }

    #[test]
    fn work_that_lasts_is_seen_at_the_limit_and_not_before() {
        let backward = Some((Phase::Backward, 7));
        assert_eq!(looks(&[backward; 4]), [None, None, None, Some(Phase::Backward)]);
    }

    #[test]
    fn the_same_phase_entered_again_starts_anew() {
        let [first, second] = [Some((Phase::Device, 7)), Some((Phase::Device, 8))];
        let seen = [first, first, first, second, second, second, second];
        assert_eq!(looks(&seen), [None, None, None, None, None, None, Some(Phase::Device)]);
    }

    #[test]
    fn any_patience_has_its_limit() {
        assert_eq!(limit(Phase::Draft, Duration::from_secs(1800)), Duration::from_secs(1620));
        let for_ever = Duration::from_secs(i64::MAX as u64);
        assert!([Phase::Draft, Phase::Loading].iter().all(|phase| limit(*phase, for_ever) > for_ever / 2));
    }

    #[test]
    fn loading_holds_waits_for_others_that_end_sooner() {
        let loading = Some((Phase::Loading, 7));
        assert_eq!(looks(&[loading; 7]), [&[None; 6][..], &[Some(Phase::Loading)]].concat());
    }

    #[test]
    fn waits_for_others_and_threads_that_are_not_at_work_may_last() {
        for waits in [Phase::WaitSlot, Phase::Await, Phase::AllReduce, Phase::Finished] {
            assert!(looks(&[Some((waits, 7)); 9]).iter().all(Option::is_none));
        }
        assert!(looks(&[None; 9]).iter().all(Option::is_none));
    }
}
