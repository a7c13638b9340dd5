//! What a layer is made of: plain operations anywhere, fused kernels and chosen products for bfloat16 on a GPU.

use common::model_config::TargetConfig;
use tch::{Device, Kind, Tensor};

use crate::cuda::fused::{Fused, LayerShape, Turn};
use crate::cuda::products::Products;
use crate::nn::{RopeTables, linear, rms_norm, rotate, swiglu};

pub(super) struct Bricks {
    eps: f64,
    heads: [i64; 3], // nh, nkv, nkv
    fused: Option<Fused>,
    products: Products,
}

/// Queries [T, nh, hd], keys and values [T, nkv, hd].
pub(super) struct Heads {
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
}

/// The residual stream, [T, H].
pub(super) struct Residual {
    pub(super) x: Tensor,
    /// Somebody else holds it too: it must stay as it is.
    pub(super) shared: bool,
}

impl Bricks {
    pub(super) fn plain(config: &TargetConfig) -> Bricks {
        let (queries, keys) = (config.num_attention_heads as i64, config.num_key_value_heads as i64);
        Bricks { eps: config.rms_norm_eps, heads: [queries, keys, keys], fused: None, products: Products::default() }
    }

    /// The fastest for tensors of `kind` on `device`.
    pub(super) fn new(config: &TargetConfig, kind: Kind, device: Device) -> Bricks {
        let mut bricks = Bricks::plain(config);
        if let (Kind::BFloat16, Device::Cuda(ordinal)) = (kind, device) {
            match Fused::load(LayerShape::of(config), ordinal) {
                Ok(fused) => {
                    bricks.fused = Some(fused);
                    bricks.products = Products::on_gpu(ordinal);
                }
                Err(error) => tracing::warn!("no fused kernels, plain operations run instead: {error}"),
            }
        }
        bricks
    }

    /// The norm of x [T, H] by weight `[H]`.
    pub(super) fn norm(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        match &self.fused {
            Some(fused) => fused.rms_norm(x, weight),
            None => rms_norm(x, weight, self.eps),
        }
    }

    /// `input W^T + bias`: input [T, in], weight [out, in], bias `[out]`, to [T, out].
    pub(super) fn linear(&self, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        self.products.linear(input, weight, bias)
    }

    /// The residual stream and `input W^T` on top of it: input [T, in], weight [H, in]. Fused, the product adds it up before
    /// it rounds.
    pub(super) fn add_product(&self, residual: Residual, input: &Tensor, weight: &Tensor) -> Residual {
        let Residual { mut x, shared } = residual;
        let sum = match (&self.fused, shared) {
            (None, _) => x + linear(input, weight),
            (Some(_), true) => x.addmm(input, &weight.tr()),
            (Some(_), false) => x.addmm_(input, &weight.tr()),
        };
        Residual { x: sum, shared: false }
    }

    /// Heads out of qkv [T, nh + 2 nkv, hd], q and k normed by `norms` and turned by tables [T, 1, hd]. May use qkv's memory.
    pub(super) fn heads(&self, qkv: &Tensor, norms: Option<[&Tensor; 2]>, tables: &RopeTables) -> Heads {
        let split =
            || <[Tensor; 3]>::try_from(qkv.split_with_sizes(self.heads, 1)).expect("three parts were asked for");
        if let Some(fused) = &self.fused {
            fused.turn_heads(qkv, &Turn { cos: &tables.cos, sin: &tables.sin, norms });
            let [q, k, v] = split();
            return Heads { q, k, v };
        }
        let [q, k, v] = split();
        let norm = |x: &Tensor, index: usize| {
            norms.map_or_else(|| x.shallow_clone(), |norms| rms_norm(x, norms[index], self.eps))
        };
        Heads { q: rotate(&norm(&q, 0), tables), k: rotate(&norm(&k, 1), tables), v }
    }

    /// `silu(gate) * up`, both [T, I] side by side in gate_up [T, 2 I].
    pub(super) fn swiglu(&self, gate_up: &Tensor) -> Tensor {
        let halves = gate_up.chunk(2, 1);
        match &self.fused {
            Some(fused) => fused.swiglu(&halves[0], &halves[1]),
            None => swiglu(&halves[0], &halves[1]),
        }
    }
}
