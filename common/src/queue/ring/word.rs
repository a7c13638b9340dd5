//! A slot's state, owner and generation in one 64-bit word: the single truth about a slot.
//!
//! ```text
//!         claim            publish           pop            release
//!  FREE ─────────► WRITING ───────► READY ───────► READING ─────────► FREE
//!    ▲                │               ▲ │             │
//!    └──── abort ─────┘               │ └─ evict      │
//!                                     └──── nack ─────┘
//! ```
//! Each arrow is one store under the lock, checked against the whole expected word. The generation grows whenever a
//! slot leaves an owner without moving on, and when it becomes FREE, so a stale owner can never move it again.

/// Where a slot is in its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// Nobody's.
    Free,
    /// A target fills it.
    Writing,
    /// Waits to be popped; nobody's.
    Ready,
    /// A drafter copies from it.
    Reading,
}

/// Tag 4 bits | owner 12 bits | generation 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) state: SlotState,
    /// [`super::lock::Holder::owner`]; 0 if nobody's.
    pub(crate) owner: u16,
    pub(crate) generation: u64,
}

const GENERATION_BITS: u64 = (1 << 48) - 1;

impl Word {
    /// An all-zero segment has FREE slots. Unknown tags read as FREE: only this module writes tags.
    pub(crate) fn unpack(bits: u64) -> Word {
        let state = match bits >> 60 {
            1 => SlotState::Writing,
            2 => SlotState::Ready,
            3 => SlotState::Reading,
            _ => SlotState::Free,
        };
        Word { state, owner: (bits >> 48) as u16 & 0xFFF, generation: bits & GENERATION_BITS }
    }

    pub(crate) fn pack(self) -> u64 {
        let tag = match self.state {
            SlotState::Free => 0,
            SlotState::Writing => 1,
            SlotState::Ready => 2,
            SlotState::Reading => 3,
        };
        tag << 60 | u64::from(self.owner & 0xFFF) << 48 | self.generation & GENERATION_BITS
    }

    /// The next step in the hands of `owner`.
    pub(crate) fn owned(self, state: SlotState, owner: u16) -> Word {
        Word { state, owner, ..self }
    }

    /// Published: nobody's, the same generation.
    pub(crate) fn published(self) -> Word {
        Word { state: SlotState::Ready, owner: 0, ..self }
    }

    /// Taken from its owner.
    pub(crate) fn given_back(self, state: SlotState) -> Word {
        Word { state, owner: 0, generation: (self.generation + 1) & GENERATION_BITS }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packing_loses_nothing(tag in 0u64..4, owner in 0u16..0x1000, generation in 0u64..1 << 48) {
            let bits = tag << 60 | u64::from(owner) << 48 | generation;
            let word = Word::unpack(bits);
            prop_assert_eq!(word.pack(), bits);
            prop_assert_ne!(word.given_back(word.state).pack(), bits);
        }
    }
}
