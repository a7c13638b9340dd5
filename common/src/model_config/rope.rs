//! Rotary embeddings as configuration files describe them, old style and new.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ModelConfigError;

/// What turns positions into angles.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Rope {
    /// The base: inverse frequencies are `theta^(-2m/hd)` before scaling.
    pub theta: f64,
    /// What stretches them.
    pub scaling: RopeScaling,
}

/// How inverse frequencies are stretched for a longer context.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// Llama 3's: long wavelengths divided by `factor`, short ones kept, blended between.
    Llama3 {
        /// Divides the frequencies of long wavelengths.
        factor: f64,
        /// Turns over the original context below which a wavelength is long.
        low_freq_factor: f64,
        /// Turns over the original context above which a wavelength is short.
        high_freq_factor: f64,
        /// Context length of pretraining, in tokens.
        original_max_position_embeddings: usize,
    },
    /// YaRN's: interpolated by dimension, cosines and sines scaled.
    Yarn {
        /// Divides the frequencies of interpolated dimensions.
        factor: f64,
        /// Context length of pretraining, in tokens.
        original_max_position_embeddings: usize,
        /// Turns over the original context above which a dimension is kept.
        beta_fast: f64,
        /// Turns over the original context below which a dimension is wholly interpolated.
        beta_slow: f64,
        /// Multiplies cosines and sines.
        attention_factor: f64,
        /// Whether the ramp's ends are rounded outwards to whole dimensions.
        truncate: bool,
    },
}

impl RopeScaling {
    /// What cosines and sines are multiplied by.
    pub fn attention_factor(&self) -> f64 {
        match self {
            RopeScaling::Yarn { attention_factor, .. } => *attention_factor,
            RopeScaling::Default | RopeScaling::Llama3 { .. } => 1.0,
        }
    }
}

/// Base of a file that names none.
const DEFAULT_THETA: f64 = 10_000.0;

impl Rope {
    /// Takes `rope_parameters` (transformers 5), else `rope_theta` and `rope_scaling`, from a whole config.json.
    pub(super) fn from_config(path: &Path, config: &Value, max_positions: usize) -> Result<Rope, ModelConfigError> {
        let section = ["rope_parameters", "rope_scaling"].into_iter().find_map(|key| present(config, key));
        let null = Value::Null;
        let section = Section { path, table: section.unwrap_or(&null), max_positions };
        let theta = match present(section.table, "rope_theta").or(present(config, "rope_theta")) {
            None => DEFAULT_THETA,
            Some(found) => found
                .as_f64()
                .filter(|theta| *theta > 1.0)
                .ok_or_else(|| ModelConfigError::unsupported(path, "rope_theta", found, "a number above 1"))?,
        };
        Ok(Rope { theta, scaling: section.scaling()? })
    }
}

fn present<'a>(table: &'a Value, key: &str) -> Option<&'a Value> {
    table.get(key).filter(|value| !value.is_null())
}

struct Section<'a> {
    path: &'a Path,
    table: &'a Value,
    max_positions: usize,
}

impl Section<'_> {
    fn scaling(&self) -> Result<RopeScaling, ModelConfigError> {
        let kind = present(self.table, "rope_type").or(present(self.table, "type"));
        match kind.map(|kind| kind.as_str().unwrap_or("?")) {
            None if self.table.as_object().is_some_and(|table| table.values().any(Value::is_object)) => {
                let found = self.table.to_string();
                Err(ModelConfigError::unsupported(self.path, "rope_parameters", found, "one set for all layers"))
            }
            None | Some("default") => Ok(RopeScaling::Default),
            Some("llama3") => self.llama3(),
            Some("yarn") => self.yarn(),
            Some(found) => Err(ModelConfigError::RopeType { path: self.path.into(), found: found.to_owned() }),
        }
    }

    fn llama3(&self) -> Result<RopeScaling, ModelConfigError> {
        Ok(RopeScaling::Llama3 {
            factor: self.required("factor")?,
            low_freq_factor: self.required("low_freq_factor")?,
            high_freq_factor: self.required("high_freq_factor")?,
            original_max_position_embeddings: self.original_positions()?,
        })
    }

    fn yarn(&self) -> Result<RopeScaling, ModelConfigError> {
        let original = self.original_positions()?;
        let factor = self.number("factor")?.unwrap_or(self.max_positions as f64 / original as f64);
        let attention_factor = match self.number("attention_factor")? {
            Some(given) => given,
            None => match (self.number("mscale")?, self.number("mscale_all_dim")?) {
                (Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => {
                    magnitude(factor, mscale) / magnitude(factor, all)
                }
                _ => magnitude(factor, 1.0),
            },
        };
        Ok(RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: original,
            beta_fast: self.number("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.number("beta_slow")?.unwrap_or(1.0),
            attention_factor,
            truncate: present(self.table, "truncate").and_then(Value::as_bool).unwrap_or(true),
        })
    }

    fn original_positions(&self) -> Result<usize, ModelConfigError> {
        Ok(self.number("original_max_position_embeddings")?.map_or(self.max_positions, |length| length as usize))
    }

    fn required(&self, key: &'static str) -> Result<f64, ModelConfigError> {
        self.number(key)?.ok_or_else(|| self.not_a_number(key, "nothing"))
    }

    fn number(&self, key: &'static str) -> Result<Option<f64>, ModelConfigError> {
        match present(self.table, key) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|number| *number > 0.0) {
                Some(number) => Ok(Some(number)),
                None => Err(self.not_a_number(key, &value.to_string())),
            },
        }
    }

    fn not_a_number(&self, key: &'static str, found: &str) -> ModelConfigError {
        ModelConfigError::unsupported(self.path, key, found, "a number above 0 in the rope's parameters")
    }
}

/// YaRN's growth of attention with the context's.
fn magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rope(config: Value) -> Result<Rope, ModelConfigError> {
        Rope::from_config(Path::new("config.json"), &config, 4096)
    }

    #[test]
    fn old_and_new_style_read_the_same() {
        let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024});
        let old = rope(json!({"rope_theta": 500000, "rope_scaling": llama3})).unwrap();
        let mut new = llama3.clone();
        new["rope_theta"] = json!(500000.0);
        assert_eq!(old, rope(json!({"rope_parameters": new})).unwrap());
        assert_eq!(old.theta, 500_000.0);
        assert!(matches!(old.scaling, RopeScaling::Llama3 { original_max_position_embeddings: 1024, .. }));
        assert_eq!(rope(json!({})).unwrap(), Rope { theta: 10_000.0, scaling: RopeScaling::Default });
    }

    #[test]
    fn yarn_fills_in_the_papers_constants() {
        let yarn = rope(json!({"rope_scaling": {"type": "yarn", "factor": 4.0}})).unwrap().scaling;
        assert!((yarn.attention_factor() - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
        assert!(matches!(
            yarn,
            RopeScaling::Yarn {
                beta_fast: 32.0,
                beta_slow: 1.0,
                truncate: true,
                original_max_position_embeddings: 4096,
                ..
            }
        ));
        let given = json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 1.5}});
        assert_eq!(rope(given).unwrap().scaling.attention_factor(), 1.5);
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let unknown = rope(json!({"rope_scaling": {"rope_type": "longrope"}})).unwrap_err().to_string();
        assert!(unknown.contains("rope type longrope is not supported, only default, llama3, yarn"), "{unknown}");
        let missing = rope(json!({"rope_parameters": {"rope_type": "llama3"}})).unwrap_err().to_string();
        assert!(missing.contains("factor: found nothing"), "{missing}");
        let nested = json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}});
        assert!(rope(nested).unwrap_err().to_string().contains("one set for all layers"));
    }
}
