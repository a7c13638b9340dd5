//! Where the slots' payload lies, as far as processes have to agree on it: the kind of memory, which part of it each
//! slot belongs to, and who hands the parts on ([`Broker`]). The memory itself is the workers'.
//!
//! On GPUs the arena has one part per target, on that target's GPU. Every worker maps all parts; any target may write
//! any slot, any drafter read any.

mod broker;

use std::ops::Range;
use std::path::Path;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::config::{ArenaChoice, Device};
use crate::ids::SlotIndex;
use crate::queue::part_of;

pub use broker::{Broker, BrokerError, Delivery, Lost, Worker};

/// Each worker's own room at the end of every part on a GPU, to try the way there.
pub const LANE_BYTES: usize = 8 << 20;

/// The kind of memory that slots' payload lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArenaKind {
    /// Shared memory of the machine.
    Host,
    /// GPU memory, shared by file descriptors that the launcher holds: it outlives every worker.
    Fd,
    /// GPU memory, shared by CUDA IPC handles: a part's content is lost with the target that made it.
    Cuipc,
}

impl std::fmt::Display for ArenaKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ArenaKind::Host => "host memory (/dev/shm)",
            ArenaKind::Fd => "GPU memory, shared by file descriptors (fd)",
            ArenaKind::Cuipc => "GPU memory, shared by CUDA IPC handles (cuipc)",
        })
    }
}

impl ArenaKind {
    /// What `run.arena` comes to: `auto` is `fd` where workers compute on GPUs, else `host`.
    pub fn resolve(choice: ArenaChoice, device: Device) -> ArenaKind {
        match choice {
            ArenaChoice::Host => ArenaKind::Host,
            ArenaChoice::Fd => ArenaKind::Fd,
            ArenaChoice::Cuipc => ArenaKind::Cuipc,
            ArenaChoice::Auto => match device {
                Device::Cpu => ArenaKind::Host,
                Device::Cuda => ArenaKind::Fd,
                Device::Auto if machine_has_gpus() => ArenaKind::Fd,
                Device::Auto => ArenaKind::Host,
            },
        }
    }
}

/// Whether workers will find a GPU, without asking CUDA: NVIDIA's driver is loaded, and nobody hides its devices.
pub fn machine_has_gpus() -> bool {
    let driver = ["/dev/nvidiactl", "/dev/dxg"].iter().any(|device| Path::new(device).exists());
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").map_or(true, |devices| !matches!(devices.trim(), "" | "-1"));
    driver && visible
}

/// How the slots are spread over the arena's parts: each has an equal run of them, one more or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    slots: u32,
    parts: u32,
}

impl Parts {
    /// `slots` over `parts`; both at least 1.
    pub fn new(slots: u32, parts: u32) -> Parts {
        assert!(slots > 0 && parts > 0, "{slots} slots in {parts} parts");
        Parts { slots, parts }
    }

    /// Parts there are.
    pub fn count(self) -> u32 {
        self.parts
    }

    /// The slots of a part.
    pub fn slots_of(self, part: u32) -> Range<u32> {
        let start = |part: u32| (u64::from(part) * u64::from(self.slots) / u64::from(self.parts)) as u32;
        start(part)..start(part + 1)
    }

    /// The part that a slot lies in, and its place there.
    pub fn place(self, slot: SlotIndex) -> (u32, u32) {
        let part = part_of(slot.0, self.slots, self.parts);
        (part, slot.0 - self.slots_of(part).start)
    }
}

/// One part of the arena, as the worker that made it tells the others. With [`Memory::Fd`] the descriptor comes along.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Part {
    /// Which.
    pub part: u32,
    /// How often the part was made before: its content is lost each time.
    pub version: u32,
    /// Bytes, of the slots and of what follows them.
    pub bytes: u64,
    /// UUID of the GPU it lies on.
    pub gpu: [u8; 16],
    /// How to reach it.
    pub memory: Memory,
}

/// How another process reaches a part.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Memory {
    /// By the file descriptor that comes with the message.
    Fd,
    /// By the 64 bytes of a CUDA IPC handle.
    Ipc(Vec<u8>),
}

/// What a worker says to the launcher about the arena.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ArenaRequest {
    /// It wants to map the arena: all parts that there are, and those to come.
    Want,
    /// It has made a part.
    Made(Part),
}

/// What the launcher says to a worker about the arena.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ArenaReply {
    /// Nobody has that part: make it.
    Make {
        /// Which.
        part: u32,
        /// How often it was made before.
        version: u32,
    },
    /// Map this part.
    Map(Part),
    /// The part is gone with the target that made it, and is to be made anew: let go of its memory.
    Gone {
        /// Which.
        part: u32,
        /// How often it had been made before.
        version: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_one_place_and_parts_are_equal_but_for_one() {
        for (slots, parts) in [(8, 1), (8, 3), (7, 2), (2, 5), (64, 8)] {
            let split = Parts::new(slots, parts);
            let mut next = 0;
            for part in 0..parts {
                let range = split.slots_of(part);
                assert_eq!(range.start, next);
                assert!(range.len() as u32 - slots / parts <= 1, "{range:?}");
                range.clone().for_each(|slot| assert_eq!(split.place(SlotIndex(slot)), (part, slot - range.start)));
                next = range.end;
            }
            assert_eq!(next, slots);
        }
    }

    #[test]
    fn the_choice_comes_before_the_machine() {
        assert_eq!(ArenaKind::resolve(ArenaChoice::Auto, Device::Cpu), ArenaKind::Host);
        assert_eq!(ArenaKind::resolve(ArenaChoice::Auto, Device::Cuda), ArenaKind::Fd);
        assert_eq!(ArenaKind::resolve(ArenaChoice::Cuipc, Device::Auto), ArenaKind::Cuipc);
        assert_eq!(ArenaKind::resolve(ArenaChoice::Host, Device::Cuda), ArenaKind::Host);
    }
}
