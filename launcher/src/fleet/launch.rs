//! How a fleet's workers are started: their command lines, environments and logs.

use std::ffi::OsString;
use std::path::PathBuf;

use common::ids::Role;

use super::Fleet;
use crate::child::Launch;
use crate::supervise::WorkerId;

/// The settings of libtorch's GPU memory.
const ALLOCATOR: &str = "PYTORCH_CUDA_ALLOC_CONF";

impl Fleet {
    /// What to start as `worker`.
    pub(super) fn launch(&self, worker: WorkerId) -> Launch {
        let WorkerId { role, rank } = worker;
        let run_dir = self.spec.run_dir.as_os_str();
        let mut args: Vec<OsString> = match role {
            Role::Target => Vec::new(),
            Role::Drafter => vec!["train".into()],
        };
        args.extend(["--run".into(), run_dir.into(), "--rank".into(), rank.to_string().into()]);
        args.extend(self.spec.preflight.then(|| "--preflight".into()));
        let checkpoint = self.restart.folder(&self.spec.run_dir, self.snapshots.path());
        if let (Role::Drafter, Some(checkpoint)) = (role, checkpoint) {
            args.extend(["--checkpoint".into(), checkpoint.into()]);
        }
        Launch {
            name: worker.to_string(),
            program: self.spec.programs.join(format!("{role}-worker")),
            args,
            env: self.environment(worker),
            log: self.log_file(worker),
            shown: self.spec.output.shown(worker),
            stdout_is_data: false,
        }
    }

    fn environment(&self, WorkerId { role, rank }: WorkerId) -> Vec<(&'static str, String)> {
        let queue = &self.spec.queue;
        let size = if role == Role::Target { queue.targets } else { queue.drafters };
        let own = vec![
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("WORLD_SIZE", size.to_string()),
            ("LOCAL_WORLD_SIZE", size.to_string()),
            ("ROLE", role.to_string()),
            ("PAIR", rank.to_string()),
            ("RESTART_COUNT", self.earlier_lives(WorkerId { role, rank }).to_string()),
            ("RUN_ID", queue.run_id.clone()),
        ];
        own.into_iter().chain(allocator(role, std::env::var_os(ALLOCATOR).is_some())).collect()
    }

    fn earlier_lives(&self, worker: WorkerId) -> u32 {
        self.lives.get(&worker).copied().unwrap_or_default()
    }

    /// Each life has its own.
    fn log_file(&self, worker: WorkerId) -> PathBuf {
        let life = match self.earlier_lives(worker) {
            0 => String::new(),
            restarts => format!(".{restarts}"),
        };
        self.spec.logs.join(format!("{}-{}{life}.log", worker.role, worker.rank))
    }
}

/// Batches differ in size from step to step; segments that grow keep libtorch's memory from falling into pieces. What the
/// user has set is theirs.
fn allocator(role: Role, is_set: bool) -> Option<(&'static str, String)> {
    (role == Role::Drafter && !is_set).then(|| (ALLOCATOR, "expandable_segments:True".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_allocator_settings_stay() {
        assert_eq!(allocator(Role::Drafter, false).map(|(name, _)| name), Some("PYTORCH_CUDA_ALLOC_CONF"));
        assert_eq!(allocator(Role::Drafter, true), None);
        assert_eq!(allocator(Role::Target, false), None);
    }
}
