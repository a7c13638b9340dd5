//! A target's embedding and its first layers: all that a capture runs.

use std::path::Path;

use common::model_config::TargetConfig;
use tch::{Device, Kind, TchError, Tensor};

use super::attention::{Documents, Kernels};
use super::bricks::{Bricks, Heads, Residual};
use super::layer::{Between, DecoderLayer};
use super::vocabulary::{self, EMBEDDING};
use crate::nn::Rotary;
use crate::runtime;
use crate::weights::{self, WeightsError};

/// The frozen embedding and first layers of a decoder on one device.
pub struct Backbone {
    embedding: Tensor, // [V, H]
    layers: Vec<DecoderLayer>,
    rotary: Rotary,
    bricks: Bricks,
    attention: Option<Kernels>,
    kind: Kind,
    device: Device,
}

/// Tokens of a pass, both integers `[T]` on the backbone's device.
pub(super) struct Input {
    pub(super) ids: Tensor,
    pub(super) positions: Tensor,
}

/// Ascending layers, and who gets the k-th one's output.
pub(super) struct Taps<'a> {
    pub(super) layers: &'a [usize],
    pub(super) sink: &'a mut dyn FnMut(usize, &Tensor),
}

impl Backbone {
    /// Loads the embedding and the first `depth` layers out of a Hugging Face folder whose `config.json` gave `config`.
    ///
    /// # Errors
    /// Weights that cannot be read or do not fit the configuration; no memory.
    pub fn load(
        folder: &Path,
        config: &TargetConfig,
        depth: usize,
        device: Device,
        kind: Kind,
    ) -> Result<Backbone, WeightsError> {
        let backbone =
            Backbone::empty(config, depth, device, kind).map_err(|source| WeightsError::memory(folder, source))?;
        weights::load_into(folder, &backbone.named())?;
        Ok(backbone)
    }

    /// The same with random weights, deviation 0.02 and norms of one, for tests and benchmarks.
    ///
    /// # Errors
    /// No memory.
    pub fn random(config: &TargetConfig, depth: usize, device: Device, kind: Kind) -> Result<Backbone, TchError> {
        let backbone = Backbone::empty(config, depth, device, kind)?;
        fill(backbone.named())?;
        Ok(backbone)
    }

    /// Memory for its tensors; what they hold is undefined.
    pub(super) fn empty(config: &TargetConfig, depth: usize, device: Device, kind: Kind) -> Result<Backbone, TchError> {
        assert!(depth <= config.num_hidden_layers, "{depth} layers of {}", config.num_hidden_layers);
        Ok(Backbone {
            embedding: vocabulary::empty_table(config, kind, device)?,
            layers: (0..depth).map(|_| DecoderLayer::empty(config, kind, device)).collect::<Result<_, TchError>>()?,
            rotary: Rotary::new(&config.rope, config.head_dim, device),
            bricks: Bricks::new(config, kind, device),
            attention: Kernels::find(kind, device, config.head_dim),
            kind,
            device,
        })
    }

    /// Its tensors under their names in Hugging Face folders.
    pub(super) fn named(&self) -> Vec<(String, Tensor)> {
        let layers = self.layers.iter().enumerate().flat_map(|(index, layer)| layer.named(index));
        [(EMBEDDING.to_owned(), self.embedding.shallow_clone())].into_iter().chain(layers).collect()
    }

    /// The embedding table, [V, H].
    pub(super) fn embedding(&self) -> &Tensor {
        &self.embedding
    }

    /// Where its tensors lie.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Type of its tensors and of what it gives out.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The GPU's attention kernels, where they serve.
    pub(super) fn attention(&self) -> Option<Kernels> {
        self.attention
    }

    /// Gives up fused and attention kernels: the oracle that they are held against.
    #[must_use]
    pub fn with_plain_operations(self, config: &TargetConfig) -> Backbone {
        Backbone { bricks: Bricks::plain(config), attention: None, ..self }
    }

    /// Runs packed documents and calls `sink(k, x)` as the k-th of `taps` is launched, x [T, H] being that layer's output
    /// before the next layer's norm.
    ///
    /// `document_offsets` start at 0 and end at T: tokens see their own document's past only, and positions restart with
    /// each. `taps` ascend; layers behind the last are not run. Does not wait for the device.
    pub fn capture(
        &self,
        token_ids: &[u32],
        document_offsets: &[u32],
        taps: &[usize],
        sink: &mut dyn FnMut(usize, &Tensor),
    ) {
        let tokens = token_ids.len() as i64;
        assert_eq!(document_offsets.last().map(|end| i64::from(*end)), Some(tokens), "documents must cover the row");
        let batch = runtime::upload(&packed_input(token_ids, document_offsets), self.device);
        let offsets = batch.narrow(0, 2 * tokens, document_offsets.len() as i64);
        let documents = Documents::new(self.attention, document_offsets, offsets);
        let depth = taps.last().map_or(0, |last| last + 1);
        let input = Input { ids: batch.narrow(0, 0, tokens), positions: batch.narrow(0, tokens, tokens) };
        let mut attend = |_, heads: Heads| documents.attend(&heads);
        let _ = self.run(&input, depth, &mut attend, Taps { layers: taps, sink });
    }

    /// Runs the first `depth` layers and gives what leaves the last, [T, H]. `attend(l, heads)` gives layer l's attention
    /// [T, nh, hd].
    pub(super) fn run(
        &self,
        input: &Input,
        depth: usize,
        attend: &mut dyn FnMut(usize, Heads) -> Tensor,
        taps: Taps,
    ) -> Tensor {
        let x = Tensor::embedding(&self.embedding, &input.ids, -1, false, false);
        let tables = self.rotary.tables(&input.positions.unsqueeze(1));
        let between = Between { bricks: &self.bricks, tables: &tables };
        let mut residual = Residual { x, shared: false };
        for (l, layer) in self.layers[..depth].iter().enumerate() {
            residual = layer.forward(residual, &between, |heads| attend(l, heads));
            if let Ok(k) = taps.layers.binary_search(&l) {
                residual.shared = true;
                (taps.sink)(k, &residual.x);
            }
        }
        residual.x
    }
}

/// Random numbers of deviation 0.02 in matrices, ones in norms.
pub(super) fn fill(named: Vec<(String, Tensor)>) -> Result<(), TchError> {
    for (name, mut tensor) in named {
        let _ = match name.ends_with("norm.weight") {
            true => tensor.f_fill_(1.0)?,
            false => tensor.f_normal_(0.0, 0.02)?,
        };
    }
    Ok(())
}

/// Token ids, positions from 0 in each document, and document offsets behind one another: one transfer for all.
fn packed_input(token_ids: &[u32], document_offsets: &[u32]) -> Vec<i32> {
    let positions = document_offsets.windows(2).flat_map(|ends| 0..ends[1].saturating_sub(ends[0]));
    let all = token_ids.iter().copied().chain(positions).chain(document_offsets.iter().copied());
    all.map(|number| i32::try_from(number).expect("ids and offsets of a batch are below 2^31")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_restart_with_each_document() {
        assert_eq!(packed_input(&[7, 8, 9, 5, 6], &[0, 3, 3, 5]), [7, 8, 9, 5, 6, 0, 1, 2, 0, 1, 0, 3, 3, 5]);
    }
}
