//! Rotary position tables: plain, llama3 and yarn, half-split over the whole head dimension (spec 1.3).
//!
//! Frequencies and tables are computed in float64 and kept in float32: bfloat16 frequencies turn positions past a few
//! hundred tokens out of phase.

use std::f64::consts::PI;

use common::model_config::{Rope, RopeScaling};
use tch::{Device, Kind, Tensor};

/// Inverse frequencies of one model, on its device.
pub struct Rotary {
    inverse_frequencies: Tensor, // [hd/2] f32
    attention_factor: f64,
}

/// Cosines and sines of given positions, both f32 [T, hd]; the second half repeats the first.
pub struct RopeTables {
    /// Cosines times yarn's attention factor.
    pub cos: Tensor,
    /// Sines times yarn's attention factor.
    pub sin: Tensor,
}

impl Rotary {
    /// Frequencies for heads of `head_dim` elements.
    pub fn new(rope: &Rope, head_dim: usize, device: Device) -> Rotary {
        let plain: Vec<f64> = (0..head_dim / 2).map(|m| rope.theta.powf(-2.0 * m as f64 / head_dim as f64)).collect();
        let scaled = match rope.scaling {
            RopeScaling::Default => plain,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                llama3(plain, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings)
            }
            RopeScaling::Yarn { factor, original_max_position_embeddings, beta_fast, beta_slow, truncate, .. } => {
                let turns = (beta_fast, beta_slow);
                Ramp::new(rope, head_dim, original_max_position_embeddings, turns, truncate).yarn(plain, factor)
            }
        };
        let inverse_frequencies = Tensor::from_slice(&scaled).to_kind(Kind::Float).to_device(device);
        Rotary { inverse_frequencies, attention_factor: rope.scaling.attention_factor() }
    }

    /// Tables for `positions`, i64 of any shape [..]; the result has a last axis of hd more.
    pub fn tables(&self, positions: &Tensor) -> RopeTables {
        let angles = positions.to_kind(Kind::Float).unsqueeze(-1) * &self.inverse_frequencies;
        let angles = Tensor::cat(&[&angles, &angles], -1);
        RopeTables { cos: angles.cos() * self.attention_factor, sin: angles.sin() * self.attention_factor }
    }
}

/// Turns x [.., T, hd] by tables [T, hd] (or any shape that broadcasts), in float32, back to x's type.
pub fn rotate(x: &Tensor, tables: &RopeTables) -> Tensor {
    let wide = x.to_kind(Kind::Float);
    let halves = wide.chunk(2, -1);
    let turned = Tensor::cat(&[&halves[1].neg(), &halves[0]], -1);
    (wide * &tables.cos + turned * &tables.sin).to_kind(x.kind())
}

/// Llama 3's rule: frequencies of few turns over the original context are divided, those of many kept, blended between.
fn llama3(plain: Vec<f64>, factor: f64, low_turns: f64, high_turns: f64, original: usize) -> Vec<f64> {
    let blend = |inverse: f64| {
        let turns = original as f64 * inverse / (2.0 * PI);
        let kept = ((turns - low_turns) / (high_turns - low_turns)).clamp(0.0, 1.0);
        inverse * kept + inverse / factor * (1.0 - kept)
    };
    plain.into_iter().map(blend).collect()
}

/// Where YaRN's ramp from kept to interpolated frequencies lies, in dimensions (arXiv 2309.00071, section 3.2).
struct Ramp {
    first: f64,
    last: f64,
}

impl Ramp {
    fn new(rope: &Rope, head_dim: usize, original: usize, (fast, slow): (f64, f64), truncate: bool) -> Ramp {
        let dimension =
            |turns: f64| head_dim as f64 * (original as f64 / (turns * 2.0 * PI)).ln() / (2.0 * rope.theta.ln());
        let (mut first, mut last) = (dimension(fast), dimension(slow));
        if truncate {
            (first, last) = (first.floor(), last.ceil());
        }
        let (first, mut last) = (first.max(0.0), last.min(head_dim as f64 - 1.0));
        if first == last {
            last += 0.001;
        }
        Ramp { first, last }
    }

    fn yarn(&self, plain: Vec<f64>, factor: f64) -> Vec<f64> {
        let blend = |(m, inverse): (usize, f64)| {
            let interpolated = ((m as f64 - self.first) / (self.last - self.first)).clamp(0.0, 1.0);
            inverse * (1.0 - interpolated) + inverse / factor * interpolated
        };
        plain.into_iter().enumerate().map(blend).collect()
    }
}
