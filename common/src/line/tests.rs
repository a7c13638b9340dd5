use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::net::UnixDatagram;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::*;

const NOW: Duration = Duration::ZERO;

fn pair() -> (Line, Line) {
    Line::pair().unwrap()
}

/// Sends bytes and files as they are.
fn raw(line: &Line, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    let numbers: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let files = if numbers.is_empty() { vec![] } else { vec![ControlMessage::ScmRights(&numbers)] };
    sendmsg::<()>(line.0.as_raw_fd(), &[IoSlice::new(bytes)], &files, MsgFlags::empty(), None).unwrap();
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn messages_stay_apart_and_keep_their_order() {
    let (one, other) = pair();
    assert!(other.try_receive::<String>().unwrap().is_none());
    for text in ["first", "", "third"] {
        one.send(&text, None, NOW).unwrap();
    }
    let texts: Vec<String> = (0..3).map(|_| other.receive().unwrap().message).collect();
    assert_eq!(texts, ["first", "", "third"]);
    assert!(other.try_receive::<String>().unwrap().is_none());
}

#[test]
fn a_file_goes_along_and_is_not_inherited() {
    let (one, other) = pair();
    let mut file = tempfile::tempfile().unwrap();
    one.send(&7u32, Some(file.as_fd()), NOW).unwrap();
    file.write_all(b"content").unwrap();
    let Received { message, file: came } = other.receive::<u32>().unwrap();
    let came = came.expect("a file");
    let flags = FdFlag::from_bits_retain(fcntl(&came, FcntlArg::F_GETFD).unwrap());
    assert!(flags.contains(FdFlag::FD_CLOEXEC));
    let (mut came, mut text) = (File::from(came), String::new());
    came.rewind().unwrap();
    came.read_to_string(&mut text).unwrap();
    assert_eq!((message, text.as_str()), (7, "content"));
}

#[test]
fn the_end_of_one_side_is_seen_by_the_other() {
    let (one, other) = pair();
    one.send(&1u32, None, NOW).unwrap();
    drop(one);
    assert_eq!(other.receive::<u32>().unwrap().message, 1);
    assert!(matches!(other.receive::<u32>(), Err(LineError::Closed)));
    assert!(matches!(other.try_receive::<u32>(), Err(LineError::Closed)));
    assert!(matches!(other.send(&1u32, None, NOW), Err(LineError::Closed)));
}

#[test]
fn what_is_no_message_is_named_and_costs_neither_files_nor_memory() {
    let (one, other) = pair();
    let file = tempfile::tempfile().unwrap();
    let before = open_files();
    raw(&one, &[1, 2, 3], &[file.as_fd()]);
    assert!(matches!(other.try_receive::<u32>(), Err(LineError::Wire(WireError::Decode(_)))));
    raw(&one, &[0; 8], &[]);
    assert!(matches!(other.try_receive::<u32>(), Err(LineError::Wire(WireError::Trailing { .. }))));
    raw(&one, &[0; 100 * LIMIT], &[]);
    assert!(matches!(other.try_receive::<u32>(), Err(LineError::TooLong)));
    raw(&one, &[0; 4], &[file.as_fd(); MOST_FILES]);
    assert!(matches!(other.try_receive::<u32>(), Err(LineError::Files(MOST_FILES))));
    raw(&one, &[9, 0, 0, 0], &[]);
    assert_eq!(other.receive::<u32>().unwrap().message, 9, "the line goes on");
    // Other tests open files meanwhile, but not so many.
    assert!(open_files() < before + MOST_FILES / 2);
}

#[test]
fn too_long_a_message_is_not_sent() {
    let (one, other) = pair();
    assert!(matches!(one.send(&"x".repeat(LIMIT), None, NOW), Err(LineError::Wire(WireError::Encode(_)))));
    assert!(other.try_receive::<String>().unwrap().is_none());
}

#[test]
fn nobody_waits_for_ever_for_room() {
    let (one, other) = pair();
    let text = "x".repeat(LIMIT / 2);
    let sent = (0..100_000).take_while(|_| one.send(&text, None, NOW).is_ok()).count();
    assert!((1..100_000).contains(&sent));
    let patience = Duration::from_millis(20);
    let started = Instant::now();
    assert!(matches!(one.send(&text, None, patience), Err(LineError::Full(_))));
    assert!(started.elapsed() >= patience);
    other.receive::<String>().unwrap();
    (0..sent - 1).for_each(|_| drop(other.receive::<String>().unwrap()));
    one.send(&text, None, patience).unwrap();
}

#[test]
fn what_is_no_socket_is_an_error() {
    let line = Line(tempfile::tempfile().unwrap().into());
    assert!(matches!(line.receive::<u32>(), Err(LineError::Socket(Errno::ENOTSOCK))));
    let (datagrams, _other) = UnixDatagram::pair().unwrap();
    drop(_other);
    assert!(Line(datagrams.into()).send(&1u32, None, NOW).is_err());
}
