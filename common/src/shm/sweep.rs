//! Room in `/dev/shm`: how much is free, and removing the names that dead launchers left there.

use std::fs;
use std::io;
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::mman::shm_unlink;
use nix::sys::statvfs::statvfs;

use super::CREATOR_BYTE;
use super::presence::Presence;
use super::segment::{leads_to, open_file};

/// Where the kernel keeps them.
const FOLDER: &str = "/dev/shm";

/// Bytes that segments can still take.
///
/// # Errors
/// There is no `/dev/shm`.
pub fn free_bytes() -> io::Result<u64> {
    let found = statvfs(FOLDER)?;
    Ok(found.blocks_available() * found.fragment_size())
}

/// Bytes that segments could take if there were none.
///
/// # Errors
/// There is no `/dev/shm`.
pub fn total_bytes() -> io::Result<u64> {
    let found = statvfs(FOLDER)?;
    Ok(found.blocks() * found.fragment_size())
}

/// Unlinks every segment whose name starts with `prefix` and whose creator is dead, and then every folder `NAME-SUFFIX`
/// of a segment `NAME` that is not there; returns their names, sorted. A living creator makes the segment before the
/// folder and removes it after.
///
/// A name goes only while this process holds its creator's lock, so a living or just starting creator cannot lose it.
/// Segments of other users are left alone.
///
/// # Errors
/// If `/dev/shm` cannot be listed.
pub fn sweep_stale(prefix: &str) -> io::Result<Vec<String>> {
    let mut swept = Vec::new();
    for step in [sweep, sweep_folder] {
        for entry in fs::read_dir(FOLDER)? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            if name.starts_with(prefix) && step(&name) {
                swept.push(name);
            }
        }
    }
    swept.sort();
    Ok(swept)
}

fn sweep_folder(name: &str) -> bool {
    let path = Path::new(FOLDER).join(name);
    let owner = name.rsplit_once('-').map(|(owner, _)| path.with_file_name(owner));
    path.is_dir() && owner.is_some_and(|owner| !owner.exists()) && fs::remove_dir_all(path).is_ok()
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

    #[test]
    fn folders_go_after_their_segments() {
        let prefix = unique("sweep-folder");
        let alive = Segment::create(&format!("{prefix}-alive"), 64).unwrap();
        let folder = format!("/dev/shm/{}-snapshots", alive.name());
        fs::create_dir(&folder).unwrap();
        fs::write(format!("{folder}/x"), "x").unwrap();
        assert_eq!(sweep_stale(&prefix).unwrap(), [""; 0]);
        drop(alive);
        assert_eq!(sweep_stale(&prefix).unwrap(), [format!("{prefix}-alive-snapshots")]);
        assert!(!Path::new(&folder).exists());
    }
}
