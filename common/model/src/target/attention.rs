//! Causal attention of the target: over packed documents, and over a cache. Heads are grouped (nh a multiple of nkv).
//!
//! For bfloat16 on a GPU both are one call of a kernel that is named, and so depend on no setting of libtorch's: cuDNN's
//! where documents are alike, else the flash kernel. Elsewhere libtorch's fused attention runs for each document.

use tch::{Device, Kind, Tensor};

use super::bricks::Heads;
use super::grid::Grid;
use crate::cuda::Gpu;
use crate::cuda::cudnn::Cudnn;
use crate::cuda::flash::{Flash, Spans};
use crate::runtime;

/// What a GPU has for bfloat16.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    flash: Flash,
    cudnn: Option<Cudnn>,
}

impl Kernels {
    /// Those that serve tensors of `kind` on `device`: flash from compute capability 8.0 on, cuDNN's where it is the faster,
    /// from 9.0 on.
    pub(super) fn find(kind: Kind, device: Device, head_dim: usize) -> Option<Kernels> {
        let (Kind::BFloat16, Device::Cuda(ordinal)) = (kind, device) else { return None };
        let (generation, _) = Gpu::open(ordinal).ok()?.context().compute_capability().ok()?;
        let served = generation >= 8 && head_dim.is_multiple_of(8) && head_dim <= 256;
        let flash = served.then(Flash::find).flatten()?;
        let cudnn = (generation >= 9 && head_dim <= 128).then(Cudnn::find).flatten();
        Some(Kernels { flash, cudnn })
    }
}

/// Where the documents of a packed batch lie, and so how they attend.
pub(super) enum Documents<'a> {
    /// Anywhere: for the flash kernel.
    Spans(Flash, Spans),
    /// In rows of one width, for cuDNN; with what to copy unless the packed batch is the grid.
    Grid(Cudnn, Grid, Option<Copies>),
    /// Offsets from 0.
    Offsets(&'a [u32]),
}

/// Between packed tokens and places of a grid.
pub(super) struct Copies {
    tokens: Tensor, // i32 [rows * width], the token at each place
    places: Tensor, // i32 [T], the place of each token
}

impl<'a> Documents<'a> {
    /// `uploaded` is `offsets` on the device.
    pub(super) fn new(kernels: Option<Kernels>, offsets: &'a [u32], uploaded: Tensor) -> Documents<'a> {
        let Some(Kernels { flash, cudnn }) = kernels else { return Documents::Offsets(offsets) };
        match cudnn.and_then(|cudnn| Some((cudnn, Grid::of(offsets)?))) {
            Some((cudnn, grid)) => {
                let copies = (!grid.is_full(offsets)).then(|| Copies::new(&grid, offsets, uploaded.device()));
                Documents::Grid(cudnn, grid, copies)
            }
            None => {
                let longest = offsets.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
                Documents::Spans(flash, Spans { offsets: uploaded, longest: i64::from(longest) })
            }
        }
    }

    /// Each document over itself: to [T, nh, hd].
    pub(super) fn attend(&self, Heads { q, k, v }: &Heads) -> Tensor {
        match self {
            Documents::Spans(flash, spans) => flash.causal([q, k, v], spans, spans),
            Documents::Grid(cudnn, grid, None) => grid_attention(*cudnn, grid, [q, k, v]),
            Documents::Grid(cudnn, grid, Some(Copies { tokens, places })) => {
                let [q, k, v] = [q, k, v].map(|heads| heads.index_select(0, tokens));
                grid_attention(*cudnn, grid, [&q, &k, &v]).index_select(0, places)
            }
            Documents::Offsets(offsets) => each_document([q, k, v], offsets),
        }
    }
}

impl Copies {
    fn new(grid: &Grid, offsets: &[u32], device: Device) -> Copies {
        Copies {
            tokens: runtime::upload(&grid.tokens(offsets), device),
            places: runtime::upload(&grid.places(offsets), device),
        }
    }
}

/// Heads [rows * width, .., hd] to [rows * width, nh, hd].
fn grid_attention(cudnn: Cudnn, grid: &Grid, heads: [&Tensor; 3]) -> Tensor {
    let [q, k, v] = heads.map(|heads| heads.unflatten(0, [i64::from(grid.rows), i64::from(grid.width)]));
    cudnn.causal([&q, &k, &v]).flatten(0, 1)
}

fn each_document(heads: [&Tensor; 3], offsets: &[u32]) -> Tensor {
    let documents = offsets.windows(2).filter(|ends| ends[0] < ends[1]).map(|ends| {
        let (start, count) = (i64::from(ends[0]), i64::from(ends[1] - ends[0]));
        let [q, k, v] = heads.map(|tensor| tensor.narrow(0, start, count).transpose(0, 1));
        attend(&q, &k, &v, None, true).transpose(0, 1)
    });
    Tensor::cat(&documents.collect::<Vec<_>>(), 0)
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
    pub(super) fn new(kernels: Option<Kernels>, past: i64, count: i64, device: Device) -> Sight {
        if let Some(Kernels { flash, .. }) = kernels {
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
