//! What a target takes: the frozen layers up to the last tap, one batch at work, hidden states on their way to slots.

use super::{Footprint, LIBRARIES, LIBRARY_BYTES, SLOTS};
use crate::arena::{ArenaKind, LANE_BYTES, Parts};
use crate::config::Config;
use crate::ids::{Rank, Role};
use crate::model_config::{Architecture, TargetConfig};
use crate::run_plan::RunPlan;

/// Batches whose hidden states a target holds at once, until they are in their slots: being filled, filled, and being
/// published.
pub const IN_FLIGHT: u64 = 3;

pub(super) fn footprint(config: &Config, plan: &RunPlan, rank: Rank) -> Footprint {
    let (size, tokens) = (config.model.torch_dtype.size(), u64::from(config.data.batch_tokens));
    let depth = plan.draft.target_layer_ids.last().map_or(0, |last| *last as u64 + 1);
    let target = Widths::of(&plan.target);
    let tap_bytes = plan.draft.slot_token_bytes(config.model.torch_dtype) * tokens;
    let in_flight = if plan.arena == ArenaKind::Host { 0 } else { IN_FLIGHT * tap_bytes };
    Footprint::new([
        (LIBRARIES, LIBRARY_BYTES),
        (SLOTS, arena_part(config, plan, rank)),
        ("embedding table", (plan.target.vocab_size * plan.target.hidden_size) as u64 * size),
        ("layers", depth * target.layer(&plan.target) * size),
        ("a batch's activations", tokens * (target.widest() * size + target.tables())),
        ("hidden states in flight", in_flight),
    ])
}

/// The slots that lie on this target's GPU, and a lane for each worker behind them.
fn arena_part(config: &Config, plan: &RunPlan, rank: Rank) -> u64 {
    if plan.arena == ArenaKind::Host {
        return 0;
    }
    let (targets, drafters) = (config.run.workers(Role::Target), config.run.workers(Role::Drafter));
    let slots = Parts::new(config.queue.capacity, targets).slots_of(rank.0).len() as u64;
    let slot_bytes = plan.draft.slot_token_bytes(config.model.torch_dtype) * u64::from(config.data.batch_tokens);
    slots * slot_bytes + u64::from(targets + drafters) * LANE_BYTES as u64
}

/// Elements of a token's tensors.
pub(super) struct Widths {
    /// H.
    hidden: u64,
    /// I.
    inner: u64,
    /// nh * hd.
    queries: u64,
    /// nkv * hd.
    pub(super) keys: u64,
    /// hd.
    head: u64,
}

impl Widths {
    pub(super) fn of(target: &TargetConfig) -> Widths {
        let head = target.head_dim as u64;
        Widths {
            hidden: target.hidden_size as u64,
            inner: target.intermediate_size as u64,
            queries: target.num_attention_heads as u64 * head,
            keys: target.num_key_value_heads as u64 * head,
            head,
        }
    }

    /// Numbers of one layer: qkv, output, gate and up, down, norms, biases.
    pub(super) fn layer(&self, target: &TargetConfig) -> u64 {
        let qkv = self.queries + 2 * self.keys;
        let head_norms = if target.architecture == Architecture::Qwen3 { 2 * self.head } else { 0 };
        let biases = if target.attention_bias { qkv } else { 0 };
        self.hidden * (qkv + self.queries + 3 * self.inner + 2) + head_norms + biases
    }

    /// Elements a token at the widest place of a layer: the stream, both normed inputs and qkv, which live as long as
    /// the layer, and gate, up and their product; or, in the attention before, heads copied into a grid half as large again.
    pub(super) fn widest(&self) -> u64 {
        let qkv = self.queries + 2 * self.keys;
        let attention = 2 * self.hidden + qkv + 3 * (qkv + self.queries) / 2 + self.queries;
        attention.max(3 * self.hidden + qkv + 3 * self.inner)
    }

    /// Bytes of a token's rotary angles, cosines and sines, float32.
    pub(super) fn tables(&self) -> u64 {
        4 * self.head * 4
    }
}
