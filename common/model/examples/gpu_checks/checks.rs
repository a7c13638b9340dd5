//! The checks. Each makes a world of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::arena::ArenaKind;
use common::exit::AnyError;
use common::ids::Role;
use common::queue::ParticipantView;
use serde_json::json;

use crate::overhead::overhead;
use crate::spec::{Job, Load, Spec};
use crate::taps::taps;
use crate::world::World;

pub(crate) type Check = fn(&mut Findings) -> Result<(), AnyError>;

/// By name; in this order.
pub(crate) const CHECKS: [(&str, Check); 11] = [
    ("speed", speed),
    ("overhead", overhead),
    ("handovers", handovers),
    ("taps", taps),
    ("torn", torn),
    ("producers", producers),
    ("drafters", drafters),
    ("cuipc", cuipc),
    ("reopen", reopen),
    ("refusals", refusals),
    ("leak", leak),
];

/// A start: libtorch, a CUDA context, the arena.
pub(crate) const START: Duration = Duration::from_secs(60);

/// What was found.
pub(crate) struct Findings {
    ok: bool,
    restarts: u64,
    free: Option<Vec<u64>>,
}

impl Findings {
    pub(crate) fn new() -> Findings {
        Findings { ok: true, restarts: 0, free: free_memory().ok() }
    }

    pub(crate) fn all_ok(&self) -> bool {
        self.ok
    }

    pub(crate) fn failed(&mut self, name: &str, error: &AnyError) {
        self.ok = false;
        println!("{}", json!({ "name": name, "error": error.to_string(), "ok": false }));
    }

    pub(crate) fn found(&mut self, name: &str, (value, unit): (f64, &str), ok: bool) {
        self.ok &= ok;
        println!("{}", json!({ "name": name, "value": value, "unit": unit, "ok": ok }));
    }
}

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

fn free_memory() -> Result<Vec<u64>, AnyError> {
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
        findings.found(
            &format!("{kind:?} push of 80 MiB slots by columns, ten queued"),
            (queued, "GB/s"),
            queued >= 300.0,
        );
        findings.found(&format!("{kind:?} push of one 80 MiB slot, its wait included"), (alone, "GB/s"), true);
        drop(world);
        let mut world = World::new("speed", Spec { verify: false, ..pair(kind) })?;
        world.start_all(Job::Fill, Job::Pull)?;
        world.until("the pull", START, |world| !world.is_running(Role::Drafter, 0))?;
        let pull = numbers(&world)?;
        let [alone, write, read] = [bytes / pull[0] / 1e9, pull[1] / 1e9, pull[2] / 1e9];
        findings.found(
            &format!("{kind:?} pull of one 80 MiB slot, its wait included"),
            (alone, "GB/s"),
            alone >= 300.0,
        );
        findings.found(&format!("{kind:?} peer's memory, 8 MiB copies queued, write"), (write, "GB/s"), write >= 300.0);
        findings.found(&format!("{kind:?} peer's memory, 8 MiB copies queued, read"), (read, "GB/s"), read >= 300.0);
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
    findings.found(
        "hand-overs of mixed lengths, verified",
        (batches as f64, "batches"),
        world.count("got") as u64 == batches,
    );
    findings.found("mismatches among them", (world.count("bad") as f64, "batches"), world.count("bad") == 0);
    findings.found("verified hand-overs", (rate, "/s"), true);
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
    findings.found(text, (bad as f64, "batches"), bad as u64 * 20 >= batches);
    Ok(())
}

fn producers(findings: &mut Findings) -> Result<(), AnyError> {
    let ([one, other], kills) = (devices(), 200);
    let targets = (0..16).map(|rank| if rank % 2 == 0 { one } else { other }).collect();
    let drafters = vec![other, one];
    let spec = Spec { targets, drafters, slots: 32, rubbish: 10, tokens: 512, ..pair(ArenaKind::Fd) };
    let mut world = World::new("producers", spec)?;
    world.start_all(Job::Fill, Job::Drain)?;
    let (mut done, mut drawn, mut progress) = (0, 1u64, (0, Instant::now()));
    let (mut longest, mut mid_copy) = (Duration::ZERO, 0);
    let (mut next, mut since) = (Instant::now(), BTreeMap::new());
    while done < kills {
        for ((role, rank), job, status) in world.look()? {
            if role == Role::Drafter {
                return Err(format!("drafter {rank} ended with {status}").into());
            }
            world.start(role, rank.0, job)?;
        }
        let trained = world.queue.snapshot().batches.trained;
        if trained > progress.0 || world.at_work(Role::Target).is_empty() {
            progress = (trained, Instant::now());
        }
        longest = longest.max(progress.1.elapsed());
        if progress.1.elapsed() > Duration::from_secs(15) {
            return Err(format!("the drafters hang after {done} kills: {:?}", world.queue.snapshot().batches).into());
        }
        let at_work = world.at_work(Role::Target);
        if at_work.is_empty() || Instant::now() < next {
            continue;
        }
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Whoever has published something since its start; at any moment of what it does next.
        let fruitful = |seen: &&ParticipantView| seen.batches > *since.get(&seen.rank.0).unwrap_or(&0);
        let fruitful: Vec<&ParticipantView> = at_work.iter().filter(fruitful).collect();
        let Some(victim) = fruitful.get((drawn >> 33) as usize % fruitful.len().max(1)) else { continue };
        since.insert(victim.rank.0, victim.batches);
        mid_copy += u64::from(world.queue.snapshot().batches.claimed > 0);
        world.kill((Role::Target, victim.rank.0))?;
        done += 1;
        next = Instant::now() + Duration::from_millis(10 + (drawn >> 50) % 40);
    }
    findings.restarts += done;
    let bad = world.count("bad");
    findings.found("targets killed, slots being written at the time", (mid_copy as f64, "of 200"), mid_copy > 100);
    findings.found("bad checksums among what they published", (bad as f64, "batches"), bad == 0);
    findings.found("longest time without a delivery while a target was at work", (longest.as_secs_f64(), "s"), true);
    let delivered = world.count("got");
    findings.found("batches delivered meanwhile", (delivered as f64, "batches"), delivered >= kills as usize);
    Ok(())
}

fn drafters(findings: &mut Findings) -> Result<(), AnyError> {
    let ([_, other], kills) = (devices(), 50);
    let spec = Spec { drafters: vec![other; 10], batches: 64, slots: 16, ..pair(ArenaKind::Fd) };
    let slots = u64::from(spec.slots);
    let mut world = World::new("drafters", spec)?;
    world.start(Role::Target, 0, Job::Fill)?;
    world.until("full slots", START, |world| world.queue.snapshot().batches.ready == slots)?;
    world.kill_all(Role::Target)?;
    let mut killed = 0;
    while killed < kills {
        for rank in (0..10).filter(|rank| !world.is_running(Role::Drafter, *rank)).collect::<Vec<_>>() {
            world.start(Role::Drafter, rank, Job::Hold)?;
        }
        let before = world.count("held");
        world.until("every drafter to hold a slot", START, |world| world.count("held") == before + 10)?;
        world.kill_all(Role::Drafter)?;
        killed += 10;
    }
    let ready = world.queue.snapshot().batches.ready;
    world.start(Role::Drafter, 0, Job::Drain)?;
    world.until("what is left", START, |world| world.queue.snapshot().batches.trained == slots)?;
    world.until("its words", START, |world| world.count("got") as u64 == slots)?;
    findings.restarts += killed;
    let delivered: BTreeSet<&String> = world.said.iter().filter(|line| line.starts_with("got")).collect();
    findings.found("drafters killed while holding a slot, all targets dead", (killed as f64, "kills"), true);
    findings.found("batches still READY, of 16", (ready as f64, "batches"), ready == slots);
    findings.found(
        "of them delivered whole",
        (delivered.len() as f64, "batches"),
        delivered.len() as u64 == slots && world.count("bad") == 0,
    );
    Ok(())
}

fn cuipc(findings: &mut Findings) -> Result<(), AnyError> {
    let [one, other] = devices();
    let batches = 200;
    let spec = Spec { targets: vec![one, other], batches, ..pair(ArenaKind::Cuipc) };
    let mut world = World::new("cuipc", spec)?;
    (0..2).try_for_each(|rank| world.start(Role::Target, rank, Job::Fill))?;
    world.until("full slots", START, |world| world.queue.snapshot().batches.ready == 8)?;
    world.kill((Role::Target, 0))?;
    while world.is_running(Role::Target, 0) {
        world.look()?;
    }
    let lost = world.forfeited;
    findings.found(
        "READY batches given up with the target that made their part, of 4",
        (lost as f64, "batches"),
        lost == 4,
    );
    world.start(Role::Drafter, 0, Job::Drain)?;
    world.start(Role::Target, 0, Job::Fill)?;
    world.until("half of the batches", START, |world| world.queue.snapshot().batches.trained >= batches / 2)?;
    world.kill((Role::Target, 1))?;
    while world.is_running(Role::Target, 1) {
        world.look()?;
    }
    world.start(Role::Target, 1, Job::Fill)?;
    let limit = Duration::from_secs(90);
    world.until("all batches", limit, |world| world.queue.snapshot().batches.trained == batches)?;
    world.until("all words", START, |world| world.count("got") >= batches as usize)?;
    findings.restarts += 2;
    let published: u64 = world.queue.snapshot().buckets.iter().map(|bucket| bucket.produced).sum();
    let (dropped, lost) = (published - batches, world.forfeited);
    findings.found("published but not delivered", (dropped as f64, "batches"), dropped <= lost);
    findings.found("given up in all", (lost as f64, "batches"), true);
    findings.found("mismatches among the delivered", (world.count("bad") as f64, "batches"), world.count("bad") == 0);
    Ok(())
}

/// A part that fills most of its GPU fits there again only when everybody has let go of the one before.
fn reopen(findings: &mut Findings) -> Result<(), AnyError> {
    let free = free_memory()?.into_iter().min().ok_or("there is no GPU")?;
    let mut spec = Spec { tokens: 12_288, verify: false, drafters: vec![devices()[1]; 2], ..pair(ArenaKind::Cuipc) };
    spec.slots = (free * 11 / 20 / spec.shape().bytes() as u64) as u32;
    let part = spec.layout().part_bytes(0) as f64 / f64::from(1 << 30);
    let mut world = World::new("reopen", spec)?;
    world.start(Role::Target, 0, Job::Fill)?;
    // One drafter at work on something else, and one that waits at the queue from here on.
    world.start(Role::Drafter, 0, Job::Hold)?;
    world.until("a slot in a busy drafter's hands", START, |world| world.count("held") == 1)?;
    world.start(Role::Drafter, 1, Job::Drain)?;
    world.until("deliveries", START, |world| world.count("got") > 1)?;
    world.kill((Role::Target, 0))?;
    while world.is_running(Role::Target, 0) {
        world.look()?;
    }
    let lost = Instant::now();
    world.start(Role::Target, 0, Job::Fill)?;
    world.until("the part to be made anew", START, |world| world.remade.is_some())?;
    let (remade, before) = (lost.elapsed(), world.count("got"));
    let reopened = world.until("a delivery out of it", START, |world| world.count("got") > before)?;
    findings.restarts += 1;
    let text =
        format!("cuipc: a part of {part:.0} GiB is made anew while its drafters work, its process's start included");
    findings.found(&text, (remade.as_secs_f64(), "s"), true);
    let text = "cuipc: from there until its successor's first batch is delivered (test 28)";
    findings.found(text, (reopened.as_secs_f64(), "s"), reopened <= Duration::from_secs(1));
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
    findings.found("slots larger than the GPU are refused by name", (started.elapsed().as_secs_f64(), "s"), refused);
    let batches = 100;
    for kind in [ArenaKind::Fd, ArenaKind::Cuipc] {
        let mut world = World::new("hidden", Spec { hides: true, batches, tokens: 256, ..pair(kind) })?;
        world.start_all(Job::Fill, Job::Drain)?;
        let done = world.until("all batches", START, |world| world.queue.snapshot().batches.trained == batches);
        let refused = world.said.iter().any(|line| line.contains("hidden GPU"));
        let text = format!("{kind:?}, each worker sees its own GPU alone: 1 works, 0 is refused by name");
        findings.found(&text, (f64::from(u8::from(done.is_ok())), ""), done.is_ok() || refused);
    }
    Ok(())
}

fn leak(findings: &mut Findings) -> Result<(), AnyError> {
    let before = findings.free.clone().ok_or("the free memory at the start is not known")?;
    let after = free_memory()?;
    let lost = before.iter().zip(&after).map(|(before, after)| before.saturating_sub(*after)).max().unwrap_or(0);
    let mib = lost as f64 / f64::from(1 << 20);
    findings.found("GPU memory that is gone after all of the above", (mib, "MiB"), mib <= 64.0);
    findings.found("restarts meanwhile", (findings.restarts as f64, "restarts"), true);
    Ok(())
}
