//! One draft layer: pre-norm attention from the block stream to context and blocks, then the gated MLP (spec 1.1, 1.2).
//!
//! Shape letters: M context rows, Q slots, H hidden size, nh and nkv heads, hd head dimension.

use common::model_config::DraftConfig;
use tch::Tensor;

use super::mask::Visibility;
use super::parameters::Parameters;
use crate::nn::{RopeTables, linear, rms_norm, rotate, swiglu};

pub(super) struct Layer {
    visibility: Visibility,
    eps: f64,
    head_dim: i64,
    input_norm: Tensor,
    q_proj: Tensor, // [nh*hd, H]
    k_proj: Tensor, // [nkv*hd, H]
    v_proj: Tensor, // [nkv*hd, H]
    o_proj: Tensor, // [H, nh*hd]
    q_norm: Tensor, // [hd]
    k_norm: Tensor, // [hd]
    post_attention_norm: Tensor,
    gate_proj: Tensor,
    up_proj: Tensor,
    down_proj: Tensor,
}

impl Layer {
    pub(super) fn new(config: &DraftConfig, index: usize, parameters: &Parameters) -> Layer {
        let weight = |name: &str| parameters.get(&format!("layers.{index}.{name}.weight"));
        Layer {
            visibility: Visibility::of(config.layer_types[index], config.sliding_window),
            eps: config.rms_norm_eps,
            head_dim: config.head_dim as i64,
            input_norm: weight("input_layernorm"),
            q_proj: weight("self_attn.q_proj"),
            k_proj: weight("self_attn.k_proj"),
            v_proj: weight("self_attn.v_proj"),
            o_proj: weight("self_attn.o_proj"),
            q_norm: weight("self_attn.q_norm"),
            k_norm: weight("self_attn.k_norm"),
            post_attention_norm: weight("post_attention_layernorm"),
            gate_proj: weight("mlp.gate_proj"),
            up_proj: weight("mlp.up_proj"),
            down_proj: weight("mlp.down_proj"),
        }
    }

    pub(super) fn visibility(&self) -> Visibility {
        self.visibility
    }

    /// x [Q, H] and context [M, H] to [Q, H]; `tables` cover the M context rows, then the Q slots. `attend` maps turned
    /// queries [nh, Q, hd], turned keys and values [nkv, M + Q, hd] to [Q, nh*hd].
    pub(super) fn forward(
        &self,
        x: &Tensor,
        context: &Tensor,
        tables: &RopeTables,
        attend: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let normed = rms_norm(x, &self.input_norm, self.eps);
        let seen = Tensor::cat(&[context, &normed], 0); // [M + Q, H]
        let queries = rms_norm(&self.heads(&normed, &self.q_proj), &self.q_norm, self.eps);
        let keys = rms_norm(&self.heads(&seen, &self.k_proj), &self.k_norm, self.eps);
        let values = self.heads(&seen, &self.v_proj);
        let queries = rotate(&queries.transpose(0, 1), &last(tables, x.size()[0]));
        let keys = rotate(&keys.transpose(0, 1), tables);
        let attended = attend(&queries, &keys, &values.transpose(0, 1));
        let x = x + linear(&attended, &self.o_proj);
        let normed = rms_norm(&x, &self.post_attention_norm, self.eps);
        let inner = swiglu(&linear(&normed, &self.gate_proj), &linear(&normed, &self.up_proj));
        x + linear(&inner, &self.down_proj)
    }

    /// [rows, H] to [rows, heads, hd].
    fn heads(&self, x: &Tensor, projection: &Tensor) -> Tensor {
        linear(x, projection).view([x.size()[0], -1, self.head_dim])
    }
}

/// The tables of the last `count` positions.
fn last(tables: &RopeTables, count: i64) -> RopeTables {
    let tail = |table: &Tensor| table.narrow(0, table.size()[0] - count, count);
    RopeTables { cos: tail(&tables.cos), sin: tail(&tables.sin) }
}
