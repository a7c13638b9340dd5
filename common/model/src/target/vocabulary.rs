//! Input and output tables: all that a drafter needs of a target when it trains.

use std::path::Path;

use common::model_config::TargetConfig;
use tch::{Device, Kind, TchError, Tensor};

use crate::nn::linear;
use crate::weights::{self, WeightsError};

/// The embedding table's name in Hugging Face folders.
pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// The frozen tables of a target. V vocabulary, H hidden size.
pub struct Vocabulary {
    embedding: Tensor, // [V, H]
    head: Tensor,      // [V, H], the embedding's own memory when tied
}

/// Memory for a table [V, H]; what it holds is undefined.
pub(super) fn empty_table(config: &TargetConfig, kind: Kind, device: Device) -> Result<Tensor, TchError> {
    Tensor::f_empty([config.vocab_size as i64, config.hidden_size as i64], (kind, device))
}

impl Vocabulary {
    /// Loads the tables alone out of a Hugging Face folder whose `config.json` gave `config`.
    ///
    /// # Errors
    /// Weights that cannot be read or do not fit the configuration; no memory.
    pub fn load(folder: &Path, config: &TargetConfig, device: Device, kind: Kind) -> Result<Vocabulary, WeightsError> {
        let vocabulary = empty_table(config, kind, device).and_then(|embedding| Vocabulary::over(embedding, config));
        let vocabulary = vocabulary.map_err(|source| WeightsError::memory(folder, source))?;
        let mut named = vocabulary.named_head();
        named.push((EMBEDDING.to_owned(), vocabulary.embedding.shallow_clone()));
        weights::load_into(folder, &named)?;
        Ok(vocabulary)
    }

    /// The tables of which `embedding` is one; what the other holds is undefined.
    pub(super) fn over(embedding: Tensor, config: &TargetConfig) -> Result<Vocabulary, TchError> {
        let head = match config.tie_word_embeddings {
            true => embedding.shallow_clone(),
            false => empty_table(config, embedding.kind(), embedding.device())?,
        };
        Ok(Vocabulary { embedding, head })
    }

    /// The head under its name in Hugging Face folders. A tied one is the embedding, and a copy of it in the file is passed
    /// over.
    pub(super) fn named_head(&self) -> Vec<(String, Tensor)> {
        let own = self.head.data_ptr() != self.embedding.data_ptr();
        own.then(|| (HEAD.to_owned(), self.head.shallow_clone())).into_iter().collect()
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
