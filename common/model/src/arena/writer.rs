//! A target's side of the arena: taps go straight into a slot's columns as they are captured.

#![expect(unsafe_code, reason = "copies into slots that the queue says are ours")]

use std::mem;
use std::sync::Arc;

use common::ids::{BatchId, SlotIndex};
use common::queue::{Phase, WriteLease};
use common::wait::Patience;
use cudarc::driver::CudaEvent;
use tch::Tensor;

use super::copies::{Columns, Copies, address};
use super::gpu::SlotPlace;
use super::{Arena, ArenaError, SlotShape, checksum};
use crate::cuda::{CudaError, Doing, Marks};

/// Writes slots.
pub struct SlotWriter {
    arena: Arena,
    copies: Option<Copies>,
    verify: bool,
}

/// A slot being filled. Its taps come in any order, each once. Dropped before [`Filling::finish`], it waits for the copies
/// that are under way: drop it before the lease, whose slot another process may write next.
pub struct Filling<'a> {
    writer: &'a SlotWriter,
    batch: BatchId,
    slot: SlotIndex,
    place: Option<SlotPlace>,
    kept: Vec<Tensor>,
    sum: Option<Tensor>,
    failed: Option<ArenaError>,
}

/// A slot that has been given all its taps; they may still be on their way. Dropped without [`Written::wait`], it waits
/// too: drop it before the lease.
pub struct Written {
    /// All copies into the slot; none where copies are done when they return.
    done: Option<CudaEvent>,
    /// What is copied from, and where to: alive and mapped until then.
    _kept: (Vec<Tensor>, Option<SlotPlace>),
    sum: Option<Tensor>,
}

impl SlotWriter {
    /// Writes into `arena`; with `verify`, computes a checksum of each payload.
    ///
    /// # Errors
    /// The GPU has no stream left, or such slots have no checksum.
    pub fn new(arena: Arena, verify: bool) -> Result<SlotWriter, ArenaError> {
        let copies = match &arena {
            Arena::Host(_) => None,
            Arena::Gpu(gpu) => Some(Copies::new(gpu.gpu())?),
        };
        let writer = SlotWriter { arena, copies, verify };
        if verify && !writer.shape().has_checksum() {
            return Err(ArenaError::NoChecksum(writer.shape().tap_bytes()));
        }
        Ok(writer)
    }

    /// Whether [`Written::wait`] has anything to wait for.
    pub fn is_asynchronous(&self) -> bool {
        self.copies.is_some()
    }

    /// Marks of the stream that copies hidden states on a GPU.
    pub fn marks(&self) -> Option<Arc<Marks>> {
        self.copies.as_ref().map(Copies::marks)
    }

    /// Starts filling a slot that this process holds for writing.
    ///
    /// # Errors
    /// The slot's memory was made anew and does not come.
    pub fn fill(&self, lease: &WriteLease, patience: &Patience) -> Result<Filling<'_>, ArenaError> {
        let place = match &self.arena {
            Arena::Host(_) => None,
            Arena::Gpu(arena) => Some(arena.place(lease.slot(), lease.arena_version(), patience)?),
        };
        let (batch, slot) = (lease.batch_id(), lease.slot());
        Ok(Filling { writer: self, batch, slot, place, kept: Vec::new(), sum: None, failed: None })
    }

    fn shape(&self) -> &SlotShape {
        match &self.arena {
            Arena::Host(arena) => arena.shape(),
            Arena::Gpu(arena) => &arena.layout().shape,
        }
    }
}

impl Filling<'_> {
    /// Sends one tap's hidden states [T, H] on their way. What goes wrong is said by [`Filling::finish`].
    pub fn write_tap(&mut self, tap: usize, hidden: &Tensor) {
        if self.failed.is_none() {
            self.failed = self.try_write(tap, hidden).err();
        }
    }

    fn try_write(&mut self, tap: usize, hidden: &Tensor) -> Result<(), ArenaError> {
        let writer = self.writer;
        let shape = writer.shape();
        check(shape, tap, hidden)?;
        if writer.verify {
            let share = checksum::of_columns(hidden, tap, shape.taps);
            self.sum = Some(match self.sum.take() {
                None => share,
                Some(sum) => sum + share,
            });
        }
        match (&writer.arena, &self.place) {
            (Arena::Host(arena), _) => arena.write_tap(self.slot, tap, hidden),
            (Arena::Gpu(_), Some(place)) => {
                let copies = writer.copies.as_ref().expect("a GPU arena has copies");
                copies.after_torch()?;
                copies.mark_phase(Phase::Capture, self.batch);
                send(copies, shape, (place, tap), hidden)?;
                copies.mark_phase(Phase::Idle, self.batch);
                self.kept.push(hidden.shallow_clone());
            }
            (Arena::Gpu(_), None) => unreachable!("a GPU slot has a place"),
        }
        Ok(())
    }

    /// All taps have been written.
    ///
    /// # Errors
    /// What went wrong with any of them.
    pub fn finish(mut self) -> Result<Written, ArenaError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let done = self.writer.copies.as_ref().map(Copies::mark).transpose()?;
        let kept = (mem::take(&mut self.kept), self.place.take());
        Ok(Written { done, _kept: kept, sum: self.sum.take() })
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if let Some(copies) = self.writer.copies.as_ref().filter(|_| !self.kept.is_empty()) {
            say(copies.finish());
        }
    }
}

impl Written {
    /// Waits until every byte is in the slot; the checksum of what was written, if there is one.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn wait(mut self) -> Result<Option<u64>, ArenaError> {
        self.arrive()?;
        Ok(self.checksum())
    }

    /// Whether the host may have to wait for it.
    pub fn is_on_its_way(&self) -> bool {
        self.done.is_some()
    }

    fn arrive(&mut self) -> Result<(), CudaError> {
        let arrived = self.done.take().map_or(Ok(()), |done| done.synchronize());
        arrived.doing("waiting for a slot's hidden states")
    }

    /// The checksum of what was written, if there is one; without waiting for the copies.
    pub fn checksum(&self) -> Option<u64> {
        self.sum.as_ref().map(checksum::payload_sum)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        say(self.arrive());
    }
}

/// Of a wait on the way out, where another error is told already: a GPU that fails writes nothing any more.
fn say(waited: Result<(), CudaError>) {
    waited.unwrap_or_else(|error| tracing::warn!("{error}"));
}

fn check(shape: &SlotShape, tap: usize, hidden: &Tensor) -> Result<(), ArenaError> {
    let size = hidden.size();
    let fits = size.len() == 2
        && size[0] <= shape.tokens as i64
        && size[1] == shape.hidden as i64
        && hidden.kind() == shape.kind()
        && hidden.is_contiguous()
        && tap < shape.taps;
    if fits {
        return Ok(());
    }
    let found = format!("{size:?} of {:?}", hidden.kind());
    let expected = format!("[up to {}, {}] of {:?}, {} taps", shape.tokens, shape.hidden, shape.kind(), shape.taps);
    Err(ArenaError::Shape { tap, found, expected })
}

fn send(
    copies: &Copies,
    shape: &SlotShape,
    (place, tap): (&SlotPlace, usize),
    hidden: &Tensor,
) -> Result<(), ArenaError> {
    let width = shape.tap_bytes();
    let columns = Columns {
        from: address(hidden),
        from_pitch: width,
        to: place.address() + (tap * width) as u64,
        to_pitch: shape.row_bytes(),
        width,
        rows: hidden.size()[0] as usize,
    };
    // SAFETY: `hidden` is contiguous and fits the slot, as checked; tensor and part are kept until the copies are done
    // (`Written`), and the slot is ours by its lease.
    unsafe { copies.columns(&columns)? };
    Ok(())
}
