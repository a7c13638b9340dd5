//! What launcher and workers say to each other.

use bincode::{Decode, Encode};

use crate::arena::{ArenaReply, ArenaRequest};

/// From the launcher to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ToWorker {
    /// To a drafter: another one died. Leave the step and the place at the queue, then say [`ToLauncher::Left`].
    Leave,
    /// About the arena on GPUs; the file is a part's.
    Arena(ArenaReply),
}

/// From a worker to the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ToLauncher {
    /// A drafter has given up its place at the queue and waits to be told where to go on.
    Left,
    /// About the arena on GPUs; the file is a part's.
    Arena(ArenaRequest),
}
