//! A GPU's own times, on a GPU: on the host's clock, parted by marks, and idle where it is. Without one every test ends well.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first surprise, and says what it skips"
)]

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::config::{Device as Wanted, GateMode, PopPolicy};
use common::ids::{Rank, Role};
use common::queue::{Phase, Producer, Queue, QueueOwner, QueueSpec, SpanView, Spans, Track, monotonic_ns};
use model::cuda::GpuWatch;
use tch::{Cuda, Device, Kind, Tensor};

/// What docs/telemetry.md says of how far a GPU's times may be off the host's clock.
const TOLERANCE_NS: u64 = 50_000;
/// One GPU, one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A target's place at a queue of its own, with its GPU watched.
struct World {
    queue: QueueOwner,
    producer: Producer,
    watch: Option<GpuWatch>,
    device: Device,
}

impl World {
    fn new(name: &str) -> Option<World> {
        static DEVICE: OnceLock<Device> = OnceLock::new();
        let device = *DEVICE.get_or_init(|| model::runtime::start(Wanted::Auto, Rank(0), 1).unwrap());
        if device == Device::Cpu {
            eprintln!("skipped: no GPU");
            return None;
        }
        let spec = QueueSpec {
            run_id: format!("gpu-watch-{name}-{}", std::process::id()),
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
        let producer = queue.producer(Rank(0)).unwrap();
        let watch = GpuWatch::start(device, || None, |track| producer.gpu_track(track));
        producer.mark_phases(watch.as_ref().unwrap().marker());
        Some(World { queue, producer, watch, device })
    }

    fn synchronize(&self) {
        let Device::Cuda(ordinal) = self.device else { return };
        Cuda::synchronize(ordinal as i64);
    }

    /// Ends the watch; what it saw.
    fn spans(&mut self) -> Vec<SpanView> {
        self.synchronize();
        drop(self.watch.take());
        Spans::open(&self.queue.snapshot().name).unwrap().of((Role::Target, Rank(0)), Track::Gpu, 0)
    }
}

fn total(spans: &[SpanView], phase: Phase) -> f64 {
    spans.iter().filter(|span| span.phase == phase).map(|span| (span.to_ns - span.from_ns) as f64 / 1e6).sum()
}

#[test]
fn times_are_on_the_hosts_clock() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut world) = World::new("clock") else { return };
    let matrix = Tensor::ones([2048, 2048], (Kind::Float, world.device)) / 2048.0;
    let mut bounds = BTreeMap::new();
    for round in 1..=100 {
        world.producer.about(round);
        world.synchronize();
        let before = monotonic_ns();
        world.producer.phase(Phase::Forward);
        let entered = monotonic_ns();
        (0..10).for_each(|_| drop(matrix.matmul(&matrix)));
        world.producer.phase(Phase::Data);
        world.synchronize();
        bounds.insert(round, (before, entered, monotonic_ns()));
        // Longer than a clock's reading holds.
        thread::sleep(Duration::from_millis(25));
    }
    let spans = world.spans();
    let (mut early, mut late, mut begins, mut seen) = (0, 0, 0, 0);
    for span in spans.iter().filter(|span| span.phase == Phase::Forward) {
        let (before, entered, after) = bounds[&span.about];
        early = early.max(before.saturating_sub(span.from_ns));
        late = late.max(span.to_ns.saturating_sub(after));
        begins = begins.max(span.from_ns.saturating_sub(entered));
        seen += 1;
    }
    eprintln!(
        "{seen} spans: at most {early} ns before the host began, {late} ns after it saw the end, begun {begins} ns late"
    );
    assert_eq!(seen, 100);
    assert!(early <= TOLERANCE_NS && late <= TOLERANCE_NS, "{early} {late}");
    assert!(spans.windows(2).all(|pair| pair[0].to_ns == pair[1].from_ns), "every moment is somebody's");
}

#[test]
fn a_gpu_that_waits_for_its_host_is_idle_and_one_that_does_not_is_not() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut world) = World::new("idle") else { return };
    let (small, large) =
        (Tensor::ones(64, (Kind::Float, world.device)), Tensor::ones([4096, 4096], (Kind::Float, world.device)));
    drop(large.matmul(&large));
    world.synchronize();
    world.producer.phase(Phase::Draft);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(1) {
        drop(&small + 1.0);
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_micros(200) {}
    }
    world.producer.phase(Phase::Backward);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(1) {
        (0..20).for_each(|_| drop(large.matmul(&large)));
        world.synchronize();
    }
    world.producer.phase(Phase::Data);
    let spans = world.spans();
    let [draft, backward, idle] = [Phase::Draft, Phase::Backward, Phase::Idle].map(|phase| total(&spans, phase));
    eprintln!("draft {draft:.0} ms at work, backward {backward:.0} ms, idle {idle:.0} ms");
    assert!(draft < 500.0, "a small kernel every 200 us is no work: {draft} ms");
    assert!(backward > 800.0, "products without a pause are work: {backward} ms");
    assert!(idle > 500.0, "{idle} ms idle");
}

/// Says what a mark costs the host; what it may cost is no test's to decide.
#[test]
fn marks_are_left_without_a_wait_for_the_gpu() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut world) = World::new("cost") else { return };
    let producer = world.producer.clone();
    let change = |times: u32| {
        let started = Instant::now();
        for _ in 0..times / 2 {
            producer.phase(Phase::Forward);
            producer.phase(Phase::Data);
        }
        started.elapsed() / times
    };
    let mut marked: Vec<Duration> = Vec::new();
    for _ in 0..40 {
        marked.push(change(200));
        // Time to take them.
        thread::sleep(Duration::from_millis(6));
    }
    marked.sort_unstable();
    let large = Tensor::ones([8192, 8192], (Kind::Float, world.device));
    (0..40).for_each(|_| drop(large.matmul(&large)));
    let started = Instant::now();
    let behind_work = change(100);
    let queued = started.elapsed();
    world.synchronize();
    let ended = started.elapsed();
    eprintln!("a change of phase with a mark takes {:?}, behind {ended:?} of work {behind_work:?}", marked[20]);
    assert!(queued < ended / 2, "marks wait for the GPU: {queued:?} of {ended:?}");
    drop(world.spans());
}
