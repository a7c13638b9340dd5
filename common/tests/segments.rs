//! Wrong segments: each is named for what it is, nothing panics, nothing is touched beyond its end.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking and says what it left out")]

mod queue_world;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::queue::{CreateError, HeaderError, Queue, QueueSpec, Snapshot};
use common::shm::{Segment, ShmError, sweep_stale};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use queue_world::*;

/// A copy of a good segment, changed; removed at the end.
struct Forged {
    name: String,
}

impl Forged {
    fn new(change: impl FnOnce(&File)) -> Forged {
        let spec = spec(3);
        let _queue = Queue::create(&spec).unwrap();
        let forged = Forged { name: forge(&spec.name(), &format!("{}-forged", spec.run_id)) };
        change(&File::options().read(true).write(true).open(forged.path()).unwrap());
        forged
    }

    fn path(&self) -> String {
        format!("/dev/shm/{}", self.name)
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
        fs::remove_file(self.path()).unwrap();
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
    assert!(matches!(other_layout.error(), HeaderError::OtherBuild { found: 2, .. }));
    let other_boot = Forged::new(|file| file.write_all_at(b"????", 32).unwrap());
    assert!(matches!(other_boot.error(), HeaderError::OtherBoot { .. }));
    let other_run = Forged::new(|file| file.write_all_at(b"another", 48).unwrap());
    assert!(matches!(other_run.error(), HeaderError::OtherRun { found, .. } if found.starts_with("another")));
    let cut = Forged::new(|file| file.set_len(8192).unwrap());
    assert!(matches!(cut.error(), HeaderError::Length { found: 8192, .. }));
    let tiny = Forged::new(|file| file.set_len(10).unwrap());
    assert!(matches!(tiny.error(), HeaderError::Length { found: 10, .. }));
    let empty = Forged::new(|file| file.set_len(0).unwrap());
    assert!(matches!(empty.error(), HeaderError::Shm(ShmError::Empty { .. })));
    let readable = Forged::new(|file| file.set_permissions(fs::Permissions::from_mode(0o644)).unwrap());
    assert!(matches!(readable.error(), HeaderError::Shm(ShmError::Foreign { mode: 0o644, .. })));
}

#[test]
fn another_users_segment_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("left out: only root can give a file away");
        return;
    }
    let foreign = Forged::new(|_| ());
    chown(foreign.path(), Some(65534), None).unwrap();
    assert!(matches!(
        foreign.error(),
        HeaderError::Shm(ShmError::Foreign { owner: 65534, mode: 0o600, expected: 0, .. })
    ));
}

#[test]
fn a_segment_cut_anywhere_is_named() {
    let forged = Forged::new(|_| ());
    let file = File::options().write(true).open(forged.path()).unwrap();
    keep_from_sweeps(&file);
    let whole = file.metadata().unwrap().len();
    for len in (1..whole).rev().step_by(97) {
        file.set_len(len).unwrap();
        assert!(matches!(forged.error(), HeaderError::Length { found, .. } if found as u64 == len), "{len} of {whole}");
    }
}

/// In a mount namespace of its own, where `/dev/shm` has 1 MiB.
#[test]
fn a_full_dev_shm_is_named_and_leaves_nothing() {
    let outcome = thread::spawn(|| {
        let none = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("tmpfs"), "/dev/shm", Some("tmpfs"), MsFlags::empty(), Some("size=1m"))?;
        // 300,000 batches need a ledger of 2.4 MB.
        let error = Queue::create(&spec(300_000)).map(|_| ()).unwrap_err();
        assert!(matches!(error, CreateError::Shm(ShmError::NoSpace { len: 2_400_000.., .. })), "{error}");
        assert_eq!(fs::read_dir("/dev/shm").unwrap().count(), 0);
        let fits: QueueSpec = spec(30_000);
        let queue = Queue::create(&fits).unwrap();
        assert!(matches!(Queue::create(&spec(100_000)), Err(CreateError::Shm(ShmError::NoSpace { .. }))));
        queue.rewind(&[(0, 30_000)]).unwrap();
        assert_eq!(Snapshot::read(&fits.name()).unwrap().batches.trained, 30_000);
        nix::Result::Ok(())
    });
    if let Err(error) = outcome.join().unwrap() {
        eprintln!("left out: no mount namespace of its own ({error})");
    }
}

/// Creators start a thousand times while others sweep: a living segment keeps its name, a dead one loses it.
#[test]
fn a_sweep_never_takes_a_living_segment() {
    const STARTS: usize = 500;
    // Not `tandem-`: a run that starts on this machine sweeps those.
    let prefix = format!("swept-{}", std::process::id());
    let over = AtomicBool::new(false);
    let swept = thread::scope(|scope| {
        let sweepers = [0, 1].map(|_| {
            scope.spawn(|| {
                let mut swept = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    swept.extend(sweep_stale(&prefix).unwrap());
                }
                swept
            })
        });
        let creators = ["a", "b"].map(|creator| {
            let prefix = &prefix;
            scope.spawn(move || {
                for start in 0..STARTS {
                    // The same names again and again, as a restarted run would use them; one in five dies.
                    let name = format!("{prefix}-{creator}-{}", start % 3);
                    let alive = Segment::create(&name, 64).unwrap();
                    for _ in 0..5 {
                        assert!(Segment::attach(&name).is_ok(), "{name} lives");
                        thread::yield_now();
                    }
                    drop(alive);
                    if start % 5 == 0 {
                        fs::write(format!("/dev/shm/{prefix}-dead-{creator}-{start}"), "left behind").unwrap();
                    }
                }
            })
        });
        creators.into_iter().for_each(|creator| creator.join().unwrap());
        over.store(true, Ordering::Relaxed);
        let mut swept = sweepers.map(|sweeper| sweeper.join().unwrap()).concat();
        swept.extend(sweep_stale(&prefix).unwrap());
        swept
    });
    let dead = swept.iter().filter(|name| name.contains("-dead-")).count();
    assert_eq!(dead, 2 * STARTS / 5, "each dead one is swept once");
    assert!(
        fs::read_dir("/dev/shm")
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().into_string().unwrap().starts_with(&prefix) })
    );
}
