//! What a worker of a check is told on its command line.

use common::arena::{ArenaKind, Parts};
use common::config::Dtype;
use model::arena::{GpuLayout, SlotShape};
use serde::{Deserialize, Serialize};

/// A world of workers around one queue and one arena.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) queue: String,
    pub(crate) kind: ArenaKind,
    /// Device numbers of the targets, by rank.
    pub(crate) targets: Vec<u32>,
    /// Device numbers of the drafters, by rank.
    pub(crate) drafters: Vec<u32>,
    pub(crate) slots: u32,
    pub(crate) tokens: u32,
    pub(crate) hidden: u32,
    pub(crate) batches: u64,
    /// Copies of rubbish into the slot before each payload, which make the copying long.
    pub(crate) rubbish: u32,
    /// Payloads carry checksums.
    pub(crate) verify: bool,
    /// Each worker sees its own GPU alone.
    pub(crate) hides: bool,
}

pub(crate) const TAPS: usize = 5;

impl Spec {
    pub(crate) fn layout(&self) -> GpuLayout {
        GpuLayout {
            kind: self.kind,
            shape: self.shape(),
            parts: Parts::new(self.slots, self.targets.len() as u32),
            workers: (self.targets.len() + self.drafters.len()) as u32,
        }
    }

    pub(crate) fn shape(&self) -> SlotShape {
        let (tokens, hidden) = (self.tokens as usize, self.hidden as usize);
        SlotShape { tokens, taps: TAPS, hidden, dtype: Dtype::Bfloat16 }
    }
}

/// What one worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Job {
    /// A target: fills and publishes, two slots in flight.
    Fill,
    /// A target that publishes without waiting for its copies: what must not be done.
    Tear,
    /// A target that makes its part and does nothing with it.
    Idle,
    /// A target that measures how fast slots are filled, and gives them back.
    Push,
    /// A drafter: reads, checks, releases.
    Drain,
    /// A drafter that measures how fast slots are read, and gives them back.
    Pull,
    /// A drafter that reads one slot and keeps it until it is killed.
    Hold,
    /// Prints the free bytes of every GPU.
    Memory,
}
