//! The checks. Each makes a world of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::arena::ArenaKind;
use common::exit::AnyError;
use common::ids::Role;

use crate::deaths::{cuipc, drafters, hang, producers, reopen};
use crate::findings::{Bar, Findings};
use crate::overhead::overhead;
use crate::spec::{Job, Load, Spec};
use crate::taps::taps;
use crate::world::World;

pub(crate) type Check = fn(&mut Findings) -> Result<(), AnyError>;

/// By name, each with its number in the list of the queue's and the arena's tests, if it has one; in this order.
pub(crate) const CHECKS: [(&str, u32, Check); 12] = [
    ("speed", 24, speed),
    ("overhead", 31, overhead),
    ("handovers", 0, handovers),
    ("taps", 0, taps),
    ("torn", 25, torn),
    ("producers", 26, producers),
    ("drafters", 27, drafters),
    ("cuipc", 28, cuipc),
    ("reopen", 28, reopen),
    ("hang", 0, hang),
    ("refusals", 30, refusals),
    ("leak", 29, leak),
];

/// A start: libtorch, a CUDA context, the arena.
pub(crate) const START: Duration = Duration::from_secs(60);

/// Two devices, or one twice.
pub(crate) fn devices() -> [u32; 2] {
    let two = std::env::var("GPU_CHECKS_DEVICES").map_or(true, |devices| devices != "1");
    [0, u32::from(two)]
}

/// A small world: one target, one drafter, on two devices.
pub(crate) fn pair(kind: ArenaKind) -> Spec {
    let [one, other] = devices();
    Spec {
        queue: String::new(),
        kind,
        targets: vec![one],
        drafters: vec![other],
        slots: 8,
        tokens: 2048,
        hidden: 4096,
        batches: 1 << 20,
        rubbish: 0,
        verify: true,
        hides: false,
        folder: PathBuf::new(),
        load: Load::default(),
    }
}

pub(crate) fn free_memory() -> Result<Vec<u64>, AnyError> {
    let mut world = World::new("memory", pair(ArenaKind::Fd))?;
    world.start(Role::Drafter, 0, Job::Memory)?;
    world.until("the free memory", START, |world| !world.is_running(Role::Drafter, 0))?;
    Ok(serde_json::from_str(world.said.last().ok_or("it said nothing")?)?)
}

/// What a worker that measures said last.
fn numbers(world: &World) -> Result<Vec<f64>, AnyError> {
    let said = world.said.last().ok_or("it said nothing")?;
    Ok(said.split(' ').map(str::parse).collect::<Result<_, _>>()?)
}

/// What NVLink is good for.
const FAST: Bar = Bar::AtLeast(300.0);

fn speed(findings: &mut Findings) -> Result<(), AnyError> {
    let [one, other] = devices();
    for kind in [ArenaKind::Fd, ArenaKind::Cuipc] {
        // The one slot lies in the last part: on the other device, seen from target 0.
        let spec = Spec { targets: vec![one, other], slots: 1, verify: false, batches: 4, ..pair(kind) };
        let bytes = spec.shape().bytes() as f64;
        let mut world = World::new("speed", spec)?;
        world.start(Role::Target, 0, Job::Push)?;
        world.start(Role::Target, 1, Job::Idle)?;
        world.until("the push", START, |world| !world.is_running(Role::Target, 0))?;
        let push = numbers(&world)?;
        let [alone, queued] = [bytes / push[0] / 1e9, bytes / push[1] / 1e9];
        findings.found(&format!("{kind:?} push of 80 MiB slots by columns, ten queued"), (queued, "GB/s"), FAST);
        findings.found(&format!("{kind:?} push of one 80 MiB slot, its wait included"), (alone, "GB/s"), Bar::None);
        drop(world);
        let mut world = World::new("speed", Spec { verify: false, ..pair(kind) })?;
        world.start_all(Job::Fill, Job::Pull)?;
        world.until("the pull", START, |world| !world.is_running(Role::Drafter, 0))?;
        let pull = numbers(&world)?;
        let [alone, write, read] = [bytes / pull[0] / 1e9, pull[1] / 1e9, pull[2] / 1e9];
        findings.found(&format!("{kind:?} pull of one 80 MiB slot, its wait included"), (alone, "GB/s"), FAST);
        findings.found(&format!("{kind:?} peer's memory, 8 MiB copies queued, write"), (write, "GB/s"), FAST);
        findings.found(&format!("{kind:?} peer's memory, 8 MiB copies queued, read"), (read, "GB/s"), FAST);
    }
    Ok(())
}

fn handovers(findings: &mut Findings) -> Result<(), AnyError> {
    let batches = 10_000;
    let mut world = World::new("handovers", Spec { batches, tokens: 256, hidden: 2048, ..pair(ArenaKind::Fd) })?;
    world.start_all(Job::Fill, Job::Drain)?;
    world.until("workers to start", START, |world| world.queue.snapshot().batches.trained > 0)?;
    let started = Instant::now();
    world.until("all batches", Duration::from_secs(120), |world| world.queue.snapshot().batches.trained == batches)?;
    let rate = batches as f64 / started.elapsed().as_secs_f64();
    world.until("the end", START, |world| world.at_work(Role::Drafter).is_empty())?;
    let got = world.count("got") as f64;
    findings.found("hand-overs of mixed lengths, verified", (got, "batches"), Bar::Is(batches as f64));
    findings.found("mismatches among them", (world.count("bad") as f64, "batches"), Bar::Is(0.0));
    findings.found("verified hand-overs", (rate, "/s"), Bar::None);
    Ok(())
}

fn torn(findings: &mut Findings) -> Result<(), AnyError> {
    let batches = 40;
    let [one, other] = devices();
    // The one slot lies on the other GPU, where copies take longest.
    let spec = Spec { targets: vec![one, other], batches, rubbish: 50, slots: 1, ..pair(ArenaKind::Fd) };
    let mut world = World::new("torn", spec)?;
    world.start(Role::Target, 0, Job::Tear)?;
    world.start(Role::Target, 1, Job::Idle)?;
    world.start(Role::Drafter, 0, Job::Drain)?;
    world.until("all batches", START, |world| world.queue.snapshot().batches.trained == batches)?;
    world.until("the end", START, |world| world.count("got") as u64 == batches)?;
    let bad = world.count("bad");
    let text = "torn reads seen when nobody waits for the copies, of 40";
    findings.found(text, (bad as f64, "batches"), Bar::AtLeast(batches as f64 / 20.0));
    Ok(())
}

fn refusals(findings: &mut Findings) -> Result<(), AnyError> {
    let mut world = World::new("refusals", Spec { tokens: 1 << 24, ..pair(ArenaKind::Fd) })?;
    world.start(Role::Target, 0, Job::Fill)?;
    let started = Instant::now();
    while world.is_running(Role::Target, 0) && started.elapsed() < START {
        world.look()?;
    }
    let refused = world.said.iter().any(|line| line.contains("too little memory on GPU-"));
    findings.found("slots larger than the GPU are refused by name", (f64::from(u8::from(refused)), ""), Bar::Is(1.0));
    findings.found("after", (started.elapsed().as_secs_f64(), "s"), Bar::None);
    let batches = 100;
    for kind in [ArenaKind::Fd, ArenaKind::Cuipc] {
        let mut world = World::new("hidden", Spec { hides: true, batches, tokens: 256, ..pair(kind) })?;
        world.start_all(Job::Fill, Job::Drain)?;
        let done = world.until("all batches", START, |world| world.queue.snapshot().batches.trained == batches);
        let refused = world.said.iter().any(|line| line.contains("hidden GPU"));
        let text = format!("{kind:?}, each worker sees its own GPU alone: 2 works, 1 is refused by name");
        let outcome = if done.is_ok() { 2 } else { u8::from(refused) };
        findings.found(&text, (f64::from(outcome), ""), Bar::AtLeast(1.0));
    }
    Ok(())
}

fn leak(findings: &mut Findings) -> Result<(), AnyError> {
    let before = findings.free.clone().ok_or("the free memory at the start is not known")?;
    let after = free_memory()?;
    let lost = before.iter().zip(&after).map(|(before, after)| before.saturating_sub(*after)).max().unwrap_or(0);
    let mib = lost as f64 / f64::from(1 << 20);
    findings.found("GPU memory that is gone after all of the above", (mib, "MiB"), Bar::AtMost(64.0));
    findings.found("restarts meanwhile", (findings.restarts as f64, "restarts"), Bar::None);
    Ok(())
}
