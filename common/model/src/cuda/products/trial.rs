//! Kernels run against each other on a product that has come.

use std::time::Instant;

use cudarc::driver::{DriverError, sys::CUevent_flags};
use tch::Tensor;

use super::choice::Choice;
use super::library::Algorithm;
use super::{Kernels, Product};

/// Kernels that the heuristics are asked for.
const SUGGESTIONS: usize = 16;
/// Operations before the first turn, about 0.1 s of an H200: its clock has fallen by then to where the load holds it.
const WARM_UP: usize = 60_000_000_000_000;
/// Operations of a kernel's turn, about 4 ms of an H200.
const TURN: usize = 2_500_000_000_000;
/// Turns of each kernel.
const TURNS: usize = 6;

/// A product and the memory for its output.
struct Trial<'a> {
    kernels: &'a Kernels,
    product: &'a Product<'a>,
    output: &'a Tensor,
}

/// Tries out kernels on a product; `output` is memory that they may write.
pub(super) fn choose(kernels: &Kernels, product: &Product, output: &Tensor) -> Choice<Algorithm> {
    let began = Instant::now();
    let trial = Trial { kernels, product, output };
    let algorithms = trial.suggested();
    let contestants: Vec<_> = [None].into_iter().chain(algorithms.into_iter().map(Some)).collect();
    let times = trial.times(&contestants);
    let timed = contestants.iter().zip(&times).filter_map(|(algorithm, time)| Some(((*algorithm)?, *time)));
    let sizes @ [rows, ..] = product.sizes();
    let choice = Choice::new(rows, times[0], timed);
    let (won, took) = (choice.kernel(rows), began.elapsed());
    tracing::debug!(?sizes, ?times, ?won, ?took, "kernels for a product have been tried, libtorch's first");
    choice
}

impl Trial<'_> {
    /// The kernels that the heuristics suggest, those that give libtorch's result.
    fn suggested(&self) -> Vec<Algorithm> {
        let Some(operands) = self.product.operands(self.output) else { return Vec::new() };
        let expected = self.expected();
        let mut algorithms = self.kernels.library.suggest(&operands, SUGGESTIONS);
        algorithms.retain(|algorithm| self.gives(&expected, algorithm));
        algorithms
    }

    /// The first half of the rows by libtorch: with the output that is no more memory than a layer needs next.
    fn expected(&self) -> Tensor {
        let input = self.product.input;
        input.narrow(0, 0, input.size()[0] / 2).linear(self.product.weight, self.product.bias)
    }

    /// Whether a kernel's first rows are those expected, bit for bit.
    fn gives(&self, expected: &Tensor, algorithm: &Algorithm) -> bool {
        let _ = self.output.shallow_clone().fill_(f64::NAN);
        let found = self.output.narrow(0, 0, expected.size()[0]);
        // In pieces, since a comparison makes a tensor.
        let mut pieces = found.chunk(16, 0).into_iter().zip(expected.chunk(16, 0));
        self.kernels.queue(self.product, self.output, algorithm)
            && pieces.all(|(found, expected)| found.equal(&expected))
    }

    /// Milliseconds of each kernel, and of libtorch where none is given. All run in turn, several times over.
    fn times(&self, contestants: &[Option<Algorithm>]) -> Vec<f64> {
        let mut times = vec![0.0; contestants.len()];
        let _ = self.run(None, WARM_UP);
        for _ in 0..TURNS {
            for (time, algorithm) in times.iter_mut().zip(contestants) {
                *time += self.run(algorithm.as_ref(), TURN).unwrap_or(f64::NAN) / TURNS as f64;
            }
        }
        times
    }

    /// Milliseconds of a product, by the GPU's clock.
    fn run(&self, algorithm: Option<&Algorithm>, operations: usize) -> Result<f64, DriverError> {
        let repeats = operations.div_ceil(self.product.operations());
        let stream = &self.kernels.stream;
        let start = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        for _ in 0..repeats {
            match algorithm {
                Some(algorithm) => drop(self.kernels.queue(self.product, self.output, algorithm)),
                None => self.run_by_libtorch(),
            }
        }
        let end = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        Ok(f64::from(start.elapsed_ms(&end)?) / repeats as f64)
    }

    fn run_by_libtorch(&self) {
        let Product { input, weight, bias } = self.product;
        let _ = input.linear_out(self.output, weight, *bias);
    }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::*;
    use crate::runtime::test_gpu;

    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says why")]
    fn suggested_kernels_give_libtorchs_bits() {
        let Some(device) = test_gpu() else { return eprintln!("skipped: no GPU") };
        let kernels = Kernels::find(0).expect("libtorch with CUDA has cuBLASLt");
        let random = |size: &[i64]| Tensor::randn(size, (Kind::BFloat16, device));
        let (input, weight, row) = (random(&[8192, 4096]), random(&[6144, 4096]), random(&[6144]));
        for bias in [None, Some(&row)] {
            let product = Product { input: &input, weight: &weight, bias };
            let trial = Trial { kernels: &kernels, product: &product, output: &random(&[8192, 6144]) };
            let algorithms = trial.suggested();
            assert!(!algorithms.is_empty(), "with bias: {}", bias.is_some());
            assert!(trial.gives(&trial.expected(), &algorithms[0]));
            assert!(!trial.gives(&trial.expected().neg(), &algorithms[0]), "the check itself works");
        }
    }
}
