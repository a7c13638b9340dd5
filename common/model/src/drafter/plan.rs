//! One step's blocks, laid out: what the queries are, what they should predict, and who sees whom.
//!
//! Built on the host from the packed rows and the drawn anchors, then held as tensors on the drafter's device. Nothing
//! here knows a weight. Shape letters: T tokens of the batch, N blocks, B slots of a block, R slots that are scored.

use tch::{Device, Kind, Tensor};

use super::anchors::{Block, PackedRows};
use super::attention::AttentionPlan;
use super::mask::Visibility;

/// What a plan must know of the drafter; see `Drafter::plan_options`.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// Slots of a block, the anchor's included.
    pub block_size: usize,
    /// Stands in every slot but the anchor's.
    pub mask_token_id: u32,
    /// Blocks that share one attention call; see `attention`.
    pub group_blocks: usize,
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
pub struct Slots {
    /// The anchor's token, then masks.
    pub token_ids: Vec<i64>,
    /// The token at the slot's own position: no shift (spec 0.6). Past the document's end, its last token.
    pub labels: Vec<i64>,
    /// Whether the label counts: kept, inside the document, not the anchor's slot, supervised.
    pub supervised: Vec<bool>,
    /// Positions, from 0 in each document.
    pub positions: Vec<i64>,
}

impl Slots {
    /// Lays out the slots of `blocks` (spec 3.4 and 3.6).
    pub fn new(rows: &PackedRows, blocks: &[Block], block_size: usize, mask_token_id: u32) -> Slots {
        let mut slots = Slots { token_ids: vec![], labels: vec![], supervised: vec![], positions: vec![] };
        for block in blocks {
            slots.push(rows, block, block_size);
            let anchor = if block.keep { rows.token_ids[block.anchor] } else { mask_token_id };
            slots.token_ids.push(i64::from(anchor));
            slots.token_ids.extend(std::iter::repeat_n(i64::from(mask_token_id), block_size - 1));
        }
        slots
    }

    fn push(&mut self, rows: &PackedRows, block: &Block, block_size: usize) {
        let document = rows.document(rows.document_of(block.anchor));
        for slot in 0..block_size {
            let token = (block.anchor + slot).min(document.end - 1);
            let inside = block.anchor + slot < document.end;
            self.labels.push(i64::from(rows.token_ids[token]));
            self.supervised.push(block.keep && slot > 0 && inside && rows.loss_mask[token] != 0);
            self.positions.push((block.anchor - document.start + slot) as i64);
        }
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
    /// Positions of the T context tokens, then of the N * B slots, i64.
    pub positions: Tensor,
    /// Rows of [N * B] whose label counts, ascending, i64 `[R]`.
    pub scored: Tensor,
    /// How many labels count, by slot: B numbers, the first 0.
    pub slot_counts: Vec<u64>,
    attention: Vec<AttentionPlan>,
}

impl BlockPlan {
    /// The plan that training uses: attention in groups of neighbouring blocks.
    pub fn new(rows: &PackedRows, blocks: &[Block], options: &PlanOptions) -> BlockPlan {
        Self::with_attention(rows, blocks, options, AttentionPlan::grouped)
    }

    /// The same with one mask over all queries and keys, straight from the predicate: an oracle for tests.
    pub fn dense(rows: &PackedRows, blocks: &[Block], options: &PlanOptions) -> BlockPlan {
        Self::with_attention(rows, blocks, options, AttentionPlan::dense)
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

    fn with_attention(
        rows: &PackedRows,
        blocks: &[Block],
        options: &PlanOptions,
        plan: fn(&PackedRows, &[Block], &PlanOptions, Visibility) -> AttentionPlan,
    ) -> BlockPlan {
        let slots = Slots::new(rows, blocks, options.block_size, options.mask_token_id);
        let scored: Vec<i64> =
            (0..).zip(&slots.supervised).filter(|(_, counts)| **counts).map(|(row, _)| row).collect();
        let mut slot_counts = vec![0; options.block_size];
        scored.iter().for_each(|row| slot_counts[*row as usize % options.block_size] += 1);
        let shape = [blocks.len() as i64, options.block_size as i64];
        let placed = |tensor: Tensor| tensor.to_device(options.device);
        let positions: Vec<i64> = context_positions(rows).chain(slots.positions).collect();
        BlockPlan {
            token_ids: placed(Tensor::from_slice(&slots.token_ids).view(shape)),
            labels: placed(Tensor::from_slice(&slots.labels).view(shape)),
            supervised: placed(Tensor::from_slice(&slots.supervised).to_kind(Kind::Float).view(shape)),
            positions: placed(Tensor::from_slice(&positions)),
            scored: placed(Tensor::from_slice(&scored)),
            slot_counts,
            attention: options.visibilities.iter().map(|&rule| plan(rows, blocks, options, rule)).collect(),
        }
    }
}

/// 0, 1, 2, ... in each document.
fn context_positions(rows: &PackedRows) -> impl Iterator<Item = i64> {
    rows.documents().flat_map(|document| 0..document.len() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: u32 = 99;

    fn keep(anchors: &[usize]) -> Vec<Block> {
        anchors.iter().map(|&anchor| Block { anchor, keep: true }).collect()
    }

    fn row<'a>(loss_mask: &'a [u8], document_offsets: &'a [u32]) -> PackedRows<'a> {
        PackedRows { token_ids: &[10, 11, 12, 13, 14, 15], loss_mask, document_offsets, row_ids: &[0, 1] }
    }

    /// Spec 7.3.
    #[test]
    fn labels_are_the_tokens_at_the_slots_own_positions() {
        let slots = Slots::new(&row(&[0, 0, 1, 1, 1, 1], &[0, 6]), &keep(&[2, 4]), 3, MASK);
        assert_eq!(slots.token_ids, [12, 99, 99, 14, 99, 99]);
        assert_eq!(slots.labels, [12, 13, 14, 14, 15, 15]);
        assert_eq!(slots.supervised, [false, true, true, false, true, false]);
        let gap = Slots::new(&row(&[0, 0, 1, 1, 0, 1], &[0, 6]), &keep(&[2, 4]), 3, MASK);
        assert_eq!(gap.supervised, [false, true, false, false, true, false]);
    }

    /// Spec 7.2: positions restart in each document, and no label reaches into the next one.
    #[test]
    fn packed_documents_do_not_touch() {
        let slots = Slots::new(&row(&[1; 6], &[0, 3, 6]), &keep(&[2, 4]), 3, MASK);
        assert_eq!(slots.positions, [2, 3, 4, 1, 2, 3]);
        assert_eq!(slots.labels, [12, 12, 12, 14, 15, 15]);
        assert_eq!(slots.supervised, [false, false, false, false, true, false]);
        assert_eq!(context_positions(&row(&[1; 6], &[0, 3, 6])).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_block_that_is_not_kept_is_all_mask_and_counts_nowhere() {
        let blocks = [Block { anchor: 2, keep: true }, Block { anchor: 4, keep: false }];
        let slots = Slots::new(&row(&[1; 6], &[0, 6]), &blocks, 3, MASK);
        assert_eq!(slots.token_ids, [12, 99, 99, 99, 99, 99]);
        assert_eq!(slots.supervised, [false, true, true, false, false, false]);
    }
}
