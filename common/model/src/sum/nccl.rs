//! NCCL's C functions as this process has them.
//!
//! The types are cudarc's. Its loader looks for `libnccl.so` and `libnccl.so.13`, while libtorch brings `libnccl.so.2`
//! and has it loaded already: so the symbols are looked up among what is loaded.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};

use super::SUM;
use crate::cuda::symbol::symbol;

/// A meeting's name: opaque bytes.
pub type UniqueId = [u8; 128];

/// What a call came to.
pub(super) enum Status {
    Done,
    AtWork,
}

/// Why a call did not do its work.
pub(super) enum Failure {
    Missing(&'static str),
    Aborted,
    Call { call: &'static str, reason: String },
}

/// The start of `ncclConfig_t`, as far as version 2.17 had it; NCCL takes the rest, by `size` and `version`, as unset.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls return at once and are asked after with `ncclCommGetAsyncError`: a wait for a dead rank can be given up.
    fn not_blocking() -> Config {
        const UNSET: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21_700,
            blocking: 0,
            cga_cluster_size: UNSET,
            min_ctas: UNSET,
            max_ctas: UNSET,
            net_name: std::ptr::null(),
            split_share: UNSET,
        }
    }
}

type Result32 = c_int;
type Stream = *mut c_void;

/// The functions that sums need.
pub(super) struct Nccl {
    get_unique_id: unsafe extern "C" fn(*mut ncclUniqueId) -> Result32,
    init: unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut Config) -> Result32,
    status: unsafe extern "C" fn(ncclComm_t, *mut Result32) -> Result32,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        ncclDataType_t,
        ncclRedOp_t,
        ncclComm_t,
        Stream,
    ) -> Result32,
    abort: unsafe extern "C" fn(ncclComm_t) -> Result32,
    error_string: unsafe extern "C" fn(Result32) -> *const c_char,
}

impl Nccl {
    pub(super) fn load() -> Result<Nccl, Failure> {
        Ok(Nccl {
            // SAFETY: the field's type is the function's in NCCL's header (nccl.h, 2.17 and later).
            get_unique_id: unsafe { function(c"ncclGetUniqueId")? },
            // SAFETY: as above.
            init: unsafe { function(c"ncclCommInitRankConfig")? },
            // SAFETY: as above.
            status: unsafe { function(c"ncclCommGetAsyncError")? },
            // SAFETY: as above.
            all_reduce: unsafe { function(c"ncclAllReduce")? },
            // SAFETY: as above.
            abort: unsafe { function(c"ncclCommAbort")? },
            // SAFETY: as above.
            error_string: unsafe { function(c"ncclGetErrorString")? },
        })
    }

    pub(super) fn unique_id(&self) -> Result<UniqueId, Failure> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: `id` is writable.
        let result = unsafe { (self.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", result)?;
        Ok(id.internal.map(|byte| byte as u8))
    }

    /// Begins to meet; [`Nccl::status`] tells when it is done.
    pub(super) fn init(&self, id: &UniqueId, rank: u32, ranks: u32) -> Result<ncclComm_t, Failure> {
        let id = ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        let (mut communicator, mut config) = (std::ptr::null_mut(), Config::not_blocking());
        // SAFETY: both pointers are to writable values of the types that the call takes; it copies the configuration.
        let result = unsafe { (self.init)(&mut communicator, ranks as c_int, id, rank as c_int, &mut config) };
        self.check("ncclCommInitRankConfig", result)?;
        Ok(communicator)
    }

    pub(super) fn status(&self, communicator: ncclComm_t) -> Result<Status, Failure> {
        if communicator.is_null() {
            return Err(Failure::Aborted);
        }
        let mut state = 0;
        // SAFETY: the communicator is neither destroyed nor aborted, for then it would be null.
        let result = unsafe { (self.status)(communicator, &mut state) };
        self.check("ncclCommGetAsyncError", result)?;
        self.check("an earlier call", state)
    }

    /// Queues the sum of `count` elements at `data` on the NULL stream.
    ///
    /// # Safety
    /// `data` points to `count` elements of `kind` on the communicator's GPU, and stays theirs until the stream is past.
    pub(super) unsafe fn all_reduce(
        &self,
        communicator: ncclComm_t,
        data: *mut c_void,
        count: usize,
        kind: ncclDataType_t,
    ) -> Result<Status, Failure> {
        if communicator.is_null() {
            return Err(Failure::Aborted);
        }
        // SAFETY: the caller's promise; in place is allowed, and a null stream is the default one.
        let result = unsafe { (self.all_reduce)(data, data, count, kind, SUM, communicator, std::ptr::null_mut()) };
        self.check("ncclAllReduce", result)
    }

    pub(super) fn abort(&self, communicator: ncclComm_t) {
        if !communicator.is_null() {
            // SAFETY: the communicator is live, and its owner has forgotten it. What the call returns helps nobody.
            let _ = unsafe { (self.abort)(communicator) };
        }
    }

    fn check(&self, call: &'static str, result: Result32) -> Result<Status, Failure> {
        if result == ncclResult_t::ncclSuccess as Result32 {
            return Ok(Status::Done);
        }
        if result == ncclResult_t::ncclInProgress as Result32 {
            return Ok(Status::AtWork);
        }
        // SAFETY: returns a static C string for any number.
        let text = unsafe { (self.error_string)(result) };
        // SAFETY: as above.
        let reason = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        Err(Failure::Call { call, reason })
    }
}

/// A function of NCCL's.
///
/// # Safety
/// `F` is its type.
unsafe fn function<F: Copy>(name: &'static CStr) -> Result<F, Failure> {
    // SAFETY: the caller's promise.
    unsafe { symbol(name) }.ok_or(Failure::Missing(name.to_str().unwrap_or("a function")))
}
