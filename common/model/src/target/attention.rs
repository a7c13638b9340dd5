//! Causal attention of the target: over packed documents, and over a cache. Heads are grouped (nh a multiple of nkv).

use tch::{Device, Kind, Tensor};

/// Positions of packed tokens, i64 `[T]`, from 0 in each document.
pub(super) fn packed_positions(document_offsets: &[u32]) -> Tensor {
    let positions: Vec<i64> =
        document_offsets.windows(2).flat_map(|ends| 0..i64::from(ends[1]) - i64::from(ends[0])).collect();
    Tensor::from_slice(&positions)
}

/// Each document over itself: q [nh, T, hd], k and v [nkv, T, hd] to [nh, T, hd].
pub(super) fn packed(q: &Tensor, k: &Tensor, v: &Tensor, document_offsets: &[u32]) -> Tensor {
    let documents = document_offsets.windows(2).filter(|ends| ends[0] < ends[1]).map(|ends| {
        let (start, count) = (i64::from(ends[0]), i64::from(ends[1] - ends[0]));
        let of = |tensor: &Tensor| tensor.narrow(1, start, count);
        attend(&of(q), &of(k), &of(v), None, true)
    });
    Tensor::cat(&documents.collect::<Vec<_>>(), 1)
}

/// Which of `past + count` keys each of the `count` last tokens sees, [count, past + count]; none where that is all.
pub(super) fn causal_mask(past: i64, count: i64, device: Device) -> Option<Tensor> {
    (count > 1).then(|| Tensor::ones([count, past + count], (Kind::Bool, device)).tril(past))
}

/// q [nh, n, hd] over k and v [nkv, m, hd] to [nh, n, hd].
pub(super) fn masked(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Tensor {
    attend(q, k, v, mask, false)
}

fn attend(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, causal: bool) -> Tensor {
    // The fused kernels take a batch axis.
    let [q, k, v] = [q, k, v].map(|tensor| tensor.unsqueeze(0));
    let grouped = q.size()[1] != k.size()[1];
    Tensor::scaled_dot_product_attention(&q, &k, &v, mask, 0.0, causal, None, grouped).squeeze_dim(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_restart_with_each_document() {
        let positions: Vec<i64> = Vec::try_from(packed_positions(&[0, 3, 3, 5])).unwrap();
        assert_eq!(positions, [0, 1, 2, 0, 1]);
    }

    #[test]
    fn new_tokens_see_the_past_and_each_other_backwards() {
        let mask = causal_mask(2, 2, Device::Cpu).unwrap();
        let seen: Vec<bool> = Vec::try_from(mask.reshape(-1)).unwrap();
        assert_eq!(seen, [true, true, true, false, true, true, true, true]);
        assert!(causal_mask(2, 1, Device::Cpu).is_none());
    }
}
