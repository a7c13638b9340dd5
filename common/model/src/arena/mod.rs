//! Where hidden states lie between capture and training: uniform slots of `batch_tokens` rows, one column block per tap.
//!
//! A slot's payload is the matrix [tokens, taps * hidden] in the capture type, taps in ascending layer order. Who may
//! touch a slot when is the queue's business: the holder of a lease, and nobody else.

mod host;

use common::config::Dtype;
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
    /// Bytes of a slot.
    pub fn bytes(&self) -> usize {
        self.tokens * self.taps * self.hidden * self.dtype.size() as usize
    }

    fn kind(&self) -> Kind {
        crate::runtime::kind(self.dtype)
    }
}
