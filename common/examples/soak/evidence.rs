//! What the harness judges by: words in memory that it shares with its workers, so that a death between two
//! instructions can tear nothing. Also the arena, the slots' payload.
#![expect(unsafe_code, reason = "shares anonymous memory with forked processes")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use common::ids::{BatchId, SlotIndex};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

/// Slots of the queue.
pub(crate) const SLOTS: usize = 8;
/// Bytes of a slot's payload.
pub(crate) const PAYLOAD_BYTES: usize = 4096;
const PAYLOAD: usize = PAYLOAD_BYTES / 8;

/// Mapped for as long as the harness lives; rounds are few and small.
pub(crate) struct Evidence {
    bad_checksums: &'static AtomicU64,
    unmarked: &'static AtomicU64,
    /// By batch: bit `n` says that it was delivered with `n` returns.
    deliveries: &'static [AtomicU64],
    arena: &'static [AtomicU64],
}

impl Evidence {
    pub(crate) fn new(batches: u64) -> Result<Evidence, String> {
        let words = 2 + batches as usize + SLOTS * PAYLOAD;
        let bytes = NonZeroUsize::new(words * 8).expect("there are words");
        let (access, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
        // SAFETY: fresh memory at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(None, bytes, access, flags) }.map_err(|error| error.to_string())?;
        // SAFETY: page-aligned, `words` zeroed words, never unmapped, touched through atomics alone.
        let all = unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>().as_ptr(), words) };
        let (deliveries, arena) = all[2..].split_at(batches as usize);
        Ok(Evidence { bad_checksums: &all[0], unmarked: &all[1], deliveries, arena })
    }

    fn payload(&self, slot: SlotIndex) -> &[AtomicU64] {
        &self.arena[slot.0 as usize * PAYLOAD..][..PAYLOAD]
    }

    pub(crate) fn fill(&self, slot: SlotIndex, batch: BatchId) {
        let words = self.payload(slot).iter().enumerate();
        words.for_each(|(place, word)| word.store(pattern(batch, place), Ordering::Relaxed));
    }

    pub(crate) fn is_whole(&self, slot: SlotIndex, batch: BatchId) -> bool {
        let mut words = self.payload(slot).iter().enumerate();
        words.all(|(place, word)| word.load(Ordering::Relaxed) == pattern(batch, place))
    }

    pub(crate) fn note_delivery(&self, batch: BatchId, returns: u8) {
        let bit = 1 << returns.min(63);
        if self.deliveries[batch.0 as usize].fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            self.unmarked.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn note_damage(&self) {
        self.bad_checksums.fetch_add(1, Ordering::Relaxed);
    }

    /// Batches that a drafter had.
    pub(crate) fn delivered(&self) -> u64 {
        self.deliveries.iter().filter(|word| word.load(Ordering::Relaxed) != 0).count() as u64
    }

    /// Further deliveries that said that they were such.
    pub(crate) fn marked(&self) -> u64 {
        let times = self.deliveries.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones()));
        times.map(|times| times.saturating_sub(1)).sum()
    }

    /// Further deliveries that did not.
    pub(crate) fn unmarked(&self) -> u64 {
        self.unmarked.load(Ordering::Relaxed)
    }

    pub(crate) fn bad_checksums(&self) -> u64 {
        self.bad_checksums.load(Ordering::Relaxed)
    }
}

fn pattern(batch: BatchId, place: usize) -> u64 {
    (batch.0 << 20 | place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
