//! The arena on GPUs: parts that this process made or mapped, and where each slot lies.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::arena::{ArenaKind, ArenaReply, ArenaRequest, Memory, Part};
use common::ids::SlotIndex;
use common::wait::Patience;

use super::link::{Inbox, Link, LinkError};
use super::{ArenaError, GpuLayout};
use crate::cuda::memory::{self, Mapping};
use crate::cuda::{CudaError, Gpu, GpuId, Refusal};

/// All parts of the arena, mapped on this process's GPU.
pub struct GpuArena {
    gpu: Gpu,
    layout: GpuLayout,
    inbox: Mutex<Inbox>,
    parts: Mutex<Vec<Option<Arc<MappedPart>>>>,
}

/// One part as this process has it mapped.
pub(super) struct MappedPart {
    pub(super) mapping: Mapping,
    pub(super) gpu: GpuId,
    version: u32,
}

/// Where a slot's payload starts; keeps its part mapped.
pub(super) struct SlotPlace {
    part: Arc<MappedPart>,
    offset: usize,
}

impl SlotPlace {
    /// The address of the first byte, in this process.
    pub(super) fn address(&self) -> u64 {
        self.part.mapping.start() + self.offset as u64
    }
}

impl GpuArena {
    /// Maps every part, and makes this worker's own if it is asked to.
    ///
    /// # Errors
    /// No memory, no way to a GPU, or parts that do not come.
    pub fn attach(
        gpu: Gpu,
        layout: GpuLayout,
        link: Box<dyn Link>,
        patience: &Patience,
    ) -> Result<GpuArena, ArenaError> {
        let parts = Mutex::new((0..layout.parts.count()).map(|_| None).collect());
        let arena = GpuArena { gpu, layout, inbox: Mutex::new(Inbox::new(link)), parts };
        arena.inbox().send(ArenaRequest::Want, None)?;
        let missing = |part: &u32| !layout.parts.slots_of(*part).is_empty() && arena.part(*part).is_none();
        while let Some(part) = (0..layout.parts.count()).find(missing) {
            let what = format!("part {part} of the arena, which target {part} makes");
            let (reply, fd) = arena.inbox().await_next(|_, _| true, patience, &what)?;
            arena.take(reply, fd)?;
        }
        Ok(arena)
    }

    /// The GPU of this process.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// How it is laid out.
    pub fn layout(&self) -> &GpuLayout {
        &self.layout
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn part(&self, part: u32) -> Option<Arc<MappedPart>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)[part as usize].clone()
    }

    fn put(&self, part: u32, mapped: MappedPart) {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)[part as usize] = Some(Arc::new(mapped));
    }

    /// Where a slot lies, once this process has that version of its part mapped.
    pub(super) fn place(&self, slot: SlotIndex, version: u32, patience: &Patience) -> Result<SlotPlace, ArenaError> {
        let (number, index) = self.layout.parts.place(slot);
        loop {
            if let Some(part) = self.part(number).filter(|part| part.version >= version) {
                return Ok(SlotPlace { part, offset: index as usize * self.layout.shape.bytes() });
            }
            let what = format!("part {number} of the arena, which target {number} makes anew");
            let wanted = |part, found| part == number && found >= version;
            let (reply, fd) = self.inbox().await_next(wanted, patience, &what)?;
            self.take(reply, fd)?;
        }
    }

    /// Does what the launcher says.
    fn take(&self, reply: ArenaReply, fd: Option<OwnedFd>) -> Result<(), ArenaError> {
        match reply {
            ArenaReply::Make { part, version } => self.make(part, version),
            ArenaReply::Map(part) => self.map(&part, fd),
        }
    }

    fn make(&self, part: u32, version: u32) -> Result<(), ArenaError> {
        let bytes = self.layout.part_bytes(part);
        tracing::info!("arena: part {part} takes {} MiB on {}", bytes.div_ceil(1 << 20), self.gpu.id());
        let (mapping, memory, fd) = match self.layout.kind {
            ArenaKind::Cuipc => {
                let (mapping, handle) = memory::create_ipc(&self.gpu, bytes)?;
                (mapping, Memory::Ipc(handle.to_vec()), None)
            }
            ArenaKind::Fd | ArenaKind::Host => {
                let (mapping, fd) = memory::create_fd(&self.gpu, bytes)?;
                (mapping, Memory::Fd, Some(fd))
            }
        };
        let bytes = mapping.len() as u64;
        self.put(part, MappedPart { mapping, gpu: self.gpu.id(), version });
        let made = Part { part, version, bytes, gpu: self.gpu.id().0, memory };
        Ok(self.inbox().send(ArenaRequest::Made(made), fd.as_ref().map(AsFd::as_fd))?)
    }

    fn map(&self, part: &Part, fd: Option<OwnedFd>) -> Result<(), ArenaError> {
        let gpu = GpuId(part.gpu);
        let facts = self.gpu.facts_about(gpu);
        facts.check().map_err(CudaError::from)?;
        let len = part.bytes as usize;
        let mapped = match (&part.memory, fd) {
            (Memory::Fd, Some(fd)) => memory::import_fd(&self.gpu, fd.as_fd(), len),
            (Memory::Ipc(handle), _) if handle.len() == memory::IPC_BYTES => {
                let handle = std::array::from_fn(|place| handle[place]);
                memory::open_ipc(&self.gpu, handle, len)
            }
            _ => return Err(LinkError::Line(format!("part {} came without its handle", part.part)).into()),
        };
        let mapping = mapped.map_err(|error| match facts.is_hidden() {
            true => Refusal::Hidden { own: self.gpu.id(), other: gpu }.into(),
            false => error,
        })?;
        self.put(part.part, MappedPart { mapping, gpu, version: part.version });
        Ok(())
    }
}
