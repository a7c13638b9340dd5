//! Copies on a stream of their own, beside libtorch's work and ordered with it by events of this process.

#![expect(unsafe_code, reason = "enqueues copies between device addresses")]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use common::ids::BatchId;
use common::queue::{Mark, Phase};
use cudarc::driver::{CudaEvent, CudaStream, result, sys};
use tch::Tensor;

use crate::cuda::{CudaError, Doing, Gpu, Marks};

/// A copy stream.
pub(super) struct Copies {
    stream: Arc<CudaStream>,
    /// libtorch's: the NULL stream.
    torch: Arc<CudaStream>,
    /// Made once somebody watches them.
    marks: OnceLock<Arc<Marks>>,
}

/// Rows that are copied to the same columns of another matrix. Pitches and width in bytes.
pub(super) struct Columns {
    pub(super) from: u64,
    pub(super) from_pitch: usize,
    pub(super) to: u64,
    pub(super) to_pitch: usize,
    pub(super) width: usize,
    pub(super) rows: usize,
}

impl Copies {
    pub(super) fn new(gpu: &Gpu) -> Result<Copies, CudaError> {
        let stream = gpu.context().new_stream().doing("making a copy stream")?;
        Ok(Copies { stream, torch: gpu.context().default_stream(), marks: OnceLock::new() })
    }

    /// The marks that [`Copies::mark_phase`] leaves from here on.
    pub(super) fn marks(&self) -> Arc<Marks> {
        Arc::clone(self.marks.get_or_init(|| Arc::new(Marks::new(Arc::clone(&self.stream)))))
    }

    /// What is enqueued here from now on is for this phase and batch; nobody may be watching.
    pub(super) fn mark_phase(&self, phase: Phase, batch: BatchId) {
        if let Some(marks) = self.marks.get() {
            marks.leave(Mark { phase, about: batch.0 });
        }
    }

    /// What is enqueued here from now on comes after all that libtorch has been given so far.
    pub(super) fn after_torch(&self) -> Result<(), CudaError> {
        self.stream.join(&self.torch).doing("ordering copies behind the forward")
    }

    /// Enqueues a copy into columns.
    ///
    /// # Safety
    /// Both matrices lie in device memory that stays mapped until the copy is done, and nobody else writes them.
    pub(super) unsafe fn columns(&self, copy: &Columns) -> Result<(), CudaError> {
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: copy.from,
            srcArray: std::ptr::null_mut(),
            srcPitch: copy.from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: copy.to,
            dstArray: std::ptr::null_mut(),
            dstPitch: copy.to_pitch,
            WidthInBytes: copy.width,
            Height: copy.rows,
        };
        self.stream.context().bind_to_thread().doing("taking the GPU's context")?;
        // SAFETY: the caller's promise; `copy` is read before the call returns.
        let enqueued = unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.stream.cu_stream()) };
        enqueued.result().doing("copying hidden states into a slot")
    }

    /// Enqueues a copy of `bytes`.
    ///
    /// # Safety
    /// As [`Copies::columns`].
    pub(super) unsafe fn bytes(&self, from: u64, to: u64, bytes: usize) -> Result<(), CudaError> {
        self.stream.context().bind_to_thread().doing("taking the GPU's context")?;
        // SAFETY: the caller's promise.
        let enqueued = unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) };
        enqueued.doing("copying between GPU memories")
    }

    /// Everything enqueued here so far, as an event whose waiter sleeps.
    pub(super) fn mark(&self) -> Result<CudaEvent, CudaError> {
        let sleeping = Some(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC);
        self.stream.record_event(sleeping).doing("marking the end of copies")
    }

    /// Waits for everything enqueued here so far, watching: copies alone are short.
    pub(super) fn finish(&self) -> Result<(), CudaError> {
        self.stream.synchronize().doing("waiting for copies")
    }

    /// How long the device takes for what `work` enqueues here.
    pub(super) fn time<E>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Duration, E>
    where
        E: From<CudaError>,
    {
        let timing = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let start = self.stream.record_event(timing).doing("timing copies")?;
        work()?;
        let end = self.stream.record_event(timing).doing("timing copies")?;
        let milliseconds = start.elapsed_ms(&end).doing("timing copies")?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }
}

/// A tensor's first byte on its device.
pub(super) fn address(tensor: &Tensor) -> u64 {
    tensor.data_ptr().expose_provenance() as u64
}
