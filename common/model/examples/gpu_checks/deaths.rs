//! Deaths of either side at any moment: what was READY, what was being written, and what a GPU's memory is afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use common::arena::ArenaKind;
use common::exit::AnyError;
use common::ids::Role;
use common::queue::ParticipantView;

use crate::checks::{START, devices, free_memory, pair};
use crate::findings::{Bar, Findings};
use crate::spec::{Job, Spec};
use crate::worker::HANG_PATIENCE;
use crate::world::World;

pub(crate) fn producers(findings: &mut Findings) -> Result<(), AnyError> {
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
    findings.found("targets killed, slots being written at the time", (mid_copy as f64, "of 200"), Bar::AtLeast(100.0));
    findings.found("bad checksums among what they published", (bad as f64, "batches"), Bar::Is(0.0));
    let text = "longest time without a delivery while a target was at work";
    findings.found(text, (longest.as_secs_f64(), "s"), Bar::AtMost(10.0));
    let delivered = world.count("got");
    findings.found("batches delivered meanwhile", (delivered as f64, "batches"), Bar::AtLeast(kills as f64));
    Ok(())
}

pub(crate) fn drafters(findings: &mut Findings) -> Result<(), AnyError> {
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
    findings.found(
        "drafters killed while holding a slot, all targets dead",
        (killed as f64, "kills"),
        Bar::Is(kills as f64),
    );
    findings.found("batches still READY, of 16", (ready as f64, "batches"), Bar::Is(slots as f64));
    let whole = delivered.len() as f64 - world.count("bad") as f64;
    findings.found("of them delivered whole", (whole, "batches"), Bar::Is(slots as f64));
    Ok(())
}

pub(crate) fn cuipc(findings: &mut Findings) -> Result<(), AnyError> {
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
    let text = "READY batches given up with the target that made their part, of 4";
    findings.found(text, (lost as f64, "batches"), Bar::Is(4.0));
    world.start(Role::Drafter, 0, Job::Drain)?;
    world.start(Role::Target, 0, Job::Fill)?;
    world.until("half of the batches", START, |world| world.queue.snapshot().batches.trained >= batches / 2)?;
    // Both sides at once.
    let both = [(Role::Target, 1), (Role::Drafter, 0)];
    both.into_iter().try_for_each(|worker| world.kill(worker))?;
    while both.iter().any(|(role, rank)| world.is_running(*role, *rank)) {
        world.look()?;
    }
    world.start(Role::Target, 1, Job::Fill)?;
    world.start(Role::Drafter, 0, Job::Drain)?;
    let limit = Duration::from_secs(90);
    world.until("all batches", limit, |world| world.queue.snapshot().batches.trained == batches)?;
    findings.restarts += 3;
    let published: u64 = world.queue.snapshot().buckets.iter().map(|bucket| bucket.produced).sum();
    let (dropped, lost) = (published - batches, world.forfeited);
    // What the drafter had released and not yet trained is computed again too.
    findings.found("published but not delivered", (dropped as f64, "batches"), Bar::AtMost(lost as f64 + 1.0));
    findings.found("given up in all", (lost as f64, "batches"), Bar::None);
    findings.found("mismatches among the delivered", (world.count("bad") as f64, "batches"), Bar::Is(0.0));
    Ok(())
}

/// A part that fills most of its GPU fits there again only when everybody has let go of the one before.
pub(crate) fn reopen(findings: &mut Findings) -> Result<(), AnyError> {
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
    findings.found(&text, (remade.as_secs_f64(), "s"), Bar::None);
    let text = "cuipc: from there until a batch out of it is delivered";
    findings.found(text, (reopened.as_secs_f64(), "s"), Bar::AtMost(1.0));
    Ok(())
}

/// A GPU that does not answer holds its worker in a wait that has no end of its own.
pub(crate) fn hang(findings: &mut Findings) -> Result<(), AnyError> {
    let mut world = World::new("hang", Spec { batches: 8, ..pair(ArenaKind::Fd) })?;
    world.start(Role::Target, 0, Job::Hang)?;
    world.until("the wait that does not end", START, |world| world.count("hangs") == 1)?;
    let started = Instant::now();
    while world.is_running(Role::Target, 0) && started.elapsed() < START {
        world.look()?;
    }
    let text = "a target whose GPU does not come to an end is gone after, with a patience of 5 s,";
    findings.found(text, (started.elapsed().as_secs_f64(), "s"), Bar::AtMost(2.0 * HANG_PATIENCE.as_secs_f64()));
    let started = Instant::now();
    world.start_all(Job::Fill, Job::Drain)?;
    world.until("all batches", START, |world| world.queue.snapshot().batches.trained == 8)?;
    findings.restarts += 1;
    let text = "and its successor on the same GPU has delivered all after, its start included,";
    findings.found(text, (started.elapsed().as_secs_f64(), "s"), Bar::AtMost(START.as_secs_f64()));
    Ok(())
}
