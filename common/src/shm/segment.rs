//! A named segment, mapped for writing, and the read-only map of the inspector.
#![expect(unsafe_code, reason = "maps shared memory")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{OFlag, posix_fallocate};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap, shm_open, shm_unlink};
use nix::sys::stat::Mode;
use shared_memory::{Shmem, ShmemConf, ShmemError};

use super::mapping::Mapped;
use super::presence::{Presence, is_held};
use super::{CREATOR_BYTE, ShmError};

/// A named piece of memory that several processes map. Dropped by its creator, the name goes too; what is mapped stays.
pub struct Segment {
    memory: Shmem,
    name: String,
    /// Held by the creator only.
    creator: Option<Presence>,
    unlinked: AtomicBool,
}

// SAFETY: `Shmem` is not Send only for its raw pointer; the mapping belongs to the process, not to a thread.
unsafe impl Send for Segment {}
// SAFETY: through a shared reference one gets atomics, or a raw pointer whose use is the caller's own unsafe promise.
unsafe impl Sync for Segment {}

// SAFETY: `Shmem` keeps its page-aligned mapping until it is dropped.
unsafe impl Mapped for Segment {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.memory.as_ptr()).expect("a mapping is never at address 0")
    }

    fn len(&self) -> usize {
        self.memory.len()
    }
}

impl Segment {
    /// Creates `/dev/shm/{name}` with `len` zero bytes, all of them reserved, mode 0600.
    ///
    /// # Errors
    /// [`ShmError::Exists`], [`ShmError::NoSpace`], or what the system said.
    pub fn create(name: &str, len: usize) -> Result<Segment, ShmError> {
        check_name(name)?;
        loop {
            let shmem = ShmemConf::new().os_id(name).size(len.max(1)).create();
            let mut memory = shmem.map_err(|error| refused(name, error))?;
            memory.set_owner(false);
            // A sweep may hold the new file's lock, having taken it for a dead one's: its name is gone after that.
            if let Some(creator) = claim_name(name)? {
                let segment = Segment::new(memory, name, Some(creator));
                reserve(name, len)?;
                return Ok(segment);
            }
        }
    }

    /// Maps the existing `/dev/shm/{name}`.
    ///
    /// # Errors
    /// [`ShmError::Missing`], [`ShmError::Foreign`], [`ShmError::Empty`], or what the system said.
    pub fn attach(name: &str) -> Result<Segment, ShmError> {
        check_name(name)?;
        let (file, _) = open_file(name, OFlag::O_RDWR)?;
        check_file(name, &file)?;
        let memory = ShmemConf::new().os_id(name).open().map_err(|e| refused(name, e))?;
        Ok(Segment::new(memory, name, None))
    }

    fn new(memory: Shmem, name: &str, creator: Option<Presence>) -> Segment {
        Segment { memory, name: name.to_owned(), creator, unlinked: AtomicBool::new(false) }
    }

    /// Removes the name, if this is its creator's value and still has it. What is mapped stays mapped.
    pub fn unlink(&self) {
        if self.creator.is_some() && !self.unlinked.swap(true, Ordering::Relaxed) {
            // Gone already: somebody cleaned up by hand.
            let _ = shm_unlink(format!("/{}", self.name).as_str());
        }
    }

    /// The name, as seen in `/dev/shm`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Mapped bytes.
    pub fn len(&self) -> usize {
        Mapped::len(self)
    }

    /// Never: an empty segment cannot be mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first byte, page-aligned and valid for [`Segment::len`] bytes while `self` lives. Who may touch which bytes
    /// and when is agreed between the processes (for the arena: the owner of a slot).
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base()
    }

    /// Another open of the segment's file, to lock or watch presence bytes.
    pub(crate) fn open_file(&self) -> Result<File, ShmError> {
        Ok(open_file(&self.name, OFlag::O_RDWR)?.0)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.unlink();
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment").field("name", &self.name).field("len", &self.len()).finish()
    }
}

/// A segment mapped without write permission.
pub struct ReadOnly {
    base: NonNull<u8>,
    len: NonZeroUsize,
    file: File,
}

// SAFETY: the mapping stays until drop; reads go through atomics, which other processes may write.
unsafe impl Mapped for ReadOnly {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len.get()
    }
}

impl ReadOnly {
    /// Maps the existing `/dev/shm/{name}` for reading.
    ///
    /// # Errors
    /// [`ShmError::Missing`], [`ShmError::Foreign`], [`ShmError::Empty`], or what the system said.
    pub fn open(name: &str) -> Result<ReadOnly, ShmError> {
        check_name(name)?;
        let (file, _) = open_file(name, OFlag::O_RDONLY)?;
        let len = check_file(name, &file)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice, of a file that is `len` bytes long.
        let base = unsafe { mmap(None, len, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &file, 0) };
        let base = base.map_err(|e| ShmError::os("map", name, e))?.cast();
        Ok(ReadOnly { base, len, file })
    }

    /// Whether a living process holds presence byte `byte`.
    pub(crate) fn is_held(&self, byte: u8) -> bool {
        is_held(&self.file, byte).unwrap_or(false)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mapping made in `open`; no reference outlives `self`. Unmapping a whole
        // mapping cannot fail.
        let _ = unsafe { munmap(self.base.cast(), self.len.get()) };
    }
}

fn check_name(name: &str) -> Result<(), ShmError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(ShmError::Name { name: name.to_owned() });
    }
    Ok(())
}

/// Opens the segment's file; also gives its inode.
pub(super) fn open_file(name: &str, flags: OFlag) -> Result<(File, u64), ShmError> {
    let fd = shm_open(format!("/{name}").as_str(), flags, Mode::empty()).map_err(|error| match error {
        Errno::ENOENT => ShmError::Missing { name: name.to_owned() },
        error => ShmError::os("open", name, error),
    })?;
    let file = File::from(fd);
    let inode = file.metadata().map_err(|e| ShmError::os("look at", name, e))?.ino();
    Ok((file, inode))
}

/// Locks the creator's byte; `None` if the name no longer leads to the locked file.
fn claim_name(name: &str) -> Result<Option<Presence>, ShmError> {
    let (file, inode) = match open_file(name, OFlag::O_RDWR) {
        Err(ShmError::Missing { .. }) => return Ok(None),
        other => other?,
    };
    let creator = Presence::wait(file, CREATOR_BYTE).map_err(|error| ShmError::os("lock", name, error))?;
    Ok(leads_to(name, inode)?.then_some(creator))
}

/// Whether the name leads to the file of that inode.
pub(super) fn leads_to(name: &str, inode: u64) -> Result<bool, ShmError> {
    match open_file(name, OFlag::O_RDONLY) {
        Ok((_, found)) => Ok(found == inode),
        Err(ShmError::Missing { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes every page now: without it a full file system shows as a SIGBUS at the first touch.
fn reserve(name: &str, len: usize) -> Result<(), ShmError> {
    let (file, _) = open_file(name, OFlag::O_RDWR)?;
    match posix_fallocate(&file, 0, len.max(1) as libc::off_t) {
        Ok(()) => Ok(()),
        Err(Errno::ENOSPC) => Err(ShmError::NoSpace { name: name.to_owned(), len }),
        Err(error) => Err(ShmError::os("reserve", name, error)),
    }
}

/// Ours alone, and not empty: the file's length.
fn check_file(name: &str, file: &File) -> Result<NonZeroUsize, ShmError> {
    let found = file.metadata().map_err(|e| ShmError::os("look at", name, e))?;
    let (owner, mode, expected) = (found.uid(), found.mode() & 0o777, nix::unistd::geteuid().as_raw());
    if owner != expected || mode != 0o600 {
        return Err(ShmError::Foreign { name: name.to_owned(), owner, mode, expected });
    }
    NonZeroUsize::new(found.len() as usize).ok_or_else(|| ShmError::Empty { name: name.to_owned() })
}

fn refused(name: &str, error: ShmemError) -> ShmError {
    let code = match error {
        ShmemError::MappingIdExists => return ShmError::Exists { name: name.to_owned() },
        ShmemError::MapCreateFailed(code) | ShmemError::MapOpenFailed(code) | ShmemError::UnknownOsError(code) => code,
        other => return ShmError::os("map", name, std::io::Error::other(other)),
    };
    ShmError::os("map", name, std::io::Error::from_raw_os_error(code as i32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU32;
    use crate::testing::unique;

    #[test]
    fn both_maps_see_one_memory_and_the_name_goes_with_its_creator() {
        let name = unique("shm");
        let creator = Segment::create(&name, 4096).unwrap();
        let other = Segment::attach(&name).unwrap();
        let reader = ReadOnly::open(&name).unwrap();
        creator.view::<AtomicU32>(64).store(7, Ordering::Relaxed);
        assert_eq!(other.view::<AtomicU32>(64).load(Ordering::Relaxed), 7);
        assert_eq!(reader.view::<AtomicU32>(64).load(Ordering::Relaxed), 7);
        assert!(reader.is_held(CREATOR_BYTE));
        assert!(matches!(Segment::create(&name, 4096), Err(ShmError::Exists { .. })));
        drop(creator);
        assert!(!reader.is_held(CREATOR_BYTE));
        assert!(matches!(Segment::attach(&name), Err(ShmError::Missing { .. })));
        assert_eq!(other.view::<AtomicU32>(64).load(Ordering::Relaxed), 7);
    }

    #[test]
    fn more_than_the_file_system_holds_is_refused_at_once_and_leaves_no_name() {
        let name = unique("huge");
        let error = Segment::create(&name, 1 << 46).unwrap_err();
        assert!(matches!(error, ShmError::NoSpace { .. }), "{error:?}");
        assert!(matches!(Segment::attach(&name), Err(ShmError::Missing { .. })));
    }

    #[test]
    fn strange_names_and_readable_segments_are_refused() {
        for name in ["", "a/b", ".hidden", "a b"] {
            assert!(matches!(Segment::create(name, 8), Err(ShmError::Name { .. })), "{name}");
        }
        let name = unique("mode");
        let segment = Segment::create(&name, 8).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        segment.open_file().unwrap().set_permissions(mode).unwrap();
        assert!(matches!(Segment::attach(&name), Err(ShmError::Foreign { mode: 0o644, .. })));
    }

    #[test]
    #[should_panic(expected = "of a mapping")]
    fn a_view_beyond_the_end_is_a_bug() {
        let segment = Segment::create(&unique("end"), 64).unwrap();
        segment.slice::<AtomicU32>(4096, 1);
    }
}
