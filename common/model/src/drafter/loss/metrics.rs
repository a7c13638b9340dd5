//! What a batch adds to the numbers of a step (spec 3.13): sums only, so that they add up over chunks, batches and drafters
//! and are divided once.

use std::ops::AddAssign;

use tch::{Kind, Tensor};

/// Sums over blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockTotals {
    /// Sum of weight times loss.
    pub numerator: f64,
    /// What the numerator is divided by; see `Weighting`.
    pub denominator: f64,
    /// Sum over blocks of 1 + leading right slots; slots without a label neither count nor break.
    pub accepted: f64,
    /// Blocks with at least one supervised slot.
    pub blocks: f64,
    /// Right predictions by slot, slots 1 to B-1.
    pub correct: Vec<f64>,
    /// Supervised slots by slot, slots 1 to B-1.
    pub counted: Vec<f64>,
}

impl BlockTotals {
    /// Nothing yet.
    pub fn zero(block_size: usize) -> BlockTotals {
        let none = vec![0.0; block_size - 1];
        let (numerator, denominator, accepted, blocks) = (0.0, 0.0, 0.0, 0.0);
        BlockTotals { numerator, denominator, accepted, blocks, correct: none.clone(), counted: none }
    }

    /// As one list of numbers, for a sum over drafters.
    pub fn to_scalars(&self) -> Vec<f64> {
        let single = [self.numerator, self.denominator, self.accepted, self.blocks];
        single.iter().chain(&self.correct).chain(&self.counted).copied().collect()
    }

    /// The inverse of `to_scalars`.
    pub fn from_scalars(scalars: &[f64]) -> BlockTotals {
        let (single, by_slot) = scalars.split_at(4);
        let (correct, counted) = by_slot.split_at(by_slot.len() / 2);
        BlockTotals {
            numerator: single[0],
            denominator: single[1],
            accepted: single[2],
            blocks: single[3],
            correct: correct.to_vec(),
            counted: counted.to_vec(),
        }
    }

    /// How many sums [`BlockTotals::from_sums`] takes for blocks of this size.
    pub fn num_sums(block_size: usize) -> usize {
        BlockTotals::zero(block_size).to_scalars().len() - 1
    }

    /// From the device's sums (the numerator, then accepted, blocks, and correct and counted by slot) and the denominator, which
    /// the host knows.
    pub fn from_sums(sums: &[f64], denominator: f64) -> BlockTotals {
        BlockTotals::from_scalars(&[&sums[..1], &[denominator], &sums[1..]].concat())
    }

    /// The loss: numerator over denominator; 0 when nothing is supervised.
    pub fn loss(&self) -> f64 {
        ratio(self.numerator, self.denominator)
    }

    /// Share of supervised slots predicted right; weights do not enter.
    pub fn accuracy(&self) -> f64 {
        ratio(self.correct.iter().sum(), self.counted.iter().sum())
    }

    /// Accuracy of slots 1 to B-1.
    pub fn slot_accuracy(&self) -> Vec<f64> {
        self.correct.iter().zip(&self.counted).map(|(&correct, &counted)| ratio(correct, counted)).collect()
    }

    /// Mean tokens a verification would commit, its own bonus token included.
    pub fn accepted_length(&self) -> f64 {
        ratio(self.accepted, self.blocks)
    }

    /// Expected accepted drafts if slots were right independently of each other: no bonus, and not equal to
    /// `accepted_length` - 1.
    pub fn expected_accepted(&self) -> f64 {
        let reached = self.slot_accuracy().into_iter().scan(1.0, |product, accuracy| {
            *product *= accuracy;
            Some(*product)
        });
        reached.sum()
    }
}

impl AddAssign<&BlockTotals> for BlockTotals {
    fn add_assign(&mut self, other: &BlockTotals) {
        let sums: Vec<f64> =
            self.to_scalars().iter().zip(other.to_scalars()).map(|(left, right)| left + right).collect();
        *self = BlockTotals::from_scalars(&sums);
    }
}

fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator > 0.0 { numerator / denominator } else { 0.0 }
}

/// [accepted, blocks, correct by slot, counted by slot], f64, from `correct` and `supervised`, both f32 [N, B].
pub(super) fn sums(correct: &Tensor, supervised: &Tensor) -> Tensor {
    let slots = supervised.size()[1] - 1;
    let (correct, supervised) = (correct.narrow(1, 1, slots), supervised.narrow(1, 1, slots));
    let right = &correct * &supervised;
    let unbroken = (&right + 1.0 - &supervised).cumprod(1, Kind::Float);
    let blocks = supervised.amax(1, false).sum(Kind::Double).view(1);
    let accepted = (unbroken * &supervised).sum(Kind::Double).view(1) + &blocks;
    let by_slot = |cells: &Tensor| cells.sum_dim_intlist(0, false, Kind::Double);
    Tensor::cat(&[accepted, blocks, by_slot(&right), by_slot(&supervised)], 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(correct: &[f32], supervised: &[f32]) -> BlockTotals {
        let grid = |cells: &[f32]| Tensor::from_slice(cells).view([-1, 4]);
        let scalars = Vec::<f64>::try_from(sums(&grid(correct), &grid(supervised))).unwrap();
        BlockTotals::from_scalars(&[vec![0.0, 0.0], scalars].concat())
    }

    /// Spec 7.6.
    #[test]
    fn accepted_length_of_the_published_case() {
        let found = totals(&[9., 1., 1., 0., 9., 1., 0., 1.], &[0., 1., 1., 1., 0., 1., 1., 1.]);
        assert_eq!(found.accepted_length(), 2.5);
        assert_eq!(found.slot_accuracy(), [1.0, 0.5, 0.5]);
        assert_eq!(found.expected_accepted(), 1.75);
        assert_eq!(found.accuracy(), 4.0 / 6.0);
    }

    #[test]
    fn slots_without_a_label_neither_count_nor_break() {
        let found = totals(&[0., 0., 1., 0.], &[0., 0., 1., 1.]);
        assert_eq!((found.accepted, found.blocks), (2.0, 1.0));
        let nothing = totals(&[0.; 4], &[0.; 4]);
        assert_eq!((nothing.accepted, nothing.blocks, nothing.accepted_length()), (0.0, 0.0, 0.0));
    }

    #[test]
    fn sums_add_up_before_they_are_divided() {
        let one = totals(&[0., 1., 1., 0.], &[0., 1., 1., 1.]);
        let other = totals(&[0., 1., 0., 1.], &[0., 1., 1., 1.]);
        let mut both = BlockTotals::zero(4);
        both += &one;
        both += &other;
        assert_eq!(both.accepted_length(), 2.5);
        assert_eq!(BlockTotals::from_scalars(&both.to_scalars()), both);
    }
}
