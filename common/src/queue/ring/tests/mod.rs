//! The algorithm alone, in one process: its rules, and its invariants after any sequence of steps and deaths.

use std::cell::RefCell;
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::ledger::BatchState;
use super::lock::{Holder, Peers};
use super::policy::Rules;
use super::word::SlotState;
use super::*;
use crate::ids::Step;
use crate::sync::AtomicU32;

/// A world in which participants die when told to, and nobody ever has to sleep for long.
#[derive(Default)]
struct World {
    dead: RefCell<BTreeSet<u8>>,
}

impl Peers for World {
    fn lives(&self, holder: Holder) -> bool {
        !self.dead.borrow().contains(&holder.code)
    }
    fn now(&self) -> u64 {
        0
    }
    fn sleep(&self, _: &AtomicU32, _: u32) {}
    fn wake_one(&self, _: &AtomicU32) {}
    fn wake_all(&self, _: &AtomicU32) {}
}

/// The memory of a queue with two buckets.
struct Memory {
    control: Control,
    buckets: Vec<Bucket>,
    events: Vec<Event>,
    participants: Vec<Participant>,
    slots: Vec<Slot>,
    words: Vec<AtomicU64>,
    rules: Rules,
}

impl Memory {
    fn new(capacity: usize, batches: usize, min_ready: u64, strict: bool) -> Memory {
        let memory = Memory {
            control: Control::default(),
            buckets: (0..2).map(|_| Bucket::default()).collect(),
            events: (0..4).map(|_| Event::default()).collect(),
            participants: (0..4).map(|_| Participant::default()).collect(),
            slots: (0..capacity).map(|_| Slot::default()).collect(),
            words: (0..batches).map(|_| AtomicU64::new(0)).collect(),
            rules: Rules { min_ready, strict, latch: false, targets: 2, max_age_ns: u64::MAX },
        };
        memory.control.lottery.store(1, Ordering::Relaxed);
        memory.ring().ledger.recount();
        memory
    }

    fn ring(&self) -> Ring<'_> {
        let ledger = Ledger::new(&self.words, &self.control);
        Ring {
            control: &self.control,
            buckets: &self.buckets,
            tallies: &[],
            events: &self.events,
            participants: &self.participants,
            slots: &self.slots,
            ledger,
            rules: self.rules,
        }
    }

    fn lock<'a>(&'a self, code: u8, world: &'a World) -> Locked<'a, World> {
        let stuck = |holder: Holder| panic!("the lock is held by {holder:?}");
        self.ring().lock::<_, ()>(Holder { code, epoch: 1 }, world, stuck).unwrap()
    }
}

const TARGET: u8 = 1;
const DRAFTER: u8 = 3;

fn got(asked: Asked) -> Hold {
    match asked {
        Asked::Got(hold) => hold,
        other => panic!("{other:?}"),
    }
}

/// What must hold whenever nobody is inside the lock.
fn check(ring: &Ring<'_>) {
    assert_eq!(audit::audit(ring), [""; 0]);
    assert!(ring.control.lock.sequence.load(Ordering::Relaxed).is_multiple_of(2));
    assert_eq!(ring.control.lock.word.load(Ordering::Relaxed), 0);
}

#[test]
fn a_batch_goes_round_and_both_sides_see_the_end() {
    let (memory, world) = (Memory::new(2, 2, 2, false), World::default());
    let first = got(memory.lock(TARGET, &world).claim(0, 0));
    memory.lock(TARGET, &world).publish(first, 0, 0).unwrap();
    let blocked = memory.lock(DRAFTER, &world).pop(None, 0);
    assert_eq!(blocked, Asked::Blocked(Blocked::Gate { ready: 1, needed: 2 }));
    let second = got(memory.lock(TARGET, &world).claim(0, 0));
    assert_eq!(memory.lock(TARGET, &world).claim(0, 0), Asked::Blocked(Blocked::NothingPending));
    memory.lock(TARGET, &world).publish(second, 1, 0).unwrap();
    for _ in 0..2 {
        let hold = got(memory.lock(DRAFTER, &world).pop(None, 0));
        memory.lock(DRAFTER, &world).release(hold, 0).unwrap();
        assert_eq!(memory.lock(TARGET, &world).claim(0, 0), Asked::Blocked(Blocked::NothingPending), "not yet trained");
        memory.lock(DRAFTER, &world).trained(&[hold.batch], Step(1)).unwrap();
    }
    assert_eq!(memory.lock(DRAFTER, &world).pop(None, 0), Asked::Finished);
    assert_eq!(memory.lock(TARGET, &world).claim(0, 0), Asked::Finished);
    check(&memory.ring());
}

#[test]
fn a_stale_owner_moves_nothing() {
    let (memory, world) = (Memory::new(1, 3, 1, false), World::default());
    let stale = got(memory.lock(TARGET, &world).claim(0, 0));
    memory.lock(Holder::LAUNCHER, &world).reclaim(TARGET, 0);
    assert_eq!(memory.lock(TARGET, &world).publish(stale, 0, 0), Err(Lost));
    // The same batch in the same slot in the same hands, but another round.
    let fresh = got(memory.lock(TARGET, &world).claim(0, 0));
    assert_eq!((fresh.batch, fresh.slot), (stale.batch, stale.slot));
    assert_eq!(memory.lock(TARGET, &world).abort(stale, 0), Err(Lost));
    memory.lock(TARGET, &world).publish(fresh, 0, 0).unwrap();
    let read = got(memory.lock(DRAFTER, &world).pop(None, 0));
    assert_eq!(memory.lock(DRAFTER, &world).trained(&[BatchId(2)], Step(1)), Err(Lost), "not held");
    memory.lock(DRAFTER, &world).nack(read, 0).unwrap();
    assert_eq!(memory.lock(DRAFTER, &world).release(read, 0), Err(Lost));
    check(&memory.ring());
}

#[test]
fn strict_goes_in_order_and_evicts_rather_than_deadlocks() {
    let (memory, world) = (Memory::new(2, 4, 1, true), World::default());
    let holds = [0, 1].map(|_| got(memory.lock(TARGET, &world).claim(0, 0)));
    memory.lock(TARGET, &world).publish(holds[1], 0, 0).unwrap();
    let early = memory.lock(DRAFTER, &world).pop(None, 0);
    assert!(matches!(early, Asked::Blocked(Blocked::NotThisOne(_))), "0 is still being written: {early:?}");
    memory.lock(TARGET, &world).publish(holds[0], 0, 0).unwrap();
    let first = got(memory.lock(DRAFTER, &world).pop(None, 0));
    assert_eq!(first.batch, BatchId(0));
    memory.lock(DRAFTER, &world).release(first, 0).unwrap();
    // Both slots hold later batches, and the drafter dies with batch 0: without an eviction nobody could move.
    let third = got(memory.lock(TARGET, &world).claim(0, 0));
    memory.lock(TARGET, &world).publish(third, 0, 0).unwrap();
    memory.lock(Holder::LAUNCHER, &world).reclaim(DRAFTER, 0);
    let again = got(memory.lock(TARGET, &world).claim(0, 0));
    assert_eq!(again.batch, BatchId(0));
    assert_eq!(memory.ring().ledger.get(BatchId(2)), BatchState::Pending, "the highest one made room");
    assert_eq!(memory.ring().ledger.get(BatchId(1)), BatchState::Ready);
    check(&memory.ring());
}

#[test]
fn a_rewind_makes_the_trained_set_exactly_the_given_one() {
    let (memory, world) = (Memory::new(4, 6, 1, false), World::default());
    let launcher = || memory.lock(Holder::LAUNCHER, &world);
    for _ in 0..4 {
        let hold = got(memory.lock(TARGET, &world).claim(0, 0));
        memory.lock(TARGET, &world).publish(hold, 0, 0).unwrap();
    }
    for id in [0, 1, 2] {
        let hold = got(memory.lock(DRAFTER, &world).pop(Some(BatchId(id)), 0));
        memory.lock(DRAFTER, &world).release(hold, 0).unwrap();
    }
    memory.lock(DRAFTER, &world).trained(&[BatchId(0), BatchId(1)], Step(7)).unwrap();
    launcher().reclaim(DRAFTER, 0);
    let writing = got(memory.lock(TARGET, &world).claim(0, 0));
    assert_eq!(writing.batch, BatchId(2));
    launcher().rewind(&[(0, 1), (2, 4)], 0);
    assert_eq!(memory.ring().ledger.trained_ranges(), [(0, 1), (2, 4)]);
    assert_eq!(memory.ring().ledger.counts(), [3, 0, 0, 0, 3]);
    memory.lock(TARGET, &world).publish(writing, 0, 0).unwrap();
    assert_eq!(memory.ring().slots_in(SlotState::Free), 4, "trained meanwhile: not delivered");
    check(&memory.ring());
}

/// One step of the random walk.
#[derive(Clone, Copy, Debug)]
enum Move {
    Claim(u8),
    PopGroup(u8),
    Settle(u8, bool),
    Pop(u8),
    Return(u8, bool),
    Train(u8),
    Die(u8),
    DieInLock(u8),
    Rewind,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let (target, drafter) = (1u8..3, 3u8..5);
    let one = prop_oneof![
        4 => target.clone().prop_map(Move::Claim),
        4 => (target, any::<bool>()).prop_map(|(code, publish)| Move::Settle(code, publish)),
        4 => drafter.clone().prop_map(Move::Pop),
        2 => drafter.clone().prop_map(Move::PopGroup),
        4 => (drafter.clone(), any::<bool>()).prop_map(|(code, release)| Move::Return(code, release)),
        3 => drafter.prop_map(Move::Train),
        1 => (1u8..5).prop_map(Move::Die),
        1 => (1u8..5).prop_map(Move::DieInLock),
        1 => Just(Move::Rewind),
    ];
    prop::collection::vec(one, 1..200)
}

/// A random walk's participants: what each holds in slots.
struct Walk<'a> {
    memory: &'a Memory,
    world: World,
    holds: Vec<(u8, Hold)>,
}

impl Walk<'_> {
    fn take(&mut self, code: u8) -> Option<Hold> {
        let place = self.holds.iter().position(|(owner, _)| *owner == code)?;
        Some(self.holds.swap_remove(place).1)
    }

    fn step(&mut self, step: Move) {
        if let Move::PopGroup(code) = step {
            if let Asked::Got(holds) = self.memory.lock(code, &self.world).pop_group(2, 0) {
                self.holds.extend(holds.into_iter().map(|hold| (code, hold)));
            }
            return;
        }
        let (Move::Claim(code) | Move::Settle(code, _) | Move::Pop(code) | Move::Return(code, _)) = step else {
            return self.upheaval(step);
        };
        let taken = if matches!(step, Move::Settle(..) | Move::Return(..)) { self.take(code) } else { None };
        let locked = self.memory.lock(code, &self.world);
        let asked = match (step, taken) {
            (Move::Claim(_), _) => locked.claim(0, 0),
            (Move::Pop(_), _) => locked.pop(None, 0),
            (Move::Settle(_, true), Some(hold)) => return locked.publish(hold, u32::from(code) % 2, 0).unwrap(),
            (Move::Settle(..), Some(hold)) => return locked.abort(hold, 0).unwrap(),
            (Move::Return(_, true), Some(hold)) => return locked.release(hold, 0).unwrap(),
            (_, Some(hold)) => return locked.nack(hold, 0).unwrap(),
            (_, None) => return,
        };
        drop(locked);
        if let Asked::Got(hold) = asked {
            self.holds.push((code, hold));
        }
    }

    fn upheaval(&mut self, step: Move) {
        let (ring, ledger) = (self.memory.ring(), self.memory.ring().ledger);
        match step {
            Move::Train(code) => {
                let held: Vec<BatchId> = ledger.ids().filter(|id| ledger.get(*id) == BatchState::Held(code)).collect();
                self.memory.lock(code, &self.world).trained(&held, Step(1)).unwrap();
            }
            Move::Die(code) => self.bury(code),
            Move::DieInLock(code) => {
                // Dead right after some slot's commit: everything derived may be wrong in any way.
                std::mem::forget(self.memory.lock(code, &self.world));
                for slot in (0..ring.slots.len() as u32).map(SlotIndex) {
                    let carries = ring.word(slot).state != SlotState::Free;
                    if carries && !matches!(ledger.get(ring.batch(slot)), BatchState::Trained(_)) {
                        self.memory.words[ring.batch(slot).0 as usize].store(0, Ordering::Relaxed);
                    }
                }
                // ... or after one that freed a slot: its batch is in none.
                if let Some(batch) = ledger.lowest_pending() {
                    let stale = [BatchState::Claimed(code), BatchState::Ready][batch.0 as usize % 2];
                    ledger.set(batch, stale);
                }
                self.memory.control.lock.ledger_counts[0].store(99, Ordering::Relaxed);
                self.world.dead.borrow_mut().insert(code);
                self.bury(code);
                self.world.dead.borrow_mut().clear();
            }
            _ => {
                [3, 4].into_iter().for_each(|drafter| self.bury(drafter));
                let keep: Vec<(u64, u64)> = ledger.trained_ranges().into_iter().take(1).collect();
                self.memory.lock(Holder::LAUNCHER, &self.world).rewind(&keep, 0);
                assert_eq!(ledger.trained_ranges(), keep);
            }
        }
    }

    fn bury(&mut self, code: u8) {
        self.memory.lock(Holder::LAUNCHER, &self.world).reclaim(code, 0);
        self.holds.retain(|(owner, _)| *owner != code);
    }

    /// Without further deaths everything is trained, and both sides learn that it is the end.
    fn finish(&mut self) {
        (1..5).for_each(|code| self.bury(code));
        // Each round trains at least one batch, once those of other buckets and drafters are through.
        for _ in 0..4 * self.memory.ring().ledger.len() {
            for step in [Move::Claim(1), Move::Settle(1, true), Move::Pop(3), Move::Return(3, true), Move::Train(3)] {
                self.step(step);
            }
        }
        assert_eq!(self.memory.ring().ledger.trained_ranges(), [(0, self.memory.ring().ledger.len())]);
        assert_eq!(self.memory.lock(1, &self.world).claim(0, 0), Asked::Finished);
        assert_eq!(self.memory.lock(3, &self.world).pop(None, 0), Asked::Finished);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_walk_keeps_the_invariants_and_can_finish(
        steps in moves(), capacity in 1usize..5, strict: bool, batches in 1usize..12
    ) {
        let memory = Memory::new(capacity, batches, 1, strict);
        let mut walk = Walk { memory: &memory, world: World::default(), holds: Vec::new() };
        for step in steps {
            walk.step(step);
            check(&memory.ring());
        }
        walk.finish();
        check(&memory.ring());
    }
}

#[test]
fn slots_whose_memory_is_lost_carry_nothing_and_go_to_nobody() {
    let (world, memory) = (World::default(), Memory::new(4, 6, 1, false));
    let claim = || got(memory.lock(TARGET, &world).claim(0, 0));
    let [reading, ready, writing] = std::array::from_fn(|_| claim());
    memory.lock(TARGET, &world).publish(reading, 0, 0).unwrap();
    memory.lock(TARGET, &world).publish(ready, 0, 0).unwrap();
    let reading = got(memory.lock(DRAFTER, &world).pop(Some(reading.batch), 0));
    assert_eq!(memory.lock(Holder::LAUNCHER, &world).forfeit(0..3, 0), 2, "one ready, one being read");
    assert!(memory.lock(DRAFTER, &world).release(reading, 0).is_err(), "its lease is gone");
    assert!(memory.lock(TARGET, &world).publish(writing, 0, 0).is_err(), "so is the writer's");
    assert_eq!(memory.ring().ledger.counts(), [6, 0, 0, 0, 0], "nothing is lost for good");
    assert_eq!(claim().slot, SlotIndex(3), "the one slot that has memory");
    assert_eq!(memory.lock(TARGET, &world).claim(0, 0), Asked::Blocked(Blocked::NoFreeSlot));
    memory.lock(Holder::LAUNCHER, &world).restore(0..3, 1);
    let anew = claim();
    assert_eq!((anew.slot, anew.arena_version), (SlotIndex(0), 1));
    assert_eq!([reading, ready, writing].map(|hold| hold.arena_version), [0; 3], "who had it still knows what it was");
}

#[test]
fn a_target_fills_its_own_part_of_the_arena_first() {
    let (world, memory) = (World::default(), Memory::new(4, 6, 1, false));
    let claim = |code| got(memory.lock(code, &world).claim(0, 0)).slot.0;
    assert_eq!([claim(2), claim(1), claim(2), claim(1)], [2, 0, 3, 1]);
    let (world, memory) = (World::default(), Memory::new(4, 6, 1, false));
    let claim = |code| got(memory.lock(code, &world).claim(0, 0)).slot.0;
    assert_eq!([claim(2), claim(2), claim(2)], [2, 3, 0], "then any other");
}
