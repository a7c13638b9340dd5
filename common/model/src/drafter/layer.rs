//! One draft layer: pre-norm attention from the block stream to context and blocks, then the gated MLP (spec 1.1, 1.2).
//!
//! Shape letters: Q slots, H hidden size, nh and nkv heads, hd head dimension.

use common::model_config::DraftConfig;
use tch::Tensor;

use super::mask::Visibility;
use super::parameters::Parameters;
use super::turn::Turn;
use crate::nn::{linear, rms_norm, swiglu};

pub(super) struct Layer {
    visibility: Visibility,
    eps: f64,
    head_dim: i64,
    /// Rows of q_proj, k_proj and v_proj.
    heads: [i64; 3],
    input_norm: Tensor,
    qkv_proj: Tensor, // [(nh + 2 nkv)*hd, H]
    o_proj: Tensor,   // [H, nh*hd]
    q_norm: Tensor,   // [hd]
    k_norm: Tensor,   // [hd]
    post_attention_norm: Tensor,
    gate_proj: Tensor,
    up_proj: Tensor,
    down_proj: Tensor,
}

impl Layer {
    pub(super) fn new(config: &DraftConfig, index: usize, parameters: &mut Parameters) -> Layer {
        let name = |name: &str| format!("layers.{index}.{name}.weight");
        let mut weight = |names: &[&str]| parameters.leaf(&names.iter().map(|part| name(part)).collect::<Vec<_>>());
        let head_dim = config.head_dim as i64;
        let (heads, key_heads) = (config.num_attention_heads as i64, config.num_key_value_heads as i64);
        Layer {
            visibility: Visibility::of(config.layer_types[index], config.sliding_window),
            eps: config.rms_norm_eps,
            head_dim,
            heads: [heads, key_heads, key_heads].map(|heads| heads * head_dim),
            input_norm: weight(&["input_layernorm"]),
            qkv_proj: weight(&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            o_proj: weight(&["self_attn.o_proj"]),
            q_norm: weight(&["self_attn.q_norm"]),
            k_norm: weight(&["self_attn.k_norm"]),
            post_attention_norm: weight(&["post_attention_layernorm"]),
            gate_proj: weight(&["mlp.gate_proj"]),
            up_proj: weight(&["mlp.up_proj"]),
            down_proj: weight(&["mlp.down_proj"]),
        }
    }

    pub(super) fn visibility(&self) -> Visibility {
        self.visibility
    }

    /// x [Q, H] to [Q, H] at the positions of `turn`. `attend` maps the slots' turned queries [Q, nh, hd], turned keys and
    /// values [Q, nkv, hd] to [Q, nh*hd].
    pub(super) fn forward(
        &self,
        x: &Tensor,
        turn: &Turn,
        attend: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let normed = rms_norm(x, &self.input_norm, self.eps);
        let projected = linear(&normed, &self.qkv_proj).split_with_sizes(self.heads, 1);
        let heads = |part: usize| projected[part].view([x.size()[0], -1, self.head_dim]);
        let queries = turn.apply(&rms_norm(&heads(0), &self.q_norm, self.eps));
        let keys = turn.apply(&rms_norm(&heads(1), &self.k_norm, self.eps));
        let x = x + linear(&attend(&queries, &keys, &heads(2)), &self.o_proj);
        let normed = rms_norm(&x, &self.post_attention_norm, self.eps);
        let inner = swiglu(&linear(&normed, &self.gate_proj), &linear(&normed, &self.up_proj));
        x + linear(&inner, &self.down_proj)
    }
}
