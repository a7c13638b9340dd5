//! Why one process cannot reach another GPU's memory, by name, before anything is tried.

use super::GpuId;

/// What this process knows about the way to another process's GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairFacts {
    /// This process's GPU.
    pub own: GpuId,
    /// The GPU whose memory is to be reached.
    pub other: GpuId,
    /// Whether the driver lets one reach the other; none if `other` is the own one, or not visible here.
    pub reaches: Option<bool>,
    /// The own device is a slice of a GPU.
    pub part_of_a_gpu: bool,
    /// This is Linux inside Windows.
    pub wsl: bool,
}

/// Why GPU memory cannot be shared here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No IPC under WSL.
    #[error("this is WSL: CUDA cannot share GPU memory between processes there")]
    Wsl,
    /// MIG slices cannot reach each other.
    #[error("{own} is a MIG slice: it cannot reach the memory of {other}")]
    Mig {
        /// This process's GPU.
        own: GpuId,
        /// The other one.
        other: GpuId,
    },
    /// The two GPUs are not peers.
    #[error("no peer access: {own} cannot reach the memory of {other} (`nvidia-smi topo -p2p r` shows which can)")]
    NoPeerAccess {
        /// This process's GPU.
        own: GpuId,
        /// The other one.
        other: GpuId,
    },
    /// The other GPU cannot be opened, and is not among those this process may see.
    #[error(
        "hidden GPU: {other} is not visible to this process, and its memory cannot be opened from {own} (CUDA_VISIBLE_DEVICES)"
    )]
    Hidden {
        /// This process's GPU.
        own: GpuId,
        /// The other one.
        other: GpuId,
    },
    /// Not enough of it.
    #[error("too little memory on {gpu}: the slots need {needed} bytes there in one piece, {free} are free")]
    Memory {
        /// Where.
        gpu: GpuId,
        /// Bytes wanted.
        needed: usize,
        /// Bytes there.
        free: usize,
    },
    /// An old driver or a device without virtual memory management.
    #[error("{gpu} cannot hand out memory as file descriptors")]
    NoFds {
        /// Which.
        gpu: GpuId,
    },
    /// The workers compute on the CPU.
    #[error("the arena lies on GPUs, and this worker computes on the CPU")]
    NoGpu,
}

impl Refusal {
    /// What a user can do about it.
    pub fn hint(self) -> &'static str {
        match self {
            Refusal::Memory { .. } => "lower queue.capacity or data.batch_tokens, or free the GPU",
            Refusal::Hidden { .. } => "show all GPUs of the run to all workers, or set run.arena to host",
            Refusal::NoFds { .. } => "set run.arena to cuipc or host",
            Refusal::NoGpu => "set run.device to cpu, or make the GPUs visible to libtorch",
            Refusal::Wsl | Refusal::Mig { .. } | Refusal::NoPeerAccess { .. } => {
                "set run.arena to host: slots then go through the machine's memory"
            }
        }
    }
}

impl PairFacts {
    /// What is known to be impossible. What nobody can know before is tried.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn check(self) -> Result<(), Refusal> {
        let PairFacts { own, other, .. } = self;
        if self.wsl {
            return Err(Refusal::Wsl);
        }
        if self.part_of_a_gpu && own != other {
            return Err(Refusal::Mig { own, other });
        }
        match self.reaches {
            Some(false) => Err(Refusal::NoPeerAccess { own, other }),
            _ => Ok(()),
        }
    }

    /// Whether the other GPU is not among those that this process may see.
    pub fn is_hidden(self) -> bool {
        self.own != self.other && self.reaches.is_none()
    }
}

/// WSL's kernel says so, and has Windows' graphics device.
pub(super) fn is_wsl() -> bool {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    kernel.to_lowercase().contains("microsoft") || std::path::Path::new("/dev/dxg").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: GpuId = GpuId([1; 16]);
    const B: GpuId = GpuId([2; 16]);
    const PEERS: PairFacts = PairFacts { own: A, other: B, reaches: Some(true), part_of_a_gpu: false, wsl: false };

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        assert_eq!(PEERS.check(), Ok(()));
        assert_eq!(
            PairFacts { reaches: Some(false), ..PEERS }.check(),
            Err(Refusal::NoPeerAccess { own: A, other: B })
        );
        assert_eq!(PairFacts { wsl: true, ..PEERS }.check(), Err(Refusal::Wsl));
        let slice = PairFacts { part_of_a_gpu: true, ..PEERS };
        assert_eq!(slice.check(), Err(Refusal::Mig { own: A, other: B }));
        assert_eq!(PairFacts { other: A, reaches: None, ..slice }.check(), Ok(()), "two processes on one slice");
    }

    #[test]
    fn a_gpu_that_is_not_visible_is_tried_and_only_then_called_hidden() {
        let unseen = PairFacts { reaches: None, ..PEERS };
        assert_eq!(unseen.check(), Ok(()));
        assert!(unseen.is_hidden() && !PEERS.is_hidden());
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let (own, other) = (A, B);
        let refusals = [
            Refusal::Wsl,
            Refusal::Mig { own, other },
            Refusal::NoPeerAccess { own, other },
            Refusal::Hidden { own, other },
            Refusal::Memory { gpu: A, needed: 2, free: 1 },
            Refusal::NoFds { gpu: A },
            Refusal::NoGpu,
        ];
        assert!(
            refusals.into_iter().all(|refusal| refusal.hint().contains("run.") || refusal.hint().contains("queue."))
        );
    }
}
