//! A run says where its time goes: planted bottlenecks are named, all time is accounted for, traces load.
//!
//! Bottlenecks are planted by sleeping phases (`TANDEM_TEST_DELAYS`), which cost no core and are long beside the work: so
//! the sentence that is wanted does not depend on what else the machine does. Only the run that is to starve gets company.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::telemetry::metrics::METRICS_FILE;
use common::telemetry::sample::{SAMPLES_FILE, Sample};
use common::telemetry::verdict::{Limit, Verdict};
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::Run;
use tests::live::Live;

const LIMIT: Duration = Duration::from_secs(600);
const SMALL: [&str; 4] = [
    "training.num_anchors=1",
    "training.save_interval=0",
    "training.snapshot_interval=0",
    "telemetry.sample_interval_s=0.25",
];

/// Runs to its end with these phases delayed (`phase=milliseconds`).
fn run(delays: &str, overrides: &[&str]) -> Run {
    let run = Run::new();
    let overrides: Vec<&str> = SMALL.iter().chain(overrides).copied().collect();
    let mut command = run.training(&overrides);
    command.env("TANDEM_TEST_DELAYS", delays);
    tests::finish(command, LIMIT).success();
    run
}

fn verdict(run: &Run) -> Verdict {
    let summary: Value =
        serde_json::from_str(&std::fs::read_to_string(run.dir().join("summary.json")).unwrap()).unwrap();
    serde_json::from_value(summary["verdict"].clone()).unwrap()
}

fn samples(run: &Run) -> Vec<Sample> {
    let text = std::fs::read_to_string(run.dir().join(SAMPLES_FILE)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_slow_drafter_is_named() {
    let run = run("backward=1200", &["training.max_steps=10", "queue.capacity=2"]);
    let verdict = verdict(&run);
    assert_eq!(verdict.limit, Limit::Drafters, "{verdict:?}");
    assert!(verdict.sentence.contains("backward took"), "{verdict:?}");
}

#[test]
fn a_slow_target_is_named() {
    let verdict = verdict(&run("forward=800", &["training.max_steps=10"]));
    assert_eq!(verdict.limit, Limit::Targets, "{verdict:?}");
}

#[test]
fn slow_data_are_named() {
    let verdict = verdict(&run("data=800", &["training.max_steps=10"]));
    assert_eq!(verdict.limit, Limit::Data, "{verdict:?}");
}

/// The drafter works in bursts: a step of many batches, then a long update. With room for what the target makes meanwhile
/// nobody would wait.
#[test]
fn a_tiny_queue_is_named() {
    let tiny = ["queue.capacity=1", "queue.min_ready=1", "training.batches_per_step=8", "training.max_steps=5"];
    let verdict = verdict(&run("forward=300,optimizer=2400", &tiny));
    assert_eq!(verdict.limit, Limit::Queue, "{verdict:?}");
}

#[test]
fn a_host_without_cores_is_named() {
    let done = AtomicBool::new(false);
    let verdict = thread::scope(|scope| {
        let cores = thread::available_parallelism().unwrap().get();
        (0..cores * 4).for_each(|_| drop(scope.spawn(|| spin_until(&done))));
        let run = run("", &["training.max_steps=16", "training.num_anchors=16"]);
        done.store(true, Ordering::Relaxed);
        verdict(&run)
    });
    assert_eq!(verdict.limit, Limit::Host, "{verdict:?}");
}

fn spin_until(done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

#[test]
fn all_of_every_workers_time_is_some_phases() {
    let run = run("", &["training.max_steps=60", "run.pairs=2", "training.batches_per_step=2"]);
    let samples = samples(&run);
    let steady: Vec<&Sample> = samples.iter().filter(|sample| sample.is_steady()).collect();
    assert!(steady.len() >= 3, "{} of {} samples are steady", steady.len(), samples.len());
    let mut covered: BTreeMap<_, (f64, f64)> = BTreeMap::new();
    for worker in steady.iter().flat_map(|sample| sample.workers.iter().map(move |worker| (sample, worker))) {
        let (sample, worker) = worker;
        let sums = covered.entry((worker.role, worker.rank)).or_default();
        *sums = (sums.0 + worker.main_ns() as f64 / 1e9, sums.1 + sample.elapsed_s);
    }
    assert_eq!(covered.len(), 4);
    for (worker, (spent, elapsed)) in covered {
        assert!(spent >= elapsed * 0.98 && spent <= elapsed * 1.02, "{worker:?}: {spent} of {elapsed} seconds");
    }
    let mut tracks = samples.iter().flat_map(|sample| &sample.workers).flat_map(|worker| worker.stages.keys());
    assert!(tracks.all(|track| !track.is_of_gpu()), "a run on a processor has no GPU's times");
    let metrics = std::fs::read_to_string(run.dir().join(METRICS_FILE)).unwrap();
    let lines: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 6);
    for line in lines {
        let waited = line["wait_share"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&waited) && line["queue_ready"].as_u64().unwrap() <= 8, "{line}");
        assert!(line["stage_ms"]["backward"].as_f64().unwrap() > 0.0 && line.get("gpu_ms").is_none(), "{line}");
    }
}

#[test]
fn a_trace_of_steps_loads_and_its_spans_nest() {
    let run = run("", &["training.max_steps=20", "--trace-steps=5..8"]);
    let trace = trace(&run.dir().join("trace.json"));
    let steps: Vec<&str> = trace.iter().map(|span| &*span.name).filter(|name| name.starts_with("step ")).collect();
    assert_eq!(steps, ["step 5", "step 6", "step 7", "step 8"]);
    for name in ["forward", "backward", "optimizer"] {
        assert!(trace.iter().any(|span| span.name == name), "no {name}");
    }
}

#[test]
fn a_signal_asks_for_a_trace_of_what_came_before() {
    let run = Run::new();
    let mut command = run.training(&SMALL);
    command.arg("training.max_steps=1000000");
    let live = Live::start(&run, command);
    live.await_that("steps", || live.queue().is_some_and(|queue| queue.batches.trained >= 5));
    live.send(live.pid(), Signal::SIGUSR2);
    live.await_line("trace-1.json", std::time::Instant::now() - LIMIT);
    let trace = trace(&run.dir().join("trace-1.json"));
    assert!(trace.iter().any(|span| span.name == "backward"));
    live.send(live.pid(), Signal::SIGTERM);
    live.end();
}

struct Span {
    thread: (u64, u64),
    name: String,
    start: f64,
    end: f64,
}

/// Reads a trace as the format's description has it: complete events with all their fields, names of all processes and
/// threads, and spans of a thread that lie within one another or apart.
fn trace(path: &Path) -> Vec<Span> {
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut named = BTreeMap::new();
    let mut spans = Vec::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        let thread = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let name = event["name"].as_str().unwrap().to_owned();
        match event["ph"].as_str().unwrap() {
            "M" => drop(named.insert((thread, name), event["args"]["name"].as_str().unwrap().to_owned())),
            "X" => {
                let (start, duration) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
                assert!(start > 0.0 && duration >= 0.0 && event["cat"].is_string(), "{event}");
                assert!(named.contains_key(&(thread, "process_name".to_owned())), "{event}");
                spans.push(Span { thread, name, start, end: start + duration });
            }
            other => panic!("unexpected kind of event: {other}"),
        }
    }
    assert!(named.values().any(|name| name == "target 0") && named.values().any(|name| name == "drafter 0"));
    assert_nested(&mut spans);
    spans
}

fn assert_nested(spans: &mut [Span]) {
    spans.sort_by(|a, b| a.thread.cmp(&b.thread).then(a.start.total_cmp(&b.start)).then(b.end.total_cmp(&a.end)));
    // Microseconds with three decimals of nanoseconds: what is left is the arithmetic's.
    let slack = 0.01;
    let mut open: Vec<&Span> = Vec::new();
    for span in spans.iter() {
        open.retain(|outer| outer.thread == span.thread && outer.end > span.start + slack);
        let inside = open.iter().all(|outer| span.end <= outer.end + slack);
        assert!(inside, "{} from {} to {} crosses another span", span.name, span.start, span.end);
        open.push(span);
    }
}
