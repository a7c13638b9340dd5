//! Where the parts of a control segment start: plain arithmetic over its sizes.

use super::{
    Bucket, Control, Event, Header, NUM_EVENTS, NUM_SPANS, NUM_TRACKS, Participant, ROWS_HEADER_BYTES, Slot, Span,
    Tally, TrackRecord,
};

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
    /// [`NUM_TRACKS`] for each participant.
    pub(crate) tracks: usize,
    /// [`NUM_SPANS`] for each track.
    pub(crate) spans: usize,
    pub(crate) buckets: usize,
    pub(crate) tallies: usize,
    pub(crate) events: usize,
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
        let start = self.0;
        let end = start.and_then(|start| start.checked_add(count.checked_mul(each)?));
        self.0 = end.and_then(|end| end.checked_next_multiple_of(128));
        start.unwrap_or(0)
    }
}

impl Geometry {
    /// `None` if the sizes do not fit an address space.
    pub(crate) fn new(sizes: Sizes) -> Option<Geometry> {
        let mut cursor = Cursor(Some(0));
        cursor.take(1, size_of::<Header>());
        let control = cursor.take(1, size_of::<Control>());
        let participants = cursor.take(sizes.participants as usize, size_of::<Participant>());
        let tracks = cursor.take(sizes.participants as usize, NUM_TRACKS * size_of::<TrackRecord>());
        let spans = cursor.take(sizes.participants as usize, NUM_TRACKS * NUM_SPANS * size_of::<Span>());
        let buckets = cursor.take(sizes.buckets as usize, size_of::<Bucket>());
        let tallies = cursor.take(sizes.buckets as usize, size_of::<Tally>());
        let events = cursor.take(NUM_EVENTS, size_of::<Event>());
        let slots = cursor.take(sizes.capacity as usize, size_of::<Slot>());
        let ledger = cursor.take(usize::try_from(sizes.total_batches).ok()?, size_of::<u64>());
        let rows_stride = rows_bytes(&sizes)?.checked_next_multiple_of(128)?;
        let rows = cursor.take(sizes.capacity as usize, rows_stride);
        let total = cursor.0.filter(|total| *total <= isize::MAX as usize)?;
        Some(Geometry {
            sizes,
            control,
            participants,
            tracks,
            spans,
            buckets,
            tallies,
            events,
            slots,
            ledger,
            rows,
            rows_stride,
            total,
        })
    }
}

/// A slot's host part: the encoded header, then token ids, loss mask, document offsets and row ids.
fn rows_bytes(sizes: &Sizes) -> Option<usize> {
    let (tokens, documents) = (sizes.batch_tokens as usize, sizes.max_documents as usize);
    let token_bytes = tokens.checked_mul(4 + 1)?;
    let document_bytes = documents.checked_mul(4 + 8)?.checked_add(4)?;
    token_bytes.checked_add(document_bytes)?.checked_add(ROWS_HEADER_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes() -> impl Strategy<Value = Sizes> {
        let small = (1u32..300, 2u32..=254, 1u32..64, 1u32..100_000, 1u32..5_000, 1u64..100_000);
        let any = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>());
        prop_oneof![small.boxed(), any.boxed()].prop_map(
            |(capacity, participants, buckets, batch_tokens, max_documents, total_batches)| Sizes {
                capacity,
                participants,
                buckets,
                batch_tokens,
                max_documents,
                total_batches,
            },
        )
    }

    proptest! {
        #[test]
        fn parts_are_aligned_and_never_overlap(sizes in sizes()) {
            let Some(made) = Geometry::new(sizes) else { return Ok(()) };
            let parts = [
                (0, size_of::<Header>()),
                (made.control, size_of::<Control>()),
                (made.participants, sizes.participants as usize * size_of::<Participant>()),
                (made.tracks, sizes.participants as usize * NUM_TRACKS * size_of::<TrackRecord>()),
                (made.spans, sizes.participants as usize * NUM_TRACKS * NUM_SPANS * size_of::<Span>()),
                (made.buckets, sizes.buckets as usize * size_of::<Bucket>()),
                (made.tallies, sizes.buckets as usize * size_of::<Tally>()),
                (made.events, NUM_EVENTS * size_of::<Event>()),
                (made.slots, sizes.capacity as usize * size_of::<Slot>()),
                (made.ledger, sizes.total_batches as usize * size_of::<u64>()),
                (made.rows, sizes.capacity as usize * made.rows_stride),
                (made.total, 0),
            ];
            for pair in parts.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:?}", pair);
                prop_assert_eq!(pair[1].0 % 128, 0);
            }
            let (tokens, documents) = (sizes.batch_tokens as usize, sizes.max_documents as usize);
            prop_assert!(ROWS_HEADER_BYTES + tokens * 5 + (documents + 1) * 4 + documents * 8 <= made.rows_stride);
            prop_assert_eq!(made.rows_stride % 128, 0);
        }
    }

    #[test]
    fn the_largest_sizes_are_refused_rather_than_wrapped() {
        let most = u32::MAX;
        let (capacity, participants, buckets) = (most, most, most);
        let sizes =
            Sizes { capacity, participants, buckets, batch_tokens: most, max_documents: most, total_batches: u64::MAX };
        assert_eq!(Geometry::new(sizes), None);
    }
}
