//! Marks in a stream: events that the GPU passes on its way, read long after.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::queue::{Mark, Phase};
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};

/// Marks on their way at once: what a GPU may be behind. More are not left, but counted.
const CAPACITY: usize = 1024;

/// Leaves marks in a stream.
pub struct Marks {
    pub(super) stream: Arc<CudaStream>,
    ring: Mutex<Ring<CudaEvent>>,
}

impl Marks {
    /// In that stream.
    pub(crate) fn new(stream: Arc<CudaStream>) -> Marks {
        Marks { stream, ring: Mutex::new(Ring::new(CAPACITY)) }
    }

    /// Leaves a mark behind all that the stream was given so far. A GPU that fails takes none: whoever uses it next says so.
    pub(crate) fn leave(&self, mark: Mark) {
        self.ring().leave(mark, |used| {
            let timing = Some(CUevent_flags::CU_EVENT_DEFAULT);
            let event = used.map_or_else(|| self.stream.context().new_event(timing).ok(), Some)?;
            event.record(&self.stream).ok().map(|()| event)
        });
    }

    pub(super) fn ring(&self) -> MutexGuard<'_, Ring<CudaEvent>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks that were left and not yet taken, and events to be used again.
pub(super) struct Ring<E> {
    capacity: usize,
    left: VecDeque<(Mark, E)>,
    unused: Vec<E>,
    /// Events that there are, wherever they may be.
    made: usize,
    /// Marks that were not left.
    lost: u64,
    last: Option<Phase>,
}

impl<E> Ring<E> {
    fn new(capacity: usize) -> Ring<E> {
        Ring { capacity, left: VecDeque::new(), unused: Vec::new(), made: 0, lost: 0, last: None }
    }

    /// Leaves a mark, unless its phase goes on anyway. `record` gives back the event that it got, or a new one, recorded.
    fn leave(&mut self, mark: Mark, record: impl FnOnce(Option<E>) -> Option<E>) {
        if self.last == Some(mark.phase) {
            return;
        }
        let used = self.unused.pop();
        if used.is_none() && self.made == self.capacity {
            self.lost += 1;
            return;
        }
        self.made += usize::from(used.is_none());
        match record(used) {
            Some(event) => {
                self.left.push_back((mark, event));
                self.last = Some(mark.phase);
            }
            None => {
                self.made -= 1;
                self.lost += 1;
            }
        }
    }

    /// Takes all marks that were left, behind those that are there.
    pub(super) fn take(&mut self, under_way: &mut VecDeque<(Mark, E)>) {
        under_way.append(&mut self.left);
    }

    /// Events to be used again.
    pub(super) fn give_back(&mut self, events: impl IntoIterator<Item = E>) {
        self.unused.extend(events);
    }

    /// Marks that were not left since the last call.
    pub(super) fn lost(&mut self) -> u64 {
        mem::take(&mut self.lost)
    }
}

/// The marks at the front that the GPU has passed, with what `passed` says of each; none behind one that it has not.
pub(super) fn passed<E, T, Error>(
    under_way: &mut VecDeque<(Mark, E)>,
    mut passed: impl FnMut(&E) -> Result<Option<T>, Error>,
) -> Result<Vec<(Mark, T, E)>, Error> {
    let mut found = Vec::new();
    while let Some((_, event)) = under_way.front() {
        let Some(what) = passed(event)? else { break };
        found.extend(under_way.pop_front().map(|(mark, event)| (mark, what, event)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(phase: Phase, about: u64) -> Mark {
        Mark { phase, about }
    }

    /// A ring of numbered events, of which those below `done` are passed at ten times their number.
    struct World {
        ring: Ring<u64>,
        under_way: VecDeque<(Mark, u64)>,
        /// The number of the next record.
        next: u64,
        made: u64,
    }

    impl World {
        fn new(capacity: usize) -> World {
            World { ring: Ring::new(capacity), under_way: VecDeque::new(), next: 0, made: 0 }
        }

        fn leave(&mut self, phase: Phase, about: u64) {
            let (next, made) = (&mut self.next, &mut self.made);
            self.ring.leave(mark(phase, about), |used| {
                *made += u64::from(used.is_none());
                *next += 1;
                Some(*next - 1)
            });
        }

        fn look(&mut self, done: impl Fn(u64) -> bool) -> Vec<(Phase, u64, u64)> {
            self.ring.take(&mut self.under_way);
            let time = |event: &u64| Ok::<_, ()>(done(*event).then_some(event * 10));
            let found = passed(&mut self.under_way, time).unwrap();
            self.ring.give_back(found.iter().map(|(.., event)| *event));
            found.into_iter().map(|(mark, at, _)| (mark.phase, mark.about, at)).collect()
        }
    }

    #[test]
    fn marks_are_passed_in_order_and_only_up_to_the_first_that_is_not() {
        let mut world = World::new(8);
        [Phase::Draft, Phase::Loss, Phase::Backward].into_iter().for_each(|phase| world.leave(phase, 1));
        assert_eq!(world.look(|_| false), []);
        // The second one's word is late: the third waits for it.
        assert_eq!(world.look(|event| event != 1), [(Phase::Draft, 1, 0)]);
        world.leave(Phase::Idle, 1);
        assert_eq!(world.look(|_| true), [(Phase::Loss, 1, 10), (Phase::Backward, 1, 20), (Phase::Idle, 1, 30)]);
    }

    #[test]
    fn events_are_used_again_without_end() {
        let mut world = World::new(4);
        for step in 0..1_000 {
            world.leave(Phase::Draft, step);
            world.leave(Phase::Idle, step);
            assert_eq!(world.look(|_| true).len(), 2);
        }
        assert_eq!((world.made, world.ring.lost()), (2, 0));
    }

    #[test]
    fn what_does_not_fit_is_counted_and_the_phase_before_goes_on() {
        let mut world = World::new(2);
        [Phase::Draft, Phase::Loss, Phase::Backward].into_iter().for_each(|phase| world.leave(phase, 1));
        assert_eq!((world.ring.lost(), world.ring.lost()), (1, 0));
        assert_eq!(world.look(|_| true), [(Phase::Draft, 1, 0), (Phase::Loss, 1, 10)]);
        world.leave(Phase::Loss, 2);
        world.leave(Phase::Idle, 2);
        assert_eq!(world.look(|_| true), [(Phase::Idle, 2, 20)], "the same phase needs no new mark");
    }

    #[test]
    fn a_gpu_that_fails_takes_no_mark_and_costs_no_event() {
        let mut ring: Ring<u64> = Ring::new(1);
        ring.leave(mark(Phase::Draft, 1), |_| None);
        assert_eq!(ring.lost(), 1);
        ring.leave(mark(Phase::Draft, 1), |_| Some(7));
        let mut under_way = VecDeque::new();
        ring.take(&mut under_way);
        assert_eq!(passed(&mut under_way, |_| Err::<Option<u64>, _>("broken")).unwrap_err(), "broken");
        assert_eq!(under_way.len(), 1);
    }
}
