//! Attention from blocks to context and to themselves, without ever building the [N*B, T+N*B] mask.
//!
//! Neighbouring blocks of one document form a group. A group's queries meet the document's tokens up to the group's last
//! anchor and the group's own slots, under one small mask. With anchors in order this halves the work on the context, and
//! it is exact: what the group's keys leave out, no block of it may see. The g-th groups of all documents of a class are
//! one call (see `layout`), so the number of calls does not depend on the number of documents.
//!
//! A class's context is cut into segments at its calls' ends with one split, and joined per call: autograd then adds
//! gradients up segment by segment, where a slice per call would fill a tensor of the whole context with zeros each time.
//! The query heads that share a key head are folded into the query axis, so keys are never repeated.
//!
//! Shape letters: M context rows, Q slots in all, D documents of a call, R groups in all, n slots of a group, nh and nkv
//! heads, hd head dimension.

use std::collections::BTreeSet;
use std::ops::Range;

use tch::Tensor;

use super::layout::{Class, Layout};
use super::mask::{Visibility, additive};
use super::plan::PlanOptions;

/// How the queries of a step meet its keys, for layers of one visibility.
pub struct AttentionPlan {
    visibility: Visibility,
    classes: Vec<ClassKeys>,
    calls: Vec<Call>,
    /// Query slots of a group.
    group_slots: i64,
}

/// The context rows of a class.
struct ClassKeys {
    documents: i64,
    /// Rows of each segment of a document.
    segments: Vec<i64>,
}

/// One batched attention.
struct Call {
    class: usize,
    /// D: the first of the class.
    documents: i64,
    segments: Range<usize>,
    /// Additive, [D, 1, nh / nkv * n, keys].
    mask: Tensor,
}

impl AttentionPlan {
    /// The visibility it was made for.
    pub fn visibility(&self) -> Visibility {
        self.visibility
    }

    /// `anchors` i64 on the device: those of all places, counted from their document's start, 0 for fillers.
    pub(super) fn grouped(layout: &Layout, anchors: &Tensor, options: &PlanOptions, rule: Visibility) -> AttentionPlan {
        let group_slots = (options.group_blocks * options.block_size) as i64;
        let own = rule.block_mask(options.group_blocks as i64, options.block_size as i64, options.device);
        let own = additive(&own, options.kind);
        let mut plan = AttentionPlan { visibility: rule, classes: Vec::new(), calls: Vec::new(), group_slots };
        let mut place = 0;
        for (index, class) in layout.classes.iter().enumerate() {
            let contexts = contexts(layout, class, place, options.group_blocks, rule);
            let cuts = Cuts::new(&contexts, class.length);
            plan.classes.push(ClassKeys { documents: class.documents.len() as i64, segments: cuts.lengths() });
            for (context, &documents) in contexts.iter().zip(&class.calls) {
                let blocks = documents * options.group_blocks;
                let anchors = anchors.narrow(0, place as i64, blocks as i64).view([documents as i64, -1]);
                let mask = call_mask(&anchors, context, &own, options, rule);
                let segments = cuts.segments(context);
                plan.calls.push(Call { class: index, documents: documents as i64, segments, mask });
                place += blocks;
            }
        }
        plan
    }

    /// One call of everything, its mask written cell by cell from the predicate.
    pub(super) fn dense(layout: &Layout, options: &PlanOptions, rule: Visibility) -> AttentionPlan {
        let size = options.block_size;
        let of_class = |class: &Class| -> Vec<(usize, usize)> {
            let of_document = |&document: &usize| (0..class.length).map(move |place| (document, place));
            class.documents.iter().flat_map(of_document).collect()
        };
        let context: Vec<(usize, usize)> = layout.classes.iter().flat_map(of_class).collect();
        let queries = layout.blocks.len() * size;
        let visible = |query: usize, key: usize| {
            let (block, slot) = (layout.blocks[query / size], query % size);
            if key >= context.len() {
                let key = key - context.len();
                return key / size == query / size && rule.sees_slot(slot, key % size);
            }
            let (document, place) = context[key];
            let sees = |anchor| rule.sees_context(anchor, slot, place);
            block.document == document && block.anchor.is_some_and(sees)
        };
        let cells: Vec<bool> = (0..queries)
            .flat_map(|query| (0..context.len() + queries).map(move |key| (query, key)))
            .map(|(q, k)| visible(q, k))
            .collect();
        let mask = Tensor::from_slice(&cells).view([1, 1, queries as i64, -1]).to_device(options.device);
        let mask = additive(&mask, options.kind).repeat([1, 1, options.heads_per_key as i64, 1]);
        AttentionPlan {
            visibility: rule,
            classes: vec![ClassKeys { documents: 1, segments: vec![context.len() as i64] }],
            calls: vec![Call { class: 0, documents: 1, segments: 0..1, mask }],
            group_slots: queries as i64,
        }
    }

    /// The slots' q [Q, nh, hd], k and v [Q, nkv, hd], and the context's (keys, values), both [M, nkv, hd], -> [Q, nh*hd].
    pub(super) fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, context: &(Tensor, Tensor)) -> Tensor {
        let (slots, nkv, hd) = (q.size()[0], k.size()[1], k.size()[2]);
        let (groups, folded) = (slots / self.group_slots, q.size()[1] / nkv);
        let documents: Vec<i64> = self.calls.iter().map(|call| call.documents).collect();
        let queries = q.view([groups, self.group_slots, nkv, folded, hd]).permute([0, 2, 3, 1, 4]);
        let queries = queries.reshape([groups, nkv, -1, hd]).split_with_sizes(&documents, 0);
        let own = |x: &Tensor| x.view([groups, self.group_slots, nkv, hd]).split_with_sizes(&documents, 0);
        let (keys, values) = (own(k), own(v));
        let (context_keys, context_values) = (self.segments(&context.0), self.segments(&context.1));
        let outputs: Vec<Tensor> = (0..self.calls.len())
            .map(|index| {
                let call = &self.calls[index];
                let keys = call.join(&context_keys, &keys[index]);
                attend(&queries[index], &keys, &call.join(&context_values, &values[index]), Some(&call.mask))
            })
            .collect();
        let output = if outputs.len() == 1 { outputs[0].shallow_clone() } else { Tensor::cat(&outputs, 0) };
        output.view([groups, nkv, folded, self.group_slots, hd]).permute([0, 3, 1, 2, 4]).reshape([slots, -1])
    }

    /// The context's keys or values [M, nkv, hd] cut up: by class, by segment, [documents, rows, nkv, hd] each.
    fn segments(&self, context: &Tensor) -> Vec<Vec<Tensor>> {
        let rows = |class: &ClassKeys| class.documents * class.segments.iter().sum::<i64>();
        let of_classes = context.split_with_sizes(self.classes.iter().map(rows).collect::<Vec<_>>(), 0);
        let of_class = |(class, rows): (&ClassKeys, &Tensor)| {
            let size = rows.size();
            rows.view([class.documents, -1, size[1], size[2]]).split_with_sizes(&class.segments, 1)
        };
        self.classes.iter().zip(&of_classes).map(of_class).collect()
    }
}

impl Call {
    /// Its context and the groups' own rows [D, n, nkv, hd] -> [D, nkv, keys, hd].
    fn join(&self, context: &[Vec<Tensor>], own: &Tensor) -> Tensor {
        let segments = &context[self.class][self.segments.clone()];
        let of_call = |segment: &Tensor| match segment.size()[0] == self.documents {
            true => segment.shallow_clone(),
            false => segment.narrow(0, 0, self.documents),
        };
        let pieces: Vec<Tensor> = segments.iter().map(of_call).chain([own.shallow_clone()]).collect();
        Tensor::cat(&pieces, 1).transpose(1, 2)
    }
}

/// q [.., heads, n, hd], k and v [.., heads, keys, hd], mask additive [.., 1, n, keys] -> as q.
fn attend(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Tensor {
    Tensor::scaled_dot_product_attention(q, k, v, mask, 0.0, false, None, false)
}

/// One block behind a cache: q [n, nh, hd], k and v [nkv, past + n, hd], the block's own slots last -> [n, nh*hd].
pub(super) fn behind_cache(q: &Tensor, k: &Tensor, v: &Tensor, rule: Visibility) -> Tensor {
    let (slots, nkv, hd) = (q.size()[0], k.size()[0], q.size()[2]);
    let folded = q.size()[1] / nkv;
    let start = k.size()[1] - slots;
    let queries = q.view([slots, nkv, folded, hd]).permute([1, 2, 0, 3]).reshape([1, nkv, -1, hd]);
    let mask = (rule != Visibility::EVERYTHING).then(|| {
        let anchor = Tensor::from_slice(&[start]).to_device(q.device());
        let context = rule.context_mask(&anchor, slots, 0..start).expand([1, slots, start], false).squeeze_dim(0);
        let visible = Tensor::cat(&[context, rule.block_mask(1, slots, q.device())], 1);
        additive(&visible, q.kind()).repeat([1, 1, folded, 1])
    });
    let output = attend(&queries, &k.unsqueeze(0), &v.unsqueeze(0), mask.as_ref());
    output.view([nkv, folded, slots, hd]).permute([2, 0, 1, 3]).reshape([slots, -1])
}

/// The additive mask of a call whose groups are anchored at `anchors` [D, G], once per query head of a key head. `own` is
/// that of a group's own slots.
fn call_mask(
    anchors: &Tensor,
    context: &Range<usize>,
    own: &Tensor,
    options: &PlanOptions,
    rule: Visibility,
) -> Tensor {
    let (size, folded) = (anchors.size(), options.heads_per_key as i64);
    let (block_size, slots, context_rows) = (options.block_size as i64, own.size()[0], context.len() as i64);
    let visible = rule.context_mask(anchors, block_size, context.start as i64..context.end as i64);
    let shape = [size[0], folded, size[1], block_size, context_rows + slots];
    let mask = Tensor::full(shape, f64::NEG_INFINITY, (options.kind, options.device));
    let _ = mask.narrow(4, 0, context_rows).masked_fill_(&visible.unsqueeze(1), 0.0);
    mask.narrow(4, context_rows, slots).copy_(&own.view([size[1], block_size, slots]));
    mask.view([size[0], 1, -1, context_rows + slots])
}

/// The context rows of each call of a class whose blocks begin at `place`: those that some block of it may see, rounded
/// outwards.
fn contexts(
    layout: &Layout,
    class: &Class,
    mut place: usize,
    group_blocks: usize,
    rule: Visibility,
) -> Vec<Range<usize>> {
    let mut contexts = Vec::new();
    for documents in &class.calls {
        let blocks = &layout.blocks[place..place + documents * group_blocks];
        place += blocks.len();
        let anchors = || blocks.iter().filter_map(|block| block.anchor);
        let last = anchors().max().unwrap_or(0);
        let first = anchors().map(|anchor| rule.first_context(anchor)).min().unwrap_or(0);
        contexts.push(first.min(last) / class.unit * class.unit..last.next_multiple_of(class.unit));
    }
    contexts
}

/// Where a class's context is cut, so that each call's part is a run of whole segments.
struct Cuts(Vec<usize>);

impl Cuts {
    fn new(contexts: &[Range<usize>], rows: usize) -> Cuts {
        let ends = contexts.iter().flat_map(|context| [context.start, context.end]);
        Cuts(ends.chain([0, rows]).collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn lengths(&self) -> Vec<i64> {
        self.0.windows(2).map(|pair| (pair[1] - pair[0]) as i64).collect()
    }

    fn segments(&self, context: &Range<usize>) -> Range<usize> {
        let index = |cut: &usize| self.0.binary_search(cut).expect("both ends of a call's context are cuts");
        index(&context.start)..index(&context.end)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::super::anchors::PackedRows;
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
            context_unit: 1,
            heads_per_key: 2,
            visibilities: vec![rule],
            kind: Kind::Float,
            device: Device::Cpu,
        }
    }

    fn layout(rows: &PackedRows, anchors: &[usize], group_blocks: usize) -> Layout {
        Layout::new(rows, anchors, &options(group_blocks, RULES[0]))
    }

    fn grouped(layout: &Layout, group_blocks: usize, rule: Visibility) -> AttentionPlan {
        let anchors: Vec<i64> = layout.blocks.iter().map(|block| block.anchor.unwrap_or(0) as i64).collect();
        AttentionPlan::grouped(layout, &Tensor::from_slice(&anchors), &options(group_blocks, rule), rule)
    }

    /// What each slot sees, read off the output: without scores attention is the mean of what is visible, and here value
    /// c is the c-th unit vector. One line of 0 and 1 per slot: context rows, then all slots.
    fn seen(plan: &AttentionPlan, layout: &Layout) -> Vec<String> {
        let context = layout.classes.iter().map(|class| class.documents.len() * class.length).sum::<usize>() as i64;
        let slots = (layout.blocks.len() * BLOCK) as i64;
        let floats = (Kind::Float, Device::Cpu);
        let values = Tensor::eye(context + slots, floats);
        // The second key head's values are twice the first's: a query head must meet its own.
        let values = Tensor::stack(&[&values, &(&values * 2.0)], 1);
        let q = Tensor::zeros([slots, 4, context + slots], floats);
        let keys = Tensor::randn_like(&values);
        let parts = |x: &Tensor| (x.narrow(0, 0, context), x.narrow(0, context, slots));
        let ((context_keys, own_keys), (context_values, own_values)) = (parts(&keys), parts(&values));
        let mixed = plan.attend(&q, &own_keys, &own_values, &(context_keys, context_values)).view([slots, 4, -1]);
        for (head, scale) in [(1, 1.0), (2, 2.0), (3, 2.0)] {
            assert!(mixed.select(1, head).allclose(&(mixed.select(1, 0) * scale), 1e-6, 1e-6, false), "head {head}");
        }
        let visible = |row: i64| {
            let weights = Vec::<f32>::try_from(mixed.select(1, 0).get(row)).unwrap();
            let count = weights.iter().filter(|weight| **weight > 0.0).count() as f32;
            assert!(weights.iter().all(|weight| *weight == 0.0 || (weight * count - 1.0).abs() < 1e-5), "a plain mean");
            weights.iter().map(|weight| if *weight > 0.0 { '1' } else { '0' }).collect()
        };
        (0..slots).map(visible).collect()
    }

    fn rows<'a>(document_offsets: &'a [u32], row_ids: &'a [u64]) -> PackedRows<'a> {
        let tokens = *document_offsets.last().unwrap() as usize;
        PackedRows { token_ids: &[5; 16][..tokens], loss_mask: &[1; 16][..tokens], document_offsets, row_ids }
    }

    /// Spec 7.8 with 7.1's case: S=6, anchors [2,4], B=3. Context rows end at the last anchor.
    #[test]
    fn a_uniform_probe_reads_the_mask() {
        let layout = layout(&rows(&[0, 6], &[0]), &[2, 4], 2);
        let (first, second) = ("1100111000", "1111000111");
        let seen_by_all = seen(&grouped(&layout, 2, RULES[0]), &layout);
        assert_eq!(seen_by_all, [first, first, first, second, second, second]);
        let sliding = ["1100100000", "1100110000", "0100111000", "0111000100", "0011000110", "0001000111"];
        assert_eq!(seen(&grouped(&layout, 2, RULES[1]), &layout), sliding);
    }

    /// Spec 7.2: documents of 3 and 3 tokens.
    #[test]
    fn a_block_sees_its_own_document_only() {
        let layout = layout(&rows(&[0, 3, 6], &[0, 1]), &[2, 4], 1);
        // Contexts of two rows each; the second document's anchor sees one of them.
        let (first, second) = ("1100111000", "0010000111");
        let seen = seen(&grouped(&layout, 1, RULES[0]), &layout);
        assert_eq!(seen, [first, first, first, second, second, second]);
    }

    /// Groups of any size, over documents of one class and of several: what the dense mask shows.
    #[test]
    fn groups_show_what_the_dense_mask_shows() {
        let rows = rows(&[0, 7, 9, 16], &[0, 1, 2]);
        for rule in RULES {
            for size in [1, 2, 3, 32] {
                let layout = layout(&rows, &[0, 1, 5, 5, 3, 7, 9, 12, 15], size);
                assert_eq!(layout.classes.len(), 2);
                let expected = seen(&AttentionPlan::dense(&layout, &options(size, rule), rule), &layout);
                assert!(expected.iter().all(|line| line.contains('1')), "no slot is blind");
                assert_eq!(seen(&grouped(&layout, size, rule), &layout), expected, "groups of {size}, {rule:?}");
            }
        }
    }
}
