//! Causal attention over sequences of one length by cuDNN, through libtorch's C interface: on an H100 or H200 nearly twice
//! as fast as the flash kernel. cuDNN builds a plan for every new shape, 50 ms and more, so callers keep shapes few.

#![expect(unsafe_code, reason = "calls a C function of libtorch that is found by name")]

use std::ptr::null_mut;

use tch::Tensor;

use super::flash::{Handle, handle};
use super::symbol::symbol;

/// `aoti_torch_cuda__scaled_dot_product_cudnn_attention` as
/// `torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h` of libtorch 2.11 declares it.
type Forward = unsafe extern "C" fn(
    query: Handle,
    key: Handle,
    value: Handle,
    attn_bias: *const Handle,
    compute_log_sumexp: i32,
    dropout_p: f64,
    is_causal: i32,
    return_debug_mask: i32,
    scale: *const f64,
    output: *mut Handle,
    logsumexp: *mut Handle,
    cum_seq_q: *mut Handle,
    cum_seq_k: *mut Handle,
    max_q: *mut i64,
    max_k: *mut i64,
    philox_seed: *mut Handle,
    philox_offset: *mut Handle,
    debug_attn_mask: *mut Handle,
) -> i32;

/// cuDNN's attention: bfloat16 or float16, head dimensions that are multiples of 8 up to 128.
#[derive(Clone, Copy)]
pub struct Cudnn(Forward);

impl Cudnn {
    /// That of the libtorch in this process; none where its CUDA half is not open ([`crate::runtime::start`]).
    pub fn find() -> Option<Cudnn> {
        // SAFETY: `Forward` repeats the function's declaration in libtorch 2.11; tch 0.24 links no other version.
        unsafe { symbol(c"aoti_torch_cuda__scaled_dot_product_cudnn_attention") }.map(Cudnn)
    }

    /// Softmax attention scaled by `hd^-0.5`, each token over itself and those before it.
    ///
    /// q [B, S, nh, hd], k and v [B, S, nkv, hd], the last axis dense, the others strided as they like; gives [B, S, nh, hd].
    pub fn causal(&self, qkv: [&Tensor; 3]) -> Tensor {
        let [q, k, v] = qkv.map(|tensor| tensor.transpose(1, 2));
        let mut tensors = [null_mut(); 7];
        let [output, logsumexp, cum_seq_q, cum_seq_k, seed, offset, debug_mask] = &mut tensors;
        let (mut max_q, mut max_k) = (0, 0);
        // SAFETY: all handles are live tensors for the whole call, and each result is written once if it succeeds.
        let failed = unsafe {
            self.0(
                handle(&q),
                handle(&k),
                handle(&v),
                null_mut(),
                0,
                0.0,
                1,
                0,
                null_mut(),
                output,
                logsumexp,
                cum_seq_q,
                cum_seq_k,
                &raw mut max_q,
                &raw mut max_k,
                seed,
                offset,
                debug_mask,
            )
        };
        assert!(failed == 0, "cuDNN's attention failed; its reason stands above, on stderr");
        // SAFETY: the call succeeded, so each result is a new `at::Tensor*` that nobody else owns.
        let [output, ..] = tensors.map(|tensor| unsafe { Tensor::from_ptr(tensor.cast()) });
        output.transpose(1, 2)
    }
}
