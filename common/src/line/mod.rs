//! The line between the launcher and one worker: small typed messages, each with one file if need be.
//!
//! It is a pair of connected sockets that keep messages apart (`SOCK_SEQPACKET`); the worker finds its end as stdin. A
//! message is a record of [`crate::wire`], a file goes along as the kernel's own copy (`SCM_RIGHTS`). When one side is
//! gone, however it went, the other one reads [`LineError::Closed`].
#![expect(unsafe_code, reason = "files that came with a message are numbers until somebody owns them")]

mod message;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use bincode::{Decode, Encode};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, RecvMsg, SockFlag, SockType, recvmsg, sendmsg,
    socketpair,
};
use thiserror::Error;

pub use message::{RestartPoint, ToLauncher, ToWorker};

use crate::wire::{self, LIMIT, WireError};

/// The most files that the kernel lets one message carry: with room for so many none is lost out of sight.
const MOST_FILES: usize = 253;

/// A message that cannot be sent or is none.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LineError {
    /// The other side is gone, or closed its end.
    #[error("the other side is gone")]
    Closed,
    /// The other side does not take its messages.
    #[error("the other side has not taken its messages for {:.1} s", .0.as_secs_f64())]
    Full(Duration),
    /// Longer than any message is.
    #[error("a message of more than {LIMIT} bytes")]
    TooLong,
    /// One file at most goes along.
    #[error("a message with {0} files, where one is the most")]
    Files(usize),
    /// The bytes are no message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The system refuses.
    #[error("the socket fails: {0}")]
    Socket(#[from] Errno),
}

/// A message and the file that came with it.
#[derive(Debug)]
pub struct Received<T> {
    /// What was said.
    pub message: T,
    /// Close-on-exec.
    pub file: Option<OwnedFd>,
}

/// One end.
#[derive(Debug)]
pub struct Line(OwnedFd);

impl Line {
    /// Both ends, close-on-exec.
    ///
    /// # Errors
    /// The system is out of files.
    pub fn pair() -> io::Result<(Line, Line)> {
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Line(one), Line(other)))
    }

    /// A worker's end.
    ///
    /// # Errors
    /// Stdin is closed.
    pub fn of_stdin() -> io::Result<Line> {
        Ok(Line(io::stdin().as_fd().try_clone_to_owned()?))
    }

    /// Sends a message, waiting at most `patience` for room.
    ///
    /// # Errors
    /// [`LineError::Closed`], [`LineError::Full`], [`LineError::Wire`] if it is too long, [`LineError::Socket`].
    pub fn send<T: Encode>(
        &self,
        message: &T,
        file: Option<BorrowedFd<'_>>,
        patience: Duration,
    ) -> Result<(), LineError> {
        let (bytes, end) = (wire::encode(message)?, Instant::now() + patience);
        let numbers = file.map(|file| [file.as_raw_fd()]);
        let files: Vec<_> = numbers.iter().map(|numbers| ControlMessage::ScmRights(numbers)).collect();
        loop {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(&bytes)], &files, flags, None) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if Instant::now() < end => self.await_room(end)?,
                Err(Errno::EAGAIN) => return Err(LineError::Full(patience)),
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn await_room(&self, end: Instant) -> Result<(), LineError> {
        let left = end.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        let mut room = [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut room, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The next message; waits for it as long as the other side lives.
    ///
    /// # Errors
    /// [`LineError::Closed`], or whatever is wrong with the message, which is lost.
    pub fn receive<T: Decode<()>>(&self) -> Result<Received<T>, LineError> {
        loop {
            match self.take(MsgFlags::empty()) {
                Err(LineError::Socket(Errno::EINTR)) => {}
                taken => return taken,
            }
        }
    }

    /// The next message, if one is there.
    ///
    /// # Errors
    /// As [`Line::receive`].
    pub fn try_receive<T: Decode<()>>(&self) -> Result<Option<Received<T>>, LineError> {
        match self.take(MsgFlags::MSG_DONTWAIT) {
            Err(LineError::Socket(Errno::EAGAIN | Errno::EINTR)) => Ok(None),
            taken => taken.map(Some),
        }
    }

    fn take<T: Decode<()>>(&self, flags: MsgFlags) -> Result<Received<T>, LineError> {
        // One byte more than a message has shows one that is too long.
        let mut bytes = [0; LIMIT + 1];
        let mut rights = nix::cmsg_space!([i32; MOST_FILES]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
        let received = recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut rights), flags).map_err(failed)?;
        let (length, mut files) = (received.bytes, files(&received)?);
        match (length, files.len()) {
            (0, 0) => Err(LineError::Closed),
            (_, 2..) => Err(LineError::Files(files.len())),
            _ if length > LIMIT => Err(LineError::TooLong),
            _ => Ok(Received { message: wire::decode(&bytes[..length])?, file: files.pop() }),
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Line> for OwnedFd {
    fn from(line: Line) -> OwnedFd {
        line.0
    }
}

fn failed(error: Errno) -> LineError {
    match error {
        Errno::EPIPE | Errno::ECONNRESET => LineError::Closed,
        error => LineError::Socket(error),
    }
}

/// Takes ownership of all files that came along.
fn files<S>(received: &RecvMsg<'_, '_, S>) -> Result<Vec<OwnedFd>, LineError> {
    let mut files = Vec::new();
    for control in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            // SAFETY: the kernel has just made these file numbers for this process; nobody else knows them.
            files.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
