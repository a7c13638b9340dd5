//! Decoding with a drafter: it sees what training showed it (spec 7.11), and it never changes the text (7.13, 7.14).

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod tiny;

use std::path::Path;

use common::model_config::{DraftConfig, TargetConfig};
use model::drafter::Drafter;
use model::speculate::{self, Generation, Limits, Propose, Verified, Verify};
use model::target::Target;
use tch::{Device, Kind, Tensor};
use tiny::{Batch, KINDS, config, difference, drafter, given};

const BLOCK: usize = 4;

/// One block anchored at `start`, with the context pushed into the cache in pieces that end at `pieces`.
fn proposed(batch: &Batch, drafter: &Drafter, pieces: &[usize]) -> Tensor {
    let mut cache = drafter.new_cache(1).unwrap();
    let (mut past, mut hidden) = (0, Tensor::new());
    for &start in pieces {
        let taps = batch.taps.narrow(0, past as i64, (start - past) as i64);
        let plan = batch.plan(drafter, &[start]);
        let noise = batch.embed(&given(&plan.token_ids, &plan).view(-1));
        hidden = drafter.propose(&taps, &noise, &mut cache);
        assert_eq!(cache.len(), start, "the block itself is not kept");
        past = start;
    }
    hidden
}

/// Invariant A11: also behind a cache that earlier steps filled, whole or partly accepted blocks alike.
#[test]
fn training_forward_equals_inference_step() {
    for kinds in KINDS {
        let (batch, drafter) = (Batch::new(&[24], 2), drafter(&config(kinds, BLOCK), 2));
        for pieces in [&[1][..], &[9], &[3, 5, 9], &[8, 9], &[6, 10, 11, 15, 19]] {
            let trained = batch.hidden(&drafter, &[*pieces.last().unwrap()]).get(0);
            let error = difference(&trained, &proposed(&batch, &drafter, pieces));
            assert!(error < 1e-5, "{kinds:?}, context in pieces to {pieces:?}: {error}");
        }
    }
}

/// Among other blocks and documents it is still the same block.
#[test]
fn training_forward_of_a_packed_batch_equals_inference_steps() {
    for kinds in KINDS {
        let (packed, drafter) = (Batch::new(&[5, 17], 4), drafter(&config(kinds, BLOCK), 4));
        let hidden = packed.hidden(&drafter, &[2, 6, 9, 14]);
        let alone = Batch {
            token_ids: packed.token_ids[5..].to_vec(),
            loss_mask: vec![1; 17],
            document_offsets: vec![0, 17],
            row_ids: vec![0],
            taps: packed.taps.narrow(0, 5, 17),
            ..Batch::new(&[1], 4)
        };
        for (block, start) in [(1, 1), (2, 4), (3, 9)] {
            let error = difference(&hidden.get(block), &proposed(&alone, &drafter, &[start]));
            assert!(error < 1e-5, "{kinds:?}, start {start}: {error}");
        }
    }
}

fn target(name: &str) -> Target {
    tch::set_num_threads(1); // at this size threads only wait for each other
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
    Target::load(&folder, &TargetConfig::read(&folder).unwrap(), Device::Cpu, Kind::Float).unwrap()
}

fn limits(max_new_tokens: usize) -> Limits {
    Limits { max_new_tokens, stop_ids: vec![] }
}

/// Greedy decoding with no cache at all: each token from a pass over the whole text.
fn by_whole_passes(target: &Target, prompt: &[u32], new_tokens: usize) -> Vec<u32> {
    let mut text: Vec<i64> = prompt.iter().map(|token| i64::from(*token)).collect();
    for _ in 0..new_tokens {
        let mut cache = target.new_cache(text.len()).unwrap();
        let step = target.step(&Tensor::from_slice(&text), &mut cache, &[]);
        text.push(step.logits.get(-1).argmax(-1, false).int64_value(&[]));
    }
    text[prompt.len()..].iter().map(|token| *token as u32).collect()
}

/// A random drafter for `target`.
fn random_drafter(target: &Target, block_size: usize) -> Drafter {
    let draft = DraftConfig {
        hidden_size: target.config().hidden_size,
        vocab_size: target.config().vocab_size,
        ..config(KINDS[2], block_size)
    };
    drafter(&draft, 6)
}

/// Spec 7.13.
#[test]
fn two_hundred_tokens_are_the_targets_own_whatever_the_drafter_says() {
    for name in ["llama-untied-llama3", "qwen3-sharded"] {
        let target = target(name);
        let prompt = [3, 14, 15, 92, 65, 35];
        let expected = by_whole_passes(&target, &prompt, 200);
        let plain = speculate::plain(&target, &prompt, &limits(200)).unwrap();
        assert_eq!(plain.tokens, expected, "{name}, plain");
        assert_eq!(plain.verifies, 199);
        for block_size in [2, 8] {
            let drafted =
                speculate::drafted(&target, &random_drafter(&target, block_size), &prompt, &limits(200)).unwrap();
            assert_eq!(drafted.tokens, expected, "{name}, blocks of {block_size}");
        }
    }
}

#[test]
fn a_stop_token_ends_drafted_and_plain_text_alike() {
    let target = target("qwen3-sharded");
    let expected = by_whole_passes(&target, &[7, 8, 9], 40);
    let stop = expected[25];
    let until = 1 + expected.iter().position(|token| *token == stop).unwrap();
    let limits = Limits { max_new_tokens: 40, stop_ids: vec![stop] };
    let drafted = speculate::drafted(&target, &random_drafter(&target, 4), &[7, 8, 9], &limits).unwrap();
    assert_eq!(drafted.tokens, expected[..until]);
    assert_eq!(speculate::plain(&target, &[7, 8, 9], &limits).unwrap().tokens, expected[..until]);
}

/// A target over one sequence through the public face, as another program would write it.
struct Session<'a> {
    target: &'a Target,
    cache: model::nn::KvCache,
}

impl Verify for Session<'_> {
    fn run(&mut self, tokens: &[u32]) -> Verified {
        let ids: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let step = self.target.step(&Tensor::from_slice(&ids), &mut self.cache, &[]);
        let next = Vec::<i64>::try_from(step.logits.argmax(-1, false)).unwrap();
        Verified { next: next.into_iter().map(|token| token as u32).collect(), taps: step.taps }
    }

    fn keep(&mut self, length: usize) {
        self.cache.crop(length);
    }
}

/// Says what `says` at each place of the text.
struct Oracle<'a> {
    says: &'a dyn Fn(usize) -> u32,
    place: usize,
}

impl Propose for Oracle<'_> {
    fn propose(&mut self, taps: &Tensor, _last: u32, count: usize) -> Vec<u32> {
        self.place += taps.size()[0] as usize;
        (1..=count).map(|ahead| (self.says)(self.place + ahead)).collect()
    }
}

/// Spec 7.14: with real caches on the target's side, an oracle is accepted whole, one that is always wrong never, and one that errs
/// sometimes gives the same text in between.
#[test]
fn oracle_drafts() {
    let target = target("llama-untied-llama3");
    let prompt = [3, 14, 15];
    let expected = by_whole_passes(&target, &prompt, 85);
    let known = |place: usize| expected[(place - prompt.len()).min(84)];
    let wrong = |place: usize| (known(place) + 1) % target.config().vocab_size as u32;
    let decoded = |says: &dyn Fn(usize) -> u32| -> Generation {
        let mut session = Session { target: &target, cache: target.new_cache(8).unwrap() };
        let generation = speculate::generate(&mut session, &mut Oracle { says, place: 0 }, 4, &prompt, &limits(85));
        assert_eq!(generation.tokens, expected);
        generation
    };
    assert_eq!(decoded(&known).verifies, 21, "84 tokens in blocks of 4");
    assert_eq!(decoded(&wrong).verifies, 84, "one token a step");
    let sometimes = decoded(&|place| if place % 5 == 0 { wrong(place) } else { known(place) }).verifies;
    assert!((22..60).contains(&sometimes), "{sometimes}");
}
