//! The first bytes of a control segment: written once by the launcher, checked by everybody who opens it.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use thiserror::Error;

use super::ring::layout::geometry::{Geometry, Sizes};
use super::ring::layout::{ABI, Bucket, Header, INITIALISING, LAYOUT_HASH, MAGIC, READY, RUN_ID_BYTES};
use super::ring::policy::Rules;
use super::spec::{QueueSpec, queue_name};
use crate::config::{GateMode, PopPolicy};
use crate::shm::{Mapped, ShmError};
use crate::sync::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Why a segment is not a queue that this build can use.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The memory itself cannot be had.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// Not a control segment.
    #[error("/dev/shm/{name} is not a Tandem queue")]
    NotAQueue {
        /// The segment.
        name: String,
    },
    /// The launcher has not finished it, or died before.
    #[error("/dev/shm/{name} is not ready: its launcher is still creating it, or died doing so")]
    NotReady {
        /// The segment.
        name: String,
    },
    /// Another version of Tandem made it.
    #[error(
        "/dev/shm/{name} was made by another build (ABI {found}, layout {layout:016x}); this one has ABI {ABI}, layout {LAYOUT_HASH:016x}: use the program that started the run"
    )]
    OtherBuild {
        /// The segment.
        name: String,
        /// Its ABI number.
        found: u32,
        /// Its layout hash.
        layout: u64,
    },
    /// It is from before the machine was started.
    #[error("/dev/shm/{name} is from an earlier boot of this machine or from another one: remove it")]
    OtherBoot {
        /// The segment.
        name: String,
    },
    /// It is another run's, under this one's name.
    #[error("/dev/shm/{name} holds the queue of run {found:?}: it was copied or renamed")]
    OtherRun {
        /// The segment.
        name: String,
        /// The run that it was made for.
        found: String,
    },
    /// Shorter or longer than its own header says.
    #[error("/dev/shm/{name} has {found} bytes, its header wants {expected}: it was cut or overwritten")]
    Length {
        /// The segment.
        name: String,
        /// Bytes there are.
        found: usize,
        /// Bytes there should be; 0 if its sizes make no sense.
        expected: u64,
    },
}

/// What the header says.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) run_id: String,
    pub(super) geometry: Geometry,
    pub(super) rules: Rules,
    pub(super) targets: u32,
    pub(super) drafters: u32,
    pub(super) slot_bytes: u64,
    pub(super) creator_pid: u32,
}

/// Fills in a new segment; the last store makes it usable.
pub(super) fn write(segment: &impl Mapped, spec: &QueueSpec, geometry: &Geometry) {
    let header: &Header = segment.view(0);
    header.state.store(INITIALISING, Relaxed);
    header.magic.store(MAGIC, Relaxed);
    header.abi.store(ABI, Relaxed);
    header.layout_hash.store(LAYOUT_HASH, Relaxed);
    header.total_len.store(geometry.total as u64, Relaxed);
    store_all(&header.boot_id, &boot_id());
    store_all(&header.run_id, spec.run_id.as_bytes());
    header.creator_pid.store(std::process::id(), Relaxed);
    header.capacity.store(spec.capacity, Relaxed);
    header.batch_tokens.store(spec.batch_tokens, Relaxed);
    header.max_documents.store(spec.max_documents, Relaxed);
    header.buckets.store(geometry.sizes.buckets, Relaxed);
    header.targets.store(spec.targets, Relaxed);
    header.drafters.store(spec.drafters, Relaxed);
    header.min_ready.store(spec.min_ready, Relaxed);
    header.policy.store(u32::from(spec.policy == PopPolicy::Strict), Relaxed);
    header.gate.store(u32::from(spec.gate == GateMode::Latch), Relaxed);
    header.max_age_ns.store(u64::try_from(spec.max_age.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    header.total_batches.store(spec.total_batches, Relaxed);
    header.slot_bytes.store(spec.slot_bytes, Relaxed);
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    header.created_ns.store(since_1970.as_nanos() as u64, Relaxed);
    let buckets = segment.slice::<Bucket>(geometry.buckets, geometry.sizes.buckets as usize);
    for (bucket, bound) in buckets.iter().zip(spec.buckets()) {
        bucket.bound.store(bound, Relaxed);
    }
}

/// INIT: Release, paired with the Acquire of [`read`].
pub(super) fn open_for_use(segment: &impl Mapped) {
    segment.view::<Header>(0).state.store(READY, Release);
}

/// Reads and checks, so that what follows can trust every offset.
pub(super) fn read(segment: &impl Mapped, name: &str) -> Result<Facts, HeaderError> {
    let name = name.to_owned();
    let found = segment.len();
    if found < size_of::<Header>() {
        return Err(HeaderError::Length { name, found, expected: size_of::<Header>() as u64 });
    }
    let header: &Header = segment.view(0);
    // INIT: Acquire, paired with the Release of `open_for_use`.
    let state = header.state.load(Acquire);
    if state != READY && (state == INITIALISING || header.magic.load(Relaxed) == 0) {
        return Err(HeaderError::NotReady { name });
    }
    if header.magic.load(Relaxed) != MAGIC {
        return Err(HeaderError::NotAQueue { name });
    }
    let (abi, layout) = (header.abi.load(Relaxed), header.layout_hash.load(Relaxed));
    if abi != ABI || layout != LAYOUT_HASH {
        return Err(HeaderError::OtherBuild { name, found: abi, layout });
    }
    if load_all(&header.boot_id) != boot_id() {
        return Err(HeaderError::OtherBoot { name });
    }
    let found_run = run_id(header);
    if queue_name(&found_run) != name {
        return Err(HeaderError::OtherRun { name, found: found_run });
    }
    let geometry = geometry(header).filter(|geometry| geometry.total == found);
    let expected = header.total_len.load(Relaxed);
    let geometry = geometry.ok_or(HeaderError::Length { name, found, expected })?;
    Ok(facts(header, geometry))
}

fn geometry(header: &Header) -> Option<Geometry> {
    let participants = header.targets.load(Relaxed).checked_add(header.drafters.load(Relaxed))?;
    let geometry = Geometry::new(Sizes {
        capacity: header.capacity.load(Relaxed),
        participants: (1..=254).contains(&participants).then_some(participants)?,
        buckets: header.buckets.load(Relaxed),
        batch_tokens: header.batch_tokens.load(Relaxed),
        max_documents: header.max_documents.load(Relaxed),
        total_batches: header.total_batches.load(Relaxed),
    })?;
    (geometry.total as u64 == header.total_len.load(Relaxed)).then_some(geometry)
}

fn facts(header: &Header, geometry: Geometry) -> Facts {
    Facts {
        run_id: run_id(header),
        geometry,
        rules: Rules {
            min_ready: u64::from(header.min_ready.load(Relaxed)),
            strict: header.policy.load(Relaxed) == 1,
            latch: header.gate.load(Relaxed) == 1,
            targets: header.targets.load(Relaxed),
            max_age_ns: header.max_age_ns.load(Relaxed),
        },
        targets: header.targets.load(Relaxed),
        drafters: header.drafters.load(Relaxed),
        slot_bytes: header.slot_bytes.load(Relaxed),
        creator_pid: header.creator_pid.load(Relaxed),
    }
}

fn run_id(header: &Header) -> String {
    let bytes = load_all(&header.run_id);
    let used = bytes.iter().position(|byte| *byte == 0).unwrap_or(RUN_ID_BYTES);
    String::from_utf8_lossy(&bytes[..used]).into_owned()
}

fn store_all(words: &[AtomicU64], bytes: &[u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(padded), Relaxed);
    }
}

fn load_all(words: &[AtomicU64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect()
}

/// The first half of the kernel's random boot id: the same for every process until the machine starts again.
fn boot_id() -> Vec<u8> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut bytes: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).take(16).collect();
    bytes.resize(16, b'0');
    bytes
}
