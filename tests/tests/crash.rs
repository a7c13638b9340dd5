//! The kill matrix: kill -9 of a worker in every state of its life, stopped there first so that the state is certain. The
//! history of the final weights stays exact: under `strict` they equal those of an undisturbed run bit for bit.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::ids::Role;
use common::manifest::newest_checkpoint;
use common::queue::{ParticipantView, Phase, Track};
use nix::sys::signal::Signal;
use tests::Run;
use tests::live::{Live, is_running};

const TARGET: (Role, u32) = (Role::Target, 0);
const DRAFTER: (Role, u32) = (Role::Drafter, 0);

/// 30 small steps with checkpoints and snapshots in between.
const SHORT: [&str; 10] = [
    "training.max_steps=30",
    "data.batch_tokens=512",
    "training.num_anchors=8",
    "training.batches_per_step=2",
    "training.save_interval=7",
    "training.snapshot_interval=2",
    "queue.policy=strict",
    "queue.capacity=4",
    "run.startup_retries=3",
    "run.max_restarts=50",
];
const BATCHES: u64 = 60;

fn start(run: &Run, pairs: u32) -> Live {
    let mut command = run.training(&SHORT);
    command.args(["--nproc-per-node", &pairs.to_string()]);
    Live::start(run, command)
}

/// The bytes of the last checkpoint's weights, masters and moments.
fn state(run: &Run) -> [Vec<u8>; 2] {
    let (folder, manifest) = newest_checkpoint(&run.dir()).unwrap().expect("the run saved one");
    assert_eq!((manifest.step, manifest.trained), (30, vec![(0, BATCHES)]), "every batch of the plan, once");
    ["model.safetensors", "state.safetensors"].map(|name| std::fs::read(folder.join(name)).unwrap())
}

/// What an undisturbed run of so many pairs ends with.
fn undisturbed(pairs: u32) -> &'static [Vec<u8>; 2] {
    static STATES: [OnceLock<[Vec<u8>; 2]>; 2] = [OnceLock::new(), OnceLock::new()];
    STATES[pairs as usize - 1].get_or_init(|| {
        let run = Run::new();
        let end = start(&run, pairs).end();
        assert!(end.status.success(), "{}", end.stderr);
        state(&run)
    })
}

/// Ends a disturbed run and compares it with an undisturbed one.
fn finish(live: Live, run: &Run, pairs: u32, mut noticed: Vec<Duration>) {
    let end = live.end();
    assert!(end.status.success(), "{}", end.stderr);
    assert_eq!(end.left, Vec::<String>::new());
    assert!(state(run) == *undisturbed(pairs), "the weights differ from those of an undisturbed run");
    // On a machine that other tests share the median is what can be held to; `make chaos` measures the 99th percentile.
    noticed.sort_unstable();
    assert!(noticed[noticed.len() / 2] <= Duration::from_millis(50), "deaths went unnoticed: {noticed:?}");
}

fn in_phase(phases: &[Phase]) -> impl Fn(&ParticipantView) -> bool {
    move |seen| seen.waits_for.is_none() && phases.contains(&seen.phase)
}

fn waiting(seen: &ParticipantView) -> bool {
    seen.waits_for.is_some()
}

/// Kills `victim` while it waits for `other`, which is made to stand still.
fn kill_waiting(live: &Live, victim: (Role, u32), other: (Role, u32)) -> Duration {
    let stopped = live.catch(other, |seen| !matches!(seen.phase, Phase::Starting | Phase::Loading));
    let noticed = live.kill_in(victim, waiting);
    live.send(stopped, Signal::SIGCONT);
    noticed
}

#[test]
fn a_target_may_die_at_any_moment() {
    let run = Run::new();
    let live = start(&run, 1);
    let mut noticed = vec![
        live.kill_in(TARGET, in_phase(&[Phase::Starting, Phase::Loading])),
        live.kill_in(TARGET, in_phase(&[Phase::Loading])),
        kill_waiting(&live, TARGET, DRAFTER),
    ];
    // Reading rows takes microseconds, too short to be met for certain: any moment between claim and publish will do.
    for _ in 0..3 {
        noticed.push(live.kill_in(TARGET, in_phase(&[Phase::Data, Phase::Forward, Phase::Publish])));
    }
    let all_claimed = || live.queue().is_some_and(|queue| queue.batches.pending == 0 && queue.batches.claimed == 0);
    live.await_that("the last batch to be captured", all_claimed);
    noticed.push(live.kill_in(TARGET, waiting));
    finish(live, &run, 1, noticed);
}

#[test]
fn a_drafter_may_die_at_any_moment() {
    let run = Run::new();
    let live = start(&run, 1);
    let mut noticed =
        vec![live.kill_in(DRAFTER, in_phase(&[Phase::Starting, Phase::Loading])), kill_waiting(&live, DRAFTER, TARGET)];
    let moments: [&[Phase]; 6] = [
        &[Phase::Draft, Phase::Loss, Phase::Backward],
        &[Phase::Snapshot],
        &[Phase::Backward],
        &[Phase::Checkpoint],
        &[Phase::Copy, Phase::Anchors, Phase::Optimizer],
        &[Phase::Optimizer, Phase::Anchors, Phase::Copy],
    ];
    for phases in moments {
        noticed.push(live.kill_in(DRAFTER, in_phase(phases)));
    }
    finish(live, &run, 1, noticed);
}

/// How long after its end the slots of a target are free again that dies at its work, with more than `done` batches made.
fn given_back(live: &Live, done: u64) -> Duration {
    let at_work = in_phase(&[Phase::Data, Phase::Forward, Phase::Capture]);
    let victim = live.catch(TARGET, |seen| at_work(seen) && seen.batches > done);
    let writing = || live.queue().map(|queue| queue.slots.writing);
    assert!(writing() > Some(0), "a stopped target keeps its slots");
    live.send(victim, Signal::SIGKILL);
    while is_running(victim) {
        std::thread::yield_now();
    }
    let ended = Instant::now();
    while writing() != Some(0) {
        assert!(ended.elapsed() < Duration::from_secs(10), "the slots are never given back");
        std::thread::yield_now();
    }
    ended.elapsed()
}

#[test]
fn what_a_dead_target_held_is_free_within_a_tenth_of_a_second() {
    let run = Run::new();
    let live = start(&run, 1);
    // A target that dies again and again without a batch in between would be given up.
    let mut waits: Vec<Duration> = (0..7).map(|round| given_back(&live, 3 * round)).collect();
    waits.sort_unstable();
    tests::say(&format!("a dead target's slots were free again after {waits:?}"));
    assert!(waits[3] <= Duration::from_millis(100), "{waits:?}");
    finish(live, &run, 1, vec![Duration::ZERO]);
}

/// Kills a drafter of two where `holds` says; the other one is the same process before and after.
fn kill_one_of_two(live: &Live, rank: u32, holds: impl Fn(&ParticipantView) -> bool) -> Duration {
    let victim = live.catch((Role::Drafter, rank), holds);
    let mut other = None;
    live.await_that("the other drafter", || {
        other = live.worker(Role::Drafter, 1 - rank).and_then(|seen| seen.pid);
        other.is_some()
    });
    let since = Instant::now();
    let noticed = live.kill((Role::Drafter, rank), victim);
    live.await_line(&format!("starting drafter {rank} again"), since);
    live.await_line(&format!("drafter {}, still alive, goes on with the others", 1 - rank), since);
    assert!(is_running(other.expect("it was awaited")), "drafter {} was to stay alive", 1 - rank);
    let waited = |seen: ParticipantView| seen.profile[&Track::Main].contains_key(&Phase::WaitDrafters);
    live.await_that("its wait for the dead one", || live.worker(Role::Drafter, 1 - rank).is_some_and(waited));
    noticed
}

/// Of two drafters either may die at any moment: the other one stays alive and both go on from one point.
#[test]
fn one_of_two_drafters_may_die_at_any_moment_and_the_other_stays_alive() {
    let step = [Phase::Copy, Phase::Anchors, Phase::Draft, Phase::Loss, Phase::Backward];
    let moments: [(u32, &[Phase]); 7] = [
        (0, &[Phase::Starting, Phase::Loading]),
        (1, &step),
        (1, &[Phase::Starting, Phase::Loading]),
        (0, &[Phase::AllReduce]),
        (1, &[Phase::AllReduce]),
        (0, &[Phase::Snapshot]),
        (0, &[Phase::Checkpoint]),
    ];
    let run = Run::new();
    let live = start(&run, 2);
    let mut noticed: Vec<_> =
        moments.into_iter().map(|(rank, phases)| kill_one_of_two(&live, rank, in_phase(phases))).collect();
    noticed.push(live.kill_in((Role::Target, 1), in_phase(&[Phase::Forward])));
    // With no target at work a drafter is certain to be met waiting.
    let at_work = in_phase(&[Phase::Forward]);
    let short = |seen: &ParticipantView| seen.waits_for.is_some_and(|what| what != "the lock");
    let targets = [0, 1].map(|rank| live.catch((Role::Target, rank), |seen| at_work(seen) || short(seen)));
    let waits = |rank: &u32| live.worker(Role::Drafter, *rank).is_some_and(|seen| short(&seen));
    let mut rank = None;
    live.await_that("a drafter to wait for a batch", || {
        rank = [0, 1].into_iter().find(waits);
        rank.is_some()
    });
    noticed.push(kill_one_of_two(&live, rank.expect("it was awaited"), short));
    targets.into_iter().for_each(|target| live.send(target, Signal::SIGCONT));
    finish(live, &run, 2, noticed);
}
