//! The same work as `benches/queue.rs` (64 KiB copied in and stamped by one side, summed by the other, as many items, the
//! same warm-up and pace, each side on a core of its own), passed by crossbeam's `ArrayQueue` between two threads and by
//! iceoryx2's publish-subscribe between two processes. Both poll: neither has a way to sleep until something comes.

use std::hint::black_box;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_queue::ArrayQueue;
use iceoryx2::prelude::*;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

const PAYLOAD: usize = 64 << 10;
const CAPACITY: usize = 8;
const SATURATED: usize = 20_000;
const PACED: usize = 3_000;
const PACE: Duration = Duration::from_micros(200);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    iceoryx2::prelude::set_log_level(LogLevel::Error);
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|first| first == "publish") {
        return publish(&arguments[2], arguments[3] == "paced");
    }
    report("crossbeam", array_queue)?;
    report("iceoryx2", subscribe)
}

fn count(is_paced: bool) -> usize {
    if is_paced { PACED } else { SATURATED }
}

/// Items that are passed but not counted, before the others.
fn warm_up(is_paced: bool) -> usize {
    count(is_paced) / 10
}

/// Each side has a core of its own; without a second one the kernel refuses, and they share.
fn pin(core: usize) {
    let mut cores = CpuSet::new();
    let _ = cores.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores));
}

/// Takes all items: the seconds for those that count, and their ages.
fn take_all(is_paced: bool, mut take: impl FnMut() -> Outcome<u64>) -> Outcome<(f64, Vec<u64>)> {
    for _ in 0..warm_up(is_paced) {
        take()?;
    }
    let started = Instant::now();
    let ages = (0..count(is_paced)).map(|_| take()).collect::<Outcome<Vec<u64>>>()?;
    Ok((started.elapsed().as_secs_f64(), ages))
}

fn report(name: &str, measure: fn(bool) -> Outcome<(f64, Vec<u64>)>) -> Outcome<()> {
    let (seconds, _) = measure(false)?;
    print(name, "items_per_s", SATURATED as f64 / seconds, "items/s");
    let (_, mut ages) = measure(true)?;
    ages.sort_unstable();
    let at = |share: f64| ages[(share * (ages.len() - 1) as f64) as usize] as f64 / 1000.0;
    print(name, "publish_to_pop_p50", at(0.5), "us");
    print(name, "publish_to_pop_p99", at(0.99), "us");
    Ok(())
}

fn print(rival: &str, what: &str, value: f64, unit: &str) {
    println!(r#"{{"name":"{rival}/{what}/64KiB","value":{value:.1},"unit":"{unit}"}}"#);
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64
}

fn fill(bytes: &mut [u8], source: &[u8]) {
    bytes.copy_from_slice(source);
    bytes[..8].copy_from_slice(&now().to_ne_bytes());
}

/// The payload's age, once it was read whole.
fn use_up(bytes: &[u8], popped: u64) -> u64 {
    let words = bytes.as_chunks::<8>().0.iter();
    black_box(words.fold(0, |sum: u64, chunk| sum.wrapping_add(u64::from_ne_bytes(*chunk))));
    popped.saturating_sub(u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes")))
}

/// Two rings of buffers, one there, one back, between two threads.
fn array_queue(is_paced: bool) -> Outcome<(f64, Vec<u64>)> {
    let (full, empty) = (ArrayQueue::new(CAPACITY), ArrayQueue::new(CAPACITY));
    (0..CAPACITY).for_each(|_| drop(empty.push(vec![0u8; PAYLOAD])));
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let source = vec![7u8; PAYLOAD];
            for _ in 0..warm_up(is_paced) + count(is_paced) {
                let mut buffer = poll(|| empty.pop());
                fill(&mut buffer, &source);
                drop(full.push(buffer));
                if is_paced {
                    thread::sleep(PACE);
                }
            }
        });
        pin(0);
        take_all(is_paced, || {
            let buffer = poll(|| full.pop());
            let age = use_up(&buffer, now());
            drop(empty.push(buffer));
            Ok(age)
        })
    })
}

fn poll<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    loop {
        match ask() {
            Some(got) => return got,
            None => thread::yield_now(),
        }
    }
}

fn subscribe(is_paced: bool) -> Outcome<(f64, Vec<u64>)> {
    let mode = if is_paced { "paced" } else { "saturated" };
    let name = format!("bench-{}-{mode}", std::process::id());
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = node
        .service_builder(&name.as_str().try_into()?)
        .publish_subscribe::<[u8]>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(CAPACITY)
        .open_or_create()?;
    let subscriber = service.subscriber_builder().create()?;
    let mut child =
        Command::new(std::env::current_exe()?).args(["publish", &name, mode]).stdin(Stdio::piped()).spawn()?;
    pin(0);
    let taken = take_all(is_paced, || {
        let sample = poll(|| subscriber.receive().transpose())?;
        Ok(use_up(sample.payload(), now()))
    });
    drop(child.stdin.take());
    child.wait()?;
    taken
}

fn publish(name: &str, is_paced: bool) -> Outcome<()> {
    pin(1);
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = node
        .service_builder(&name.try_into()?)
        .publish_subscribe::<[u8]>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(CAPACITY)
        .open_or_create()?;
    let publisher = service
        .publisher_builder()
        .initial_max_slice_len(PAYLOAD)
        .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
        .create()?;
    let source = vec![7u8; PAYLOAD];
    for _ in 0..warm_up(is_paced) + count(is_paced) {
        let mut sample = publisher.loan_slice_uninit(PAYLOAD)?.write_from_slice(&source);
        sample.payload_mut()[..8].copy_from_slice(&now().to_ne_bytes());
        sample.send()?;
        if is_paced {
            thread::sleep(PACE);
        }
    }
    // What was sent goes when its publisher goes: stay until the subscriber has closed the pipe.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
