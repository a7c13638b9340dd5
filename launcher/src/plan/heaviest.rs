//! The batch of a plan that takes most of a drafter's memory.

use common::footprint::{BatchShape, RowShape};
use common::ids::BatchId;
use data::plan::{BatchPlan, PlannedBatch};
use data::store::TokenStore;

/// The one with the most blocks, of those the one with the most tokens: nearly all that a step takes grows with the blocks.
pub(super) fn of(store: &TokenStore, batches: &BatchPlan, num_anchors: u32) -> BatchShape {
    let rows: Vec<RowShape> = (0..store.len()).map(|row| shape(store.row(row).loss_mask)).collect();
    among(&rows, batches, num_anchors)
}

fn among(rows: &[RowShape], batches: &BatchPlan, num_anchors: u32) -> BatchShape {
    let shape = |batch: &PlannedBatch| BatchShape(batch.rows.iter().map(|row| rows[*row as usize]).collect());
    let shapes = (0..batches.total_batches()).filter_map(|id| batches.batch(BatchId(id))).map(shape);
    shapes.max_by_key(|shape| (shape.blocks(num_anchors), shape.tokens())).unwrap_or_default()
}

/// An anchor is a token that is learnt and has a successor that is (spec 3.3).
fn shape(loss_mask: &[u8]) -> RowShape {
    let anchors = loss_mask.windows(2).filter(|pair| pair[0] != 0 && pair[1] != 0).count();
    RowShape { tokens: loss_mask.len() as u32, anchors: anchors as u32 }
}

#[cfg(test)]
mod tests {
    use data::plan::PlanOptions;

    use super::*;

    #[test]
    fn anchors_are_learnt_tokens_with_a_learnt_successor() {
        assert_eq!(shape(&[0, 1, 1, 1, 0, 1, 0, 1, 1]), RowShape { tokens: 9, anchors: 3 });
        assert_eq!(shape(&[]), RowShape { tokens: 0, anchors: 0 });
    }

    /// Batches of ten tokens: one long row with few anchors, or short ones with a group of blocks each.
    #[test]
    fn the_most_blocks_weigh_most_and_then_the_most_tokens() {
        let rows = [(10, 9), (3, 2), (3, 2), (3, 2), (9, 8)].map(|(tokens, anchors)| RowShape { tokens, anchors });
        let options = PlanOptions {
            seed: 1,
            epochs: 3,
            batch_tokens: 10,
            bucket_bounds: vec![5, 10],
            max_length: 10,
            max_batches: None,
        };
        let plan = |rows: &[RowShape]| {
            let lengths: Vec<u32> = rows.iter().map(|row| row.tokens).collect();
            among(rows, &BatchPlan::of_lengths(&lengths, &options), 64)
        };
        assert_eq!(plan(&rows), BatchShape(vec![RowShape { tokens: 3, anchors: 2 }; 3]));
        assert_eq!(plan(&[rows[4], rows[0]]), BatchShape(vec![rows[0]]));
        assert_eq!(plan(&[]), BatchShape::default());
    }
}
