//! Named shared memory: create, attach, map read-only, tell whether the creator lives, sweep what the dead left behind.
//!
//! - `create` refuses a name that exists, reserves every page at once (a full `/dev/shm` is an error here, not a SIGBUS
//!   later), and holds a kernel lock on the file that vanishes with the process. The creator unlinks the name when
//!   its [`Segment`] is dropped.
//! - `attach` takes only what this user created, readable and writable by nobody else.
//! - [`ReadOnly`] maps without write permission: the inspector cannot change a byte.
//!
//! This folder is the only place that touches raw shared memory; others get references to atomics.

mod error;
mod futex;
mod mapping;
mod presence;
mod segment;
mod sweep;

pub use error::ShmError;
pub(crate) use futex::{futex_wait, futex_wake};
pub(crate) use mapping::{Mapped, Shared};
pub(crate) use presence::{Presence, is_held};
pub use segment::{ReadOnly, Segment};
pub use sweep::{free_bytes, sweep_stale, total_bytes};

/// The byte of a segment's file that its creator keeps locked.
pub(crate) const CREATOR_BYTE: u8 = 255;
