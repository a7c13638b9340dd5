//! The two sides of speculative decoding as real models, each with its cache.

use tch::{TchError, Tensor};

use super::{Propose, Verified, Verify};
use crate::drafter::Drafter;
use crate::nn::KvCache;
use crate::target::{Target, Vocabulary};

/// A target over one sequence.
pub(super) struct TargetSession<'a> {
    target: &'a Target,
    layers: &'a [usize],
    cache: KvCache,
}

impl<'a> TargetSession<'a> {
    /// `layers` are tapped.
    pub(super) fn new(target: &'a Target, layers: &'a [usize], capacity: usize) -> Result<Self, TchError> {
        Ok(TargetSession { target, layers, cache: target.new_cache(capacity)? })
    }
}

impl Verify for TargetSession<'_> {
    fn run(&mut self, tokens: &[u32]) -> Verified {
        let ids = ids(tokens).to_device(self.target.device());
        let step = tch::no_grad(|| self.target.step(&ids, &mut self.cache, self.layers));
        Verified { next: most_likely(&step.logits), taps: step.taps }
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
