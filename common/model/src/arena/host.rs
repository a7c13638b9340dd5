//! The arena in host shared memory: for CPU machines, and where GPUs cannot reach each other.

#![expect(unsafe_code, reason = "tensors are laid over shared memory")]

use common::ids::SlotIndex;
use common::shm::Segment;
use tch::{Device, Tensor};

use super::{ArenaError, SlotShape};

/// Slots in one shared-memory segment.
pub struct HostArena {
    segment: Segment,
    shape: SlotShape,
}

impl HostArena {
    /// Opens the arena of so many slots that the launcher made.
    ///
    /// # Errors
    /// No such segment, or too small for them.
    pub fn attach(name: &str, shape: SlotShape, slots: u32) -> Result<HostArena, ArenaError> {
        let segment = Segment::attach(name)?;
        let (found, needed) = (segment.len(), slots as usize * shape.bytes());
        if found < needed {
            return Err(ArenaError::Length { name: name.to_owned(), found, needed });
        }
        Ok(HostArena { segment, shape })
    }

    /// Its slots.
    pub(super) fn shape(&self) -> &SlotShape {
        &self.shape
    }

    /// Writes one tap's hidden states [T, H] into its columns of the slot. Call only while holding its write lease.
    pub fn write_tap(&self, slot: SlotIndex, tap: usize, hidden: &Tensor) {
        let (width, tokens) = (self.shape.hidden as i64, hidden.size()[0]);
        let mut columns = self.view(slot, tokens).narrow(1, tap as i64 * width, width);
        columns.copy_(hidden);
    }

    /// A copy of the slot's first `tokens` rows, [T, K*H], on `device`. Call only while holding its read lease.
    pub fn read(&self, slot: SlotIndex, tokens: usize, device: Device) -> Tensor {
        let view = self.view(slot, tokens as i64);
        if device == Device::Cpu { view.copy() } else { view.to_device(device) }
    }

    /// The slot's first `tokens` rows as a tensor over shared memory.
    fn view(&self, slot: SlotIndex, tokens: i64) -> Tensor {
        assert!(tokens as usize <= self.shape.tokens, "{tokens} tokens in a slot of {}", self.shape.tokens);
        let bytes = self.shape.bytes();
        let start = slot.0 as usize * bytes;
        assert!(start + bytes <= self.segment.len(), "slot {slot} lies outside the arena");
        // SAFETY: the slot lies inside the mapping, as just checked.
        let data = unsafe { self.segment.as_ptr().add(start) };
        let size = [tokens, (self.shape.taps * self.shape.hidden) as i64];
        // SAFETY: `data` points to at least the bytes of `size` elements, page-aligned at the slot's multiple; the tensor
        // is dropped before `self` unmaps, as both methods that call this keep it to themselves.
        unsafe { Tensor::from_blob(data.as_ptr(), &size, &[size[1], 1], self.shape.kind(), Device::Cpu) }
    }
}
