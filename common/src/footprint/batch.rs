//! A packed batch as far as memory depends on it, and how the drafter lays it out on a GPU.
//!
//! `model::drafter` lays out by these same numbers.

use serde::{Deserialize, Serialize};

use crate::model_config::DraftConfig;

/// Blocks of one document that share an attention call.
pub const GROUP_BLOCKS: usize = 32;

/// Context lengths are multiples of this at least.
pub const CONTEXT_UNIT: usize = 64;

/// Logits held at a time, in elements: enough to fill a GPU.
pub const CHUNK_LOGITS: u64 = 1 << 29;

/// A class of documents may have this many times the context rows that its documents need.
const WASTE: f64 = 1.5;

/// Rows of one packed batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchShape(pub Vec<RowShape>);

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowShape {
    /// Its tokens.
    pub tokens: u32,
    /// How many of them may start a block: those that are learnt and have a successor that is. At most
    /// `training.num_anchors` of them do.
    pub anchors: u32,
}

/// How many documents each class has. `reaches` are context tokens, longest first; a class is padded to its first one.
pub fn class_sizes(reaches: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut sizes: Vec<usize> = Vec::new();
    let (mut longest, mut needed) = (0, 0);
    for reach in reaches {
        let fits = |size: &&mut usize| ((**size + 1) * longest) as f64 <= WASTE * (needed + reach) as f64;
        match sizes.last_mut().filter(fits) {
            Some(size) => {
                needed += reach;
                *size += 1;
            }
            None => {
                (longest, needed) = (reach, reach);
                sizes.push(1);
            }
        }
    }
    sizes
}

/// What context lengths of a class are rounded up to multiples of, when its longest reach is `reach` and they are
/// multiples of `least` at least: few lengths, and at most an eighth too long.
pub fn context_unit(reach: usize, least: usize) -> usize {
    least.max(reach.next_power_of_two() / 8)
}

/// What a batch's layout comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// Q, fillers included.
    pub(super) slots: u64,
    /// M, padding included.
    pub(super) context_rows: u64,
    /// Keys of all attention calls together: context rows and own slots, for each document of each call.
    pub(super) keys: u64,
    /// Slots whose label counts, at most.
    pub(super) scored: u64,
}

impl BatchShape {
    /// T.
    pub fn tokens(&self) -> u64 {
        self.0.iter().map(|row| u64::from(row.tokens)).sum()
    }

    /// N, fillers included: each row's blocks in whole groups.
    pub fn blocks(&self, num_anchors: u32) -> u64 {
        let of_row = |row: &RowShape| u64::from(row.anchors.min(num_anchors)).next_multiple_of(GROUP_BLOCKS as u64);
        self.0.iter().map(of_row).sum()
    }

    /// With each row's learnt tokens at its end, as answers are, and anchors spread evenly over them.
    pub(super) fn extent(&self, draft: &DraftConfig, num_anchors: u32) -> Extent {
        let mut documents: Vec<Document> =
            self.0.iter().filter_map(|row| Document::of(row, num_anchors as usize)).collect();
        documents.sort_unstable_by_key(|document| std::cmp::Reverse(document.reach));
        let block = draft.block_size as u64;
        let mut extent = Extent { slots: self.blocks(num_anchors) * block, ..Extent::default() };
        extent.scored = documents.iter().map(|document| document.anchors as u64 * (block - 1)).sum();
        let mut rest = documents.as_slice();
        for size in class_sizes(documents.iter().map(|document| document.reach)) {
            let (class, others) = rest.split_at(size);
            rest = others;
            extent.add_class(class, block);
        }
        extent
    }
}

/// A row that has blocks.
struct Document {
    /// Context tokens before its first possible anchor.
    first: usize,
    /// Context tokens that its blocks may see: those before its last anchor.
    reach: usize,
    /// Blocks.
    anchors: usize,
}

impl Document {
    fn of(row: &RowShape, num_anchors: usize) -> Option<Document> {
        let (tokens, valid) = (row.tokens as usize, row.anchors as usize);
        let anchors = valid.min(num_anchors);
        (anchors > 0).then(|| Document {
            first: tokens.saturating_sub(1 + valid),
            reach: tokens.saturating_sub(2).max(1),
            anchors,
        })
    }

    fn groups(&self) -> usize {
        self.anchors.div_ceil(GROUP_BLOCKS)
    }

    /// Context tokens before the last anchor of a group.
    fn reach_of(&self, group: usize) -> usize {
        let share = ((group + 1) * GROUP_BLOCKS).min(self.anchors);
        self.first + (self.reach - self.first.min(self.reach)) * share / self.anchors
    }
}

impl Extent {
    /// Documents of a class, the longest reach first.
    fn add_class(&mut self, class: &[Document], block: u64) {
        let longest = class[0].reach;
        let unit = context_unit(longest, CONTEXT_UNIT);
        self.context_rows += (class.len() * longest.next_multiple_of(unit)) as u64;
        let most = class.iter().map(Document::groups).max().unwrap_or(0);
        for group in 0..most {
            let call = || class.iter().filter(|document| document.groups() > group);
            let reach = call().map(|document| document.reach_of(group)).max().unwrap_or(0);
            self.keys += call().count() as u64 * (reach.next_multiple_of(unit) as u64 + GROUP_BLOCKS as u64 * block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_config::qwen3_8b;

    fn rows(count: usize, tokens: u32, anchors: u32) -> BatchShape {
        BatchShape(vec![RowShape { tokens, anchors }; count])
    }

    #[test]
    fn a_full_batch_of_the_published_drafter() {
        let extent = rows(4, 3072, 3071).extent(&qwen3_8b(), 512);
        let keys = 4 * (0..16).map(|group| (3070_u64 * (group + 1) / 16).next_multiple_of(512) + 512).sum::<u64>();
        assert_eq!(extent, Extent { slots: 32_768, context_rows: 12_288, keys, scored: 30_720 });
    }

    #[test]
    fn rows_without_a_block_take_nothing() {
        assert_eq!(rows(9, 100, 0).extent(&qwen3_8b(), 512), Extent::default());
        assert_eq!(rows(2, 3, 1).blocks(512), 64);
        assert_eq!(BatchShape::default().extent(&qwen3_8b(), 512), Extent::default());
    }

    #[test]
    fn classes_waste_half_at_most() {
        assert_eq!(class_sizes([100; 7]), [7]);
        assert_eq!(class_sizes([300, 100, 100]), [2, 1]);
        assert_eq!(class_sizes([400, 100, 5]), [1, 1, 1]);
        assert_eq!(class_sizes([]), [] as [usize; 0]);
    }
}
