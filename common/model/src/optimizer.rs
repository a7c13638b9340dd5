//! AdamW over float32 masters of the drafter's weights, with global-norm clipping.
//!
//! Masters and moments are flat tensors in the order of the drafter's weights and gradients. On a GPU a step is one kernel
//! over them, and the host learns of the gradient's norm when it asks; without that kernel it is a handful of operations.
//! When the drafter computes in float32 its weights are the masters.

use std::path::Path;

use crate::cuda::step::{AdamWState, AdamWStep, StepKernels};
use crate::drafter::Parameters;
use crate::weights::{self, Mirror, SaveError, WeightsError};
use common::config::TrainingSection;
use tch::{Kind, TchError, Tensor};

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPSILON: f64 = 1e-8;

/// Elements updated at a time: bounds what temporaries take, and fits them into a processor's cache.
const CHUNK: i64 = 1 << 16;

/// A step that was not taken.
#[derive(Debug, thiserror::Error)]
#[error("the gradient of optimizer step {step} is not finite (its norm is {norm})")]
pub struct NotFinite {
    step: u64,
    norm: f64,
}

/// The optimizer and its state.
pub struct AdamW {
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
    pub fn new(parameters: &Parameters, training: &TrainingSection) -> AdamW {
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

    /// Takes one step with the gradient divided by `denominator`, then forgets the gradient. Where the norm is infinite or
    /// not a number, weights and moments stay as they are. The host does not wait for a GPU.
    pub fn update(&mut self, parameters: &mut Parameters, denominator: f64, rate: f64) -> GradientNorm {
        let norm = parameters.gradient().norm();
        let taken = self.step + 1;
        let step = AdamWStep {
            denominator,
            max_norm: self.max_grad_norm,
            step_size: rate / (1.0 - BETA1.powf(taken as f64)),
            correction2: 1.0 / (1.0 - BETA2.powf(taken as f64)).sqrt(),
            kept: 1.0 - rate * self.weight_decay,
            beta1: BETA1,
            beta2: BETA2,
            epsilon: EPSILON,
        };
        self.step = taken;
        match StepKernels::of(norm.device()) {
            Some(kernels) => kernels.adamw(&self.state(parameters), &norm, &step),
            None => self.update_in_chunks(parameters, &norm, &step),
        }
        GradientNorm { step: taken, norm: norm.to_kind(Kind::Double) / denominator }
    }

    fn state<'a>(&'a self, parameters: &'a Parameters) -> AdamWState<'a> {
        AdamWState {
            masters: &self.masters,
            first_moments: &self.first_moments,
            second_moments: &self.second_moments,
            gradient: parameters.gradient(),
            weights: (parameters.values().kind() != Kind::Float).then(|| parameters.values()),
        }
    }

    /// What the kernel does, by libtorch's operations.
    fn update_in_chunks(&self, parameters: &mut Parameters, norm: &Tensor, step: &AdamWStep) {
        let mean_norm = norm.double_value(&[]) / step.denominator;
        if !mean_norm.is_finite() {
            return parameters.zero_gradient();
        }
        let scale = (step.max_norm / (mean_norm + 1e-6)).min(1.0) / step.denominator;
        let total = self.masters.size()[0];
        for start in (0..total).step_by(CHUNK as usize) {
            let chunk = |flat: &Tensor| flat.narrow(0, start, CHUNK.min(total - start));
            let gradient = chunk(parameters.gradient()) * scale;
            let (mut master, mut first, mut second) =
                (chunk(&self.masters), chunk(&self.first_moments), chunk(&self.second_moments));
            let _ = first.lerp_(&gradient, 1.0 - step.beta1);
            let _ = second.g_mul_scalar_(step.beta2);
            second += gradient.square() * (1.0 - step.beta2);
            let root = second.sqrt() * step.correction2 + step.epsilon;
            if step.kept != 1.0 {
                let _ = master.g_mul_scalar_(step.kept);
            }
            master -= first / root * step.step_size;
        }
        parameters.assign(&self.masters);
        parameters.zero_gradient();
    }

    /// Writes masters and moments by name, float32, and the number of steps.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), SaveError> {
        let mut tensors = self.entries();
        tensors.push(self.step_entry());
        weights::save(path, &tensors, Kind::Float)
    }

    /// Makes a file for [`AdamW::copy_into`], which [`AdamW::load`] reads like one that `save` wrote.
    ///
    /// # Errors
    /// There is such a file, or no room for it.
    pub fn mirror(&self, path: &Path) -> Result<Mirror, SaveError> {
        let entries = self.entries().into_iter().chain([self.step_entry()]);
        let tensors: Vec<(String, Vec<i64>)> = entries.map(|(name, tensor)| (name, tensor.size())).collect();
        Mirror::create(path, &tensors, self.masters.device())
    }

    /// Writes all of the state into a file that [`AdamW::mirror`] made.
    ///
    /// # Errors
    /// The GPU fails.
    pub fn copy_into(&self, mirror: &mut Mirror) -> Result<(), TchError> {
        // In the order of `entries`.
        mirror.write(&[&self.masters, &self.first_moments, &self.second_moments, &self.step_entry().1])
    }

    /// Goes on from a file that `save` wrote; the drafter's weights become its masters. Each tensor is read into its place:
    /// going on takes no more memory than beginning.
    ///
    /// # Errors
    /// The file cannot be read or is of another drafter.
    pub fn load(&mut self, path: &Path, parameters: &mut Parameters) -> Result<(), WeightsError> {
        let mut places = self.entries();
        let (name, step) = self.step_entry();
        places.push((name, step.shallow_clone()));
        weights::load_file_into(path, &places)?;
        self.step = step.double_value(&[]) as u64;
        parameters.assign(&self.masters);
        Ok(())
    }

    /// The number of steps, as the file has it.
    fn step_entry(&self) -> (String, Tensor) {
        ("step".to_owned(), Tensor::from(self.step as f32))
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

/// The norm that a step's mean gradient had before it was clipped.
pub struct GradientNorm {
    step: u64,
    norm: Tensor,
}

impl GradientNorm {
    /// The optimizer's step, from 1.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// On the device, f64, no axis.
    pub fn norm(&self) -> &Tensor {
        &self.norm
    }

    /// Judges the norm once it has come to the host.
    ///
    /// # Errors
    /// It is infinite or not a number: the step was not taken.
    pub fn checked(step: u64, norm: f64) -> Result<f64, NotFinite> {
        if norm.is_finite() { Ok(norm) } else { Err(NotFinite { step, norm }) }
    }

    /// Waits for the norm.
    ///
    /// # Errors
    /// It is infinite or not a number: the step was not taken.
    pub fn fetch(&self) -> Result<f64, NotFinite> {
        GradientNorm::checked(self.step, self.norm.double_value(&[]))
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn training(weight_decay: f64) -> TrainingSection {
        TrainingSection { weight_decay, max_grad_norm: 1.0, ..TrainingSection::default() }
    }

    fn parameters(kind: Kind) -> Parameters {
        let shapes = [("a".to_owned(), vec![2, 2]), ("b".to_owned(), vec![3])];
        let mut parameters = Parameters::zeros(&shapes, kind, Device::Cpu).unwrap();
        parameters.assign(&Tensor::from_slice(&[0.5f32, -1.0, 2.0, 0.25, 1.0, -0.5, 0.1]));
        parameters
    }

    /// Of `2 * sum(a * a) + sum((b * [3, -2, 1]) ** 2)`.
    fn gradient(parameters: &Parameters) -> Tensor {
        parameters.values() * Tensor::from_slice(&[4f32, 4.0, 4.0, 4.0, 18.0, 8.0, 2.0])
    }

    fn list(tensor: &Tensor) -> Vec<f64> {
        Vec::try_from(tensor.to_kind(Kind::Double).view(-1)).unwrap()
    }

    fn steps(optimizer: &mut AdamW, parameters: &mut Parameters, steps: std::ops::Range<u32>) -> Vec<f64> {
        let step = |step| {
            parameters.set_gradient(&(gradient(parameters) * 3.0));
            optimizer.update(parameters, 3.0, 0.1 / f64::from(step + 1)).fetch().unwrap()
        };
        steps.map(step).collect()
    }

    /// ```python
    /// a = torch.tensor([[0.5, -1.0], [2.0, 0.25]], requires_grad=True)
    /// b = torch.tensor([1.0, -0.5, 0.1], requires_grad=True)
    /// optimizer = torch.optim.AdamW([a, b], lr=0.1, weight_decay=0.01)
    /// for t in range(5):
    ///     optimizer.zero_grad()
    ///     ((a * a).sum() * 2 + (b * torch.tensor([3.0, -2.0, 1.0])).pow(2).sum()).backward()
    ///     norm = torch.nn.utils.clip_grad_norm_([a, b], 1.0)
    ///     optimizer.param_groups[0]["lr"] = 0.1 / (t + 1)
    ///     optimizer.step()
    /// ```
    #[test]
    fn steps_are_pytorchs() {
        let mut parameters = parameters(Kind::Float);
        let mut optimizer = AdamW::new(&parameters, &training(0.01));
        let norms = steps(&mut optimizer, &mut parameters, 0..5);
        let golden_norms = [20.616_499, 18.589_073, 17.588_085, 16.926_085, 16.432_625];
        let golden =
            [0.272_143_04, -0.769_600_45, 1.766_984_58, 0.031_182_64, 0.769_600_45, -0.272_143_04, -0.034_835_19];
        let found = [norms, list(parameters.values())].concat();
        for (found, expected) in found.into_iter().zip(golden_norms.into_iter().chain(golden)) {
            assert!((found - expected).abs() < 2e-6 * f64::abs(expected).max(0.1), "{found} is not {expected}");
        }
    }

    #[test]
    fn a_resumed_run_goes_on_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        let (saved, mirrored) = (folder.path().join("saved"), folder.path().join("mirrored"));
        for kind in [Kind::Float, Kind::BFloat16] {
            let mut unbroken = parameters(kind);
            let mut optimizer = AdamW::new(&unbroken, &training(0.0));
            let mut mirror = optimizer.mirror(&mirrored).unwrap();
            for round in 0..2 {
                optimizer.copy_into(&mut mirror).unwrap();
                steps(&mut optimizer, &mut unbroken, round..round + 1);
            }
            optimizer.save(&saved).unwrap();
            optimizer.copy_into(&mut mirror).unwrap();
            steps(&mut optimizer, &mut unbroken, 2..5);

            for path in [&saved, &mirrored] {
                let mut resumed = parameters(kind);
                let mut optimizer = AdamW::new(&resumed, &training(0.0));
                optimizer.load(path, &mut resumed).unwrap();
                steps(&mut optimizer, &mut resumed, 2..5);
                assert_eq!(list(resumed.values()), list(unbroken.values()));
            }
            std::fs::remove_file(&mirrored).unwrap();
        }
    }

    /// Steps of 1e-3 on weights near 1 vanish in bfloat16; the masters keep them.
    #[test]
    fn small_steps_add_up_in_the_masters() {
        let mut parameters = parameters(Kind::BFloat16);
        parameters.assign(&Tensor::ones(7, (Kind::Float, Device::Cpu)));
        let mut optimizer = AdamW::new(&parameters, &training(0.0));
        for _ in 0..50 {
            parameters.set_gradient(&Tensor::ones(7, (Kind::Float, Device::Cpu)));
            optimizer.update(&mut parameters, 1.0, 1e-3).fetch().unwrap();
        }
        assert!(list(parameters.values()).iter().all(|weight| (weight - 0.95).abs() < 4e-3));
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let mut parameters = parameters(Kind::Float);
        let mut optimizer = AdamW::new(&parameters, &training(0.0));
        let before = list(parameters.values());
        parameters.set_gradient(&Tensor::full(7, f64::NAN, (Kind::Float, Device::Cpu)));
        let error = optimizer.update(&mut parameters, 1.0, 0.1).fetch().unwrap_err();
        assert_eq!(error.to_string(), "the gradient of optimizer step 1 is not finite (its norm is NaN)");
        assert_eq!(list(parameters.values()), before);
    }

    /// On a GPU the kernel does what the operations do; without one there is nothing to compare.
    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says why")]
    fn a_gpus_step_is_a_processors() {
        let Some(device) = crate::runtime::test_gpu() else { return eprintln!("skipped: no GPU") };
        let shapes = [("a".to_owned(), vec![1000, 33])];
        for kind in [Kind::Float, Kind::BFloat16] {
            let start = Tensor::randn(33_000, (Kind::Float, Device::Cpu));
            let mut both = [Device::Cpu, device].map(|device| {
                let mut parameters = Parameters::zeros(&shapes, kind, device).unwrap();
                parameters.assign(&start);
                (AdamW::new(&parameters, &training(0.01)), parameters)
            });
            for step in 0..5 {
                let gradient = Tensor::randn(33_000, (Kind::Float, Device::Cpu)) * 7.0;
                let norms = both.each_mut().map(|(optimizer, parameters)| {
                    parameters.set_gradient(&gradient);
                    optimizer.update(parameters, 3.0, 0.1 / f64::from(step + 1)).fetch().unwrap()
                });
                assert!((norms[0] / norms[1] - 1.0).abs() < 1e-5, "{norms:?}");
            }
            let [(left, cpu), (right, gpu)] = &mut both;
            for (left, right) in left.entries().iter().zip(right.entries()) {
                let right = right.1.to_device(Device::Cpu);
                assert!(left.1.allclose(&right, 1e-4, 1e-6, false), "{} of {kind:?}", left.0);
            }
            let rounded = right.masters.to_kind(kind);
            assert_eq!(*gpu.values(), rounded);
            assert_eq!(gpu.gradient().abs().max().double_value(&[]), 0.0, "the gradient is forgotten");
            assert!(cpu.values().allclose(&gpu.values().to_device(Device::Cpu), 1e-2, 1e-3, false));
            let before = right.masters.copy();
            gpu.set_gradient(&Tensor::full(33_000, f64::INFINITY, (Kind::Float, Device::Cpu)));
            assert!(right.update(gpu, 1.0, 0.1).fetch().is_err());
            assert_eq!(right.masters, before);
        }
    }

    #[test]
    fn the_state_of_another_drafter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        let mut small = parameters(Kind::Float);
        AdamW::new(&small, &training(0.0)).save(&path).unwrap();
        let shapes = [("a".to_owned(), vec![2, 3]), ("b".to_owned(), vec![3])];
        let large = Parameters::zeros(&shapes, Kind::Float, Device::Cpu).unwrap();
        let error = AdamW::new(&large, &training(0.0)).load(&path, &mut small).unwrap_err().to_string();
        assert!(error.contains("a.exp_avg [2, 2] instead of [2, 3]"), "{error}");
    }
}
