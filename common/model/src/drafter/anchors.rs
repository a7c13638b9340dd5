//! Which positions of a packed batch start a block (spec 3.3).
//!
//! An anchor is a supervised token whose successor in the same document is supervised too, so that at least one slot of
//! its block has a label that counts. Anchors are drawn per row, without replacement, and returned ascending. The draw
//! depends on nothing but (seed, epoch, row id): neither on how rows are packed nor on how many drafters there are.

use std::ops::Range;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The host part of one packed batch: rows (documents) one after another, no padding.
#[derive(Clone, Copy, Debug)]
pub struct PackedRows<'a> {
    /// T token ids.
    pub token_ids: &'a [u32],
    /// T flags: 1 where the token is supervised.
    pub loss_mask: &'a [u8],
    /// Documents + 1 ascending offsets; the first is 0, the last T.
    pub document_offsets: &'a [u32],
    /// One id per document.
    pub row_ids: &'a [u64],
}

/// How anchors are drawn.
#[derive(Clone, Copy, Debug)]
pub struct AnchorDraw {
    /// Anchors per row at most.
    pub num_anchors: usize,
    /// The run's seed.
    pub seed: u64,
    /// Pass over the data: each draws afresh.
    pub epoch: u64,
}

impl PackedRows<'_> {
    /// Half-open token ranges of the documents.
    pub fn documents(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.row_ids.len()).map(|document| self.document(document))
    }

    /// Token range of one document.
    pub fn document(&self, document: usize) -> Range<usize> {
        self.document_offsets[document] as usize..self.document_offsets[document + 1] as usize
    }

    /// The document that holds a token.
    pub fn document_of(&self, token: usize) -> usize {
        self.document_offsets.partition_point(|&offset| offset as usize <= token) - 1
    }
}

/// Positions of one document that may be anchors, ascending, relative to its start.
pub fn valid(loss_mask: &[u8]) -> Vec<usize> {
    let supervised_pair = |pair: &[u8]| pair[0] != 0 && pair[1] != 0;
    loss_mask.windows(2).enumerate().filter(|(_, pair)| supervised_pair(pair)).map(|(position, _)| position).collect()
}

/// Draws the anchors of a packed batch: token indices, ascending.
pub fn draw(rows: &PackedRows, draw: &AnchorDraw) -> Vec<usize> {
    let mut anchors = Vec::new();
    for (document, &row_id) in rows.documents().zip(rows.row_ids) {
        let candidates = valid(&rows.loss_mask[document.clone()]);
        let chosen = choose(candidates, draw.num_anchors, &mut row_generator(draw, row_id));
        anchors.extend(chosen.into_iter().map(|position| document.start + position));
    }
    anchors
}

/// A generator of its own for each (seed, epoch, row): the three numbers are the cipher's key.
fn row_generator(draw: &AnchorDraw, row_id: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&draw.seed.to_le_bytes());
    key[8..16].copy_from_slice(&draw.epoch.to_le_bytes());
    key[16..24].copy_from_slice(&row_id.to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// Uniform choice without replacement: the first `count` places of a Fisher-Yates shuffle, sorted.
fn choose(mut candidates: Vec<usize>, count: usize, generator: &mut ChaCha8Rng) -> Vec<usize> {
    let count = count.min(candidates.len());
    for place in 0..count {
        let other = generator.random_range(place..candidates.len());
        candidates.swap(place, other);
    }
    candidates.truncate(count);
    candidates.sort_unstable();
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows<'a>(loss_mask: &'a [u8], offsets: &'a [u32], row_ids: &'a [u64], token_ids: &'a [u32]) -> PackedRows<'a> {
        PackedRows { token_ids, loss_mask, document_offsets: offsets, row_ids }
    }

    /// Spec 7.3: position 3 has no supervised successor, 5 is the last.
    #[test]
    fn an_anchor_needs_a_supervised_successor() {
        assert_eq!(valid(&[0, 0, 1, 1, 0, 1]), [2]);
        assert_eq!(valid(&[0, 0, 1, 1, 1, 1]), [2, 3, 4]);
        assert_eq!(valid(&[1]), [] as [usize; 0]);
        assert_eq!(valid(&[]), [] as [usize; 0]);
    }

    #[test]
    fn the_successor_must_lie_in_the_same_document() {
        let drawn = draw(
            &rows(&[0, 0, 1, 1, 1, 1], &[0, 3, 6], &[7, 8], &[0; 6]),
            &AnchorDraw { num_anchors: 9, seed: 1, epoch: 0 },
        );
        assert_eq!(drawn, [3, 4]);
    }

    #[test]
    fn a_row_draws_the_same_anchors_wherever_it_is_packed() {
        let options = AnchorDraw { num_anchors: 4, seed: 5, epoch: 2 };
        let alone = draw(&rows(&[1; 20], &[0, 20], &[9], &[0; 20]), &options);
        let packed = draw(&rows(&[1; 50], &[0, 30, 50], &[3, 9], &[0; 50]), &options);
        let moved: Vec<_> = alone.iter().map(|anchor| anchor + 30).collect();
        assert_eq!(packed[4..], moved);
        assert!(alone.windows(2).all(|pair| pair[0] < pair[1]), "ascending, each once");
    }

    /// A document's share is its own: as many as it has valid anchors, up to `num_anchors`. Long neighbours take none of it.
    #[test]
    fn short_documents_keep_their_share_beside_long_ones() {
        let (mask, offsets, row_ids) = ([1; 440], [0, 20, 40, 440], [4, 5, 6]);
        let packed = rows(&mask, &offsets, &row_ids, &[0; 440]);
        for (num_anchors, shares) in [(512, [19, 19, 399]), (64, [19, 19, 64]), (8, [8, 8, 8])] {
            let drawn = draw(&packed, &AnchorDraw { num_anchors, seed: 3, epoch: 0 });
            let of = |document| drawn.iter().filter(|anchor| packed.document_of(**anchor) == document).count();
            assert_eq!([of(0), of(1), of(2)], shares);
        }
    }

    #[test]
    fn seed_epoch_and_row_each_change_the_draw() {
        let drawn = |seed, epoch, row| {
            draw(&rows(&[1; 200], &[0, 200], &[row], &[0; 200]), &AnchorDraw { num_anchors: 8, seed, epoch })
        };
        assert_eq!(drawn(1, 0, 0), drawn(1, 0, 0));
        assert_ne!(drawn(1, 0, 0), drawn(2, 0, 0));
        assert_ne!(drawn(1, 0, 0), drawn(1, 1, 0));
        assert_ne!(drawn(1, 0, 0), drawn(1, 0, 1));
    }

    #[test]
    fn every_valid_anchor_is_equally_likely() {
        let mut hits = [0; 9];
        for epoch in 0..3000 {
            for anchor in
                draw(&rows(&[1; 10], &[0, 10], &[1], &[0; 10]), &AnchorDraw { num_anchors: 3, seed: 1, epoch })
            {
                hits[anchor] += 1;
            }
        }
        assert!(hits.iter().all(|&count| (900..1100).contains(&count)), "{hits:?}");
    }
}
