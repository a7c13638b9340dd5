//! The DFlash draft model: a small stack of decoder layers that predicts a whole block of tokens at once, from the
//! target's hidden states (spec sections 0, 1 and 3).
//!
//! Two ways through it, with the same layers. [`Drafter::forward`] runs many blocks of a packed batch for training;
//! [`Drafter::propose`] runs one block behind a cache for decoding. They must agree: invariant A11.
//!
//! Embedding and head are the target's and frozen: they are not part of this.
//!
//! Shape letters: T context tokens, N blocks, B slots, K taps, H hidden size, V vocabulary.

pub mod anchors;
mod attention;
mod context;
mod layer;
mod layout;
pub mod loss;
pub mod mask;
mod parameters;
pub mod plan;
mod turn;

use std::path::Path;

use common::footprint::{CONTEXT_UNIT, GROUP_BLOCKS};
use common::model_config::{DraftConfig, ModelConfigError, WEIGHTS_FILE};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::{Device, Kind, TchError, Tensor};

use crate::nn::{KvCache, KvShape, Rotary, rms_norm};
use crate::weights::{self, WeightsError};
pub use anchors::{AnchorDraw, PackedRows};
use context::Context;
use layer::Layer;
pub use loss::{BlockTotals, LossParts, Weighting};
pub use parameters::Parameters;
pub use plan::{BlockPlan, HostPlan, PlanOptions};
use turn::Turn;

/// Standard deviation of fresh weight matrices.
const INITIAL_DEVIATION: f32 = 0.02;

/// A drafter that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// Its `config.json`.
    #[error(transparent)]
    Config(#[from] ModelConfigError),
    /// Its weights.
    #[error(transparent)]
    Weights(#[from] weights::SaveError),
}

/// A draft model with its gradients.
pub struct Drafter {
    config: DraftConfig,
    parameters: Parameters,
    context: Context,
    layers: Vec<Layer>,
    norm: Tensor,
    rotary: Rotary,
}

impl Drafter {
    /// Fresh weights: matrices N(0, 0.02), norms 1. The same seed gives the same weights on every device.
    ///
    /// # Errors
    /// No memory for weights and gradients.
    pub fn new(config: &DraftConfig, seed: u64, device: Device, kind: Kind) -> Result<Drafter, TchError> {
        let shapes = config.parameter_shapes();
        let mut parameters = Parameters::zeros(&flat_order(&shapes), kind, device)?;
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let fresh = shapes.into_iter().map(|(name, shape)| {
            let values = if shape.len() == 1 { vec![1.0; shape[0] as usize] } else { normal(&shape, &mut generator) };
            (name, Tensor::from_slice(&values).view(shape.as_slice()))
        });
        parameters.assign_named(&fresh.collect());
        Ok(Self::assemble(config, parameters, device))
    }

    /// Weights of a folder in the z-lab format whose `config.json` gave `config`.
    ///
    /// # Errors
    /// Weights that cannot be read or do not fit the configuration; no memory.
    pub fn load(folder: &Path, config: &DraftConfig, device: Device, kind: Kind) -> Result<Drafter, WeightsError> {
        let shapes = config.parameter_shapes();
        let loaded = weights::load(folder, &shapes, kind, device)?;
        let mut parameters = Parameters::zeros(&flat_order(&shapes), kind, device)
            .map_err(|source| WeightsError::Tensor { name: "draft weights".to_owned(), source })?;
        parameters.assign_named(&loaded);
        Ok(Self::assemble(config, parameters, device))
    }

    fn assemble(config: &DraftConfig, mut parameters: Parameters, device: Device) -> Drafter {
        let layer = |index| Layer::new(config, index, &mut parameters);
        Drafter {
            layers: (0..config.num_hidden_layers).map(layer).collect(),
            context: Context::new(config, &mut parameters),
            norm: parameters.leaf(&["norm.weight".to_owned()]),
            rotary: Rotary::new(&config.rope(), config.head_dim, device),
            config: config.clone(),
            parameters,
        }
    }

    /// The shape it was made with.
    pub fn config(&self) -> &DraftConfig {
        &self.config
    }

    /// Weights and gradients.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Weights and gradients, to be changed.
    pub fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    /// What block plans must know of this drafter.
    pub fn plan_options(&self) -> PlanOptions {
        let mut visibilities = Vec::new();
        for layer in &self.layers {
            if !visibilities.contains(&layer.visibility()) {
                visibilities.push(layer.visibility());
            }
        }
        let values = self.parameters.values();
        PlanOptions {
            block_size: self.config.block_size,
            mask_token_id: self.config.mask_token_id,
            group_blocks: group_blocks(self.config.block_size, values.device()),
            context_unit: if values.device().is_cuda() { CONTEXT_UNIT } else { 8 },
            heads_per_key: self.config.num_attention_heads / self.config.num_key_value_heads,
            visibilities,
            kind: values.kind(),
            device: values.device(),
        }
    }

    /// Training: hidden states of the tapped layers [T, K*H] and embedded slots [N, B, H] to final hidden states [N, B, H],
    /// ready for the head.
    pub fn forward(&self, taps: &Tensor, noise: &Tensor, plan: &BlockPlan) -> Tensor {
        let (of_context, of_slots) = self.turn(&plan.positions).split(plan.context_rows());
        let stream = self.context.stream(&plan.in_context(taps));
        let context = self.context.keys_values(&stream, &of_context);
        let mut x = noise.reshape([-1, self.config.hidden_size as i64]);
        for (layer, context) in self.layers.iter().zip(&context) {
            let attention = plan.attention(layer.visibility());
            x = layer.forward(&x, &of_slots, |q, k, v| attention.attend(q, k, v, context));
        }
        rms_norm(&x, &self.norm, self.config.rms_norm_eps).view_as(noise)
    }

    fn turn(&self, positions: &Tensor) -> Turn {
        Turn::new(&self.rotary.tables(positions), self.parameters.values().kind())
    }

    /// An empty cache for [`Drafter::propose`] with room for `capacity` tokens; more may come.
    ///
    /// # Errors
    /// No memory for it.
    pub fn new_cache(&self, capacity: usize) -> Result<KvCache, TchError> {
        let heads = self.config.num_key_value_heads;
        let shape = KvShape { layers: self.config.num_hidden_layers, heads, head_dim: self.config.head_dim };
        KvCache::new(shape, capacity, self.parameters.values().kind(), self.parameters.values().device())
    }

    /// Decoding: pushes the taps [m, K*H] of the positions behind `cache` into it, then runs one block of embedded slots
    /// [n, H] at the positions that follow, to final hidden states [n, H]. The block itself stays out of the cache.
    pub fn propose(&self, taps: &Tensor, noise: &Tensor, cache: &mut KvCache) -> Tensor {
        tch::no_grad(|| {
            let (past, slots) = (cache.len() as i64, noise.size()[0]);
            let start = past + taps.size()[0];
            let positions = Tensor::arange_start(past, start + slots, (Kind::Int64, taps.device()));
            let (of_context, of_slots) = self.turn(&positions).split(start - past);
            let context = self.context.keys_values(&self.context.stream(taps), &of_context);
            let mut x = noise.shallow_clone();
            for (index, (layer, (keys, values))) in self.layers.iter().zip(&context).enumerate() {
                x = layer.forward(&x, &of_slots, |q, k, v| {
                    let both = |context: &Tensor, own: &Tensor| Tensor::cat(&[context, own], 0).transpose(0, 1);
                    let (keys, values) = cache.append(index, &both(keys, k), &both(values, v));
                    attention::behind_cache(q, &keys, &values, layer.visibility())
                });
            }
            cache.advance((start - past) as usize);
            rms_norm(&x, &self.norm, self.config.rms_norm_eps)
        })
    }

    /// Writes `config.json` and `model.safetensors` (bfloat16) in the z-lab format.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), SaveError> {
        self.config.write(folder)?;
        Ok(weights::save(&folder.join(WEIGHTS_FILE), self.parameters.named(), Kind::BFloat16)?)
    }
}

/// Blocks of a group. Small ones waste less on the part of the mask that hides blocks from each other; large ones make
/// fewer and larger calls, which a GPU wants.
fn group_blocks(block_size: usize, device: Device) -> usize {
    if device.is_cuda() { GROUP_BLOCKS } else { (128 / block_size).max(1) }
}

/// The order of weights in memory: layer by layer, and in each those that one product serves side by side.
fn flat_order(shapes: &[(String, Vec<i64>)]) -> Vec<(String, Vec<i64>)> {
    let place = |(name, _): &(String, Vec<i64>)| {
        let layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        let projection = ["q_proj", "k_proj", "v_proj"].iter().position(|part| name.contains(part));
        (layer, projection, name.clone())
    };
    let mut ordered = shapes.to_vec();
    ordered.sort_by_key(place);
    ordered
}

/// Normal numbers from pairs of uniform ones (Box-Muller).
fn normal(shape: &[i64], generator: &mut ChaCha8Rng) -> Vec<f32> {
    let count = shape.iter().product::<i64>() as usize;
    let mut numbers = Vec::with_capacity(count + 1);
    while numbers.len() < count {
        let radius = (-2.0 * (1.0 - generator.random::<f32>()).ln()).sqrt() * INITIAL_DEVIATION;
        let (sine, cosine) = (std::f32::consts::TAU * generator.random::<f32>()).sin_cos();
        numbers.extend([radius * cosine, radius * sine]);
    }
    numbers.truncate(count);
    numbers
}

#[cfg(test)]
mod tests {
    use common::config::LayerType;

    use super::*;

    fn config() -> DraftConfig {
        DraftConfig {
            block_size: 4,
            num_hidden_layers: 2,
            hidden_size: 64,
            intermediate_size: 96,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 24,
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            vocab_size: 100,
            mask_token_id: 99,
            target_layer_ids: vec![1, 5],
            num_target_layers: 8,
            layer_types: vec![LayerType::FullAttention; 2],
            sliding_window: None,
            max_position_embeddings: 128,
            bos_token_id: None,
            eos_token_ids: vec![2],
        }
    }

    fn fresh(seed: u64, kind: Kind) -> Drafter {
        Drafter::new(&config(), seed, Device::Cpu, kind).unwrap()
    }

    /// Spec 1.9.
    #[test]
    fn fresh_matrices_are_normal_and_norms_one() {
        let drafter = fresh(1, Kind::Float);
        for (name, leaf) in drafter.parameters().named() {
            if leaf.dim() == 1 {
                assert_eq!(*leaf, leaf.ones_like(), "{name}");
                continue;
            }
            let (deviation, mean) = (leaf.std(false).double_value(&[]), leaf.mean(Kind::Float).double_value(&[]));
            assert!((deviation - 0.02).abs() < 1e-3 && mean.abs() < 1e-3, "{name}: {mean} +- {deviation}");
            let beyond = leaf.abs().gt(0.04).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
            assert!((beyond - 0.0455).abs() < 0.015, "{name}: {beyond} of the numbers lie beyond two deviations");
        }
    }

    #[test]
    fn the_seed_alone_decides_fresh_weights() {
        assert_eq!(fresh(1, Kind::Float).parameters().values(), fresh(1, Kind::Float).parameters().values());
        assert_ne!(fresh(1, Kind::Float).parameters().values(), fresh(2, Kind::Float).parameters().values());
        let half = fresh(1, Kind::Float).parameters().values().to_kind(Kind::BFloat16);
        assert_eq!(*fresh(1, Kind::BFloat16).parameters().values(), half);
    }

    /// Spec 1.6: names, shapes and types of the file.
    #[test]
    fn a_checkpoint_is_what_servers_load() {
        let folder = tempfile::tempdir().unwrap();
        let drafter = fresh(3, Kind::Float);
        drafter.save(folder.path()).unwrap();
        assert_eq!(DraftConfig::read(folder.path()).unwrap(), config());

        let mut saved = Tensor::read_safetensors(folder.path().join(WEIGHTS_FILE)).unwrap();
        saved.sort_by(|left, right| left.0.cmp(&right.0));
        assert!(saved.iter().all(|(_, tensor)| tensor.kind() == Kind::BFloat16));
        let shapes: Vec<_> = saved.iter().map(|(name, tensor)| (name.clone(), tensor.size())).collect();
        assert_eq!(shapes, config().parameter_shapes());

        let loaded = Drafter::load(folder.path(), &config(), Device::Cpu, Kind::Float).unwrap();
        let rounded = drafter.parameters().values().to_kind(Kind::BFloat16).to_kind(Kind::Float);
        assert_eq!(*loaded.parameters().values(), rounded);
    }

    #[test]
    fn a_checkpoint_of_another_drafter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fresh(3, Kind::Float).save(folder.path()).unwrap();
        let larger = DraftConfig { intermediate_size: 128, num_hidden_layers: 3, ..config() };
        let error = Drafter::load(folder.path(), &larger, Device::Cpu, Kind::Float).err().unwrap().to_string();
        assert!(error.contains("tensors are missing: layers.2.input_layernorm.weight"), "{error}");
        assert!(error.contains("layers.0.mlp.down_proj.weight [64, 96] instead of [64, 128]"), "{error}");
    }
}
