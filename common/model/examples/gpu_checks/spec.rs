//! What a worker of a check is told on its command line.

use std::path::PathBuf;

use common::arena::{ArenaKind, Parts};
use common::config::Dtype;
use common::ids::Role;
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
    /// Where payloads are kept that are compared afterwards.
    pub(crate) folder: PathBuf,
    /// What workers do besides moving payloads.
    pub(crate) load: Load,
}

/// A target and a drafter that keep their GPUs busy.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Seconds of a target's step on its GPU.
    pub(crate) target: f64,
    /// Seconds of a drafter's.
    pub(crate) drafter: f64,
    /// Steps of a round.
    pub(crate) steps: u32,
}

pub(crate) const TAPS: usize = 5;

/// Documents of a batch.
pub(crate) const MOST_DOCUMENTS: u32 = 64;

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

impl Job {
    /// Whose device it takes.
    pub(crate) fn role(self) -> Role {
        match self {
            Job::Fill | Job::Tear | Job::Idle | Job::Push | Job::Hang | Job::Capture | Job::Produce => Role::Target,
            Job::Drain | Job::Keep | Job::Consume | Job::Pull | Job::Hold | Job::Memory => Role::Drafter,
        }
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
    /// A target whose GPU does not come to an end, with somebody who watches it.
    Hang,
    /// A target with a model: captures, publishes, and keeps what a plain forward gives.
    Capture,
    /// A target that computes for a while, writes a slot, and again; in turn without the slot.
    Produce,
    /// A drafter: reads, checks, releases.
    Drain,
    /// A drafter that keeps what it reads.
    Keep,
    /// A drafter that reads a slot, computes for a while, and again; in turn without the slot.
    Consume,
    /// A drafter that measures how fast slots are read, and gives them back.
    Pull,
    /// A drafter that reads one slot and keeps it until it is killed.
    Hold,
    /// Prints the free bytes of every GPU.
    Memory,
}
