//! Input and output tables: all that a drafter needs of a target when it trains.

use std::path::Path;

use common::model_config::TargetConfig;
use tch::{Device, Kind, Tensor};

use super::parameters::{self, Parameters};
use crate::nn::linear;
use crate::weights::{self, WeightsError};

/// The frozen tables of a target. V vocabulary, H hidden size.
pub struct Vocabulary {
    embedding: Tensor, // [V, H]
    head: Tensor,      // [V, H], the embedding's own memory when tied
}

impl Vocabulary {
    /// Loads the tables alone out of a Hugging Face folder whose `config.json` gave `config`.
    ///
    /// # Errors
    /// Weights that cannot be read or do not fit the configuration; no memory.
    pub fn load(folder: &Path, config: &TargetConfig, device: Device, kind: Kind) -> Result<Vocabulary, WeightsError> {
        let shapes = parameters::table_shapes(config);
        let mut parameters = Parameters::new(weights::load(folder, &shapes, kind, device)?);
        Ok(Vocabulary::take(config, &mut parameters))
    }

    pub(super) fn take(config: &TargetConfig, parameters: &mut Parameters) -> Vocabulary {
        let embedding = parameters.take("model.embed_tokens.weight");
        let head = match config.tie_word_embeddings {
            true => embedding.shallow_clone(),
            false => parameters.take("lm_head.weight"),
        };
        Vocabulary { embedding, head }
    }

    /// Raw embedding rows: ids i64 [..] to [.., H].
    pub fn embed(&self, ids: &Tensor) -> Tensor {
        Tensor::embedding(&self.embedding, ids, -1, false, false)
    }

    /// The output matrix [V, H].
    pub fn head(&self) -> &Tensor {
        &self.head
    }

    /// Scores of normed hidden states: [.., H] to [.., V]. The head alone, no norm.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        linear(hidden, &self.head)
    }
}
