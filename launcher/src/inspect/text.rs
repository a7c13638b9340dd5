//! A snapshot as text for people; programs take `--json`.

use std::fmt::Write as _;

use common::queue::{CheckView, EventView, Gauge, Histogram, ParticipantView, SlotView, Snapshot, Track};
use common::telemetry::period::Period;
use common::telemetry::sample::Sampler;
use common::telemetry::verdict::Verdict;

use super::Listed;

/// A line per queue.
pub(super) fn list(queues: &[Listed]) -> String {
    if queues.is_empty() {
        return "no queue in /dev/shm: nothing is training on this machine\n".into();
    }
    let mut text = format!("{:<20} {:<10} {:>12} {:>10} {:>9}\n", "RUN", "LAUNCHER", "TRAINED", "READY", "WORKERS");
    for queue in queues {
        let line = match (&queue.snapshot, &queue.problem) {
            (Some(snapshot), _) => {
                let launcher = if snapshot.launcher_alive { "alive" } else { "dead" };
                let batches = snapshot.batches;
                let trained = format!("{}/{}", batches.trained, batches.total);
                let ready = format!("{}/{}", snapshot.slots.ready, snapshot.slots.total());
                let alive = snapshot.participants.iter().filter(|worker| worker.alive).count();
                format!("{launcher:<10} {trained:>12} {ready:>10} {alive:>9}")
            }
            (None, problem) => problem.clone().unwrap_or_default(),
        };
        push(&mut text, &format!("{:<20} {line}", queue.run_id));
    }
    text
}

/// One queue in full.
pub(super) fn show(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let state = match (snapshot.aborted, snapshot.launcher_alive) {
        (true, _) => "given up",
        (false, true) => "alive",
        (false, false) => "dead: the next `tandem run` removes this segment",
    };
    push(&mut text, &format!("run {}, launcher pid {}: {state}", snapshot.run_id, snapshot.launcher_pid));
    if !snapshot.consistent {
        push(&mut text, "the queue changed while it was read: numbers may not add up");
    }
    push(&mut text, &format!("gate {}", snapshot.gate.reason));
    totals(&mut text, snapshot);
    buckets(&mut text, snapshot);
    workers(&mut text, snapshot);
    verdict(snapshot).into_iter().for_each(|verdict| push(&mut text, &format!("\n{}", verdict.sentence)));
    text
}

/// Who limited the run, from its start until now.
fn verdict(snapshot: &Snapshot) -> Option<Verdict> {
    let mut period = Period::default();
    period.add(&Sampler::default().sample(snapshot));
    Verdict::on(&period)
}

fn totals(text: &mut String, snapshot: &Snapshot) {
    let (slots, batches) = (snapshot.slots, snapshot.batches);
    push(
        text,
        &format!(
            "slots {}: {} free, {} writing, {} ready, {} reading; {:.1} MiB each; {} taken back from dead workers",
            snapshot.slots.total(),
            slots.free,
            slots.writing,
            slots.ready,
            slots.reading,
            snapshot.slot_bytes as f64 / f64::from(1 << 20),
            snapshot.reclaimed
        ),
    );
    push(
        text,
        &format!(
            "batches {}: {} pending, {} claimed, {} ready, {} held, {} trained",
            batches.total, batches.pending, batches.claimed, batches.ready, batches.held, batches.trained
        ),
    );
    push(text, &lock(snapshot));
}

/// Who is inside the lock; that is never long, unless its holder does not run.
pub(super) fn lock(snapshot: &Snapshot) -> String {
    let steals = snapshot.lock.steals;
    let holder = match &snapshot.lock.held_by {
        None => "free".into(),
        Some(name) => {
            let is_holder = |worker: &&ParticipantView| format!("{} {}", worker.role, worker.rank) == *name;
            let worker = snapshot.participants.iter().find(is_holder);
            let pid = worker.and_then(|worker| worker.pid).map_or(String::new(), |pid| format!(" (pid {pid})"));
            let state = match worker {
                Some(worker) if worker.stopped => ", which is STOPPED: everybody waits for it",
                Some(worker) if !worker.alive => ", which is dead: whoever wants it next takes it over",
                _ => "",
            };
            format!("held by {name}{pid}{state}")
        }
    };
    format!("lock {holder}; taken over from the dead {steals} times")
}

fn buckets(text: &mut String, snapshot: &Snapshot) {
    let names = ["READY", "MOST", "PRODUCED", "CONSUMED", "REDELIVERED", "DROPPED"];
    let times = ["WAIT p50/p99", "AGE p50/p99", "HOLD p50/p99"];
    let counts = |cells: [String; 6]| cells.map(|cell| format!(" {cell:>11}")).concat();
    let wide = |cells: [String; 3]| cells.map(|cell| format!(" {cell:>15}")).concat();
    push(text, &format!("\n{:>10}{}{}", "BUCKET", counts(names.map(String::from)), wide(times.map(String::from))));
    for bucket in &snapshot.buckets {
        let (ready, most) = (u64::from(bucket.ready), u64::from(bucket.high_water));
        let numbers = [ready, most, bucket.produced, bucket.consumed, bucket.redelivered, bucket.dropped];
        let times = [&bucket.waited, &bucket.aged, &bucket.held].map(percentiles);
        let bound = format!("<= {}", bucket.bound);
        push(text, &format!("{bound:>10}{}{}", counts(numbers.map(|number| number.to_string())), wide(times)));
    }
}

/// A histogram's middle and tail.
pub(super) fn percentiles(histogram: &Histogram) -> String {
    match (histogram.quantile(0.5), histogram.quantile(0.99)) {
        (Some(middle), Some(tail)) => format!("{}/{}", short(middle), short(tail)),
        _ => "-".into(),
    }
}

/// Microseconds in a few characters.
fn short(microseconds: u64) -> String {
    match microseconds {
        0..1_000 => format!("{microseconds}us"),
        1_000..1_000_000 => format!("{}ms", microseconds / 1_000),
        _ => format!("{}s", microseconds / 1_000_000),
    }
}

/// A line per slot.
pub(super) fn slots(slots: &[SlotView]) -> String {
    let mut text = format!(
        "{:>5} {:<8} {:<12} {:>10} {:>6} {:>7} {:>10}\n",
        "SLOT", "STATE", "OWNER", "BATCH", "BUCKET", "RETURNS", "SINCE"
    );
    for view in slots {
        let (slot, state, returns, since) = (view.slot.to_string(), view.state, view.returns, view.since_s);
        let owner = view.owner.as_deref().unwrap_or("-");
        let (batch, bucket) = (or_dash(view.batch), or_dash(view.bucket));
        push(
            &mut text,
            &format!("{slot:>5} {state:<8} {owner:<12} {batch:>10} {bucket:>6} {returns:>7} {since:>8.3} s"),
        );
    }
    text
}

/// A line per event.
pub(super) fn events(events: &[EventView]) -> String {
    let mut text =
        format!("{:>10} {:>12} {:<8} {:<12} {:>5} {:>10}\n", "NUMBER", "AGO", "WHAT", "WHO", "SLOT", "BATCH");
    for event in events {
        let (slot, batch) = (or_dash(event.slot), or_dash(event.batch));
        let (number, ago, what, who) = (event.number, event.ago_s, event.what, &event.who);
        push(&mut text, &format!("{number:>10} {ago:>10.6} s {what:<8} {who:<12} {slot:>5} {batch:>10}"));
    }
    text
}

/// What holds and what does not.
pub(super) fn check(check: &CheckView) -> String {
    let mut text = String::new();
    if let Some(lock) = &check.lock {
        push(&mut text, &format!("the queue does not rest: {lock}"));
    }
    check.problems.iter().for_each(|problem| push(&mut text, problem));
    match (check.settled, check.problems.is_empty()) {
        (true, true) => push(&mut text, "every invariant holds"),
        (true, false) => push(&mut text, "the queue is broken"),
        (false, _) => push(&mut text, "nothing can be said for sure: a step is half done"),
    }
    text
}

fn or_dash(value: Option<impl std::fmt::Display>) -> String {
    value.map_or("-".into(), |value| value.to_string())
}

fn workers(text: &mut String, snapshot: &Snapshot) {
    push(text, &format!("\n{:<12} {:>8} {:>7} {:>9} {:>8}  DOES", "WORKER", "PID", "ALIVE", "RESTARTS", "BATCHES"));
    for worker in &snapshot.participants {
        let name = common::telemetry::worker_name(worker.role, worker.rank);
        let pid = worker.pid.map_or("-".into(), |pid| pid.to_string());
        let alive = match (worker.alive, worker.stopped) {
            (true, true) => "stopped",
            (true, false) => "yes",
            (false, _) => "no",
        };
        let restarts = worker.incarnation.saturating_sub(1);
        push(text, &format!("{name:<12} {pid:>8} {alive:>7} {restarts:>9} {:>8}  {}", worker.batches, does(worker)));
    }
}

/// What a worker does, for how long, and its last numbers.
pub(super) fn does(worker: &ParticipantView) -> String {
    let doing = doing(worker);
    let gauge = |gauge| worker.gauges.get(&gauge).copied().unwrap_or_default();
    let step = gauge(Gauge::Step);
    if worker.pid.is_none() || step == 0.0 {
        return doing;
    }
    let (total, loss, accuracy) = (gauge(Gauge::TotalSteps), gauge(Gauge::Loss), gauge(Gauge::Accuracy));
    format!("{doing}; step {step}/{total} loss {loss:.3} acc {accuracy:.3}")
}

/// What a worker does, and for how long. What its second thread waits for is its own business.
pub(super) fn doing(worker: &ParticipantView) -> String {
    let has_second = worker.profile.contains_key(&Track::Side);
    match worker.waits_for {
        _ if worker.pid.is_none() => "not there yet".into(),
        Some(what) if !has_second || worker.phase.is_wait() => format!("waits for {what}, {:.1} s", worker.waits_s),
        _ => format!("{}, {:.1} s", worker.phase.name(), worker.phase_s),
    }
}

fn push(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("text takes any text");
}
