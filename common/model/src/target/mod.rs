//! The frozen target: Llama, Qwen2 or Qwen3, one decoder for all three.
//!
//! Two ways through it. [`Target::capture`] runs packed rows and hands out the residual stream behind tapped layers;
//! it ends with the last of them. [`Target::step`] runs further tokens of one sequence over a cache, to the logits.
//!
//! Shape letters: T packed tokens, n new tokens, H hidden size, V vocabulary, K taps, nh and nkv heads, hd head dimension.

mod attention;
mod layer;
mod parameters;
mod vocabulary;

use std::path::Path;

use common::model_config::TargetConfig;
use tch::{Device, Kind, TchError, Tensor};

use crate::nn::{KvCache, KvShape, Rotary, rms_norm};
use crate::weights::{self, WeightsError};
use layer::DecoderLayer;
use parameters::Parameters;
pub use vocabulary::Vocabulary;

/// A whole frozen decoder on one device. No tensor of it requires a gradient.
pub struct Target {
    config: TargetConfig,
    kind: Kind,
    device: Device,
    vocabulary: Vocabulary,
    layers: Vec<DecoderLayer>,
    norm: Tensor, // [H]
    rotary: Rotary,
}

/// What [`Target::step`] gives for its n tokens.
pub struct Step {
    /// [n, V]: row i scores the token after the i-th.
    pub logits: Tensor,
    /// [n, K*H]: residual streams behind the tapped layers, side by side in the order asked for.
    pub taps: Tensor,
}

impl Target {
    /// Loads a Hugging Face folder whose `config.json` gave `config`.
    ///
    /// # Errors
    /// Weights that cannot be read or do not fit the configuration; no memory.
    pub fn load(folder: &Path, config: &TargetConfig, device: Device, kind: Kind) -> Result<Target, WeightsError> {
        let shapes = parameters::shapes(config);
        let mut parameters = Parameters::new(weights::load(folder, &shapes, kind, device)?);
        Ok(Target {
            vocabulary: Vocabulary::take(config, &mut parameters),
            layers: (0..config.num_hidden_layers).map(|l| DecoderLayer::new(config, l, &mut parameters)).collect(),
            norm: parameters.take("model.norm.weight"),
            rotary: Rotary::new(&config.rope, config.head_dim, device),
            config: config.clone(),
            kind,
            device,
        })
    }

    /// The shape it was loaded with.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// Where its tensors lie.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Type of its tensors and of what it gives out.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its input and output tables.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Runs packed documents and calls `sink(k, x)` as the k-th of `taps` finishes, x [T, H] being that layer's output
    /// before the next layer's norm.
    ///
    /// ids i64 `[T]`; `document_offsets` start at 0 and end at T: tokens see their own document's past only, and positions
    /// restart with each. `taps` ascend; layers behind the last are not run.
    pub fn capture(
        &self,
        ids: &Tensor,
        document_offsets: &[u32],
        taps: &[usize],
        sink: &mut dyn FnMut(usize, &Tensor),
    ) {
        let tokens = ids.size()[0];
        assert_eq!(document_offsets.last().map(|end| i64::from(*end)), Some(tokens), "documents must cover the row");
        let tables = self.rotary.tables(&attention::packed_positions(document_offsets).to_device(self.device));
        let mut x = self.vocabulary.embed(ids);
        let depth = taps.last().map_or(0, |last| last + 1);
        for (l, layer) in self.layers[..depth].iter().enumerate() {
            x = layer.forward(&x, &tables, |q, k, v| attention::packed(q, k, v, document_offsets));
            if let Ok(k) = taps.binary_search(&l) {
                sink(k, &x);
            }
        }
    }

    /// An empty cache for [`Target::step`] with room for `capacity` tokens; more may come.
    ///
    /// # Errors
    /// No memory for it.
    pub fn new_cache(&self, capacity: usize) -> Result<KvCache, TchError> {
        let config = &self.config;
        let (layers, heads) = (config.num_hidden_layers, config.num_key_value_heads);
        KvCache::new(KvShape { layers, heads, head_dim: config.head_dim }, capacity, self.kind, self.device)
    }

    /// Runs ids i64 `[n]` behind the tokens in `cache`, through all layers, final norm and head, and keeps them in it.
    pub fn step(&self, ids: &Tensor, cache: &mut KvCache, taps: &[usize]) -> Step {
        let (past, count) = (cache.len() as i64, ids.size()[0]);
        let tables = self.rotary.tables(&Tensor::arange_start(past, past + count, (Kind::Int64, self.device)));
        let mask = attention::causal_mask(past, count, self.device);
        let mut x = self.vocabulary.embed(ids);
        let mut tapped = vec![Tensor::empty([count, 0], (self.kind, self.device))];
        for (l, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, &tables, |q, k, v| {
                let (keys, values) = cache.append(l, k, v);
                attention::masked(q, &keys, &values, mask.as_ref())
            });
            if taps.contains(&l) {
                tapped.push(x.shallow_clone());
            }
        }
        cache.advance(count as usize);
        let hidden = rms_norm(&x, &self.norm, self.config.rms_norm_eps);
        Step { logits: self.vocabulary.logits(&hidden), taps: Tensor::cat(&tapped, 1) }
    }
}
