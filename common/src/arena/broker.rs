//! Who has which part of a GPU arena, and who is to map it: the launcher's side of the arena, without its processes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use thiserror::Error;

use super::{ArenaKind, ArenaReply, ArenaRequest, Memory, Part};
use crate::ids::{Rank, Role};

/// A worker, as the launcher knows it.
pub type Worker = (Role, Rank);

/// A worker's message that makes no sense.
#[derive(Debug, Error)]
pub enum BrokerError {
    /// A part that was not asked for.
    #[error("part {part} of the arena is not {role} {rank}'s to make now")]
    NotAsked {
        /// The part it named.
        part: u32,
        /// The sender's role.
        role: Role,
        /// The sender's rank.
        rank: Rank,
    },
    /// The message and what came with it do not fit this kind of arena.
    #[error("part {part} of an arena of {kind} came as {memory:?}, {descriptor} a file descriptor")]
    OtherKind {
        /// The part.
        part: u32,
        /// This arena's kind.
        kind: ArenaKind,
        /// How it is to be reached.
        memory: Memory,
        /// `with` or `without`.
        descriptor: &'static str,
    },
    /// The descriptor cannot be handed on.
    #[error("handing the arena's file descriptor on: {0}")]
    Descriptor(#[from] io::Error),
}

/// A message for a worker.
#[derive(Debug)]
pub struct Delivery {
    /// For whom.
    pub to: Worker,
    /// What.
    pub reply: ArenaReply,
    /// What comes with it.
    pub fd: Option<OwnedFd>,
}

/// A part that went with the target that made it.
#[derive(Debug)]
pub struct Lost {
    /// Which.
    pub part: u32,
    /// Word of it for everybody who has it mapped: the GPU has its memory back only when they have let go.
    pub deliveries: Vec<Delivery>,
}

/// Holds the arena's parts for workers that come later. Part r is target r's to make.
///
/// It never opens what it holds: a file descriptor keeps GPU memory alive without a CUDA context. Dropping the broker
/// gives the memory back, once no worker maps it.
#[derive(Debug)]
pub struct Broker {
    kind: ArenaKind,
    parts: Vec<Option<(Part, Option<OwnedFd>)>>,
    versions: Vec<u32>,
    /// Workers that want the arena, and the version of the part that each was told to make.
    asked: BTreeMap<(u8, u32), Option<u32>>,
}

impl Broker {
    /// Knows of no part yet. `parts` is the number of targets.
    pub fn new(kind: ArenaKind, parts: u32) -> Broker {
        let parts = parts as usize;
        Broker { kind, parts: (0..parts).map(|_| None).collect(), versions: vec![0; parts], asked: BTreeMap::new() }
    }

    /// Answers a worker's message.
    ///
    /// # Errors
    /// [`BrokerError`]: a worker that says this cannot be trusted with the arena.
    pub fn hear(
        &mut self,
        from: Worker,
        request: ArenaRequest,
        fd: Option<OwnedFd>,
    ) -> Result<Vec<Delivery>, BrokerError> {
        match request {
            ArenaRequest::Want => self.wanted(from),
            ArenaRequest::Made(part) => self.made(from, part, fd),
        }
    }

    fn wanted(&mut self, from: Worker) -> Result<Vec<Delivery>, BrokerError> {
        let mut deliveries = Vec::new();
        for (part, fd) in self.parts.iter().flatten() {
            deliveries.push(map(from, part, fd.as_ref())?);
        }
        let (role, Rank(rank)) = from;
        let own = self.parts.get(rank as usize).filter(|_| role == Role::Target);
        let version = own.filter(|part| part.is_none()).map(|_| self.versions[rank as usize]);
        deliveries.extend(version.map(|version| {
            let reply = ArenaReply::Make { part: rank, version };
            Delivery { to: from, reply, fd: None }
        }));
        self.asked.insert(key(from), version);
        Ok(deliveries)
    }

    fn made(&mut self, from: Worker, part: Part, fd: Option<OwnedFd>) -> Result<Vec<Delivery>, BrokerError> {
        let (role, rank) = from;
        let was_asked = self.asked.get(&key(from)).copied().flatten() == Some(part.version);
        if role != Role::Target || part.part != rank.0 || !was_asked {
            return Err(BrokerError::NotAsked { part: part.part, role, rank });
        }
        let fits = match (self.kind, &part.memory) {
            (ArenaKind::Fd, Memory::Fd) => fd.is_some(),
            (ArenaKind::Cuipc, Memory::Ipc(_)) => fd.is_none(),
            _ => false,
        };
        if !fits {
            let descriptor = if fd.is_some() { "with" } else { "without" };
            return Err(BrokerError::OtherKind { part: part.part, kind: self.kind, memory: part.memory, descriptor });
        }
        self.asked.insert(key(from), None);
        let others = self.asked.keys().filter(|other| **other != key(from));
        let deliveries = others.map(|other| map(worker(*other), &part, fd.as_ref())).collect();
        let place = part.part as usize;
        self.parts[place] = Some((part, fd));
        deliveries
    }

    /// Takes note of a worker's end. The part whose content is lost with it, if one is.
    pub fn ended(&mut self, from: Worker) -> Option<Lost> {
        self.asked.remove(&key(from));
        let (role, Rank(rank)) = from;
        if self.kind != ArenaKind::Cuipc || role != Role::Target {
            return None;
        }
        self.parts.get_mut(rank as usize)?.take()?;
        let reply = ArenaReply::Gone { part: rank, version: self.versions[rank as usize] };
        self.versions[rank as usize] += 1;
        let gone = |to: &(u8, u32)| Delivery { to: worker(*to), reply: reply.clone(), fd: None };
        Some(Lost { part: rank, deliveries: self.asked.keys().map(gone).collect() })
    }
}

fn map(to: Worker, part: &Part, fd: Option<&OwnedFd>) -> Result<Delivery, BrokerError> {
    let fd = fd.map(OwnedFd::try_clone).transpose()?;
    Ok(Delivery { to, reply: ArenaReply::Map(part.clone()), fd })
}

/// Orders workers, targets first.
fn key((role, rank): Worker) -> (u8, u32) {
    (u8::from(role == Role::Drafter), rank.0)
}

fn worker((role, rank): (u8, u32)) -> Worker {
    (if role == 0 { Role::Target } else { Role::Drafter }, Rank(rank))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use super::*;

    const T0: Worker = (Role::Target, Rank(0));
    const T1: Worker = (Role::Target, Rank(1));
    const D0: Worker = (Role::Drafter, Rank(0));

    fn part(part: u32, version: u32, memory: Memory) -> Part {
        Part { part, version, bytes: 1 << 21, gpu: [part as u8; 16], memory }
    }

    fn told(deliveries: Vec<Delivery>) -> Vec<(Worker, ArenaReply)> {
        deliveries.into_iter().map(|delivery| (delivery.to, delivery.reply)).collect()
    }

    #[test]
    fn each_target_makes_its_part_and_everybody_maps_all() {
        let mut broker = Broker::new(ArenaKind::Fd, 2);
        assert_eq!(told(broker.hear(D0, ArenaRequest::Want, None).unwrap()), []);
        let make = |part| ArenaReply::Make { part, version: 0 };
        assert_eq!(told(broker.hear(T1, ArenaRequest::Want, None).unwrap()), [(T1, make(1))]);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"payload").unwrap();
        let fd = OwnedFd::from(file);
        let made = part(1, 0, Memory::Fd);
        let mut deliveries = broker.hear(T1, ArenaRequest::Made(made.clone()), Some(fd)).unwrap();
        let mut read = String::new();
        let mut mapped = File::from(deliveries[0].fd.take().unwrap());
        mapped.rewind().unwrap();
        mapped.read_to_string(&mut read).unwrap();
        assert_eq!(read, "payload");
        assert_eq!(told(deliveries), [(D0, ArenaReply::Map(made.clone()))]);
        // Who comes later, and who comes back, gets what there is.
        assert_eq!(
            told(broker.hear(T0, ArenaRequest::Want, None).unwrap()),
            [(T0, ArenaReply::Map(made.clone())), (T0, make(0))]
        );
        assert!(broker.ended(T1).is_none());
        assert_eq!(told(broker.hear(T1, ArenaRequest::Want, None).unwrap()), [(T1, ArenaReply::Map(made))]);
    }

    #[test]
    fn an_ipc_part_is_lost_with_its_target_and_made_anew() {
        let mut broker = Broker::new(ArenaKind::Cuipc, 1);
        broker.hear(D0, ArenaRequest::Want, None).unwrap();
        broker.hear(T0, ArenaRequest::Want, None).unwrap();
        let made = part(0, 0, Memory::Ipc(vec![7; 64]));
        broker.hear(T0, ArenaRequest::Made(made), None).unwrap();
        assert!(broker.ended(D0).is_none(), "a drafter's death loses nothing");
        broker.hear(D0, ArenaRequest::Want, None).unwrap();
        let lost = broker.ended(T0).unwrap();
        let gone = ArenaReply::Gone { part: 0, version: 0 };
        assert_eq!((lost.part, told(lost.deliveries)), (0, vec![(D0, gone)]));
        assert_eq!(told(broker.hear(D0, ArenaRequest::Want, None).unwrap()), []);
        let make = ArenaReply::Make { part: 0, version: 1 };
        assert_eq!(told(broker.hear(T0, ArenaRequest::Want, None).unwrap()), [(T0, make)]);
        let made = part(0, 1, Memory::Ipc(vec![8; 64]));
        let deliveries = broker.hear(T0, ArenaRequest::Made(made.clone()), None).unwrap();
        assert_eq!(told(deliveries), [(D0, ArenaReply::Map(made))]);
    }

    #[test]
    fn what_was_not_asked_for_is_refused() {
        let mut broker = Broker::new(ArenaKind::Fd, 2);
        let fd = || Some(OwnedFd::from(tempfile::tempfile().unwrap()));
        let mut made = |from, part, fd| broker.hear(from, ArenaRequest::Made(part), fd);
        assert!(matches!(made(T0, part(0, 0, Memory::Fd), fd()), Err(BrokerError::NotAsked { .. })), "never asked");
        broker.hear(T0, ArenaRequest::Want, None).unwrap();
        let mut made = |from, part, fd| broker.hear(from, ArenaRequest::Made(part), fd);
        assert!(matches!(made(T0, part(1, 0, Memory::Fd), fd()), Err(BrokerError::NotAsked { .. })), "not its own");
        assert!(matches!(made(T0, part(0, 3, Memory::Fd), fd()), Err(BrokerError::NotAsked { .. })), "another version");
        assert!(matches!(made(D0, part(0, 0, Memory::Fd), fd()), Err(BrokerError::NotAsked { .. })), "a drafter");
        assert!(matches!(made(T0, part(0, 0, Memory::Fd), None), Err(BrokerError::OtherKind { .. })), "nothing came");
        assert!(made(T0, part(0, 0, Memory::Fd), fd()).is_ok());
    }
}
