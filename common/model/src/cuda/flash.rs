//! Causal attention over packed sequences by libtorch's flash kernel, through its C interface: tch does not bind the form
//! that takes sequence offsets.

#![expect(unsafe_code, reason = "calls a C function of libtorch that is found by name")]

use std::ffi::c_void;
use std::ptr::null_mut;

use tch::{Device, Tensor};

use super::symbol::symbol;
use crate::runtime;

/// A libtorch tensor as its C interface hands it on: `at::Tensor*`, which is what tch holds too.
pub(super) type Handle = *mut c_void;

pub(super) fn handle(tensor: &Tensor) -> Handle {
    tensor.as_ptr().cast_mut().cast()
}

/// `aoti_torch_cuda__flash_attention_forward` as `torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h` of libtorch 2.11
/// declares it. Optional arguments are pointers that may be null.
type Forward = unsafe extern "C" fn(
    query: Handle,
    key: Handle,
    value: Handle,
    cum_seq_q: *const Handle,
    cum_seq_k: *const Handle,
    max_q: i64,
    max_k: i64,
    dropout_p: f64,
    is_causal: i32,
    return_debug_mask: i32,
    scale: *const f64,
    window_size_left: *const i64,
    window_size_right: *const i64,
    seqused_k: *const Handle,
    alibi_slopes: *const Handle,
    output: *mut Handle,
    softmax_logsumexp: *mut Handle,
    rng_state: *mut Handle,
    unused: *mut Handle,
    debug_attn_mask: *mut Handle,
) -> i32;

/// The flash kernel: bfloat16 or float16, head dimensions that are multiples of 8 up to 256, GPUs of compute capability 8.0
/// and newer.
#[derive(Clone, Copy)]
pub struct Flash(Forward);

/// Where packed sequences lie: sequence i is tokens `offsets[i]..offsets[i + 1]`.
pub struct Spans {
    /// i32 [sequences + 1] on the device, ascending from 0.
    pub offsets: Tensor,
    /// Length of the longest.
    pub longest: i64,
}

impl Spans {
    /// Sequences that end at all of `offsets` but the first, which is 0.
    pub fn upload(offsets: &[i32], device: Device) -> Spans {
        let longest = offsets.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
        Spans { offsets: runtime::upload(offsets, device), longest: i64::from(longest) }
    }
}

impl Flash {
    /// The kernel of the libtorch in this process; none where its CUDA half is not open ([`runtime::start`]).
    pub fn find() -> Option<Flash> {
        // SAFETY: `Forward` repeats the function's declaration in libtorch 2.11; tch 0.24 links no other version.
        unsafe { symbol(c"aoti_torch_cuda__flash_attention_forward") }.map(Flash)
    }

    /// Softmax attention scaled by `hd^-0.5`: the last query of a sequence sees all its keys, each one before it one key less.
    ///
    /// q [Tq, nh, hd], k and v [Tk, nkv, hd], the last axis dense, the others strided as they like; gives [Tq, nh, hd].
    pub fn causal(&self, [q, k, v]: [&Tensor; 3], queries: &Spans, keys: &Spans) -> Tensor {
        let (query_offsets, key_offsets) = (handle(&queries.offsets), handle(&keys.offsets));
        let mut results = [null_mut(); 5];
        let [output, logsumexp, rng_state, unused, debug_mask] = &mut results;
        // SAFETY: all handles are live tensors for the whole call, and each result is written once with a new tensor
        // if the call succeeds.
        let failed = unsafe {
            self.0(
                handle(q),
                handle(k),
                handle(v),
                &raw const query_offsets,
                &raw const key_offsets,
                queries.longest,
                keys.longest,
                0.0,
                1,
                0,
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
                output,
                logsumexp,
                rng_state,
                unused,
                debug_mask,
            )
        };
        assert!(failed == 0, "libtorch's flash attention failed; its reason stands above, on stderr");
        // SAFETY: the call succeeded, so each result is a new `at::Tensor*` that nobody else owns.
        let [output, ..] = results.map(|result| unsafe { Tensor::from_ptr(result.cast()) });
        output
    }
}
