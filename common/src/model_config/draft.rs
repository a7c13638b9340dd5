//! The drafter's shape: what decides its tensors and how its blocks look.

use serde::{Deserialize, Serialize};

use super::{Rope, RopeScaling};
use crate::config::{Dtype, LayerType};

/// Everything that a drafter is, but for its weights. Its hidden size, vocabulary and head are the target's.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct DraftConfig {
    /// B, slots of a block, the anchor's included.
    pub block_size: usize,
    /// L, draft layers.
    pub num_hidden_layers: usize,
    /// H, the target's.
    pub hidden_size: usize,
    /// I, elements between the MLP's matrices.
    pub intermediate_size: usize,
    /// nh, query heads.
    pub num_attention_heads: usize,
    /// nkv, key and value heads; divides nh.
    pub num_key_value_heads: usize,
    /// hd, elements of a head.
    pub head_dim: usize,
    /// Added under the norms' root.
    pub rms_norm_eps: f64,
    /// Base of the drafter's own (unscaled) rotary embedding.
    pub rope_theta: f64,
    /// Rows of the target's embedding table.
    pub vocab_size: usize,
    /// The embedding row that stands for "not known yet".
    pub mask_token_id: u32,
    /// Tapped target layers: id l is the output of decoder layer l, from 0, before the next layer's norm. Ascending.
    pub target_layer_ids: Vec<usize>,
    /// Decoder layers of the target.
    pub num_target_layers: usize,
    /// How each draft layer sees.
    pub layer_types: Vec<LayerType>,
    /// W, window of the sliding layers in positions; given where a layer slides.
    pub sliding_window: Option<usize>,
    /// The target's.
    pub max_position_embeddings: usize,
    /// The target's.
    pub bos_token_id: Option<u32>,
    /// The target's.
    pub eos_token_ids: Vec<u32>,
}

impl DraftConfig {
    /// K, tapped target layers.
    pub fn num_taps(&self) -> usize {
        self.target_layer_ids.len()
    }

    /// Bytes of one token's captured hidden states.
    pub fn slot_token_bytes(&self, dtype: Dtype) -> u64 {
        (self.num_taps() * self.hidden_size) as u64 * dtype.size()
    }

    /// The drafter's positions to angles.
    pub fn rope(&self) -> Rope {
        Rope { theta: self.rope_theta, scaling: RopeScaling::Default }
    }

    /// Names and shapes of all tensors in the z-lab format, sorted by name: the one list for model and checkpoint.
    pub fn parameter_shapes(&self) -> Vec<(String, Vec<i64>)> {
        let hidden = self.hidden_size as i64;
        let mut shapes = vec![
            ("fc.weight".to_owned(), vec![hidden, self.num_taps() as i64 * hidden]),
            ("hidden_norm.weight".to_owned(), vec![hidden]),
            ("norm.weight".to_owned(), vec![hidden]),
        ];
        let layer_shapes = self.layer_shapes();
        for layer in 0..self.num_hidden_layers {
            let named =
                layer_shapes.iter().map(|(name, shape)| (format!("layers.{layer}.{name}.weight"), shape.clone()));
            shapes.extend(named);
        }
        shapes.sort();
        shapes
    }

    fn layer_shapes(&self) -> [(&'static str, Vec<i64>); 11] {
        let size = |elements: usize| elements as i64;
        let (hidden, inner, head) = (size(self.hidden_size), size(self.intermediate_size), size(self.head_dim));
        let queries = size(self.num_attention_heads) * head;
        let keys = size(self.num_key_value_heads) * head;
        [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![queries, hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, queries]),
            ("self_attn.q_norm", vec![head]),
            ("self_attn.k_norm", vec![head]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ]
    }

    /// Trained numbers.
    pub fn parameter_count(&self) -> u64 {
        self.parameter_shapes().iter().map(|(_, shape)| shape.iter().product::<i64>() as u64).sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The published drafter for Qwen3-8B.
    pub(crate) fn qwen3_8b() -> DraftConfig {
        DraftConfig {
            block_size: 16,
            num_hidden_layers: 5,
            hidden_size: 4096,
            intermediate_size: 12_288,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: 128,
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            vocab_size: 151_936,
            mask_token_id: 151_669,
            target_layer_ids: vec![1, 9, 17, 25, 33],
            num_target_layers: 36,
            layer_types: vec![LayerType::FullAttention; 5],
            sliding_window: None,
            max_position_embeddings: 40_960,
            bos_token_id: Some(151_643),
            eos_token_ids: vec![151_645],
        }
    }

    #[test]
    fn parameter_counts_of_the_published_drafters() {
        let of = |hidden_size, intermediate_size| DraftConfig { hidden_size, intermediate_size, ..qwen3_8b() };
        assert_eq!(of(2560, 9728).parameter_count(), 537_427_200);
        assert_eq!(of(4096, 12_288).parameter_count(), 1_048_626_432);
        assert_eq!(of(5120, 17_408).parameter_count(), 1_730_213_120);
        let small = DraftConfig {
            num_hidden_layers: 3,
            num_attention_heads: 16,
            target_layer_ids: vec![1, 13, 25],
            ..of(1024, 3072)
        };
        assert_eq!(small.parameter_count(), 50_340_608);
    }

    #[test]
    fn parameter_names_and_shapes_are_the_formats() {
        let shapes = qwen3_8b().parameter_shapes();
        assert_eq!(shapes.len(), 3 + 5 * 11);
        assert!(shapes.is_sorted());
        let shape = |name: &str| shapes.iter().find(|(found, _)| found == name).map(|(_, shape)| shape.as_slice());
        assert_eq!(shape("fc.weight"), Some(&[4096, 20_480][..]));
        assert_eq!(shape("layers.4.self_attn.k_proj.weight"), Some(&[1024, 4096][..]));
        assert_eq!(shape("layers.0.self_attn.o_proj.weight"), Some(&[4096, 4096][..]));
        assert_eq!(shape("layers.2.mlp.down_proj.weight"), Some(&[4096, 12_288][..]));
        assert_eq!(shape("layers.0.self_attn.q_norm.weight"), Some(&[128][..]));
    }

    #[test]
    fn a_token_of_the_published_drafter_takes_forty_kibibytes() {
        assert_eq!(qwen3_8b().slot_token_bytes(Dtype::Bfloat16), 40 * 1024);
    }
}
