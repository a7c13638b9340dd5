//! Memory that processes can still take: what the kernel would find without swapping, and what the cgroup lets them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Beyond this a cgroup's limit is none: v1 writes the largest number of pages for it.
const NO_LIMIT: u64 = 1 << 60;

/// Room in the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Bytes.
    pub(crate) bytes: u64,
    /// All memory that this machine has, in bytes.
    pub(crate) total: u64,
    /// What bounds it.
    pub(crate) bound: &'static str,
}

impl Memory {
    /// Asks this machine.
    ///
    /// # Errors
    /// `/proc/meminfo` cannot be read.
    pub(super) fn look() -> io::Result<Memory> {
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let read =
            |name| line(&meminfo, name).ok_or_else(|| io::Error::other(format!("/proc/meminfo has no line {name}")));
        let (machine, total) = (read("MemAvailable")?, read("MemTotal")?);
        // Where the kernel has no cgroups there is no limit either.
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Ok(match limited(&groups, Path::new("/sys/fs/cgroup")) {
            Some(bytes) if bytes < machine => Memory { bytes, total, bound: "by the cgroup's limit" },
            _ => Memory { bytes: machine, total, bound: "available" },
        })
    }
}

/// Bytes that a line of `/proc/meminfo` says.
fn line(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Names of the files of a version of cgroups.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// The page cache that can go, in memory.stat.
    cache: &'static str,
}

const V1: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", cache: "total_inactive_file " };
const V2: Files = Files { limit: "memory.max", used: "memory.current", cache: "inactive_file " };

/// What the limits of this process's group and of those above it leave; none without a limit.
fn limited(groups: &str, mount: &Path) -> Option<u64> {
    let room = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (mount, files) = match controllers {
            "" => (mount.to_owned(), V2),
            _ if controllers.split(',').any(|name| name == "memory") => (mount.join("memory"), V1),
            _ => return None,
        };
        let group = mount.join(path.trim_start_matches('/'));
        let above: Vec<PathBuf> =
            group.ancestors().take_while(|at| at.starts_with(&mount)).map(Path::to_owned).collect();
        above.iter().filter_map(|group| left(group, &files)).min()
    };
    groups.lines().filter_map(room).min()
}

fn left(group: &Path, files: &Files) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let limit = read(files.limit)?.trim().parse().ok().filter(|limit| *limit < NO_LIMIT)?;
    let used: u64 = read(files.used)?.trim().parse().ok()?;
    let cache = read("memory.stat")
        .and_then(|stat| stat.lines().find_map(|line| line.strip_prefix(files.cache)?.parse().ok()))
        .unwrap_or(0);
    Some(u64::saturating_sub(limit, used.saturating_sub(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        let meminfo = "MemTotal:       24683652 kB\nMemAvailable:   23860016 kB\n";
        assert_eq!(line(meminfo, "MemAvailable"), Some(23_860_016 << 10));
        assert_eq!(line("MemTotal: 1 kB\n", "MemAvailable"), None);
        let here = Memory::look().unwrap();
        assert!(here.bytes > 1 << 20 && here.total >= here.bytes);
    }

    fn group(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    }

    #[test]
    fn the_tightest_limit_of_the_groups_counts_and_cache_is_room() {
        let mount = tempfile::tempdir().unwrap();
        let own = mount.path().join("a/b");
        group(&own, &[("memory.max", "max\n"), ("memory.current", "5\n")]);
        assert_eq!(limited("0::/a/b\n", mount.path()), None);
        let stat = "anon 1\ninactive_file 300\nactive_file 7\n";
        group(own.parent().unwrap(), &[("memory.max", "1000\n"), ("memory.current", "900\n"), ("memory.stat", stat)]);
        assert_eq!(limited("0::/a/b\n", mount.path()), Some(400));
        assert_eq!(limited("0::/gone/here\n", mount.path()), None, "a path of the host's, seen from a container");
        group(
            &mount.path().join("memory/job"),
            &[("memory.limit_in_bytes", "500\n"), ("memory.usage_in_bytes", "450\n")],
        );
        assert_eq!(limited("4:cpu,memory:/job\n0::/a/b\n", mount.path()), Some(50));
        let unlimited = "9223372036854771712\n";
        group(
            &mount.path().join("memory/free"),
            &[("memory.limit_in_bytes", unlimited), ("memory.usage_in_bytes", "1\n")],
        );
        assert_eq!(limited("4:memory:/free\n3:cpu:/x\n", mount.path()), None);
    }
}
