//! `run.arena`.

use serde::{Deserialize, Serialize};

/// Where hidden states lie between capture and training.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ArenaChoice {
    /// `fd` on GPUs, `host` on the CPU.
    #[default]
    Auto,
    /// Shared memory of the machine.
    Host,
    /// GPU memory that outlives its workers.
    Fd,
    /// GPU memory through CUDA IPC handles: a part's content is lost with the target that made it.
    Cuipc,
}
