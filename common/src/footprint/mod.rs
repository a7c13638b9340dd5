//! What a run takes of its GPUs' memory, worked out before anything is allocated: pure arithmetic over shapes.
//!
//! The parts follow the code that allocates (`common/model`, `target-worker`, `drafter-worker`), tensor by tensor, at the
//! moment that takes most; `docs/benchmarks.md` holds them against what the driver counts. What no shape decides (a
//! CUDA context, libraries, the allocator's rounding) is measured, and says so.
//!
//! Shape letters: T tokens of a batch, H hidden size, I inner size, K taps, V vocabulary, L layers, nh and nkv heads, hd
//! head dimension, Q query slots, M context rows, P trained numbers.

mod batch;
mod drafter;
mod evaluation;
mod target;

use std::fmt;

use crate::config::Config;
use crate::ids::{Rank, Role};
use crate::run_plan::RunPlan;

pub use batch::{BatchShape, CHUNK_LOGITS, CONTEXT_UNIT, GROUP_BLOCKS, RowShape, class_sizes, context_unit};
pub use drafter::RECEIVED;
pub use target::IN_FLIGHT;

/// The part that is there as soon as a process uses its GPU.
pub const LIBRARIES: &str = "CUDA context and libraries";

/// The part that outlives a target.
pub const SLOTS: &str = "slots of the arena";

/// [`LIBRARIES`] in bytes: the context, the code of libtorch, cuBLAS and cuDNN that is loaded, their workspaces, and what
/// libtorch's allocator rounds up. Measured: one H200, driver 580, torch 2.11.0+cu130, 2026-11-30.
const LIBRARY_BYTES: u64 = 800 << 20;

/// One thing that takes memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What.
    pub what: &'static str,
    /// How much.
    pub bytes: u64,
}

/// All that a worker takes of its GPU at its peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// In the order in which they are allocated; none is 0.
    pub parts: Vec<Part>,
}

impl Footprint {
    fn new(parts: impl IntoIterator<Item = (&'static str, u64)>) -> Footprint {
        let parts = parts.into_iter().map(|(what, bytes)| Part { what, bytes });
        Footprint { parts: parts.filter(|part| part.bytes > 0).collect() }
    }

    /// Bytes of all parts.
    pub fn total(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

impl fmt::Display for Footprint {
    /// `weights 2.10 GB, gradients 4.19 GB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, Part { what, bytes }) in self.parts.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{what} {:.2} GB", *bytes as f64 / 1e9)?;
        }
        Ok(())
    }
}

/// How far the arithmetic may be above what is taken.
const DOUBT: f64 = 0.05;

/// Needs beside what is free of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// There is room, whatever the doubt.
    Loose,
    /// Within the arithmetic's doubt (5 %): whoever takes it finds out.
    Tight,
    /// Refused: too much even if the arithmetic is above what is taken by all its doubt.
    Not,
}

impl Fit {
    /// Holds bytes needed against bytes free: launcher and workers refuse by this rule alone.
    pub fn of(needed: u64, free: u64) -> Fit {
        let (needed, free) = (needed as f64, free as f64);
        match () {
            () if needed * (1.0 - DOUBT) > free => Fit::Not,
            () if needed > free * (1.0 - DOUBT) => Fit::Tight,
            () => Fit::Loose,
        }
    }
}

/// What worker `rank` of a role takes of the GPU that it computes on.
pub fn of_worker(config: &Config, plan: &RunPlan, role: Role, rank: Rank) -> Footprint {
    match role {
        Role::Target => target::footprint(config, plan, rank),
        Role::Drafter => drafter::footprint(config, plan),
    }
}

/// What decoding the held-out prompts takes of the first target's GPU, before training and after it.
pub fn of_evaluation(config: &Config, plan: &RunPlan) -> Footprint {
    evaluation::footprint(config, plan)
}

#[cfg(test)]
mod tests;
