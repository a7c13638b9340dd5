//! Where the parts of a control segment start: plain arithmetic over its sizes.

use super::layout::{Bucket, Control, Header, Participant, ROWS_HEADER_BYTES, Slot};

/// The sizes a segment is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) capacity: u32,
    pub(crate) participants: u32,
    pub(crate) buckets: u32,
    pub(crate) batch_tokens: u32,
    pub(crate) max_documents: u32,
    pub(crate) total_batches: u64,
}

/// Byte offsets from the segment's start, each a multiple of 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) sizes: Sizes,
    pub(crate) control: usize,
    pub(crate) participants: usize,
    pub(crate) buckets: usize,
    pub(crate) slots: usize,
    pub(crate) ledger: usize,
    pub(crate) rows: usize,
    /// Bytes from one slot's host part to the next.
    pub(crate) rows_stride: usize,
    pub(crate) total: usize,
}

/// Lays parts one after the other; `None` once a sum does not fit.
struct Cursor(Option<usize>);

impl Cursor {
    fn take(&mut self, count: usize, each: usize) -> usize {
        let start = self.0.unwrap_or(0);
        let end = count.checked_mul(each).and_then(|bytes| start.checked_add(bytes));
        self.0 = end.and_then(|end| end.checked_next_multiple_of(128));
        start
    }
}

impl Geometry {
    /// `None` if the sizes do not fit an address space.
    pub(crate) fn new(sizes: Sizes) -> Option<Geometry> {
        let mut cursor = Cursor(Some(0));
        cursor.take(1, size_of::<Header>());
        let control = cursor.take(1, size_of::<Control>());
        let participants = cursor.take(sizes.participants as usize, size_of::<Participant>());
        let buckets = cursor.take(sizes.buckets as usize, size_of::<Bucket>());
        let slots = cursor.take(sizes.capacity as usize, size_of::<Slot>());
        let ledger = cursor.take(usize::try_from(sizes.total_batches).ok()?, size_of::<u64>());
        let rows_stride = rows_bytes(&sizes)?.checked_next_multiple_of(128)?;
        let rows = cursor.take(sizes.capacity as usize, rows_stride);
        let total = cursor.0.filter(|total| *total <= isize::MAX as usize)?;
        Some(Geometry { sizes, control, participants, buckets, slots, ledger, rows, rows_stride, total })
    }
}

/// A slot's host part: the encoded header, then token ids, loss mask, document offsets and row ids.
fn rows_bytes(sizes: &Sizes) -> Option<usize> {
    let (tokens, documents) = (sizes.batch_tokens as usize, sizes.max_documents as usize);
    let token_bytes = tokens.checked_mul(4 + 1)?;
    let document_bytes = documents.checked_mul(4 + 8)?.checked_add(4)?;
    token_bytes.checked_add(document_bytes)?.checked_add(ROWS_HEADER_BYTES)
}
