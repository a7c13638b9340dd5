//! Removing the names that dead launchers left in `/dev/shm`.

use std::fs;
use std::io;

use nix::fcntl::OFlag;
use nix::sys::mman::shm_unlink;

use super::CREATOR_BYTE;
use super::presence::Presence;
use super::segment::{leads_to, open_file};

/// Unlinks every segment whose name starts with `prefix` and whose creator is dead; returns their names, sorted.
///
/// A name goes only while this process holds its creator's lock, so a living or just starting creator cannot lose it.
/// Segments of other users are left alone.
///
/// # Errors
/// If `/dev/shm` cannot be listed.
pub fn sweep_stale(prefix: &str) -> io::Result<Vec<String>> {
    let mut swept = Vec::new();
    for entry in fs::read_dir("/dev/shm")? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if name.starts_with(prefix) && sweep(&name) {
            swept.push(name);
        }
    }
    swept.sort();
    Ok(swept)
}

fn sweep(name: &str) -> bool {
    let Ok((file, inode)) = open_file(name, OFlag::O_RDWR) else { return false };
    let Ok(Some(_creator)) = Presence::take(file, CREATOR_BYTE) else { return false };
    // Between open and lock the dead file may have been swept by another and its name used again.
    leads_to(name, inode).unwrap_or(false) && shm_unlink(format!("/{name}").as_str()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Segment, ShmError};
    use crate::testing::unique;

    #[test]
    fn the_dead_go_and_the_living_stay() {
        let prefix = unique("sweep");
        let alive = Segment::create(&format!("{prefix}-alive"), 64).unwrap();
        let dead = format!("{prefix}-dead");
        fs::write(format!("/dev/shm/{dead}"), b"left behind").unwrap();
        assert_eq!(sweep_stale(&prefix).unwrap(), std::slice::from_ref(&dead));
        assert!(matches!(Segment::attach(&dead), Err(ShmError::Missing { .. })));
        assert!(Segment::attach(alive.name()).is_ok());
    }
}
