//! Everything that touches a tensor: the target, the drafter, the arena between them, and speculative decoding.
//!
//! Knows tensors and models; knows no processes and no policy. The only library that links torch.

pub mod arena;
pub mod cuda;
pub mod drafter;
pub mod nn;
pub mod optimizer;
pub mod room;
pub mod runtime;
pub mod speculate;
pub mod sum;
pub mod target;
pub mod weights;
