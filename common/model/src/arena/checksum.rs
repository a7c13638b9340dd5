//! A 64-bit checksum of a slot's payload, computed where the payload lies.
//!
//! The payload [T, K*H] is read as little-endian 64-bit words w_0, w_1, ... in row order; the checksum is the sum of
//! w_i * (2 i + 1) modulo 2^64. Each weight is odd, so any change of a single word changes the sum, and words that
//! change places are seen too.

use tch::{Kind, Tensor};

use super::SlotShape;

/// Bytes that are summed at once.
const WORD: usize = 8;

impl SlotShape {
    /// Whether a tap's row is made of whole words.
    pub(super) fn has_checksum(&self) -> bool {
        self.tap_bytes().is_multiple_of(WORD)
    }
}

/// The share of `hidden` [T, H], the columns of tap `tap` of `taps`: an i64 scalar on its device. Shares add up.
pub(super) fn of_columns(hidden: &Tensor, tap: usize, taps: usize) -> Tensor {
    let words = hidden.view_dtype(Kind::Int64);
    let (tokens, width) = words.size2().expect("hidden states are a matrix");
    let options = (Kind::Int64, words.device());
    let rows = Tensor::arange(tokens, options).unsqueeze(1) * (taps as i64 * width * 2);
    let columns = Tensor::arange(width, options) * 2 + (tap as i64 * width * 2 + 1);
    (words * (rows + columns)).sum(Kind::Int64)
}

/// The checksum of a whole payload [T, K*H].
pub fn payload_checksum(payload: &Tensor) -> u64 {
    payload_sum(&of_columns(payload, 0, 1))
}

/// A finished sum as a number; waits for the device.
pub(super) fn payload_sum(sum: &Tensor) -> u64 {
    sum.int64_value(&[]).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn payload() -> Tensor {
        tch::manual_seed(3);
        Tensor::randn([7, 3 * 8], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16)
    }

    #[test]
    fn shares_of_columns_add_up_to_the_whole() {
        let whole = payload();
        let shares = (0..3).map(|tap| of_columns(&whole.narrow(1, tap * 8, 8).contiguous(), tap as usize, 3));
        let sum = shares.reduce(|a, b| a + b).unwrap();
        assert_eq!(payload_sum(&sum), payload_checksum(&whole));
    }

    #[test]
    fn one_changed_element_and_two_swapped_rows_are_seen() {
        let whole = payload();
        let changed = whole.copy();
        let _ = changed.get(5).get(11).fill_(9.0);
        let swapped = whole.index_select(0, &Tensor::from_slice(&[1i64, 0, 2, 3, 4, 5, 6]));
        assert_ne!(payload_checksum(&changed), payload_checksum(&whole));
        assert_ne!(payload_checksum(&swapped), payload_checksum(&whole));
    }

    #[test]
    fn the_definition_by_hand() {
        let words = [5i64, -7, i64::MAX, 11];
        let sum = (0..4).fold(0u64, |sum, i| sum.wrapping_add(words[i].cast_unsigned().wrapping_mul(2 * i as u64 + 1)));
        let matrix = Tensor::from_slice(&words).view([2, 2]).view_dtype(Kind::BFloat16);
        assert_eq!(payload_checksum(&matrix), sum);
    }
}
