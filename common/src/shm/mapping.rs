//! References into mapped memory. The one place that turns an offset into a reference.
#![expect(unsafe_code, reason = "makes references into shared memory")]

use std::ptr::NonNull;

use crate::sync::{AtomicU32, AtomicU64};

/// A type that may live in shared memory.
///
/// # Safety
/// The type is `repr(C)`, made of atomics (or arrays and structs of them) only, so that any bytes are a valid value
/// and other processes may write it at any time; it holds no pointer and needs no drop.
pub(crate) unsafe trait Shared {}

// SAFETY: an atomic integer.
unsafe impl Shared for AtomicU32 {}
// SAFETY: an atomic integer.
unsafe impl Shared for AtomicU64 {}

/// Memory that stays mapped as long as the value lives.
///
/// # Safety
/// `base` points to `len` mapped, readable bytes for the whole life of `self`, at least 64-byte aligned, shared by no
/// plain (non-atomic) Rust reference.
pub(crate) unsafe trait Mapped {
    /// First byte.
    fn base(&self) -> NonNull<u8>;
    /// Mapped bytes.
    fn len(&self) -> usize;

    /// The `count` values of `T` that start `offset` bytes into the memory.
    ///
    /// # Panics
    /// If they reach beyond it or are not aligned: offsets come from a checked layout.
    fn slice<T: Shared>(&self, offset: usize, count: usize) -> &[T] {
        let bytes = count.checked_mul(size_of::<T>()).expect("a slice's size fits");
        let end = offset.checked_add(bytes).expect("a slice's end fits");
        assert!(end <= self.len(), "bytes {offset}..{end} of a mapping of {}", self.len());
        // SAFETY: offset <= len, so the result stays inside the mapping (or one past it).
        let first = unsafe { self.base().add(offset) }.cast::<T>();
        assert!(first.is_aligned(), "offset {offset} is not aligned");
        // SAFETY: in bounds and aligned as just checked; `Shared` allows any bytes and concurrent writers.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), count) }
    }

    /// The value of `T` that starts `offset` bytes into the memory. Panics as [`Mapped::slice`].
    fn view<T: Shared>(&self, offset: usize) -> &T {
        &self.slice::<T>(offset, 1)[0]
    }
}
