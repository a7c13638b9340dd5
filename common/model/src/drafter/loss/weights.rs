//! How much each slot of a block weighs in the loss (spec 3.7, 3.9).

use tch::{Kind, Tensor};

use crate::runtime;

/// The weighting of a run, with the denominator that goes with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weighting {
    /// `exp(-(i-1)/gamma)` for slot i. The loss is the weighted mean: the denominator is the sum of the weights.
    Decay {
        /// Slots until the weight falls to 1/e.
        gamma: f64,
    },
    /// D-PACE: a slot weighs as much accepted length as hinges on it under the drafter's present confidence. The
    /// denominator is the number of supervised slots: known before the forward, the same on every machine split, and,
    /// unlike the sum of the weights, it keeps the confidence in the scale.
    Dpace {
        /// Floor under the confidence, 0 to 1, that keeps late slots alive; 0.5 is published.
        alpha: f64,
    },
}

impl Weighting {
    /// Weights f32 [N, B] for losses `nll` f32 [N, B]; 0 wherever `supervised` is. They carry no gradient.
    pub fn weights(self, nll: &Tensor, supervised: &Tensor) -> Tensor {
        match self {
            Weighting::Decay { gamma } => {
                let slots: Vec<f32> =
                    decay(supervised.size()[1] as usize, gamma).into_iter().map(|weight| weight as f32).collect();
                runtime::upload(&slots, supervised.device()) * supervised
            }
            Weighting::Dpace { alpha } => dpace(&(-nll).exp(), supervised, alpha) * supervised,
        }
    }

    /// The share of the global denominator that a batch with these label counts by slot adds.
    pub fn denominator(self, slot_counts: &[u64]) -> f64 {
        match self {
            Weighting::Decay { gamma } => decay(slot_counts.len(), gamma)
                .iter()
                .zip(slot_counts)
                .map(|(weight, count)| weight * *count as f64)
                .sum(),
            Weighting::Dpace { .. } => slot_counts.iter().sum::<u64>() as f64,
        }
    }
}

/// Weights of slots 0 to B-1; the anchor's own is 0.
pub fn decay(block_size: usize, gamma: f64) -> Vec<f64> {
    let weight = |slot: usize| if slot == 0 { 0.0 } else { (-(slot as f64 - 1.0) / gamma).exp() };
    (0..block_size).map(weight).collect()
}

/// D-PACE weights [N, B] from the probabilities [N, B] that the drafter gives the labels: with s_i = (1-alpha) q_i + alpha
/// (1 where unsupervised) and C_i the product of s_1 to s_i, slot i weighs the sum of C_r over supervised r >= i.
pub fn dpace(probabilities: &Tensor, supervised: &Tensor, alpha: f64) -> Tensor {
    let confidence = probabilities * (1.0 - alpha) + alpha;
    let confidence = confidence.where_self(&supervised.gt(0.0), &Tensor::ones_like(probabilities));
    let reached = confidence.cumprod(1, Kind::Float) * supervised;
    reached.flip([1]).cumsum(1, Kind::Float).flip([1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 6e-5, "{found} is not {expected}");
        }
    }

    fn block(values: &[f32]) -> Tensor {
        Tensor::from_slice(values).view([1, -1])
    }

    fn list(tensor: &Tensor) -> Vec<f64> {
        Vec::<f64>::try_from(tensor.view(-1).to_kind(Kind::Double)).unwrap()
    }

    /// Spec 3.7's lists and sums.
    #[test]
    fn decay_matches_the_published_lists() {
        let seven = decay(16, 7.0);
        near(&seven[..8], &[0.0, 1.0, 0.8669, 0.7515, 0.6514, 0.5647, 0.4895, 0.4244]);
        near(&seven[8..], &[0.3679, 0.3189, 0.2765, 0.2397, 0.2077, 0.1801, 0.1561, 0.1353]);
        near(&[seven.iter().sum(), decay(10, 5.0).iter().sum()], &[6.6306, 4.6048]);
        near(&decay(8, 4.0), &[0.0, 1.0, 0.7788, 0.6065, 0.4724, 0.3679, 0.2865, 0.2231]);
    }

    /// Spec 7.4.
    #[test]
    fn decay_normalises_by_the_weights_of_supervised_slots() {
        let weighting = Weighting::Decay { gamma: 4.0 };
        let nll = block(&[0.0, 0.5, 1.0, 2.0]);
        let numerator = list(&(weighting.weights(&nll, &block(&[0.0, 1.0, 1.0, 0.0])) * &nll)).iter().sum::<f64>();
        let denominator = weighting.denominator(&[0, 1, 1, 0]);
        near(&[numerator, denominator, numerator / denominator], &[1.278_801, 1.778_801, 0.718_912]);
    }

    /// Spec 7.5.
    #[test]
    fn dpace_weighs_what_hinges_on_a_slot() {
        let all = block(&[1.0; 3]);
        near(&list(&dpace(&block(&[0.9, 0.5, 0.2]), &all, 0.5)), &[2.09, 1.14, 0.4275]);
        near(&list(&dpace(&block(&[0.9, 0.5, 0.2]), &all, 1.0)), &[3.0, 2.0, 1.0]);

        // A gap takes nothing from the slots behind it: s = [.95, 1, .6].
        let gap = block(&[1.0, 0.0, 1.0]);
        near(&list(&dpace(&block(&[0.9, 0.5, 0.2]), &gap, 0.5)), &[1.52, 0.57, 0.57]);

        let (nll, supervised) = (block(&[0.0, 0.5, 1.0, 2.0]), block(&[0.0, 1.0, 1.0, 0.0]));
        near(&list(&dpace(&(-&nll).exp(), &supervised, 0.5)), &[1.352_650, 1.352_650, 0.549_385, 0.0]);
        let weighting = Weighting::Dpace { alpha: 0.5 };
        near(&[list(&(weighting.weights(&nll, &supervised) * &nll)).iter().sum()], &[1.225_710]);
        near(&[weighting.denominator(&[0, 1, 1, 0])], &[2.0]);
    }
}
