//! The queue's rules, each as a person would ask for it: gate, groups, shares, age, end of stream.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod queue_world;

use std::thread;
use std::time::Duration;

use common::config::GateMode;
use common::ids::{BatchId, Rank, Role, Step};
use common::queue::*;
use queue_world::*;

fn train(consumer: &Consumer, lease: ReadLease) -> BatchId {
    let batch = lease.batch_id();
    lease.release().unwrap();
    consumer.trained(&[batch], Step(1)).unwrap();
    batch
}

/// For every threshold and both modes: pops succeed exactly when the rule says so.
#[test]
fn the_gate_is_exact_for_every_threshold_and_mode() {
    for (min_ready, gate) in (1..=4).flat_map(|ready| [(ready, GateMode::Level), (ready, GateMode::Latch)]) {
        let queue = Queue::create(&QueueSpec { min_ready, gate, ..spec(40) }).unwrap();
        let (producer, consumer) = (producer(&queue, 0), consumer(&queue, 0));
        let (mut ready, mut is_open, mut random) = (0u32, false, 0x9E37_79B9u32);
        for _ in 0..60 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if random >> 31 == 0 && ready < 4 && queue.snapshot().batches.pending > 1 {
                publish(claim(&producer), random >> 30 & 1);
                ready += 1;
                is_open |= ready >= min_ready;
                continue;
            }
            let allowed = ready >= min_ready || (gate == GateMode::Latch && is_open && ready > 0);
            let popped = consumer.pop(&patience(0)).ok().flatten();
            assert_eq!(popped.is_some(), allowed, "{gate:?} {min_ready}: {ready} ready");
            ready -= popped.map_or(0, |lease| {
                train(&consumer, lease);
                1
            });
            is_open &= ready > 0;
        }
    }
}

#[test]
fn a_group_is_popped_whole_or_not_at_all() {
    let queue = Queue::create(&spec(5)).unwrap();
    let (producer, consumer) = (producer(&queue, 0), consumer(&queue, 0));
    assert!(matches!(consumer.pop_group(5, &patience(0)), Err(LeaseError::Group { asked: 5, capacity: 4 })));
    assert!(matches!(consumer.pop_group(0, &patience(0)), Err(LeaseError::Group { .. })));
    for _ in 0..2 {
        publish(claim(&producer), 0);
    }
    let error = consumer.pop_group(3, &patience(20)).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("3 batches at once (2 can be had"), "{error}");
    assert_eq!(queue.snapshot().slots.reading, 0, "nothing is held while waiting");
    publish(claim(&producer), 0);
    let group = consumer.pop_group(3, &patience(1000)).unwrap();
    assert_eq!(group.len(), 3);
    for lease in group {
        train(&consumer, lease);
    }
    for _ in 0..2 {
        publish(claim(&producer), 0);
    }
    let rest = consumer.pop_group(3, &patience(1000)).unwrap();
    assert_eq!(rest.len(), 2, "the last ones, for no more will come");
    for lease in rest {
        train(&consumer, lease);
    }
    assert!(consumer.pop_group(3, &patience(1000)).unwrap().is_empty(), "the end");
}

/// One target has every slot when another comes to want one. What becomes free is the other's while the first fills its
/// share or more, capacity / targets rounded up; only when nobody waits may it go beyond.
#[test]
fn a_fast_target_gets_no_more_than_its_share_while_another_waits() {
    const SHARE: usize = 3;
    let queue = Queue::create(&QueueSpec { capacity: 5, ..spec(100) }).unwrap();
    let (greedy, modest, consumer) = (producer(&queue, 0), producer(&queue, 1), consumer(&queue, 0));
    let (mut mine, mut others): (Vec<WriteLease>, Vec<WriteLease>) = ((0..5).map(|_| claim(&greedy)).collect(), vec![]);
    for round in 0..22 {
        thread::scope(|scope| {
            let waiter = scope.spawn(|| claim(&modest));
            wait_until("the other waits", || queue.snapshot().participants[1].waits_for == Some("a free slot"));
            publish(if mine.len() > SHARE { mine.remove(0) } else { others.remove(0) }, 0);
            train(&consumer, pop(&consumer));
            assert!(greedy.claim(&patience(0)).is_err(), "round {round}: the freed slot is the waiting target's");
            others.push(waiter.join().unwrap());
        });
        assert_eq!((mine.len(), others.len()), (if round == 0 { 4 } else { SHARE }, if round == 0 { 1 } else { 2 }));
    }
    publish(others.remove(0), 0);
    train(&consumer, pop(&consumer));
    mine.push(claim(&greedy));
    assert_eq!((mine.len(), others.len()), (4, 1), "nobody waits");
}

#[test]
fn one_long_row_among_ninety_nine_short_ones_is_trained_once() {
    let queue = Queue::create(&QueueSpec { max_age: Duration::from_millis(20), ..spec(100) }).unwrap();
    let (producer, consumer) = (producer(&queue, 0), consumer(&queue, 0));
    let (mut long, mut trained) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(lease) = producer.claim(&patience(20_000)).unwrap() {
                let bucket = u32::from(lease.batch_id().0 == 3);
                publish(lease, bucket);
            }
        });
        while let Some(lease) = consumer.pop(&patience(20_000)).unwrap() {
            long += u32::from(lease.bucket() == 1);
            thread::sleep(Duration::from_millis(1));
            train(&consumer, lease);
            trained += 1;
        }
    });
    assert_eq!((long, trained), (1, 100));
    assert_eq!(queue.trained_ranges(), [(0, 100)]);
}

/// The last target dies before its publication or after it, a drafter with a batch in hand: nobody hears "the end" early.
#[test]
fn the_end_of_the_stream_is_never_early() {
    for round in 0..1000 {
        let queue = Queue::create(&spec(2)).unwrap();
        let (target, drafter) = (producer(&queue, 0), consumer(&queue, 0));
        publish(claim(&target), 0);
        let lease = claim(&target);
        if round % 2 == 0 {
            publish(lease, 0);
        } else {
            drop(lease);
        }
        drop(target);
        queue.reclaim(Role::Target, Rank(0)).unwrap();
        let first = pop(&drafter);
        drop(first);
        drop(drafter);
        queue.reclaim(Role::Drafter, Rank(0)).unwrap();
        let (target, drafter) = (producer(&queue, 1), consumer(&queue, 1));
        if round % 2 == 1 {
            publish(claim(&target), 0);
        }
        let mut returns = 0;
        for _ in 0..2 {
            let lease = pop(&drafter);
            returns += u32::from(lease.returns());
            train(&drafter, lease);
        }
        assert_eq!(returns, 1, "the batch that came back says so");
        assert!(drafter.pop(&patience(1000)).unwrap().is_none());
        assert!(target.claim(&patience(1000)).unwrap().is_none());
    }
}

/// What `tandem-queue check` finds on a damaged segment, and that it finds nothing on a good one.
#[test]
fn the_audit_sees_a_batch_in_two_places() {
    let queue = Queue::create(&spec(4)).unwrap();
    let name = queue.snapshot().name;
    let target = producer(&queue, 0);
    publish(claim(&target), 0);
    let path = format!("/dev/shm/{name}");
    let before = std::fs::read(&path).unwrap();
    let details = Details::read(&name).unwrap();
    assert!(std::fs::read(&path).unwrap() == before, "looking changes nothing");
    assert!(details.check.settled && details.check.problems.is_empty(), "{:?}", details.check);
    assert_eq!(details.events.iter().map(|event| event.what).collect::<Vec<_>>(), ["claim", "publish"]);
    assert_eq!(details.slots[0].state, "ready");
    let at = (0..before.len() - 8).step_by(8).find(|at| before[*at..at + 8] == (2u64 << 60).to_le_bytes());
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &(1u64 << 60 | 1 << 48).to_le_bytes(), at.unwrap() as u64).unwrap();
    assert!(Details::read(&name).unwrap().check.is_broken());
}
