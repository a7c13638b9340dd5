//! Every order of the critical sections of two targets and two drafters on two slots, with at most one death on the
//! way. `tests/loom.rs` shows that the lock puts critical sections one after the other; here each order is gone through.
//!
//! The algorithm's folder is compiled anew, so that one thread can play everybody.
#![allow(unsafe_code, dead_code, unused_imports, unreachable_pub, reason = "compiles the algorithm's folder anew")]
#![allow(clippy::missing_safety_doc, reason = "the marker trait means nothing here")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and shows its figures")]

#[path = "../src/queue/ring/mod.rs"]
mod ring;

mod sync {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    pub(crate) const SPINS: u32 = 1;
}

mod ids {
    pub(crate) use common::ids::{BatchId, SlotIndex, Step};
}

/// What the algorithm's structs promise about living in shared memory means nothing here.
mod shm {
    pub(crate) unsafe trait Shared {}
}

use ring::audit::audit;
use ring::layout::{Bucket, Control, Participant, Slot};
use ring::ledger::Ledger;
use ring::lock::{Holder, Peers};
use ring::policy::Rules;
use ring::word::SlotState;
use ring::{Asked, Hold, Locked, Lost, Ring};

use crate::ids::{BatchId, Step};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const TARGETS: usize = 2;
const PARTICIPANTS: usize = 4;
const SLOTS: usize = 2;
const BATCHES: usize = 2;

/// Nobody sleeps: a step that would have to wait is not taken.
struct World;

impl Peers for World {
    fn lives(&self, _: Holder) -> bool {
        true
    }
    fn now(&self) -> u64 {
        0
    }
    fn sleep(&self, _: &AtomicU32, _: u32) {}
    fn wake_one(&self, _: &AtomicU32) {}
    fn wake_all(&self, _: &AtomicU32) {}
}

/// Where a participant is in its round.
#[derive(Clone, Copy, Debug)]
enum Hand {
    Empty,
    Slot(Hold),
    /// A drafter's batch, out of its slot.
    Batch(BatchId),
}

/// A move in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    /// The participant's next critical section.
    Step(usize),
    /// The launcher counts the participant as dead and takes back what it had; a new process takes the place.
    Death(usize),
}

struct Queue {
    control: Control,
    buckets: [Bucket; 1],
    participants: Vec<Participant>,
    slots: Vec<Slot>,
    words: Vec<AtomicU64>,
    rules: Rules,
    hands: [Hand; PARTICIPANTS],
    epochs: [u32; PARTICIPANTS],
    /// What somebody still believes to have that was taken back.
    stale: Option<(Holder, Hold)>,
}

impl Queue {
    fn new(rules: Rules) -> Queue {
        let queue = Queue {
            control: Control::default(),
            buckets: [Bucket::default()],
            participants: (0..PARTICIPANTS).map(|_| Participant::default()).collect(),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            words: (0..BATCHES).map(|_| AtomicU64::new(0)).collect(),
            rules,
            hands: [Hand::Empty; PARTICIPANTS],
            epochs: [1; PARTICIPANTS],
            stale: None,
        };
        queue.control.lottery.store(1, Ordering::Relaxed);
        queue.ring().ledger.recount();
        queue
    }

    fn ring(&self) -> Ring<'_> {
        Ring {
            control: &self.control,
            buckets: &self.buckets,
            tallies: &[],
            events: &[],
            participants: &self.participants,
            slots: &self.slots,
            ledger: Ledger::new(&self.words, &self.control),
            rules: self.rules,
        }
    }

    fn lock(&self, me: Holder) -> Locked<'_, World> {
        self.ring().lock::<_, ()>(me, &World, |holder| panic!("{holder:?} kept the lock")).unwrap()
    }

    fn holder(&self, who: usize) -> Holder {
        Holder { code: who as u8 + 1, epoch: self.epochs[who] }
    }

    /// Does the move; false if the participant would have to wait, or has nothing to do any more.
    fn make(&mut self, one: Move) -> bool {
        let made = match one {
            Move::Step(who) => self.step(who),
            Move::Death(who) => self.bury(who),
        };
        assert_eq!(audit(&self.ring()), [""; 0], "after {one:?}");
        made
    }

    fn step(&mut self, who: usize) -> bool {
        let is_target = who < TARGETS;
        let locked = self.lock(self.holder(who));
        let hand = match self.hands[who] {
            Hand::Empty => {
                let asked = if is_target { locked.claim(0, 0) } else { self.pop(&locked) };
                let Asked::Got(hold) = asked else { return false };
                Hand::Slot(hold)
            }
            Hand::Slot(hold) if is_target => {
                locked.publish(hold, 0, 0).unwrap();
                Hand::Empty
            }
            Hand::Slot(hold) => {
                locked.release(hold, 0).unwrap();
                Hand::Batch(hold.batch)
            }
            Hand::Batch(batch) => {
                locked.trained(&[batch], Step(1)).unwrap();
                Hand::Empty
            }
        };
        drop(locked);
        self.hands[who] = hand;
        true
    }

    /// A pop that the gate may let through, and does not otherwise.
    fn pop(&self, locked: &Locked<'_, World>) -> Asked {
        let [pending, claimed, ready, ..] = self.ring().ledger.counts();
        let asked = locked.pop(None, 0);
        let allowed = ready >= self.rules.min_ready || pending + claimed == 0;
        assert!(allowed || !matches!(asked, Asked::Got(_)), "{ready} ready, {pending} pending, {claimed} claimed");
        asked
    }

    fn bury(&mut self, who: usize) -> bool {
        let holder = self.holder(who);
        let Hand::Slot(hold) = self.hands[who] else { return false };
        self.lock(Holder { code: Holder::LAUNCHER, epoch: 0 }).reclaim(holder.code, 0);
        self.stale = Some((holder, hold));
        self.hands[who] = Hand::Empty;
        self.epochs[who] += 1;
        true
    }

    /// Whoever was counted as dead, and was not, moves nothing.
    fn zombie_moves_nothing(&self) {
        let Some((holder, hold)) = self.stale else { return };
        let before: Vec<u64> = self.slots.iter().map(|slot| slot.word.load(Ordering::Relaxed)).collect();
        let locked = self.lock(holder);
        let (one, other) = match usize::from(holder.code) <= TARGETS {
            true => (locked.publish(hold, 0, 0), locked.abort(hold, 0)),
            false => (locked.release(hold, 0), locked.nack(hold, 0)),
        };
        drop(locked);
        assert_eq!((one, other), (Err(Lost), Err(Lost)));
        let after: Vec<u64> = self.slots.iter().map(|slot| slot.word.load(Ordering::Relaxed)).collect();
        assert_eq!(before, after);
    }

    fn is_over(&mut self) -> bool {
        let ring = self.ring();
        let all_free = ring.slots_in(SlotState::Free) == SLOTS;
        if ring.ledger.trained_ranges() != [(0, BATCHES as u64)] || !all_free {
            return false;
        }
        (0..TARGETS).for_each(|who| assert_eq!(self.lock(self.holder(who)).claim(0, 0), Asked::Finished));
        (TARGETS..PARTICIPANTS).for_each(|who| assert_eq!(self.lock(self.holder(who)).pop(None, 0), Asked::Finished));
        true
    }
}

/// Goes through every order that starts with `path`; gives how many there are.
fn explore(rules: Rules, path: &mut Vec<Move>) -> u64 {
    let replayed = || {
        let mut queue = Queue::new(rules);
        path.iter().for_each(|one| assert!(queue.make(*one), "{path:?} was made before"));
        queue
    };
    let mut queue = replayed();
    queue.zombie_moves_nothing();
    if queue.is_over() {
        return 1;
    }
    let deaths = path.iter().filter(|one| matches!(one, Move::Death(_))).count();
    let steps = (0..PARTICIPANTS).map(Move::Step);
    let moves: Vec<Move> = steps.chain((0..PARTICIPANTS).filter(|_| deaths == 0).map(Move::Death)).collect();
    let possible: Vec<Move> = moves.into_iter().filter(|one| replayed().make(*one)).collect();
    assert!(possible.iter().any(|one| matches!(one, Move::Step(_))), "nobody can go on after {path:?}");
    let mut orders = 0;
    for one in possible {
        path.push(one);
        orders += explore(rules, path);
        path.pop();
    }
    orders
}

#[test]
fn every_order_of_two_targets_and_two_drafters_with_one_death() {
    for (strict, min_ready) in [(false, 1), (false, 2), (true, 1)] {
        let rules = Rules { min_ready, strict, latch: false, targets: TARGETS as u32, max_age_ns: u64::MAX };
        let orders = explore(rules, &mut Vec::new());
        println!("strict {strict}, min_ready {min_ready}: {orders} orders");
        assert!(orders > 1000, "{orders}");
    }
}
