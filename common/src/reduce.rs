//! Sums over drafter processes through shared memory: where they meet, and without a GPU for each their all-reduce.
//!
//! Every rank adds the ranks' values in rank order, so all get the same bits, in every run. Values go through the
//! segment in chunks; each rank has two buffers that take turns, so a chunk costs one meeting of all ranks and nobody
//! overwrites what another still reads: whoever writes a buffer for chunk `k + 2` has met all others for `k + 1`, and
//! they came there after reading `k`.
//!
//! There is no recovery inside: when a drafter dies, the launcher aborts the sum, which every other rank's next or present
//! call then says, and makes a new segment for all of them to join.
#![expect(unsafe_code, reason = "reads and writes the ranks' buffers in shared memory")]

use std::sync::Arc;

use thiserror::Error;

use crate::ids::Rank;
use crate::shm::{Mapped, Segment, Shared, ShmError, futex_wait, futex_wake};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::wait::{Patience, Wait, WaitError};

/// Scalars of one sum at most.
pub const MAX_SCALARS: usize = 160;

const MAGIC: u64 = u64::from_le_bytes(*b"TANDEMS1");
/// Values added in one go, so that they stay in the cache over all ranks.
const BLOCK: usize = 8192;

/// A sum could not be set up or computed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SumError {
    /// The memory cannot be had.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// Another rank did not come, or the end was asked for.
    #[error("summing gradients: {0}")]
    Wait(#[from] WaitError),
    /// The segment is something else, or made for other ranks.
    #[error("/dev/shm/{name} is no sum over {ranks} ranks with a rank {rank}")]
    NotThisSum {
        /// The segment.
        name: String,
        /// This process's rank.
        rank: Rank,
        /// How many ranks it expected.
        ranks: u32,
    },
    /// This rank took part before: sums cannot be joined again.
    #[error("rank {rank} took part in /dev/shm/{name} before: after a death all ranks start anew with a new segment")]
    Used {
        /// The segment.
        name: String,
        /// The rank.
        rank: Rank,
    },
    /// The ranks do not sum the same thing.
    #[error("rank {rank} brings {found:?} values and scalars, this rank {expected:?}")]
    Shape {
        /// The other rank.
        rank: Rank,
        /// What it brings: values, scalars.
        found: (u64, u64),
        /// What this rank brings.
        expected: (u64, u64),
    },
    /// More scalars than a sum carries.
    #[error("{0} scalars: a sum carries {MAX_SCALARS} at most")]
    Scalars(usize),
}

/// Written by the creator, but for `bell`, which every rank raises.
#[derive(Default)]
#[repr(C, align(128))]
struct Header {
    magic: AtomicU64,
    chunk: AtomicU64,
    ranks: AtomicU32,
    aborted: AtomicU32,
    bell: AtomicU32,
}

/// Written by its rank alone.
#[repr(C, align(128))]
struct Record {
    /// The last chunk whose values are in the buffer; counted from 1 over all sums.
    arrived: AtomicU64,
    /// By turn: what this rank brings to the present sum.
    notes: [Note; 2],
}

#[repr(C)]
struct Note {
    values: AtomicU64,
    num_scalars: AtomicU64,
    scalars: [AtomicU64; MAX_SCALARS],
}

// SAFETY: repr(C), atomics only.
unsafe impl Shared for Header {}
// SAFETY: repr(C), atomics and structs of atomics only.
unsafe impl Shared for Record {}

fn records_at() -> usize {
    size_of::<Header>()
}

/// Buffers start and stay on their own cache lines.
fn padded(chunk: usize) -> usize {
    chunk.max(1).next_multiple_of(32)
}

fn buffers_at(ranks: u32) -> usize {
    records_at() + ranks as usize * size_of::<Record>()
}

/// The launcher's hold on the segment. Dropping it unlinks the name.
#[derive(Debug)]
pub struct SumOwner {
    segment: Option<Segment>,
}

impl SumOwner {
    /// Ends every wait of every rank with [`WaitError::Aborted`], now and later.
    pub fn abort(&self) {
        if let Some(segment) = &self.segment {
            let header: &Header = segment.view(0);
            header.aborted.store(1, Ordering::Relaxed);
            raise(header);
        }
    }
}

/// One rank's part in the sums. With a single rank it touches no shared memory and changes nothing.
pub struct Sum {
    member: Option<Member>,
}

/// Whether the launcher gave the sums up, for who waits for something else than them.
pub struct SumEnded(Option<Arc<Segment>>);

impl SumEnded {
    /// Never unset.
    pub fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|segment| segment.view::<Header>(0).aborted.load(Ordering::Relaxed) != 0)
    }
}

struct Member {
    segment: Arc<Segment>,
    rank: u32,
    ranks: u32,
    chunk: usize,
    /// Chunks this rank brought so far.
    round: u64,
}

impl Sum {
    /// Creates the segment for `ranks` ranks, with room for `chunk` values at a time: 8 bytes a value and rank. For the
    /// launcher alone. One rank needs none.
    ///
    /// # Errors
    /// [`SumError::Shm`].
    pub fn create(name: &str, ranks: u32, chunk: usize) -> Result<SumOwner, SumError> {
        if ranks <= 1 {
            return Ok(SumOwner { segment: None });
        }
        let segment = Segment::create(name, Sum::segment_bytes(ranks, chunk) as usize)?;
        let header: &Header = segment.view(0);
        header.chunk.store(padded(chunk) as u64, Ordering::Relaxed);
        header.ranks.store(ranks, Ordering::Relaxed);
        // INIT: Release, paired with the Acquire of `attach`.
        header.magic.store(MAGIC, Ordering::Release);
        Ok(SumOwner { segment: Some(segment) })
    }

    /// Bytes that [`Sum::create`] takes of `/dev/shm`.
    pub fn segment_bytes(ranks: u32, chunk: usize) -> u64 {
        if ranks <= 1 { 0 } else { (buffers_at(ranks) + 2 * ranks as usize * padded(chunk) * size_of::<f32>()) as u64 }
    }

    /// Joins as `rank` of `ranks`.
    ///
    /// # Errors
    /// [`SumError::Shm`], [`SumError::NotThisSum`], [`SumError::Used`].
    pub fn attach(name: &str, rank: Rank, ranks: u32) -> Result<Sum, SumError> {
        if ranks <= 1 {
            return Ok(Sum { member: None });
        }
        let segment = Segment::attach(name)?;
        let wrong = || SumError::NotThisSum { name: name.to_owned(), rank, ranks };
        if segment.len() < buffers_at(ranks) || rank.0 >= ranks {
            return Err(wrong());
        }
        let header: &Header = segment.view(0);
        // INIT: Acquire, paired with the Release of `create`.
        let ours = header.magic.load(Ordering::Acquire) == MAGIC && header.ranks.load(Ordering::Relaxed) == ranks;
        let chunk = header.chunk.load(Ordering::Relaxed) as usize;
        let buffers = chunk.checked_mul(8).and_then(|bytes| bytes.checked_mul(ranks as usize));
        if !ours || chunk == 0 || buffers.and_then(|b| b.checked_add(buffers_at(ranks))) != Some(segment.len()) {
            return Err(wrong());
        }
        let member = Member { segment: Arc::new(segment), rank: rank.0, ranks, chunk, round: 0 };
        if member.records()[rank.0 as usize].arrived.load(Ordering::Relaxed) != 0 {
            return Err(SumError::Used { name: name.to_owned(), rank });
        }
        Ok(Sum { member: Some(member) })
    }

    /// The launcher's word that a rank is gone for good, for another thread to look at.
    pub fn ended(&self) -> SumEnded {
        SumEnded(self.member.as_ref().map(|member| Arc::clone(&member.segment)))
    }

    /// Replaces `values` and `scalars` by their sums over all ranks, the same bits on every rank. Every rank must
    /// call it with as many of both. After an error the ranks are out of step: drop it.
    ///
    /// # Errors
    /// [`SumError::Wait`], [`SumError::Shape`], [`SumError::Scalars`].
    pub fn sum(&mut self, values: &mut [f32], scalars: &mut [f64], patience: &Patience) -> Result<(), SumError> {
        if scalars.len() > MAX_SCALARS {
            return Err(SumError::Scalars(scalars.len()));
        }
        let Some(member) = &mut self.member else { return Ok(()) };
        let brought = (values.len() as u64, scalars.len() as u64);
        let chunk = member.chunk;
        let (first, rest) = values.split_at_mut(chunk.min(values.len()));
        member.meet(first, brought, scalars, patience)?;
        member.add_scalars(scalars);
        member.add_values(first);
        for part in rest.chunks_mut(chunk) {
            member.meet(part, brought, &[], patience)?;
            member.add_values(part);
        }
        Ok(())
    }
}

impl Member {
    fn header(&self) -> &Header {
        self.segment.view(0)
    }

    fn records(&self) -> &[Record] {
        self.segment.slice(records_at(), self.ranks as usize)
    }

    fn turn(&self) -> usize {
        (self.round % 2) as usize
    }

    /// The buffer of `rank` for this turn.
    fn buffer(&self, rank: u32) -> *mut f32 {
        let number = self.turn() * self.ranks as usize + rank as usize;
        let offset = buffers_at(self.ranks) + number * self.chunk * size_of::<f32>();
        // SAFETY: `attach` checked that the segment holds 2 * ranks buffers of `chunk` values behind the records.
        unsafe { self.segment.as_ptr().add(offset) }.cast().as_ptr()
    }

    /// Lays down this rank's part and waits until all ranks have done so.
    fn meet(
        &mut self,
        values: &[f32],
        brought: (u64, u64),
        scalars: &[f64],
        patience: &Patience,
    ) -> Result<(), SumError> {
        self.round += 1;
        // SAFETY: the buffer holds `chunk` >= values.len() values; no rank reads it before `arrived` says so, and
        // none still reads its previous content (module doc).
        unsafe { values.as_ptr().copy_to_nonoverlapping(self.buffer(self.rank), values.len()) };
        let record = &self.records()[self.rank as usize];
        let note = &record.notes[self.turn()];
        note.values.store(brought.0, Ordering::Relaxed);
        note.num_scalars.store(brought.1, Ordering::Relaxed);
        for (shared, scalar) in note.scalars.iter().zip(scalars) {
            shared.store(scalar.to_bits(), Ordering::Relaxed);
        }
        // ARRIVE: Release, paired with the Acquire of `has_arrived`: buffer and note before it.
        record.arrived.store(self.round, Ordering::Release);
        raise(self.header());
        (0..self.ranks).try_for_each(|rank| self.wait_for(rank, patience))?;
        (0..self.ranks).try_for_each(|rank| self.check(rank, brought))
    }

    fn has_arrived(&self, rank: u32) -> bool {
        // ARRIVE: Acquire, paired with the Release of `meet`.
        self.records()[rank as usize].arrived.load(Ordering::Acquire) >= self.round
    }

    fn wait_for(&self, rank: u32, patience: &Patience) -> Result<(), WaitError> {
        let (wait, header) = (Wait::new(patience), self.header());
        loop {
            // BELL: Acquire, paired with the Release of `raise`: who arrives later ends the sleep below.
            let seen = header.bell.load(Ordering::Acquire);
            if header.aborted.load(Ordering::Relaxed) != 0 {
                return Err(WaitError::Aborted);
            }
            if self.has_arrived(rank) {
                return Ok(());
            }
            let bound = wait.sleep(|| format!("drafter {rank} to bring its gradients (sum {})", self.round))?;
            futex_wait(&header.bell, seen, bound);
        }
    }

    fn check(&self, rank: u32, expected: (u64, u64)) -> Result<(), SumError> {
        let note = &self.records()[rank as usize].notes[self.turn()];
        let found = (note.values.load(Ordering::Relaxed), note.num_scalars.load(Ordering::Relaxed));
        if found == expected { Ok(()) } else { Err(SumError::Shape { rank: Rank(rank), found, expected }) }
    }

    fn add_scalars(&self, scalars: &mut [f64]) {
        let notes: Vec<&Note> = self.records().iter().map(|record| &record.notes[self.turn()]).collect();
        for (place, scalar) in scalars.iter_mut().enumerate() {
            let brought = notes.iter().map(|note| f64::from_bits(note.scalars[place].load(Ordering::Relaxed)));
            *scalar = brought.fold(0.0, |sum, value| sum + value);
        }
    }

    fn add_values(&self, values: &mut [f32]) {
        for (number, block) in values.chunks_mut(BLOCK).enumerate() {
            block.fill(0.0);
            for rank in 0..self.ranks {
                // SAFETY: the block lies within the `chunk` values of the buffer.
                let start = unsafe { self.buffer(rank).add(number * BLOCK) };
                // SAFETY: initialised by its rank before `arrived`, and not written again while this one reads (module
                // doc).
                let brought = unsafe { std::slice::from_raw_parts(start, block.len()) };
                block.iter_mut().zip(brought).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}

/// Makes every waiting rank look again.
fn raise(header: &Header) {
    // BELL: Release, paired with the Acquire of `wait_for`.
    header.bell.fetch_add(1, Ordering::Release);
    futex_wake(&header.bell, i32::MAX);
}
