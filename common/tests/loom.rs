//! The queue's algorithm on modelled atomics: every interleaving of small scenes, two threads with up to
//! two preemptions, four with one.
//! `make loom`, or `cargo test --release -p common --features loom --test loom`

#![allow(unsafe_code, dead_code, unused_imports, unreachable_pub, reason = "compiles the algorithm's folder anew")]
#![allow(clippy::missing_safety_doc, reason = "the marker trait means nothing here")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../src/queue/ring/mod.rs"]
mod ring;

/// The seam: modelled atomics in the place of real ones.
mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    pub(crate) const SPINS: u32 = 1;
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
use ring::layout::{Bucket, Control, Slot};
use ring::ledger::Ledger;
use ring::lock::{Holder, Peers};
use ring::policy::Rules;
use ring::word::SlotState;
use ring::{Asked, Blocked, Hold, Locked, Ring};

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

/// Every interleaving in which a thread is interrupted inside its step at most `preemptions` times; that it waits, or
/// ends, is no interruption.
fn explore(preemptions: usize, scene: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 5000;
    model.check(scene);
}

#[test]
fn two_targets_never_get_the_same_batch_or_slot() {
    explore(2, || {
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
    explore(2, || {
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

type One = Box<dyn FnOnce(&Memory) + Send>;

/// Runs four participants at once, one step each: two targets and two drafters on two slots.
fn four(steps: impl Fn(&Memory) -> [One; 4] + Sync + Send + 'static) {
    explore(1, move || {
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
fn a_dead_holders_lock_is_taken_once_and_its_half_step_repaired() {
    explore(2, || {
        let memory = Memory::in_world(true, 2, 2);
        std::mem::forget(memory.lock(MORTAL));
        // Half a claim: the slot says WRITING, the ledger does not know.
        let claimed = memory.ring().word(SlotIndex(0)).owned(SlotState::Writing, u16::from(MORTAL));
        memory.slots[0].word.store(claimed.pack(), Ordering::Release);
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || {
            other.world.died.store(true, Ordering::Release);
            other.lock(1).claim(0, 0)
        });
        let mine = memory.lock(2).claim(0, 0);
        let batches = [mine, thread.join().unwrap()].map(|asked| match asked {
            Asked::Got(hold) => Some(hold.batch.0),
            other => {
                assert_eq!(other, Asked::Blocked(Blocked::NothingPending));
                None
            }
        });
        assert!(matches!(batches, [Some(1), None] | [None, Some(1)]), "{batches:?}");
        assert_eq!(memory.control.lock.steals.load(Ordering::Relaxed), 1);
        assert_eq!(memory.lock(Holder::LAUNCHER).reclaim(MORTAL, 0).unfinished, 1);
        assert_eq!(memory.ring().ledger.counts(), [1, 1, 0, 0, 0]);
    });
}
