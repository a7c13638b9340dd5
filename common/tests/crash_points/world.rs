//! A queue with four participants, brought into a scene, in which one of them dies.

use std::cell::{Cell, RefCell};

use crate::ids::{BatchId, Step};
use crate::ring::audit::audit;
use crate::ring::layout::{Bucket, Control, Event, Participant, Slot, Tally};
use crate::ring::ledger::{BatchState, Ledger};
use crate::ring::lock::{Holder, Peers};
use crate::ring::policy::Rules;
use crate::ring::word::SlotState;
use crate::ring::{Asked, Hold, Locked, Ring};
use crate::sync::{AtomicU32, AtomicU64, Ordering, dies_after};

const TARGET: u8 = 1;
const SPARE_TARGET: u8 = 2;
const DRAFTER: u8 = 3;
const SPARE_DRAFTER: u8 = 4;
const CAPACITY: usize = 4;
const BATCHES: usize = 8;

/// Rules, and how many batches are READY when the dying step begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) strict: bool,
    pub(crate) latch: bool,
    pub(crate) published: usize,
}

/// A step that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Claim,
    Evict,
    Publish,
    PublishTrained,
    Abort,
    Pop,
    PopWanted,
    PopGroup,
    Release,
    Return,
    Train,
    Reclaim,
    Rewind,
}

impl Action {
    pub(crate) const ALL: [Action; 13] = [
        Action::Claim,
        Action::Evict,
        Action::Publish,
        Action::PublishTrained,
        Action::Abort,
        Action::Pop,
        Action::PopWanted,
        Action::PopGroup,
        Action::Release,
        Action::Return,
        Action::Train,
        Action::Reclaim,
        Action::Rewind,
    ];

    fn actor(self) -> u8 {
        match self {
            Action::Claim | Action::Evict | Action::Publish | Action::PublishTrained | Action::Abort => TARGET,
            Action::Reclaim | Action::Rewind => Holder::LAUNCHER,
            _ => DRAFTER,
        }
    }

    pub(crate) fn is_launchers(self) -> bool {
        self.actor() == Holder::LAUNCHER
    }
}

/// How a step died.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    pub(crate) locked: bool,
}

pub(crate) struct World {
    scene: Scene,
    control: Control,
    buckets: Vec<Bucket>,
    tallies: Vec<Tally>,
    events: Vec<Event>,
    participants: Vec<Participant>,
    slots: Vec<Slot>,
    words: Vec<AtomicU64>,
    dead: RefCell<Vec<u8>>,
    /// What living participants hold.
    holds: RefCell<Vec<(u8, Hold)>>,
    deliveries: RefCell<Vec<(BatchId, u8)>>,
    rewound: Cell<bool>,
}

impl Peers for World {
    fn lives(&self, holder: Holder) -> bool {
        !self.dead.borrow().contains(&holder.code)
    }
    fn now(&self) -> u64 {
        1
    }
    fn sleep(&self, _: &AtomicU32, _: u32) {}
    fn wake_one(&self, _: &AtomicU32) {}
    fn wake_all(&self, _: &AtomicU32) {}
}

fn many<T: Default>(count: usize) -> Vec<T> {
    (0..count).map(|_| T::default()).collect()
}

impl World {
    pub(crate) fn new(scene: Scene) -> World {
        let world = World {
            scene,
            control: Control::default(),
            buckets: many(2),
            tallies: many(2),
            events: many(4),
            participants: many(4),
            slots: many(CAPACITY),
            words: many(BATCHES),
            dead: RefCell::default(),
            holds: RefCell::default(),
            deliveries: RefCell::default(),
            rewound: Cell::new(false),
        };
        world.control.lottery.store(1, Ordering::Relaxed);
        world.ring().ledger.recount();
        for _ in 0..scene.published {
            world.publish(SPARE_TARGET);
        }
        world
    }

    fn ring(&self) -> Ring<'_> {
        let Scene { strict, latch, .. } = self.scene;
        Ring {
            control: &self.control,
            buckets: &self.buckets,
            tallies: &self.tallies,
            events: &self.events,
            participants: &self.participants,
            slots: &self.slots,
            ledger: Ledger::new(&self.words, &self.control),
            rules: Rules { min_ready: 1, strict, latch, targets: 2, max_age_ns: u64::MAX },
        }
    }

    fn lock(&self, code: u8) -> Locked<'_, World> {
        let stuck = |holder: Holder| panic!("the lock is held by {holder:?}, who lives");
        self.ring().lock::<_, ()>(Holder { code, epoch: 1 }, self, stuck).unwrap()
    }

    fn claim(&self, code: u8) -> Option<Hold> {
        match self.lock(code).claim(0, 1) {
            Asked::Got(hold) => Some(hold),
            _ => None,
        }
    }

    fn publish(&self, code: u8) -> bool {
        let claimed = self.claim(code);
        claimed.inspect(|hold| self.lock(code).publish(*hold, hold.batch.0 as u32 % 2, 1).unwrap()).is_some()
    }

    fn pop(&self, code: u8) -> Option<Hold> {
        match self.lock(code).pop(None, 1) {
            Asked::Got(hold) => {
                self.deliveries.borrow_mut().push((hold.batch, self.ring().ledger.returns(hold.batch)));
                Some(hold)
            }
            _ => None,
        }
    }

    fn train(&self, code: u8) {
        let Some(hold) = self.pop(code) else { return };
        self.lock(code).release(hold, 1).unwrap();
        self.lock(code).trained(&[hold.batch], Step(1)).unwrap();
    }

    /// Takes the step and dies before its store number `fuse`; none if it has no more than that.
    pub(crate) fn die_at(&self, action: Action, fuse: u32) -> Option<Death> {
        let code = action.actor();
        let step = self.prepare(action, code)?;
        self.died(code, dies_after(fuse, step))
    }

    /// The spare target takes the dead one's lock and dies in the repair.
    pub(crate) fn die_repairing(&self, fuse: u32) -> Option<Death> {
        let died = dies_after(fuse, || drop(self.lock(SPARE_TARGET)));
        self.died(SPARE_TARGET, died)
    }

    fn died(&self, code: u8, died: bool) -> Option<Death> {
        died.then(|| {
            self.dead.borrow_mut().push(code);
            Death { locked: self.control.lock.word.load(Ordering::Relaxed) as u8 == code }
        })
    }

    /// Everything before the step; none if the scene has no place for it.
    fn prepare(&self, action: Action, code: u8) -> Option<Box<dyn FnOnce() + '_>> {
        let one: Option<Hold> = match action {
            Action::Publish | Action::Abort | Action::PublishTrained => Some(self.claim(code)?),
            Action::Release | Action::Return | Action::Train => Some(self.pop(code)?),
            Action::PopWanted => self.ready().map(|_| None)?,
            Action::Reclaim => self.pop(DRAFTER).map_or(self.claim(TARGET), Some),
            Action::Rewind => {
                self.train(DRAFTER);
                self.pop(DRAFTER)
            }
            Action::Evict => {
                self.make_evictable()?;
                None
            }
            Action::Claim | Action::Pop | Action::PopGroup => None,
        };
        match (action, one) {
            (Action::Train, Some(hold)) => self.lock(code).release(hold, 1).unwrap(),
            (Action::PublishTrained, Some(hold)) => {
                self.lock(Holder::LAUNCHER).rewind(&[(hold.batch.0, hold.batch.0 + 1)], 1);
                self.rewound.set(true);
            }
            (Action::Reclaim | Action::Rewind, _) => self.dead.borrow_mut().extend([TARGET, DRAFTER]),
            _ => {}
        }
        Some(Box::new(move || self.act(action, code, one)))
    }

    fn ready(&self) -> Option<BatchId> {
        let ledger = self.ring().ledger;
        ledger.ids().find(|batch| ledger.get(*batch) == BatchState::Ready)
    }

    /// All slots READY, and a lower batch PENDING.
    fn make_evictable(&self) -> Option<()> {
        self.scene.strict.then_some(())?;
        let first = self.pop(DRAFTER)?;
        self.lock(DRAFTER).release(first, 1).unwrap();
        while self.publish(SPARE_TARGET) && self.ring().slots_in(SlotState::Free) > 0 {}
        self.lock(Holder::LAUNCHER).reclaim(DRAFTER, 1);
        Some(())
    }

    fn act(&self, action: Action, code: u8, one: Option<Hold>) {
        let locked = self.lock(code);
        match (action, one) {
            (Action::Publish | Action::PublishTrained, Some(hold)) => locked.publish(hold, 1, 2).unwrap(),
            (Action::Abort, Some(hold)) => locked.abort(hold, 2).unwrap(),
            (Action::Release, Some(hold)) => locked.release(hold, 2).unwrap(),
            (Action::Return, Some(hold)) => locked.nack(hold, 2).unwrap(),
            (Action::Train, Some(hold)) => locked.trained(&[hold.batch], Step(2)).unwrap(),
            (Action::Pop, _) => drop(locked.pop(None, 2)),
            (Action::PopWanted, _) => drop(locked.pop(self.ready(), 2)),
            (Action::PopGroup, _) => drop(locked.pop_group(2, 2)),
            (Action::Reclaim, _) => drop(locked.reclaim(DRAFTER, 2)),
            (Action::Rewind, _) => {
                self.rewound.set(true);
                locked.rewind(&[(1, 2)], 2);
            }
            _ => drop(locked.claim(0, 2)),
        }
    }

    /// The living go on before the launcher knows; then it takes back what the dead had. A dead launcher's run ends,
    /// but its queue must still be whole.
    pub(crate) fn go_on(&self, action: Action) {
        let heir = if self.dead.borrow().contains(&SPARE_TARGET) { SPARE_DRAFTER } else { SPARE_TARGET };
        drop(self.lock(heir));
        assert_eq!(audit(&self.ring()), [""; 0], "{action:?} in {:?}", self.scene);
        self.dead.borrow_mut().retain(|code| *code != Holder::LAUNCHER);
        for code in self.dead.take().into_iter().chain([TARGET, DRAFTER]) {
            self.lock(Holder::LAUNCHER).reclaim(code, 3);
            assert_eq!(audit(&self.ring()), [""; 0], "{action:?} in {:?}, {code} reclaimed", self.scene);
        }
    }

    /// The run goes to its end.
    pub(crate) fn finish(&self) {
        for _ in 0..2 * BATCHES {
            self.publish(SPARE_TARGET);
            self.train(SPARE_DRAFTER);
        }
        assert_eq!(self.ring().ledger.trained_ranges(), [(0, BATCHES as u64)], "{:?}", self.scene);
        assert_eq!(self.ring().slots_in(SlotState::Free), CAPACITY);
        assert_eq!(self.lock(SPARE_TARGET).claim(0, 1), Asked::Finished);
        assert_eq!(self.lock(SPARE_DRAFTER).pop(None, 1), Asked::Finished);
        assert_eq!(audit(&self.ring()), [""; 0]);
        let mut deliveries = self.deliveries.take();
        deliveries.sort_unstable();
        let unmarked = deliveries.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(unmarked, None, "delivered twice without a mark");
    }
}
