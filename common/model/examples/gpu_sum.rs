//! Sums over two GPUs, one process each: the right values, their speed, and an end when a rank dies.
//!
//! ```text
//! gpu_sum             runs both ranks and prints JSON lines; without two GPUs it says so and passes
//! ```

#![allow(clippy::unwrap_used, reason = "a check stops at the first surprise")]
#![allow(clippy::print_stdout, reason = "its output is its result")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::config::Device as Wanted;
use common::ids::Rank;
use common::shutdown::Shutdown;
use common::wait::Patience;
use model::sum::{DeviceSum, UniqueId, unique_id};
use tch::{Device, Kind, Tensor};

const RANKS: u32 = 2;
const VALUES: i64 = 1 << 28; // 1 GiB of float32

fn main() {
    model::runtime::start(Wanted::Auto, Rank(0), 1).unwrap();
    let arguments: Vec<String> = std::env::args().collect();
    match &arguments[1..] {
        [id, rank] => member(id, rank.parse().unwrap()),
        _ if tch::Cuda::device_count() < i64::from(RANKS) => {
            println!("{{\"name\": \"gpu_sum\", \"skipped\": \"needs 2 GPUs\"}}")
        }
        _ => lead(),
    }
}

fn lead() {
    let id: String = unique_id().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    let program = std::env::current_exe().unwrap();
    let start = |rank: u32| Command::new(&program).args([&id, &rank.to_string()]).spawn().unwrap();
    let members: Vec<_> = (0..RANKS).map(start).collect();
    for mut member in members {
        assert!(member.wait().unwrap().success(), "a rank failed");
    }
}

fn member(id: &str, rank: u32) {
    let bytes: Vec<u8> = (0..128).map(|k| u8::from_str_radix(&id[2 * k..2 * k + 2], 16).unwrap()).collect();
    let id: UniqueId = bytes.try_into().unwrap();
    let patience = Patience { timeout: Duration::from_secs(60), shutdown: Shutdown::never() };
    let (end, ended) = (Arc::new(AtomicBool::new(false)), |end: &AtomicBool| end.load(Ordering::Relaxed));
    let watched = Arc::clone(&end);
    let sum = DeviceSum::join(&id, (Rank(rank), RANKS), rank as usize, &patience, move || ended(&watched)).unwrap();
    let device = Device::Cuda(rank as usize);
    right_values(&sum, rank, device, &patience);
    speed(&sum, rank, device, &patience);
    if rank == 0 {
        outlives_a_rank(&sum, device, &patience, end);
    }
}

fn right_values(sum: &DeviceSum, rank: u32, device: Device, patience: &Patience) {
    let values = Tensor::arange(1000, (Kind::Float, device)) * f64::from(rank + 1);
    let counts = Tensor::full([3], f64::from(rank) + 0.5, (Kind::Double, device));
    sum.sum(&[&values, &counts], patience).unwrap();
    assert!(values.equal(&(Tensor::arange(1000, (Kind::Float, device)) * 3.0)), "values");
    assert!(counts.equal(&Tensor::full([3], 2.0, (Kind::Double, device))), "counts");
}

fn speed(sum: &DeviceSum, rank: u32, device: Device, patience: &Patience) {
    let values = Tensor::ones([VALUES], (Kind::Float, device));
    let round = || {
        tch::Cuda::synchronize(i64::from(rank));
        let start = Instant::now();
        sum.sum(&[&values], patience).unwrap();
        tch::Cuda::synchronize(i64::from(rank));
        start.elapsed().as_secs_f64()
    };
    let best = (0..6).map(|_| round()).fold(f64::INFINITY, f64::min);
    if rank == 0 {
        println!("{{\"name\": \"sum of 1 GiB over 2 GPUs\", \"value\": {:.2}, \"unit\": \"ms\"}}", best * 1e3);
    }
}

/// The other rank has gone, or goes: the sum never comes, and the sign to end it is seen while it is waited for.
fn outlives_a_rank(sum: &DeviceSum, device: Device, patience: &Patience, end: Arc<AtomicBool>) {
    let values = Tensor::ones([1024], (Kind::Float, device));
    let start = Instant::now();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        end.store(true, Ordering::Relaxed);
    });
    let _ = sum.sum(&[&values], patience);
    assert!(sum.finish(patience).is_err(), "a sum that never came is no success");
    thread.join().unwrap();
    assert!(sum.sum(&[&values], patience).is_err(), "a sum after the end fails");
    let seconds = start.elapsed().as_secs_f64();
    assert!(seconds < 10.0, "the abort took {seconds} s");
    println!(
        "{{\"name\": \"abort of a sum whose other rank died\", \"value\": {:.2}, \"unit\": \"s, 1 s of it waited on purpose\"}}",
        seconds
    );
}
