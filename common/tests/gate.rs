//! The gate between real threads: two targets and two drafters, every threshold, level and latch, while targets work and
//! when they are done. The event ring has each step in the order of the lock, so replaying it judges every pop by what
//! was READY at that moment, inside the lock.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod queue_world;

use std::thread;

use common::config::GateMode;
use common::ids::Step;
use common::queue::{Details, Queue, QueueSpec};
use queue_world::*;

const BATCHES: u64 = 40;

/// The rule, written a second time: from a queue's events alone.
struct Judge {
    spec: QueueSpec,
    pending: u64,
    claimed: u64,
    ready: u64,
    latched: bool,
}

impl Judge {
    fn new(spec: &QueueSpec) -> Judge {
        Judge { spec: spec.clone(), pending: spec.total_batches, claimed: 0, ready: 0, latched: false }
    }

    fn may_pop(&self) -> bool {
        let is_enough = self.ready >= u64::from(self.spec.min_ready);
        self.ready > 0 && (is_enough || self.latched || self.pending + self.claimed == 0)
    }

    /// Takes note of a step; false for a pop that should not have been.
    fn note(&mut self, what: &str) -> bool {
        let is_fine = what != "pop" || self.may_pop();
        match what {
            "claim" => (self.pending, self.claimed) = (self.pending - 1, self.claimed + 1),
            "publish" => (self.claimed, self.ready) = (self.claimed - 1, self.ready + 1),
            "pop" => self.ready -= 1,
            "release" | "trained" => {}
            other => panic!("nobody does {other} here"),
        }
        if self.spec.gate == GateMode::Latch && (self.ready == 0 || self.ready >= u64::from(self.spec.min_ready)) {
            self.latched = self.ready > 0;
        }
        is_fine
    }
}

fn train_all(queue: &Queue, rank: u32) {
    let consumer = consumer(queue, rank);
    while let Some(lease) = consumer.pop(&patience(20_000)).unwrap() {
        let batch = lease.batch_id();
        lease.release().unwrap();
        consumer.trained(&[batch], Step(1)).unwrap();
    }
}

/// Runs a queue to its end. The last batch stays claimed until what may be popped without it is gone.
fn run(spec: &QueueSpec) {
    let queue = Queue::create(spec).unwrap();
    let attached = || Queue::attach(&spec.name()).unwrap();
    thread::scope(|scope| {
        for rank in 0..2 {
            let queue = attached();
            scope.spawn(move || train_all(&queue, rank));
        }
        let (slow, fast) = (producer(&queue, 0), producer(&queue, 1));
        thread::scope(|targets| {
            targets.spawn(|| (1..BATCHES / 2).for_each(|_| _ = publish(claim(&fast), 0)));
            (0..BATCHES / 2).for_each(|_| _ = publish(claim(&slow), 1));
        });
        let last = claim(&slow);
        wait_until("the gate is closed", || !queue.snapshot().gate.open);
        if spec.gate == GateMode::Level {
            assert_eq!(queue.snapshot().slots.ready, spec.min_ready - 1, "all that it lets through went through");
        }
        publish(last, 0);
    });
    let (mut judge, events) = (Judge::new(spec), Details::read(&spec.name()).unwrap().events);
    assert_eq!(events[0].number, 0, "no event is missing");
    let violations = events.iter().filter(|event| !judge.note(event.what)).count();
    let pops = events.iter().filter(|event| event.what == "pop").count();
    assert_eq!((violations, pops as u64, judge.ready), (0, BATCHES, 0), "{spec:?}");
}

#[test]
fn no_pop_passes_a_closed_gate() {
    for min_ready in 1..=4 {
        for gate in [GateMode::Level, GateMode::Latch] {
            run(&QueueSpec { min_ready, gate, ..spec(BATCHES) });
        }
    }
}

/// The judge itself is worth something.
#[test]
fn a_pop_below_the_threshold_is_seen() {
    let mut judge = Judge::new(&QueueSpec { min_ready: 2, ..spec(3) });
    let fine = ["claim", "publish", "pop"].map(|what| judge.note(what));
    assert_eq!(fine, [true, true, false]);
}
