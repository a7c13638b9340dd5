use std::path::Path;

use super::*;
use crate::testing::write_program;

/// A program made of shell.
fn script(folder: &Path, body: &str) -> Launch {
    let program = folder.join("worker");
    write_program(&program, body);
    Launch {
        name: "target 0".into(),
        program,
        args: vec!["--rank".into()],
        env: vec![("ROLE", "target".into())],
        log: folder.join("log"),
        shown: Streams::ALL,
        stdout_is_data: false,
    }
}

fn run(body: &str, stdout_is_data: bool) -> (Ended, String) {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch { stdout_is_data, ..script(folder.path(), body) };
    let ended = Child::spawn(&launch, &Console::silent()).unwrap().reap().unwrap();
    (ended, std::fs::read_to_string(launch.log).unwrap())
}

#[test]
fn output_is_kept_to_the_last_line_and_the_code_is_the_childs() {
    let (ended, log) = run("echo one $1; echo two >&2; printf three; exit 7", false);
    assert_eq!(ended.ending, Ending::Exit(7));
    let mut lines = ended.tail;
    lines.sort();
    assert_eq!(lines, ["one --rank", "three", "two"]);
    assert_eq!(log.lines().count(), 3, "{log}");
}

#[test]
fn every_line_on_the_console_is_marked_once() {
    let folder = tempfile::tempdir().unwrap();
    let launch = script(folder.path(), "echo '[target 0] INFO loaded'; echo 'terminate called'");
    let (console, lines) = Console::overheard();
    Child::spawn(&launch, &console).unwrap().reap().unwrap();
    assert_eq!(lines(), ["[target 0] INFO loaded", "[target 0] terminate called"]);
}

#[test]
fn what_is_not_shown_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let shown = Streams { stdout: false, stderr: true };
    let launch = Launch { shown, ..script(folder.path(), "echo out; echo err >&2") };
    let (console, lines) = Console::overheard();
    let ended = Child::spawn(&launch, &console).unwrap().reap().unwrap();
    assert_eq!(lines(), ["[target 0] err"]);
    assert_eq!(ended.tail.len(), 2);
}

#[test]
fn last_words_are_read_from_the_error_file_and_kept_in_the_log() {
    let (ended, log) =
        run(r#"echo "{\"code\":2,\"error\":\"$ROLE lost\",\"hint\":\"look\"}" > $ERROR_FILE; exit 2"#, false);
    let words = LastWords { code: 2, error: "target lost".into(), hint: Some("look".into()) };
    assert_eq!((ended.words, log.as_str()), (Some(words), "target lost\nhint: look\n"));
}

#[test]
fn words_of_an_earlier_life_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let launch = script(folder.path(), "exit 2");
    std::fs::write(launch.error_file(), r#"{"code":2,"error":"old","hint":null}"#).unwrap();
    assert_eq!(Child::spawn(&launch, &Console::silent()).unwrap().reap().unwrap().words, None);
}

#[test]
fn a_worker_that_sends_nonsense_is_killed_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut child =
        Child::spawn(&script(folder.path(), "echo nonsense >&0; exec sleep 600"), &Console::silent()).unwrap();
    await_that("the nonsense to be heard", || {
        assert!(child.hear().is_empty());
        child.line().is_none()
    });
    let ended = child.reap().unwrap();
    let error = ended.words.expect("the launcher speaks for it").error;
    assert_eq!(
        (ended.ending, error.as_str()),
        (Ending::Signal(9), "its line to the launcher: bytes that are no such record")
    );
}

#[test]
fn a_worker_that_cannot_be_told_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Child::spawn(&script(folder.path(), "exec sleep 600 <&-"), &Console::silent()).unwrap();
    await_that("the worker to close its line", || child.hear().is_empty() && child.line().is_none());
    child.tell(&ToWorker::Leave, None);
    let ended = child.reap().unwrap();
    assert_eq!((ended.ending, ended.words), (Ending::Signal(9), None));
}

#[test]
fn stdout_can_be_data() {
    let (ended, log) = run("echo '{}'; echo note >&2", true);
    assert_eq!((ended.data.as_slice(), log.as_str()), (b"{}\n".as_slice(), "note\n"));
}

#[test]
fn a_flood_stalls_nobody() {
    let (ended, log) = run("head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2", false);
    assert_eq!(ended.ending, Ending::Exit(0));
    assert!(log.len() > 40_000_000);
}

#[test]
fn killing_a_child_ends_what_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let launch = script(folder.path(), &format!("sleep 600 & echo $! > {}; wait", pid_file.display()));
    let child = Child::spawn(&launch, &Console::silent()).unwrap();
    let grandchild = await_text(&pid_file);
    child.kill();
    assert_eq!(child.reap().unwrap().ending, Ending::Signal(9));
    await_end(&grandchild);
}

#[test]
fn what_a_child_leaves_behind_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let launch = script(folder.path(), &format!("sleep 600 & echo $! > {}; exit 0", pid_file.display()));
    let ended = Child::spawn(&launch, &Console::silent()).unwrap().reap().unwrap();
    assert_eq!(ended.ending, Ending::Exit(0));
    await_end(&await_text(&pid_file));
}

#[test]
fn a_dropped_child_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let launch = script(folder.path(), &format!("echo $$ > {}; exec sleep 600", pid_file.display()));
    let child = Child::spawn(&launch, &Console::silent()).unwrap();
    let pid = await_text(&pid_file);
    drop(child);
    assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists());
}

/// The kernel's parent-death signal goes by the thread that started the child, not by the process.
#[test]
fn a_child_outlives_every_thread_but_the_one_that_started_it() {
    let folder = tempfile::tempdir().unwrap();
    let launch = script(folder.path(), "exec sleep 600");
    let ours = Child::spawn(&launch, &Console::silent()).unwrap();
    let theirs = std::thread::scope(|scope| {
        let helper = scope.spawn(|| Child::spawn(&launch, &Console::silent()).unwrap());
        helper.join().unwrap()
    });
    assert_eq!(theirs.reap().unwrap().ending, Ending::Signal(9), "its thread is gone: that is why only one may spawn");
    let mut ended = [PollFd::new(ours.pidfd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut ended, PollTimeout::from(200u16)).unwrap(), 0, "the other one lives on");
}

#[test]
fn a_missing_program_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch { program: "/no/such/worker".into(), ..script(folder.path(), "") };
    let error = Child::spawn(&launch, &Console::silent()).err().expect("it cannot start").to_string();
    assert!(error.starts_with("cannot start /no/such/worker: "), "{error}");
}

/// Gone, or a zombie that nobody has collected yet.
fn await_end(pid: &str) {
    let stat = format!("/proc/{}/stat", pid.trim());
    await_that("a process to end", || match std::fs::read_to_string(&stat) {
        Ok(text) => text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    });
}

fn await_text(path: &Path) -> String {
    let text = || std::fs::read_to_string(path).unwrap_or_default();
    await_that("a whole line", || text().ends_with('\n'));
    text()
}

fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
