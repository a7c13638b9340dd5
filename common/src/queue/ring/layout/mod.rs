//! The control segment's layout: what lies where, and who may write it.
//!
//! Every shared value is an atomic; every struct is `repr(C)` with a hash over its fields' names, types, offsets and
//! sizes, so that two builds that disagree refuse each other.

#![expect(unsafe_code, reason = "promises that the structs below may live in shared memory")]

pub(crate) mod geometry;

use crate::shm::Shared;
use crate::sync::{AtomicU32, AtomicU64};

/// Says "this is a Tandem control segment".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"TANDEMQ1");
/// Raised when the meaning changes in a way that the layout hash does not show.
pub(crate) const ABI: u32 = 2;
/// The segment is being filled in.
pub(crate) const INITIALISING: u32 = 1;
/// The segment may be used.
pub(crate) const READY: u32 = 2;
/// Gauges of a participant.
pub(crate) const NUM_GAUGES: usize = 9;
/// Length of a run id at most, in bytes.
pub(crate) const RUN_ID_BYTES: usize = 64;
/// Bins of a histogram; the last one takes everything from 2^30 microseconds (18 minutes) on.
pub(crate) const HISTOGRAM_BINS: usize = 32;
/// Phases that a track counts at most.
pub(crate) const NUM_PHASES: usize = 32;
/// Tracks of a participant: [`crate::queue::Track`].
pub(crate) const NUM_TRACKS: usize = 4;
/// Spans kept of each track.
pub(crate) const NUM_SPANS: usize = 1024;
/// Events kept.
pub(crate) const NUM_EVENTS: usize = 1024;
/// Bytes of a slot's host part that hold the encoded header of its rows.
pub(crate) const ROWS_HEADER_BYTES: usize = 256;

const fn hash_bytes(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
}

const fn hash_number(hash: u64, number: usize) -> u64 {
    hash_bytes(hash, &(number as u64).to_le_bytes())
}

macro_rules! shared_struct {
    ($(#[$doc:meta])* $name:ident, align $align:literal {
        $($(#[$field_doc:meta])* $field:ident: $kind:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        #[repr(C, align($align))]
        pub(crate) struct $name {
            $($(#[$field_doc])* pub(crate) $field: $kind,)*
        }

        // SAFETY: repr(C), and every field is an atomic, an array of atomics or another of these structs.
        unsafe impl Shared for $name {}

        impl $name {
            const LAYOUT_HASH: u64 = {
                let hash = hash_number(0xcbf2_9ce4_8422_2325, size_of::<$name>());
                $(
                    let hash = hash_bytes(hash, stringify!($field: $kind).as_bytes());
                    let hash = hash_number(hash, std::mem::offset_of!($name, $field));
                )*
                hash
            };
        }
    };
}

shared_struct! {
    /// What the segment is. Written by the launcher before `state` says [`READY`], never after.
    Header, align 64 {
        /// [`MAGIC`].
        magic: AtomicU64,
        /// [`ABI`].
        abi: AtomicU32,
        /// 0, [`INITIALISING`] or [`READY`]; the last store of the creation (Release, paired with the opener's
        /// Acquire).
        state: AtomicU32,
        /// [`LAYOUT_HASH`].
        layout_hash: AtomicU64,
        /// Bytes of the segment.
        total_len: AtomicU64,
        /// Which boot of the machine; clocks and pids mean nothing across boots.
        boot_id: [AtomicU64; 2],
        /// The run's id, zero-padded.
        run_id: [AtomicU64; RUN_ID_BYTES / 8],
        /// Process id of the launcher.
        creator_pid: AtomicU32,
        /// Slots.
        capacity: AtomicU32,
        /// Tokens of a batch at most.
        batch_tokens: AtomicU32,
        /// Rows of a batch at most.
        max_documents: AtomicU32,
        /// Length buckets.
        buckets: AtomicU32,
        /// Target processes.
        targets: AtomicU32,
        /// Drafter processes.
        drafters: AtomicU32,
        /// The gate's threshold.
        min_ready: AtomicU32,
        /// 0 `mixed`, 1 `strict`.
        policy: AtomicU32,
        /// 0 `level`, 1 `latch`.
        gate: AtomicU32,
        /// A READY batch older than this goes first, in nanoseconds.
        max_age_ns: AtomicU64,
        /// Batches of the run.
        total_batches: AtomicU64,
        /// Payload bytes of a slot in the arena.
        slot_bytes: AtomicU64,
        /// When it was created, nanoseconds since 1970.
        created_ns: AtomicU64,
    }
}

shared_struct! {
    /// The lock, and what nearly every step changes: one cache line, so that all of it comes over with the lock.
    LockLine, align 64 {
        /// 0, or waiters bit 31 | epoch 23 bits | holder code 8 bits. Compare-exchange only.
        word: AtomicU32,
        /// Who waits on the bells, and how: [`super::bell`]'s bits.
        waits: AtomicU32,
        /// Odd while somebody holds the lock; written by the holder. Readers without the lock retry on it.
        sequence: AtomicU64,
        /// The next event's number.
        next_event: AtomicU64,
        /// Ledger words in each state, by [`super::ledger::BatchState::kind`]. Derived.
        ledger_counts: [AtomicU64; 5],
    }
}

shared_struct! {
    /// What a group of processes waits on; raised by whoever changes what they wait for.
    Bell, align 128 {
        /// The futex: another number after each change that somebody waited for.
        word: AtomicU32,
    }
}

shared_struct! {
    /// The queue's own state. Written under the lock unless said otherwise. What is not a slot word or a ledger word
    /// is derived from those and made anew by [`super::Locked::repair`]. What targets change at each step lies apart
    /// from what drafters change, and both from what is only read.
    Control, align 128 {
        /// The lock.
        lock: LockLine,
        /// 1 once the launcher gave the run up. Written by the launcher, without the lock.
        aborted: AtomicU32,
        /// How often a dead holder's lock was taken over.
        steals: AtomicU64,
        /// Slots taken back from dead participants.
        reclaimed: AtomicU64,
        /// Drafters wait here.
        ready: Bell,
        /// State of the bucket lottery.
        lottery: AtomicU64,
        /// Under `latch`: 1 from the gate's opening until nothing is READY.
        latched: AtomicU32,
        /// Targets wait here.
        space: Bell,
        /// The next number in publication order.
        next_ticket: AtomicU64,
        /// No batch id below this one is PENDING. Derived.
        pending_floor: AtomicU64,
    }
}

shared_struct! {
    /// One process's record. One writer: whoever holds the participant's presence byte.
    Participant, align 128 {
        /// Raised each time a process takes the place.
        epoch: AtomicU32,
        /// Its process id; 0 if the place was never taken.
        pid: AtomicU32,
        /// What it is doing: [`crate::queue::Phase`].
        phase: AtomicU32,
        /// What it waits for: 0 nothing, else [`super::Blocked::code`] or [`super::Blocked::LOCK_CODE`].
        waits_for: AtomicU32,
        /// Since when it does that, on the monotonic clock.
        phase_since_ns: AtomicU64,
        /// Since when it waits, on the monotonic clock.
        waits_since_ns: AtomicU64,
        /// Batches published or released by it, over all its incarnations.
        batches: AtomicU64,
        /// Bits of f64, by [`crate::queue::Gauge`].
        gauges: [AtomicU64; NUM_GAUGES],
    }
}

shared_struct! {
    /// What a track spent in one phase. Written by the track's writer.
    Visits, align 64 {
        /// How often the phase was entered and left.
        count: AtomicU64,
        /// Time in it.
        total_ns: AtomicU64,
        /// The longest visit.
        max_ns: AtomicU64,
        /// Visits over log2 of microseconds.
        bins: [AtomicU64; HISTOGRAM_BINS],
    }
}

shared_struct! {
    /// One thread of a participant, or its GPU, by phase. One writer: that thread, or the one that watches the GPU.
    TrackRecord, align 128 {
        /// Odd while its writer changes it: readers retry on it. 0 if the track was never used.
        sequence: AtomicU64,
        /// The present phase, or that there is none.
        phase: AtomicU32,
        /// Since when, on the monotonic clock.
        since_ns: AtomicU64,
        /// What it works on: a step or a batch.
        about: AtomicU64,
        /// The next span's number.
        next_span: AtomicU64,
        /// By [`crate::queue::Phase`].
        visits: [Visits; NUM_PHASES],
    }
}

shared_struct! {
    /// A stretch of time that a track spent in one phase. Written by the track's writer.
    Span, align 32 {
        /// Its start, on the monotonic clock.
        from_ns: AtomicU64,
        /// Its end.
        to_ns: AtomicU64,
        /// Phase 8 bits | what it was about 56 bits.
        what: AtomicU64,
    }
}

shared_struct! {
    /// One length bucket. Written under the lock.
    Bucket, align 128 {
        /// Rows of its batches have this many tokens at most.
        bound: AtomicU32,
        /// Most READY slots ever seen.
        high_water: AtomicU32,
        /// Batches published.
        produced: AtomicU64,
        /// Keeps what targets count out of the cache line of what drafters count.
        apart: [AtomicU64; 6],
        /// Batches released.
        consumed: AtomicU64,
        /// Batches that went back from a drafter to READY.
        redelivered: AtomicU64,
        /// Batches whose slot was freed before a drafter had them.
        dropped: AtomicU64,
    }
}

shared_struct! {
    /// One length bucket's histograms over log2 of microseconds. Written under the lock.
    Tally, align 128 {
        /// How long its batches' targets waited for a slot.
        waited: [AtomicU64; HISTOGRAM_BINS],
        /// How long its batches were READY before they were popped.
        aged: [AtomicU64; HISTOGRAM_BINS],
        /// How long drafters held their slots.
        held: [AtomicU64; HISTOGRAM_BINS],
    }
}

shared_struct! {
    /// One event. Written under the lock.
    Event, align 32 {
        /// When, on the monotonic clock.
        at_ns: AtomicU64,
        /// Deed 16 bits | holder code 16 bits | slot 32 bits.
        what: AtomicU64,
        /// Which batch.
        batch: AtomicU64,
    }
}

shared_struct! {
    /// One slot. `word` is the only truth about it; the other fields mean something only in the states named.
    Slot, align 128 {
        /// [`super::word::Word`].
        word: AtomicU64,
        /// The batch it carries; all states but FREE.
        batch: AtomicU64,
        /// Order of publication; READY and READING.
        ticket: AtomicU64,
        /// Its length bucket; READY and READING.
        bucket: AtomicU32,
        /// Bytes of the encoded rows header; READY and READING. Written by the slot's owner.
        header_len: AtomicU32,
        /// CRC-32 of the encoded rows header and rows; READY and READING. Written by the slot's owner.
        checksum: AtomicU32,
        /// Rank of the target that sends a checksum of the payload along, plus 1; 0 if none does. READY and READING.
        /// Written by the slot's owner.
        payload_writer: AtomicU32,
        /// That checksum. Written by the slot's owner.
        payload_checksum: AtomicU64,
        /// Twice the version of the arena's part that it lies in; odd while that memory is lost. All states.
        arena_version: AtomicU32,
        /// When it took its present state, on the monotonic clock.
        since_ns: AtomicU64,
        /// How long its target waited for it, in nanoseconds; WRITING, READY and READING.
        waited_ns: AtomicU64,
    }
}

const PROFILE_HASH: u64 = TrackRecord::LAYOUT_HASH ^ Visits::LAYOUT_HASH ^ Span::LAYOUT_HASH;

/// One number for all of the above.
pub(crate) const LAYOUT_HASH: u64 = {
    let parts = [Header::LAYOUT_HASH, Control::LAYOUT_HASH, LockLine::LAYOUT_HASH, Bell::LAYOUT_HASH];
    let more = [
        Participant::LAYOUT_HASH,
        Bucket::LAYOUT_HASH,
        Slot::LAYOUT_HASH,
        Tally::LAYOUT_HASH ^ Event::LAYOUT_HASH ^ PROFILE_HASH,
    ];
    let mut hash = 0;
    let mut at = 0;
    while at < parts.len() {
        hash = hash_bytes(hash, &parts[at].to_le_bytes());
        hash = hash_bytes(hash, &more[at].to_le_bytes());
        at += 1;
    }
    hash
};
