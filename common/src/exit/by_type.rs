//! Who has to act on errors that reach a program's end without anybody's blame: their types say it.
//!
//! Code 1 also keeps the launcher from trying again what no second try can mend.

use std::error::Error;

use super::Code;
use crate::config::ConfigError;
use crate::line::LineError;
use crate::model_config::ModelConfigError;
use crate::queue::{AttachError, HeaderError};
use crate::reduce::SumError;
use crate::run_plan::RunPlanError;
use crate::shm::ShmError;
use crate::wait::WaitError;

const REBUILD: &str = "build tandem, target-worker and drafter-worker together, then start the run again with --resume";
const ENDED: &str = "the run has ended: its launcher says why";
const SLOW: &str = "the logs tell what the others were doing; run.wait_timeout_s is the longest wait";
const LOOK: &str = "`ls -l /dev/shm` shows what stands in the way";
const OVERWRITTEN: &str =
    "another program wrote over the run's memory, or cut it: end that, then start the run again with --resume";

/// More room in shared memory, or less asked of it.
pub const SHARED_MEMORY_HINT: &str =
    "lower queue.capacity or data.batch_tokens, or give /dev/shm more room (docker run --shm-size=8g)";

/// Code and hint that the innermost error with an opinion has.
pub(super) fn told(chain: &[&(dyn Error + 'static)]) -> (Code, Option<&'static str>) {
    chain.iter().rev().find_map(|error| told_by(*error)).unwrap_or((Code::Failure, None))
}

fn told_by(error: &(dyn Error + 'static)) -> Option<(Code, Option<&'static str>)> {
    if let Some(ConfigError::File { .. }) = error.downcast_ref() {
        return Some((Code::Input, Some("--run takes a run folder: `tandem run` makes it, and starts workers on it")));
    }
    if error.is::<ConfigError>() || error.is::<ModelConfigError>() {
        return Some((Code::Input, None));
    }
    let told = error.downcast_ref().map(of_wait);
    let told = told.or_else(|| error.downcast_ref().map(of_memory));
    let told = told.or_else(|| error.downcast_ref().map(of_header));
    let told = told.or_else(|| error.downcast_ref().map(of_place));
    let told = told.or_else(|| error.downcast_ref().map(of_sum));
    let told = told.or_else(|| error.downcast_ref().map(of_line));
    let told = told.or_else(|| error.downcast_ref().and_then(of_plan));
    told.map(|(code, hint)| (code, Some(hint)))
}

fn of_wait(error: &WaitError) -> (Code, &'static str) {
    match error {
        WaitError::Timeout { .. } => (Code::Peer, SLOW),
        WaitError::Aborted => (Code::Peer, ENDED),
        WaitError::Shutdown => (Code::Failure, "it was asked to end where it could not finish its work first"),
    }
}

fn of_memory(error: &ShmError) -> (Code, &'static str) {
    match error {
        ShmError::Missing { .. } | ShmError::Empty { .. } => (Code::Peer, ENDED),
        ShmError::NoSpace { .. } => (Code::Input, SHARED_MEMORY_HINT),
        ShmError::Foreign { .. } => (Code::Input, "one user has to start all programs of a run: its memory is theirs"),
        ShmError::Exists { .. } | ShmError::Name { .. } | ShmError::Os { .. } => (Code::Failure, LOOK),
    }
}

fn of_header(error: &HeaderError) -> (Code, &'static str) {
    match error {
        HeaderError::Shm(error) => of_memory(error),
        HeaderError::NotReady { .. } => (Code::Peer, ENDED),
        HeaderError::OtherBuild { .. } => (Code::Input, REBUILD),
        HeaderError::NotAQueue { .. }
        | HeaderError::OtherBoot { .. }
        | HeaderError::OtherRun { .. }
        | HeaderError::Length { .. } => (Code::Input, OVERWRITTEN),
    }
}

fn of_place(error: &AttachError) -> (Code, &'static str) {
    match error {
        AttachError::Header(error) => of_header(error),
        AttachError::NoSuchRank { .. } => (Code::Input, "ranks are those that `tandem run` starts workers with"),
        AttachError::Taken { .. } => (Code::Failure, "end that process first: `ps` says what it is"),
    }
}

fn of_sum(error: &SumError) -> (Code, &'static str) {
    match error {
        SumError::Shm(error) => of_memory(error),
        SumError::Wait(error) => of_wait(error),
        SumError::NotThisSum { .. } | SumError::Shape { .. } => (Code::Input, REBUILD),
        SumError::Used { .. } => (Code::Failure, "`tandem run` starts all drafters together"),
        SumError::Scalars(_) => (Code::Failure, "this is a bug in Tandem: please report it"),
    }
}

fn of_line(error: &LineError) -> (Code, &'static str) {
    match error {
        LineError::Closed => (Code::Peer, ENDED),
        LineError::Full(_) => (Code::Peer, SLOW),
        LineError::Wire(_) | LineError::TooLong | LineError::Files(_) => (Code::Input, REBUILD),
        LineError::Socket(_) => (Code::Failure, "the system refuses a socket: `ulimit -n` may be too low"),
    }
}

fn of_plan(error: &RunPlanError) -> Option<(Code, &'static str)> {
    matches!(error, RunPlanError::Parse { .. }).then_some((Code::Input, REBUILD))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::{AnyError, Verdict};

    fn verdict(error: impl Into<AnyError>) -> (Code, Option<String>) {
        let Verdict { code, hint, .. } = Verdict::of(&*error.into());
        (code, hint)
    }

    #[test]
    fn what_another_build_made_is_not_tried_again() {
        let other = || HeaderError::OtherBuild { name: "q".into(), found: 9, layout: 1 };
        let (code, hint) = verdict(other());
        assert!(
            code == Code::Input && hint.unwrap().contains("build tandem, target-worker and drafter-worker together")
        );
        assert_eq!(verdict(AttachError::from(ShmError::Missing { name: "q".into() })).0, Code::Peer);
        assert_eq!(verdict(AttachError::Header(other())).0, Code::Input);
    }

    #[test]
    fn every_memory_error_says_who_has_to_act() {
        let name = || "q".to_owned();
        let os = ShmError::os("lock", "q", std::io::Error::other("no"));
        let told = [ShmError::Missing { name: name() }, ShmError::NoSpace { name: name(), len: 1 }, os].map(verdict);
        let codes = told.each_ref().map(|(code, _)| *code);
        assert_eq!(codes, [Code::Peer, Code::Input, Code::Failure]);
        let [missing, full, os] = told.map(|(_, hint)| hint.unwrap());
        assert!(missing.contains("launcher") && full.contains("queue.capacity") && os.contains("/dev/shm"));
    }

    #[test]
    fn the_innermost_opinion_counts() {
        let timeout = WaitError::Timeout { what: "a batch".into(), after: std::time::Duration::ZERO };
        let (code, hint) = verdict(SumError::Wait(timeout));
        assert!(code == Code::Peer && hint.unwrap().contains("run.wait_timeout_s"));
        assert_eq!(
            verdict(SumError::NotThisSum { name: "s".into(), rank: crate::ids::Rank(0), ranks: 2 }).0,
            Code::Input
        );
    }
}
