//! The queue's promises, through its face, in one process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod queue_world;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use common::config::PopPolicy;
use common::ids::{BatchId, Rank, Role, Step};
use common::queue::*;
use common::shm;
use common::wait::WaitError;
use queue_world::*;

#[test]
fn batches_arrive_whole_and_both_sides_see_the_end() {
    let queue = Queue::create(&spec(40)).unwrap();
    let name = spec_name(&queue);
    thread::scope(|scope| {
        for rank in 0..2 {
            let other = Queue::attach(&name).unwrap();
            scope.spawn(move || {
                let producer = producer(&other, rank);
                while let Some(lease) = producer.claim(&patience(20_000)).unwrap() {
                    let bucket = lease.batch_id().0 as u32 % 2;
                    publish(lease, bucket);
                }
            });
            let other = Queue::attach(&name).unwrap();
            scope.spawn(move || {
                let consumer = consumer(&other, rank);
                while let Some(lease) = consumer.pop(&patience(20_000)).unwrap() {
                    let batch = lease.batch_id();
                    assert_eq!(lease.rows().unwrap(), rows(batch));
                    assert_eq!(lease.bucket(), batch.0 as u32 % 2);
                    lease.release().unwrap();
                    consumer.trained(&[batch], Step(1)).unwrap();
                }
            });
        }
    });
    assert_eq!(queue.trained_ranges(), [(0, 40)]);
    let snapshot = Snapshot::read(&name).unwrap();
    assert_eq!((snapshot.slots.free, snapshot.batches.trained), (4, 40));
    let moved: Vec<_> = snapshot.buckets.iter().map(|b| (b.produced, b.consumed, b.redelivered)).collect();
    assert_eq!(moved, [(20, 20, 0), (20, 20, 0)]);
    assert!(snapshot.buckets.iter().all(|b| (1..=4).contains(&b.high_water)));
}

fn spec_name(queue: &Queue) -> String {
    queue.snapshot().name
}

#[test]
fn leases_of_a_slot_whose_memory_went_say_so_and_keep_the_making_they_were_for() {
    let queue = Queue::create(&spec(4)).unwrap();
    let (producer, consumer) = (producer(&queue, 0), consumer(&queue, 0));
    publish(claim(&producer), 0);
    let (reading, writing) = (pop(&consumer), claim(&producer));
    assert!(!reading.is_lost() && !writing.is_lost());
    assert_eq!(queue.forfeit_slots(0..4).unwrap(), 1, "the one being read");
    queue.restore_slots(0..4, 1).unwrap();
    let anew = claim(&producer);
    assert_eq!((reading.arena_version(), writing.arena_version(), anew.arena_version()), (0, 0, 1));
    assert!(reading.is_lost() && writing.is_lost() && !anew.is_lost());
    assert!(matches!(reading.release(), Err(LeaseError::Lost(_))));
}

#[test]
fn the_gate_is_closed_below_min_ready_and_says_why() {
    let queue = Queue::create(&QueueSpec { min_ready: 2, ..spec(3) }).unwrap();
    let (producer, consumer) = (producer(&queue, 0), consumer(&queue, 0));
    let reason = queue.snapshot().gate.reason;
    let (who, since) = reason.rsplit_once(" (").unwrap();
    assert_eq!(who, "closed: 0 of 2 batches ready; 0 being written, 3 pending; target 0: starting");
    assert!(since.strip_suffix(" s)").unwrap().parse::<f64>().unwrap() < 10.0, "{reason}");
    publish(claim(&producer), 0);
    let error = consumer.pop(&patience(30)).map(|_| ()).unwrap_err();
    assert!(matches!(&error, WaitError::Timeout { what, .. } if what.starts_with("the gate (1 of 2")), "{error}");
    publish(claim(&producer), 0);
    let kept = pop(&consumer);
    assert!(consumer.pop(&patience(30)).is_err(), "only one is left and another will come");
    let last = claim(&producer);
    assert!(consumer.pop(&patience(30)).is_err(), "it is still being written");
    publish(last, 0);
    kept.release().unwrap();
    for _ in 0..2 {
        pop(&consumer).release().unwrap();
    }
    assert!(consumer.pop(&patience(1000)).unwrap().is_none());
}

#[test]
fn an_open_gate_wakes_the_waiter_at_once() {
    let queue = Queue::create(&spec(1)).unwrap();
    let (producer, consumer) = (producer(&queue, 0), consumer(&queue, 0));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| (pop(&consumer).batch_id(), Instant::now()));
        while queue.snapshot().participants[2].waits_for.is_none() {
            thread::yield_now();
        }
        let lease = claim(&producer);
        let before = Instant::now();
        publish(lease, 0);
        let (batch, woken) = waiter.join().unwrap();
        assert_eq!(batch, BatchId(0));
        assert!(woken - before < Duration::from_secs(2));
        assert_eq!(queue.snapshot().participants[2].waits_for, None, "its wait is over");
    });
}

#[test]
fn dropped_leases_go_back() {
    let queue = Queue::create(&spec(2)).unwrap();
    let (producer, consumer) = (producer(&queue, 0), consumer(&queue, 0));
    drop(claim(&producer));
    assert_eq!(queue.snapshot().batches.pending, 2);
    let bad = claim(&producer).publish(9, &rows(BatchId(0))).unwrap_err();
    assert!(matches!(bad, LeaseError::Bucket { found: 9, buckets: 2 }));
    let long = Rows { token_ids: vec![0; 65], ..rows(BatchId(0)) };
    assert!(matches!(claim(&producer).publish(0, &long), Err(LeaseError::Rows(_))));
    assert_eq!(queue.snapshot().slots.free, 4, "a refused publication frees the slot");
    publish(claim(&producer), 1);
    drop(pop(&consumer));
    let snapshot = queue.snapshot();
    assert_eq!((snapshot.slots.ready, snapshot.buckets[1].redelivered), (1, 1));
    assert_eq!(pop(&consumer).batch_id(), BatchId(0));
}

#[test]
fn strict_gives_exactly_the_batch_asked_for() {
    let queue = Queue::create(&QueueSpec { policy: PopPolicy::Strict, ..spec(3) }).unwrap();
    let (producer, consumer) = (producer(&queue, 0), consumer(&queue, 1));
    for _ in 0..3 {
        publish(claim(&producer), 0);
    }
    let two = consumer.pop_batch(BatchId(2), &patience(1000)).unwrap().unwrap();
    assert_eq!(two.batch_id(), BatchId(2));
    assert!(consumer.pop_batch(BatchId(2), &patience(30)).is_err(), "it may come back");
    two.release().unwrap();
    consumer.trained(&[BatchId(2)], Step(1)).unwrap();
    assert!(consumer.pop_batch(BatchId(2), &patience(1000)).unwrap().is_none(), "trained");
    assert!(consumer.pop_batch(BatchId(3), &patience(1000)).unwrap().is_none(), "beyond the plan");
    assert!(matches!(consumer.trained(&[BatchId(0)], Step(1)), Err(LeaseError::NotHeld(_))));
}

#[test]
fn a_place_has_one_process_and_only_the_dead_are_reclaimed() {
    let queue = Queue::create(&spec(2)).unwrap();
    let first = producer(&queue, 1);
    assert!(matches!(queue.producer(Rank(1)), Err(AttachError::Taken { .. })));
    assert!(matches!(queue.producer(Rank(2)), Err(AttachError::NoSuchRank { count: 2, .. })));
    let lease = claim(&first);
    assert!(matches!(queue.reclaim(Role::Target, Rank(1)), Err(ReclaimError::Alive { .. })));
    drop(first);
    assert!(matches!(queue.producer(Rank(1)), Err(AttachError::Taken { .. })), "its lease is still out");
    drop(lease);
    let again = producer(&queue, 1);
    assert_eq!(queue.snapshot().participants[1].incarnation, 2);
    assert_eq!(claim(&again).batch_id(), BatchId(0));
}

#[test]
fn abort_and_shutdown_end_every_wait() {
    let queue = Queue::create(&spec(1)).unwrap();
    let (producer, consumer) = (producer(&queue, 0), consumer(&queue, 0));
    let asked = patience(60_000);
    asked.shutdown.request();
    assert_eq!(consumer.pop(&asked).map(|_| ()), Err(WaitError::Shutdown));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| consumer.pop(&patience(60_000)).map(|_| ()));
        queue.abort();
        assert_eq!(waiter.join().unwrap(), Err(WaitError::Aborted));
    });
    assert_eq!(producer.claim(&patience(60_000)).map(|_| ()), Err(WaitError::Aborted));
    assert!(queue.snapshot().aborted);
}

#[test]
fn a_rewind_brings_trained_batches_back() {
    let queue = Queue::create(&spec(4)).unwrap();
    queue.rewind(&[(1, 2)]).unwrap();
    let (producer, consumer) = (producer(&queue, 0), consumer(&queue, 0));
    let claimed: Vec<u64> = (0..3).map(|_| publish(claim(&producer), 0).0).collect();
    assert_eq!(claimed, [0, 2, 3], "1 was trained before this run");
    let lease = pop(&consumer);
    let batch = lease.batch_id();
    lease.release().unwrap();
    consumer.trained(&[batch], Step(5)).unwrap();
    assert_eq!(queue.snapshot().batches.trained, 2);
    queue.rewind(&[(1, 2)]).unwrap();
    assert_eq!(queue.trained_ranges(), [(1, 2)]);
    assert_eq!(claim(&producer).batch_id(), batch);
}

#[test]
fn the_inspector_changes_no_byte_and_needs_no_living_process() {
    let queue = Queue::create(&spec(3)).unwrap();
    let name = spec_name(&queue);
    let producer = producer(&queue, 0);
    publish(claim(&producer), 0);
    producer.gauge(Gauge::Tokens, 12.5);
    producer.phase(Phase::Forward);
    drop(producer);
    let path = format!("/dev/shm/{name}");
    let before = fs::read(&path).unwrap();
    let snapshot = Snapshot::read(&name).unwrap();
    assert!(fs::read(&path).unwrap() == before, "the inspector wrote");
    assert!(snapshot.consistent && snapshot.launcher_alive);
    let target = &snapshot.participants[0];
    assert_eq!((target.alive, target.phase, target.gauges[&Gauge::Tokens]), (false, Phase::Forward, 12.5));
    let json = serde_json::to_string(&snapshot).unwrap();
    assert!(json.contains(r#""phase":"forward""#) && json.contains(r#""tokens":12.5"#), "{json}");
    // A copy of the file stands for a run whose processes are all dead.
    let copy = forge(&name, &format!("{}-copy", snapshot.run_id));
    let dead = Snapshot::read(&copy).unwrap();
    assert_eq!((dead.launcher_alive, dead.slots), (false, snapshot.slots));
    assert_eq!(shm::sweep_stale(&name).unwrap(), [copy], "the living one stays");
    drop(queue);
    assert!(matches!(Snapshot::read(&name), Err(HeaderError::Shm(shm::ShmError::Missing { .. }))));
}

#[test]
fn impossible_wishes_are_refused() {
    let refused = |spec: QueueSpec| Queue::create(&spec).map(|_| ()).unwrap_err();
    let gate = refused(QueueSpec { min_ready: 5, ..spec(1) });
    assert!(matches!(gate, CreateError::Spec(SpecError::MinReady { min_ready: 5, capacity: 4 })), "{gate}");
    assert!(matches!(refused(spec(0)), CreateError::Spec(SpecError::Zero("the number of batches"))));
    let id = refused(QueueSpec { run_id: "a/b".into(), ..spec(1) });
    assert!(matches!(id, CreateError::Spec(SpecError::RunId(_))));
    let buckets = refused(QueueSpec { bucket_bounds: vec![64, 16], ..spec(1) });
    assert!(matches!(buckets, CreateError::Spec(SpecError::Buckets(_))));
    let huge = refused(QueueSpec { total_batches: u64::MAX / 4, ..spec(1) });
    assert!(matches!(huge, CreateError::Spec(SpecError::TooLarge { .. })), "{huge}");
}

/// A sleeper that nobody wakes looks again after 100 ms: so a batch that comes 30 ms into its sleep would wait for 70.
#[test]
fn a_sleeper_is_woken_by_what_it_waits_for() {
    let queue = Queue::create(&spec(9)).unwrap();
    let (producer, consumer) = (producer(&queue, 0), consumer(&queue, 0));
    let delays = (0..9).map(|_| {
        let lease = claim(&producer);
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let lease = pop(&consumer);
                (Instant::now(), lease.release().unwrap()).0
            });
            thread::sleep(Duration::from_millis(30));
            let published = Instant::now();
            publish(lease, 0);
            sleeper.join().unwrap().saturating_duration_since(published)
        })
    });
    // The least of nine: on a busy machine a thread that was woken may still wait for a core.
    let least = delays.min().unwrap();
    assert!(least < Duration::from_millis(40), "woken after {least:?} at the earliest");
}
