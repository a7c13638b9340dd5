//! The queue between two processes: batches of 64 KiB, written by one and summed by the other, with every step that a
//! run takes (claim, publish with rows and their checksum, pop, release, trained). Prints JSON lines;
//! `scripts/bench-queue.sh` runs it in turn with its rivals, which have the same payload, pace and warm-up.
#![expect(unsafe_code, reason = "payloads are raw bytes in shared memory")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark for the terminal")]

use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use common::config::{GateMode, PopPolicy};
use common::ids::{Rank, SlotIndex, Step};
use common::queue::{Consumer, Queue, QueueSpec, Rows, arena_name, queue_name};
use common::shm::Segment;
use common::shutdown::Shutdown;
use common::wait::Patience;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

const PAYLOAD: usize = 64 << 10;
const CAPACITY: u32 = 8;
const SATURATED: u64 = 20_000;
const PACED: u64 = 3_000;
const PACE: Duration = Duration::from_micros(200);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("produce") => produce(&arguments[2], arguments[3] == "paced"),
        _ => {
            let (seconds, _) = measure("saturated", SATURATED);
            print("queue/items_per_s/64KiB", SATURATED as f64 / seconds, "items/s");
            let (seconds, _) = measure("rows", SATURATED);
            print("queue/items_per_s_rows_read_back/64KiB", SATURATED as f64 / seconds, "items/s");
            let (_, mut ages) = measure("paced", PACED);
            ages.sort_unstable();
            let at = |share: f64| ages[(share * (ages.len() - 1) as f64) as usize] as f64 / 1000.0;
            print("queue/publish_to_pop_p50/64KiB", at(0.5), "us");
            print("queue/publish_to_pop_p99/64KiB", at(0.99), "us");
        }
    }
}

/// Items that are passed but not counted, before the others.
fn warm_up(items: u64) -> u64 {
    items / 10
}

/// Each side has a core of its own; without a second one the kernel refuses, and they share.
fn pin(core: usize) {
    let mut cores = CpuSet::new();
    let _ = cores.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores));
}

fn print(name: &str, value: f64, unit: &str) {
    println!(r#"{{"name":"{name}","value":{value:.1},"unit":"{unit}"}}"#);
}

fn now() -> u64 {
    Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos() as u64
}

fn patience() -> Patience {
    Patience { timeout: Duration::from_secs(60), shutdown: Shutdown::never() }
}

/// A slot's bytes. Only its owner asks for them.
#[expect(clippy::mut_from_ref, reason = "the queue says whose the slot is")]
fn payload(arena: &Segment, slot: SlotIndex) -> &mut [u8] {
    // SAFETY: the arena has room for every slot.
    let start = unsafe { arena.as_ptr().add(slot.0 as usize * PAYLOAD) };
    // SAFETY: whoever holds a slot's lease is alone with its bytes; all bytes are valid.
    unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), PAYLOAD) }
}

fn spec(run_id: &str, batches: u64) -> QueueSpec {
    QueueSpec {
        run_id: run_id.into(),
        capacity: CAPACITY,
        batch_tokens: 64,
        max_documents: 1,
        slot_bytes: PAYLOAD as u64,
        bucket_bounds: vec![64],
        min_ready: 1,
        gate: GateMode::Level,
        policy: PopPolicy::Mixed,
        max_age: Duration::from_secs(5),
        targets: 1,
        drafters: 1,
        total_batches: batches,
        seed: 1,
    }
}

/// Consumes what a second process produces: seconds in all, and nanoseconds from each publication to its pop.
fn measure(mode: &str, items: u64) -> (f64, Vec<u64>) {
    let run_id = format!("bench-{}-{mode}", std::process::id());
    let queue = Queue::create(&spec(&run_id, warm_up(items) + items)).unwrap();
    let arena = Segment::create(&arena_name(&run_id), CAPACITY as usize * PAYLOAD).unwrap();
    let consumer = queue.consumer(Rank(0)).unwrap();
    let own = std::env::current_exe().unwrap();
    let mut child = Command::new(own).args(["produce", &run_id, mode]).spawn().unwrap();
    pin(0);
    let patience = patience();
    let take = || consume(&consumer, &arena, &patience, mode == "rows");
    (0..warm_up(items)).for_each(|_| assert_ne!(take(), None));
    let started = Instant::now();
    let ages: Vec<u64> = (0..items).map(|_| take().unwrap()).collect();
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!(take(), None, "the stream has ended");
    let status: ExitStatus = child.wait().unwrap();
    assert!(status.success());
    (seconds, ages)
}

/// Takes one item through all its steps; its age at the pop in nanoseconds.
fn consume(consumer: &Consumer, arena: &Segment, patience: &Patience, reads_rows: bool) -> Option<u64> {
    let lease = consumer.pop(patience).unwrap()?;
    let popped = now();
    let bytes = payload(arena, lease.slot());
    let age = popped - u64::from_ne_bytes(bytes[..8].try_into().unwrap());
    assert_ne!(sum(bytes), 0);
    if reads_rows {
        assert_eq!(lease.rows().unwrap().num_tokens(), 64);
    }
    let batch = lease.batch_id();
    lease.release().unwrap();
    consumer.trained(&[batch], Step(batch.0)).unwrap();
    Some(age)
}

/// What stands for using the payload.
fn sum(bytes: &[u8]) -> u64 {
    bytes.as_chunks::<8>().0.iter().fold(0, |sum: u64, chunk| sum.wrapping_add(u64::from_ne_bytes(*chunk)))
}

fn produce(run_id: &str, is_paced: bool) {
    pin(1);
    let queue = Queue::attach(&queue_name(run_id)).unwrap();
    let arena = Segment::attach(&arena_name(run_id)).unwrap();
    let producer = queue.producer(Rank(0)).unwrap();
    let (patience, source) = (patience(), vec![7u8; PAYLOAD]);
    let rows =
        Rows { token_ids: (0..64).collect(), loss_mask: vec![1; 64], document_offsets: vec![0, 64], row_ids: vec![1] };
    while let Some(lease) = producer.claim(&patience).unwrap() {
        let bytes = payload(&arena, lease.slot());
        bytes.copy_from_slice(&source);
        bytes[..8].copy_from_slice(&now().to_ne_bytes());
        lease.publish(0, &rows).unwrap();
        if is_paced {
            thread::sleep(PACE);
        }
    }
}
