//! cuBLASLt's C functions as this process has them.
//!
//! The types are cudarc's. Its loader would take any `libcublasLt.so` of the machine, while libtorch has its own loaded
//! already: so the symbols are looked up among what is loaded.
//!
//! cuBLASLt counts columns first. What lies in memory as [T, in], [out, in] and [T, out] it sees as [in, T], [in, out] and
//! [out, T], and `input W^T` is to it the product of the transposed weight with the input.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulPreference_t, cublasLtMatrixLayout_t, cudaDataType,
};

use crate::cuda::symbol::symbol;

/// One of cuBLASLt's kernels, with how it is to run.
pub(super) type Algorithm = cublasLtMatmulAlgo_t;

/// Addresses and sizes of one product, all matrices dense and in bfloat16.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// T, out, in.
    pub(super) sizes: [usize; 3],
    /// [T, in].
    pub(super) input: u64,
    /// [out, in].
    pub(super) weight: u64,
    /// `[out]`, added to each row.
    pub(super) bias: Option<u64>,
    /// [T, out].
    pub(super) output: u64,
}

/// `cublasLtMatmulHeuristicResult_t`, its state as a number: what C writes need not be one that cudarc knows.
#[repr(C)]
#[derive(Clone, Copy)]
struct Suggestion {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Suggestion>() == 96);

impl Suggestion {
    const UNWRITTEN: Suggestion = Suggestion {
        algorithm: Algorithm { data: [0; 8] },
        workspace: 0,
        state: !SUCCESS,
        waves: 0.0,
        reserved: [0; 4],
    };
}

const SUCCESS: c_int = 0;
/// `CUBLAS_OP_T` of `cublasOperation_t`.
const TRANSPOSED: c_int = 1;

type Status = c_int;
type Description = cublasLtMatmulDesc_t;
type Layout = cublasLtMatrixLayout_t;
type Preference = cublasLtMatmulPreference_t;

#[derive(Clone, Copy)]
struct Functions {
    create: unsafe extern "C" fn(*mut cublasLtHandle_t) -> Status,
    destroy: unsafe extern "C" fn(cublasLtHandle_t) -> Status,
    create_description: unsafe extern "C" fn(*mut Description, cublasComputeType_t, cudaDataType) -> Status,
    set_attribute: unsafe extern "C" fn(Description, Attribute, *const c_void, usize) -> Status,
    destroy_description: unsafe extern "C" fn(Description) -> Status,
    create_layout: unsafe extern "C" fn(*mut Layout, cudaDataType, u64, u64, i64) -> Status,
    destroy_layout: unsafe extern "C" fn(Layout) -> Status,
    create_preference: unsafe extern "C" fn(*mut Preference) -> Status,
    destroy_preference: unsafe extern "C" fn(Preference) -> Status,
    suggest: unsafe extern "C" fn(
        cublasLtHandle_t,
        Description,
        Layout,
        Layout,
        Layout,
        Layout,
        Preference,
        c_int,
        *mut Suggestion,
        *mut c_int,
    ) -> Status,
    multiply: unsafe extern "C" fn(
        cublasLtHandle_t,
        Description,
        *const c_void,
        *const c_void,
        Layout,
        *const c_void,
        Layout,
        *const c_void,
        *const c_void,
        Layout,
        *mut c_void,
        Layout,
        *const Algorithm,
        *mut c_void,
        usize,
        *mut c_void,
    ) -> Status,
}

impl Functions {
    fn find() -> Option<Functions> {
        Some(Functions {
            // SAFETY: the field's type is the function's in cuBLASLt's header (cublasLt.h, 12.0 and later).
            create: unsafe { symbol(c"cublasLtCreate")? },
            // SAFETY: as above.
            destroy: unsafe { symbol(c"cublasLtDestroy")? },
            // SAFETY: as above.
            create_description: unsafe { symbol(c"cublasLtMatmulDescCreate")? },
            // SAFETY: as above.
            set_attribute: unsafe { symbol(c"cublasLtMatmulDescSetAttribute")? },
            // SAFETY: as above.
            destroy_description: unsafe { symbol(c"cublasLtMatmulDescDestroy")? },
            // SAFETY: as above.
            create_layout: unsafe { symbol(c"cublasLtMatrixLayoutCreate")? },
            // SAFETY: as above.
            destroy_layout: unsafe { symbol(c"cublasLtMatrixLayoutDestroy")? },
            // SAFETY: as above.
            create_preference: unsafe { symbol(c"cublasLtMatmulPreferenceCreate")? },
            // SAFETY: as above.
            destroy_preference: unsafe { symbol(c"cublasLtMatmulPreferenceDestroy")? },
            // SAFETY: as above; `Suggestion` has its struct's layout.
            suggest: unsafe { symbol(c"cublasLtMatmulAlgoGetHeuristic")? },
            // SAFETY: as above.
            multiply: unsafe { symbol(c"cublasLtMatmul")? },
        })
    }
}

/// cuBLASLt, ready for the current GPU.
pub(super) struct Library {
    functions: Functions,
    handle: cublasLtHandle_t,
    preference: Preference,
}

impl Library {
    /// That of the libtorch in this process, for the GPU whose context is current; none where there is none.
    pub(super) fn open() -> Option<Library> {
        let mut library = Library { functions: Functions::find()?, handle: null_mut(), preference: null_mut() };
        // SAFETY: the handle is written if the call succeeds, and stays null if not.
        let created = unsafe { (library.functions.create)(&raw mut library.handle) };
        // The preference as it is made: no workspace, and matrices that start at multiples of 256 bytes.
        // SAFETY: as above.
        let preferred = unsafe { (library.functions.create_preference)(&raw mut library.preference) };
        (created == SUCCESS && preferred == SUCCESS).then_some(library)
    }

    /// At most `count` kernels for a product, what cuBLAS's heuristics think best first.
    pub(super) fn suggest(&self, operands: &Operands, count: usize) -> Vec<Algorithm> {
        let Some(problem) = Problem::describe(&self.functions, operands) else { return Vec::new() };
        let (mut suggestions, mut written) = (vec![Suggestion::UNWRITTEN; count], 0);
        let [weight, input, output] = problem.layouts;
        // SAFETY: handle, description, layouts and preference are live, and at most `count` suggestions are written.
        let asked = unsafe {
            (self.functions.suggest)(
                self.handle,
                problem.description,
                weight,
                input,
                output,
                output,
                self.preference,
                count as c_int,
                suggestions.as_mut_ptr(),
                &raw mut written,
            )
        };
        let written = if asked == SUCCESS { written as usize } else { 0 };
        suggestions.truncate(written);
        suggestions.iter().filter(|one| one.state == SUCCESS).map(|one| one.algorithm).collect()
    }

    /// Queues a product on the NULL stream; false if the kernel does not serve it.
    ///
    /// # Safety
    /// The operands are matrices of those sizes on this library's GPU, and stay so until the stream is past. None overlaps
    /// the output.
    pub(super) unsafe fn multiply(&self, operands: &Operands, algorithm: &Algorithm) -> bool {
        let Some(problem) = Problem::describe(&self.functions, operands) else { return false };
        let [weight, input, output] = problem.layouts;
        let (one, none) = (1.0_f32, 0.0_f32);
        let device = |address: u64| address as *mut c_void;
        // SAFETY: handle, description and layouts are live, and the matrices are as the caller promises. What the output held
        // counts nought, and is not read.
        let queued = unsafe {
            (self.functions.multiply)(
                self.handle,
                problem.description,
                (&raw const one).cast(),
                device(operands.weight),
                weight,
                device(operands.input),
                input,
                (&raw const none).cast(),
                device(operands.output),
                output,
                device(operands.output),
                output,
                algorithm,
                null_mut(),
                0,
                null_mut(),
            )
        };
        queued == SUCCESS
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if !self.preference.is_null() {
            // SAFETY: made by this library, and destroyed here alone. What the call returns helps nobody.
            let _ = unsafe { (self.functions.destroy_preference)(self.preference) };
        }
        if !self.handle.is_null() {
            // SAFETY: as above.
            let _ = unsafe { (self.functions.destroy)(self.handle) };
        }
    }
}

/// A product as cuBLASLt wants it described.
struct Problem {
    functions: Functions,
    description: Description,
    /// Of weight, input and output.
    layouts: [Layout; 3],
}

impl Problem {
    fn describe(functions: &Functions, operands: &Operands) -> Option<Problem> {
        let mut problem = Problem { functions: *functions, description: null_mut(), layouts: [null_mut(); 3] };
        let (sums, scales) = (cublasComputeType_t::CUBLAS_COMPUTE_32F, cudaDataType::CUDA_R_32F);
        // SAFETY: the description is written if the call succeeds, and stays null if not.
        let mut fine = unsafe { (functions.create_description)(&raw mut problem.description, sums, scales) } == SUCCESS;
        let [tokens, out, depth] = operands.sizes;
        for (layout, [rows, columns]) in problem.layouts.iter_mut().zip([[depth, out], [depth, tokens], [out, tokens]])
        {
            let kind = cudaDataType::CUDA_R_16BF;
            // SAFETY: as above.
            let made = unsafe { (functions.create_layout)(layout, kind, rows as u64, columns as u64, rows as i64) };
            fine &= made == SUCCESS;
        }
        (fine && problem.set_up(operands.bias)).then_some(problem)
    }

    fn set_up(&self, bias: Option<u64>) -> bool {
        let transposed = self.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED);
        let Some(bias) = bias else { return transposed };
        transposed
            && self.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)
            && self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)
    }

    fn set<T>(&self, attribute: Attribute, value: &T) -> bool {
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: the description is live, and the call copies as many bytes as the value has.
        SUCCESS == unsafe { (self.functions.set_attribute)(self.description, attribute, value, size_of::<T>()) }
    }
}

impl Drop for Problem {
    fn drop(&mut self) {
        for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
            // SAFETY: made by this problem, and destroyed here alone. What the call returns helps nobody.
            let _ = unsafe { (self.functions.destroy_layout)(layout) };
        }
        if !self.description.is_null() {
            // SAFETY: as above.
            let _ = unsafe { (self.functions.destroy_description)(self.description) };
        }
    }
}
