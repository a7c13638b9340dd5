//! A target's side: claim a batch with a slot, fill the slot, publish it.

use std::cell::OnceCell;
use std::sync::Arc;

use super::LeaseError;
use super::activity::{Gauge, Phase, Track};
use super::gpu::{GpuTrack, Marker};
use super::place::{Place, now};
use super::ring::Hold;
use super::ring::bell::Group;
use super::rows::Rows;
use super::timed::Timed;
use crate::ids::{BatchId, SlotIndex};
use crate::sync::Ordering;
use crate::wait::{Patience, WaitError};

/// A target's place. Clones share it; others see it as alive until the last of them and of its leases is dropped.
#[derive(Clone)]
pub struct Producer {
    pub(super) place: Arc<Place>,
    /// Whose time its phases are.
    pub(super) track: Track,
}

impl Producer {
    /// Takes the lowest pending batch and a free slot, in one step; waits while there is none. `None` only when every
    /// batch is trained: until then a drafter may still be set back.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn claim(&self, patience: &Patience) -> Result<Option<WriteLease>, WaitError> {
        let first_asked = OnceCell::new();
        let hold = self.place.wait_for((self.track, Group::Space), patience, |locked, now| {
            locked.claim(now.saturating_sub(*first_asked.get_or_init(|| now)), now)
        })?;
        hold.iter().for_each(|hold| self.about(hold.batch.0));
        Ok(hold.map(|hold| WriteLease { place: Arc::clone(&self.place), hold, checksum: None, settled: false }))
    }

    /// Shows a number.
    pub fn gauge(&self, gauge: Gauge, value: f64) {
        self.place.set_gauge(gauge, value);
    }

    /// Says what the target does from here on; the time until now goes to the phase before. One thread's business: a
    /// second one takes [`Producer::side`].
    pub fn phase(&self, phase: Phase) {
        self.place.set_phase(self.track, phase);
    }

    /// As [`Producer::phase`], until the guard is dropped: then the phase before goes on.
    pub fn time(&self, phase: Phase) -> Timed<'_> {
        Timed::new(&self.place, self.track, phase)
    }

    /// The same place, for the worker's second thread: its phases and waits are counted apart.
    #[must_use]
    pub fn side(&self) -> Producer {
        self.place.times(Track::Side).start(Phase::Starting as u32, now());
        Producer { place: Arc::clone(&self.place), track: Track::Side }
    }

    /// A track of the target's GPU, for the thread that watches it.
    pub fn gpu_track(&self, track: Track) -> GpuTrack {
        GpuTrack::start(&self.place, track)
    }

    /// From here on the GPU's work is marked with the main thread's phases; only the first marker counts.
    pub fn mark_phases(&self, marker: Marker) {
        let _ = self.place.marker.set(marker);
    }

    /// Says what the phases from here on are about: the number of a step or of a batch.
    pub fn about(&self, number: u64) {
        self.place.set_about(self.track, number);
    }
}

/// A slot to be filled with a batch. Dropped without [`WriteLease::publish`], the slot is free and the batch pending
/// again.
pub struct WriteLease {
    place: Arc<Place>,
    hold: Hold,
    checksum: Option<u64>,
    settled: bool,
}

impl WriteLease {
    /// The batch to compute.
    pub fn batch_id(&self) -> BatchId {
        self.hold.batch
    }

    /// The slot of the arena to write its hidden states to.
    pub fn slot(&self) -> SlotIndex {
        self.hold.slot
    }

    /// Which making of the arena's part the slot lies in: whoever has an older one mapped waits for it, and where there is
    /// a newer one, or none, the slot is lost.
    pub fn arena_version(&self) -> u32 {
        self.hold.arena_version
    }

    /// Whether the launcher took the slot back: its memory went with the target that had made it. Looks without the lock.
    pub fn is_lost(&self) -> bool {
        self.place.shared.ring().word(self.hold.slot) != self.hold.word
    }

    /// A checksum of the payload, to be published with it.
    pub fn set_checksum(&mut self, checksum: Option<u64>) {
        self.checksum = checksum;
    }

    /// Hands the batch over. Every byte of the payload must have arrived in the slot before.
    ///
    /// # Errors
    /// [`LeaseError::Rows`] if `rows` do not fit the slot or each other, [`LeaseError::Bucket`],
    /// [`LeaseError::Lost`], [`LeaseError::Wait`]. The batch is then pending again.
    pub fn publish(mut self, bucket: u32, rows: &Rows) -> Result<(), LeaseError> {
        let shared = &self.place.shared;
        let sizes = shared.facts.geometry.sizes;
        if bucket >= sizes.buckets {
            return Err(LeaseError::Bucket { found: bucket, buckets: sizes.buckets });
        }
        rows.check(sizes.batch_tokens, sizes.max_documents)?;
        let (header_len, checksum) = rows.store(self.hold.batch, shared.rows(self.hold.slot))?;
        let slot = shared.slot(self.hold.slot);
        slot.header_len.store(header_len, Ordering::Relaxed);
        slot.checksum.store(checksum, Ordering::Relaxed);
        // Targets come first among holders, from code 1.
        let writer = self.checksum.map_or(0, |_| u32::from(self.place.holder.code));
        slot.payload_writer.store(writer, Ordering::Relaxed);
        slot.payload_checksum.store(self.checksum.unwrap_or_default(), Ordering::Relaxed);
        let now = now();
        self.place.lock()?.publish(self.hold, bucket, now).map_err(|_| LeaseError::Lost(self.hold.batch))?;
        self.settled = true;
        self.place.count_batch();
        Ok(())
    }
}

impl Drop for WriteLease {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        match self.place.lock() {
            // Lost means that the launcher took the slot back already.
            Ok(locked) => drop(locked.abort(self.hold, now())),
            Err(error) => tracing::warn!("batch {} stays claimed until this process ends: {error}", self.hold.batch),
        }
    }
}
