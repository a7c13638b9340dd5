//! A decoder's large products by the kernels that prove fastest here.
//!
//! libtorch runs what cuBLAS's heuristics put first. So the first large product by a matrix of some shape tries out all that
//! they suggest, under load, and those that follow it with as many rows, or hardly fewer, run the fastest. Only kernels whose
//! result is libtorch's bit for bit take part: what a clock decides changes no result.
//!
//! Products that add to what their output holds are not among them: other kernels than libtorch's gained nothing there.

#![expect(unsafe_code, reason = "hands tensors' memory to cuBLASLt")]

mod choice;
mod library;
mod trial;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use tch::{Kind, Tensor};

use super::Gpu;
use choice::Choice;
use library::{Algorithm, Library, Operands};

/// Operations from which on a choice pays: 0.15 ms of an H200, which smaller products do not keep at its limit.
const WORTHWHILE: usize = 100_000_000_000;
/// Where matrices must start, as the heuristics take for granted.
const ALIGNMENT: usize = 256;

/// Products of a decoder's matrices: by chosen kernels for bfloat16 on a GPU, by libtorch anywhere else.
#[derive(Default)]
pub struct Products(Option<Kernels>);

/// Kernels of one GPU, on the stream that libtorch uses (the legacy default one).
struct Kernels {
    library: Library,
    stream: Arc<CudaStream>,
    chosen: RefCell<HashMap<Matrix, Choice<Algorithm>>>,
}

/// What products have in common whose kernels are tried out together.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Matrix {
    out: usize,
    depth: usize,
    biased: bool,
}

/// `input W^T + bias`: input [T, in], W [out, in], bias `[out]`.
struct Product<'a> {
    input: &'a Tensor,
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
}

impl Products {
    /// For bfloat16 on GPU `ordinal` of this process; by libtorch where its cuBLASLt is not open ([`crate::runtime::start`]).
    pub fn on_gpu(ordinal: usize) -> Products {
        let kernels = Kernels::find(ordinal);
        tracing::debug!(found = kernels.is_some(), "cuBLASLt");
        Products(kernels)
    }

    /// `input W^T + bias`: input [T, in], weight [out, in], bias `[out]`, to [T, out].
    pub fn linear(&self, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let product = Product { input, weight, bias };
        self.computed(&product).unwrap_or_else(|| input.linear(weight, bias))
    }

    /// A product by its kernel; none where libtorch has to compute it.
    fn computed(&self, product: &Product) -> Option<Tensor> {
        let kernels = self.0.as_ref().filter(|_| product.operations() >= WORTHWHILE)?;
        let [tokens, out, _] = product.sizes();
        let output = Tensor::empty([tokens as i64, out as i64], (Kind::BFloat16, product.input.device()));
        let algorithm = kernels.choose(product, &output)?;
        kernels.queue(product, &output, &algorithm).then_some(output)
    }
}

impl Kernels {
    fn find(ordinal: usize) -> Option<Kernels> {
        let context = Gpu::open(ordinal).ok()?.context().clone();
        context.bind_to_thread().ok()?;
        Some(Kernels { library: Library::open()?, stream: context.default_stream(), chosen: RefCell::default() })
    }

    fn choose(&self, product: &Product, output: &Tensor) -> Option<Algorithm> {
        let (matrix, [rows, ..]) = (product.matrix(), product.sizes());
        let mut chosen = self.chosen.borrow_mut();
        let known = chosen.get(&matrix).copied().filter(|choice| choice.covers(rows));
        let choice = known.unwrap_or_else(|| trial::choose(self, product, output));
        chosen.insert(matrix, choice);
        choice.kernel(rows)
    }

    /// Queues a product; false if the kernel does not serve it.
    fn queue(&self, product: &Product, output: &Tensor, algorithm: &Algorithm) -> bool {
        let Some(operands) = product.operands(output) else { return false };
        // SAFETY: `operands` has checked kinds, sizes and layout; libtorch's allocator hands memory out again in the order of
        // the stream that the product is queued on, and no operand shares the output's.
        unsafe { self.library.multiply(&operands, algorithm) }
    }
}

impl Product<'_> {
    /// T, out, in.
    fn sizes(&self) -> [usize; 3] {
        let depth = self.weight.size()[1] as usize;
        [self.input.numel() / depth, self.weight.numel() / depth, depth]
    }

    /// Multiplications and additions.
    fn operations(&self) -> usize {
        2 * self.sizes().iter().product::<usize>()
    }

    fn matrix(&self) -> Matrix {
        let [_, out, depth] = self.sizes();
        Matrix { out, depth, biased: self.bias.is_some() }
    }

    /// None where a tensor does not lie as cuBLASLt takes it.
    fn operands(&self, output: &Tensor) -> Option<Operands> {
        let sizes @ [tokens, out, depth] = self.sizes();
        Some(Operands {
            sizes,
            input: address(self.input, tokens * depth)?,
            weight: address(self.weight, out * depth)?,
            bias: match self.bias {
                Some(bias) => Some(address(bias, out)?),
                None => None,
            },
            output: address(output, tokens * out)?,
        })
    }
}

/// The device address of a dense bfloat16 tensor of `elements` elements.
fn address(tensor: &Tensor, elements: usize) -> Option<u64> {
    assert_eq!((tensor.kind(), tensor.numel()), (Kind::BFloat16, elements));
    let address = tensor.data_ptr() as usize;
    (tensor.device().is_cuda() && tensor.is_contiguous() && address.is_multiple_of(ALIGNMENT)).then_some(address as u64)
}
