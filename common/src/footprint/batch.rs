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

    /// With anchors spread evenly, the last one at the end of its row.
    pub(super) fn extent(&self, draft: &DraftConfig, num_anchors: u32) -> Extent {
        let mut rows: Vec<(usize, usize)> =
            self.0.iter().filter_map(|row| reach_and_anchors(row, num_anchors)).collect();
        rows.sort_unstable_by(|left, right| right.cmp(left));
        let block = draft.block_size as u64;
        let mut extent = Extent { slots: self.blocks(num_anchors) * block, ..Extent::default() };
        extent.scored = rows.iter().map(|(_, anchors)| *anchors as u64 * (block - 1)).sum();
        let mut rest = rows.as_slice();
        for size in class_sizes(rows.iter().map(|(reach, _)| *reach)) {
            let (class, others) = rest.split_at(size);
            rest = others;
            extent.add_class(class, block);
        }
        extent
    }
}

/// None without a block. The reach is that of an anchor at the last place but one.
fn reach_and_anchors(row: &RowShape, num_anchors: u32) -> Option<(usize, usize)> {
    let anchors = row.anchors.min(num_anchors) as usize;
    (anchors > 0).then(|| ((row.tokens as usize).saturating_sub(2).max(1), anchors))
}

impl Extent {
    /// Documents as (reach, anchors), longest first.
    fn add_class(&mut self, class: &[(usize, usize)], block: u64) {
        let longest = class[0].0;
        let unit = context_unit(longest, CONTEXT_UNIT);
        self.context_rows += class.len() as u64 * longest.next_multiple_of(unit) as u64;
        let groups = |anchors: usize| anchors.div_ceil(GROUP_BLOCKS);
        let most = class.iter().map(|(_, anchors)| groups(*anchors)).max().unwrap_or(0);
        for ordinal in 0..most {
            let call = class.iter().filter(|(_, anchors)| groups(*anchors) > ordinal);
            let ends =
                call.clone().map(|(reach, anchors)| reach * ((ordinal + 1) * GROUP_BLOCKS).min(*anchors) / anchors);
            let context = ends.max().unwrap_or(0).next_multiple_of(unit) as u64;
            self.keys += call.count() as u64 * (context + GROUP_BLOCKS as u64 * block);
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
