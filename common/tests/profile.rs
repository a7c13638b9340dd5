//! Where workers' time goes, as their places at a queue show it.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod queue_world;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::ids::{Rank, Role, Step};
use common::queue::{Mark, ParticipantView, Phase, PhaseView, Queue, Spans, Track, monotonic_ns};
use nix::sys::signal::{Signal, raise};
use queue_world::*;

/// Long enough to tell from the time that a step takes on a busy machine.
const LONG: Duration = Duration::from_millis(120);

fn worker(queue: &Queue, role: Role, rank: u32) -> ParticipantView {
    let workers = queue.snapshot().participants.into_iter();
    workers.into_iter().find(|worker| (worker.role, worker.rank) == (role, Rank(rank))).unwrap()
}

fn phase(worker: &ParticipantView, track: Track, phase: Phase) -> PhaseView {
    worker.profile.get(&track).and_then(|phases| phases.get(&phase)).cloned().unwrap_or_default()
}

fn time(worker: &ParticipantView, track: Track) -> u64 {
    worker.profile[&track].values().map(|view| view.total_ns).sum()
}

#[test]
fn waits_are_counted_apart_from_the_work_they_interrupt() {
    let queue = Queue::create(&spec(9)).unwrap();
    let (target, drafter) = (producer(&queue, 0), consumer(&queue, 0));
    drafter.phase(Phase::Optimizer);
    thread::scope(|scope| {
        scope.spawn(|| {
            target.phase(Phase::Forward);
            thread::sleep(LONG);
            publish(claim(&target), 0);
        });
        pop(&drafter).release().unwrap();
    });
    drafter.phase(Phase::Draft);
    let seen = worker(&queue, Role::Drafter, 0);
    assert!(phase(&seen, Track::Main, Phase::WaitGate).total_ns >= LONG.as_nanos() as u64 / 2, "{seen:?}");
    let work = phase(&seen, Track::Main, Phase::Optimizer);
    // What came after the wait is more of the same visit.
    assert_eq!(work.count, 1);
    assert!(work.max_ns <= work.total_ns && work.histogram.bins.iter().sum::<u64>() == 1, "{work:?}");
    assert!(phase(&worker(&queue, Role::Target, 0), Track::Main, Phase::Forward).total_ns >= LONG.as_nanos() as u64);
}

#[test]
fn the_phases_of_a_track_cover_all_of_its_time() {
    let queue = Queue::create(&spec(9)).unwrap();
    let drafter = consumer(&queue, 1);
    let (before, started) = (time(&worker(&queue, Role::Drafter, 1), Track::Main), Instant::now());
    for round in 0..50 {
        drafter.phase(Phase::ALL[round % 17]);
        let _nested = drafter.time(Phase::Snapshot);
        thread::sleep(Duration::from_millis(1));
    }
    let elapsed = started.elapsed().as_nanos() as u64;
    let counted = time(&worker(&queue, Role::Drafter, 1), Track::Main) - before;
    // The readings lie outside of what `elapsed` spans, so nothing may be missing; and nothing is counted twice.
    let between = started.elapsed().as_nanos() as u64 + 1_000_000_000;
    assert!(counted >= elapsed * 98 / 100 && counted <= between, "{counted} of {elapsed} ns");
    drop(drafter);
    let ended = time(&worker(&queue, Role::Drafter, 1), Track::Main);
    thread::sleep(Duration::from_millis(5));
    assert_eq!(time(&worker(&queue, Role::Drafter, 1), Track::Main), ended, "the dead spend no time");
}

#[test]
fn a_second_thread_has_times_of_its_own() {
    let queue = Queue::create(&spec(9)).unwrap();
    let (target, drafter) = (producer(&queue, 0), consumer(&queue, 0));
    assert!(!worker(&queue, Role::Drafter, 0).profile.contains_key(&Track::Side));
    let prefetch = drafter.side();
    thread::scope(|scope| {
        scope.spawn(|| {
            prefetch.phase(Phase::Copy);
            pop(&prefetch).release().unwrap();
        });
        drafter.phase(Phase::Await);
        thread::sleep(LONG);
        publish(claim(&target), 0);
    });
    let seen = worker(&queue, Role::Drafter, 0);
    assert!(phase(&seen, Track::Side, Phase::WaitGate).total_ns >= LONG.as_nanos() as u64 / 2, "{seen:?}");
    assert!(phase(&seen, Track::Main, Phase::Await).total_ns >= LONG.as_nanos() as u64);
    assert_eq!(phase(&seen, Track::Main, Phase::WaitGate), PhaseView::default());
}

#[test]
fn a_gpus_work_is_marked_by_the_main_thread_and_told_later_by_who_watches_it() {
    let queue = Queue::create(&spec(9)).unwrap();
    let drafter = consumer(&queue, 0);
    assert!(!worker(&queue, Role::Drafter, 0).profile.contains_key(&Track::Gpu), "no GPU, no track");
    let mut gpu = drafter.gpu_track(Track::Gpu);
    let (sender, marks) = std::sync::mpsc::channel();
    drafter.mark_phases(Box::new(move |mark| sender.send(mark).unwrap()));
    drafter.about(3);
    drafter.phase(Phase::Draft);
    drafter.side().phase(Phase::Copy);
    {
        let _nested = drafter.time(Phase::Device);
    }
    drafter.phase(Phase::Await);
    let left: Vec<Mark> = marks.try_iter().collect();
    let wanted = [Phase::Draft, Phase::Idle, Phase::Draft, Phase::Idle].map(|phase| Mark { phase, about: 3 });
    assert_eq!(left, wanted);

    let start = monotonic_ns();
    let at = |number: usize| start + 1_000_000 * number as u64;
    assert!(gpu.is_idle());
    for (number, mark) in left.iter().enumerate() {
        gpu.pass(*mark, at(number));
        assert_eq!(gpu.is_idle(), mark.phase == Phase::Idle);
    }
    let seen = worker(&queue, Role::Drafter, 0);
    let draft = phase(&seen, Track::Gpu, Phase::Draft);
    assert_eq!((draft.count, draft.total_ns), (2, 2_000_000));
    let spans = Spans::open(&queue.snapshot().name).unwrap().of((Role::Drafter, Rank(0)), Track::Gpu, 0);
    assert!(spans.iter().any(|span| (span.phase, span.about, span.to_ns) == (Phase::Draft, 3, at(1))), "{spans:?}");
    drop((drafter, gpu));
    assert!(!worker(&queue, Role::Drafter, 0).alive);
}

#[test]
fn a_place_taken_once_more_waited_for_others_meanwhile() {
    let queue = Queue::create(&spec(9)).unwrap();
    drop(consumer(&queue, 0));
    let first = phase(&worker(&queue, Role::Drafter, 0), Track::Main, Phase::Starting);
    thread::sleep(LONG);
    let drafter = consumer(&queue, 0);
    drafter.phase(Phase::Loading);
    let seen = worker(&queue, Role::Drafter, 0);
    assert_eq!(phase(&seen, Track::Main, Phase::Starting), first);
    assert!(phase(&seen, Track::Main, Phase::WaitDrafters).total_ns >= LONG.as_nanos() as u64, "{seen:?}");
}

#[test]
fn spans_say_what_was_done_when_and_for_which_batch() {
    let queue = Queue::create(&spec(9)).unwrap();
    let name = queue.snapshot().name;
    let (target, drafter) = (producer(&queue, 0), consumer(&queue, 0));
    for _ in 0..2 {
        let lease = claim(&target);
        target.phase(Phase::Data);
        target.phase(Phase::Forward);
        publish(lease, 0);
    }
    target.phase(Phase::Ready);
    drafter.about(1);
    drafter.phase(Phase::Draft);
    let lease = pop(&drafter);
    let batch = lease.batch_id();
    lease.release().unwrap();
    drafter.trained(&[batch], Step(1)).unwrap();
    drafter.phase(Phase::Ready);

    let spans = Spans::open(&name).unwrap();
    let of_target = spans.of((Role::Target, Rank(0)), Track::Main, 0);
    let did: Vec<_> = of_target.iter().map(|span| (span.phase, span.about)).collect();
    let first = [(Phase::Starting, 0), (Phase::Starting, 0), (Phase::Data, 0), (Phase::Forward, 0)];
    // The first batch's last phase goes on until the second one's first.
    let second = [(Phase::Forward, 1), (Phase::Data, 1), (Phase::Forward, 1)];
    assert_eq!(did, [&first[..], &second].concat(), "{of_target:?}");
    assert!(of_target.windows(2).all(|pair| pair[0].to_ns <= pair[1].from_ns && pair[0].number + 1 == pair[1].number));
    assert_eq!(spans.of((Role::Target, Rank(0)), Track::Main, 6).len(), 1);
    let of_drafter = spans.of((Role::Drafter, Rank(0)), Track::Main, 0);
    assert_eq!(of_drafter.last().map(|span| (span.phase, span.about)), Some((Phase::Draft, 1)));
    assert_eq!(spans.of((Role::Drafter, Rank(7)), Track::Main, 0), []);
}

const KILLED: &str = "TANDEM_TEST_KILLED";

/// Not a test: the worker that the test below starts.
#[test]
#[ignore = "run as a child by the test below"]
fn killed_at_work() {
    let Ok(name) = std::env::var(KILLED) else { return };
    let drafter = consumer(&Queue::attach(&name).unwrap(), 0);
    drafter.side().phase(Phase::Device);
    raise(Signal::SIGKILL).unwrap();
}

#[test]
fn a_successor_does_not_go_on_with_what_a_dead_ones_second_thread_did() {
    let spec = spec(9);
    let queue = Queue::create(&spec).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args(["killed_at_work", "--exact", "--ignored", "--quiet"]).env(KILLED, spec.name());
    let ended = child.stdout(Stdio::null()).status().unwrap();
    assert_eq!(ended.signal(), Some(Signal::SIGKILL as i32), "{ended}");
    let _successor = consumer(&queue, 0);
    let device = || phase(&worker(&queue, Role::Drafter, 0), Track::Side, Phase::Device);
    let before = device();
    thread::sleep(Duration::from_millis(5));
    assert_eq!(device(), before);
}
