//! The drafter's step past tch: a fused optimizer, the loss's scores in one pass, and numbers that come to the host
//! without holding the device up.
//!
//! Everything runs on the stream that libtorch uses, the legacy default one. Kernels are compiled at first use, once a
//! process; where they cannot be, libtorch's own operations do the same.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaEvent, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{self, CompileOptions};
use tch::{Device, Kind, Tensor};

use super::Gpu;

const SOURCE: &str = include_str!("step.cu");
const THREADS: u32 = 256;
/// Threads of a row of logits.
const ROW_THREADS: u32 = 512;

/// The kernels, loaded on this process's GPU.
pub(crate) struct StepKernels {
    stream: Arc<CudaStream>,
    adamw: CudaFunction,
    score: CudaFunction,
}

/// One step of the optimizer, as `step.cu` takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamWStep {
    pub(crate) denominator: f64,
    pub(crate) max_norm: f64,
    /// Rate over `1 - beta1^t`.
    pub(crate) step_size: f64,
    /// `1 / sqrt(1 - beta2^t)`.
    pub(crate) correction2: f64,
    /// What weight decay leaves of a weight.
    pub(crate) kept: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) epsilon: f64,
}

/// The flat tensors of the optimizer, all of one length.
pub(crate) struct AdamWState<'a> {
    pub(crate) masters: &'a Tensor,
    pub(crate) first_moments: &'a Tensor,
    pub(crate) second_moments: &'a Tensor,
    pub(crate) gradient: &'a Tensor,
    /// The masters rounded to bfloat16, unless the weights are the masters.
    pub(crate) weights: Option<&'a Tensor>,
}

impl StepKernels {
    /// Those of `device`; none on a CPU, or where they cannot be compiled or loaded, which is said once.
    pub(crate) fn of(device: Device) -> Option<&'static StepKernels> {
        static KERNELS: OnceLock<Option<StepKernels>> = OnceLock::new();
        let Device::Cuda(ordinal) = device else { return None };
        let load = || match StepKernels::load(ordinal) {
            Ok(kernels) => Some(kernels),
            Err(error) => {
                tracing::warn!("the drafter's step runs without kernels of its own: {error}");
                None
            }
        };
        KERNELS.get_or_init(load).as_ref().filter(|kernels| kernels.stream.context().ordinal() == ordinal)
    }

    fn load(ordinal: usize) -> Result<StepKernels, String> {
        let gpu = Gpu::open(ordinal).map_err(|error| error.to_string())?;
        let driver = |error: DriverError| format!("the driver refuses them: {error:?}");
        let (major, minor) = gpu.context().compute_capability().map_err(driver)?;
        let compiled = compile(10 * major + minor)?;
        let module = gpu.context().load_module(compiled).map_err(driver)?;
        Ok(StepKernels {
            adamw: module.load_function("adamw").map_err(driver)?,
            score: module.load_function("score").map_err(driver)?,
            stream: gpu.context().default_stream(),
        })
    }

    /// Takes one step with the summed gradient, whose norm is `norm` (f32, on the device), and forgets the gradient. A norm
    /// that is not finite changes nothing else.
    pub(crate) fn adamw(&self, state: &AdamWState, norm: &Tensor, step: &AdamWStep) {
        let count = state.masters.numel();
        let flats = [state.masters, state.first_moments, state.second_moments, state.gradient];
        let [masters, first, second, gradient] = flats.map(|flat| address(flat, Kind::Float, count));
        let weights = state.weights.map_or(0, |weights| address(weights, Kind::BFloat16, count));
        let norm = address(norm, Kind::Float, 1);
        let elements = count as u64;
        let numbers = [step.denominator, step.max_norm, step.step_size, step.correction2, step.kept];
        let moments = [1.0 - step.beta1, step.beta2, 1.0 - step.beta2, step.epsilon];
        let numbers = [numbers.as_slice(), &moments].concat();
        let numbers: Vec<f32> = numbers.into_iter().map(|number| number as f32).collect();
        let mut launch = self.stream.launch_builder(&self.adamw);
        let addresses = [masters, first, second, gradient, weights, norm];
        for address in &addresses {
            launch.arg(address);
        }
        launch.arg(&elements);
        for number in &numbers {
            launch.arg(number);
        }
        let grid = u32::try_from(count.div_ceil(4 * THREADS as usize)).expect("fewer than 2^42 weights");
        let config = LaunchConfig { grid_dim: (grid, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the arguments are the kernel's, and `address` has checked that each tensor has `count` elements.
        expect_launched(unsafe { launch.launch(config) });
    }

    /// Whether [`StepKernels::score`] can read these logits.
    pub(crate) fn scores(logits: &Tensor) -> bool {
        logits.kind() == Kind::BFloat16 && logits.is_contiguous() && logits.size()[1] % 8 == 0
    }

    /// Logits [R, V], bfloat16, in place to softmax minus one-hot of labels i64 `[R]`. Gives each row's loss and whether its
    /// largest logit is the label's, both f32 `[R]`.
    pub(crate) fn score(&self, logits: &Tensor, labels: &Tensor) -> (Tensor, Tensor) {
        let (rows, vocabulary) = (logits.size()[0], logits.size()[1]);
        let result = || Tensor::empty(rows, (Kind::Float, logits.device()));
        let (nll, correct) = (result(), result());
        let count = rows as usize;
        let addresses = [
            address(logits, Kind::BFloat16, count * vocabulary as usize),
            address(labels, Kind::Int64, count),
            address(&nll, Kind::Float, count),
            address(&correct, Kind::Float, count),
        ];
        let columns = vocabulary as i32;
        let mut launch = self.stream.launch_builder(&self.score);
        for address in &addresses {
            launch.arg(address);
        }
        launch.arg(&columns);
        let config =
            LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (ROW_THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: as in `adamw`; labels are token ids below the vocabulary, as the data's token store promises.
        expect_launched(unsafe { launch.launch(config) });
        (nll, correct)
    }
}

/// Numbers on their way to the host, behind all work that was queued before.
pub struct Late {
    numbers: Tensor,
    /// Recorded behind the copy; none when the host has waited already.
    copied: Option<CudaEvent>,
}

impl Late {
    /// Sends `numbers` (f64, one axis) on their way; the host does not wait.
    pub fn send(numbers: &Tensor) -> Late {
        let Some(kernels) = StepKernels::of(numbers.device()) else {
            return Late { numbers: numbers.to_device(Device::Cpu), copied: None };
        };
        // An asynchronous copy to the host lands in pinned memory.
        let numbers = numbers.to_device_(Device::Cpu, Kind::Double, true, false);
        Late { numbers, copied: Some(expect_launched(kernels.stream.record_event(None))) }
    }

    /// Whether the host may have to wait for them.
    pub fn is_on_its_way(&self) -> bool {
        self.copied.is_some()
    }

    /// Waits until they are here; not for what was queued behind them.
    pub fn wait(self) -> Vec<f64> {
        if let Some(copied) = &self.copied {
            expect_launched(copied.synchronize());
        }
        Vec::try_from(&self.numbers).expect("late numbers are one row of f64")
    }
}

/// The kernels for GPUs of compute capability `capability / 10`.
fn compile(capability: i32) -> Result<nvrtc::Ptx, String> {
    // SAFETY: opening NVRTC has no precondition.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err("NVRTC's library (libnvrtc) cannot be opened".to_owned());
    }
    let options = vec![format!("--gpu-architecture=compute_{capability}")];
    let options = CompileOptions { options, ..CompileOptions::default() };
    nvrtc::compile_ptx_with_opts(SOURCE, options).map_err(|error| format!("they do not compile: {error:?}"))
}

/// The device address of a contiguous tensor of `elements` elements.
fn address(tensor: &Tensor, kind: Kind, elements: usize) -> u64 {
    assert_eq!((tensor.kind(), tensor.numel()), (kind, elements));
    assert!(tensor.is_contiguous() && tensor.device().is_cuda());
    tensor.data_ptr() as u64
}

/// A call fails when an earlier operation has broken the GPU's context: as with tch, nothing is left but to end.
fn expect_launched<T>(launched: Result<T, DriverError>) -> T {
    launched.unwrap_or_else(|error| panic!("the drafter's step on the GPU: {error:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime;

    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says why")]
    fn the_kernels_compile_for_every_generation_with_bfloat16() {
        for capability in [80, 90, 100] {
            match compile(capability) {
                Err(error) if error.contains("cannot be opened") => return eprintln!("skipped: {error}"),
                compiled => assert!(compiled.unwrap().to_src().contains(".entry score")),
            }
        }
    }

    /// A GPU with the kernels; a test ends well without one.
    #[expect(clippy::print_stderr, reason = "a skipped test says why")]
    fn gpu() -> Option<(Device, &'static StepKernels)> {
        let found = runtime::test_gpu().map(|device| (device, StepKernels::of(device).unwrap()));
        if found.is_none() {
            eprintln!("skipped: no GPU");
        }
        found
    }

    fn difference(left: &Tensor, right: &Tensor) -> f64 {
        let wide = |tensor: &Tensor| tensor.to_device(Device::Cpu).to_kind(Kind::Double);
        (wide(left) - wide(right)).abs().max().double_value(&[])
    }

    #[test]
    fn scores_are_softmax_minus_one_hot_and_its_loss() {
        let Some((device, kernels)) = gpu() else { return };
        for (rows, vocabulary) in [(7, 1088), (3, 151_936), (40, 8)] {
            let logits = Tensor::randn([rows, vocabulary], (Kind::Float, device)) * 4.0;
            let logits = logits.to_kind(Kind::BFloat16);
            let labels = Tensor::randint(vocabulary, [rows], (Kind::Int64, device));
            labels.get(0).copy_(&logits.get(0).argmax(0, false));
            let wide = logits.to_kind(Kind::Double);
            let expected = wide.softmax(1, Kind::Double) - labels.one_hot(vocabulary).to_kind(Kind::Double);
            let chosen = wide.log_softmax(1, Kind::Double).gather(1, &labels.unsqueeze(1), false).squeeze_dim(1).neg();
            let (nll, correct) = kernels.score(&logits, &labels);
            assert!(difference(&nll, &chosen) < 1e-4, "{}", difference(&nll, &chosen));
            assert!(difference(&logits, &expected) < 4e-3, "{}", difference(&logits, &expected));
            let guessed = wide.argmax(1, false).eq_tensor(&labels);
            assert_eq!(difference(&correct, &guessed), 0.0);
            assert_eq!(correct.double_value(&[0]), 1.0);
        }
    }

    #[test]
    fn a_logit_that_is_not_a_number_shows_in_the_loss() {
        let Some((device, kernels)) = gpu() else { return };
        let logits = Tensor::zeros([2, 64], (Kind::BFloat16, device));
        let _ = logits.get(1).narrow(0, 9, 1).fill_(f64::NAN);
        let (nll, _) = kernels.score(&logits, &Tensor::zeros(2, (Kind::Int64, device)));
        assert_eq!(Vec::<f32>::try_from(nll.isfinite().to_kind(Kind::Float)).unwrap(), [1.0, 0.0]);
        assert!(logits.get(1).isnan().any().double_value(&[]) == 1.0);
    }

    #[test]
    fn late_numbers_are_those_of_their_time() {
        let Some((device, _)) = gpu() else { return };
        let mut numbers = Tensor::arange(4, (Kind::Double, device));
        let late = Late::send(&numbers);
        numbers += 1.0;
        assert_eq!(late.wait(), [0.0, 1.0, 2.0, 3.0]);
    }
}
