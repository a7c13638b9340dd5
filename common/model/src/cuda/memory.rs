//! Device memory that several processes map: allocated, exported, imported, and given back when dropped.
//!
//! Two ways of sharing. A *file descriptor* (`cuMemCreate`) keeps the memory alive in whoever holds it, a process without
//! a CUDA context included. An *IPC handle* (`cuMemAlloc`) can be opened only while the process that made it lives.
//! Never from a pool (`cuMemAllocAsync`): the driver refuses to share such memory.

use std::ffi::{c_char, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use cudarc::driver::{DriverError, result, sys};

use super::{CudaError, Doing, Gpu, Refusal};

/// Bytes of an IPC handle.
pub(crate) const IPC_BYTES: usize = 64;

const FD: sys::CUmemAllocationHandleType = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Device memory at an address of this process. Dropping it gives back what this process has of it.
pub(crate) struct Mapping {
    start: sys::CUdeviceptr,
    len: usize,
    origin: Origin,
    gpu: Gpu,
}

enum Origin {
    /// `cuMemMap`, over a reserved range.
    Mapped,
    /// `cuMemAlloc`.
    Allocated,
    /// `cuIpcOpenMemHandle`.
    Opened,
}

impl Mapping {
    /// The first byte.
    pub(crate) fn start(&self) -> sys::CUdeviceptr {
        self.start
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // What it says may be the failure of something else, from before. Where the context is gone, so is the memory, and what
        // follows fails.
        let _ = self.gpu.context().bind_to_thread();
        match self.origin {
            Origin::Mapped => unmap(self.start, self.len),
            Origin::Allocated => {
                // SAFETY: `start` came from `cuMemAlloc`, and nobody is left here who uses it.
                let _ = unsafe { result::free_sync(self.start) };
            }
            Origin::Opened => {
                // SAFETY: `start` came from `cuIpcOpenMemHandle`, and nobody is left here who uses it.
                let _ = unsafe { sys::cuIpcCloseMemHandle(self.start) };
            }
        }
    }
}

fn unmap(start: sys::CUdeviceptr, len: usize) {
    // SAFETY: the range was mapped by `map`, and nobody is left here who uses it.
    let _ = unsafe { sys::cuMemUnmap(start, len) };
    // SAFETY: the range was reserved by `map`, and nothing is mapped there any more.
    let _ = unsafe { sys::cuMemAddressFree(start, len) };
}

/// Physical memory; given back when dropped, unless it is mapped somewhere or a descriptor of it is open.
struct Physical(sys::CUmemGenericAllocationHandle);

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: the driver gave the handle to us, and this is its only release.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

/// Memory of at least `len` bytes on `gpu`, and the descriptor by which others map it.
///
/// # Errors
/// [`Refusal::NoFds`], [`Refusal::Memory`], or what the driver said.
pub(crate) fn create_fd(gpu: &Gpu, len: usize) -> Result<(Mapping, OwnedFd), CudaError> {
    if !gpu.exports_fds() {
        return Err(Refusal::NoFds { gpu: gpu.id() }.into());
    }
    let properties = properties(gpu);
    let len = len.next_multiple_of(granularity(&properties)?);
    room(gpu, len)?;
    let mut handle = 0;
    // SAFETY: `handle` and `properties` outlive the call.
    let created = unsafe { sys::cuMemCreate(&mut handle, len, &properties, 0) };
    allocated(gpu, len, created.result())?;
    let physical = Physical(handle);
    let mut fd: RawFd = -1;
    // SAFETY: for this handle type the driver writes an int.
    let exported = unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast::<c_void>(), physical.0, FD, 0) };
    exported.result().doing("exporting GPU memory as a file descriptor")?;
    // SAFETY: the driver has just opened the descriptor for us; nobody else knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok((map(gpu, &physical, len)?, fd))
}

/// Maps memory of another process.
///
/// # Errors
/// The driver cannot import it here.
pub(crate) fn import_fd(gpu: &Gpu, fd: BorrowedFd<'_>, len: usize) -> Result<Mapping, CudaError> {
    gpu.context().bind_to_thread().doing("taking the GPU's context")?;
    let mut handle = 0;
    // For this handle type the driver takes the descriptor itself in the pointer's place.
    let descriptor = std::ptr::without_provenance_mut::<c_void>(fd.as_raw_fd() as usize);
    // SAFETY: `handle` outlives the call, and the descriptor is open; the driver does not keep it.
    let imported = unsafe { sys::cuMemImportFromShareableHandle(&mut handle, descriptor, FD) };
    imported.result().doing("importing another process's GPU memory")?;
    map(gpu, &Physical(handle), len)
}

/// Memory of `len` bytes on `gpu`, and the handle by which others open it.
///
/// # Errors
/// [`Refusal::Memory`], or what the driver said.
pub(crate) fn create_ipc(gpu: &Gpu, len: usize) -> Result<(Mapping, [u8; IPC_BYTES]), CudaError> {
    gpu.context().bind_to_thread().doing("taking the GPU's context")?;
    room(gpu, len)?;
    // SAFETY: the result is freed by the mapping alone.
    let start = unsafe { result::malloc_sync(len) };
    let start = allocated(gpu, len, start)?;
    let mapping = Mapping { start, len, origin: Origin::Allocated, gpu: gpu.clone() };
    let mut handle = sys::CUipcMemHandle { reserved: [0; IPC_BYTES] };
    // SAFETY: `handle` outlives the call, and `start` is the start of a `cuMemAlloc` block.
    let exported = unsafe { sys::cuIpcGetMemHandle(&mut handle, start) };
    exported.result().doing("exporting GPU memory as an IPC handle")?;
    Ok((mapping, handle.reserved.map(|byte| byte as u8)))
}

/// Opens memory of another, living process.
///
/// # Errors
/// Its process has ended, or the driver cannot open it here.
pub(crate) fn open_ipc(gpu: &Gpu, handle: [u8; IPC_BYTES], len: usize) -> Result<Mapping, CudaError> {
    gpu.context().bind_to_thread().doing("taking the GPU's context")?;
    let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as c_char) };
    let lazy = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    let mut start = 0;
    // SAFETY: `start` outlives the call; a handle that nobody exported is refused by the driver.
    let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut start, handle, lazy) };
    opened.result().doing("opening another process's GPU memory")?;
    Ok(Mapping { start, len, origin: Origin::Opened, gpu: gpu.clone() })
}

fn properties(gpu: &Gpu) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: FD,
        location: location(gpu),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(gpu: &Gpu) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu.context().cu_device() }
}

fn granularity(properties: &sys::CUmemAllocationProp) -> Result<usize, CudaError> {
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut granularity = 0;
    // SAFETY: both outlive the call.
    let asked = unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, properties, minimum) };
    asked.result().doing("asking for the granularity of GPU memory")?;
    Ok(granularity)
}

/// Refuses what does not fit, before the driver does so in fewer words.
fn room(gpu: &Gpu, needed: usize) -> Result<(), CudaError> {
    let (free, _) = gpu.memory()?;
    if needed > free {
        return Err(Refusal::Memory { gpu: gpu.id(), needed, free }.into());
    }
    Ok(())
}

/// The driver may find no room where [`room`] saw enough: it is in pieces, or somebody else was faster.
fn allocated<T>(gpu: &Gpu, needed: usize, memory: Result<T, DriverError>) -> Result<T, CudaError> {
    if let Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) = memory {
        let (free, _) = gpu.memory()?;
        return Err(Refusal::Memory { gpu: gpu.id(), needed, free }.into());
    }
    memory.doing(format_args!("allocating {needed} bytes on {}", gpu.id()))
}

/// Maps physical memory, readable and writable from `gpu`.
fn map(gpu: &Gpu, physical: &Physical, len: usize) -> Result<Mapping, CudaError> {
    let mut start = 0;
    // SAFETY: `start` outlives the call; the range is freed by the mapping, or below.
    let reserved = unsafe { sys::cuMemAddressReserve(&mut start, len, 0, 0, 0) };
    reserved.result().doing(format_args!("reserving {len} bytes of addresses"))?;
    // SAFETY: the range was reserved just now, and `physical` is `len` bytes long.
    let mapped = unsafe { sys::cuMemMap(start, len, 0, physical.0, 0) };
    if let Err(error) = mapped.result() {
        // SAFETY: reserved above, nothing is mapped there.
        let _ = unsafe { sys::cuMemAddressFree(start, len) };
        return Err(error).doing("mapping GPU memory");
    }
    let mapping = Mapping { start, len, origin: Origin::Mapped, gpu: gpu.clone() };
    let access = sys::CUmemAccessDesc {
        location: location(gpu),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the range is mapped, and `access` outlives the call.
    let granted = unsafe { sys::cuMemSetAccess(start, len, &access, 1) };
    granted.result().doing(format_args!("reaching that memory from {}", gpu.id()))?;
    Ok(mapping)
}
