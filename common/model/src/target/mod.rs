//! The frozen target: Llama, Qwen2 or Qwen3, one decoder for all three.
//!
//! Two ways through it. [`Backbone::capture`] runs packed rows and hands out the residual stream behind tapped layers;
//! it ends with the last of them. [`Target::step`] runs further tokens of one sequence over a cache, to the logits.
//!
//! Shape letters: T packed tokens, n new tokens, H hidden size, V vocabulary, K taps, nh and nkv heads, hd head dimension.

mod attention;
mod backbone;
mod bricks;
mod grid;
mod layer;
mod vocabulary;

use std::path::Path;

use common::model_config::TargetConfig;
use tch::{Device, Kind, TchError, Tensor};

use crate::nn::{KvCache, KvShape, rms_norm};
use crate::weights::{self, WeightsError};
use attention::Sight;
pub use backbone::Backbone;
use backbone::{Input, Taps};
use bricks::Heads;
pub use vocabulary::Vocabulary;

/// A whole frozen decoder on one device. No tensor of it requires a gradient.
pub struct Target {
    config: TargetConfig,
    vocabulary: Vocabulary,
    backbone: Backbone,
    norm: Tensor, // [H]
}

/// What [`Target::step`] gives for its n tokens.
pub struct Step {
    /// [n, V]: row i scores the token after the i-th. [`Target::prefill`] gives the last row alone, [1, V].
    pub logits: Tensor,
    /// [n, K*H]: residual streams behind the tapped layers, side by side.
    pub taps: Tensor,
}

impl Target {
    /// Loads a Hugging Face folder whose `config.json` gave `config`.
    ///
    /// # Errors
    /// Weights that cannot be read or do not fit the configuration; no memory.
    pub fn load(folder: &Path, config: &TargetConfig, device: Device, kind: Kind) -> Result<Target, WeightsError> {
        let target = Target::empty(config, device, kind).map_err(|source| WeightsError::memory(folder, source))?;
        weights::load_into(folder, &target.named())?;
        Ok(target)
    }

    /// The same with random weights, as [`Backbone::random`].
    ///
    /// # Errors
    /// No memory.
    pub fn random(config: &TargetConfig, device: Device, kind: Kind) -> Result<Target, TchError> {
        let target = Target::empty(config, device, kind)?;
        backbone::fill(target.named())?;
        Ok(target)
    }

    fn named(&self) -> Vec<(String, Tensor)> {
        let mut named = self.backbone.named();
        named.extend(self.vocabulary.named_head());
        named.push(("model.norm.weight".to_owned(), self.norm.shallow_clone()));
        named
    }

    fn empty(config: &TargetConfig, device: Device, kind: Kind) -> Result<Target, TchError> {
        let backbone = Backbone::empty(config, config.num_hidden_layers, device, kind)?;
        Ok(Target {
            config: config.clone(),
            vocabulary: Vocabulary::over(backbone.embedding().shallow_clone(), config)?,
            norm: Tensor::f_empty([config.hidden_size as i64], (kind, device))?,
            backbone,
        })
    }

    /// The shape it was loaded with.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// Where its tensors lie.
    pub fn device(&self) -> Device {
        self.backbone.device()
    }

    /// Type of its tensors and of what it gives out.
    pub fn kind(&self) -> Kind {
        self.backbone.kind()
    }

    /// Its input and output tables.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Its embedding and layers.
    pub fn backbone(&self) -> &Backbone {
        &self.backbone
    }

    /// An empty cache for [`Target::step`] with room for `capacity` tokens; more may come.
    ///
    /// # Errors
    /// No memory for it.
    pub fn new_cache(&self, capacity: usize) -> Result<KvCache, TchError> {
        let config = &self.config;
        let (layers, heads) = (config.num_hidden_layers, config.num_key_value_heads);
        KvCache::new(KvShape { layers, heads, head_dim: config.head_dim }, capacity, self.kind(), self.device())
    }

    /// Runs ids i64 `[n]` behind the tokens in `cache`, through all layers, final norm and head, and keeps them in it.
    pub fn step(&self, ids: &Tensor, cache: &mut KvCache, taps: &[usize]) -> Step {
        let (hidden, taps) = self.hidden(ids, cache, taps);
        Step { logits: self.logits(&hidden), taps }
    }

    /// The same for a prompt, of which the last token's scores alone are wanted.
    pub fn prefill(&self, ids: &Tensor, cache: &mut KvCache, taps: &[usize]) -> Step {
        let (hidden, taps) = self.hidden(ids, cache, taps);
        Step { logits: self.logits(&hidden.narrow(0, hidden.size()[0] - 1, 1)), taps }
    }

    /// Hidden states [n, H] before the final norm, and taps [n, K*H].
    fn hidden(&self, ids: &Tensor, cache: &mut KvCache, taps: &[usize]) -> (Tensor, Tensor) {
        let (past, count) = (cache.len() as i64, ids.size()[0]);
        let positions = Tensor::arange_start(past, past + count, (Kind::Int64, self.device()));
        let sight = Sight::new(self.backbone.attention(), past, count, self.device());
        let mut tapped = vec![Tensor::empty([count, 0], (self.kind(), self.device()))];
        let mut attend = |layer, Heads { q, k, v }: Heads| {
            let (keys, values) = cache.append(layer, &k.transpose(0, 1), &v.transpose(0, 1));
            sight.attend(&q, &keys, &values)
        };
        let input = Input { ids: ids.shallow_clone(), positions };
        let taps = Taps { layers: taps, sink: &mut |_, x| tapped.push(x.shallow_clone()) };
        let hidden = self.backbone.run(&input, self.config.num_hidden_layers, &mut attend, taps);
        cache.advance(count as usize);
        (hidden, Tensor::cat(&tapped, 1))
    }

    fn logits(&self, hidden: &Tensor) -> Tensor {
        self.vocabulary.logits(&rms_norm(hidden, &self.norm, self.config.rms_norm_eps))
    }
}
