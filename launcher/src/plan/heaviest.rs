//! The batch of a plan that takes most of a drafter's memory.

use std::cmp::Reverse;

use common::footprint::{BatchShape, RowShape};
use common::ids::BatchId;
use data::plan::{BatchPlan, PlannedBatch};
use data::store::TokenStore;

/// The one with the most blocks, of those the one with the most tokens, of those the first: nearly all that a step takes
/// grows with the blocks.
pub(super) fn of((store, batches): (&TokenStore, &BatchPlan), num_anchors: u32) -> BatchShape {
    let rows: Vec<RowShape> = (0..store.len()).map(|row| shape(store, row)).collect();
    let shape = |batch: &PlannedBatch| BatchShape(batch.rows.iter().map(|row| rows[*row as usize]).collect());
    let all = (0..batches.total_batches()).filter_map(|id| Some((id, batches.batch(BatchId(id))?)));
    let weight = |batch: &PlannedBatch| {
        let shape = shape(batch);
        (shape.blocks(num_anchors), shape.tokens())
    };
    let heaviest = all.max_by_key(|(id, batch)| (weight(batch), Reverse(*id)));
    heaviest.map_or_else(BatchShape::default, |(_, batch)| shape(batch))
}

/// An anchor is a token that is learnt and has a successor that is (spec 3.3).
fn shape(store: &TokenStore, row: usize) -> RowShape {
    let mask = store.row(row).loss_mask;
    let anchors = mask.windows(2).filter(|pair| pair[0] != 0 && pair[1] != 0).count();
    RowShape { tokens: mask.len() as u32, anchors: anchors as u32 }
}
