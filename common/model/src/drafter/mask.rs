//! Who sees whom (spec 3.5): one predicate, and the additive masks that follow from it.
//!
//! Slot i of the block anchored at a sees context tokens c of its own document with c < a (strictly: at decode time the
//! last committed token has not been through the target yet) and slots of its own block. Sliding layers add a moving
//! window in positions and are causal inside the block (spec 1.5 rule 3).

use std::ops::Range;

use common::config::LayerType;
use tch::{Device, Kind, Tensor};

/// What one layer lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visibility {
    /// A key may lie this many positions back at most, the query's own position included.
    pub window: Option<usize>,
    /// Whether a slot sees only itself and earlier slots of its block.
    pub causal: bool,
}

impl Visibility {
    /// The rule of full layers.
    pub const EVERYTHING: Visibility = Visibility { window: None, causal: false };

    /// The rule of a layer type; `window` is ignored by full layers.
    pub fn of(layer: LayerType, window: Option<usize>) -> Visibility {
        match layer {
            LayerType::FullAttention => Visibility::EVERYTHING,
            LayerType::SlidingAttention => Visibility { window, causal: true },
        }
    }

    /// Whether `slot` of the block anchored at `anchor` sees context token `key` of the same document.
    pub fn sees_context(&self, anchor: usize, slot: usize, key: usize) -> bool {
        key < anchor && self.window.is_none_or(|window| anchor + slot - key < window)
    }

    /// Whether a slot sees another slot of its own block.
    pub fn sees_slot(&self, query: usize, key: usize) -> bool {
        !(self.causal && key > query) && self.window.is_none_or(|window| query.abs_diff(key) < window)
    }

    /// A lower bound of the context tokens that blocks anchored at `anchor` or later can see.
    pub fn first_context(&self, anchor: usize) -> usize {
        self.window.map_or(0, |window| (anchor + 1).saturating_sub(window))
    }

    /// `sees_context` for blocks anchored at `anchors` i64 [..], in the count of their document's `keys`: bool
    /// [.., 1 or B, keys].
    pub(crate) fn context_mask(&self, anchors: &Tensor, block_size: i64, keys: Range<i64>) -> Tensor {
        let anchors = anchors.unsqueeze(-1).unsqueeze(-1);
        let integers = (Kind::Int64, anchors.device());
        let keys = Tensor::arange_start(keys.start, keys.end, integers);
        let before_anchor = keys.lt_tensor(&anchors);
        let Some(window) = self.window else { return before_anchor };
        let queries = anchors + Tensor::arange(block_size, integers).unsqueeze(-1);
        (queries - keys).lt(window as i64).logical_and(&before_anchor)
    }

    /// `sees_slot` for `blocks` blocks side by side: bool [blocks * B, blocks * B], block diagonal.
    pub(crate) fn block_mask(&self, blocks: i64, block_size: i64, device: Device) -> Tensor {
        let slots = Tensor::arange(blocks * block_size, (Kind::Int64, device));
        let block = slots.floor_divide_scalar(block_size);
        let mut visible = block.unsqueeze(1).eq_tensor(&block);
        let ahead = &slots - slots.unsqueeze(1); // of one block: key slot - query slot
        if self.causal {
            visible = visible.logical_and(&ahead.le(0));
        }
        if let Some(window) = self.window {
            visible = visible.logical_and(&ahead.abs().lt(window as i64));
        }
        visible
    }
}

/// 0 where visible, minus infinity elsewhere, in the type that attention computes in.
pub(crate) fn additive(visible: &Tensor, kind: Kind) -> Tensor {
    Tensor::zeros(visible.size(), (kind, visible.device())).masked_fill(&visible.logical_not(), f64::NEG_INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Visibility = Visibility::EVERYTHING;

    fn sliding(window: usize) -> Visibility {
        Visibility { window: Some(window), causal: true }
    }

    fn sliding_both_ways(window: usize) -> Visibility {
        Visibility { window: Some(window), causal: false }
    }

    /// Context and slots that each slot sees, as `01|23`: context tokens, then slots of its own block.
    fn rows(visibility: Visibility, anchor: usize, block_size: usize) -> Vec<String> {
        let listed = |numbers: Vec<usize>| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        (0..block_size)
            .map(|slot| {
                let context = (0..12).filter(|&key| visibility.sees_context(anchor, slot, key)).collect();
                let block = (0..block_size).filter(|&key| visibility.sees_slot(slot, key)).collect();
                format!("{}|{}", listed(context), listed(block))
            })
            .collect()
    }

    /// Spec 7.1, S=6, anchors [2,4], B=3.
    #[test]
    fn masks_of_the_published_cases() {
        assert_eq!(rows(FULL, 2, 3), ["0 1|0 1 2"; 3]);
        assert_eq!(rows(FULL, 4, 3), ["0 1 2 3|0 1 2"; 3]);
        assert_eq!(rows(sliding(4), 2, 3), ["0 1|0", "0 1|0 1", "1|0 1 2"]);
        assert_eq!(rows(sliding(4), 4, 3), ["1 2 3|0", "2 3|0 1", "3|0 1 2"]);
        assert_eq!(rows(sliding_both_ways(4), 4, 3), ["1 2 3|0 1 2", "2 3|0 1 2", "3|0 1 2"]);
        assert_eq!(rows(sliding_both_ways(2), 2, 3), ["1|0 1", "|0 1 2", "|1 2"]);
        assert_eq!(rows(sliding_both_ways(2), 4, 3), ["3|0 1", "|0 1 2", "|1 2"]);
        assert_eq!(rows(sliding(3), 2, 3), ["0 1|0", "1|0 1", "|0 1 2"]);
        assert_eq!(rows(sliding(3), 4, 3), ["2 3|0", "3|0 1", "|0 1 2"]);
        assert_eq!(rows(sliding(4), 6, 4), ["3 4 5|0", "4 5|0 1", "5|0 1 2", "|0 1 2 3"]);
    }

    /// The rule with a lower bound fixed per block (t >= a - W for every slot) is not ours.
    #[test]
    fn the_window_moves_with_the_slot() {
        assert_ne!(rows(sliding(4), 4, 3), ["0 1 2 3|0", "0 1 2 3|0 1", "0 1 2 3|0 1 2"]);
    }

    #[test]
    fn a_causal_sliding_slot_sees_exactly_its_window() {
        for (anchor, slot, window) in (0..12).flat_map(|a| (0..6).flat_map(move |i| (1..10).map(move |w| (a, i, w)))) {
            let rule = sliding(window);
            let context = (0..anchor).filter(|&key| rule.sees_context(anchor, slot, key)).count();
            let block = (0..6).filter(|&key| rule.sees_slot(slot, key)).count();
            assert_eq!(context + block, window.min(anchor + slot + 1), "a={anchor} i={slot} W={window}");
        }
    }

    #[test]
    fn mask_tensors_follow_the_predicate() {
        let anchors = [3_i64, 5, 9];
        for rule in [FULL, sliding(4), sliding_both_ways(3)] {
            let context = rule.context_mask(&Tensor::from_slice(&anchors), 4, 1..9).expand([3, 4, 8], false);
            let context = context.reshape([12, 8]);
            let block = rule.block_mask(3, 4, Device::Cpu);
            for row in 0..12_usize {
                for column in 0..8_usize {
                    let expected = rule.sees_context(anchors[row / 4] as usize, row % 4, column + 1);
                    assert_eq!(context.int64_value(&[row as i64, column as i64]) != 0, expected);
                }
                for column in 0..12_usize {
                    let expected = row / 4 == column / 4 && rule.sees_slot(row % 4, column % 4);
                    assert_eq!(block.int64_value(&[row as i64, column as i64]) != 0, expected);
                }
            }
        }
    }
}
