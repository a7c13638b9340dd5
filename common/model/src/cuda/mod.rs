//! The CUDA driver, beside libtorch: one GPU of this process, and what can be in the way of using it.
//!
//! libtorch works on the device's primary context and its NULL stream; so does everything here, unless it says that it
//! has a stream of its own. Libraries are opened at run time: a machine without CUDA runs the same program on its CPU.

#![expect(unsafe_code, reason = "calls of the CUDA driver that have no safe wrapper")]

pub mod cudnn;
pub mod flash;
pub mod fused;
pub(crate) mod locked;
mod marks;
pub(crate) mod memory;
pub mod products;
mod refusal;
pub(crate) mod step;
pub(crate) mod symbol;
mod watch;

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result, sys};

pub use marks::Marks;
pub use refusal::{PairFacts, Refusal};
pub use step::Late;
pub use watch::GpuWatch;

/// The CUDA driver said no.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no driver to ask.
    #[error(
        "the CUDA driver's library (libcuda.so.1) cannot be opened: no NVIDIA driver here, or not in this container"
    )]
    NoLibrary,
    /// A call failed.
    #[error("{what}: {why}")]
    Driver {
        /// What was to be done.
        what: String,
        /// The driver's name for it, and its words.
        why: String,
    },
    /// What the machine has does not allow it.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Names what was to be done when a driver call fails.
pub(crate) trait Doing<T> {
    /// `what` in the error.
    fn doing(self, what: impl fmt::Display) -> Result<T, CudaError>;
}

impl<T> Doing<T> for Result<T, DriverError> {
    fn doing(self, what: impl fmt::Display) -> Result<T, CudaError> {
        self.map_err(|error| CudaError::Driver { what: what.to_string(), why: format!("{error:?}") })
    }
}

/// A GPU's own number, the same in every process whatever it may see.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GpuId(pub [u8; 16]);

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (place, byte) in self.0.iter().enumerate() {
            let dash = if matches!(place, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The GPU that this process computes on.
#[derive(Clone)]
pub struct Gpu {
    context: Arc<CudaContext>,
    id: GpuId,
    name: String,
}

impl Gpu {
    /// Takes the device of that number, as this process counts them.
    ///
    /// # Errors
    /// No driver, or no such device.
    pub fn open(ordinal: usize) -> Result<Gpu, CudaError> {
        if !library_is_there() {
            return Err(CudaError::NoLibrary);
        }
        let context = CudaContext::new(ordinal).doing(format_args!("taking CUDA device {ordinal}"))?;
        let id = gpu_id(context.uuid().doing("asking a GPU for its UUID")?);
        let name = context.name().doing("asking a GPU for its name")?;
        Ok(Gpu { context, id, name })
    }

    /// Its number.
    pub fn id(&self) -> GpuId {
        self.id
    }

    /// What it calls itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As this process counts them.
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// The context that libtorch works in too.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Bytes free and in all, over all processes.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.context.bind_to_thread().doing("taking the GPU's context")?;
        self.context.mem_get_info().doing("asking a GPU for its free memory")
    }

    /// Whether it can hand out memory as file descriptors.
    pub(crate) fn exports_fds(&self) -> bool {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        self.context.attribute(attribute).is_ok_and(|supported| supported != 0)
    }

    /// What is known here about reaching the memory of `other`.
    pub(crate) fn facts_about(&self, other: GpuId) -> PairFacts {
        let same = other == self.id;
        let peer = if same { None } else { device_of(other) };
        let reaches = peer.map(|peer| self.can_access(peer));
        let part_of_a_gpu = self.name.contains(" MIG ");
        PairFacts { own: self.id, other, reaches, part_of_a_gpu, wsl: refusal::is_wsl() }
    }

    fn can_access(&self, peer: sys::CUdevice) -> bool {
        let mut can: c_int = 0;
        // SAFETY: both devices were given out by the driver, and `can` outlives the call.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.context.cu_device(), peer) };
        asked.result().is_ok() && can != 0
    }
}

/// Whether the driver's library can be opened. cudarc panics where it cannot.
fn library_is_there() -> bool {
    // SAFETY: opening libcuda runs its initialisers, which may run on any thread.
    unsafe { sys::is_culib_present() }
}

/// The visible device of that number.
fn device_of(id: GpuId) -> Option<sys::CUdevice> {
    let count = CudaContext::device_count().unwrap_or(0);
    let mut devices = (0..count).filter_map(|ordinal| result::device::get(ordinal).ok());
    devices.find(|device| result::device::get_uuid(*device).is_ok_and(|uuid| gpu_id(uuid) == id))
}

fn gpu_id(uuid: sys::CUuuid) -> GpuId {
    GpuId(uuid.bytes.map(|byte| byte as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_named_as_nvidia_smi_names_them() {
        let id = GpuId(std::array::from_fn(|place| place as u8));
        assert_eq!(id.to_string(), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
