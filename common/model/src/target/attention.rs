//! Causal attention of the target: over packed documents, and over a cache. Heads are grouped (nh a multiple of nkv).
//!
//! For bfloat16 on a GPU both are one call of the flash kernel, which is named and so depends on no setting of
//! libtorch's. Elsewhere libtorch's fused attention runs for each document.

use tch::{Device, Kind, Tensor};

use super::bricks::Heads;
use crate::cuda::flash::{Flash, Spans};

/// The flash kernel where it serves tensors of `kind` on `device`.
pub(super) fn flash(kind: Kind, device: Device, head_dim: usize) -> Option<Flash> {
    let served = kind == Kind::BFloat16 && device.is_cuda() && head_dim.is_multiple_of(8) && head_dim <= 256;
    served.then(Flash::find).flatten()
}

/// Where the documents of a packed batch lie.
pub(super) enum Documents<'a> {
    /// For the flash kernel.
    Spans(Flash, Spans),
    /// Offsets from 0.
    Offsets(&'a [u32]),
}

impl Documents<'_> {
    /// Each document over itself: to [T, nh, hd].
    pub(super) fn attend(&self, Heads { q, k, v }: &Heads) -> Tensor {
        let offsets = match self {
            Documents::Spans(flash, spans) => return flash.causal([q, k, v], spans, spans),
            Documents::Offsets(offsets) => offsets,
        };
        let documents = offsets.windows(2).filter(|ends| ends[0] < ends[1]).map(|ends| {
            let (start, count) = (i64::from(ends[0]), i64::from(ends[1] - ends[0]));
            let [q, k, v] = [q, k, v].map(|tensor| tensor.narrow(0, start, count).transpose(0, 1));
            attend(&q, &k, &v, None, true).transpose(0, 1)
        });
        Tensor::cat(&documents.collect::<Vec<_>>(), 0)
    }
}

/// How the `count` last of a sequence's tokens see its `past + count` keys: all but those behind them.
pub(super) enum Sight {
    /// For the flash kernel: queries, keys.
    Spans(Flash, Spans, Spans),
    /// The tokens are the whole sequence.
    Causal,
    /// One token sees all.
    All,
    /// [count, past + count].
    Mask(Tensor),
}

impl Sight {
    pub(super) fn new(flash: Option<Flash>, past: i64, count: i64, device: Device) -> Sight {
        if let Some(flash) = flash {
            let spans = |length: i64| Spans::upload(&[0, length as i32], device);
            return Sight::Spans(flash, spans(count), spans(past + count));
        }
        match (past, count) {
            (_, 1) => Sight::All,
            (0, _) => Sight::Causal,
            _ => Sight::Mask(Tensor::ones([count, past + count], (Kind::Bool, device)).tril(past)),
        }
    }

    /// q [count, nh, hd] over keys and values [nkv, past + count, hd], as a cache holds them: to [count, nh, hd].
    pub(super) fn attend(&self, q: &Tensor, keys: &Tensor, values: &Tensor) -> Tensor {
        let (mask, causal) = match self {
            Sight::Spans(flash, queries, past) => {
                return flash.causal([q, &keys.transpose(0, 1), &values.transpose(0, 1)], queries, past);
            }
            Sight::Causal => (None, true),
            Sight::All => (None, false),
            Sight::Mask(mask) => (Some(mask), false),
        };
        attend(&q.transpose(0, 1), keys, values, mask, causal).transpose(0, 1)
    }
}

/// q [nh, n, hd] over k and v [nkv, m, hd] to [nh, n, hd].
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
    fn new_tokens_see_the_past_and_each_other_backwards() {
        let Sight::Mask(mask) = Sight::new(None, 2, 2, Device::Cpu) else {
            panic!("two tokens behind two need a mask")
        };
        let seen: Vec<bool> = Vec::try_from(mask.reshape(-1)).unwrap();
        assert_eq!(seen, [true, true, true, false, true, true, true, true]);
        assert!(matches!(Sight::new(None, 2, 1, Device::Cpu), Sight::All));
    }
}
