//! Small records as bytes: slot metadata and control records, never tensors.
//!
//! One module, so that the format is one file to change. Fixed-width little-endian integers; at most
//! [`LIMIT`] bytes, both ways. Records derive bincode's own traits: its decoder holds a length against what is left of the
//! limit before it asks for memory, serde's collections take up to 1 MiB on a corrupt length's word.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use bincode::{Decode, Encode};
use thiserror::Error;

/// The longest record, in bytes.
pub const LIMIT: usize = 1024;

const FORMAT: Configuration<LittleEndian, Fixint, Limit<LIMIT>> =
    bincode::config::standard().with_fixed_int_encoding().with_limit::<LIMIT>();

/// A record does not fit or does not read.
#[derive(Debug, Error)]
pub enum WireError {
    /// It cannot be written: too long, or of a kind the format has no place for.
    #[error("a record cannot be written in {LIMIT} bytes")]
    Encode(#[from] bincode::error::EncodeError),
    /// The bytes are no such record.
    #[error("bytes that are no such record")]
    Decode(#[from] bincode::error::DecodeError),
    /// The record is followed by something else.
    #[error("a record of {used} bytes in {found}")]
    Trailing {
        /// Bytes of the record.
        used: usize,
        /// Bytes given.
        found: usize,
    },
}

/// The record as bytes, at most [`LIMIT`].
///
/// # Errors
/// [`WireError::Encode`] if it is longer.
pub fn encode<T: Encode>(record: &T) -> Result<Vec<u8>, WireError> {
    let mut bytes = vec![0; LIMIT];
    let used = bincode::encode_into_slice(record, &mut bytes, FORMAT)?;
    bytes.truncate(used);
    Ok(bytes)
}

/// The record that fills `bytes` exactly.
///
/// # Errors
/// [`WireError::Decode`] or [`WireError::Trailing`]; never a panic, never more than [`LIMIT`] bytes of memory.
pub fn decode<T: Decode<()>>(bytes: &[u8]) -> Result<T, WireError> {
    let (record, used) = bincode::decode_from_slice(bytes, FORMAT)?;
    if used != bytes.len() {
        return Err(WireError::Trailing { used, found: bytes.len() });
    }
    Ok(record)
}
