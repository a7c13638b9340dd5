//! Names for the numbers that cross process borders. A newtype each, so that a rank never passes for a slot.

use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Encode, Decode)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A worker's number within its role, from 0.
    Rank(u32)
);
id!(
    /// One packed batch of the batch plan, counted over all epochs: the unit of all bookkeeping.
    BatchId(u64)
);
id!(
    /// An optimizer step; the first is 1, 0 means "before training".
    Step(u64)
);
id!(
    /// A slot of the arena.
    SlotIndex(u32)
);

/// What a worker does in its pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Runs the frozen model and captures hidden states.
    Target,
    /// Trains the draft model.
    Drafter,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Target => "target",
            Role::Drafter => "drafter",
        })
    }
}
