//! A decoder layer's element-wise parts as kernels of our own: each reads and writes its tensors once.
//!
//! They take contiguous bfloat16 tensors, run on the stream that libtorch uses (the legacy default one), and are compiled
//! for one model's shape when it is loaded.

#![expect(unsafe_code, reason = "launches kernels over tensors' memory")]

use std::sync::Arc;

use common::model_config::{Architecture, TargetConfig};
use cudarc::driver::{CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{self, CompileError, CompileOptions, Ptx};
use tch::{Kind, Tensor};

use super::{CudaError, Doing, Gpu};

const SOURCE: &str = include_str!("fused.cu");
/// Elements of one load.
const VECTOR: usize = 8;
const THREADS: u32 = 256;

/// What the kernels are compiled for.
#[derive(Clone, Debug)]
pub struct LayerShape {
    /// H.
    pub hidden: usize,
    /// I.
    pub inner: usize,
    /// hd.
    pub head_dim: usize,
    /// nh.
    pub query_heads: usize,
    /// nkv.
    pub key_heads: usize,
    /// Whether each query and key head is normed.
    pub head_norms: bool,
    /// Added under the norms' root.
    pub eps: f64,
}

/// Why there are no fused kernels.
#[derive(Debug, thiserror::Error)]
pub enum FusedError {
    /// A size that 16-byte loads do not divide.
    #[error(
        "hidden size {hidden} and inner size {inner} must be multiples of 8, head dimension {head_dim} a power of two from 16 to 512"
    )]
    Shape {
        /// H.
        hidden: usize,
        /// I.
        inner: usize,
        /// hd.
        head_dim: usize,
    },
    /// CUDA's run-time compiler is missing.
    #[error("CUDA's run-time compiler (libnvrtc.so.13) cannot be opened")]
    NoCompiler,
    /// The source is refused.
    #[error("compiling the kernels: {0}")]
    Compile(#[from] CompileError),
    /// No driver, or the GPU refuses the compiled kernels.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// The kernels, loaded on one GPU.
pub struct Fused {
    shape: LayerShape,
    stream: Arc<CudaStream>,
    rms_norm: CudaFunction,
    turn_heads: CudaFunction,
    swiglu: CudaFunction,
}

/// Tables and weights of [`Fused::turn_heads`].
pub struct Turn<'a> {
    /// f32, T rows of hd.
    pub cos: &'a Tensor,
    /// f32, T rows of hd.
    pub sin: &'a Tensor,
    /// Weights `[hd]` of the query heads' norm and the key heads'.
    pub norms: Option<[&'a Tensor; 2]>,
}

impl Fused {
    /// Compiles and loads the kernels for GPU `ordinal` of this process.
    ///
    /// # Errors
    /// A shape that they do not serve; no CUDA driver or NVRTC; a GPU that refuses them.
    pub fn load(shape: LayerShape, ordinal: usize) -> Result<Fused, FusedError> {
        let gpu = Gpu::open(ordinal)?;
        let (major, minor) = gpu.context().compute_capability().doing("asking for the compute capability")?;
        let kernels = compile(&shape, 10 * major + minor)?;
        let module = gpu.context().load_module(kernels).doing("loading the fused kernels")?;
        let function = |name: &str| module.load_function(name).doing(format!("finding the fused kernel {name}"));
        Ok(Fused {
            shape,
            rms_norm: function("rms_norm")?,
            turn_heads: function("turn_heads")?,
            swiglu: function("swiglu")?,
            stream: gpu.context().default_stream(),
        })
    }

    /// The norm of x [T, H] by weight `[H]`.
    pub fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        let hidden = self.shape.hidden;
        let rows = x.numel() / hidden;
        let normed = x.empty_like();
        let args = [address(x, rows * hidden), address(weight, hidden), address(&normed, rows * hidden)];
        let mut launch = self.stream.launch_builder(&self.rms_norm);
        for arg in &args {
            launch.arg(arg);
        }
        let config = LaunchConfig {
            grid_dim: (rows as u32, 1, 1),
            block_dim: (self.shape.norm_threads() as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the arguments are the kernel's, and `address` has checked that each holds the rows it touches.
        expect_launched(unsafe { launch.launch(config) });
        normed
    }

    /// Norms and turns query and key heads of qkv [T, nh + 2 nkv, hd] in place.
    pub fn turn_heads(&self, qkv: &Tensor, turn: &Turn) {
        let shape = &self.shape;
        let heads = shape.query_heads + 2 * shape.key_heads;
        let tokens = qkv.numel() / (heads * shape.head_dim);
        let units = vectors(tokens * (shape.query_heads + shape.key_heads) * shape.head_dim / 2);
        let table = |table: &Tensor| {
            assert_eq!((table.kind(), table.numel()), (Kind::Float, tokens * shape.head_dim));
            table.data_ptr() as u64
        };
        assert_eq!(turn.norms.is_some(), shape.head_norms, "the kernels were compiled for another model");
        let norms = turn.norms.map_or([0, 0], |norms| norms.map(|norm| address(norm, shape.head_dim)));
        let args =
            [address(qkv, tokens * heads * shape.head_dim), table(turn.cos), table(turn.sin), norms[0], norms[1]];
        let mut launch = self.stream.launch_builder(&self.turn_heads);
        for arg in &args {
            launch.arg(arg);
        }
        launch.arg(&units);
        // SAFETY: as in `rms_norm`; the tables' extent has been checked too.
        expect_launched(unsafe { launch.launch(flat(units)) });
    }

    /// `silu(gate) * up`: gate and up [T, I], whose rows may lie apart alike, to [T, I].
    pub fn swiglu(&self, gate: &Tensor, up: &Tensor) -> Tensor {
        let rows = gate.numel() / self.shape.inner;
        let inner = Tensor::empty([rows as i64, self.shape.inner as i64], (Kind::BFloat16, gate.device()));
        let units = vectors(rows * self.shape.inner);
        let stride = gate.stride()[0];
        let read = |tensor: &Tensor| {
            assert_eq!(
                (tensor.kind(), tensor.size(), tensor.stride()),
                (Kind::BFloat16, inner.size(), vec![stride, 1])
            );
            aligned(tensor)
        };
        let (args, stride) = ([read(gate), read(up), aligned(&inner)], vectors(stride as usize));
        let mut launch = self.stream.launch_builder(&self.swiglu);
        for arg in &args {
            launch.arg(arg);
        }
        launch.arg(&stride).arg(&units);
        // SAFETY: as in `rms_norm`; `read` has checked the extent.
        expect_launched(unsafe { launch.launch(flat(units)) });
        inner
    }
}

impl LayerShape {
    /// Of a target's layers.
    pub fn of(config: &TargetConfig) -> LayerShape {
        LayerShape {
            hidden: config.hidden_size,
            inner: config.intermediate_size,
            head_dim: config.head_dim,
            query_heads: config.num_attention_heads,
            key_heads: config.num_key_value_heads,
            head_norms: config.architecture == Architecture::Qwen3,
            eps: config.rms_norm_eps,
        }
    }

    fn check(&self) -> Result<(), FusedError> {
        let &LayerShape { hidden, inner, head_dim, .. } = self;
        // A head's lanes, 16 elements each, add up by halving within one warp.
        let heads_fit = head_dim.is_power_of_two() && (16..=512).contains(&head_dim);
        match hidden % VECTOR == 0 && inner % VECTOR == 0 && heads_fit {
            true => Ok(()),
            false => Err(FusedError::Shape { hidden, inner, head_dim }),
        }
    }

    /// Threads of a row: one a vector, in whole warps, 256 at most.
    fn norm_threads(&self) -> usize {
        (self.hidden / VECTOR).next_multiple_of(32).min(256)
    }

    fn definitions(&self) -> Vec<String> {
        vec![
            format!("-DHIDDEN={}", self.hidden),
            format!("-DINNER={}", self.inner),
            format!("-DHEAD_DIM={}", self.head_dim),
            format!("-DQUERY_HEADS={}", self.query_heads),
            format!("-DKEY_HEADS={}", self.key_heads),
            format!("-DHEAD_NORMS={}", u8::from(self.head_norms)),
            format!("-DEPS={:e}f", self.eps),
            format!("-DNORM_THREADS={}", self.norm_threads()),
        ]
    }
}

/// The kernels for GPUs of compute capability `capability / 10`.
fn compile(shape: &LayerShape, capability: i32) -> Result<Ptx, FusedError> {
    shape.check()?;
    // SAFETY: opening NVRTC has no precondition.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(FusedError::NoCompiler);
    }
    let mut options = shape.definitions();
    options.push(format!("--gpu-architecture=compute_{capability}"));
    let options = CompileOptions { options, ..CompileOptions::default() };
    Ok(nvrtc::compile_ptx_with_opts(SOURCE, options)?)
}

/// The device address of a contiguous bfloat16 tensor of `elements` elements.
fn address(tensor: &Tensor, elements: usize) -> u64 {
    assert_eq!((tensor.kind(), tensor.numel()), (Kind::BFloat16, elements));
    assert!(tensor.is_contiguous());
    aligned(tensor)
}

/// The device address of a tensor of whole vectors.
fn aligned(tensor: &Tensor) -> u64 {
    let address = tensor.data_ptr() as u64;
    assert!(
        tensor.device().is_cuda() && address.is_multiple_of(16),
        "a tensor of whole vectors starts at one, on a GPU"
    );
    address
}

fn vectors(elements: usize) -> u32 {
    u32::try_from(elements / VECTOR).expect("a batch's elements are counted in 32 bits")
}

/// One thread a unit.
fn flat(units: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (units.div_ceil(THREADS), 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

/// A launch fails when an earlier operation has broken the GPU's context: as with tch, nothing is left but to end.
fn expect_launched<T>(launched: Result<T, DriverError>) {
    if let Err(error) = launched {
        panic!("launching a fused kernel: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Qwen3-8B and SmolLM2-135M, head norms and none, wider rows than a block and narrower ones than a warp.
    fn shapes() -> [LayerShape; 3] {
        let qwen = LayerShape {
            hidden: 4096,
            inner: 12288,
            head_dim: 128,
            query_heads: 32,
            key_heads: 8,
            head_norms: true,
            eps: 1e-6,
        };
        let smollm = LayerShape {
            hidden: 576,
            inner: 1536,
            head_dim: 64,
            query_heads: 9,
            key_heads: 3,
            head_norms: false,
            eps: 1e-5,
        };
        let tiny = LayerShape { hidden: 64, inner: 96, head_dim: 16, query_heads: 4, key_heads: 2, ..qwen.clone() };
        [qwen, smollm, tiny]
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says why")]
    fn the_kernels_compile_for_every_generation_with_bfloat16() {
        for capability in [80, 90, 100] {
            for shape in shapes() {
                match compile(&shape, capability) {
                    Err(FusedError::NoCompiler) => return eprintln!("skipped: libnvrtc is not on this machine"),
                    compiled => assert!(compiled.unwrap().to_src().contains(".entry turn_heads")),
                }
            }
        }
    }

    #[test]
    fn a_shape_that_vectors_do_not_divide_is_refused() {
        let shape = LayerShape { head_dim: 96, ..shapes()[0].clone() };
        let message = compile(&shape, 90).unwrap_err().to_string();
        assert!(message.contains("head dimension 96"), "{message}");
    }
}
