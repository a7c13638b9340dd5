//! One pre-norm decoder layer. Qwen2 adds biases to q, k and v, Qwen3 norms each head of q and k, Llama neither.
//!
//! Matrices that take the same input lie behind one another in one tensor and are one product.

use common::model_config::{Architecture, TargetConfig};
use tch::{Device, Kind, TchError, Tensor};

use super::bricks::{Bricks, Heads, Residual};
use crate::nn::RopeTables;

pub(super) struct DecoderLayer {
    /// Rows of q, k and v in `qkv`.
    parts: [i64; 3],
    head_dim: i64,
    input_norm: Tensor,
    qkv: Tensor,                // [nh*hd + 2*nkv*hd, H]
    qkv_bias: Option<Tensor>,   // [nh*hd + 2*nkv*hd]
    norms: Option<[Tensor; 2]>, // [hd] over each head of q and of k
    output: Tensor,             // [H, nh*hd]
    post_attention_norm: Tensor,
    gate_up: Tensor, // [2*I, H]
    down: Tensor,    // [H, I]
}

/// What a layer's products are joined by.
pub(super) struct Between<'a> {
    pub(super) bricks: &'a Bricks,
    /// [T, 1, hd].
    pub(super) tables: &'a RopeTables,
}

impl DecoderLayer {
    /// Memory for a layer; what it holds is undefined.
    pub(super) fn empty(config: &TargetConfig, kind: Kind, device: Device) -> Result<DecoderLayer, TchError> {
        let empty = |size: &[i64]| Tensor::f_empty(size, (kind, device));
        let (hidden, inner, head_dim) =
            (config.hidden_size as i64, config.intermediate_size as i64, config.head_dim as i64);
        let [queries, keys] =
            [config.num_attention_heads, config.num_key_value_heads].map(|heads| heads as i64 * head_dim);
        let parts = [queries, keys, keys];
        let rows = parts.iter().sum();
        Ok(DecoderLayer {
            parts,
            head_dim,
            input_norm: empty(&[hidden])?,
            qkv: empty(&[rows, hidden])?,
            qkv_bias: config.attention_bias.then(|| empty(&[rows])).transpose()?,
            norms: match config.architecture {
                Architecture::Qwen3 => Some([empty(&[head_dim])?, empty(&[head_dim])?]),
                Architecture::Llama | Architecture::Qwen2 => None,
            },
            output: empty(&[hidden, queries])?,
            post_attention_norm: empty(&[hidden])?,
            gate_up: empty(&[2 * inner, hidden])?,
            down: empty(&[hidden, inner])?,
        })
    }

    /// Its tensors under the names that Hugging Face folders have for them in layer `layer`.
    pub(super) fn named(&self, layer: usize) -> Vec<(String, Tensor)> {
        let whole = |name: &'static str, tensor: &Tensor| (name.to_owned(), tensor.shallow_clone());
        let mut named = vec![
            whole("input_layernorm.weight", &self.input_norm),
            whole("self_attn.o_proj.weight", &self.output),
            whole("post_attention_layernorm.weight", &self.post_attention_norm),
            whole("mlp.down_proj.weight", &self.down),
        ];
        let gate_up = self.gate_up.chunk(2, 0);
        named.extend([whole("mlp.gate_proj.weight", &gate_up[0]), whole("mlp.up_proj.weight", &gate_up[1])]);
        let mut projections = |tensor: &Tensor, what: &str| {
            let parts = tensor.split_with_sizes(self.parts, 0);
            named.extend(
                ["q", "k", "v"].iter().zip(parts).map(|(of, part)| (format!("self_attn.{of}_proj.{what}"), part)),
            );
        };
        projections(&self.qkv, "weight");
        if let Some(bias) = &self.qkv_bias {
            projections(bias, "bias");
        }
        if let Some([query, key]) = &self.norms {
            named.extend([whole("self_attn.q_norm.weight", query), whole("self_attn.k_norm.weight", key)]);
        }
        named.into_iter().map(|(name, tensor)| (format!("model.layers.{layer}.{name}"), tensor)).collect()
    }

    /// One layer on. `attend` maps heads to [T, nh, hd].
    pub(super) fn forward(
        &self,
        residual: Residual,
        &Between { bricks, tables }: &Between,
        attend: impl FnOnce(Heads) -> Tensor,
    ) -> Residual {
        let normed = bricks.norm(&residual.x, &self.input_norm);
        let qkv = bricks.linear(&normed, &self.qkv, self.qkv_bias.as_ref());
        let norms = self.norms.as_ref().map(|[query, key]| [query, key]);
        let heads = bricks.heads(&qkv.view([qkv.size()[0], -1, self.head_dim]), norms, tables);
        let residual = bricks.add_product(residual, &attend(heads).flatten(1, 2), &self.output);
        let normed = bricks.norm(&residual.x, &self.post_attention_norm);
        let inner = bricks.swiglu(&bricks.linear(&normed, &self.gate_up, None));
        bricks.add_product(residual, &inner, &self.down)
    }
}
