//! Greedy speculative decoding: draft a block, verify it with one target pass, keep what the target agrees with
//! (spec 4.1 to 4.3). The output is the target's own greedy output whatever the drafter says; a bad drafter costs time.
//!
//! `start` is the last committed token's index. Its hidden states are not known yet: it heads the next block. Both
//! caches hold the positions before it.

mod session;

use std::time::{Duration, Instant};

use tch::{TchError, Tensor};

use crate::drafter::Drafter;
use crate::target::Target;
use session::{DrafterSession, TargetSession};

/// The side that decides: a target over one sequence.
pub trait Verify {
    /// Runs tokens behind those it holds, and holds them too.
    fn run(&mut self, tokens: &[u32]) -> Verified;
    /// The same for a prompt; `next` may then hold the last token's successor alone.
    fn start(&mut self, prompt: &[u32]) -> Verified {
        self.run(prompt)
    }
    /// Forgets all but the first `length` tokens.
    fn keep(&mut self, length: usize);
}

/// What a target pass says about each of its tokens.
pub struct Verified {
    /// The most likely successor of each; the lowest id among equals.
    pub next: Vec<u32>,
    /// Tapped hidden states of each, [tokens, K*H].
    pub taps: Tensor,
}

/// The side that guesses: a drafter over one sequence.
pub trait Propose {
    /// `count` guesses for what follows `last`, the committed token right behind the positions whose taps it has been
    /// given: `taps` [m, K*H] are those of the positions it has not seen yet.
    fn propose(&mut self, taps: &Tensor, last: u32, count: usize) -> Vec<u32>;
}

/// When decoding ends, and how far it looks ahead.
#[derive(Clone, Debug)]
pub struct Limits {
    /// New tokens at most, the prompt pass's own included.
    pub max_new_tokens: usize,
    /// Tokens that end the text; they are part of it.
    pub stop_ids: Vec<u32>,
}

/// One prompt's continuation.
#[derive(Clone, Debug)]
pub struct Generation {
    /// New tokens. The first comes from the prompt's own pass, the others from verifications.
    pub tokens: Vec<u32>,
    /// Target passes after the prompt's. The accepted length is (tokens - 1) / verifies, pooled over prompts.
    pub verifies: usize,
    /// Time after the prompt's pass.
    pub decoding: Duration,
}

/// Decodes with a drafter, in blocks of its size.
///
/// # Errors
/// No memory for the caches.
pub fn drafted(target: &Target, drafter: &Drafter, prompt: &[u32], limits: &Limits) -> Result<Generation, TchError> {
    let capacity = prompt.len() + limits.max_new_tokens;
    let mut verify = TargetSession::new(target, &drafter.config().target_layer_ids, capacity)?;
    let mut propose = DrafterSession::new(target.vocabulary(), drafter, capacity)?;
    Ok(generate(&mut verify, &mut propose, drafter.config().block_size, prompt, limits))
}

/// Decodes without a drafter, token by token.
///
/// # Errors
/// No memory for the cache.
pub fn plain(target: &Target, prompt: &[u32], limits: &Limits) -> Result<Generation, TchError> {
    let mut verify = TargetSession::new(target, &[], prompt.len() + limits.max_new_tokens)?;
    Ok(generate(&mut verify, &mut Nothing, 1, prompt, limits))
}

/// Decodes in blocks of `block_size` tokens, the committed one included. A last block is cut to the tokens that are still
/// wanted; a block of one is a plain decoding step and asks for no draft.
pub fn generate(
    verify: &mut impl Verify,
    propose: &mut impl Propose,
    block_size: usize,
    prompt: &[u32],
    limits: &Limits,
) -> Generation {
    let Verified { next, mut taps } = verify.start(prompt);
    let began = Instant::now();
    let mut tokens = vec![*next.last().expect("a prompt has tokens")];
    let mut start = prompt.len();
    let mut verifies = 0;
    while tokens.len() < limits.max_new_tokens && !limits.stops(&tokens) {
        let last = tokens[tokens.len() - 1];
        let width = block_size.min(limits.max_new_tokens - tokens.len());
        let mut block = vec![last];
        if width > 1 {
            block.extend(propose.propose(&taps, last, width - 1));
        }
        let verified = verify.run(&block);
        let committed = limits.cut(agreed(&block[1..], &verified.next));
        verifies += 1;
        tokens.extend_from_slice(committed);
        start += committed.len();
        verify.keep(start);
        taps = verified.taps.narrow(0, 0, committed.len() as i64);
    }
    Generation { tokens, verifies, decoding: began.elapsed() }
}

/// The drafts that the target would have said itself, up to the first miss, then its own next token. A draft that is right
/// behind a miss was right about another text.
fn agreed<'a>(drafts: &[u32], next: &'a [u32]) -> &'a [u32] {
    let accepted = drafts.iter().zip(next).take_while(|(draft, next)| draft == next).count();
    &next[..=accepted]
}

impl Limits {
    fn stops(&self, tokens: &[u32]) -> bool {
        tokens.last().is_some_and(|last| self.stop_ids.contains(last))
    }

    /// Up to the first stop token, itself included.
    fn cut<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        let stop = tokens.iter().position(|token| self.stop_ids.contains(token));
        &tokens[..stop.map_or(tokens.len(), |index| index + 1)]
    }
}

/// Proposes for blocks of one, which ask for nothing.
struct Nothing;

impl Propose for Nothing {
    fn propose(&mut self, _taps: &Tensor, _last: u32, _count: usize) -> Vec<u32> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
