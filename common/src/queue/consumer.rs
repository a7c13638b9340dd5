//! A drafter's side: pop a batch, copy it, release the slot, and say when it is trained.

use std::sync::Arc;

use super::LeaseError;
use super::activity::{Gauge, Phase, Track};
use super::gpu::{GpuTrack, Marker};
use super::place::{Place, now};
use super::ring::Hold;
use super::ring::bell::Group;
use super::rows::{Rows, RowsError};
use super::snapshot::Profile;
use super::timed::Timed;
use crate::ids::{BatchId, Rank, SlotIndex, Step};
use crate::sync::Ordering;
use crate::wait::{Patience, WaitError};

/// A drafter's place. Clones share it; others see it as alive until the last of them and of its leases is dropped.
#[derive(Clone)]
pub struct Consumer {
    pub(super) place: Arc<Place>,
    /// Whose time its phases are.
    pub(super) track: Track,
}

impl Consumer {
    /// Takes the batch that the queue's policy chooses, once the gate is open. `None` when nothing is pending, claimed
    /// or ready any more.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn pop(&self, patience: &Patience) -> Result<Option<ReadLease>, WaitError> {
        self.take(None, patience)
    }

    /// Takes exactly this batch, once it is ready and the gate is open. `None` if it is trained or beyond the plan.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn pop_batch(&self, batch: BatchId, patience: &Patience) -> Result<Option<ReadLease>, WaitError> {
        self.take(Some(batch), patience)
    }

    /// Takes `count` batches of the policy's choice in one step, all of them or none, so that nobody waits with some
    /// of them in hand. Fewer only at the end, when no more will come; none when the stream has ended.
    ///
    /// # Errors
    /// [`LeaseError::Group`] if the slots can never hold so many, [`LeaseError::Wait`].
    pub fn pop_group(&self, count: u32, patience: &Patience) -> Result<Vec<ReadLease>, LeaseError> {
        let capacity = self.place.shared.facts.geometry.sizes.capacity;
        if count == 0 || count > capacity {
            return Err(LeaseError::Group { asked: count, capacity });
        }
        let holds =
            self.place.wait_for((self.track, Group::Ready), patience, |locked, now| locked.pop_group(count, now))?;
        Ok(holds.unwrap_or_default().into_iter().map(|hold| self.lease(hold)).collect())
    }

    fn lease(&self, hold: Hold) -> ReadLease {
        ReadLease { place: Arc::clone(&self.place), hold, settled: false }
    }

    fn take(&self, want: Option<BatchId>, patience: &Patience) -> Result<Option<ReadLease>, WaitError> {
        let hold = self.place.wait_for((self.track, Group::Ready), patience, |locked, now| locked.pop(want, now))?;
        Ok(hold.map(|hold| self.lease(hold)))
    }

    /// Records that these batches went into the weights at `step`: all of them or, on an error, none.
    ///
    /// # Errors
    /// [`LeaseError::NotHeld`] if this drafter does not hold one of them, [`LeaseError::Wait`].
    pub fn trained(&self, batches: &[BatchId], step: Step) -> Result<(), LeaseError> {
        self.place.lock()?.trained(batches, step).map_err(|_| LeaseError::NotHeld(batches.to_vec()))
    }

    /// Shows a number.
    pub fn gauge(&self, gauge: Gauge, value: f64) {
        self.place.set_gauge(gauge, value);
    }

    /// Says what the drafter does from here on; the time until now goes to the phase before. One thread's business: a
    /// second one takes [`Consumer::side`].
    pub fn phase(&self, phase: Phase) {
        self.place.set_phase(self.track, phase);
    }

    /// As [`Consumer::phase`], until the guard is dropped: then the phase before goes on.
    pub fn time(&self, phase: Phase) -> Timed<'_> {
        Timed::new(&self.place, self.track, phase)
    }

    /// The same place, for the worker's second thread: its phases and waits are counted apart.
    #[must_use]
    pub fn side(&self) -> Consumer {
        self.place.times(Track::Side).start(Phase::Starting as u32, now());
        Consumer { place: Arc::clone(&self.place), track: Track::Side }
    }

    /// Where this drafter's time went so far, over all its lives.
    pub fn profile(&self) -> Profile {
        self.place.profile()
    }

    /// READY batches, without the lock.
    pub fn ready(&self) -> u64 {
        let [_, _, ready, ..] = self.place.shared.ring().ledger.counts();
        ready
    }

    /// A track of the drafter's GPU, for the thread that watches it.
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

/// A slot to be read. Release it before waiting for anybody: a gate may need it. Dropped without
/// [`ReadLease::release`], the batch is ready again for another drafter.
pub struct ReadLease {
    place: Arc<Place>,
    hold: Hold,
    settled: bool,
}

impl ReadLease {
    /// The batch in the slot.
    pub fn batch_id(&self) -> BatchId {
        self.hold.batch
    }

    /// The slot of the arena that holds its hidden states.
    pub fn slot(&self) -> SlotIndex {
        self.hold.slot
    }

    /// How often the batch was in a drafter's hands before without being trained; 255 stands for more. Whoever must not
    /// count it twice looks here: 0 means that nobody had it.
    pub fn returns(&self) -> u8 {
        self.place.shared.ring().ledger.returns(self.hold.batch)
    }

    /// The batch's length bucket.
    pub fn bucket(&self) -> u32 {
        self.place.shared.slot(self.hold.slot).bucket.load(Ordering::Relaxed)
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

    /// The payload's checksum as its writer computed it, and who that is; none if it sent none.
    pub fn checksum(&self) -> Option<(Rank, u64)> {
        let slot = &self.place.shared.ring().slots[self.hold.slot.0 as usize];
        let writer = slot.payload_writer.load(Ordering::Relaxed).checked_sub(1)?;
        Some((Rank(writer), slot.payload_checksum.load(Ordering::Relaxed)))
    }

    /// A copy of the batch's tokens and rows.
    ///
    /// # Errors
    /// [`RowsError`] if the bytes are not those that were published.
    pub fn rows(&self) -> Result<Rows, RowsError> {
        let shared = &self.place.shared;
        let slot = shared.slot(self.hold.slot);
        let (header_len, checksum) = (slot.header_len.load(Ordering::Relaxed), slot.checksum.load(Ordering::Relaxed));
        Rows::load(self.hold.batch, shared.rows(self.hold.slot), header_len, checksum)
    }

    /// Frees the slot. The batch counts as held by this drafter until [`Consumer::trained`].
    ///
    /// # Errors
    /// [`LeaseError::Lost`], [`LeaseError::Wait`].
    pub fn release(mut self) -> Result<(), LeaseError> {
        let now = now();
        self.place.lock()?.release(self.hold, now).map_err(|_| LeaseError::Lost(self.hold.batch))?;
        self.settled = true;
        self.place.count_batch();
        Ok(())
    }
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        match self.place.lock() {
            // Lost means that the launcher took the slot back already.
            Ok(locked) => drop(locked.nack(self.hold, now())),
            Err(error) => tracing::warn!("batch {} stays held until this process ends: {error}", self.hold.batch),
        }
    }
}
