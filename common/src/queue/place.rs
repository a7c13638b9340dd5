//! A process's place at the queue: its record, its presence, its right to take the lock, and its waits.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::activity::{Gauge, Phase, Track};
use super::gpu::Marker;
use super::header::{self, Facts, HeaderError};
use super::ring::bell::{Group, Waits};
use super::ring::layout::{Bell, Bucket, Control, Event, NUM_EVENTS, Participant, Slot, Tally};
use super::ring::ledger::{BatchState, Ledger};
use super::ring::lock::{Holder, Peers};
use super::ring::word::SlotState;
use super::ring::{Asked, Blocked, Locked, Ring};
use super::timed::{Delays, process_started};
use crate::ids::{Rank, Role, SlotIndex};
use crate::shm::{CREATOR_BYTE, Mapped, Presence, Segment, futex_wait, futex_wake, is_held};
use crate::sync::{AtomicU32, AtomicU64, Ordering, spin_loop};
use crate::wait::{Patience, Wait, WaitError};

/// The longest wait for the lock in a step that has no deadline of its own; its holder is alive, but stopped.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// How long a bell is watched before sleeping on it: about what a sleep and a wake cost, so that a wait never costs more
/// than twice the better of the two.
const WATCH: Duration = Duration::from_micros(20);
/// Between two looks at whether the lock's holder lives.
const LOCK_SLEEP: Duration = Duration::from_millis(20);

/// An open control segment.
pub(super) struct Shared {
    pub(super) segment: Segment,
    pub(super) facts: Facts,
    /// Watches presence bytes.
    file: File,
}

/// The algorithm's view of a mapped segment.
pub(super) fn ring<'a>(memory: &'a impl Mapped, facts: &Facts) -> Ring<'a> {
    let geometry = &facts.geometry;
    let control: &Control = memory.view(geometry.control);
    let words: &[AtomicU64] = memory.slice(geometry.ledger, geometry.sizes.total_batches as usize);
    Ring {
        control,
        buckets: memory.slice::<Bucket>(geometry.buckets, geometry.sizes.buckets as usize),
        tallies: memory.slice::<Tally>(geometry.tallies, geometry.sizes.buckets as usize),
        events: memory.slice::<Event>(geometry.events, NUM_EVENTS),
        participants: participants(memory, facts),
        slots: memory.slice::<Slot>(geometry.slots, geometry.sizes.capacity as usize),
        ledger: Ledger::new(words, control),
        rules: facts.rules,
    }
}

/// The records of all participants, targets first.
pub(super) fn participants<'a>(memory: &'a impl Mapped, facts: &Facts) -> &'a [Participant] {
    memory.slice(facts.geometry.participants, facts.geometry.sizes.participants as usize)
}

/// Nanoseconds of the clock that all processes of a boot share.
pub fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

impl Shared {
    pub(super) fn open(segment: Segment) -> Result<Shared, HeaderError> {
        let facts = header::read(&segment, segment.name())?;
        let file = segment.open_file()?;
        Ok(Shared { segment, facts, file })
    }

    pub(super) fn ring(&self) -> Ring<'_> {
        ring(&self.segment, &self.facts)
    }

    pub(super) fn participants(&self) -> &[Participant] {
        participants(&self.segment, &self.facts)
    }

    /// A slot's host part.
    pub(super) fn rows(&self, slot: SlotIndex) -> &[AtomicU32] {
        let geometry = &self.facts.geometry;
        self.segment.slice(geometry.rows + slot.0 as usize * geometry.rows_stride, geometry.rows_stride / 4)
    }

    /// The queue's own state.
    pub(super) fn control(&self) -> &Control {
        self.segment.view(self.facts.geometry.control)
    }

    /// A slot's shared fields.
    pub(super) fn slot(&self, slot: SlotIndex) -> &Slot {
        &self.segment.slice::<Slot>(self.facts.geometry.slots, self.facts.geometry.sizes.capacity as usize)
            [slot.0 as usize]
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.control().aborted.load(Ordering::Relaxed) != 0
    }

    pub(super) fn is_present(&self, byte: u8) -> bool {
        is_held(&self.file, byte).unwrap_or(true)
    }

    /// Takes the lock, waiting at most [`LOCK_PATIENCE`]; `asleep` is called before each sleep.
    pub(super) fn lock(&self, me: Holder, asleep: impl Fn()) -> Result<Locked<'_, Shared>, WaitError> {
        let started = OnceCell::new();
        self.ring().lock(me, self, |holder| {
            asleep();
            match started.get_or_init(Instant::now).elapsed() {
                after if after < LOCK_PATIENCE => Ok(()),
                after => Err(WaitError::Timeout { what: self.lock_held_by(holder), after }),
            }
        })
    }

    fn lock_held_by(&self, holder: Holder) -> String {
        format!("the queue's lock, held by {}, which is alive but does not run", self.facts.name_of(holder.code))
    }
}

impl Facts {
    /// The holder code of a participant; `None` if there is no such rank.
    pub(super) fn code(&self, role: Role, rank: Rank) -> Option<u8> {
        let (first, count) = match role {
            Role::Target => (0, self.targets),
            Role::Drafter => (self.targets, self.drafters),
        };
        (rank.0 < count).then(|| (first + rank.0 + 1) as u8)
    }

    /// The participant of a holder code; `None` for the launcher.
    pub(super) fn participant(&self, code: u8) -> Option<(Role, Rank)> {
        let number = u32::from(code).checked_sub(1)?;
        match number.checked_sub(self.targets) {
            None => Some((Role::Target, Rank(number))),
            Some(rank) if rank < self.drafters => Some((Role::Drafter, Rank(rank))),
            Some(_) => None,
        }
    }

    /// A holder code in words.
    pub(super) fn name_of(&self, code: u8) -> String {
        self.participant(code).map_or("the launcher".into(), |(role, rank)| format!("{role} {rank}"))
    }
}

impl Peers for Shared {
    fn lives(&self, holder: Holder) -> bool {
        if holder.code == Holder::LAUNCHER {
            return self.is_present(CREATOR_BYTE);
        }
        let Some(record) = self.participants().get(usize::from(holder.code) - 1) else { return true };
        self.is_present(holder.code) && holder.is_incarnation(record.epoch.load(Ordering::Relaxed))
    }

    fn now(&self) -> u64 {
        now()
    }

    fn sleep(&self, word: &AtomicU32, seen: u32) {
        futex_wait(word, seen, LOCK_SLEEP);
    }

    fn wake_one(&self, word: &AtomicU32) {
        futex_wake(word, 1);
    }

    fn wake_all(&self, word: &AtomicU32) {
        futex_wake(word, i32::MAX);
    }
}

/// Waits until the bell's word is no longer `seen`, in the way that was said beforehand; how to wait next.
fn wait_for_bell(bell: &Bell, seen: u32, waits: Waits, bound: Duration) -> Waits {
    if waits == Waits::Asleep {
        futex_wait(&bell.word, seen, bound);
        return Waits::Awake;
    }
    let started = Instant::now();
    while started.elapsed() < WATCH {
        if bell.word.load(Ordering::Relaxed) != seen {
            return Waits::Awake;
        }
        spin_loop();
    }
    Waits::Asleep
}

/// One participant's place, from taking it until the last lease and handle of it are dropped.
pub(super) struct Place {
    pub(super) shared: Arc<Shared>,
    pub(super) holder: Holder,
    pub(super) delays: Delays,
    /// Marks the GPU's work with the main thread's phases.
    pub(super) marker: OnceLock<Marker>,
    _presence: Presence,
}

impl Place {
    /// Starts a new incarnation. `presence` proves that no other process has the place.
    pub(super) fn take(shared: Arc<Shared>, code: u8, presence: Presence) -> Place {
        let record = &shared.participants()[usize::from(code) - 1];
        let epoch = record.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        // A process that takes its place once more had left it for the sake of another drafter, which died.
        let returns = record.pid.swap(std::process::id(), Ordering::Relaxed) == std::process::id();
        let phase = if returns { Phase::WaitDrafters } else { Phase::Starting };
        record.waits_for.store(0, Ordering::Relaxed);
        record.phase.store(phase as u32, Ordering::Relaxed);
        let started = process_started();
        record.phase_since_ns.store(started, Ordering::Relaxed);
        let (holder, delays) = (Holder { code, epoch }, Delays::of_environment());
        let place = Place { shared: Arc::clone(&shared), holder, delays, marker: OnceLock::new(), _presence: presence };
        // The others start when they are used: until then nobody is at work there.
        Track::ALL.iter().for_each(|track| place.times(*track).forget());
        place.times(Track::Main).start(phase as u32, started);
        place
    }

    pub(super) fn record(&self) -> &Participant {
        &self.shared.participants()[usize::from(self.holder.code) - 1]
    }

    /// Takes the lock; says so while it waits, unless another thread of this process waits for something and says that.
    pub(super) fn lock(&self) -> Result<Locked<'_, Shared>, WaitError> {
        let (has_said, waits_for) = (Cell::new(false), &self.record().waits_for);
        let locked = self.shared.lock(self.holder, || {
            if waits_for.load(Ordering::Relaxed) == 0 {
                self.say_wait(Blocked::LOCK_CODE, now());
                has_said.set(true);
            }
        });
        if has_said.get() && waits_for.load(Ordering::Relaxed) == Blocked::LOCK_CODE {
            waits_for.store(0, Ordering::Relaxed);
        }
        locked
    }

    pub(super) fn set_gauge(&self, gauge: Gauge, value: f64) {
        self.record().gauges[gauge as usize].store(value.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn count_batch(&self) {
        self.record().batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks again and again, under the lock, until there is an answer, patience ends or the run is aborted.
    pub(super) fn wait_for<T>(
        &self,
        (track, group): (Track, Group),
        patience: &Patience,
        ask: impl Fn(&Locked<'_, Shared>, u64) -> Asked<T>,
    ) -> Result<Option<T>, WaitError> {
        let before = self.times(track).present();
        let outcome = self.wait_until_answered((track, group), patience, ask);
        // Also in builds that count no time, whose tracks never change.
        if self.record().waits_for.load(Ordering::Relaxed) != 0 {
            self.record().waits_for.store(0, Ordering::Relaxed);
        }
        if self.times(track).present() != before {
            self.times(track).resume(before, now());
        }
        outcome
    }

    fn wait_until_answered<T>(
        &self,
        (track, group): (Track, Group),
        patience: &Patience,
        ask: impl Fn(&Locked<'_, Shared>, u64) -> Asked<T>,
    ) -> Result<Option<T>, WaitError> {
        let wait = Wait::new(patience);
        let bell = group.bell(self.shared.control());
        let mut waits = Waits::Awake;
        loop {
            // BELL: Acquire, paired with the Release of `bell::raise`: what is raised later ends the sleep below.
            let seen = bell.word.load(Ordering::Acquire);
            if self.shared.is_aborted() {
                return Err(WaitError::Aborted);
            }
            if patience.shutdown.is_set() {
                return Err(WaitError::Shutdown);
            }
            let asked = {
                let locked = self.shared.ring().lock(self.holder, &*self.shared, |holder| {
                    self.note_wait(track, Blocked::LOCK_CODE);
                    wait.sleep(|| self.shared.lock_held_by(holder)).map(|_| ())
                })?;
                let asked = ask(&locked, now());
                if let Asked::Blocked(_) = asked {
                    locked.wait_on(group, waits);
                }
                asked
            };
            match asked {
                Asked::Got(hold) => return Ok(Some(hold)),
                Asked::Finished => return Ok(None),
                Asked::Blocked(blocked) => {
                    self.note_wait(track, blocked.code());
                    let bound = wait.sleep(|| self.describe(blocked))?;
                    waits = wait_for_bell(bell, seen, waits, bound);
                }
            }
        }
    }

    /// Notes what a thread waits for. What a second thread waits for is the worker's wait only while the main thread waits
    /// for that thread.
    fn note_wait(&self, track: Track, code: u32) {
        let (now, phase) = (now(), Phase::waiting(code) as u32);
        if self.times(track).present().phase() != Some(phase) {
            self.times(track).enter(phase, now);
        }
        let is_shown = track == Track::Main || self.record().phase.load(Ordering::Relaxed) == Phase::Await as u32;
        let shown = if is_shown { code } else { 0 };
        if self.record().waits_for.load(Ordering::Relaxed) != shown {
            self.say_wait(shown, now);
        }
    }

    fn say_wait(&self, code: u32, now: u64) {
        let record = self.record();
        record.waits_since_ns.store(now, Ordering::Relaxed);
        record.waits_for.store(code, Ordering::Relaxed);
    }

    /// Why a wait did not end, for the person who reads the error.
    fn describe(&self, blocked: Blocked) -> String {
        let ring = self.shared.ring();
        let [pending, claimed, ready, held, trained] = ring.ledger.counts();
        let reading = ring.slots_in(SlotState::Reading);
        match blocked {
            Blocked::NoFreeSlot => {
                format!(
                    "a free slot ({} in all: {claimed} being written, {ready} ready, {reading} being read)",
                    ring.slots.len()
                )
            }
            Blocked::Share { writing, share } => {
                format!("others to get a slot (this target fills {writing}, its share is {share})")
            }
            Blocked::Group { available, asked } => {
                format!("{asked} batches at once ({available} can be had, {claimed} being written, {pending} pending)")
            }
            Blocked::NothingPending => {
                format!("the drafters to finish ({ready} batches ready, {held} held by drafters, {trained} trained)")
            }
            Blocked::Gate { ready, needed } => {
                format!("the gate ({ready} of {needed} batches ready, {claimed} being written, {pending} pending)")
            }
            Blocked::NotThisOne(state) => format!("the next batch in order, which is {}", self.state_in_words(state)),
        }
    }

    fn state_in_words(&self, state: BatchState) -> String {
        match state {
            BatchState::Pending => "not yet claimed by a target".into(),
            BatchState::Claimed(code) => format!("being written by {}", self.shared.facts.name_of(code)),
            BatchState::Ready => "ready".into(),
            BatchState::Held(code) => format!("held by {}", self.shared.facts.name_of(code)),
            BatchState::Trained(step) => format!("trained at step {step}"),
        }
    }
}
