//! A million broken inputs: headers, slots' host parts, records. None panics, each is named for what it is, and no single
//! allocation on the way is larger than a record may be.
#![expect(unsafe_code, reason = "counts what is allocated")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod queue_world;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use bincode::{Decode, Encode};
use common::ids::BatchId;
use common::queue::{Details, HeaderError, Queue, RowsError, Snapshot};
use common::wire;
use queue_world::*;

/// The largest single allocation that decoding may ask for, in bytes.
const MOST: usize = 1024;
const HEADERS: u32 = 200_000;
const ROWS: u32 = 400_000;
const RECORDS: u32 = 400_000;
/// Whole segments, for the inspector, which may allocate as much as its answer needs.
const SEGMENTS: u32 = 5_000;

struct Counting;

thread_local! {
    /// Bytes of the thread's largest allocation.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(bytes: usize) {
    LARGEST.set(LARGEST.get().max(bytes));
}

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Does it, and fails if that took one allocation of more than [`MOST`] bytes.
fn frugally<T>(decode: impl FnOnce() -> T) -> T {
    LARGEST.set(0);
    let decoded = decode();
    let largest = LARGEST.get();
    assert!(largest <= MOST, "one allocation of {largest} bytes");
    decoded
}

/// A xorshift generator: the same inputs each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        ((self.next() >> 32) as usize * limit) >> 32
    }

    /// Changes up to eight places: a bit, a byte, or a word that decoders trip over.
    fn damage(&mut self, bytes: &mut [u8]) {
        const ODD: [u64; 6] = [0, 1, 0xFF, u32::MAX as u64, 1 << 40, u64::MAX];
        for _ in 0..=self.below(8) {
            let at = self.below(bytes.len());
            match self.below(4) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.next() as u8,
                choice => {
                    let word = if choice == 2 { ODD[self.below(ODD.len())] } else { self.next() };
                    let aligned = at / 8 * 8;
                    let len = (bytes.len() - aligned).min([4, 8][self.below(2)]);
                    bytes[aligned..aligned + len].copy_from_slice(&word.to_le_bytes()[..len]);
                }
            }
        }
    }
}

/// A segment of a run whose workers are dead, with a batch READY in slot 0.
struct Corpse {
    name: String,
    bytes: Vec<u8>,
    file: File,
}

impl Corpse {
    fn new() -> Corpse {
        let spec = spec(3);
        let queue = Queue::create(&spec).unwrap();
        publish(claim(&producer(&queue, 0)), 0);
        let name = forge(&spec.name(), &format!("{}-corpse", spec.run_id));
        let file = File::options().read(true).write(true).open(format!("/dev/shm/{name}")).unwrap();
        keep_from_sweeps(&file);
        let bytes = fs::read(format!("/dev/shm/{name}")).unwrap();
        Corpse { name, bytes, file }
    }

    /// Damages a part of it.
    fn damage(&self, random: &mut Random, part: Range<usize>) {
        let mut bytes = self.bytes[part.clone()].to_vec();
        random.damage(&mut bytes);
        self.file.write_all_at(&bytes, part.start as u64).unwrap();
    }
}

impl Drop for Corpse {
    fn drop(&mut self) {
        fs::remove_file(format!("/dev/shm/{}", self.name)).unwrap();
    }
}

/// Bytes of a segment's header.
const HEADER: Range<usize> = 0..192;

#[test]
fn damaged_headers_are_named() {
    let (corpse, mut random) = (Corpse::new(), Random(0x9E37_79B9_7F4A_7C15));
    let mut kinds = [0u32; 8];
    for _ in 0..HEADERS {
        corpse.damage(&mut random, HEADER);
        let kind =
            match frugally(|| Queue::attach(&corpse.name).map(|_| ()).map_err(|error| (error.to_string(), error))) {
                Ok(()) => 0,
                Err((text, error)) => {
                    assert!(text.contains(&corpse.name), "{text}");
                    match error {
                        HeaderError::NotAQueue { .. } => 1,
                        HeaderError::NotReady { .. } => 2,
                        HeaderError::OtherBuild { .. } => 3,
                        HeaderError::OtherBoot { .. } => 4,
                        HeaderError::OtherRun { .. } => 5,
                        HeaderError::Length { .. } => 6,
                        other => panic!("{other}"),
                    }
                }
            };
        kinds[kind] += 1;
    }
    assert!(kinds[..7].iter().all(|count| *count > 10), "each kind is met: {kinds:?}");
}

#[test]
fn damaged_segments_do_not_panic_the_inspector() {
    let (corpse, mut random) = (Corpse::new(), Random(0xD1B5_4A32_D192_ED03));
    for round in 0..SEGMENTS {
        // Headers mostly stay, or nothing behind them would be looked at.
        let start = if round % 10 == 0 { 0 } else { HEADER.end };
        let end = corpse.bytes.len() / (1 + random.below(16));
        corpse.damage(&mut random, start..end);
        let _ = Snapshot::read(&corpse.name);
        let _ = Details::read(&corpse.name);
        if round % 8 == 0 {
            corpse.file.write_all_at(&corpse.bytes, 0).unwrap();
        }
    }
}

/// What lies in front of a slot's rows: the encoded record, in so many bytes.
const RECORD: usize = 256;

#[test]
fn damaged_slots_are_named() {
    let spec = spec(3);
    let queue = Queue::create(&spec).unwrap();
    publish(claim(&producer(&queue, 0)), 0);
    let (consumer, path) = (consumer(&queue, 0), format!("/dev/shm/{}", spec.name()));
    let lease = pop(&consumer);
    let good = rows(BatchId(0));
    assert_eq!(frugally(|| lease.rows()).unwrap(), good);
    let whole = fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let tokens: Vec<u8> = good.token_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let record = [&0u64.to_le_bytes()[..], &(good.num_tokens() as u32).to_le_bytes(), &1u32.to_le_bytes()].concat();
    let is_there = |at: &usize| whole[*at..].starts_with(&record) && whole[at + RECORD..].starts_with(&tokens);
    let at = (0..whole.len() - 512).step_by(128).find(is_there).expect("the slot's host part");
    let part = at..at + RECORD + tokens.len() + 64;
    let (mut random, mut seen) = (Random(0xA076_1D64_78BD_642F), [0u32; 3]);
    for _ in 0..ROWS {
        let mut bytes = whole[part.clone()].to_vec();
        // Half the damage goes to the record alone.
        let end = if random.below(2) == 0 { record.len() } else { bytes.len() };
        random.damage(&mut bytes[..end]);
        file.write_all_at(&bytes, part.start as u64).unwrap();
        seen[match frugally(|| lease.rows()) {
            Ok(found) => {
                assert_eq!(found, good, "what passes the checksum is what was written");
                0
            }
            Err(RowsError::Checksum { .. }) => 1,
            Err(RowsError::Record(_)) => 2,
            Err(other) => panic!("{other}"),
        }] += 1;
    }
    assert!(seen[1] > ROWS / 10, "{seen:?}");
}

/// A record with everything that a decoder can be led astray by.
#[derive(Debug, PartialEq, Encode, Decode)]
struct Record {
    number: u64,
    name: String,
    shape: Vec<u32>,
    flags: Vec<Option<bool>>,
    nested: Vec<(u64, Vec<u8>)>,
}

#[test]
fn damaged_records_are_named() {
    let record = Record {
        number: 7,
        name: "target 0".into(),
        shape: vec![1, 2, 3],
        flags: vec![None, Some(true)],
        nested: vec![(1, vec![1, 2]), (2, vec![])],
    };
    let good = wire::encode(&record).unwrap();
    let (mut random, mut refused) = (Random(0xE703_7ED1_A0B4_28DB), 0);
    for round in 0..RECORDS {
        let mut bytes = good.clone();
        match round % 4 {
            0 => bytes = (0..random.below(64)).map(|_| random.next() as u8).collect(),
            1 => bytes.truncate(random.below(good.len())),
            _ => random.damage(&mut bytes),
        }
        refused += u32::from(frugally(|| wire::decode::<Record>(&bytes).map_err(|error| error.to_string())).is_err());
    }
    assert!(refused > RECORDS / 2 && refused < RECORDS, "{refused}");
}
