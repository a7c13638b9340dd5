//! One step's blocks, laid out: what the queries are, what they should predict, and who sees whom.
//!
//! Built in two stages. [`HostPlan`] is made from the packed rows and the drawn anchors alone, on any thread, ahead of time.
//! [`BlockPlan`] holds it as tensors on the drafter's device: one upload, the rest is derived there. Neither knows a weight.
//!
//! Shape letters: T tokens of the batch, M context rows, N blocks with fillers, B slots of a block, R scored slots.

use tch::{Device, Kind, Tensor};

use super::anchors::PackedRows;
use super::attention::AttentionPlan;
use super::layout::{Layout, Placed};
use super::mask::Visibility;
use crate::runtime;

/// What a plan must know of the drafter; see `Drafter::plan_options`.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// Slots of a block, the anchor's included.
    pub block_size: usize,
    /// Stands in every slot but the anchor's.
    pub mask_token_id: u32,
    /// Blocks of one document that share an attention call; see `attention`.
    pub group_blocks: usize,
    /// Context lengths are rounded up to a multiple of this at least.
    pub context_unit: usize,
    /// Query heads per key head.
    pub heads_per_key: usize,
    /// Each rule that some layer follows, once.
    pub visibilities: Vec<Visibility>,
    /// The type that attention computes in.
    pub kind: Kind,
    /// Where the tensors go.
    pub device: Device,
}

/// Tokens, labels and positions of all slots, on the host; all [N * B] in block order.
#[derive(Debug, PartialEq, Eq)]
struct Slots {
    /// The anchor's token, then masks.
    token_ids: Vec<i64>,
    /// The token at the slot's own position: no shift (spec 0.6). Past the document's end, its last token.
    labels: Vec<i64>,
    /// Rows whose label counts: inside the document, not the anchor's slot, supervised.
    scored: Vec<i64>,
    /// Positions, from 0 in each document.
    positions: Vec<i64>,
}

impl Slots {
    /// Lays out the slots of `blocks` (spec 3.4 and 3.6).
    fn new(rows: &PackedRows, blocks: &[Placed], block_size: usize, mask_token_id: u32) -> Slots {
        let mut slots = Slots { token_ids: vec![], labels: vec![], scored: vec![], positions: vec![] };
        for block in blocks {
            let document = rows.document(block.document);
            let anchor = document.start + block.anchor.unwrap_or(0);
            let first = block.anchor.map_or(mask_token_id, |_| rows.token_ids[anchor]);
            slots.token_ids.push(i64::from(first));
            slots.token_ids.extend(std::iter::repeat_n(i64::from(mask_token_id), block_size - 1));
            for slot in 0..block_size {
                let token = (anchor + slot).min(document.end - 1);
                let inside = block.anchor.is_some() && anchor + slot < document.end;
                if inside && slot > 0 && rows.loss_mask[token] != 0 {
                    slots.scored.push(slots.labels.len() as i64);
                }
                slots.labels.push(i64::from(rows.token_ids[token]));
                slots.positions.push((anchor - document.start + slot) as i64);
            }
        }
        slots
    }
}

/// A plan before it goes to the device: made ahead of time, by any thread.
#[derive(Debug)]
pub struct HostPlan {
    layout: Layout,
    slots: Slots,
    context_tokens: Vec<i64>,
    tokens: usize,
}

impl HostPlan {
    /// The plan for `anchors`, token indices of the packed batch, at least one. Their order and repeats are the caller's.
    pub fn new(rows: &PackedRows, anchors: &[usize], options: &PlanOptions) -> HostPlan {
        let layout = Layout::new(rows, anchors, options);
        let slots = Slots::new(rows, &layout.blocks, options.block_size, options.mask_token_id);
        let context_tokens = layout.context_tokens(rows).into_iter().map(|token| token as i64).collect();
        HostPlan { layout, slots, context_tokens, tokens: rows.token_ids.len() }
    }

    /// 0, 1, 2, ... in the context of each document.
    fn context_positions(&self) -> impl Iterator<Item = i64> {
        let classes = self.layout.classes.iter();
        classes.flat_map(|class| class.documents.iter().flat_map(|_| 0..class.length as i64))
    }

    fn slot_counts(&self, block_size: usize) -> Vec<u64> {
        let mut counts = vec![0; block_size];
        self.slots.scored.iter().for_each(|row| counts[*row as usize % block_size] += 1);
        counts
    }
}

/// Everything that one training step needs besides weights and hidden states.
pub struct BlockPlan {
    /// Token ids of the slots, i64 [N, B].
    pub token_ids: Tensor,
    /// Labels, i64 [N, B].
    pub labels: Tensor,
    /// 1 where the label counts, f32 [N, B].
    pub supervised: Tensor,
    /// Positions of the M context rows, then of the N * B slots, i64.
    pub positions: Tensor,
    /// Rows of [N * B] whose label counts, ascending, i64 `[R]`.
    pub scored: Tensor,
    /// How many labels count, by slot: B numbers, the first 0.
    pub slot_counts: Vec<u64>,
    /// Where the anchors that were given stand among the N blocks.
    pub places: Vec<usize>,
    /// The token of each context row, i64 `[M]`; None when they are the T tokens as they are.
    context_tokens: Option<Tensor>,
    context_rows: i64,
    attention: Vec<AttentionPlan>,
}

impl BlockPlan {
    /// The plan that training uses: attention in groups of neighbouring blocks.
    pub fn new(rows: &PackedRows, anchors: &[usize], options: &PlanOptions) -> BlockPlan {
        Self::on_device(HostPlan::new(rows, anchors, options), options)
    }

    /// The same from a host plan that was made with the same options.
    pub fn on_device(plan: HostPlan, options: &PlanOptions) -> BlockPlan {
        Self::with_attention(plan, options, AttentionPlan::grouped)
    }

    /// The same with one mask over all queries and keys, straight from the predicate: an oracle for tests.
    pub fn dense(rows: &PackedRows, anchors: &[usize], options: &PlanOptions) -> BlockPlan {
        let plan = HostPlan::new(rows, anchors, options);
        Self::with_attention(plan, options, |layout, _, options, rule| AttentionPlan::dense(layout, options, rule))
    }

    /// How queries meet keys in layers of this visibility.
    pub fn attention(&self, visibility: Visibility) -> &AttentionPlan {
        let found = self.attention.iter().find(|plan| plan.visibility() == visibility);
        found.expect("the options list every layer's visibility")
    }

    /// N.
    pub fn num_blocks(&self) -> usize {
        self.token_ids.size()[0] as usize
    }

    /// M.
    pub(super) fn context_rows(&self) -> i64 {
        self.context_rows
    }

    /// The batch's rows [T, ..] as context rows [M, ..].
    pub(super) fn in_context(&self, rows: &Tensor) -> Tensor {
        self.context_tokens.as_ref().map_or_else(|| rows.shallow_clone(), |tokens| rows.index_select(0, tokens))
    }

    fn with_attention(
        plan: HostPlan,
        options: &PlanOptions,
        attention: fn(&Layout, &Tensor, &PlanOptions, Visibility) -> AttentionPlan,
    ) -> BlockPlan {
        let (layout, slots) = (&plan.layout, &plan.slots);
        let anchors: Vec<i64> = layout.blocks.iter().map(|block| block.anchor.unwrap_or(0) as i64).collect();
        let positions: Vec<i64> = plan.context_positions().chain(slots.positions.iter().copied()).collect();
        let lists = [&slots.token_ids, &slots.labels, &slots.scored, &positions, &anchors, &plan.context_tokens];
        let [token_ids, labels, scored, positions, anchors, context_tokens] = upload(lists, options.device);
        let shape = [layout.blocks.len() as i64, options.block_size as i64];
        let supervised = Tensor::zeros(shape[0] * shape[1], (Kind::Float, options.device));
        let as_they_are = plan.context_tokens.iter().copied().eq(0..plan.tokens as i64);
        let of_rule = |&rule| attention(layout, &anchors, options, rule);
        BlockPlan {
            token_ids: token_ids.view(shape),
            labels: labels.view(shape),
            supervised: supervised.index_fill(0, &scored, 1.0).view(shape),
            slot_counts: plan.slot_counts(options.block_size),
            attention: options.visibilities.iter().map(of_rule).collect(),
            context_tokens: (!as_they_are).then_some(context_tokens),
            context_rows: plan.context_tokens.len() as i64,
            places: plan.layout.places,
            positions,
            scored,
        }
    }
}

/// Lists of integers on the device, in one copy that the host does not wait for.
fn upload<const N: usize>(lists: [&Vec<i64>; N], device: Device) -> [Tensor; N] {
    let all = runtime::upload(&lists.map(Vec::as_slice).concat(), device);
    let mut start = 0;
    lists.map(|list| {
        let part = all.narrow(0, start, list.len() as i64);
        start += list.len() as i64;
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: u32 = 99;

    fn blocks(anchors: &[(usize, usize)]) -> Vec<Placed> {
        anchors.iter().map(|&(document, anchor)| Placed { document, anchor: Some(anchor) }).collect()
    }

    fn row<'a>(loss_mask: &'a [u8], document_offsets: &'a [u32]) -> PackedRows<'a> {
        PackedRows { token_ids: &[10, 11, 12, 13, 14, 15], loss_mask, document_offsets, row_ids: &[0, 1] }
    }

    /// Spec 7.3.
    #[test]
    fn labels_are_the_tokens_at_the_slots_own_positions() {
        let blocks = blocks(&[(0, 2), (0, 4)]);
        let slots = Slots::new(&row(&[0, 0, 1, 1, 1, 1], &[0, 6]), &blocks, 3, MASK);
        assert_eq!(slots.token_ids, [12, 99, 99, 14, 99, 99]);
        assert_eq!(slots.labels, [12, 13, 14, 14, 15, 15]);
        assert_eq!(slots.scored, [1, 2, 4]);
        let gap = Slots::new(&row(&[0, 0, 1, 1, 0, 1], &[0, 6]), &blocks, 3, MASK);
        assert_eq!(gap.scored, [1, 4]);
    }

    /// Spec 7.2: positions restart in each document, and no label reaches into the next one.
    #[test]
    fn packed_documents_do_not_touch() {
        let slots = Slots::new(&row(&[1; 6], &[0, 3, 6]), &blocks(&[(0, 2), (1, 1)]), 3, MASK);
        assert_eq!(slots.positions, [2, 3, 4, 1, 2, 3]);
        assert_eq!(slots.labels, [12, 12, 12, 14, 15, 15]);
        assert_eq!(slots.scored, [4]);
    }

    #[test]
    fn a_filler_is_all_mask_and_counts_nowhere() {
        let blocks = [Placed { document: 0, anchor: Some(2) }, Placed { document: 0, anchor: None }];
        let slots = Slots::new(&row(&[1; 6], &[0, 6]), &blocks, 3, MASK);
        assert_eq!(slots.token_ids, [12, 99, 99, 99, 99, 99]);
        assert_eq!(slots.scored, [1, 2]);
    }

    /// Two classes: contexts end at the last anchor, and rows behind a document's end repeat its last token.
    #[test]
    fn context_rows_follow_classes_and_restart_positions() {
        let offsets = [0, 2, 12, 20];
        let rows =
            PackedRows { token_ids: &[1; 20], loss_mask: &[1; 20], document_offsets: &offsets, row_ids: &[0, 1, 2] };
        let options = PlanOptions {
            block_size: 3,
            mask_token_id: MASK,
            group_blocks: 2,
            context_unit: 1,
            heads_per_key: 1,
            visibilities: vec![Visibility::EVERYTHING],
            kind: Kind::Float,
            device: Device::Cpu,
        };
        let plan = HostPlan::new(&rows, &[19, 1, 11], &options);
        assert_eq!(plan.layout.places, [2, 4, 0], "the longest context first");
        let expected: Vec<i64> = (2..12).chain((12..20).chain([19, 19])).chain([0]).collect();
        assert_eq!(plan.context_tokens, expected);
        assert_eq!(plan.context_positions().collect::<Vec<_>>(), (0..10).chain(0..10).chain([0]).collect::<Vec<_>>());
    }
}
