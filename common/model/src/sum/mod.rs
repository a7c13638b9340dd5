//! Sums of tensors over drafters on GPUs, through NCCL: the device half of the gradient exchange.
//!
//! A sum is queued on torch's stream like any other op; nothing waits for the device but [`DeviceSum::finish`]. A rank
//! that dies leaves the others' kernels spinning, so each watches a sign that ends them.

#![expect(unsafe_code, reason = "calls NCCL")]

mod nccl;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::ids::Rank;
use common::wait::{Patience, WaitError};
use cudarc::driver::{CudaContext, DriverError};
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t};
use tch::{Device, Kind, Tensor};

pub use nccl::UniqueId;
use nccl::{Failure, Nccl, Status};

/// How often a setting-up communicator is asked whether it is there.
const PAUSE: Duration = Duration::from_millis(1);
/// How often a watcher looks whether the sums are to end.
const LOOK: Duration = Duration::from_millis(20);

/// Ranks could not meet, or a sum could not be queued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SumError {
    /// NCCL is not among the libraries of this libtorch.
    #[error("this libtorch has no NCCL ({0} is missing)")]
    NoNccl(&'static str),
    /// The GPU does not let itself be used.
    #[error("cuda:{0} for summing gradients: {1}")]
    Gpu(usize, #[source] DriverError),
    /// NCCL's own word for it.
    #[error("NCCL, {call}: {reason}")]
    Nccl {
        /// The call that failed.
        call: &'static str,
        /// What NCCL says.
        reason: String,
    },
    /// It was ended, see [`DeviceSum::join`].
    #[error("the sum of gradients was aborted")]
    Aborted,
    /// Another rank did not come, or the end was asked for.
    #[error("summing gradients: {0}")]
    Wait(#[from] WaitError),
}

impl From<Failure> for SumError {
    fn from(failure: Failure) -> SumError {
        match failure {
            Failure::Missing(symbol) => SumError::NoNccl(symbol),
            Failure::Aborted => SumError::Aborted,
            Failure::Call { call, reason } => SumError::Nccl { call, reason },
        }
    }
}

/// A name under which ranks meet: made by one of them, carried to the others.
///
/// # Errors
/// [`SumError::NoNccl`], [`SumError::Nccl`].
pub fn unique_id() -> Result<UniqueId, SumError> {
    Ok(Nccl::load()?.unique_id()?)
}

/// One rank's part in the sums of its GPU's tensors.
pub struct DeviceSum {
    communicator: Arc<Communicator>,
}

struct Communicator {
    nccl: Nccl,
    context: Arc<CudaContext>,
    /// Null once aborted.
    handle: Mutex<Handle>,
}

struct Handle(ncclComm_t);

// SAFETY: NCCL allows a communicator to be used from any thread, one at a time; the mutex sees to that.
unsafe impl Send for Handle {}

impl DeviceSum {
    /// Meets `ranks` ranks under `id`, each with a GPU of its own; `device` is this one's. Returns when all are there.
    ///
    /// Once `ended` is true, because a rank is gone for one, this and all that was queued ends with [`SumError::Aborted`];
    /// a thread looks at it until the sums are dropped.
    ///
    /// # Errors
    /// [`SumError`].
    pub fn join(
        id: &UniqueId,
        (rank, ranks): (Rank, u32),
        device: usize,
        patience: &Patience,
        ended: impl Fn() -> bool + Send + 'static,
    ) -> Result<DeviceSum, SumError> {
        let nccl = Nccl::load()?;
        // NCCL takes the GPU that is current on the calling thread.
        let failed = |error| SumError::Gpu(device, error);
        let context = CudaContext::new(device).map_err(failed)?;
        context.bind_to_thread().map_err(failed)?;
        let handle = Mutex::new(Handle(nccl.init(id, rank.0, ranks)?));
        let communicator = Arc::new(Communicator { nccl, context, handle });
        watch(&communicator, ended);
        let what = || format!("the {ranks} drafters' GPUs to meet (this is rank {rank})");
        patience.poll(what, PAUSE, || communicator.settled().transpose())??;
        Ok(DeviceSum { communicator })
    }

    /// Queues the replacement of each contiguous tensor by its sum over ranks. Every rank must bring the same shapes in
    /// the same order.
    ///
    /// # Errors
    /// [`SumError::Nccl`]; also after an abort.
    pub fn sum(&self, tensors: &[&Tensor], patience: &Patience) -> Result<(), SumError> {
        for tensor in tensors {
            self.communicator.queue(tensor)?;
            let what = || "NCCL to take a sum".to_owned();
            patience.poll(what, PAUSE, || self.communicator.settled().transpose())??;
        }
        Ok(())
    }

    /// Waits until the GPU has done all that was queued; tells whether the sums among it came.
    ///
    /// # Errors
    /// [`SumError`].
    pub fn finish(&self, patience: &Patience) -> Result<(), SumError> {
        let communicator = &self.communicator;
        let failed = |error| SumError::Gpu(communicator.context.ordinal(), error);
        let done = communicator.context.default_stream().record_event(None).map_err(failed)?;
        let what = || "the GPU to finish what was queued behind a sum of gradients".to_owned();
        patience
            .poll(what, PAUSE, || done.try_is_complete().map(|done| done.then_some(())).transpose())?
            .map_err(failed)?;
        communicator.settled().map(drop)
    }
}

/// Ends every queued sum, finished or not, once `ended` says so; what they leave in their tensors is worth nothing.
fn watch(communicator: &Arc<Communicator>, ended: impl Fn() -> bool + Send + 'static) {
    let communicator = Arc::downgrade(communicator);
    std::thread::spawn(move || {
        while let Some(communicator) = communicator.upgrade() {
            if ended() {
                return communicator.abort();
            }
            drop(communicator);
            std::thread::sleep(LOOK);
        }
    });
}

impl Communicator {
    /// Whether the last call is through; `None` while it is at work.
    fn settled(&self) -> Result<Option<()>, SumError> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        match self.nccl.status(handle.0)? {
            Status::Done => Ok(Some(())),
            Status::AtWork => Ok(None),
        }
    }

    fn queue(&self, tensor: &Tensor) -> Result<(), SumError> {
        assert!(tensor.is_contiguous() && matches!(tensor.device(), Device::Cuda(_)), "a dense tensor on a GPU");
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the tensor is dense and of `numel` elements of this type, as just checked; queued on the NULL stream,
        // torch's own, the sum runs before anything that later reuses the memory.
        unsafe { self.nccl.all_reduce(handle.0, tensor.data_ptr(), tensor.numel(), data_type(tensor.kind())) }?;
        Ok(())
    }

    fn abort(&self) {
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let communicator = std::mem::replace(&mut handle.0, std::ptr::null_mut());
        self.nccl.abort(communicator);
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

fn data_type(kind: Kind) -> ncclDataType_t {
    match kind {
        Kind::Float => ncclDataType_t::ncclFloat32,
        Kind::Double => ncclDataType_t::ncclFloat64,
        Kind::BFloat16 => ncclDataType_t::ncclBfloat16,
        other => panic!("sums are of f32, f64 and bf16, not {other:?}"),
    }
}

/// The one operation of this room.
const SUM: ncclRedOp_t = ncclRedOp_t::ncclSum;
