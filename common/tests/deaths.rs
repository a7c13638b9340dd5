//! The end of the stream, batches in dead hands and lost wakes, with real processes and real deaths.
#![expect(unsafe_code, reason = "installs a seccomp filter")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and shows its figures")]

mod queue_world;

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use common::ids::{Rank, Role, Step};
use common::queue::{Queue, QueueOwner, QueueSpec};
use nix::sys::prctl;
use nix::sys::signal::{Signal, raise};
use queue_world::*;

const NAME: &str = "TANDEM_TEST_QUEUE";
const FATE: &str = "TANDEM_TEST_FATE";
const ROUNDS: usize = 1000;
/// Promised: from what was waited for to the waiter, though a wake was lost.
const PROMPT: Duration = Duration::from_millis(250);

/// Not a test: the process that the tests below start; target 0 or drafter 0, and how it ends.
#[test]
#[ignore = "run as a child by the other tests"]
fn mortal() {
    let (Ok(name), Ok(fate)) = (std::env::var(NAME), std::env::var(FATE)) else { return };
    let queue = Queue::attach(&name).unwrap();
    match fate.as_str() {
        "with a claim" => {
            let producer = producer(&queue, 0);
            publish(claim(&producer), 0);
            let _claimed = claim(&producer);
            raise(Signal::SIGKILL).unwrap();
        }
        "after its last publication" => {
            let producer = producer(&queue, 0);
            (0..2).for_each(|_| _ = publish(claim(&producer), 0));
            raise(Signal::SIGKILL).unwrap();
        }
        "between commit and wake" => {
            let lease = claim(&producer(&queue, 0));
            die_at_the_next_wake();
            publish(lease, 0);
        }
        "with a batch" => {
            let _lease = pop(&consumer(&queue, 0));
            raise(Signal::SIGKILL).unwrap();
        }
        other => panic!("{other:?} is no fate"),
    }
}

/// From here on the kernel kills this process when it asks to wake a sleeper on shared memory.
fn die_at_the_next_wake() {
    /// Where a filter finds the number of the call, and the lower half of its second argument.
    const CALL: u32 = 0;
    const SECOND: u32 = 24;
    let load = |from| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: from };
    let go_on_if = |value, otherwise| libc::sock_filter { code: 0x15, jt: 0, jf: otherwise, k: value };
    let verdict = |verdict| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: verdict };
    let mut filter = [
        load(CALL),
        go_on_if(libc::SYS_futex as u32, 3),
        load(SECOND),
        go_on_if(libc::FUTEX_WAKE as u32, 1),
        verdict(libc::SECCOMP_RET_KILL_PROCESS),
        verdict(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    prctl::set_no_new_privs().unwrap();
    // SAFETY: the program and its instructions are valid for the call; the kernel copies them.
    let outcome = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

fn start(spec: &QueueSpec, fate: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["mortal", "--exact", "--ignored", "--quiet"])
        .envs([(NAME, spec.name()), (FATE, fate.to_owned())])
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for its end and takes back what it had, as the launcher does.
fn bury(queue: &QueueOwner, mut child: Child, role: Role) -> ExitStatus {
    let status = child.wait().unwrap();
    queue.reclaim(role, Rank(0)).unwrap();
    status
}

/// What a drafter had: batches, each with its returns, and when it heard that no more come.
type Heard = (Vec<(u64, u8)>, Instant);

/// Trains until the end of the stream.
fn drafter<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    spec: &QueueSpec,
    rank: u32,
) -> ScopedJoinHandle<'scope, Heard> {
    let queue = Queue::attach(&spec.name()).unwrap();
    scope.spawn(move || {
        let (consumer, mut had) = (consumer(&queue, rank), Vec::new());
        while let Some(lease) = consumer.pop(&patience(20_000)).unwrap() {
            let batch = lease.batch_id();
            had.push((batch.0, lease.returns()));
            lease.release().unwrap();
            consumer.trained(&[batch], Step(1)).unwrap();
        }
        (had, Instant::now())
    })
}

/// The value that so great a share of the sample does not exceed.
fn quantile(sample: &mut [Duration], share: f64) -> Duration {
    sample.sort_unstable();
    sample[(share * (sample.len() - 1) as f64) as usize]
}

/// The last target dies before its publication, or after it; its place is taken by a new process, or another target
/// goes on. Neither of two drafters hears the end before both batches are trained, and then both do soon.
#[test]
fn the_end_is_neither_early_nor_late_when_the_last_target_dies() {
    let mut delays = Vec::new();
    for round in 0..ROUNDS {
        let spec = spec(2);
        let queue = Queue::create(&spec).unwrap();
        let fate = ["with a claim", "after its last publication"][round % 2];
        thread::scope(|scope| {
            let drafters = [0, 1].map(|rank| drafter(scope, &spec, rank));
            let status = bury(&queue, start(&spec, fate), Role::Target);
            assert_eq!(status.signal(), Some(libc::SIGKILL));
            let mut done = Instant::now();
            if round % 2 == 0 {
                let heir = producer(&queue, (round / 2 % 2) as u32);
                publish(claim(&heir), 0);
                done = Instant::now();
            }
            let (mut had, ends): (Vec<_>, Vec<_>) = drafters.map(|drafter| drafter.join().unwrap()).into_iter().unzip();
            let mut had = had.drain(..).flatten().collect::<Vec<_>>();
            had.sort_unstable();
            assert_eq!(had, [(0, 0), (1, 0)], "round {round}: {fate}");
            delays.extend(ends.into_iter().map(|end| end.saturating_duration_since(done)));
        });
        assert_eq!(queue.trained_ranges(), [(0, 2)]);
        assert!(producer(&queue, 1).claim(&patience(1000)).unwrap().is_none());
    }
    let [middle, tail] = [0.5, 0.95].map(|share| quantile(&mut delays, share));
    println!("{ROUNDS} ends of stream, none early: p50 {middle:.1?}, p95 {tail:.1?} after the last batch was there");
    assert!(tail <= PROMPT, "p50 {middle:?}, p95 {tail:?}");
}

/// Another drafter has heard the end, its leases do not hold that back; what comes back is a restarted drafter's.
#[test]
fn a_dead_drafters_batch_goes_to_its_successor_after_others_heard_the_end() {
    let spec = spec(1);
    let queue = Queue::create(&spec).unwrap();
    let target = producer(&queue, 0);
    publish(claim(&target), 0);
    let mut child = start(&spec, "with a batch");
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(consumer(&queue, 1).pop(&patience(1000)).unwrap().is_none(), "nothing is ready and none will come");
    assert_eq!(queue.reclaim(Role::Drafter, Rank(0)).unwrap().returned, 1);
    thread::scope(|scope| {
        let (had, _) = drafter(scope, &spec, 0).join().unwrap();
        assert_eq!(had, [(0, 1)], "delivered again, and it says so");
    });
    assert!(target.claim(&patience(1000)).unwrap().is_none());
    assert_eq!(queue.snapshot().slots.free, spec.capacity);
}

/// The kernel kills the target in its call to wake the drafter: the batch is READY, and nobody says so.
#[test]
fn a_wake_that_died_with_its_sender_costs_a_quarter_of_a_second_at_most() {
    let mut delays: Vec<Duration> = Vec::new();
    for _ in 0..9 {
        let spec = spec(1);
        let queue = Queue::create(&spec).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let consumer = consumer(&queue, 0);
                (pop(&consumer).batch_id().0, Instant::now())
            });
            wait_until("the drafter waits", || queue.snapshot().participants[2].waits_for == Some("the gate"));
            let status = start(&spec, "between commit and wake").wait().unwrap();
            let dead = Instant::now();
            assert_eq!(status.signal(), Some(libc::SIGSYS), "it died in the call");
            let (batch, woken) = waiter.join().unwrap();
            assert_eq!(batch, 0);
            delays.push(woken.saturating_duration_since(dead));
        });
    }
    let (middle, most) = (quantile(&mut delays, 0.5), quantile(&mut delays, 1.0));
    println!("lost wakes: p50 {middle:.1?}, most {most:.1?}");
    assert!(middle <= PROMPT, "{delays:?}");
}
