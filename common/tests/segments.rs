//! Wrong segments: each is named for what it is, nothing panics, nothing is touched beyond its end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod queue_world;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};

use common::queue::{HeaderError, Queue, Snapshot};
use common::shm::ShmError;
use proptest::prelude::*;
use queue_world::*;

/// A copy of a good segment, changed; removed at the end.
struct Forged {
    name: String,
}

impl Forged {
    fn new(change: impl FnOnce(&File)) -> Forged {
        let queue = Queue::create(&spec(3)).unwrap();
        let original = queue.snapshot().name;
        let name = format!("{original}-forged");
        let path = format!("/dev/shm/{name}");
        fs::copy(format!("/dev/shm/{original}"), &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        change(&File::options().read(true).write(true).open(&path).unwrap());
        Forged { name }
    }

    /// The worker and the inspector must agree.
    fn error(&self) -> HeaderError {
        let attached = Queue::attach(&self.name).map(|_| ()).unwrap_err();
        let read = Snapshot::read(&self.name).map(|_| ()).unwrap_err();
        assert_eq!(attached.to_string(), read.to_string());
        attached
    }
}

impl Drop for Forged {
    fn drop(&mut self) {
        fs::remove_file(format!("/dev/shm/{}", self.name)).unwrap();
    }
}

#[test]
fn an_unchanged_copy_is_fine() {
    let copy = Forged::new(|_| ());
    assert!(Queue::attach(&copy.name).is_ok());
    assert!(!Snapshot::read(&copy.name).unwrap().launcher_alive);
}

#[test]
fn wrong_segments_are_named_for_what_they_are() {
    let other_magic = Forged::new(|file| file.write_all_at(b"SOMETHNG", 0).unwrap());
    assert!(matches!(other_magic.error(), HeaderError::NotAQueue { .. }));
    let newer = Forged::new(|file| file.write_all_at(&9u32.to_le_bytes(), 8).unwrap());
    assert!(matches!(newer.error(), HeaderError::OtherBuild { found: 9, .. }));
    let half_made = Forged::new(|file| file.write_all_at(&1u32.to_le_bytes(), 12).unwrap());
    assert!(matches!(half_made.error(), HeaderError::NotReady { .. }));
    let other_layout = Forged::new(|file| file.write_all_at(b"?", 16).unwrap());
    assert!(matches!(other_layout.error(), HeaderError::OtherBuild { found: 1, .. }));
    let other_boot = Forged::new(|file| file.write_all_at(b"????", 32).unwrap());
    assert!(matches!(other_boot.error(), HeaderError::OtherBoot { .. }));
    let cut = Forged::new(|file| file.set_len(8192).unwrap());
    assert!(matches!(cut.error(), HeaderError::Length { found: 8192, .. }));
    let tiny = Forged::new(|file| file.set_len(10).unwrap());
    assert!(matches!(tiny.error(), HeaderError::Length { found: 10, .. }));
    let empty = Forged::new(|file| file.set_len(0).unwrap());
    assert!(matches!(empty.error(), HeaderError::Shm(ShmError::Empty { .. })));
    let readable = Forged::new(|file| file.set_permissions(fs::Permissions::from_mode(0o644)).unwrap());
    assert!(matches!(readable.error(), HeaderError::Shm(ShmError::Foreign { mode: 0o644, .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the header's bytes say, reading them is an error or a snapshot.
    #[test]
    fn a_damaged_header_never_panics(damage in prop::collection::vec((8u64..256, any::<u8>()), 1..12)) {
        let forged = Forged::new(|file| {
            damage.iter().for_each(|(at, byte)| file.write_all_at(&[*byte], *at).unwrap());
        });
        let _ = Queue::attach(&forged.name);
        let _ = Snapshot::read(&forged.name);
    }
}
