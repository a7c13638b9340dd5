//! The two sides of speculative decoding as real models, each with its cache.

use tch::{TchError, Tensor};

use super::{Propose, Verified, Verify};
use crate::drafter::Drafter;
use crate::nn::KvCache;
use crate::target::{Step, Target, Vocabulary};

/// A target over one sequence.
pub(super) struct TargetSession<'a> {
    target: &'a Target,
    layers: &'a [usize],
    cache: KvCache,
}

/// [`Target::step`] or [`Target::prefill`].
type Forward = fn(&Target, &Tensor, &mut KvCache, &[usize]) -> Step;

impl<'a> TargetSession<'a> {
    /// `layers` are tapped.
    pub(super) fn new(target: &'a Target, layers: &'a [usize], capacity: usize) -> Result<Self, TchError> {
        Ok(TargetSession { target, layers, cache: target.new_cache(capacity)? })
    }

    fn pass(&mut self, forward: Forward, tokens: &[u32]) -> Verified {
        let ids = ids(tokens).to_device(self.target.device());
        let step = tch::no_grad(|| forward(self.target, &ids, &mut self.cache, self.layers));
        Verified { next: most_likely(&step.logits), taps: step.taps }
    }
}

impl Verify for TargetSession<'_> {
    fn run(&mut self, tokens: &[u32]) -> Verified {
        self.pass(Target::step, tokens)
    }

    fn start(&mut self, prompt: &[u32]) -> Verified {
        self.pass(Target::prefill, prompt)
    }

    fn keep(&mut self, length: usize) {
        self.cache.crop(length);
    }
}

/// A drafter over one sequence; embedding and head are the target's.
pub(super) struct DrafterSession<'a> {
    vocabulary: &'a Vocabulary,
    drafter: &'a Drafter,
    cache: KvCache,
}

impl<'a> DrafterSession<'a> {
    pub(super) fn new(vocabulary: &'a Vocabulary, drafter: &'a Drafter, capacity: usize) -> Result<Self, TchError> {
        Ok(DrafterSession { vocabulary, drafter, cache: drafter.new_cache(capacity)? })
    }
}

impl Propose for DrafterSession<'_> {
    fn propose(&mut self, taps: &Tensor, last: u32, count: usize) -> Vec<u32> {
        let mut block = vec![self.drafter.config().mask_token_id; count + 1];
        block[0] = last;
        let noise = self.vocabulary.embed(&ids(&block).to_device(taps.device()));
        let hidden = self.drafter.propose(taps, &noise, &mut self.cache);
        most_likely(&self.vocabulary.logits(&hidden.narrow(0, 1, count as i64)))
    }
}

fn ids(tokens: &[u32]) -> Tensor {
    Tensor::from_slice(&tokens.iter().map(|&token| i64::from(token)).collect::<Vec<_>>())
}

/// The highest score's id in each row of [n, V]; the lowest id among equals.
fn most_likely(logits: &Tensor) -> Vec<u32> {
    let ids = Vec::<i64>::try_from(logits.argmax(-1, false)).expect("argmax gives one row of i64");
    ids.into_iter().map(|id| id as u32).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use common::config::LayerType;
    use common::model_config::{DraftConfig, TargetConfig};
    use tch::{Device, Kind};

    use super::*;
    use crate::drafter::{BlockPlan, PackedRows};

    fn target() -> Target {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/qwen3-sharded");
        Target::load(&folder, &TargetConfig::read(&folder).unwrap(), Device::Cpu, Kind::Float).unwrap()
    }

    fn drafter(target: &TargetConfig) -> Drafter {
        let config = DraftConfig {
            block_size: 8,
            num_hidden_layers: 2,
            hidden_size: target.hidden_size,
            intermediate_size: 96,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 16,
            rms_norm_eps: 1e-6,
            rope_theta: 1e4,
            vocab_size: target.vocab_size,
            mask_token_id: 9,
            target_layer_ids: vec![1],
            num_target_layers: target.num_hidden_layers,
            layer_types: vec![LayerType::FullAttention; 2],
            sliding_window: None,
            max_position_embeddings: 64,
            bos_token_id: None,
            eos_token_ids: vec![],
        };
        let drafter = Drafter::new(&config, 5, Device::Cpu, Kind::Float).unwrap();
        let matrices = drafter.parameters().named().iter().filter(|(_, leaf)| leaf.dim() == 2);
        // Ten times as large, everything visible matters.
        tch::no_grad(|| matrices.for_each(|(_, leaf)| drop(leaf.shallow_clone().g_mul_scalar_(10.0))));
        drafter
    }

    /// The drafts behind an anchor are what training would predict there, slot by slot.
    #[test]
    fn drafts_are_what_the_training_forward_predicts() {
        let target = target();
        let drafter = drafter(target.config());
        let vocabulary = target.vocabulary();
        let tokens: Vec<u32> = (0..20).map(|place| (place * 37 + 11) % 160).collect();
        let rows = PackedRows { token_ids: &tokens, loss_mask: &[1; 20], document_offsets: &[0, 20], row_ids: &[0] };
        let taps = TargetSession::new(&target, &[1], 20).unwrap().run(&tokens).taps;
        let anchors: Vec<usize> = (1..19).collect();
        let plan = BlockPlan::new(&rows, &anchors, &drafter.plan_options());
        let noise = vocabulary.embed(&plan.token_ids);
        let hidden = drafter.forward(&taps, &noise, &plan);
        for (block, anchor) in (1..19).enumerate() {
            let predicted = most_likely(&vocabulary.logits(&hidden.get(plan.places[block] as i64)));
            let mut session = DrafterSession::new(vocabulary, &drafter, 4).unwrap();
            let drafts = session.propose(&taps.narrow(0, 0, anchor), tokens[anchor as usize], 7);
            assert_eq!(drafts, predicted[1..], "anchor {anchor}");
        }
    }
}
