//! The arena of a run as the launcher holds it: shared memory of its own, or the parts that targets made on their GPUs.
//!
//! Parts are held as file descriptors and never opened: the launcher links no CUDA and has no context, and yet their
//! content outlives every worker.

use std::os::fd::OwnedFd;

use common::arena::{ArenaKind, ArenaRequest, Broker, BrokerError, Delivery, Parts};
use common::queue::{QueueOwner, QueueSpec, ReclaimError, arena_name};
use common::shm::{Segment, ShmError};
use common::wait::WaitError;

use crate::supervise::WorkerId;

/// What is held of an arena.
pub(crate) enum Arena {
    /// All of it.
    Host { _memory: Segment },
    /// Who made what.
    Gpu { broker: Broker, parts: Parts },
}

/// A worker's message about the arena that cannot be answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArenaError {
    /// It makes no sense.
    #[error(transparent)]
    Message(#[from] BrokerError),
    /// There is nothing to ask for.
    #[error("this run's arena lies in host memory")]
    Host,
    /// The queue's lock cannot be had.
    #[error("giving slots back to the queue: {0}")]
    Queue(#[from] WaitError),
}

impl Arena {
    /// Reserves the host's memory; on GPUs, waits for targets to make parts.
    ///
    /// # Errors
    /// `/dev/shm` has no room.
    pub(crate) fn create(kind: ArenaKind, queue: &QueueSpec) -> Result<Arena, ShmError> {
        if kind == ArenaKind::Host {
            let bytes = host_bytes(kind, queue) as usize;
            return Ok(Arena::Host { _memory: Segment::create(&arena_name(&queue.run_id), bytes)? });
        }
        let parts = Parts::new(queue.capacity, queue.targets);
        Ok(Arena::Gpu { broker: Broker::new(kind, queue.targets), parts })
    }

    /// Answers a worker. Slots of a part that was made anew are in use again.
    ///
    /// # Errors
    /// [`ArenaError`].
    pub(crate) fn hear(
        &mut self,
        from: WorkerId,
        (request, file): (ArenaRequest, Option<OwnedFd>),
        queue: &QueueOwner,
    ) -> Result<Vec<Delivery>, ArenaError> {
        let Arena::Gpu { broker, parts } = self else { return Err(ArenaError::Host) };
        let remade = match &request {
            ArenaRequest::Made(part) if part.version > 0 => Some((part.part, part.version)),
            _ => None,
        };
        let deliveries = broker.hear((from.role, from.rank), request, file)?;
        if let Some((part, version)) = remade {
            queue.restore_slots(parts.slots_of(part), version)?;
        }
        Ok(deliveries)
    }

    /// Takes note of a worker's end. How many ready batches went with its memory, and are pending again; and word of
    /// that for the others.
    ///
    /// # Errors
    /// The queue's lock cannot be had.
    pub(crate) fn ended(&mut self, worker: WorkerId, queue: &QueueOwner) -> Result<(u64, Vec<Delivery>), ReclaimError> {
        let Arena::Gpu { broker, parts } = self else { return Ok((0, Vec::new())) };
        let Some(lost) = broker.ended((worker.role, worker.rank)) else { return Ok((0, Vec::new())) };
        Ok((queue.forfeit_slots(parts.slots_of(lost.part))?, lost.deliveries))
    }
}

/// Bytes of `/dev/shm` that the slots of such an arena take.
pub(crate) fn host_bytes(kind: ArenaKind, queue: &QueueSpec) -> u64 {
    match kind {
        ArenaKind::Host => u64::from(queue.capacity) * queue.slot_bytes,
        ArenaKind::Fd | ArenaKind::Cuipc => 0,
    }
}
