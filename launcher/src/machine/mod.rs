//! What a machine has for a run: GPUs, memory, room in `/dev/shm` and on the run folder's disk. Looked up without CUDA and
//! without a process; what cannot be found out is left open, and nothing is held against it.

mod catalogue;
mod gpus;
mod memory;
mod visible;

use std::io;
use std::path::Path;

use common::shm;
use nix::sys::statvfs::statvfs;

use crate::plan::{FolderError, RunFolder};

pub(crate) use catalogue::GpuModel;
pub(crate) use gpus::{Gpu, Gpus, Link};
pub(crate) use memory::Memory;

/// A machine, as far as it is known.
pub(crate) struct Machine {
    /// The GPUs that workers will see, or why nobody knows.
    pub(crate) gpus: Result<Gpus, String>,
    /// What this machine has besides; none of a machine that is only thought of.
    pub(crate) host: Option<Host>,
}

/// Room for what does not lie on a GPU, in bytes.
pub(crate) struct Host {
    /// Memory that processes can still take.
    pub(crate) memory: Memory,
    /// Room in `/dev/shm`.
    pub(crate) shared_memory: u64,
    /// What there is of `/dev/shm` in all.
    pub(crate) shared_memory_total: u64,
    /// Room on the disk of the run folder, or why there can be no such folder.
    pub(crate) disk: Result<u64, FolderError>,
}

impl Machine {
    /// This machine, for a run in `run_dir`; its GPUs are looked for only where workers compute on them.
    ///
    /// # Errors
    /// `/proc`, `/dev/shm` or the disk cannot be asked.
    pub(crate) fn look(run_dir: &Path, with_gpus: bool) -> io::Result<Machine> {
        let gpus = if with_gpus { gpus::look() } else { Ok(Gpus::default()) };
        let disk = match RunFolder::check(run_dir) {
            Ok(()) => Ok(disk(run_dir)?),
            Err(error) => Err(error),
        };
        let (shared_memory, shared_memory_total) = (shm::free_bytes()?, shm::total_bytes()?);
        let host = Host { memory: Memory::look()?, shared_memory, shared_memory_total, disk };
        Ok(Machine { gpus, host: Some(host) })
    }

    /// Another machine, with so many idle GPUs of that model.
    pub(crate) fn with(model: &'static GpuModel, gpus: u32) -> Machine {
        Machine { gpus: Ok(Gpus::alike(model, gpus)), host: None }
    }
}

/// Room where `folder` is, or will be.
fn disk(folder: &Path) -> io::Result<u64> {
    let place = std::path::absolute(folder)?;
    let place = place.ancestors().find(|place| place.exists()).unwrap_or(Path::new("/"));
    let found = statvfs(place)?;
    Ok(found.blocks_available() * found.fragment_size())
}
