//! What decoding held-out prompts takes: both models whole, one sequence at a time.

use super::target::Widths;
use super::{Footprint, LIBRARIES, LIBRARY_BYTES};
use crate::config::Config;
use crate::run_plan::RunPlan;

/// In float32 if the lossless check asks for it: after training, the most that is there at one time.
pub(super) fn footprint(config: &Config, plan: &RunPlan) -> Footprint {
    let (target, draft) = (&plan.target, &plan.draft);
    let size = if config.evaluation.lossless_check { 4 } else { config.model.torch_dtype.size() };
    let widths = Widths::of(target);
    let tables = if target.tie_word_embeddings { 1 } else { 2 };
    let table = (target.vocab_size * target.hidden_size) as u64;
    let prompt = u64::from(config.data.max_length);
    let length = prompt + u64::from(config.evaluation.max_new_tokens) + draft.block_size as u64;
    let draft_keys = (draft.num_key_value_heads * draft.head_dim * draft.num_hidden_layers) as u64;
    let cached = 2 * (widths.keys * target.num_hidden_layers as u64 + draft_keys);
    Footprint::new([
        (LIBRARIES, LIBRARY_BYTES),
        ("the target's embedding and head", tables * table * size),
        ("the target's layers", target.num_hidden_layers as u64 * widths.layer(target) * size),
        // Its gradients have their place, though nobody asks for them.
        ("the drafter", draft.parameter_count() * (size + 4)),
        ("keys and values", length * cached * size),
        ("a prompt's activations", prompt * (widths.widest() * size + widths.tables())),
    ])
}
