//! The drafter's config.json in the z-lab format, with exactly the keys that servers and transformers read.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::fields::{TokenIds, read_json, require_neutral};
use super::{CONFIG_FILE, DraftConfig, ModelConfigError, Rope, RopeScaling};
use crate::config::LayerType;

/// Keys read as they stand.
#[derive(Deserialize)]
struct Keys {
    block_size: Option<usize>,
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    rms_norm_eps: f64,
    vocab_size: usize,
    num_target_layers: usize,
    layer_types: Option<Vec<LayerType>>,
    sliding_window: Option<usize>,
    max_position_embeddings: usize,
    bos_token_id: Option<u32>,
    eos_token_id: Option<TokenIds>,
    dflash_config: InnerKeys,
}

#[derive(Deserialize)]
struct InnerKeys {
    block_size: Option<usize>,
    mask_token_id: u32,
    target_layer_ids: Vec<usize>,
}

impl DraftConfig {
    /// Reads `config.json` of a folder in the z-lab format, Tandem's own or a published one.
    ///
    /// # Errors
    /// Unreadable file, missing key, a variation that Tandem does not train.
    pub fn read(folder: &Path) -> Result<DraftConfig, ModelConfigError> {
        let path = folder.join(CONFIG_FILE);
        let config: Value = read_json(&path)?;
        let keys: Keys = serde_json::from_value(config.clone())
            .map_err(|source| ModelConfigError::Parse { path: path.clone(), source })?;
        let layer_types = keys.layer_types.unwrap_or(vec![LayerType::FullAttention; keys.num_hidden_layers]);
        refuse_variations(&path, &config, &layer_types)?;
        check_layer_types(&path, &layer_types, keys.num_hidden_layers, keys.sliding_window)?;
        let rope = Rope::from_config(&path, &config, keys.max_position_embeddings)?;
        if rope.scaling != RopeScaling::Default {
            let found = format!("{:?}", rope.scaling);
            return Err(ModelConfigError::unsupported(&path, "rope_scaling", found, "none, a drafter's rope is plain"));
        }
        // Old files have the block size outside, new ones inside; where both stand, servers believe the inner one.
        let block_size = keys.dflash_config.block_size.or(keys.block_size);
        Ok(DraftConfig {
            block_size: block_size
                .ok_or_else(|| ModelConfigError::unsupported(&path, "block_size", "nothing", "slots of a block"))?,
            num_hidden_layers: keys.num_hidden_layers,
            hidden_size: keys.hidden_size,
            intermediate_size: keys.intermediate_size,
            num_attention_heads: keys.num_attention_heads,
            num_key_value_heads: keys.num_key_value_heads,
            head_dim: keys.head_dim,
            rms_norm_eps: keys.rms_norm_eps,
            rope_theta: rope.theta,
            vocab_size: keys.vocab_size,
            mask_token_id: keys.dflash_config.mask_token_id,
            target_layer_ids: keys.dflash_config.target_layer_ids,
            num_target_layers: keys.num_target_layers,
            layer_types,
            sliding_window: keys.sliding_window,
            max_position_embeddings: keys.max_position_embeddings,
            bos_token_id: keys.bos_token_id,
            eos_token_ids: TokenIds::into_vec(keys.eos_token_id),
        })
    }

    /// Writes `config.json` into `folder`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), ModelConfigError> {
        let path = folder.join(CONFIG_FILE);
        let text = serde_json::to_string_pretty(&self.to_json()).expect("a JSON value prints") + "\n";
        std::fs::write(&path, text).map_err(|source| ModelConfigError::File { path, source })
    }

    /// Top-level rotary keys and `rope_parameters` say the same: readers before and after transformers 5 look in
    /// different places. `is_causal` is left out, as it would overrule the layer types.
    fn to_json(&self) -> Value {
        let theta = whole_or_float(self.rope_theta);
        let slides = self.layer_types.contains(&LayerType::SlidingAttention);
        json!({
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "dtype": "bfloat16",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "attention_bias": false,
            "attention_dropout": 0.0,
            "rope_theta": theta,
            "rope_scaling": null,
            "rope_parameters": { "rope_type": "default", "rope_theta": theta },
            "max_position_embeddings": self.max_position_embeddings,
            "vocab_size": self.vocab_size,
            "tie_word_embeddings": false,
            "layer_types": self.layer_types,
            "sliding_window": self.sliding_window,
            "use_sliding_window": slides,
            "max_window_layers": self.num_hidden_layers,
            "initializer_range": 0.02,
            "use_cache": true,
            "num_target_layers": self.num_target_layers,
            "block_size": self.block_size,
            "dflash_config": {
                "block_size": self.block_size,
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": self.target_layer_ids,
            },
            "bos_token_id": self.bos_token_id,
            "eos_token_id": TokenIds::from_slice(&self.eos_token_ids),
        })
    }
}

/// 1000000 rather than 1000000.0, as in published files.
fn whole_or_float(number: f64) -> Value {
    if number.fract() == 0.0 && number < 1e15 { json!(number as u64) } else { json!(number) }
}

/// Variations that published drafters have and that would change numbers silently if their keys were passed over.
fn refuse_variations(path: &Path, config: &Value, layer_types: &[LayerType]) -> Result<(), ModelConfigError> {
    require_neutral(path, config, "hidden_act", &[json!("silu")])?;
    require_neutral(path, config, "attention_bias", &[json!(false)])?;
    let inner = &config["dflash_config"];
    require_neutral(path, inner, "use_swa", &[json!(false)])?;
    for section in [config, inner] {
        require_neutral(path, section, "input_embedding_scale", &[json!(1.0), json!(1)])?;
        require_neutral(path, section, "output_multiplier", &[json!(1.0), json!(1)])?;
        require_neutral(path, section, "final_logit_softcapping", &[])?;
    }
    // One direction for all layers is what the types say already, or it contradicts them.
    let directions: Vec<Value> = match layer_types {
        types if types.iter().all(|kind| *kind == LayerType::FullAttention) => vec![json!(false)],
        types if types.iter().all(|kind| *kind == LayerType::SlidingAttention) => vec![json!(true)],
        _ => Vec::new(),
    };
    require_neutral(path, config, "is_causal", &directions)?;
    require_neutral(path, inner, "causal", &directions)
}

fn check_layer_types(
    path: &Path,
    layer_types: &[LayerType],
    layers: usize,
    window: Option<usize>,
) -> Result<(), ModelConfigError> {
    if layer_types.len() != layers {
        let found = format!("{} entries", layer_types.len());
        return Err(ModelConfigError::unsupported(path, "layer_types", found, format!("num_hidden_layers = {layers}")));
    }
    if layer_types.contains(&LayerType::SlidingAttention) && window.is_none_or(|window| window == 0) {
        return Err(ModelConfigError::unsupported(path, "sliding_window", "none", "1 or more, as a layer slides"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::draft::tests::qwen3_8b;
    use super::*;

    fn read(config: &Value) -> Result<DraftConfig, ModelConfigError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CONFIG_FILE), config.to_string()).unwrap();
        DraftConfig::read(folder.path())
    }

    #[test]
    fn keys_and_values_are_the_published_drafters() {
        let folder = tempfile::tempdir().unwrap();
        qwen3_8b().write(folder.path()).unwrap();
        let written: Value = read_json(&folder.path().join(CONFIG_FILE)).unwrap();
        let expected = json!({
            "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16", "hidden_size": 4096,
            "intermediate_size": 12288, "num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": false,
            "attention_dropout": 0.0, "rope_theta": 1000000, "rope_scaling": null,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000}, "max_position_embeddings": 40960,
            "vocab_size": 151936, "tie_word_embeddings": false, "layer_types": ["full_attention", "full_attention",
            "full_attention", "full_attention", "full_attention"], "sliding_window": null, "use_sliding_window": false,
            "max_window_layers": 5, "initializer_range": 0.02, "use_cache": true, "num_target_layers": 36,
            "block_size": 16, "dflash_config": {"block_size": 16, "mask_token_id": 151669,
            "target_layer_ids": [1, 9, 17, 25, 33]}, "bos_token_id": 151643, "eos_token_id": 151645
        });
        assert_eq!(written, expected);
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let sliding = DraftConfig {
            layer_types: vec![LayerType::SlidingAttention; 5],
            sliding_window: Some(2048),
            rope_theta: 123.5,
            eos_token_ids: vec![1, 2],
            bos_token_id: None,
            ..qwen3_8b()
        };
        assert_eq!(read(&sliding.to_json()).unwrap(), sliding);
        assert_eq!(read(&qwen3_8b().to_json()).unwrap(), qwen3_8b());
    }

    #[test]
    fn the_inner_block_size_wins_and_either_will_do() {
        let mut config = qwen3_8b().to_json();
        config["block_size"] = json!(8);
        assert_eq!(read(&config).unwrap().block_size, 16);
        config["dflash_config"].as_object_mut().unwrap().remove("block_size");
        assert_eq!(read(&config).unwrap().block_size, 8);
        config.as_object_mut().unwrap().remove("block_size");
        assert!(read(&config).unwrap_err().to_string().contains("block_size: found nothing"));
    }

    #[test]
    fn variations_are_refused_by_name() {
        let refuse = |key: &str, value: Value, words: &str| {
            let mut config = qwen3_8b().to_json();
            *config.pointer_mut("/dflash_config").unwrap() = json!({"mask_token_id": 1, "target_layer_ids": [1]});
            match key.split_once('/') {
                Some((section, key)) => config[section][key] = value,
                None => config[key] = value,
            }
            let message = read(&config).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        };
        refuse("is_causal", json!(true), "is_causal: found true, supported: false");
        refuse("dflash_config/use_swa", json!(true), "use_swa: found true");
        refuse("attention_bias", json!(true), "attention_bias: found true");
        refuse("layer_types", json!(["full_attention"]), "layer_types: found 1 entries");
        refuse("output_multiplier", json!(2.0), "output_multiplier: found 2.0, supported: 1.0");
        refuse("rope_parameters", json!({"rope_type": "yarn", "factor": 2.0}), "rope_scaling");
    }
}
