//! A snapshot as text for people; programs take `--json`.

use std::fmt::Write as _;

use common::queue::{Gauge, ParticipantView, Snapshot};

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
                let ready = format!("{}/{}", snapshot.slots.ready, capacity(snapshot));
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
    slots(&mut text, snapshot);
    buckets(&mut text, snapshot);
    workers(&mut text, snapshot);
    text
}

fn slots(text: &mut String, snapshot: &Snapshot) {
    let (slots, batches) = (snapshot.slots, snapshot.batches);
    push(
        text,
        &format!(
            "slots {}: {} free, {} writing, {} ready, {} reading; {:.1} MiB each; {} taken back from dead workers",
            capacity(snapshot),
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
    if let Some(holder) = &snapshot.lock.held_by {
        push(text, &format!("lock held by {holder}; taken over from the dead {} times", snapshot.lock.steals));
    }
}

fn buckets(text: &mut String, snapshot: &Snapshot) {
    let head = format!(
        "\n{:>10} {:>7} {:>7} {:>9} {:>9} {:>11}",
        "BUCKET", "READY", "MOST", "PRODUCED", "CONSUMED", "REDELIVERED"
    );
    push(text, &head);
    for bucket in &snapshot.buckets {
        let bound = format!("<= {}", bucket.bound);
        let (ready, most, produced) = (bucket.ready, bucket.high_water, bucket.produced);
        let (consumed, redelivered) = (bucket.consumed, bucket.redelivered);
        push(text, &format!("{bound:>10} {ready:>7} {most:>7} {produced:>9} {consumed:>9} {redelivered:>11}"));
    }
}

fn workers(text: &mut String, snapshot: &Snapshot) {
    push(text, &format!("\n{:<12} {:>8} {:>6} {:>9} {:>8}  DOES", "WORKER", "PID", "ALIVE", "RESTARTS", "BATCHES"));
    for worker in &snapshot.participants {
        let name = common::telemetry::worker_name(worker.role, worker.rank);
        let pid = worker.pid.map_or("-".into(), |pid| pid.to_string());
        let alive = if worker.alive { "yes" } else { "no" };
        let restarts = worker.incarnation.saturating_sub(1);
        push(text, &format!("{name:<12} {pid:>8} {alive:>6} {restarts:>9} {:>8}  {}", worker.batches, does(worker)));
    }
}

fn does(worker: &ParticipantView) -> String {
    if worker.pid.is_none() {
        return "not there yet".into();
    }
    let gauge = |gauge| worker.gauges.get(&gauge).copied().unwrap_or_default();
    let doing = match worker.waits_for {
        Some(what) => format!("waits for {what}, {:.1} s", worker.waits_s),
        None => format!("{:?}, {:.1} s", worker.phase, worker.phase_s).to_lowercase(),
    };
    let step = gauge(Gauge::Step);
    if step == 0.0 {
        return doing;
    }
    let (total, loss, accuracy) = (gauge(Gauge::TotalSteps), gauge(Gauge::Loss), gauge(Gauge::Accuracy));
    format!("{doing}; step {step}/{total} loss {loss:.3} acc {accuracy:.3}")
}

fn capacity(snapshot: &Snapshot) -> u32 {
    let slots = snapshot.slots;
    slots.free + slots.writing + slots.ready + slots.reading
}

fn push(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("text takes any text");
}
