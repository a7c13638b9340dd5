//! Real processes: workers are killed at random moments, and every batch is still trained, whole, and the queue clean.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and shows its figures")]

mod queue_world;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::ids::{Rank, Role, Step};
use common::queue::{Queue, QueueOwner, QueueSpec, Snapshot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use queue_world::*;

const NAME: &str = "TANDEM_TEST_QUEUE";
const PLACE: &str = "TANDEM_TEST_PLACE";
const BATCHES: u64 = 40_000;
const KILLS: u32 = 200;

/// Not a test: the worker that the tests below start. Its place is a number, targets 0 and 1, drafters 2 and 3.
#[test]
#[ignore = "run as a child by the other tests"]
fn worker() {
    let (Ok(name), Ok(place)) = (std::env::var(NAME), std::env::var(PLACE)) else { return };
    let queue = Queue::attach(&name).unwrap();
    match place.parse::<u32>().unwrap() {
        place @ 0..2 => produce(&queue, place),
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

#[test]
fn a_stopped_holder_is_waited_for_and_a_dead_one_is_not() {
    let mut fleet = Fleet::start(&spec(1 << 20));
    let place = catch_a_holder(&fleet).expect("workers spend a good part of their time in the lock");
    thread::sleep(Duration::from_millis(200));
    let (before, steals) = (fleet.queue.snapshot().batches, fleet.queue.snapshot().lock.steals);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(fleet.queue.snapshot().batches, before, "everybody waits");
    assert_eq!(fleet.queue.snapshot().lock.steals, steals, "stopped is not dead");
    fleet.workers[place].kill().unwrap();
    fleet.bury(place);
    let progress = fleet.queue.snapshot().batches.trained;
    let deadline = Instant::now() + Duration::from_secs(10);
    while fleet.queue.snapshot().batches.trained == progress {
        assert!(Instant::now() < deadline, "{:#?}", fleet.queue.snapshot());
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(fleet.queue.snapshot().lock.steals, steals + 1);
}

/// Stops one worker after the other until one is caught inside the lock, and leaves that one stopped.
fn catch_a_holder(fleet: &Fleet) -> Option<usize> {
    let names = ["target 0", "target 1", "drafter 0", "drafter 1"];
    (0..4000).map(|attempt| attempt % 4).find(|place| {
        let pid = fleet.workers[*place].id();
        let signal = |signal| kill(Pid::from_raw(pid as i32), signal).unwrap();
        signal(Signal::SIGSTOP);
        let stopped = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
        while !stopped() {
            thread::yield_now();
        }
        let caught = fleet.queue.snapshot().lock.held_by.as_deref() == Some(names[*place]);
        if !caught {
            signal(Signal::SIGCONT);
        }
        caught
    })
}
