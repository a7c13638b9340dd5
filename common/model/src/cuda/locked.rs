//! Host memory that a GPU writes by itself, at the speed of its link.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

use super::{CudaError, Doing, Gpu};

/// Pages that stay where they are; dropped, they may move again.
pub(crate) struct Locked {
    start: NonNull<u8>,
    context: Arc<CudaContext>,
}

impl Locked {
    /// Locks mapped memory for the GPU's copies.
    ///
    /// # Errors
    /// The driver does not take such memory.
    ///
    /// # Safety
    /// The bytes are mapped for reading and writing and stay so while the value lives.
    pub(crate) unsafe fn over(gpu: &Gpu, start: NonNull<u8>, bytes: usize) -> Result<Locked, CudaError> {
        let context = Arc::clone(gpu.context());
        // What it says may be the failure of something else, from before. Without the context the next call fails.
        let _ = context.bind_to_thread();
        // SAFETY: the caller's promise; the driver checks the range.
        let locked = unsafe { sys::cuMemHostRegister_v2(start.as_ptr().cast::<c_void>(), bytes, 0) };
        locked.result().doing("locking host memory for a GPU's copies")?;
        Ok(Locked { start, context })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // What it says may be the failure of something else, from before. Where the context is gone, so is the lock, and what
        // follows fails.
        let _ = self.context.bind_to_thread();
        // SAFETY: locked by `over`, once, and still mapped.
        let _ = unsafe { sys::cuMemHostUnregister(self.start.as_ptr().cast::<c_void>()) };
    }
}
