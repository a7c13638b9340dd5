//! Whole files mapped read-only as arrays of numbers.
#![expect(unsafe_code, reason = "mapping a file is unsafe: nothing in the language keeps others from changing it")]

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::Path;

use memmap2::{Advice, Mmap};

/// A file as `[T]`. Numbers are little-endian, as every machine that runs this is.
pub(super) struct Mapped<T> {
    mapping: Mmap,
    element: PhantomData<T>,
}

impl<T: bytemuck::AnyBitPattern> Mapped<T> {
    /// Maps `path`, which must hold exactly `len` elements.
    pub(super) fn open(path: &Path, len: u64) -> io::Result<Mapped<T>> {
        let file = File::open(path)?;
        let expected = len * size_of::<T>() as u64;
        let found = file.metadata()?.len();
        if found != expected {
            let message = format!("{}: {found} bytes, expected {expected}", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        // SAFETY: a store's files are written before their folder gets its name and never changed afterwards.
        let mapping = unsafe { Mmap::map(&file) }?;
        // Batches take rows from everywhere; reading ahead would only fill memory. Advice may be refused.
        let _ = mapping.advise(Advice::Random);
        Ok(Mapped { mapping, element: PhantomData })
    }
}

impl<T: bytemuck::AnyBitPattern> Deref for Mapped<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.mapping)
    }
}
