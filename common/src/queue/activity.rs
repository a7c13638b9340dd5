//! What a worker tells about itself: phases in words and a few numbers, in its own record. Nobody decides by them.

use serde::{Deserialize, Serialize};

use super::ring::Blocked;

macro_rules! shared_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u32)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $number,)*
        }

        impl $name {
            /// All of them, by number.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// Its name, as JSON has it.
            pub fn name(self) -> String {
                serde_json::to_value(self).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
            }
        }
    };
}

shared_enum! {
    /// What a worker is doing; the time of each is counted. Its waits at the queue are noted by the queue itself.
    Phase {
        /// The process has just taken its place.
        Starting = 0,
        /// Reads weights, builds models.
        Loading = 1,
        /// Reads rows, packs a batch.
        Data = 2,
        /// Runs the target.
        Forward = 3,
        /// Copies hidden states into the slot.
        Capture = 4,
        /// Hands the slot over.
        Publish = 5,
        /// Copies a slot into its own memory.
        Copy = 6,
        /// Draws anchors, lays out blocks.
        Anchors = 7,
        /// Runs the drafter forward.
        Draft = 8,
        /// Computes the loss.
        Loss = 9,
        /// Runs the drafter backward.
        Backward = 10,
        /// Sums gradients over the drafters.
        AllReduce = 11,
        /// Updates the weights.
        Optimizer = 12,
        /// Writes a checkpoint.
        Checkpoint = 13,
        /// Has done all its work.
        Finished = 14,
        /// Copies weights and optimizer into memory that outlives it.
        Snapshot = 15,
        /// Has loaded all that it needs.
        Ready = 16,
        /// Waits for another thread of its own.
        Await = 17,
        /// Waits for the device to finish what it was given.
        Device = 18,
        /// Waits for a free slot.
        WaitSlot = 19,
        /// Waits for the gate.
        WaitGate = 20,
        /// Waits for the next batch in order.
        WaitOrder = 21,
        /// Waits for enough batches for one step.
        WaitGroup = 22,
        /// Waits for the drafters to finish; a drafter, for one that died to be there again.
        WaitDrafters = 23,
        /// Waits for others to get their share of the slots.
        WaitShare = 24,
        /// Waits for the lock, whose holder does not run.
        WaitLock = 25,
        /// A GPU has nothing to do: the host has not given it anything yet.
        Idle = 26,
    }
}

shared_enum! {
    /// Whose time is counted: each has phases of its own.
    Track {
        /// The worker's main thread.
        Main = 0,
        /// The thread that hands slots over, or fetches batches, while the main thread computes.
        Side = 1,
        /// What the GPU computes of what the main thread gave it.
        Gpu = 2,
        /// What the GPU copies between slots and the worker's own memory meanwhile.
        Copies = 3,
    }
}

shared_enum! {
    /// A number that a worker shows.
    Gauge {
        /// Optimizer steps done.
        Step = 0,
        /// Optimizer steps of the whole run.
        TotalSteps = 1,
        /// Training loss of the last step.
        Loss = 2,
        /// Share of predicted tokens that were right in the last step.
        Accuracy = 3,
        /// Accepted length as far as training shows it, in tokens per block.
        AcceptedLength = 4,
        /// Tokens handled, in all.
        Tokens = 5,
        /// Slots of blocks scored, in all: a supervised token counts once for each block that predicts it.
        ScoredSlots = 6,
        /// Learning rate of the last step.
        LearningRate = 7,
        /// Gradient norm of the last step, before clipping.
        GradNorm = 8,
    }
}

impl Track {
    /// Whether it is a GPU's time, and no thread's.
    pub fn is_of_gpu(self) -> bool {
        matches!(self, Track::Gpu | Track::Copies)
    }
}

impl Phase {
    pub(super) fn from_number(number: u32) -> Phase {
        Phase::ALL.get(number as usize).copied().unwrap_or(Phase::Starting)
    }

    /// The wait behind a number in [`super::ring::layout::Participant::waits_for`].
    pub(super) fn waiting(code: u32) -> Phase {
        Phase::from_number(Phase::Device as u32 + code.min(Blocked::LOCK_CODE))
    }

    /// What a GPU has to do from here on when the host enters this phase: that phase's work, or nothing.
    pub(super) fn on_gpu(self) -> Phase {
        use Phase::{AllReduce, Anchors, Backward, Draft, Forward, Idle, Loss, Optimizer};
        match self {
            Forward | Anchors | Draft | Loss | Backward | AllReduce | Optimizer => self,
            _ => Idle,
        }
    }

    /// Whether nothing is done in it but waiting for others.
    pub fn is_wait(self) -> bool {
        self >= Phase::Await && self != Phase::Device
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::ring::layout::{NUM_GAUGES, NUM_PHASES, NUM_TRACKS};

    #[test]
    fn numbers_are_places() {
        assert!(Phase::ALL.iter().all(|phase| Phase::from_number(*phase as u32) == *phase));
        assert_eq!(Gauge::ALL.len(), NUM_GAUGES);
        assert!(Gauge::ALL.iter().enumerate().all(|(place, gauge)| *gauge as usize == place));
        assert!(Phase::ALL.len() <= NUM_PHASES);
        assert_eq!(Track::ALL.len(), NUM_TRACKS);
    }

    #[test]
    fn every_wait_has_its_phase() {
        assert_eq!(Phase::waiting(Blocked::NoFreeSlot.code()), Phase::WaitSlot);
        assert_eq!(Phase::waiting(Blocked::Gate { ready: 0, needed: 1 }.code()), Phase::WaitGate);
        assert_eq!(Phase::waiting(Blocked::NothingPending.code()), Phase::WaitDrafters);
        assert_eq!(Phase::waiting(Blocked::Share { writing: 1, share: 1 }.code()), Phase::WaitShare);
        assert_eq!(Phase::waiting(Blocked::LOCK_CODE), Phase::WaitLock);
        assert!(Phase::WaitSlot.is_wait() && Phase::Await.is_wait());
        assert!(!Phase::Device.is_wait() && !Phase::Forward.is_wait());
        assert!(
            Phase::Idle.is_wait() && Phase::ALL.iter().all(|phase| !phase.is_wait() || phase.on_gpu() == Phase::Idle)
        );
        assert_eq!(Phase::WaitSlot.name(), "wait_slot");
    }
}
