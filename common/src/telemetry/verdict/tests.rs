//! Synthetic profiles: each trouble alone, and what must not be taken for it.

use super::*;
use crate::ids::Rank;
use crate::queue::{BatchCounts, SlotCounts, Track};
use crate::telemetry::sample::{GateSample, Sample, Spent, WorkerSample};

type Parts<'a> = &'a [(Phase, u64)];

fn worker(role: Role, rank: u32, parts: Parts<'_>) -> WorkerSample {
    let spent = |&(phase, percent): &(Phase, u64)| (phase, Spent { count: 1, ns: percent * 10_000_000 });
    let main = parts.iter().map(spent).collect();
    WorkerSample {
        role,
        rank: Rank(rank),
        alive: true,
        restarts: 0,
        cpu_ns: 0,
        runnable_ns: 0,
        stages: [(Track::Main, main)].into(),
    }
}

/// A second of one target and one drafter, their time in percent.
fn sample(target: Parts<'_>, drafter: Parts<'_>) -> Sample {
    Sample {
        at_ns: 1,
        wall_s: 1.0,
        elapsed_s: 1.0,
        step: 1,
        loss: Some(1.0),
        slots: SlotCounts { free: 5, writing: 1, ready: 2, reading: 0 },
        gate: GateSample { open: true, ready: 2, min_ready: 2 },
        buckets: Vec::new(),
        batches: BatchCounts::default(),
        workers: vec![worker(Role::Target, 0, target), worker(Role::Drafter, 0, drafter)],
    }
}

fn verdict(sample: &Sample) -> Verdict {
    let mut period = Period::default();
    period.add(sample);
    Verdict::on(&period).unwrap()
}

const BUSY_TARGET: Parts<'_> = &[(Phase::Forward, 95), (Phase::Data, 5)];
const BUSY_DRAFTER: Parts<'_> = &[(Phase::Draft, 40), (Phase::Backward, 60)];
const IDLE_TARGET: Parts<'_> = &[(Phase::WaitSlot, 50), (Phase::Forward, 45), (Phase::Data, 5)];
const IDLE_DRAFTER: Parts<'_> = &[(Phase::WaitGate, 60), (Phase::Backward, 40)];

#[test]
fn slow_drafters_are_named() {
    let found = verdict(&sample(IDLE_TARGET, BUSY_DRAFTER));
    assert_eq!(found.limit, Limit::Drafters);
    let wanted = ["the drafters limit the run", "50 %", "backward took 60 %", "more drafters"];
    wanted.iter().for_each(|words| assert!(found.sentence.contains(words), "{}", found.sentence));
    assert_eq!(found.figures["targets_wait"], 0.5);
}

#[test]
fn slow_targets_are_named_also_through_a_thread_that_fetches() {
    assert_eq!(verdict(&sample(BUSY_TARGET, IDLE_DRAFTER)).limit, Limit::Targets);
    assert_eq!(verdict(&sample(BUSY_TARGET, &[(Phase::Await, 60), (Phase::Draft, 40)])).limit, Limit::Targets);
}

#[test]
fn slow_data_is_named_if_the_targets_are_waited_for() {
    let slow_data: Parts<'_> = &[(Phase::Data, 70), (Phase::Forward, 30)];
    let found = verdict(&sample(slow_data, IDLE_DRAFTER));
    assert_eq!(found.limit, Limit::Data);
    assert!(found.sentence.contains("70 % of the targets' work"), "{}", found.sentence);
    // Nobody waits for these data.
    let unhurried: Parts<'_> = &[(Phase::Data, 40), (Phase::Forward, 10), (Phase::WaitSlot, 50)];
    assert_eq!(verdict(&sample(unhurried, BUSY_DRAFTER)).limit, Limit::Drafters);
}

#[test]
fn a_tiny_queue_and_a_high_gate_are_told_apart() {
    let mut both = sample(IDLE_TARGET, IDLE_DRAFTER);
    assert_eq!(verdict(&both).limit, Limit::Queue);
    both.slots = SlotCounts { free: 0, writing: 0, ready: 1, reading: 0 };
    both.gate.min_ready = 1;
    let tiny = verdict(&both);
    assert_eq!(tiny.limit, Limit::Queue);
    assert!(tiny.sentence.contains("the queue of 1 slots"), "{}", tiny.sentence);
    both.slots.ready = 8;
    both.gate.min_ready = 8;
    let high = verdict(&both);
    assert_eq!(high.limit, Limit::MinReady);
    assert!(high.sentence.contains("wants 8 of 8"), "{}", high.sentence);
}

#[test]
fn a_side_that_is_waited_for_and_has_no_core_is_the_hosts_fault() {
    let mut starved = sample(IDLE_TARGET, BUSY_DRAFTER);
    starved.workers[0].runnable_ns = 900_000_000;
    assert_eq!(verdict(&starved).limit, Limit::Drafters, "nobody waits for the target");
    starved.workers[1].runnable_ns = 550_000_000;
    let found = verdict(&starved);
    assert_eq!(found.limit, Limit::Host);
    assert!(found.sentence.contains("drafters 55 %"), "{}", found.sentence);
}

/// With GPUs of which each was busy so many percent of the time.
fn with_gpus(mut sample: Sample, busy: [u64; 2]) -> Sample {
    for (worker, busy) in sample.workers.iter_mut().zip(busy) {
        let work = if worker.role == Role::Target { Phase::Forward } else { Phase::Backward };
        let spent = |percent: u64| Spent { count: 1, ns: percent * 10_000_000 };
        let gpu = [(work, spent(busy)), (Phase::Idle, spent(100 - busy))].into();
        worker.stages.insert(Track::Gpu, gpu);
    }
    sample
}

#[test]
fn a_gpu_that_waits_for_its_host_is_the_hosts_fault() {
    let found = verdict(&with_gpus(sample(IDLE_TARGET, BUSY_DRAFTER), [50, 60]));
    assert_eq!(found.limit, Limit::Host);
    let wanted =
        ["the drafters' GPUs wait for it 40 % of their time", "busy 60 % (backward took 60 %", "data.batch_tokens"];
    wanted.iter().for_each(|words| assert!(found.sentence.contains(words), "{}", found.sentence));
    assert_eq!((found.figures["drafters_gpu_busy"], found.figures["targets_gpu_busy"]), (0.6, 0.5));
    // Busy GPUs; a side that nobody waits for; a GPU that has nothing to do because its host waits for batches.
    assert_eq!(verdict(&with_gpus(sample(IDLE_TARGET, BUSY_DRAFTER), [10, 95])).limit, Limit::Drafters);
    assert_eq!(verdict(&with_gpus(sample(BUSY_TARGET, IDLE_DRAFTER), [95, 40])).limit, Limit::Targets);
    // What is known better is said: the host reads rows, writes checkpoints, waits for other drafters.
    let slow_data: Parts<'_> = &[(Phase::Data, 70), (Phase::Forward, 30)];
    assert_eq!(verdict(&with_gpus(sample(slow_data, IDLE_DRAFTER), [30, 40])).limit, Limit::Data);
    let saving: Parts<'_> = &[(Phase::Checkpoint, 30), (Phase::AllReduce, 20), (Phase::Backward, 50)];
    assert_eq!(verdict(&with_gpus(sample(IDLE_TARGET, saving), [50, 50])).limit, Limit::Drafters);
    assert!(!verdict(&sample(IDLE_TARGET, BUSY_DRAFTER)).figures.contains_key("drafters_gpu_busy"));
}

#[test]
fn start_and_end_do_not_count_and_without_batches_there_is_no_verdict() {
    let loading: Parts<'_> = &[(Phase::Loading, 90), (Phase::Forward, 10)];
    let early = sample(loading, BUSY_DRAFTER);
    assert!(!early.is_steady() && sample(BUSY_TARGET, BUSY_DRAFTER).is_steady());
    assert_eq!(verdict(&early).limit, Limit::Balanced);
    let mut period = Period::default();
    period.add(&sample(&[(Phase::Loading, 100)], &[(Phase::Loading, 100)]));
    assert_eq!(Verdict::on(&period), None);
}

#[test]
fn a_period_is_the_sum_of_its_samples() {
    let mut period = Period::default();
    let (mut first, second) = (sample(IDLE_TARGET, BUSY_DRAFTER), sample(BUSY_TARGET, BUSY_DRAFTER));
    first.slots.ready = 6;
    first.elapsed_s = 3.0;
    [&first, &second].into_iter().for_each(|sample| period.add(sample));
    assert_eq!((period.seconds, period.ready), (4.0, 5.0));
    assert_eq!(period.share(Role::Target, &[Phase::WaitSlot]), 0.25);
    assert_eq!(period.busiest(Role::Target, Track::Main), Some((Phase::Forward, 0.70)));
}
