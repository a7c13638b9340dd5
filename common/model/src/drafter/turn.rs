//! Rotary positions of the drafter's keys and queries, in its compute type and in few operations.
//!
//! `x cos + roll(x) sin`, where the roll swaps the halves and the sine of the first half carries the sign: what
//! `nn::rotate` computes, without widening x. Angles, sines and cosines are still computed in float32 (spec 1.3).

use tch::{Kind, Tensor};

use crate::nn::RopeTables;

/// Cosines and signed sines, both [n, 1, hd].
pub(super) struct Turn {
    cos: Tensor,
    sin: Tensor,
}

impl Turn {
    /// Of tables [n, hd], for keys and queries of type `kind`.
    pub(super) fn new(tables: &RopeTables, kind: Kind) -> Turn {
        let halves = tables.sin.chunk(2, -1);
        let sin = Tensor::cat(&[&halves[0].neg(), &halves[1]], -1);
        let placed = |table: &Tensor| table.to_kind(kind).unsqueeze(1);
        Turn { cos: placed(&tables.cos), sin: placed(&sin) }
    }

    /// That of the first `count` positions, and that of the others.
    pub(super) fn split(&self, count: i64) -> (Turn, Turn) {
        let part =
            |start, length| Turn { cos: self.cos.narrow(0, start, length), sin: self.sin.narrow(0, start, length) };
        (part(0, count), part(count, self.cos.size()[0] - count))
    }

    /// Turns x [.., n, heads, hd].
    pub(super) fn apply(&self, x: &Tensor) -> Tensor {
        let half = x.size()[x.dim() - 1] / 2;
        (x * &self.cos).addcmul(&x.roll([half], [-1]), &self.sin)
    }
}

#[cfg(test)]
mod tests {
    use common::model_config::{Rope, RopeScaling};
    use tch::Device;

    use super::*;
    use crate::nn::{Rotary, rotate};

    #[test]
    fn it_turns_as_the_plain_formula_does() {
        let rotary = Rotary::new(&Rope { theta: 1e4, scaling: RopeScaling::Default }, 8, Device::Cpu);
        let tables = rotary.tables(&Tensor::from_slice(&[0i64, 1, 7, 300, 2]));
        let x = Tensor::randn([5, 3, 8], (Kind::Float, Device::Cpu));
        let expected = rotate(&x.transpose(0, 1), &tables).transpose(0, 1);
        let turn = Turn::new(&tables, Kind::Float);
        assert!(turn.apply(&x).allclose(&expected, 1e-5, 1e-6, false));
        let (first, rest) = turn.split(2);
        let pieces = Tensor::cat(&[first.apply(&x.narrow(0, 0, 2)), rest.apply(&x.narrow(0, 2, 3))], 0);
        assert!(pieces.allclose(&expected, 1e-5, 1e-6, false));
    }
}
