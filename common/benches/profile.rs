//! What it costs to say what one does: a change of phase, and a nested phase's guard. Prints JSON lines.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark for the terminal")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use common::config::{GateMode, PopPolicy};
use common::ids::Rank;
use common::queue::{Phase, Queue, QueueSpec};

const CALLS: u32 = 1_000_000;
/// The best of so many runs is the cost itself; the others had company.
const RUNS: usize = 7;

fn main() {
    let spec = QueueSpec {
        run_id: format!("bench-profile-{}", std::process::id()),
        capacity: 1,
        batch_tokens: 64,
        max_documents: 1,
        slot_bytes: 64,
        bucket_bounds: vec![64],
        min_ready: 1,
        gate: GateMode::Level,
        policy: PopPolicy::Mixed,
        max_age: Duration::from_secs(5),
        targets: 1,
        drafters: 1,
        total_batches: 1,
        seed: 1,
    };
    let queue = Queue::create(&spec).unwrap();
    let drafter = queue.consumer(Rank(0)).unwrap();
    print("profile/phase_change", best(|| drafter.phase(black_box(Phase::Draft))));
    print("profile/guard", best(|| drop(drafter.time(black_box(Phase::Loss)))));
}

/// Nanoseconds a call.
fn best(mut call: impl FnMut()) -> f64 {
    let run = |_| {
        let started = Instant::now();
        (0..CALLS).for_each(|_| call());
        started.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..RUNS).map(run).fold(f64::INFINITY, f64::min)
}

fn print(name: &str, value: f64) {
    println!(r#"{{"name":"{name}","value":{value:.1},"unit":"ns"}}"#);
}
