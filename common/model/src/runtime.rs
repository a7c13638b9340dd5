//! libtorch's process-wide settings: which device, how many threads, and opening the CUDA half of libtorch.

#![expect(unsafe_code, reason = "opens libtorch's CUDA half by name")]

use common::config::{Device as Wanted, Dtype};
use common::ids::Rank;
use tch::kind::Element;
use tch::{Device, Kind, Tensor};

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The configuration asks for a GPU and libtorch sees too few.
    #[error(
        "device cuda:{index} was asked for, libtorch sees {found} GPUs (is the CUDA build of torch 2.11 in use, and the GPU visible?)"
    )]
    NoGpu {
        /// The wanted GPU.
        index: u32,
        /// GPUs that there are.
        found: i64,
    },
}

impl DeviceError {
    /// What a user can do about it.
    pub const HINT: &str = "make the GPUs visible to libtorch, list those that are there (--targets, --drafters), or set run.device to cpu";
}

/// Prepares libtorch for this process: opens its CUDA half, fixes the compute threads and picks the worker's device.
///
/// Call it before anything else touches libtorch: the CUDA hooks are looked up once, at first use.
///
/// # Errors
/// A GPU is asked for and there is none for this rank.
pub fn start(wanted: Wanted, rank: Rank, threads: u32) -> Result<Device, DeviceError> {
    if wanted != Wanted::Cpu {
        open_cuda();
    }
    tch::set_num_threads(threads.max(1) as i32);
    tch::set_num_interop_threads(1);
    device(wanted, rank)
}

/// The device of that number, for a process that has [`start`]ed.
///
/// # Errors
/// A GPU is asked for and there is none of that number.
pub fn device(wanted: Wanted, rank: Rank) -> Result<Device, DeviceError> {
    let found = if wanted == Wanted::Cpu { 0 } else { tch::Cuda::device_count() };
    match wanted {
        Wanted::Cpu => Ok(Device::Cpu),
        Wanted::Auto if found == 0 => Ok(Device::Cpu),
        _ if i64::from(rank.0) < found => Ok(Device::Cuda(rank.0 as usize)),
        _ => Err(DeviceError::NoGpu { index: rank.0, found }),
    }
}

/// What a person calls the device: `cpu`, `cuda:1`.
pub fn name(device: Device) -> String {
    match device {
        Device::Cuda(ordinal) => format!("cuda:{ordinal}"),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// The libtorch type of a configured one.
pub fn kind(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::Float32 => Kind::Float,
        Dtype::Bfloat16 => Kind::BFloat16,
    }
}

/// Values on `device`. For a GPU they go through page-locked memory, in order with what the GPU has been given to do,
/// and the caller does not wait.
pub fn upload<T: Element>(values: &[T], device: Device) -> Tensor {
    let tensor = Tensor::from_slice(values);
    match device {
        Device::Cpu => tensor,
        // libtorch keeps the page-locked copy until the transfer is done.
        _ => tensor.internal_pin_memory(device).internal_to_copy((T::KIND, device), true),
    }
}

/// Opens libtorch_cuda with global symbols. The linker drops it, since nothing here names a symbol of it; without it
/// libtorch reports no GPU. A libtorch without CUDA (the lean CPU copy) has nothing to open, which is fine.
///
/// libcaffe2_nvrtc brings the compiler of our own kernels from where torch's wheel keeps it, so that no search path need
/// name that place.
fn open_cuda() {
    for name in [c"libtorch_cuda.so", c"libcaffe2_nvrtc.so"] {
        // SAFETY: the name is a C string, and libtorch's initialisers may run on any thread before its first use.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        tracing::debug!(?name, found = !handle.is_null(), "libtorch's CUDA half");
    }
}

/// A GPU for a test that needs one. Such tests run in a process of their own: the CUDA half of libtorch must be open before
/// anything else touches it.
#[cfg(test)]
pub(crate) fn test_gpu() -> Option<Device> {
    open_cuda();
    (tch::Cuda::device_count() > 0).then_some(Device::Cuda(0))
}
