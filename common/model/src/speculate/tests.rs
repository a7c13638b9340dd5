//! The decoding loop against scripted sides: spec 7.12's traces, and oracle drafters (7.14).

use tch::{Device, Kind};

use super::*;

const STOP: u32 = 7;

/// A target that continues its prompt by `script` as long as it is fed its own words, and else says 999. The tap of a
/// token is its position.
struct Scripted {
    script: Vec<u32>,
    held: Vec<u32>,
    prompt: usize,
    lengths: Vec<usize>,
}

impl Scripted {
    fn new(script: &[u32]) -> Scripted {
        Scripted { script: script.to_vec(), held: vec![], prompt: 0, lengths: vec![] }
    }
}

impl Verify for Scripted {
    fn run(&mut self, tokens: &[u32]) -> Verified {
        let first = self.held.len();
        if first == 0 {
            self.prompt = tokens.len();
        }
        let mut next = vec![];
        for token in tokens {
            self.held.push(*token);
            let said = &self.held[self.prompt.min(self.held.len())..];
            next.push(if self.script.starts_with(said) { self.script[said.len()] } else { 999 });
        }
        let positions = Tensor::arange_start(first as i64, self.held.len() as i64, (Kind::Int64, Device::Cpu));
        Verified { next, taps: positions.unsqueeze(1) }
    }

    fn keep(&mut self, length: usize) {
        assert!(length <= self.held.len());
        self.held.truncate(length);
        self.lengths.push(length);
    }
}

/// A drafter that says prepared lines and notes what it was given: positions of taps, last token, count.
struct Prepared {
    lines: Vec<Vec<u32>>,
    given: Vec<(Vec<i64>, u32, usize)>,
}

impl Prepared {
    fn new(lines: &[&[u32]]) -> Prepared {
        Prepared { lines: lines.iter().rev().map(|line| line.to_vec()).collect(), given: vec![] }
    }
}

impl Propose for Prepared {
    fn propose(&mut self, taps: &Tensor, last: u32, count: usize) -> Vec<u32> {
        self.given.push((Vec::try_from(taps.view(-1)).unwrap(), last, count));
        let line = self.lines.pop().expect("a prepared line for each block");
        assert_eq!(line.len(), count);
        line
    }
}

fn limits(max_new_tokens: usize) -> Limits {
    Limits { max_new_tokens, stop_ids: vec![STOP] }
}

/// Prompt of 3 tokens, target continuation 13 14 15 ..., B=4.
fn trace(drafts: &[&[u32]], max_new_tokens: usize) -> (Generation, Scripted, Prepared) {
    let mut target = Scripted::new(&(13..60).collect::<Vec<_>>());
    let mut drafter = Prepared::new(drafts);
    let generation = generate(&mut target, &mut drafter, 4, &[1, 2, 3], &limits(max_new_tokens));
    (generation, target, drafter)
}

/// One right draft, one wrong, one right by luck: the lucky one is not counted.
#[test]
fn a_partial_acceptance_commits_the_prefix_and_the_bonus() {
    let (generation, target, drafter) = trace(&[&[14, 99, 16], &[16, 17, 18]], 7);
    assert_eq!(generation.tokens, [13, 14, 15, 16, 17, 18, 19]);
    assert_eq!(drafter.given, [(vec![0, 1, 2], 13, 3), (vec![3, 4], 15, 3)]);
    assert_eq!(target.lengths, [5, 9]);
    assert_eq!(generation.verifies, 2);
}

#[test]
fn a_whole_block_commits_the_bonus_too() {
    let (generation, target, drafter) = trace(&[&[14, 15, 16], &[18, 19, 20]], 9);
    assert_eq!(generation.tokens, (13..22).collect::<Vec<_>>());
    assert_eq!(target.lengths, [7, 11]);
    assert_eq!(drafter.given[1], (vec![3, 4, 5, 6], 17, 3));
}

#[test]
fn an_all_wrong_block_commits_the_bonus_alone() {
    let (generation, target, drafter) = trace(&[&[0, 0, 0], &[0, 0, 0], &[0, 0], &[0]], 6);
    assert_eq!(generation.tokens[..3], [13, 14, 15]);
    assert_eq!(target.lengths[..2], [4, 5]);
    assert_eq!(drafter.given[1], (vec![3], 14, 3));
}

/// Only as many tokens are drafted as are still wanted; the last step, for one token, drafts nothing.
#[test]
fn the_last_blocks_shrink_to_what_is_wanted() {
    let (generation, _, drafter) = trace(&[&[0, 0, 0], &[0, 0], &[0]], 5);
    assert_eq!(generation.tokens, [13, 14, 15, 16, 17]);
    assert_eq!(drafter.given.iter().map(|given| given.2).collect::<Vec<_>>(), [3, 2, 1]);
    assert_eq!(generation.verifies, 4);
}

#[test]
fn nothing_follows_a_stop_token() {
    let ended = |script: &[u32], drafts: &[&[u32]]| {
        let mut target = Scripted::new(script);
        let generation = generate(&mut target, &mut Prepared::new(drafts), 4, &[1, 2, 3], &limits(20));
        (generation.tokens, generation.verifies, target.lengths)
    };
    let accepted = ended(&[13, 14, STOP, 16, 17, 18], &[&[14, STOP, 16]]);
    assert_eq!(accepted, (vec![13, 14, STOP], 1, vec![5]), "in an accepted slot");
    let bonus = ended(&[13, 14, STOP, 16, 17, 18], &[&[14, 0, 0]]);
    assert_eq!(bonus, (vec![13, 14, STOP], 1, vec![5]), "as the bonus");
    assert_eq!(ended(&[STOP, 14], &[]), (vec![STOP], 0, vec![]), "as the first token");
}

/// Spec 7.14 with scripted sides.
#[test]
fn oracle_drafts_accept_whole_blocks_and_impossible_ones_nothing() {
    struct Oracle(Option<u32>);
    impl Propose for Oracle {
        fn propose(&mut self, _taps: &Tensor, last: u32, count: usize) -> Vec<u32> {
            (1..=count as u32).map(|ahead| self.0.unwrap_or(last + ahead)).collect()
        }
    }
    let script: Vec<u32> = (13..200).collect();
    for (block_size, impossible, verifies) in [(4, None, 25), (4, Some(0), 100), (10, None, 10), (1, None, 100)] {
        let mut target = Scripted::new(&script);
        let generation = generate(&mut target, &mut Oracle(impossible), block_size, &[1], &limits(101));
        assert_eq!(generation.tokens, script[..101]);
        assert_eq!(generation.verifies, verifies);
    }
}
