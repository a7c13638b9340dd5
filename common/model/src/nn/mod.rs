//! The bricks of every decoder layer, pure functions over tensors. Norms, softmax and rotary tables work in float32
//! whatever the compute type (spec 3.12).
//!
//! Shape letters: T tokens, H hidden size, hd head dimension.

mod kv_cache;
mod rotary;

use tch::Tensor;

pub use kv_cache::{KvCache, KvShape};
pub use rotary::{RopeTables, Rotary, rotate};

/// Root-mean-square norm over the last axis: `x * rsqrt(mean(x^2) + eps) * weight`; libtorch's op sums in float32.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    x.rms_norm(weight.size(), Some(weight), eps)
}

/// `x W^T`, no bias. x [.., in], weight [out, in].
pub fn linear(x: &Tensor, weight: &Tensor) -> Tensor {
    x.linear::<&Tensor>(weight, None)
}

/// The gated MLP's middle: `silu(gate) * up`.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Tensor {
    gate.silu() * up
}
