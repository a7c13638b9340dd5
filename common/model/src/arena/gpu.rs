//! The arena on GPUs: parts that this process made or mapped, and where each slot lies.
//!
//! A part that goes with its target (`cuipc`) stays on its GPU while anybody has it mapped. So a thread listens to the
//! launcher, and lets go of it and maps its successor whatever the worker is doing.

use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::arena::{ArenaKind, ArenaReply, ArenaRequest, Memory, Part};
use common::ids::SlotIndex;
use common::shutdown::Shutdown;
use common::wait::{Patience, WaitError};

use super::link::{Inbox, LOOK, Link, LinkError};
use super::{ArenaError, GpuLayout};
use crate::cuda::memory::{self, IPC_BYTES, Mapping};
use crate::cuda::{CudaError, Gpu, GpuId, Refusal};

/// How long a target that makes its part anew waits for others to let go of what was there before.
const LET_GO: Duration = Duration::from_secs(10);

/// Between two looks at something that other processes or threads do within milliseconds.
const PAUSE: Duration = Duration::from_millis(1);

/// All parts of the arena, mapped on this process's GPU.
pub struct GpuArena {
    parts: Arc<MappedParts>,
    /// None where no part is ever made anew.
    listener: Option<JoinHandle<()>>,
    stop: Shutdown,
}

/// What the worker's threads and the listener share.
struct MappedParts {
    gpu: Gpu,
    layout: GpuLayout,
    held: Mutex<Vec<Held<Arc<MappedPart>>>>,
}

/// What this process has of one part.
#[derive(Clone)]
struct Held<T> {
    mapped: Option<T>,
    /// Which making that is. Those before are gone.
    version: u32,
}

impl<T: Clone> Held<T> {
    const NOTHING: Held<T> = Held { mapped: None, version: 0 };

    /// That making and no other: what a newer one holds is somebody else's. None while it is still to come; an error where
    /// it is gone.
    fn find(&self, version: u32) -> Option<Result<T, Gone>> {
        let mapped = self.mapped.clone().filter(|_| self.version == version);
        mapped.map(Ok).or_else(|| (version < self.version).then_some(Err(Gone)))
    }
}

/// It will not come again.
#[derive(Debug, PartialEq, Eq)]
struct Gone;

/// One part as this process has it mapped.
pub(super) struct MappedPart {
    pub(super) mapping: Mapping,
    pub(super) gpu: GpuId,
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
        let held = Mutex::new(vec![Held::NOTHING; layout.parts.count() as usize]);
        let parts = Arc::new(MappedParts { gpu, layout, held });
        let mut inbox = Inbox::new(link);
        inbox.send(ArenaRequest::Want, None)?;
        let missing = |part: &u32| !layout.parts.slots_of(*part).is_empty() && parts.get(*part).is_none();
        while let Some(part) = (0..layout.parts.count()).find(missing) {
            let what = format!("part {part} of the arena, which target {part} makes");
            match inbox.await_next(patience, &what)? {
                (ArenaReply::Make { part, version }, _) => parts.make((part, version), &inbox, patience)?,
                (ArenaReply::Map(part), fd) => parts.map(&part, fd)?,
                (ArenaReply::Gone { part, version }, _) => parts.lose(part, version),
            }
        }
        let (stop, shared) = (Shutdown::never(), Arc::clone(&parts));
        let listener = (layout.kind == ArenaKind::Cuipc).then(|| {
            let stop = stop.clone();
            thread::spawn(move || shared.listen(inbox, &stop))
        });
        Ok(GpuArena { parts, listener, stop })
    }

    /// The GPU of this process.
    pub fn gpu(&self) -> &Gpu {
        &self.parts.gpu
    }

    /// How it is laid out.
    pub fn layout(&self) -> &GpuLayout {
        &self.parts.layout
    }

    pub(super) fn part(&self, part: u32) -> Option<Arc<MappedPart>> {
        self.parts.get(part)
    }

    /// Where a slot lies, once this process has that version of its part mapped; [`ArenaError::Gone`] if nobody has it any
    /// more.
    pub(super) fn place(&self, slot: SlotIndex, version: u32, patience: &Patience) -> Result<SlotPlace, ArenaError> {
        let (number, index) = self.layout().parts.place(slot);
        let what = || format!("part {number} of the arena, which target {number} makes anew");
        let found = patience.poll(what, PAUSE, || self.parts.lock()[number as usize].find(version));
        let part = found.map_err(LinkError::from)?.map_err(|Gone| ArenaError::Gone(number))?;
        Ok(SlotPlace { part, offset: index as usize * self.layout().shape.bytes() })
    }
}

impl Drop for GpuArena {
    fn drop(&mut self) {
        self.stop.request();
        self.listener.take().into_iter().for_each(|listener| drop(listener.join()));
    }
}

impl MappedParts {
    fn get(&self, part: u32) -> Option<Arc<MappedPart>> {
        self.lock()[part as usize].mapped.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Held<Arc<MappedPart>>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, part: u32, version: u32, mapped: MappedPart) {
        self.replace(part, Held { mapped: Some(Arc::new(mapped)), version });
    }

    fn lose(&self, part: u32, version: u32) {
        self.replace(part, Held { mapped: None, version: version + 1 });
    }

    /// What was mapped before is unmapped once nobody copies to or from it any more.
    fn replace(&self, part: u32, held: Held<Arc<MappedPart>>) {
        let before = mem::replace(&mut self.lock()[part as usize], held);
        // With the lock free again: nobody waits for the driver.
        drop(before);
    }

    /// Follows the launcher's word on parts that targets lose and make anew.
    fn listen(&self, mut inbox: Inbox, stop: &Shutdown) {
        while !stop.is_set() {
            match inbox.next(LOOK) {
                Ok(Some((ArenaReply::Gone { part, version }, _))) => {
                    self.lose(part, version);
                    tracing::info!("arena: part {part} is gone with target {part}, and let go of (version {version})");
                }
                Ok(Some((ArenaReply::Map(part), fd))) => match self.map(&part, fd) {
                    Ok(()) => tracing::info!("arena: part {} is mapped anew (version {})", part.part, part.version),
                    // Its target has died again: the next word is that it is gone. Else whoever needs it says what is missing.
                    Err(error) => tracing::warn!("arena: part {}: {error}", part.part),
                },
                Ok(Some((ArenaReply::Make { part, .. }, _))) => tracing::warn!("arena: part {part} is made already"),
                Ok(None) => {}
                Err(error) => return tracing::warn!("arena: {error}"),
            }
        }
    }

    fn make(&self, (part, version): (u32, u32), inbox: &Inbox, patience: &Patience) -> Result<(), ArenaError> {
        let bytes = self.layout.part_bytes(part);
        tracing::info!("arena: part {part} takes {} MiB on {}", bytes.div_ceil(1 << 20), self.gpu.id());
        let (mapping, memory, fd) = match self.layout.kind {
            ArenaKind::Cuipc => {
                let (mapping, handle) = self.create_ipc(bytes, version, patience)?;
                (mapping, Memory::Ipc(handle.to_vec()), None)
            }
            ArenaKind::Fd | ArenaKind::Host => {
                let (mapping, fd) = memory::create_fd(&self.gpu, bytes)?;
                (mapping, Memory::Fd, Some(fd))
            }
        };
        let bytes = mapping.len() as u64;
        self.put(part, version, MappedPart { mapping, gpu: self.gpu.id() });
        let made = Part { part, version, bytes, gpu: self.gpu.id().0, memory };
        Ok(inbox.send(ArenaRequest::Made(made), fd.as_ref().map(AsFd::as_fd))?)
    }

    /// Memory for a part; one that is made anew may have to wait until all have let go of its predecessor.
    fn create_ipc(
        &self,
        bytes: usize,
        version: u32,
        patience: &Patience,
    ) -> Result<(Mapping, [u8; IPC_BYTES]), ArenaError> {
        let is_full = |error: &CudaError| matches!(error, CudaError::Refused(Refusal::Memory { .. }));
        let patience = Patience { timeout: patience.timeout.min(LET_GO), shutdown: patience.shutdown.clone() };
        let made = patience.poll(String::new, PAUSE, || match memory::create_ipc(&self.gpu, bytes) {
            Err(error) if version > 0 && is_full(&error) => None,
            made => Some(made),
        });
        match made {
            Ok(made) => Ok(made?),
            // What is in the way says the last try.
            Err(WaitError::Timeout { .. }) => Ok(memory::create_ipc(&self.gpu, bytes)?),
            Err(ended) => Err(LinkError::from(ended).into()),
        }
    }

    fn map(&self, part: &Part, fd: Option<OwnedFd>) -> Result<(), ArenaError> {
        let gpu = GpuId(part.gpu);
        let facts = self.gpu.facts_about(gpu);
        facts.check().map_err(CudaError::from)?;
        let len = part.bytes as usize;
        let mapped = match (&part.memory, fd) {
            (Memory::Fd, Some(fd)) => memory::import_fd(&self.gpu, fd.as_fd(), len),
            (Memory::Ipc(handle), _) if handle.len() == IPC_BYTES => {
                let handle = std::array::from_fn(|place| handle[place]);
                memory::open_ipc(&self.gpu, handle, len)
            }
            _ => return Err(LinkError::Line(format!("part {} came without its handle", part.part)).into()),
        };
        let mapping = mapped.map_err(|error| match facts.is_hidden() {
            true => Refusal::Hidden { own: self.gpu.id(), other: gpu }.into(),
            false => error,
        })?;
        self.put(part.part, part.version, MappedPart { mapping, gpu });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_making_is_waited_for_found_or_gone_and_never_taken_for_another() {
        let found = |mapped, version| [0, 1, 2].map(|wanted| Held { mapped, version }.find(wanted));
        assert_eq!(Held::<u8>::NOTHING.find(0), None);
        assert_eq!(found(Some('a'), 0), [Some(Ok('a')), None, None]);
        assert_eq!(found(None, 1), [Some(Err(Gone)), None, None], "lost, and not yet made anew");
        assert_eq!(found(Some('b'), 1), [Some(Err(Gone)), Some(Ok('b')), None]);
    }
}
