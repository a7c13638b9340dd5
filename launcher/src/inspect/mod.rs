//! Looking into the queue of a run, live or dead, through a read-only map.

mod curves;
mod live;
mod screen;
mod serve;
mod text;
mod watch;

use std::fs;
use std::io;
use std::path::Path;

use common::exit::{Blame, Code, Fault};
use common::queue::{Details, HeaderError, Snapshot, arena_name, queue_name, reduce_name, snapshots_name};
use common::run_plan::{PLAN_FILE, RunPlan};
use common::shm::ShmError;
use serde::Serialize;

use crate::args::{OneQueue, QueueCommand};
use crate::command::print;

pub(crate) use watch::Watch;

const WHICH_HINT: &str = "give a run folder, or a run id of `tandem-queue list`";
const MISSING_HINT: &str = "the queue lives as long as the run's training: `tandem-queue list` shows what is there";

/// A queue in the shared memory of this machine.
#[derive(Clone, Debug, Serialize)]
struct Listed {
    run_id: String,
    segment: String,
    /// None if the segment cannot be read; `problem` says why.
    snapshot: Option<Snapshot>,
    problem: Option<String>,
}

/// Does what `tandem-queue`'s command line says.
///
/// # Errors
/// There is no such queue, or none that this build can read; or `check` found it broken.
pub fn inspect(command: &QueueCommand) -> Result<(), Fault> {
    match command {
        QueueCommand::List { json } => {
            let queues = list().your_input("/dev/shm has to be readable")?;
            print(&if *json { to_json(&queues) } else { text::list(&queues) })
        }
        QueueCommand::Show(queue) => {
            let snapshot = snapshot(&queue.run)?;
            print(&if queue.json { to_json(&snapshot) } else { text::show(&snapshot) })
        }
        QueueCommand::Watch { queue, interval } => live::watch(queue, *interval),
        QueueCommand::Slots(queue) => {
            let details = details(&queue.run)?;
            print(&if queue.json { to_json(&details.slots) } else { text::slots(&details.slots) })
        }
        QueueCommand::Events(queue) => {
            let details = details(&queue.run)?;
            print(&if queue.json { to_json(&details.events) } else { text::events(&details.events) })
        }
        QueueCommand::Serve { run, listen } => serve::serve(run.as_deref(), listen),
        QueueCommand::Check(queue) => check(queue),
    }
}

fn check(queue: &OneQueue) -> Result<(), Fault> {
    let check = details(&queue.run)?.check;
    print(&if queue.json { to_json(&check) } else { text::check(&check) })?;
    if check.is_broken() {
        let broken = format!("{} invariants of the queue do not hold", check.problems.len());
        return Err(broken).our_failure("keep a copy of the segment in /dev/shm for a report, and end the run");
    }
    Ok(())
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("a snapshot has only values that JSON can hold") + "\n"
}

/// The segment of a run folder, or of a run id.
fn segment(run: &str) -> Result<String, Fault> {
    let folder = Path::new(run);
    if folder.join(PLAN_FILE).is_file() {
        return Ok(RunPlan::read(folder).your_input(WHICH_HINT)?.queue_name());
    }
    Ok(queue_name(run.strip_prefix(&queue_name("")).unwrap_or(run)))
}

fn snapshot(run: &str) -> Result<Snapshot, Fault> {
    blamed(Snapshot::read(&segment(run)?))
}

fn details(run: &str) -> Result<Details, Fault> {
    blamed(Details::read(&segment(run)?))
}

fn blamed<T>(read: Result<T, HeaderError>) -> Result<T, Fault> {
    read.map_err(|error| {
        let is_missing = matches!(error, HeaderError::Shm(ShmError::Missing { .. }));
        Fault::new(Code::Input, error).with_hint(if is_missing { MISSING_HINT } else { WHICH_HINT })
    })
}

/// Whether a segment belongs to a queue rather than being one.
fn is_part(segment: &str) -> bool {
    let owner = segment.strip_prefix(&queue_name("")).and_then(|rest| rest.rsplit_once('-'));
    owner
        .is_some_and(|(id, _)| [arena_name(id), reduce_name(id), snapshots_name(id)].iter().any(|name| name == segment))
}

/// Every queue of this machine.
fn list() -> io::Result<Vec<Listed>> {
    let prefix = queue_name("");
    let mut queues = Vec::new();
    for entry in fs::read_dir("/dev/shm")? {
        let segment = entry?.file_name().to_string_lossy().into_owned();
        let Some(run_id) = segment.strip_prefix(&prefix).filter(|_| !is_part(&segment)).map(str::to_owned) else {
            continue;
        };
        match Snapshot::read(&segment) {
            Ok(snapshot) => queues.push(Listed { run_id, segment, snapshot: Some(snapshot), problem: None }),
            Err(HeaderError::NotAQueue { .. } | HeaderError::Shm(ShmError::Missing { .. })) => {}
            Err(error) => queues.push(Listed { run_id, segment, snapshot: None, problem: Some(error.to_string()) }),
        }
    }
    queues.sort_by(|a, b| a.run_id.cmp(&b.run_id));
    Ok(queues)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_and_sums_are_no_queues() {
        let names =
            ["tandem-6b-1", "tandem-6b-1-arena", "tandem-6b-1-reduce", "tandem-6b-1-snapshots", "tandem-reduce"];
        assert_eq!(names.map(is_part), [false, true, true, true, false]);
    }

    #[test]
    fn a_missing_queue_is_named_whatever_way_it_was_asked_for() {
        for run in ["no-such", "tandem-no-such"] {
            let fault = snapshot(run).expect_err("there is none");
            assert!(fault.to_string().starts_with("/dev/shm/tandem-no-such does not exist"), "{fault}");
        }
    }
}
