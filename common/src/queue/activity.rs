//! What a worker tells about itself: a phase in words and a few numbers, in its own record. Nobody decides by them.

use serde::Serialize;

macro_rules! shared_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u32)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $number,)*
        }

        impl $name {
            /// All of them, by number.
            pub const ALL: &[$name] = &[$($name::$variant),*];
        }
    };
}

shared_enum! {
    /// What a worker is doing. What it waits for is noted by the queue itself.
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
        /// Supervised tokens handled, in all.
        SupervisedTokens = 6,
        /// Learning rate of the last step.
        LearningRate = 7,
        /// Gradient norm of the last step, before clipping.
        GradNorm = 8,
    }
}

impl Phase {
    pub(super) fn from_number(number: u32) -> Phase {
        Phase::ALL.get(number as usize).copied().unwrap_or(Phase::Starting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::ring::layout::NUM_GAUGES;

    #[test]
    fn numbers_are_places() {
        assert!(Phase::ALL.iter().all(|phase| Phase::from_number(*phase as u32) == *phase));
        assert_eq!(Gauge::ALL.len(), NUM_GAUGES);
        assert!(Gauge::ALL.iter().enumerate().all(|(place, gauge)| *gauge as usize == place));
    }
}
