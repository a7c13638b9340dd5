//! Real processes: workers are killed at random moments, and every batch is still trained, whole, and the queue clean.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and shows its figures")]

mod queue_world;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use common::ids::{Rank, Role, Step};
use common::queue::{Queue, QueueOwner, QueueSpec, ReclaimError, Snapshot};
use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use queue_world::*;

const NAME: &str = "TANDEM_TEST_QUEUE";
const PLACE: &str = "TANDEM_TEST_PLACE";
const BATCHES: u64 = 40_000;
const KILLS: u32 = 200;
/// More batches than the workers get through while a test lasts.
const FOR_EVER: u64 = 1 << 18;
/// Each test has the machine's cores to itself.
static ALONE: Mutex<()> = Mutex::new(());
/// The place of a target 0 that stops itself each time it has a slot.
const HOLDER: usize = 9;

/// Not a test: the worker that the tests below start. Its place is a number, targets 0 and 1, drafters 2 and 3, or
/// [`HOLDER`].
#[test]
#[ignore = "run as a child by the other tests"]
fn worker() {
    let (Ok(name), Ok(place)) = (std::env::var(NAME), std::env::var(PLACE)) else { return };
    let queue = Queue::attach(&name).unwrap();
    match place.parse::<u32>().unwrap() {
        place @ 0..2 => produce(&queue, place),
        9 => hold(&queue),
        place => consume(&queue, place - 2),
    }
}

fn produce(queue: &Queue, rank: u32) {
    let producer = producer(queue, rank);
    while let Some(lease) = producer.claim(&patience(30_000)).unwrap() {
        let bucket = lease.batch_id().0 as u32 % 2;
        dwell(bucket);
        publish(lease, bucket);
    }
}

fn hold(queue: &Queue) {
    let producer = producer(queue, 0);
    loop {
        let lease = claim(&producer);
        raise(Signal::SIGSTOP).unwrap();
        publish(lease, 0);
    }
}

/// Keeps a lease for a while now and then, so that deaths fall into it.
fn dwell(bucket: u32) {
    if bucket == 0 {
        thread::sleep(Duration::from_micros(20));
    }
}

fn consume(queue: &Queue, rank: u32) {
    let consumer = consumer(queue, rank);
    while let Some(lease) = consumer.pop(&patience(30_000)).unwrap() {
        let batch = lease.batch_id();
        assert_eq!(lease.rows().unwrap(), rows(batch));
        dwell(lease.bucket());
        lease.release().unwrap();
        consumer.trained(&[batch], Step(batch.0)).unwrap();
    }
}

/// The workers, and what a launcher does about their deaths.
struct Fleet {
    queue: QueueOwner,
    name: String,
    workers: Vec<Child>,
}

impl Fleet {
    fn start(spec: &QueueSpec) -> Fleet {
        let queue = Queue::create(spec).unwrap();
        let name = spec.name();
        let workers = (0..4).map(|place| spawn(&name, place)).collect();
        Fleet { queue, name, workers }
    }

    fn bury(&mut self, place: usize) {
        self.workers[place].wait().unwrap();
        let (role, rank) = if place < 2 { (Role::Target, place) } else { (Role::Drafter, place - 2) };
        self.queue.reclaim(role, Rank(rank as u32)).unwrap();
    }

    fn kill_and_restart(&mut self, place: usize) {
        self.workers[place].kill().unwrap();
        self.bury(place);
        self.workers[place] = spawn(&self.name, place);
    }

    fn all_done(&mut self) -> bool {
        self.workers.iter_mut().all(|worker| worker.try_wait().unwrap().is_some())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // An error means that it has ended by itself.
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

fn spawn(name: &str, place: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["worker", "--exact", "--ignored", "--quiet"])
        .env(NAME, name)
        .env(PLACE, place.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn killed_workers_lose_nothing() {
    let _alone = ALONE.lock();
    let mut fleet = Fleet::start(&QueueSpec { min_ready: 2, ..spec(BATCHES) });
    let mut seed = 0x1234_5678_9ABC_DEF1u64;
    let mut kills = 0;
    let deadline = Instant::now() + Duration::from_secs(120);
    while !fleet.all_done() {
        assert!(Instant::now() < deadline, "{:#?}", fleet.queue.snapshot());
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        thread::sleep(Duration::from_micros(seed >> 50));
        let place = (seed >> 33) as usize % 4;
        let alive = fleet.workers[place].try_wait().unwrap().is_none();
        if kills < KILLS && alive {
            fleet.kill_and_restart(place);
            kills += 1;
        } else if !alive && fleet.queue.trained_ranges() != [(0, BATCHES)] {
            // It saw the end of the stream before another's death brought batches back.
            fleet.bury(place);
            fleet.workers[place] = spawn(&fleet.name, place);
        }
    }
    assert_eq!(fleet.queue.trained_ranges(), [(0, BATCHES)]);
    let snapshot = Snapshot::read(&fleet.name).unwrap();
    println!("{kills} kills, {} slots reclaimed, {} locks taken over", snapshot.reclaimed, snapshot.lock.steals);
    assert_eq!(kills, KILLS, "too few batches for so many kills");
    assert!(snapshot.consistent, "{snapshot:#?}");
    assert_eq!((snapshot.slots.free, snapshot.batches.trained), (4, BATCHES));
    assert!(fleet.workers.iter_mut().all(|worker| worker.wait().unwrap().success()));
}

/// Every worker's batches but that one's.
fn batches_of_others(fleet: &Fleet, place: usize) -> u64 {
    let workers = fleet.queue.snapshot().participants;
    workers.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, worker)| worker.batches).sum()
}

/// How long until another worker than that one has settled a lease.
fn until_others_go_on(fleet: &Fleet, place: usize, since: Instant) -> Duration {
    let before = batches_of_others(fleet, place);
    wait_until("somebody goes on", || batches_of_others(fleet, place) > before);
    since.elapsed()
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The kernel has it stopped inside the lock, once for five seconds: everybody waits, and says for whom.
#[test]
fn a_stopped_lock_holder_is_waited_for_named_and_goes_on_at_once() {
    let _alone = ALONE.lock();
    let mut fleet = Fleet::start(&spec(FOR_EVER));
    let delays = [5000, 200, 200, 200, 200].map(|pause| {
        let place = catch_a_holder(&fleet).expect("workers spend a good part of their time in the lock");
        wait_until("the others want the lock", || {
            let workers = fleet.queue.snapshot().participants;
            workers.iter().filter(|worker| worker.waits_for == Some("the lock")).count() == 3
        });
        let before = fleet.queue.snapshot();
        thread::sleep(Duration::from_millis(pause));
        let after = fleet.queue.snapshot();
        assert_eq!((after.batches, after.slots), (before.batches, before.slots), "everybody waits");
        assert_eq!(after.lock, before.lock, "stopped is not dead");
        assert!(after.participants[place].stopped && after.participants[place].alive);
        assert_eq!(after.lock.held_by.as_deref(), Some(NAMES[place]));
        let running = Instant::now();
        signal(&fleet, place, Signal::SIGCONT);
        until_others_go_on(&fleet, place, running)
    });
    println!("others went on {delays:.1?} after SIGCONT");
    assert!(middle(delays.to_vec()) < Duration::from_millis(50), "{delays:?}");
    let is_alive = |worker: &mut Child| worker.try_wait().unwrap().is_none();
    assert!(fleet.workers.iter_mut().all(is_alive), "each compares what it reads with what was written");
}

/// Killed inside the lock: the others go on before anybody has taken the dead one's things back.
#[test]
fn the_lock_of_the_dead_is_taken_over_by_whoever_wants_it_next() {
    let _alone = ALONE.lock();
    let mut fleet = Fleet::start(&spec(FOR_EVER));
    let delays = [(); 5].map(|()| {
        let place = catch_a_holder(&fleet).expect("workers spend a good part of their time in the lock");
        let steals = fleet.queue.snapshot().lock.steals;
        fleet.workers[place].kill().unwrap();
        fleet.workers[place].wait().unwrap();
        let delay = until_others_go_on(&fleet, place, Instant::now());
        assert_eq!(fleet.queue.snapshot().lock.steals, steals + 1);
        fleet.bury(place);
        fleet.workers[place] = spawn(&fleet.name, place);
        wait_until("its successor works", || fleet.queue.snapshot().participants[place].phase_s > 0.0);
        delay
    });
    println!("others went on {delays:.1?} after the death");
    assert!(middle(delays.to_vec()) <= Duration::from_millis(250), "{delays:?}");
}

/// Stopped with a claimed slot, again and again: the slot stays its own (or its publication would fail, and it with
/// it), the other target's batches go on.
#[test]
fn a_stopped_slot_holder_keeps_its_slot() {
    let _alone = ALONE.lock();
    let spec = spec(FOR_EVER);
    let queue = Queue::create(&spec).unwrap();
    let fleet =
        Fleet { queue, name: spec.name(), workers: [HOLDER, 1, 2].map(|place| spawn(&spec.name(), place)).into() };
    let delays = [(); 5].map(|()| {
        wait_until("it is stopped", || fleet.queue.snapshot().participants[0].stopped);
        let trained = fleet.queue.snapshot().batches.trained;
        wait_until("the others go on", || fleet.queue.snapshot().batches.trained > trained + 100);
        assert!(matches!(fleet.queue.reclaim(Role::Target, Rank(0)), Err(ReclaimError::Alive { .. })));
        let (running, before) = (Instant::now(), fleet.queue.snapshot().participants[0].batches);
        signal(&fleet, 0, Signal::SIGCONT);
        wait_until("it publishes", || fleet.queue.snapshot().participants[0].batches > before);
        running.elapsed()
    });
    println!("it published {delays:.1?} after SIGCONT");
    assert!(middle(delays.to_vec()) < Duration::from_millis(50), "{delays:?}");
}

fn signal(fleet: &Fleet, place: usize, signal: Signal) {
    kill(Pid::from_raw(fleet.workers[place].id() as i32), signal).unwrap();
}

const NAMES: [&str; 4] = ["target 0", "target 1", "drafter 0", "drafter 1"];

/// Stops one worker after the other until one is caught inside the lock, and leaves that one stopped.
fn catch_a_holder(fleet: &Fleet) -> Option<usize> {
    (0..4000).map(|attempt| attempt % 4).find(|place| {
        signal(fleet, *place, Signal::SIGSTOP);
        let stat = format!("/proc/{}/stat", fleet.workers[*place].id());
        wait_until("it is stopped", || fs::read_to_string(&stat).unwrap().contains(") T "));
        let caught = fleet.queue.snapshot().lock.held_by.as_deref() == Some(NAMES[*place]);
        if !caught {
            signal(fleet, *place, Signal::SIGCONT);
        }
        caught
    })
}
