//! What can go wrong with named shared memory.

use std::io;

use thiserror::Error;

/// A segment could not be created, opened or mapped.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShmError {
    /// The name is not one plain file name.
    #[error("{name:?} cannot name a shared memory segment: use letters, digits, '-', '_' and '.', at most 200")]
    Name {
        /// What was asked for.
        name: String,
    },
    /// Somebody made it before.
    #[error("/dev/shm/{name} exists already: another run uses this name, or a dead one left it behind")]
    Exists {
        /// The segment.
        name: String,
    },
    /// There is none.
    #[error("/dev/shm/{name} does not exist: the run has ended, or never started")]
    Missing {
        /// The segment.
        name: String,
    },
    /// The file system of shared memory is full.
    #[error("/dev/shm has no room for {name}: {len} bytes asked for; free some, enlarge it, or lower queue.capacity")]
    NoSpace {
        /// The segment.
        name: String,
        /// Bytes asked for.
        len: usize,
    },
    /// It is not ours.
    #[error("/dev/shm/{name} belongs to user {owner} with mode {mode:o}; expected user {expected} and mode 600")]
    Foreign {
        /// The segment.
        name: String,
        /// The user id that owns it.
        owner: u32,
        /// Its permission bits.
        mode: u32,
        /// The user id of this process.
        expected: u32,
    },
    /// The file has no bytes (yet).
    #[error("/dev/shm/{name} is empty: it is being created, or its creator died doing so")]
    Empty {
        /// The segment.
        name: String,
    },
    /// The system said no.
    #[error("cannot {what} /dev/shm/{name}")]
    Os {
        /// The step that failed.
        what: &'static str,
        /// The segment.
        name: String,
        /// Why.
        source: io::Error,
    },
}

impl ShmError {
    pub(crate) fn os(what: &'static str, name: &str, source: impl Into<io::Error>) -> ShmError {
        ShmError::Os { what, name: name.to_owned(), source: source.into() }
    }
}
