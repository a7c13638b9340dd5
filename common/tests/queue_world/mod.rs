//! What the queue's outside tests share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::config::{GateMode, PopPolicy};
use common::ids::{BatchId, Rank};
use common::queue::{Consumer, Producer, Queue, QueueSpec, ReadLease, Rows, WriteLease, queue_name};
use common::shutdown::Shutdown;
use common::wait::Patience;
use nix::fcntl::{FcntlArg, fcntl};

/// A small queue of this test alone: 4 slots of 64 tokens, two buckets, 2 targets, 2 drafters.
pub(crate) fn spec(total_batches: u64) -> QueueSpec {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    QueueSpec {
        run_id: format!("test-queue-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)),
        capacity: 4,
        batch_tokens: 64,
        max_documents: 8,
        slot_bytes: 4096,
        bucket_bounds: vec![16, 64],
        min_ready: 1,
        gate: GateMode::Level,
        policy: PopPolicy::Mixed,
        max_age: Duration::from_secs(5),
        targets: 2,
        drafters: 2,
        total_batches,
        seed: 7,
    }
}

/// Copies a segment under another run's name, as if that run had made it; gives the name.
pub(crate) fn forge(original: &str, run_id: &str) -> String {
    /// Where a header has its run id.
    const RUN_ID: std::ops::Range<usize> = 48..112;
    let mut bytes = fs::read(format!("/dev/shm/{original}")).expect("the original is there");
    bytes[RUN_ID].fill(0);
    bytes[RUN_ID][..run_id.len()].copy_from_slice(run_id.as_bytes());
    let path = format!("/dev/shm/{}", queue_name(run_id));
    fs::write(&path, bytes).expect("room for a copy");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    queue_name(run_id)
}

/// Locks the byte of a forged segment by which sweeps see a living creator: another run of this machine may start, and
/// sweep, at any time.
pub(crate) fn keep_from_sweeps(file: &File) {
    let byte = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 255,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&byte)).expect("nobody has it");
}

/// Looks again and again until it holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let late = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < late, "{what}: not in 20 s");
        thread::sleep(Duration::from_micros(50));
    }
}

pub(crate) fn patience(timeout_ms: u64) -> Patience {
    Patience { timeout: Duration::from_millis(timeout_ms), shutdown: Shutdown::never() }
}

/// Rows that only batch `batch` can have.
pub(crate) fn rows(batch: BatchId) -> Rows {
    let documents = batch.0 % 3 + 1;
    let tokens = documents as u32 * (batch.0 as u32 % 20 + 1);
    Rows {
        token_ids: (0..tokens).map(|token| token ^ (batch.0 as u32).wrapping_mul(0x9E37)).collect(),
        loss_mask: (0..tokens).map(|token| (token % 2) as u8).collect(),
        document_offsets: (0..=documents as u32).map(|row| row * (batch.0 as u32 % 20 + 1)).collect(),
        row_ids: (0..documents).map(|row| batch.0 << 20 | row).collect(),
    }
}

pub(crate) fn producer(queue: &Queue, rank: u32) -> Producer {
    queue.producer(Rank(rank)).expect("the place is free")
}

pub(crate) fn consumer(queue: &Queue, rank: u32) -> Consumer {
    queue.consumer(Rank(rank)).expect("the place is free")
}

pub(crate) fn claim(producer: &Producer) -> WriteLease {
    producer.claim(&patience(5000)).expect("no error").expect("a batch")
}

pub(crate) fn publish(lease: WriteLease, bucket: u32) -> BatchId {
    let batch = lease.batch_id();
    lease.publish(bucket, &rows(batch)).expect("published");
    batch
}

pub(crate) fn pop(consumer: &Consumer) -> ReadLease {
    consumer.pop(&patience(5000)).expect("no error").expect("a batch")
}
