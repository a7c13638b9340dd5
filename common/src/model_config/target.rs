//! The target's config.json (and generation_config.json).

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::fields::{TokenIds, read_json, require_neutral};
use super::{CONFIG_FILE, ModelConfigError, Rope};

/// Decoders that Tandem runs.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum Architecture {
    /// Neither biases nor head norms.
    Llama,
    /// Biases on q, k and v.
    Qwen2,
    /// A norm over each head of q and k.
    Qwen3,
}

/// Shape of a dense decoder-only target.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct TargetConfig {
    /// Which decoder.
    pub architecture: Architecture,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// H, elements of the residual stream.
    pub hidden_size: usize,
    /// I, elements between the MLP's matrices.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// nh, query heads.
    pub num_attention_heads: usize,
    /// nkv, key and value heads; divides nh.
    pub num_key_value_heads: usize,
    /// hd, elements of a head; not always H / nh.
    pub head_dim: usize,
    /// Added under the norms' root.
    pub rms_norm_eps: f64,
    /// Positions to angles.
    pub rope: Rope,
    /// The head is the embedding table.
    pub tie_word_embeddings: bool,
    /// q, k and v have biases (Qwen2 only).
    pub attention_bias: bool,
    /// Longest context the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// First token of a text, where the model has one.
    pub bos_token_id: Option<u32>,
    /// Tokens that end generation: those of config.json and generation_config.json, ascending.
    pub eos_token_ids: Vec<u32>,
}

/// Keys read as they stand.
#[derive(Deserialize)]
struct Keys {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    max_position_embeddings: usize,
    bos_token_id: Option<u32>,
    eos_token_id: Option<TokenIds>,
}

#[derive(Deserialize)]
struct GenerationKeys {
    eos_token_id: Option<TokenIds>,
}

impl TargetConfig {
    /// Reads `config.json` in a Hugging Face folder, and `generation_config.json` where there is one.
    ///
    /// # Errors
    /// Unreadable file, missing key; architecture, rope type or variation that Tandem does not run.
    pub fn read(folder: &Path) -> Result<TargetConfig, ModelConfigError> {
        let path = folder.join(CONFIG_FILE);
        let config: Value = read_json(&path)?;
        let architecture = architecture(&path, &config)?;
        refuse_variations(&path, &config, architecture)?;
        let rope = {
            let positions = config.get("max_position_embeddings").and_then(Value::as_u64).unwrap_or_default();
            Rope::from_config(&path, &config, positions as usize)?
        };
        let keys: Keys =
            serde_json::from_value(config).map_err(|source| ModelConfigError::Parse { path: path.clone(), source })?;
        check_shape(&path, &keys)?;
        let mut eos_token_ids = generation_eos(folder)?;
        eos_token_ids.extend(TokenIds::into_vec(keys.eos_token_id));
        eos_token_ids.sort_unstable();
        eos_token_ids.dedup();
        Ok(TargetConfig {
            architecture,
            vocab_size: keys.vocab_size,
            hidden_size: keys.hidden_size,
            intermediate_size: keys.intermediate_size,
            num_hidden_layers: keys.num_hidden_layers,
            num_attention_heads: keys.num_attention_heads,
            num_key_value_heads: keys.num_key_value_heads.unwrap_or(keys.num_attention_heads),
            head_dim: keys.head_dim.unwrap_or(keys.hidden_size / keys.num_attention_heads),
            rms_norm_eps: keys.rms_norm_eps,
            rope,
            tie_word_embeddings: keys.tie_word_embeddings,
            attention_bias: architecture == Architecture::Qwen2,
            max_position_embeddings: keys.max_position_embeddings,
            bos_token_id: keys.bos_token_id,
            eos_token_ids,
        })
    }
}

fn architecture(path: &Path, config: &Value) -> Result<Architecture, ModelConfigError> {
    let named = config.pointer("/architectures/0").or(config.get("model_type")).and_then(Value::as_str);
    match named {
        Some("LlamaForCausalLM" | "llama") => Ok(Architecture::Llama),
        Some("Qwen2ForCausalLM" | "qwen2") => Ok(Architecture::Qwen2),
        Some("Qwen3ForCausalLM" | "qwen3") => Ok(Architecture::Qwen3),
        found => {
            let found = found.unwrap_or("(not named)").to_owned();
            Err(ModelConfigError::Architecture { path: path.into(), found })
        }
    }
}

/// Variations of the three decoders that would change numbers silently if their keys were passed over.
fn refuse_variations(path: &Path, config: &Value, architecture: Architecture) -> Result<(), ModelConfigError> {
    require_neutral(path, config, "hidden_act", &[json!("silu")])?;
    require_neutral(path, config, "mlp_bias", &[json!(false)])?;
    require_neutral(path, config, "use_sliding_window", &[json!(false)])?;
    require_neutral(path, config, "partial_rotary_factor", &[json!(1.0), json!(1)])?;
    require_neutral(path, config, "quantization_config", &[])?;
    match architecture {
        Architecture::Llama | Architecture::Qwen3 => require_neutral(path, config, "attention_bias", &[json!(false)]),
        Architecture::Qwen2 => Ok(()),
    }
}

fn check_shape(path: &Path, keys: &Keys) -> Result<(), ModelConfigError> {
    let heads = keys.num_attention_heads;
    let groups = keys.num_key_value_heads.unwrap_or(heads);
    if groups == 0 || heads == 0 || !heads.is_multiple_of(groups) {
        let allowed = format!("a divisor of num_attention_heads = {heads}");
        return Err(ModelConfigError::unsupported(path, "num_key_value_heads", groups, allowed));
    }
    let head_dim = keys.head_dim.unwrap_or(keys.hidden_size / heads);
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(ModelConfigError::unsupported(path, "head_dim", head_dim, "an even number"));
    }
    if keys.num_hidden_layers == 0 {
        return Err(ModelConfigError::unsupported(path, "num_hidden_layers", 0, "1 or more"));
    }
    Ok(())
}

fn generation_eos(folder: &Path) -> Result<Vec<u32>, ModelConfigError> {
    let path = folder.join("generation_config.json");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let keys: GenerationKeys = read_json(&path)?;
    Ok(TokenIds::into_vec(keys.eos_token_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(change: impl FnOnce(&mut Value)) -> Result<TargetConfig, ModelConfigError> {
        let mut config = json!({"architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu", "vocab_size": 151936,
            "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_scaling": null,
            "tie_word_embeddings": true, "attention_bias": false, "use_sliding_window": false, "sliding_window": null,
            "max_position_embeddings": 40960, "bos_token_id": 151643, "eos_token_id": 151645});
        change(&mut config);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CONFIG_FILE), config.to_string()).unwrap();
        std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [151645, 151643]}"#).unwrap();
        TargetConfig::read(folder.path())
    }

    #[test]
    fn qwen3_reads_with_the_stops_of_both_files() {
        let config = read(|_| ()).unwrap();
        assert_eq!((config.architecture, config.head_dim, config.rope.theta), (Architecture::Qwen3, 128, 1e6));
        assert_eq!(config.eos_token_ids, [151_643, 151_645]);
        assert!(config.tie_word_embeddings && !config.attention_bias);
    }

    #[test]
    fn what_is_left_out_follows_from_the_rest() {
        let config = read(|config| {
            config["architectures"] = json!(["Qwen2ForCausalLM"]);
            for key in ["head_dim", "num_key_value_heads", "tie_word_embeddings"] {
                config.as_object_mut().unwrap().remove(key);
            }
        })
        .unwrap();
        assert_eq!((config.head_dim, config.num_key_value_heads), (80, 32));
        assert!(config.attention_bias && !config.tie_word_embeddings);
    }

    #[test]
    fn models_that_would_run_wrongly_are_refused_by_name() {
        let refusals = [
            ("architectures", json!(["MixtralForCausalLM"]), "architecture MixtralForCausalLM is not supported"),
            ("use_sliding_window", json!(true), "use_sliding_window: found true, supported: false"),
            ("attention_bias", json!(true), "attention_bias: found true"),
            ("hidden_act", json!("gelu"), "hidden_act: found \"gelu\", supported: \"silu\""),
            (
                "quantization_config",
                json!({"bits": 4}),
                "quantization_config: found {\"bits\":4}, supported: no such key",
            ),
            ("num_key_value_heads", json!(5), "num_key_value_heads: found 5"),
            ("rope_scaling", json!({"type": "dynamic"}), "rope type dynamic is not supported"),
            ("vocab_size", json!("many"), "invalid type: string \"many\""),
        ];
        for (key, value, words) in refusals {
            let message = read(|config| config[key] = value).unwrap_err().to_string();
            assert!(message.contains(words) && message.contains("config.json"), "{message}");
        }
    }
}
