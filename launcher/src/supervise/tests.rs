//! The loop over real processes: workers made of shell, a real queue.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use common::arena::ArenaKind;
use common::config::{GateMode, PopPolicy};
use common::ids::{Rank, Step};
use common::line::RestartPoint;
use common::manifest::{CHECKPOINT_FILES, CHECKPOINTS, Manifest};
use common::queue::{QueueSpec, Snapshot};
use common::wire;
use tempfile::TempDir;

use super::*;
use crate::fleet::FleetSpec;
use crate::output::OutputArgs;
use crate::testing::write_program;

/// A run folder with programs of shell beside it.
struct Stage {
    folder: TempDir,
    spec: FleetSpec,
}

const TARGET: WorkerId = WorkerId { role: Role::Target, rank: Rank(0) };
const DRAFTER: WorkerId = WorkerId { role: Role::Drafter, rank: Rank(0) };

/// How long drafters may take to end.
const GRACE: Duration = Duration::from_secs(2);

impl Stage {
    /// `$RUN` is the run folder, `$ID` the run's id, `$RANK` the rank, `$*` the command line.
    fn new(pairs: u32, target: &str, drafter: &str) -> Stage {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().unwrap();
        let run_dir = folder.path().join("run");
        fs::create_dir_all(run_dir.join("logs")).unwrap();
        let run_id = format!("test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        for (name, body, rank) in [("target-worker", target, 4), ("drafter-worker", drafter, 5)] {
            let program = folder.path().join(name);
            write_program(&program, &format!("RUN={}\nRANK=${rank}\nID={run_id}\n{body}", run_dir.display()));
        }
        let queue = QueueSpec {
            run_id,
            capacity: 2,
            batch_tokens: 8,
            max_documents: 2,
            slot_bytes: 64,
            bucket_bounds: vec![8],
            min_ready: 1,
            gate: GateMode::Level,
            policy: PopPolicy::Strict,
            max_age: Duration::from_secs(1),
            targets: pairs,
            drafters: pairs,
            total_batches: 10,
            seed: 0,
        };
        let (logs, programs) = (run_dir.join("logs"), folder.path().to_owned());
        let spec = FleetSpec {
            run_dir,
            logs,
            output: OutputArgs::default(),
            programs,
            parameters: 4,
            queue,
            arena: ArenaKind::Host,
            preflight: false,
        };
        Stage { folder, spec }
    }

    fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Runs it, sends `signals` as `watch` sees fit, and leaves nothing in shared memory.
    fn play(&self, max_restarts: u32, mut watch: impl FnMut(&dyn Fn(i32))) -> Story {
        let (mut signals, send) = Signals::from_test();
        let console = Console::silent();
        // Workers of shell are never ready.
        let rules = Rules {
            max_restarts,
            window: Duration::from_secs(600),
            startup_retries: max_restarts,
            grace_target: Duration::from_secs(20),
            grace_drafter: GRACE,
        };
        let mut fleet = Fleet::create(self.spec.clone(), &console).unwrap();
        let end = Instant::now() + Duration::from_secs(120);
        let mut watch = || {
            assert!(Instant::now() < end, "the run does not end");
            watch(&send);
        };
        let story = supervise(&mut fleet, &mut signals, rules, &console, &mut watch).unwrap();
        assert!(!self.shared_memory().is_empty(), "the check below works");
        drop(fleet);
        assert_eq!(self.shared_memory(), Vec::<String>::new());
        story
    }

    fn shared_memory(&self) -> Vec<String> {
        let names = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains(&self.spec.queue.run_id)).collect()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.run_dir().join(name)).unwrap_or_default()
    }
}

#[test]
fn workers_get_their_command_line_and_the_run_ends_with_them() {
    let environment = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $ROLE $PAIR $RESTART_COUNT $RUN_ID";
    let stage = Stage::new(2, &format!("echo $*; {environment}"), "echo $*");
    let story = stage.play(0, |_| ());
    assert_eq!(story.outcome, Outcome::Trained);
    let run = stage.run_dir().display().to_string();
    assert_eq!(
        stage.read("logs/target-1.log"),
        format!("--run {run} --rank 1\n1 1 2 2 target 1 0 {}\n", stage.spec.queue.run_id)
    );
    assert_eq!(stage.read("logs/drafter-0.log"), format!("train --run {run} --rank 0\n"));
}

#[test]
fn a_failed_target_is_started_again_and_the_drafter_does_not_notice() {
    let target = "echo x >> $RUN/starts; [ $(wc -l < $RUN/starts) -ge 3 ] || kill -9 $$";
    let drafter = "echo x >> $RUN/drafters; until [ $(wc -l < $RUN/starts) -ge 3 ]; do sleep 0.05; done";
    let stage = Stage::new(1, target, drafter);
    let story = stage.play(2, |_| ());
    assert_eq!((story.outcome, story.target_restarts, story.drafter_restarts), (Outcome::Trained, 2, 0));
    assert!(stage.run_dir().join("logs/target-0.2.log").is_file(), "each life has a log of its own");
    assert_eq!((stage.read("starts").lines().count(), stage.read("drafters").lines().count()), (3, 1));
}

#[test]
fn a_budget_is_not_exceeded_and_the_drafter_may_save() {
    let drafter = "trap 'echo saved > $RUN/saved; exit 0' TERM; touch $RUN/ready; while :; do sleep 0.05; done";
    let stage = Stage::new(1, "while [ ! -e $RUN/ready ]; do sleep 0.05; done; echo gone >&2; exit 2", drafter);
    let story = stage.play(1, |_| ());
    assert_eq!((story.outcome, story.restarts[&TARGET]), (Outcome::Failed(TARGET, Reason::StartUp(2)), 1));
    assert_eq!(stage.read("saved"), "saved\n");
    assert_eq!(story.ended[&TARGET].end.tail, ["gone"]);
}

#[test]
fn what_is_your_input_is_not_tried_again() {
    let stage = Stage::new(1, "sleep 600", "echo x >> $RUN/starts; exit 1");
    let story = stage.play(3, |_| ());
    assert_eq!(story.outcome, Outcome::Failed(DRAFTER, Reason::Refused));
    assert_eq!(stage.read("starts"), "x\n");
}

/// Of two drafters the second dies; the first is alive all the time and does as it is told.
#[test]
fn drafters_go_on_together_from_the_newest_checkpoint() {
    let drafter = "ls -i /dev/shm/tandem-$ID-reduce >> $RUN/sums.$RANK
        echo $* >> $RUN/starts.$RANK
        if [ $RANK = 1 ]; then
            [ -e $RUN/died ] && exit 0
            while [ ! -e $RUN/starts.0 ]; do sleep 0.05; done; touch $RUN/died; kill -9 $$
        fi
        dd bs=2048 count=1 of=$RUN/first 2> /dev/null
        printf '\\0\\0\\0\\0' >&0
        dd bs=2048 count=1 of=$RUN/second 2> /dev/null
        ls -i /dev/shm/tandem-$ID-reduce >> $RUN/sums.$RANK";
    let stage = Stage::new(2, "while [ ! -e $RUN/starts.1 ]; do sleep 0.05; done", drafter);
    let checkpoint = stage.run_dir().join(CHECKPOINTS).join("step-000003");
    fs::create_dir_all(&checkpoint).unwrap();
    CHECKPOINT_FILES.iter().for_each(|name| fs::write(checkpoint.join(name), "x").unwrap());
    let manifest =
        Manifest { run_id: "r".into(), step: 3, trained: vec![(0, 6)], mask_token_id: 0, tokens: 0, scored_slots: 0 };
    manifest.write(&checkpoint).unwrap();
    let mut trained = 0;
    let mut look = |_: &dyn Fn(i32)| trained = Snapshot::read(&stage.spec.queue.name()).unwrap().batches.trained;
    let story = stage.play(1, &mut look);
    assert_eq!((story.outcome, story.drafter_restarts), (Outcome::Trained, 1));
    assert_eq!(trained, 6, "the ledger is the checkpoint's");
    let told = |name| wire::decode::<ToWorker>(&fs::read(stage.run_dir().join(name)).unwrap()).unwrap();
    assert_eq!(told("first"), ToWorker::Leave);
    assert_eq!(told("second"), ToWorker::Rejoin(RestartPoint::Checkpoint(Step(3))));
    let starts = [0, 1].map(|rank| stage.read(&format!("starts.{rank}")));
    assert_eq!(starts[0].lines().count(), 1, "it never ended: {starts:?}");
    assert!(!starts[0].contains("--checkpoint"), "{starts:?}");
    assert!(starts[1].trim_end().ends_with(&format!("--rank 1 --checkpoint {}", checkpoint.display())), "{starts:?}");
    let sums = [0, 1].map(|rank| stage.read(&format!("sums.{rank}")));
    assert!(sums.iter().all(|sums| sums.lines().next() != sums.lines().nth(1)), "a sum is not joined twice: {sums:?}");
    assert_eq!(sums[0].lines().nth(1), sums[1].lines().nth(1));
}

#[test]
fn a_signal_lets_drafters_save_and_a_second_one_does_not() {
    let saving = "trap 'echo saved > $RUN/saved; exit 0' TERM; touch $RUN/ready; while :; do sleep 0.05; done";
    let deaf = "trap '' TERM; touch $RUN/ready; while :; do sleep 0.05; done";
    for (drafter, signals, saved) in [(saving, &[2][..], "saved\n"), (deaf, &[15, 2][..], "")] {
        let stage = Stage::new(1, "exec sleep 600", drafter);
        let mut signals = signals.iter();
        let mut watch = |send: &dyn Fn(i32)| {
            if stage.run_dir().join("ready").exists() {
                signals.next().into_iter().for_each(|signal| send(*signal));
            }
        };
        let story = stage.play(3, &mut watch);
        let first = if saved.is_empty() { 15 } else { 2 };
        assert_eq!(story.outcome, Outcome::Stopped(first));
        assert_eq!(stage.read("saved"), saved);
    }
}

/// Deaf to SIGTERM, with a child of its own: killed when its grace is over, half a second later at most, and its group
/// is empty.
#[test]
fn a_deaf_worker_is_killed_within_half_a_second_of_its_grace() {
    let deaf = "trap '' TERM; sleep 600 & echo $! > $RUN/child; touch $RUN/ready; while :; do sleep 0.05; done";
    let late = |_: u32| {
        let stage = Stage::new(1, "exec sleep 600", deaf);
        let asked = std::cell::Cell::new(None);
        let story = stage.play(0, |send| {
            if asked.get().is_none() && stage.run_dir().join("ready").exists() {
                asked.set(Some(Instant::now()));
                send(15);
            }
        });
        let took = asked.get().expect("it was asked").elapsed();
        assert_eq!(story.outcome, Outcome::Stopped(15));
        let child = format!("/proc/{}/stat", stage.read("child").trim());
        let is_left = || fs::read_to_string(&child).is_ok_and(|stat| !stat.contains(") Z "));
        // It was killed with its parent, but dies at its own pace.
        let end = Instant::now() + Duration::from_secs(60);
        while is_left() {
            assert!(Instant::now() < end, "its child is left");
            std::thread::sleep(Duration::from_millis(5));
        }
        took.checked_sub(GRACE).expect("not before its grace is over")
    };
    // The best of three: others may use the machine.
    let best = (0..3).map(late).min().unwrap();
    assert!(best <= Duration::from_millis(500), "{best:?} after its grace");
}

#[test]
fn an_abandoned_fleet_leaves_neither_processes_nor_memory() {
    let stage = Stage::new(1, "echo $$ > $RUN/pid; exec sleep 600", "exec sleep 600");
    let mut fleet = Fleet::create(stage.spec.clone(), &Console::silent()).unwrap();
    fleet.spawn(TARGET).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !stage.read("pid").ends_with('\n') {
        assert!(Instant::now() < end, "the worker never came");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(fleet);
    assert!(!std::path::Path::new(&format!("/proc/{}", stage.read("pid").trim())).exists());
    assert_eq!(stage.shared_memory(), Vec::<String>::new());
}
