//! Names and shapes of a target's tensors, as Hugging Face folders have them.

use std::collections::BTreeMap;

use common::model_config::{Architecture, TargetConfig};
use tch::Tensor;

/// The input and output tables. A tied head is the embedding, and a copy of it in the file is passed over.
pub(super) fn table_shapes(config: &TargetConfig) -> Vec<(String, Vec<i64>)> {
    let shape = vec![config.vocab_size as i64, config.hidden_size as i64];
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), shape.clone())];
    if !config.tie_word_embeddings {
        shapes.push(("lm_head.weight".to_owned(), shape));
    }
    shapes
}

/// Every tensor that the target needs.
pub(super) fn shapes(config: &TargetConfig) -> Vec<(String, Vec<i64>)> {
    let mut shapes = table_shapes(config);
    shapes.push(("model.norm.weight".to_owned(), vec![config.hidden_size as i64]));
    let layer_shapes = layer_shapes(config);
    for layer in 0..config.num_hidden_layers {
        shapes.extend(layer_shapes.iter().map(|(name, shape)| (layer_name(layer, name), shape.clone())));
    }
    shapes
}

fn layer_shapes(config: &TargetConfig) -> Vec<(&'static str, Vec<i64>)> {
    let (hidden, inner) = (config.hidden_size as i64, config.intermediate_size as i64);
    let head = config.head_dim as i64;
    let queries = config.num_attention_heads as i64 * head;
    let keys = config.num_key_value_heads as i64 * head;
    let mut shapes = vec![
        ("input_layernorm.weight", vec![hidden]),
        ("self_attn.q_proj.weight", vec![queries, hidden]),
        ("self_attn.k_proj.weight", vec![keys, hidden]),
        ("self_attn.v_proj.weight", vec![keys, hidden]),
        ("self_attn.o_proj.weight", vec![hidden, queries]),
        ("post_attention_layernorm.weight", vec![hidden]),
        ("mlp.gate_proj.weight", vec![inner, hidden]),
        ("mlp.up_proj.weight", vec![inner, hidden]),
        ("mlp.down_proj.weight", vec![hidden, inner]),
    ];
    if config.attention_bias {
        shapes.push(("self_attn.q_proj.bias", vec![queries]));
        shapes.push(("self_attn.k_proj.bias", vec![keys]));
        shapes.push(("self_attn.v_proj.bias", vec![keys]));
    }
    if config.architecture == Architecture::Qwen3 {
        shapes.push(("self_attn.q_norm.weight", vec![head]));
        shapes.push(("self_attn.k_norm.weight", vec![head]));
    }
    shapes
}

fn layer_name(layer: usize, name: &str) -> String {
    format!("model.layers.{layer}.{name}")
}

/// Loaded tensors, each taken once by the part that owns it.
pub(super) struct Parameters(BTreeMap<String, Tensor>);

impl Parameters {
    pub(super) fn new(tensors: BTreeMap<String, Tensor>) -> Parameters {
        Parameters(tensors)
    }

    /// A tensor that [`shapes`] lists.
    pub(super) fn take(&mut self, name: &str) -> Tensor {
        self.0.remove(name).expect("every name taken is one that was loaded")
    }

    /// A tensor of a layer that [`shapes`] lists.
    pub(super) fn take_of_layer(&mut self, layer: usize, name: &str) -> Tensor {
        self.take(&layer_name(layer, name))
    }
}
