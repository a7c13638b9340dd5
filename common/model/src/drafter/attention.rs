//! Attention from blocks to context and to themselves, without ever building the [N*B, T+N*B] mask.
//!
//! Neighbouring blocks of one document form a group. A group's queries meet the document's tokens up to the group's last
//! anchor and the group's own slots, under one small mask. With anchors in order this halves the work on the context, and
//! it is exact: what the group's keys leave out, no block of it may see.
//!
//! Keys are cut into segments at every group's ends with one split, and joined per group: autograd then adds gradients
//! up segment by segment, where a slice per group would fill a tensor of all T keys with zeros each time. The query heads
//! that share a key head are folded into the query axis, so keys are never repeated.
//!
//! Shape letters: T context tokens, Q slots in all, hd head dimension.

use std::collections::BTreeSet;
use std::ops::Range;

use tch::Tensor;

use super::anchors::{Block, PackedRows};
use super::mask::{Visibility, additive};
use super::plan::PlanOptions;

/// How the queries of a step meet its keys, for layers of one visibility.
pub struct AttentionPlan {
    visibility: Visibility,
    /// Key rows of each piece: the context's segments, then each group's slots. They sum to T + Q.
    key_lengths: Vec<i64>,
    /// Query rows of each group. They sum to Q.
    query_lengths: Vec<i64>,
    groups: Vec<Group>,
}

struct Group {
    /// Which of the context's segments it meets.
    segments: Range<usize>,
    /// Additive, [query heads per key head * queries, keys].
    mask: Tensor,
}

impl AttentionPlan {
    /// The visibility it was made for.
    pub fn visibility(&self) -> Visibility {
        self.visibility
    }

    /// Groups of up to `options.group_blocks` neighbouring blocks of one document.
    pub(super) fn grouped(
        rows: &PackedRows,
        blocks: &[Block],
        options: &PlanOptions,
        rule: Visibility,
    ) -> AttentionPlan {
        let groups = group(rows, blocks, options.group_blocks);
        let contexts: Vec<_> = groups.iter().map(|range| context(rows, &blocks[range.clone()], rule)).collect();
        let cuts = Cuts::new(&contexts, rows.token_ids.len());
        let widest = groups.iter().map(Range::len).max().unwrap_or(0) as i64;
        let block_size = options.block_size as i64;
        let in_block = rule.block_mask(widest, block_size, options.device);
        let query_lengths: Vec<i64> = groups.iter().map(|range| range.len() as i64 * block_size).collect();
        let masks = groups.iter().zip(&contexts).zip(&query_lengths).map(|((range, context), &queries)| {
            let anchors: Vec<i64> = blocks[range.clone()].iter().map(|block| block.anchor as i64).collect();
            let keys = context.start as i64..context.end as i64;
            let in_context = rule.context_mask(&anchors, block_size, keys, options.device);
            let in_block = in_block.narrow(0, 0, queries).narrow(1, 0, queries);
            fold(&Tensor::cat(&[in_context, in_block], 1), options)
        });
        let groups =
            masks.zip(&contexts).map(|(mask, context)| Group { segments: cuts.segments(context), mask }).collect();
        let key_lengths = cuts.lengths().chain(query_lengths.iter().copied()).collect();
        AttentionPlan { visibility: rule, key_lengths, query_lengths, groups }
    }

    /// One group of everything, its mask written cell by cell from the predicate.
    pub(super) fn dense(rows: &PackedRows, blocks: &[Block], options: &PlanOptions, rule: Visibility) -> AttentionPlan {
        let (tokens, size) = (rows.token_ids.len(), options.block_size);
        let queries = blocks.len() * size;
        let visible = |query: usize, key: usize| {
            let (block, slot) = (blocks[query / size], query % size);
            if key >= tokens {
                let key = key - tokens;
                return key / size == query / size && rule.sees_slot(slot, key % size);
            }
            let same_document = rows.document_of(key) == rows.document_of(block.anchor);
            block.keep && same_document && rule.sees_context(block.anchor, slot, key)
        };
        let cells: Vec<bool> = (0..queries)
            .flat_map(|query| (0..tokens + queries).map(move |key| (query, key)))
            .map(|(q, k)| visible(q, k))
            .collect();
        let mask = Tensor::from_slice(&cells).view([queries as i64, -1]).to_device(options.device);
        AttentionPlan {
            visibility: rule,
            key_lengths: vec![tokens as i64, queries as i64],
            query_lengths: vec![queries as i64],
            groups: vec![Group { segments: 0..1, mask: fold(&mask, options) }],
        }
    }

    /// q [heads, Q, hd], k and v [key heads, T + Q, hd], context first -> [Q, heads * hd].
    pub(super) fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let queries = q.split_with_sizes(&self.query_lengths, 1);
        let keys = k.split_with_sizes(&self.key_lengths, 1);
        let values = v.split_with_sizes(&self.key_lengths, 1);
        let first_block = self.key_lengths.len() - self.groups.len();
        let outputs: Vec<Tensor> = (0..self.groups.len())
            .map(|index| {
                let group = &self.groups[index];
                let joined = |pieces: &[Tensor]| {
                    let context = pieces[group.segments.clone()].iter();
                    Tensor::cat(&context.chain([&pieces[first_block + index]]).collect::<Vec<_>>(), 1)
                };
                attend(&queries[index], &joined(&keys), &joined(&values), Some(&group.mask))
            })
            .collect();
        Tensor::cat(&outputs, 0)
    }
}

/// q [heads, n, hd], k and v [key heads, m, hd], mask additive [heads / key heads * n, m] -> [n, heads * hd].
pub(super) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Tensor {
    let (heads, queries, head_dim) = q.size3().expect("q is [heads, n, hd]");
    let folded = q.reshape([1, k.size()[0], -1, head_dim]);
    let (k, v) = (k.unsqueeze(0), v.unsqueeze(0));
    let mixed = Tensor::scaled_dot_product_attention(&folded, &k, &v, mask, 0.0, false, None, false);
    mixed.reshape([heads, queries, head_dim]).transpose(0, 1).reshape([queries, -1])
}

/// One block behind a cache: q [heads, n, hd], k and v [key heads, past + n, hd], the block's own slots last.
pub(super) fn behind_cache(q: &Tensor, k: &Tensor, v: &Tensor, rule: Visibility) -> Tensor {
    if rule == Visibility::EVERYTHING {
        return attend(q, k, v, None);
    }
    let (slots, device) = (q.size()[1], q.device());
    let start = k.size()[1] - slots;
    let context = rule.context_mask(&[start], slots, 0..start, device);
    let mask = additive(&Tensor::cat(&[context, rule.block_mask(1, slots, device)], 1), q.kind());
    attend(q, k, v, Some(&mask.repeat([q.size()[0] / k.size()[0], 1])))
}

/// The additive mask of queries whose heads are folded: once per query head of a key head.
fn fold(visible: &Tensor, options: &PlanOptions) -> Tensor {
    additive(visible, options.kind).repeat([options.heads_per_key as i64, 1])
}

/// Runs of at most `size` neighbouring blocks that lie in one document and are all kept or all not.
fn group(rows: &PackedRows, blocks: &[Block], size: usize) -> Vec<Range<usize>> {
    let alike = |left: &Block, right: &Block| {
        left.keep == right.keep && (!left.keep || rows.document_of(left.anchor) == rows.document_of(right.anchor))
    };
    let mut groups = Vec::new();
    let mut start = 0;
    for run in blocks.chunk_by(alike) {
        let end = start + run.len();
        groups.extend((start..end).step_by(size).map(|first| first..end.min(first + size)));
        start = end;
    }
    groups
}

/// The tokens that some block of a group may see.
fn context(rows: &PackedRows, blocks: &[Block], rule: Visibility) -> Range<usize> {
    let anchors = || blocks.iter().filter(|block| block.keep).map(|block| block.anchor);
    let (Some(first), Some(last)) = (anchors().min(), anchors().max()) else { return 0..0 };
    let document_start = rows.document(rows.document_of(first)).start;
    document_start.max(rule.first_context(first)).min(last)..last
}

/// Where the context is cut, so that each group's part is a run of whole segments.
struct Cuts(Vec<usize>);

impl Cuts {
    fn new(contexts: &[Range<usize>], tokens: usize) -> Cuts {
        let ends = contexts.iter().flat_map(|context| [context.start, context.end]);
        Cuts(ends.chain([0, tokens]).collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn lengths(&self) -> impl Iterator<Item = i64> {
        self.0.windows(2).map(|pair| (pair[1] - pair[0]) as i64)
    }

    fn segments(&self, context: &Range<usize>) -> Range<usize> {
        let index = |cut: &usize| self.0.binary_search(cut).expect("both ends of a group's context are cuts");
        index(&context.start)..index(&context.end)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    const BLOCK: usize = 3;
    const RULES: [Visibility; 3] = [
        Visibility::EVERYTHING,
        Visibility { window: Some(4), causal: true },
        Visibility { window: Some(2), causal: false },
    ];

    fn options(group_blocks: usize, rule: Visibility) -> PlanOptions {
        PlanOptions {
            block_size: BLOCK,
            mask_token_id: 0,
            group_blocks,
            heads_per_key: 2,
            visibilities: vec![rule],
            kind: Kind::Float,
            device: Device::Cpu,
        }
    }

    /// What each slot sees, read off the output: without scores attention is the mean of what is visible, and here value
    /// c is the c-th unit vector. One line of 0 and 1 per slot: context, then all slots.
    fn seen(plan: &AttentionPlan, tokens: usize, blocks: usize) -> Vec<String> {
        let (keys, queries) = (tokens + blocks * BLOCK, blocks * BLOCK);
        let floats = (Kind::Float, Device::Cpu);
        let values = Tensor::eye(keys as i64, floats);
        // The second key head's values are twice the first's: a query head must meet its own.
        let values = Tensor::stack(&[&values, &(&values * 2.0)], 0);
        let q = Tensor::zeros([4, queries as i64, keys as i64], floats);
        let mixed = plan.attend(&q, &Tensor::randn_like(&values), &values).view([queries as i64, 4, -1]);
        for (head, scale) in [(1, 1.0), (2, 2.0), (3, 2.0)] {
            assert!(mixed.select(1, head).allclose(&(mixed.select(1, 0) * scale), 1e-6, 1e-6, false), "head {head}");
        }
        let visible = |row: i64| {
            let weights = Vec::<f32>::try_from(mixed.select(1, 0).get(row)).unwrap();
            let count = weights.iter().filter(|weight| **weight > 0.0).count() as f32;
            assert!(weights.iter().all(|weight| *weight == 0.0 || (weight * count - 1.0).abs() < 1e-5), "a plain mean");
            weights.iter().map(|weight| if *weight > 0.0 { '1' } else { '0' }).collect()
        };
        (0..queries as i64).map(visible).collect()
    }

    fn rows<'a>(document_offsets: &'a [u32], row_ids: &'a [u64]) -> PackedRows<'a> {
        let tokens = *document_offsets.last().unwrap() as usize;
        PackedRows { token_ids: &[5; 16][..tokens], loss_mask: &[1; 16][..tokens], document_offsets, row_ids }
    }

    fn kept(anchors: &[usize]) -> Vec<Block> {
        anchors.iter().map(|&anchor| Block { anchor, keep: true }).collect()
    }

    /// Spec 7.8 with 7.1's case: S=6, anchors [2,4], B=3.
    #[test]
    fn a_uniform_probe_reads_the_mask() {
        let rows = rows(&[0, 6], &[0]);
        let plan = AttentionPlan::grouped(&rows, &kept(&[2, 4]), &options(8, RULES[0]), RULES[0]);
        let (first, second) = ("110000111000", "111100000111");
        assert_eq!(seen(&plan, 6, 2), [first, first, first, second, second, second]);
        let plan = AttentionPlan::grouped(&rows, &kept(&[2, 4]), &options(8, RULES[1]), RULES[1]);
        let sliding = ["110000100000", "110000110000", "010000111000", "011100000100", "001100000110", "000100000111"];
        assert_eq!(seen(&plan, 6, 2), sliding);
    }

    /// Spec 7.2: documents of 3 and 3 tokens.
    #[test]
    fn a_block_sees_its_own_document_only() {
        let plan = AttentionPlan::grouped(&rows(&[0, 3, 6], &[0, 1]), &kept(&[2, 4]), &options(8, RULES[0]), RULES[0]);
        let (first, second) = ("110000111000", "000100000111");
        assert_eq!(seen(&plan, 6, 2), [first, first, first, second, second, second]);
    }

    /// Groups of any size, over documents, in any order, with fillers: what the dense mask shows.
    #[test]
    fn groups_show_what_the_dense_mask_shows() {
        let rows = rows(&[0, 7, 9, 16], &[0, 1, 2]);
        let filler = Block { anchor: 0, keep: false };
        let mut blocks = kept(&[0, 1, 5, 5, 3, 7, 9, 12, 15]);
        blocks.insert(2, filler);
        blocks.push(filler);
        for rule in RULES {
            let expected = seen(&AttentionPlan::dense(&rows, &blocks, &options(1, rule), rule), 16, blocks.len());
            assert!(expected.iter().all(|line| line.contains('1')), "no slot is blind");
            for size in [1, 2, 3, 32] {
                let plan = AttentionPlan::grouped(&rows, &blocks, &options(size, rule), rule);
                assert_eq!(seen(&plan, 16, blocks.len()), expected, "groups of {size}, {rule:?}");
            }
        }
    }
}
