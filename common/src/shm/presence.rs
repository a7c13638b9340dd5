//! Presence: a byte of a segment's file that a living process keeps locked.
//!
//! The lock (an open-file-description lock) is the kernel's: it vanishes when the process dies, however it dies, and
//! needs no heartbeat, no pid and no shared pid namespace. It also holds between two opens of one process.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// The right to be one participant; others see it until the value is dropped or the process dies.
#[derive(Debug)]
pub(crate) struct Presence {
    _file: File,
}

impl Presence {
    /// Locks `byte` of `file`, which must be an open of its own. `None` if another holds it.
    pub(crate) fn take(file: File, byte: u8) -> io::Result<Option<Presence>> {
        match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&range(libc::F_WRLCK, byte))) {
            Ok(_) => Ok(Some(Presence { _file: file })),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Locks `byte` of `file`, once whoever holds it is done.
    pub(crate) fn wait(file: File, byte: u8) -> io::Result<Presence> {
        fcntl(file.as_fd(), FcntlArg::F_OFD_SETLKW(&range(libc::F_WRLCK, byte)))?;
        Ok(Presence { _file: file })
    }
}

/// Whether a living process holds `byte`. `file` may be open read-only, but must not be the holder's own.
pub(crate) fn is_held(file: &File, byte: u8) -> io::Result<bool> {
    let mut found = range(libc::F_RDLCK, byte);
    fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(found.l_type != libc::F_UNLCK as libc::c_short)
}

fn range(kind: libc::c_int, byte: u8) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::from(byte),
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_seen_by_others_until_dropped() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(path.path()).unwrap();
        let watcher = File::open(path.path()).unwrap();
        let held = Presence::take(open(), 3).unwrap().expect("free");
        assert!(is_held(&watcher, 3).unwrap());
        assert!(!is_held(&watcher, 2).unwrap() && !is_held(&watcher, 4).unwrap());
        assert!(Presence::take(open(), 3).unwrap().is_none());
        assert!(Presence::take(open(), 4).unwrap().is_some());
        drop(held);
        assert!(!is_held(&watcher, 3).unwrap());
        assert!(Presence::take(open(), 3).unwrap().is_some());
    }
}
