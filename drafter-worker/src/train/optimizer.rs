//! AdamW over float32 masters of the drafter's weights, with global-norm clipping.
//!
//! Masters and moments are flat tensors in the order of the sorted names, as the drafter's weights and gradients are; a
//! step is a handful of operations over them. When the drafter computes in float32 its weights are the masters.

use std::path::Path;

use common::config::TrainingSection;
use model::drafter::Parameters;
use model::weights::{self, SaveError, WeightsError};
use tch::{Kind, Tensor};

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPSILON: f64 = 1e-8;

/// Elements updated at a time: bounds what temporaries take.
const CHUNK: i64 = 1 << 24;

/// A step that must not be taken.
#[derive(Debug, thiserror::Error)]
#[error("the gradient of optimizer step {step} is not finite (its norm is {norm})")]
pub(crate) struct NotFinite {
    step: u64,
    norm: f64,
}

/// The optimizer and its state.
pub(crate) struct AdamW {
    layout: Vec<(String, Vec<i64>)>,
    masters: Tensor,
    first_moments: Tensor,
    second_moments: Tensor,
    /// Steps taken.
    step: u64,
    weight_decay: f64,
    max_grad_norm: f64,
}

impl AdamW {
    /// No step taken yet; masters are the weights as they are.
    pub(crate) fn new(parameters: &Parameters, training: &TrainingSection) -> AdamW {
        let weights = parameters.values();
        let masters = match weights.kind() {
            Kind::Float => weights.shallow_clone(),
            _ => weights.to_kind(Kind::Float),
        };
        AdamW {
            layout: parameters.named().iter().map(|(name, leaf)| (name.clone(), leaf.size())).collect(),
            first_moments: masters.zeros_like(),
            second_moments: masters.zeros_like(),
            masters,
            step: 0,
            weight_decay: training.weight_decay,
            max_grad_norm: training.max_grad_norm,
        }
    }

    /// Takes one step with the gradient divided by `denominator`, then forgets the gradient. Returns the norm that the
    /// divided gradient had before it was clipped.
    ///
    /// # Errors
    /// The norm is infinite or not a number: weights and state stay as they are.
    pub(crate) fn update(
        &mut self,
        parameters: &mut Parameters,
        denominator: f64,
        rate: f64,
    ) -> Result<f64, NotFinite> {
        let mut gradient = parameters.gradient().shallow_clone();
        let norm = gradient.norm().double_value(&[]) / denominator;
        if !norm.is_finite() {
            return Err(NotFinite { step: self.step + 1, norm });
        }
        let clipped = (self.max_grad_norm / (norm + 1e-6)).min(1.0);
        let _ = gradient.g_mul_scalar_(clipped / denominator);
        self.step += 1;
        let total = self.masters.size()[0];
        for start in (0..total).step_by(CHUNK as usize) {
            self.update_chunk(&gradient, start, CHUNK.min(total - start), rate);
        }
        parameters.assign(&self.masters);
        parameters.zero_gradient();
        Ok(norm)
    }

    fn update_chunk(&self, gradient: &Tensor, start: i64, length: i64, rate: f64) {
        let chunk = |flat: &Tensor| flat.narrow(0, start, length);
        let (gradient, mut master) = (chunk(gradient), chunk(&self.masters));
        let (mut first, mut second) = (chunk(&self.first_moments), chunk(&self.second_moments));
        let _ = first.lerp_(&gradient, 1.0 - BETA1);
        let _ = second.g_mul_scalar_(BETA2);
        second += gradient.square() * (1.0 - BETA2);
        let (correction1, correction2) = (1.0 - BETA1.powf(self.step as f64), 1.0 - BETA2.powf(self.step as f64));
        let scale = second.sqrt() * (1.0 / correction2.sqrt()) + EPSILON;
        if self.weight_decay != 0.0 {
            let _ = master.g_mul_scalar_(1.0 - rate * self.weight_decay);
        }
        master -= first / scale * (rate / correction1);
    }

    /// Writes masters and moments by name, float32, and the number of steps.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn save(&self, path: &Path) -> Result<(), SaveError> {
        let mut tensors = self.entries();
        tensors.push(("step".to_owned(), Tensor::from(self.step as f32)));
        weights::save(path, &tensors, Kind::Float)
    }

    /// Goes on from a file that `save` wrote; the drafter's weights become its masters.
    ///
    /// # Errors
    /// The file cannot be read or is of another drafter.
    pub(crate) fn load(&mut self, path: &Path, parameters: &mut Parameters) -> Result<(), WeightsError> {
        let entries = self.entries();
        let mut expected: Vec<_> = entries.iter().map(|(name, tensor)| (name.clone(), tensor.size())).collect();
        expected.push(("step".to_owned(), vec![]));
        let loaded = weights::load_file(path, &expected, Kind::Float, self.masters.device())?;
        for (name, mut tensor) in entries {
            tensor.copy_(&loaded[&name]);
        }
        self.step = loaded["step"].double_value(&[]) as u64;
        parameters.assign(&self.masters);
        Ok(())
    }

    /// The state's tensors, named as the file has them: views.
    fn entries(&self) -> Vec<(String, Tensor)> {
        let flats = [("master", &self.masters), ("exp_avg", &self.first_moments), ("exp_avg_sq", &self.second_moments)];
        let mut entries = Vec::new();
        for (part, flat) in flats {
            let mut start = 0;
            for (name, shape) in &self.layout {
                let length = shape.iter().product();
                entries.push((format!("{name}.{part}"), flat.narrow(0, start, length).view(shape.as_slice())));
                start += length;
            }
        }
        entries
    }
}
