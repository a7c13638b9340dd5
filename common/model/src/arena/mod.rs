//! Where hidden states lie between capture and training: uniform slots of `batch_tokens` rows, one column block per tap.
//!
//! A slot's payload is the matrix [tokens, taps * hidden] in the capture type, taps in ascending layer order. Who may
//! touch a slot when is the queue's business: the holder of a lease, and nobody else.
//!
//! | kind | memory | a slot's content outlives |
//! |---|---|---|
//! | `host` | `/dev/shm`, made by the launcher | every worker |
//! | `fd` | one part per target on its GPU, held by the launcher as a file descriptor | every worker |
//! | `cuipc` | one part per target on its GPU, through CUDA IPC handles | not the target that made the part |
//!
//! On GPUs nothing waits for another process's event (a waiter hangs when the recorder is killed): a writer waits for its
//! own copies and only then publishes; a reader waits for its own copy and only then releases.

mod checksum;
mod copies;
mod gpu;
mod host;
mod link;
mod preflight;
mod reader;
mod writer;

use common::arena::{ArenaKind, LANE_BYTES, Parts};
use common::config::{Config, Dtype};
use common::exit::{AnyError, Code, Fault};
use common::ids::{BatchId, Rank, Role, SlotIndex};
use common::run_plan::RunPlan;
use common::shm::ShmError;
use common::wait::{Patience, WaitError};
use tch::{Device, Kind};

use crate::cuda::{CudaError, Gpu, Refusal};

pub use checksum::payload_checksum;
pub use gpu::GpuArena;
pub use host::HostArena;
pub use link::{Incoming, LauncherLink, Link, LinkError};
pub use preflight::PathSpeed;
pub use reader::{Buffer, Read, SlotReader};
pub use writer::{Filling, SlotWriter, Written};

/// Extent of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotShape {
    /// Tokens at most.
    pub tokens: usize,
    /// Tapped layers.
    pub taps: usize,
    /// Hidden size.
    pub hidden: usize,
    /// Element type.
    pub dtype: Dtype,
}

impl SlotShape {
    /// The slots of a run: what both workers of a pair must agree on.
    pub fn of(config: &Config, plan: &RunPlan) -> SlotShape {
        SlotShape {
            tokens: config.data.batch_tokens as usize,
            taps: plan.draft.num_taps(),
            hidden: plan.draft.hidden_size,
            dtype: config.model.torch_dtype,
        }
    }

    /// Bytes of a slot.
    pub fn bytes(&self) -> usize {
        self.tokens * self.row_bytes()
    }

    /// Bytes of one token's row.
    pub fn row_bytes(&self) -> usize {
        self.taps * self.tap_bytes()
    }

    /// Bytes of one token's hidden state.
    fn tap_bytes(&self) -> usize {
        self.hidden * self.dtype.size() as usize
    }

    fn kind(&self) -> Kind {
        crate::runtime::kind(self.dtype)
    }
}

/// Payload that cannot be moved.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The shared memory of the machine.
    #[error("{0}")]
    Host(#[from] ShmError),
    /// The shared memory is another run's, or was cut.
    #[error("/dev/shm/{name} has {found} bytes, the slots need {needed}")]
    Length {
        /// The segment.
        name: String,
        /// Bytes there are.
        found: usize,
        /// Bytes of all slots.
        needed: usize,
    },
    /// The GPU.
    #[error(transparent)]
    Gpu(#[from] CudaError),
    /// The launcher does not hand out the parts.
    #[error("getting the arena's parts: {0}")]
    Link(#[from] LinkError),
    /// The slot's memory went with its target; so did the lease.
    #[error("part {0} of the arena is gone with the target that made it")]
    Gone(u32),
    /// A tap that does not go into its columns.
    #[error("tap {tap} is {found}, slots hold {expected}")]
    Shape {
        /// Which tap.
        tap: usize,
        /// Its size, type and device.
        found: String,
        /// What fits.
        expected: String,
    },
    /// A checksum is asked for, and rows are not made of whole words.
    #[error("a hidden state has {0} bytes, checksums are sums of words of 8")]
    NoChecksum(usize),
    /// The bytes that arrived are not those that were written.
    #[error(
        "batch {batch} in slot {slot}: the payload's checksum is {found:016x} at drafter {reader}, target {writer} sent \
         {expected:016x}: the hidden states were torn or overwritten"
    )]
    Checksum {
        /// The batch.
        batch: BatchId,
        /// Where it lay.
        slot: SlotIndex,
        /// Who wrote it.
        writer: Rank,
        /// Who read it.
        reader: Rank,
        /// Of what was read.
        found: u64,
        /// Of what was written.
        expected: u64,
    },
    /// The way to a part of the arena does not carry bytes as they are.
    #[error("part {part} on {gpu}: what was written there does not read back: {detail}")]
    Path {
        /// The part.
        part: u32,
        /// The GPU it lies on.
        gpu: String,
        /// What was tried.
        detail: &'static str,
    },
}

impl ArenaError {
    /// As a worker's last word: with a hint it is the user's to act.
    pub fn blamed(self) -> AnyError {
        match self.hint() {
            Some(hint) => Fault::new(Code::Input, self).with_hint(hint).into(),
            None => self.into(),
        }
    }

    /// Whether nothing is wrong but that this process was asked to end while it waited.
    pub fn is_shutdown(&self) -> bool {
        matches!(self, ArenaError::Link(LinkError::Wait(WaitError::Shutdown)))
    }

    /// What a user can do about it, if anything.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ArenaError::Gpu(CudaError::Refused(refusal)) => Some(refusal.hint()),
            ArenaError::Gpu(CudaError::NoLibrary) => Some(Refusal::NoGpu.hint()),
            ArenaError::NoChecksum(_) => Some("set run.verify_payload to false: this model's slots cannot be verified"),
            ArenaError::Path { .. } => Some("set run.arena to host: slots then go through the machine's memory"),
            _ => None,
        }
    }
}

/// The slots' payload, as one process has it mapped.
pub enum Arena {
    /// In the machine's shared memory.
    Host(HostArena),
    /// On GPUs.
    Gpu(GpuArena),
}

/// What a worker brings to map the arena.
pub struct Seat<'a> {
    /// Its role and rank.
    pub worker: (Role, Rank),
    /// Where it computes.
    pub device: Device,
    /// To the launcher.
    pub link: Box<dyn Link>,
    /// How long it waits for parts that others make.
    pub patience: &'a Patience,
}

impl Arena {
    /// Maps the run's arena; on GPUs also makes this target's part if nobody has it, and tries the way to every part.
    ///
    /// # Errors
    /// [`ArenaError`]: no memory, no way to another GPU, or no word from the launcher.
    pub fn attach(config: &Config, plan: &RunPlan, seat: Seat<'_>) -> Result<Arena, ArenaError> {
        let shape = SlotShape::of(config, plan);
        if plan.arena == ArenaKind::Host {
            return Ok(Arena::Host(HostArena::attach(&plan.arena_name(), shape, config.queue.capacity)?));
        }
        let Device::Cuda(ordinal) = seat.device else { return Err(CudaError::from(Refusal::NoGpu).into()) };
        let targets = config.run.workers(Role::Target);
        let layout = GpuLayout {
            kind: plan.arena,
            shape,
            parts: Parts::new(config.queue.capacity, targets),
            workers: targets + config.run.workers(Role::Drafter),
        };
        let (role, rank) = seat.worker;
        let lane = if role == Role::Target { rank.0 } else { targets + rank.0 };
        let arena = GpuArena::attach(Gpu::open(ordinal)?, layout, seat.link, seat.patience)?;
        for path in arena.preflight(lane)? {
            tracing::info!("arena: {path}");
        }
        Ok(Arena::Gpu(arena))
    }
}

/// How a GPU arena is laid out.
#[derive(Clone, Copy, Debug)]
pub struct GpuLayout {
    /// How its parts are shared.
    pub kind: ArenaKind,
    /// Its slots.
    pub shape: SlotShape,
    /// How they are spread.
    pub parts: Parts,
    /// Workers of the run: each has a lane at the end of every part, to try the way there.
    pub workers: u32,
}

impl GpuLayout {
    /// Bytes of a part: its slots, then the lanes.
    pub fn part_bytes(&self, part: u32) -> usize {
        self.lane(part, self.workers)
    }

    /// Where a lane starts in its part.
    fn lane(&self, part: u32, lane: u32) -> usize {
        self.parts.slots_of(part).len() * self.shape.bytes() + lane as usize * LANE_BYTES
    }
}
