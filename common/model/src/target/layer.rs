//! One pre-norm decoder layer. Qwen2 adds biases to q, k and v, Qwen3 norms each head of q and k, Llama neither.

use common::model_config::{Architecture, TargetConfig};
use tch::Tensor;

use super::parameters::Parameters;
use crate::nn::{RopeTables, linear, rms_norm, rotate, swiglu};

pub(super) struct DecoderLayer {
    head_dim: i64,
    eps: f64,
    input_norm: Tensor,
    query: Projection,
    key: Projection,
    value: Projection,
    output: Tensor, // [H, nh*hd]
    post_attention_norm: Tensor,
    gate: Tensor, // [I, H]
    up: Tensor,   // [I, H]
    down: Tensor, // [H, I]
}

/// Into heads: weight [heads*hd, H], bias `[heads*hd]`, norm `[hd]` over each head.
struct Projection {
    weight: Tensor,
    bias: Option<Tensor>,
    norm: Option<Tensor>,
}

impl DecoderLayer {
    pub(super) fn new(config: &TargetConfig, layer: usize, parameters: &mut Parameters) -> DecoderLayer {
        let mut take = |name: &str| parameters.take_of_layer(layer, name);
        let norms = config.architecture == Architecture::Qwen3;
        let mut projection = |name: &str, norm: bool| Projection {
            weight: take(&format!("self_attn.{name}_proj.weight")),
            bias: config.attention_bias.then(|| take(&format!("self_attn.{name}_proj.bias"))),
            norm: norm.then(|| take(&format!("self_attn.{name}_norm.weight"))),
        };
        DecoderLayer {
            head_dim: config.head_dim as i64,
            eps: config.rms_norm_eps,
            query: projection("q", norms),
            key: projection("k", norms),
            value: projection("v", false),
            input_norm: take("input_layernorm.weight"),
            output: take("self_attn.o_proj.weight"),
            post_attention_norm: take("post_attention_layernorm.weight"),
            gate: take("mlp.gate_proj.weight"),
            up: take("mlp.up_proj.weight"),
            down: take("mlp.down_proj.weight"),
        }
    }

    /// x [T, H] to [T, H]. `attend` maps turned queries [nh, T, hd], turned keys and values [nkv, T, hd] to [nh, T, hd].
    pub(super) fn forward(
        &self,
        x: &Tensor,
        tables: &RopeTables,
        attend: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let normed = rms_norm(x, &self.input_norm, self.eps);
        let query = rotate(&self.heads(&normed, &self.query), tables);
        let key = rotate(&self.heads(&normed, &self.key), tables);
        let value = self.heads(&normed, &self.value);
        let attended = attend(&query, &key, &value).transpose(0, 1).flatten(1, 2);
        let x = x + linear(&attended, &self.output);
        let normed = rms_norm(&x, &self.post_attention_norm, self.eps);
        let inner = swiglu(&linear(&normed, &self.gate), &linear(&normed, &self.up));
        x + linear(&inner, &self.down)
    }

    /// [T, H] to [heads, T, hd].
    fn heads(&self, x: &Tensor, projection: &Projection) -> Tensor {
        let heads = x.linear(&projection.weight, projection.bias.as_ref()).view([x.size()[0], -1, self.head_dim]);
        let heads = match &projection.norm {
            Some(norm) => rms_norm(&heads, norm, self.eps),
            None => heads,
        };
        heads.transpose(0, 1)
    }
}
