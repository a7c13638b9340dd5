//! `make chaos`: many kills at random moments in one run, and still the history of the weights is exact.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use common::ids::Role;
use common::manifest::{Manifest, newest_checkpoint};
use serde_json::json;
use tests::Run;
use tests::live::{End, Live};

/// Small steps under `strict`, with as many restarts as it takes.
const CHAOS: [&str; 12] = [
    "data.batch_tokens=512",
    "data.max_length=128",
    "training.num_anchors=4",
    "training.batches_per_step=1",
    "training.num_epochs=50",
    "training.save_interval=50",
    "training.snapshot_interval=2",
    "training.max_checkpoints=1",
    "queue.policy=strict",
    "run.pairs=1",
    "run.max_restarts=1000",
    "run.startup_retries=1000",
];

/// Numbers that look random, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

fn start(run: &Run, steps: u64) -> Live {
    let mut command = run.training(&CHAOS);
    command.arg(format!("training.max_steps={steps}"));
    Live::start(run, command)
}

/// Kills workers at random moments, `kills` times; how long each went unnoticed. Most have done something since their
/// start, or the launcher would let them rest longer and longer; one in eight is killed as soon as it is there.
fn attack(live: &Live, kills: u64, dice: &mut Dice) -> Vec<Duration> {
    let mut noticed = Vec::new();
    let mut batches_before = [0; 2];
    while (noticed.len() as u64) < kills {
        let (number, early) = (dice.below(2) as usize, dice.below(8) == 0);
        let role = [Role::Target, Role::Drafter][number];
        let mut victim = None;
        live.await_that(&format!("{role} to be at work"), || {
            victim = live.worker(role, 0).filter(|seen| early || seen.batches > batches_before[number]);
            victim.is_some()
        });
        std::thread::sleep(Duration::from_micros(dice.below(60_000)));
        let victim = victim.expect("it was awaited");
        batches_before[number] = live.worker(role, 0).map_or(victim.batches, |seen| seen.batches);
        noticed.push(live.kill((role, 0), victim.pid.expect("it lives")));
    }
    noticed.sort_unstable();
    noticed
}

fn last(run: &Run) -> (Vec<u8>, Manifest) {
    let (folder, manifest) = newest_checkpoint(&run.dir()).unwrap().unwrap();
    (std::fs::read(folder.join("state.safetensors")).unwrap(), manifest)
}

/// Rows of the plan's batches that the final weights hold, as the launcher counts them.
fn rows(run: &Run) -> i64 {
    let summary = std::fs::read(run.dir().join("summary.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&summary).unwrap()["rows"].as_i64().unwrap()
}

#[test]
fn kills_at_random_moments_change_nothing() {
    let (kills, seed) = (number("CHAOS_KILLS", 12), number("CHAOS_SEED", 1));
    let steps = number("CHAOS_STEPS", 120);
    let (run, undisturbed) = (Run::new(), Run::new());
    let live = start(&run, steps);
    let noticed = attack(&live, kills, &mut Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
    let End { status, stderr, left } = live.end();
    assert!(status.success(), "{stderr}");
    let end = start(&undisturbed, steps).end();
    assert!(end.status.success(), "{}", end.stderr);

    let ((state, manifest), (other, _)) = (last(&run), last(&undisturbed));
    let trained: u64 = manifest.trained.iter().map(|(start, end)| end - start).sum();
    let result = json!({
        "seed": seed,
        "kills": noticed.len(),
        "restarts": stderr.matches("again (failures so far").count(),
        "steps": manifest.step,
        "rows_lost": rows(&undisturbed) - rows(&run),
        // A step is a batch here: more steps than batches would be a batch in two steps.
        "rows_twice": manifest.step.saturating_sub(trained),
        "weights_equal": state == other,
        "leftovers": left.len() + end.left.len(),
        "noticed_ms_p50": noticed[noticed.len() / 2].as_secs_f64() * 1e3,
        "noticed_ms_p99": noticed[noticed.len() * 99 / 100].as_secs_f64() * 1e3,
    });
    tests::say(&result.to_string());
    std::fs::write(tests::program("chaos.json"), format!("{result}\n")).unwrap();
    let kept = [&result["rows_lost"], &result["rows_twice"], &result["leftovers"]].iter().all(|count| **count == 0);
    assert!(kept && result["weights_equal"] == true && manifest.step == steps, "{result}\n{stderr}");
    assert_eq!(result["restarts"], result["kills"], "{stderr}");
}
