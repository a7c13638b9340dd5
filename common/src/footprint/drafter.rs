//! What a drafter takes: the target's vocabulary, weights with their optimizer, two batches, one step's activations.

use super::batch::Extent;
use super::{CHUNK_LOGITS, Footprint, LIBRARIES, LIBRARY_BYTES};
use crate::config::Config;
use crate::ids::{Rank, Role};
use crate::model_config::DraftConfig;
use crate::run_plan::RunPlan;

/// Batches that a drafter holds at once: one in training, one fetched or being fetched.
pub const RECEIVED: u64 = 2;

/// What NCCL takes of each GPU once several drafters have met. Two H200, driver 580, NCCL of torch 2.11.0+cu130, 2026-11-30: 0.3
/// or 0.8 GB, as the driver counts slots that a process maps on its own GPU once more for it or not.
const NCCL: u64 = 512 << 20;

pub(super) fn footprint(config: &Config, plan: &RunPlan) -> Footprint {
    let (draft, dtype) = (&plan.draft, config.model.torch_dtype);
    let parameters = draft.parameter_count();
    let tables = if plan.target.tie_word_embeddings { 1 } else { 2 };
    // Masters are the weights themselves where those are float32 already.
    let masters = if dtype.size() == 4 { 0 } else { 4 * parameters };
    let extent = plan.heaviest.extent(draft, config.training.num_anchors);
    let step = Step { draft, extent, size: dtype.size() };
    Footprint::new([
        (LIBRARIES, LIBRARY_BYTES),
        ("NCCL", if sums_on_gpus(config) { NCCL } else { 0 }),
        ("the target's embedding and head", tables * (draft.vocab_size * draft.hidden_size) as u64 * dtype.size()),
        ("weights", parameters * dtype.size()),
        ("gradients", 4 * parameters),
        ("float32 masters", masters),
        ("AdamW's moments", 8 * parameters),
        ("received batches", RECEIVED * draft.slot_token_bytes(dtype) * u64::from(config.data.batch_tokens)),
        ("attention masks", step.masks()),
        ("activations kept for the backward pass", step.kept()),
        ("loss or start of the backward pass", step.loss().max(step.backward())),
    ])
}

/// Whether gradients are summed by NCCL: several drafters, each with a GPU of its own.
fn sums_on_gpus(config: &Config) -> bool {
    let ranks = config.run.workers(Role::Drafter);
    let devices = (0..ranks).map(|rank| config.run.device_of(Role::Drafter, Rank(rank)));
    ranks > 1 && devices.collect::<std::collections::BTreeSet<_>>().len() == ranks as usize
}

/// One step on one batch.
struct Step<'a> {
    draft: &'a DraftConfig,
    extent: Extent,
    /// Bytes of an element.
    size: u64,
}

impl Step<'_> {
    fn hidden(&self) -> u64 {
        self.draft.hidden_size as u64
    }

    fn inner(&self) -> u64 {
        self.draft.intermediate_size as u64
    }

    /// nh * hd.
    fn queries(&self) -> u64 {
        (self.draft.num_attention_heads * self.draft.head_dim) as u64
    }

    /// nkv * hd.
    fn keys(&self) -> u64 {
        (self.draft.num_key_value_heads * self.draft.head_dim) as u64
    }

    /// One number for each query of a key head and each key, for each rule that some layer follows.
    fn masks(&self) -> u64 {
        let folded = (self.draft.num_attention_heads / self.draft.num_key_value_heads) as u64;
        let queries = folded * super::GROUP_BLOCKS as u64 * self.draft.block_size as u64;
        let rules: std::collections::BTreeSet<_> = self.draft.layer_types.iter().map(|kind| *kind as u8).collect();
        rules.len() as u64 * self.extent.keys * queries * self.size
    }

    /// What the graph holds when the forward pass is done.
    fn kept(&self) -> u64 {
        let (hidden, queries, keys) = (self.hidden(), self.queries(), self.keys());
        // A layer, for each slot: its input, the sum after attention, and both normed; q, k and v; queries in groups, attention's
        // outputs one by one and joined; gate, up, silu(gate), and the product.
        let slot = 4 * hidden + 4 * queries + 2 * keys + 4 * self.inner();
        // Keys and values as each call joins them.
        let joined = 2 * keys * self.extent.keys;
        // The context: hidden states in their places, their projection, that normed; for each layer keys, values and keys normed.
        let layers = self.draft.num_hidden_layers as u64;
        let row = (self.draft.num_taps() as u64 + 2) * hidden + 3 * keys * layers;
        // The last layer's output, and that normed.
        let slots = self.extent.slots * (layers * slot + 2 * hidden);
        (slots + layers * joined + self.extent.context_rows * row) * self.size
    }

    /// Scored rows, their gradients in pieces, and either one chunk of logits or all gradients joined and weighted.
    fn loss(&self) -> u64 {
        let rows = self.extent.scored * self.hidden();
        let logits = (self.extent.scored * self.draft.vocab_size as u64).min(CHUNK_LOGITS);
        // Without the kernel for bfloat16: probabilities beside the logits.
        let chunk = if self.size == 2 { 2 * logits } else { 8 * logits };
        let joined = rows * (self.size + 4 + self.size) + self.extent.slots * self.hidden() * self.size;
        2 * rows * self.size + chunk.max(joined)
    }

    /// At its start, where all that was kept is still there: the gradients of the output, of the stream, of silu(gate), of up
    /// and of one matrix. Or at its end, where in its place every weight's gradient is there in the compute type.
    fn backward(&self) -> u64 {
        let (hidden, inner) = (self.hidden(), self.inner());
        let start = (self.extent.slots * (3 * hidden + 2 * inner) + 2 * hidden * inner) * self.size;
        let end = (self.draft.parameter_count() * self.size).saturating_sub(self.kept());
        start.max(end)
    }
}
