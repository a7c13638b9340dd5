//! Where hidden states lie between capture and training: uniform slots of `batch_tokens` rows, one column block per tap.
//!
//! A slot's payload is the matrix [tokens, taps * hidden] in the capture type, taps in ascending layer order. Who may
//! touch a slot when is the queue's business: the holder of a lease, and nobody else.

mod host;

use common::config::{Config, Dtype};
use common::run_plan::RunPlan;
use tch::Kind;

pub use host::HostArena;

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
        self.tokens * self.taps * self.hidden * self.dtype.size() as usize
    }

    fn kind(&self) -> Kind {
        crate::runtime::kind(self.dtype)
    }
}
