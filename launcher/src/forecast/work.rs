//! What a token costs in computing: operations and memory traffic of target and drafter, from their shapes alone.
//!
//! H hidden size, I inner size, q = heads * head_dim, k = key-value heads * head_dim, V vocabulary, K taps, B block size, L layers
//! (the target's up to its last tap). A product of m x n with n x p costs 2 m n p operations, its backward pass twice as
//! much again; attention costs 4 q operations for each pair of a query and a key that it sees, and 2.5 times that in its
//! backward pass. Element-wise operations count as traffic only.

use common::config::{Config, Dtype};
use common::ids::Role;
use common::model_config::{DraftConfig, TargetConfig};

use crate::plan::Plan;

/// Rows looked at for the averages.
const SAMPLE: usize = 4096;

/// A block's whole price in attention, forward and backward, in forwards.
const ATTENTION: f64 = 3.5;

/// What a token takes of a device, on average over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    /// Floating-point operations.
    pub(crate) flops: f64,
    /// Bytes read and written.
    pub(crate) bytes: f64,
}

/// A run's rows, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Averages {
    /// Keys that a token sees: half of its row.
    pub(crate) context: f64,
    /// Blocks for each token.
    pub(crate) blocks: f64,
    /// Tokens of a batch.
    pub(crate) batch: f64,
}

impl Averages {
    /// Looks at some of the rows, evenly spread.
    pub(crate) fn of(plan: &Plan) -> Averages {
        let most = f64::from(plan.models.config.training.num_anchors);
        let (mut tokens, mut squares, mut blocks) = (0.0, 0.0, 0.0);
        for (length, supervised) in plan.sample_rows(SAMPLE) {
            let (length, supervised) = (length as f64, supervised as f64);
            tokens += length;
            squares += length * length;
            blocks += supervised.min(most);
        }
        let batch = plan.whole().tokens as f64 / (plan.run.total_batches as f64).max(1.0);
        Averages { context: squares / tokens / 2.0, blocks: blocks / tokens, batch }
    }
}

/// What a token takes of the device of a worker.
pub(crate) fn of(role: Role, plan: &Plan, rows: &Averages) -> Work {
    let (config, run) = (&plan.models.config, &plan.run);
    match role {
        Role::Target => target(&run.target, &run.draft, config.model.torch_dtype, rows),
        Role::Drafter => drafter(&run.draft, config, rows),
    }
}

/// Widths of one layer.
struct Layer {
    hidden: f64,
    inner: f64,
    queries: f64,
    keys: f64,
}

impl Layer {
    /// Operations of the products that a row goes through.
    fn products(&self) -> f64 {
        let Layer { hidden, inner, queries, keys } = self;
        2.0 * hidden * (2.0 * queries + 2.0 * keys + 3.0 * inner)
    }

    /// Numbers that a row reads and writes on its way, when each operation reads its inputs and writes its outputs.
    fn traffic(&self) -> f64 {
        let Layer { hidden, inner, queries, keys } = self;
        10.0 * hidden + 6.0 * inner + 6.0 * queries + 6.0 * keys
    }
}

/// A forward pass up to the last tap: `L (products + 4 q context)` operations.
fn target(target: &TargetConfig, draft: &DraftConfig, dtype: Dtype, rows: &Averages) -> Work {
    let layers = draft.target_layer_ids.last().map_or(0, |last| last + 1) as f64;
    let head = target.head_dim as f64;
    let layer = Layer {
        hidden: target.hidden_size as f64,
        inner: target.intermediate_size as f64,
        queries: target.num_attention_heads as f64 * head,
        keys: target.num_key_value_heads as f64 * head,
    };
    let weights = layer.products() / 2.0 / rows.batch;
    Work {
        flops: layers * (layer.products() + 4.0 * layer.queries * rows.context),
        bytes: layers * (layer.traffic() + weights) * dtype.size() as f64,
    }
}

/// Forward, backward and update. For each of the B slots of a block: `L (3 products + 3.5 * 4 q (context + B))`, and for
/// the B - 1 that are scored `4 H V` (logits, and the gradient of the hidden states). For each token of the context:
/// `4 K H^2` (its projection, and that weight's gradient) and keys and values of every layer. AdamW moves 28 bytes a
/// parameter, the loss reads and writes its logits five times.
fn drafter(draft: &DraftConfig, config: &Config, rows: &Averages) -> Work {
    let (layers, taps, block) = (draft.num_hidden_layers as f64, draft.num_taps() as f64, draft.block_size as f64);
    let (head, vocabulary) = (draft.head_dim as f64, draft.vocab_size as f64);
    let layer = Layer {
        hidden: draft.hidden_size as f64,
        inner: draft.intermediate_size as f64,
        queries: draft.num_attention_heads as f64 * head,
        keys: draft.num_key_value_heads as f64 * head,
    };
    let (slots, scored) = (rows.blocks * block, rows.blocks * (block - 1.0));
    let attention = ATTENTION * 4.0 * layer.queries * (rows.context + block);
    let context = 4.0 * taps * layer.hidden * layer.hidden + 12.0 * layers * layer.hidden * layer.keys;
    let update = 28.0 * draft.parameter_count() as f64 / step_tokens(config, rows);
    let size = config.model.torch_dtype.size() as f64;
    Work {
        flops: slots * layers * (3.0 * layer.products() + attention)
            + scored * 4.0 * layer.hidden * vocabulary
            + context,
        bytes: size * (3.0 * slots * layers * layer.traffic() + 5.0 * scored * vocabulary + 3.0 * taps * layer.hidden)
            + update,
    }
}

/// Tokens of one drafter's share of a step.
fn step_tokens(config: &Config, rows: &Averages) -> f64 {
    let drafters = f64::from(config.run.workers(Role::Drafter));
    rows.batch * (f64::from(config.training.batches_per_step) / drafters).max(1.0)
}

#[cfg(test)]
pub(super) mod tests {
    use common::model_config::{Architecture, Rope, RopeScaling};

    use super::*;
    use crate::plan::tests::config;

    /// Qwen3-8B and its published drafter, rows of 3,072 tokens in batches of four, 512 anchors in each.
    pub(in super::super) fn qwen3_8b() -> [Work; 2] {
        let target_config = TargetConfig {
            architecture: Architecture::Qwen3,
            vocab_size: 151_936,
            hidden_size: 4096,
            intermediate_size: 12_288,
            num_hidden_layers: 36,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: 128,
            rms_norm_eps: 1e-6,
            rope: Rope { theta: 1e6, scaling: RopeScaling::Default },
            tie_word_embeddings: false,
            attention_bias: false,
            max_position_embeddings: 40_960,
            bos_token_id: None,
            eos_token_ids: vec![151_645],
        };
        let config = config(&[]);
        let draft = DraftConfig::resolve(&config.drafter, &target_config, 151_669).unwrap();
        let rows = Averages { context: 1536.0, blocks: 512.0 / 3072.0, batch: 12_288.0 };
        [target(&target_config, &draft, Dtype::Bfloat16, &rows), drafter(&draft, &config, &rows)]
    }

    #[test]
    fn operations_are_those_counted_by_hand() {
        let [target, drafter] = qwen3_8b();
        let close =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.01, "{found:e} {expected:e}");
        // 34 layers of 192.9 M weights, and the attention of 1,536 keys.
        close(target.flops, 34.0 * (2.0 * 192.9e6 + 4.0 * 4096.0 * 1536.0));
        // A step of 12,288 tokens: 190 TFLOP in the blocks' products, 77 in the head (15 of 16 slots), 7 for the context,
        // and 14.6 in attention.
        close(drafter.flops * 12_288.0, (189.6 + 76.5 + 7.2 + 14.6) * 1e12);
    }
}
