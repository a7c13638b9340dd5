//! Functions of the libraries that libtorch brings, by name among what is loaded: tch does not bind them, and what
//! libtorch has open is the one version that fits it.

use std::ffi::{CStr, c_void};
use std::mem::transmute_copy;

/// A loaded function; none where no loaded library has one of that name ([`crate::runtime::start`] opens libtorch's).
///
/// # Safety
/// `F` is the function's type.
pub(crate) unsafe fn symbol<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the name is a C string; looking a symbol up changes nothing.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: of the size of an address, as just asserted, and the caller says what it is.
    (!address.is_null()).then(|| unsafe { transmute_copy(&address) })
}
