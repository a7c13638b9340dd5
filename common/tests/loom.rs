//! The queue's algorithm on modelled memory: the interleavings of small scenes, instruction by instruction.
//! `make loom`, or `cargo test --release -p common --features loom --test loom`
//!
//! Two threads in every interleaving, or where that is too many with up to six preemptions; three with up to four;
//! four with one. What lies inside the lock is plain memory to loom, so a race there fails a scene whatever the bound. Given
//! that the lock puts critical sections one after the other, `tests/orders.rs` goes through every order of those.

#![allow(unsafe_code, dead_code, unused_imports, unreachable_pub, reason = "compiles the algorithm's folder anew")]
#![allow(clippy::missing_safety_doc, reason = "the marker trait means nothing here")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../src/queue/ring/mod.rs"]
mod ring;

/// The seam: modelled atomics in the place of real ones.
mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};

    pub(crate) const SPINS: u32 = 1;

    /// A word that is touched inside the lock alone, or by a slot's owner. It is no atomic here but plain memory that
    /// loom watches: two accesses that the lock's orderings do not put one after the other are a failure.
    #[derive(Default)]
    pub(crate) struct AtomicU64(loom::cell::UnsafeCell<u64>);

    // SAFETY: loom runs one thread at a time, and fails the model on a race.
    unsafe impl Sync for AtomicU64 {}

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> AtomicU64 {
            AtomicU64(loom::cell::UnsafeCell::new(value))
        }
        pub(crate) fn load(&self, _: Ordering) -> u64 {
            // SAFETY: points to the cell's value; loom fails the model if another thread may be writing it.
            self.0.with(|value| unsafe { *value })
        }
        pub(crate) fn store(&self, value: u64, _: Ordering) {
            // SAFETY: as in `load`, for reading and writing.
            self.0.with_mut(|place| unsafe { *place = value });
        }
    }

    impl std::fmt::Debug for AtomicU64 {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.load(Ordering::Relaxed).fmt(f)
        }
    }
}

mod ids {
    pub(crate) use common::ids::{BatchId, SlotIndex, Step};
}

/// What the algorithm's structs promise about living in shared memory means nothing here.
mod shm {
    pub(crate) unsafe trait Shared {}
}

use std::sync::Arc;

use loom::sync::atomic::AtomicBool;
use loom::sync::{Condvar, Mutex};
use loom::thread;

use ring::audit::audit;
use ring::bell::{Group, Waits};
use ring::layout::{Bucket, Control, Slot};
use ring::ledger::Ledger;
use ring::lock::{Holder, Peers};
use ring::policy::Rules;
use ring::word::SlotState;
use ring::{Asked, Blocked, Hold, Locked, Lost, Ring};

use crate::ids::{SlotIndex, Step};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A world in which participant [`MORTAL`] may have died. Sleepers on the lock really sleep, so a wake that gets lost
/// shows as a deadlock; except where there is a death, whose lock nobody gives back: there a sleep ends by itself, as
/// real ones do.
struct World {
    died: AtomicBool,
    has_death: bool,
    asleep: Mutex<()>,
    wake: Condvar,
}

const MORTAL: u8 = 9;

impl Peers for World {
    fn lives(&self, holder: Holder) -> bool {
        // Acquire stands for the kernel, which releases a lock after all that its holder did.
        holder.code != MORTAL || !self.died.load(Ordering::Acquire)
    }
    fn now(&self) -> u64 {
        0
    }
    fn sleep(&self, word: &AtomicU32, seen: u32) {
        if self.has_death {
            return thread::yield_now();
        }
        let asleep = self.asleep.lock().unwrap();
        if word.load(Ordering::Relaxed) == seen {
            drop(self.wake.wait(asleep).unwrap());
        }
    }
    fn wake_one(&self, _: &AtomicU32) {
        drop(self.asleep.lock().unwrap());
        self.wake.notify_one();
    }
    fn wake_all(&self, _: &AtomicU32) {}
}

struct Memory {
    world: World,
    control: Control,
    buckets: Vec<Bucket>,
    slots: Vec<Slot>,
    /// Stands for a slot's payload: written by the owner, without the lock.
    payloads: Vec<AtomicU64>,
    words: Vec<AtomicU64>,
}

impl Memory {
    fn new(capacity: usize, batches: usize) -> Arc<Memory> {
        Memory::in_world(false, capacity, batches)
    }

    fn in_world(has_death: bool, capacity: usize, batches: usize) -> Arc<Memory> {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let memory = Memory {
            world: World { died: AtomicBool::new(false), has_death, asleep: Mutex::new(()), wake: Condvar::new() },
            control: Control::default(),
            buckets: vec![Bucket::default()],
            slots: (0..capacity).map(|_| Slot::default()).collect(),
            payloads: zeros(capacity),
            words: zeros(batches),
        };
        memory.ring().ledger.recount();
        Arc::new(memory)
    }

    fn ring(&self) -> Ring<'_> {
        let rules = Rules { min_ready: 1, strict: true, latch: false, targets: 2, max_age_ns: 0 };
        let ledger = Ledger::new(&self.words, &self.control);
        let (control, buckets, slots) = (&self.control, &self.buckets[..], &self.slots[..]);
        Ring { control, buckets, tallies: &[], events: &[], participants: &[], slots, ledger, rules }
    }

    fn lock(&self, code: u8) -> Locked<'_, World> {
        let locked = self.ring().lock::<_, ()>(Holder { code, epoch: 1 }, &self.world, |_| Ok(()));
        locked.expect("nobody gives up")
    }

    fn claim(&self, code: u8) -> Option<Hold> {
        match self.lock(code).claim(0, 0) {
            Asked::Got(hold) => Some(hold),
            _ => None,
        }
    }

    /// Fills a slot and publishes it.
    fn fill(&self, code: u8, hold: Hold) {
        self.payloads[hold.slot.0 as usize].store(hold.batch.0 + 100, Ordering::Relaxed);
        self.lock(code).publish(hold, 0, 0).expect("nobody takes it back");
    }

    /// Claims, fills and publishes one batch, if there is one.
    fn produce(&self, code: u8) {
        if let Some(hold) = self.claim(code) {
            self.fill(code, hold);
        }
    }

    /// Pops and checks one batch, if one is ready.
    fn pop(&self, code: u8) -> Option<Hold> {
        let asked = self.lock(code).pop(None, 0);
        let Asked::Got(hold) = asked else { return None };
        let payload = self.payloads[hold.slot.0 as usize].load(Ordering::Relaxed);
        assert_eq!(payload, hold.batch.0 + 100, "the payload arrived before the word that speaks of it");
        Some(hold)
    }

    /// Pops, checks, releases and trains one batch, if one is ready.
    fn consume(&self, code: u8) -> u64 {
        let Some(hold) = self.pop(code) else { return 0 };
        self.lock(code).release(hold, 0).expect("nobody takes it back");
        self.lock(code).trained(&[hold.batch], Step(1)).expect("held");
        1
    }
}

/// How far a scene is explored. That a thread waits, or ends, is no interruption.
#[derive(Clone, Copy)]
enum Bound {
    /// Every interleaving.
    None,
    /// Every interleaving in which running threads are interrupted at most so often.
    Preemptions(usize),
}

fn explore(bound: Bound, scene: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = match bound {
        Bound::None => None,
        Bound::Preemptions(most) => Some(most),
    };
    model.max_branches = 5000;
    model.check(scene);
}

#[test]
fn two_targets_never_get_the_same_batch_or_slot() {
    explore(Bound::None, || {
        let memory = Memory::new(2, 2);
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || other.produce(1));
        memory.produce(2);
        thread.join().unwrap();
        assert_eq!(memory.ring().ledger.counts(), [0, 0, 2, 0, 0]);
        assert_eq!(memory.consume(3) + memory.consume(3), 2);
    });
}

#[test]
fn a_batch_goes_over_whole_and_the_slot_comes_back() {
    explore(Bound::Preemptions(6), || {
        let memory = Memory::new(1, 2);
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || {
            other.produce(1);
            other.produce(1);
        });
        let done = memory.consume(3) + memory.consume(3);
        thread.join().unwrap();
        for _ in 0..4 {
            memory.produce(1);
            memory.consume(3);
        }
        assert!(done <= 2);
        assert_eq!(memory.ring().ledger.trained_ranges(), [(0, 2)]);
    });
}

/// A drafter that finds nothing, and says that it waits, finds its bell raised once something is there.
#[test]
fn whoever_said_that_it_waits_is_rung_for() {
    explore(Bound::None, || {
        let memory = Memory::new(1, 1);
        let hold = memory.claim(1).expect("a slot");
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || other.fill(1, hold));
        let bell = &Group::Ready.bell(&memory.control).word;
        let seen = bell.load(Ordering::Acquire);
        let locked = memory.lock(3);
        let is_blocked = matches!(locked.pop(None, 0), Asked::Blocked(_));
        if is_blocked {
            locked.wait_on(Group::Ready, Waits::Asleep);
        }
        drop(locked);
        thread.join().unwrap();
        assert!(!is_blocked || bell.load(Ordering::Acquire) != seen);
    });
}

type One = Box<dyn FnOnce(&Memory) + Send>;

/// Runs four participants at once, one step each: two targets and two drafters on two slots.
fn four(steps: impl Fn(&Memory) -> [One; 4] + Sync + Send + 'static) {
    explore(Bound::Preemptions(1), move || {
        let memory = Memory::new(2, 3);
        let [first, second, third, fourth] = steps(&memory);
        let threads = [first, second, third].map(|step| {
            let other = Arc::clone(&memory);
            thread::spawn(move || step(&other))
        });
        fourth(&memory);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(audit(&memory.ring()), [""; 0]);
    });
}

#[test]
fn claim_and_publish_meet_two_pops() {
    four(|memory| {
        memory.produce(1);
        let hold = memory.claim(1).expect("a slot");
        [
            Box::new(move |memory| memory.fill(1, hold)),
            Box::new(|memory| {
                memory.claim(2);
            }),
            Box::new(|memory| {
                memory.pop(3);
            }),
            Box::new(|memory| {
                memory.pop(4);
            }),
        ]
    });
}

#[test]
fn claims_meet_a_release_and_a_pop() {
    four(|memory| {
        memory.produce(1);
        memory.produce(2);
        let hold = memory.pop(3).expect("a batch");
        [
            Box::new(|memory| {
                memory.claim(1);
            }),
            Box::new(|memory| {
                memory.claim(2);
            }),
            Box::new(move |memory| memory.lock(3).release(hold, 0).unwrap()),
            Box::new(|memory| {
                memory.pop(4);
            }),
        ]
    });
}

#[test]
fn three_threads_get_the_lock_one_after_the_other() {
    explore(Bound::Preemptions(4), || {
        let memory = Memory::new(1, 1);
        let threads = [1, 2].map(|code| {
            let other = Arc::clone(&memory);
            thread::spawn(move || drop(other.lock(code)))
        });
        drop(memory.lock(3));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(memory.control.lock.word.load(Ordering::Relaxed), 0);
    });
}

/// The launcher takes back what a target has that publishes at that moment, and another target goes on with it.
#[test]
fn a_target_counted_as_dead_moves_nothing() {
    explore(Bound::None, || {
        let memory = Memory::new(1, 1);
        let hold = memory.claim(1).expect("a slot");
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || other.lock(1).publish(hold, 0, 0));
        let reclaimed = memory.lock(Holder::LAUNCHER).reclaim(1, 0);
        let again = memory.claim(2);
        let published = thread.join().unwrap();
        assert_eq!(audit(&memory.ring()), [""; 0]);
        match published {
            Ok(()) => assert_eq!((reclaimed.unfinished, again), (0, None)),
            Err(Lost) => memory.fill(2, again.expect("the slot that was taken back")),
        }
        assert_eq!(memory.ring().ledger.counts(), [0, 0, 1, 0, 0]);
    });
}

/// Half a claim of the dead: the slot says WRITING, the ledger does not know.
fn die_in_a_claim(memory: &Memory) {
    std::mem::forget(memory.lock(MORTAL));
    let claimed = memory.ring().word(SlotIndex(0)).owned(SlotState::Writing, u16::from(MORTAL));
    memory.slots[0].word.store(claimed.pack(), Ordering::Release);
}

fn claimed(asked: Asked) -> Option<u64> {
    match asked {
        Asked::Got(hold) => Some(hold.batch.0),
        other => {
            assert_eq!(other, Asked::Blocked(Blocked::NothingPending));
            None
        }
    }
}

/// Two targets want the lock of the dead: batch 1 is one's, batch 0 is pending once it is taken back.
#[test]
fn a_dead_holders_lock_is_taken_once_and_its_half_step_repaired() {
    explore(Bound::None, || {
        let memory = Memory::in_world(true, 2, 2);
        die_in_a_claim(&memory);
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || {
            other.world.died.store(true, Ordering::Release);
            claimed(other.lock(1).claim(0, 0))
        });
        let mine = claimed(memory.lock(2).claim(0, 0));
        let batches: Vec<u64> = [mine, thread.join().unwrap()].into_iter().flatten().collect();
        assert_eq!(batches, [1]);
        assert_eq!(memory.control.steals.load(Ordering::Relaxed), 1);
        assert_eq!(memory.lock(Holder::LAUNCHER).reclaim(MORTAL, 0).unfinished, 1);
        assert_eq!(memory.ring().ledger.counts(), [1, 1, 0, 0, 0]);
    });
}
