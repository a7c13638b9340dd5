//! From tapped hidden states to the keys and values that all layers meet (spec 0.2, 1.2).
//!
//! The context stream is the same for every layer, so the keys and values of all layers come out of one batched product.
//!
//! Shape letters: M context rows, K taps, H hidden size, L layers, nkv key heads, hd head dimension.

use common::model_config::DraftConfig;
use tch::Tensor;

use super::parameters::Parameters;
use super::turn::Turn;
use crate::nn::{linear, rms_norm};

pub(super) struct Context {
    eps: f64,
    head_dim: i64,
    fc: Tensor,          // [H, K*H]
    hidden_norm: Tensor, // [H]
    projection: Tensor,  // [L, 2*nkv*hd, H], each layer's k_proj over its v_proj
    k_norm: Tensor,      // [L, hd]
}

impl Context {
    pub(super) fn new(config: &DraftConfig, parameters: &mut Parameters) -> Context {
        let of_layers = |names: &[&str]| -> Vec<Vec<String>> {
            let name = |layer, name: &&str| format!("layers.{layer}.self_attn.{name}.weight");
            (0..config.num_hidden_layers)
                .map(|layer| names.iter().map(|of_layer| name(layer, of_layer)).collect())
                .collect()
        };
        Context {
            eps: config.rms_norm_eps,
            head_dim: config.head_dim as i64,
            fc: parameters.leaf(&["fc.weight".to_owned()]),
            hidden_norm: parameters.leaf(&["hidden_norm.weight".to_owned()]),
            projection: parameters.stacked_leaf(&of_layers(&["k_proj", "v_proj"])),
            k_norm: parameters.stacked_leaf(&of_layers(&["k_norm"])),
        }
    }

    /// The context stream: [M, K*H] to [M, H].
    pub(super) fn stream(&self, taps: &Tensor) -> Tensor {
        rms_norm(&linear(taps, &self.fc), &self.hidden_norm, self.eps)
    }

    /// Keys, normed and turned, and values of each layer, all [M, nkv, hd].
    pub(super) fn keys_values(&self, stream: &Tensor, turn: &Turn) -> Vec<(Tensor, Tensor)> {
        let layers = self.projection.size()[0];
        let stream = stream.unsqueeze(0).expand([layers, -1, -1], false);
        let both = stream.bmm(&self.projection.transpose(1, 2)).chunk(2, -1);
        let heads = |x: &Tensor| x.view([layers, x.size()[1], -1, self.head_dim]);
        let keys = heads(&both[0]).rms_norm(self.head_dim, None::<&Tensor>, self.eps);
        let keys = turn.apply(&(keys * self.k_norm.view([layers, 1, 1, -1])));
        keys.unbind(0).into_iter().zip(heads(&both[1]).unbind(0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// Spec 7.8: the stream joins the taps in the order of their layers.
    #[test]
    fn fc_takes_taps_in_their_order() {
        let (hidden, rows) = (6, 5);
        let floats = (Kind::Float, Device::Cpu);
        let identity = Tensor::eye(hidden, floats);
        let context = Context {
            eps: 1e-6,
            head_dim: 2,
            fc: Tensor::cat(&[&identity * 2.0, &identity * -3.0], 1),
            hidden_norm: Tensor::ones(hidden, floats),
            projection: Tensor::new(),
            k_norm: Tensor::new(),
        };
        let taps = Tensor::randn([rows, 2 * hidden], floats);
        let mixed = taps.narrow(1, 0, hidden) * 2.0 - taps.narrow(1, hidden, hidden) * 3.0;
        let normed = &mixed / (mixed.square().mean_dim(-1, true, Kind::Float) + 1e-6).sqrt();
        assert!(context.stream(&taps).allclose(&normed, 1e-5, 1e-5, false));
    }
}
