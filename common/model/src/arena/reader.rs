//! A drafter's side of the arena: a slot is copied into a buffer of its own, and free again at once.

#![expect(unsafe_code, reason = "copies out of slots that the queue says are ours")]

use std::sync::Arc;

use common::ids::Rank;
use common::queue::{Phase, ReadLease};
use common::wait::Patience;
use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags;
use tch::{Device, Tensor};

use super::copies::{Copies, address};
use super::{Arena, ArenaError, checksum};
use crate::cuda::{CudaError, Doing, Gpu, Marks};

/// Reads slots.
pub struct SlotReader {
    arena: Arena,
    copies: Option<Copies>,
    device: Device,
    rank: Rank,
}

/// Room for one slot on the reader's device, used again and again.
pub struct Buffer {
    /// [tokens, K*H]; none where each read makes its own.
    tensor: Option<Tensor>,
    /// Everything that was enqueued to use its memory.
    free: Option<CudaEvent>,
}

impl Buffer {
    /// Waits until the step that read it is done on the device. Do it before taking a slot: nobody else can use that
    /// meanwhile.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn await_free(&mut self) -> Result<(), ArenaError> {
        Ok(await_event(self.free.take().as_ref())?)
    }
}

fn await_event(event: Option<&CudaEvent>) -> Result<(), CudaError> {
    event.map_or(Ok(()), |event| event.synchronize().doing("waiting for what uses the buffer"))
}

/// Everything that libtorch was given so far, as an event whose waiter sleeps.
fn mark_uses(gpu: &Gpu) -> Result<CudaEvent, CudaError> {
    let sleeping = Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC);
    gpu.context().default_stream().record_event(sleeping).doing("marking the end of a buffer's uses")
}

/// A payload in the reader's memory: its tensor [T, K*H], and the buffer it lies in.
pub struct Read {
    /// The hidden states.
    pub taps: Tensor,
    buffer: Buffer,
}

impl SlotReader {
    /// Reads `arena` for drafter `rank`, which computes on `device`.
    ///
    /// # Errors
    /// The GPU has no stream left.
    pub fn new(arena: Arena, device: Device, rank: Rank) -> Result<SlotReader, ArenaError> {
        let copies = match &arena {
            Arena::Host(_) => None,
            Arena::Gpu(gpu) => Some(Copies::new(gpu.gpu())?),
        };
        Ok(SlotReader { arena, copies, device, rank })
    }

    /// Where slots are copied to.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The GPU that slots are copied to; none if they go through the machine's memory.
    pub fn gpu(&self) -> Option<&Gpu> {
        match &self.arena {
            Arena::Host(_) => None,
            Arena::Gpu(arena) => Some(arena.gpu()),
        }
    }

    /// Marks of the stream that copies slots on a GPU.
    pub fn marks(&self) -> Option<Arc<Marks>> {
        self.copies.as_ref().map(Copies::marks)
    }

    /// A buffer that any slot fits into.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn buffer(&self) -> Result<Buffer, ArenaError> {
        let Arena::Gpu(arena) = &self.arena else { return Ok(Buffer { tensor: None, free: None }) };
        let shape = arena.layout().shape;
        let size = [shape.tokens as i64, (shape.taps * shape.hidden) as i64];
        let tensor = Tensor::empty(size, (shape.kind(), self.device));
        // libtorch hands memory out again as soon as its last use is enqueued; copies run on another stream.
        Ok(Buffer { tensor: Some(tensor), free: Some(mark_uses(arena.gpu())?) })
    }

    /// Waits until the slot's memory is mapped here: its target may have made it anew just now. [`SlotReader::read`] does
    /// so too, for whom it is all the same what was waited for.
    ///
    /// # Errors
    /// The memory does not come, or is gone.
    pub fn await_memory(&self, lease: &ReadLease, patience: &Patience) -> Result<(), ArenaError> {
        match &self.arena {
            Arena::Host(_) => Ok(()),
            Arena::Gpu(arena) => arena.place(lease.slot(), lease.arena_version(), patience).map(drop),
        }
    }

    /// Copies the slot's first `tokens` rows; returns when they have arrived, so that the slot may be released.
    ///
    /// # Errors
    /// The GPU failed, or, where the writer sent a checksum, [`ArenaError::Checksum`].
    pub fn read(
        &self,
        lease: &ReadLease,
        tokens: usize,
        buffer: Buffer,
        patience: &Patience,
    ) -> Result<Read, ArenaError> {
        let read = match (&self.arena, &self.copies, buffer) {
            (Arena::Gpu(arena), Some(copies), Buffer { tensor: Some(tensor), free }) => {
                let place = arena.place(lease.slot(), lease.arena_version(), patience)?;
                await_event(free.as_ref())?;
                let bytes = tokens.min(arena.layout().shape.tokens) * arena.layout().shape.row_bytes();
                copies.mark_phase(Phase::Copy, lease.batch_id());
                // SAFETY: slot and buffer are at least `bytes` long and stay until the copy is done, below; the buffer's
                // last readers are done, and the slot is ours by its lease.
                unsafe { copies.bytes(place.address(), address(&tensor), bytes)? };
                copies.mark_phase(Phase::Idle, lease.batch_id());
                copies.finish()?;
                Read { taps: tensor.narrow(0, 0, tokens as i64), buffer: Buffer { tensor: Some(tensor), free: None } }
            }
            (Arena::Host(arena), _, buffer) => Read { taps: arena.read(lease.slot(), tokens, self.device), buffer },
            (Arena::Gpu(_), ..) => unreachable!("buffers come from this reader"),
        };
        self.verify(lease, &read.taps)?;
        Ok(read)
    }

    fn verify(&self, lease: &ReadLease, taps: &Tensor) -> Result<(), ArenaError> {
        let Some((writer, expected)) = lease.checksum() else { return Ok(()) };
        let found = checksum::payload_checksum(taps);
        if found == expected {
            return Ok(());
        }
        let (batch, slot, reader) = (lease.batch_id(), lease.slot(), self.rank);
        Err(ArenaError::Checksum { batch, slot, writer, reader, found, expected })
    }
}

impl Read {
    /// Gives the buffer back. Everything that reads the payload has to be enqueued by now; the next copy into the
    /// buffer waits for that.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn into_buffer(self, gpu: Option<&Gpu>) -> Result<Buffer, ArenaError> {
        let Read { taps, mut buffer } = self;
        drop(taps);
        if let Some(gpu) = gpu {
            buffer.free = Some(mark_uses(gpu)?);
        }
        Ok(buffer)
    }
}
