//! Kills the queue's workers, thousands of times, and counts what that cost: `make soak SECONDS=60`.
//!
//! Real processes (forks of this one) pass batches through a real queue; one of them at random gets `kill -9` every
//! millisecond or so, is taken back and replaced. Rounds follow one another until the time is over. The last line is one
//! JSON object; the exit code is 0 only if nothing was lost, doubled unmarked, damaged or left behind.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod evidence;
mod fleet;
mod worker;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::config::{GateMode, PopPolicy};
use common::queue::{Details, Queue, QueueSpec, Snapshot};
use evidence::{Evidence, SLOTS};
use fleet::Fleet;

const BATCHES: u64 = 50_000;
const TARGETS: u32 = 3;
const DRAFTERS: u32 = 2;
/// The longest that a round may take; it takes about a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the rounds so far came to.
#[derive(Default)]
struct Totals {
    rounds: u64,
    kills: u64,
    items: u64,
    lost: u64,
    marked: u64,
    unmarked: u64,
    bad_checksums: u64,
    slots_not_free: u64,
    broken: u64,
    failed_workers: u64,
    steals: u64,
    reclaimed: u64,
}

fn main() -> ExitCode {
    let argument = std::env::args().nth(1).and_then(|seconds| seconds.parse().ok());
    let Some(seconds) = argument else {
        eprintln!("usage: soak SECONDS");
        return ExitCode::from(1);
    };
    let started = Instant::now();
    let deadline = started + Duration::from_secs(seconds);
    let (mut totals, mut shown) = (Totals::default(), started);
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    while Instant::now() < deadline {
        if let Err(problem) = round(&mut totals, &mut random, deadline) {
            eprintln!("soak: round {}: {problem}", totals.rounds);
            totals.broken += 1;
            break;
        }
        if shown.elapsed() > Duration::from_secs(10) {
            eprintln!("soak: {} rounds, {} kills, {} items so far", totals.rounds, totals.kills, totals.items);
            shown = Instant::now();
        }
    }
    println!("{}", totals.to_json(started.elapsed().as_secs_f64()));
    if totals.is_good() { ExitCode::SUCCESS } else { ExitCode::from(2) }
}

/// One run of a queue, from its creation to its end.
fn round(totals: &mut Totals, random: &mut Random, deadline: Instant) -> Result<(), String> {
    let kind = totals.rounds;
    totals.rounds += 1;
    let spec = QueueSpec {
        run_id: format!("soak-{}-{kind}", std::process::id()),
        capacity: SLOTS as u32,
        batch_tokens: 64,
        max_documents: 4,
        slot_bytes: evidence::PAYLOAD_BYTES as u64,
        bucket_bounds: vec![16, 64],
        min_ready: 1 + (kind % 4) as u32,
        gate: if kind % 3 == 1 { GateMode::Latch } else { GateMode::Level },
        policy: if kind % 5 == 4 { PopPolicy::Strict } else { PopPolicy::Mixed },
        max_age: Duration::from_millis(5),
        targets: TARGETS,
        drafters: DRAFTERS,
        total_batches: BATCHES,
        seed: kind,
    };
    let evidence = Evidence::new(BATCHES)?;
    let queue = Queue::create(&spec).map_err(|error| error.to_string())?;
    let mut fleet = Fleet::new(&queue, &evidence, spec.name());
    let late = Instant::now() + PATIENCE;
    while !fleet.is_over()? {
        if Instant::now() > late {
            return Err(format!("stuck: {:#?}", queue.snapshot()));
        }
        std::thread::sleep(Duration::from_micros(100 + random.next() % 900));
        if Instant::now() < deadline {
            fleet.kill_one(random.next() as usize)?;
        }
    }
    totals.kills += fleet.kills;
    totals.failed_workers += fleet.failed;
    totals.judge(&queue, &evidence, &spec.name())
}

impl Totals {
    fn judge(&mut self, queue: &Queue, evidence: &Evidence, name: &str) -> Result<(), String> {
        let trained: u64 = queue.trained_ranges().iter().map(|(start, end)| end - start).sum();
        let snapshot = Snapshot::read(name).map_err(|error| error.to_string())?;
        let details = Details::read(name).map_err(|error| error.to_string())?;
        for problem in &details.check.problems {
            eprintln!("soak: {problem}");
        }
        self.items += trained;
        self.lost += BATCHES - trained.min(evidence.delivered());
        self.marked += evidence.marked();
        self.unmarked += evidence.unmarked();
        self.bad_checksums += evidence.bad_checksums();
        self.slots_not_free += details.slots.iter().filter(|slot| slot.state != "free").count() as u64;
        self.broken += u64::from(!details.check.settled) + details.check.problems.len() as u64;
        self.steals += snapshot.lock.steals;
        self.reclaimed += snapshot.reclaimed;
        Ok(())
    }

    fn is_good(&self) -> bool {
        let faults = [self.lost, self.unmarked, self.bad_checksums, self.slots_not_free, self.broken];
        faults.iter().all(|count| *count == 0) && self.failed_workers == 0 && self.items > 0
    }

    fn to_json(&self, seconds: f64) -> serde_json::Value {
        serde_json::json!({
            "seconds": (seconds * 10.0).round() / 10.0,
            "rounds": self.rounds,
            "kills": self.kills,
            "items": self.items,
            "lost": self.lost,
            "duplicates_unmarked": self.unmarked,
            "duplicates_marked": self.marked,
            "bad_checksums": self.bad_checksums,
            "slots_not_free": self.slots_not_free,
            "broken_invariants": self.broken,
            "failed_workers": self.failed_workers,
            "locks_taken_over": self.steals,
            "slots_taken_back": self.reclaimed,
        })
    }
}

/// A xorshift generator: the same kills in the same order each time, if not at the same moments.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
