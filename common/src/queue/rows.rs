//! The host part of a slot: which tokens a batch holds, checked by a checksum on the way.

use bincode::{Decode, Encode};
use thiserror::Error;

use super::ring::layout::ROWS_HEADER_BYTES;
use crate::ids::BatchId;
use crate::sync::{AtomicU32, Ordering};
use crate::wire;

/// The rows of one packed batch: `documents` rows laid one after the other, `tokens` in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Token ids, `[tokens]`.
    pub token_ids: Vec<u32>,
    /// 1 where the token is supervised, else 0; `[tokens]`.
    pub loss_mask: Vec<u8>,
    /// Where each row starts, and the end; `[documents + 1]`, from 0 to `tokens`, ascending.
    pub document_offsets: Vec<u32>,
    /// The rows' numbers in the token store, `[documents]`.
    pub row_ids: Vec<u64>,
}

/// Rows that do not go into a slot, or came out of it broken.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RowsError {
    /// More than the queue was made for.
    #[error("a batch of {found} {what}: this queue's slots hold 1 to {capacity}")]
    TooMany {
        /// Tokens or rows.
        what: &'static str,
        /// How many.
        found: usize,
        /// How many fit.
        capacity: u32,
    },
    /// The parts do not fit each other.
    #[error("a batch of {tokens} tokens with {mask} mask bytes, {rows} row ids and offsets {offsets:?}")]
    Shape {
        /// Token ids.
        tokens: usize,
        /// Mask bytes.
        mask: usize,
        /// Row ids.
        rows: usize,
        /// Document offsets.
        offsets: Vec<u32>,
    },
    /// The record before the rows does not read.
    #[error("the slot's record does not read")]
    Record(#[from] wire::WireError),
    /// The bytes are not those that were written.
    #[error("the slot's checksum is {found:08x}, its writer stored {expected:08x}: the memory was overwritten")]
    Checksum {
        /// Over what is there.
        found: u32,
        /// What the writer stored.
        expected: u32,
    },
}

/// The record before the rows.
#[derive(Debug, PartialEq, Encode, Decode)]
struct Record {
    batch: u64,
    tokens: u32,
    documents: u32,
}

impl Rows {
    /// Number of tokens.
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// Number of rows.
    pub fn num_documents(&self) -> usize {
        self.row_ids.len()
    }

    pub(super) fn check(&self, batch_tokens: u32, max_documents: u32) -> Result<(), RowsError> {
        let limits = [("tokens", self.num_tokens(), batch_tokens), ("rows", self.num_documents(), max_documents)];
        for (what, found, capacity) in limits {
            if found == 0 || found > capacity as usize {
                return Err(RowsError::TooMany { what, found, capacity });
            }
        }
        let offsets = &self.document_offsets;
        let whole = offsets.first() == Some(&0) && offsets.last().map(|last| *last as usize) == Some(self.num_tokens());
        let ascending = offsets.is_sorted_by(|a, b| a < b) && offsets.len() == self.num_documents() + 1;
        if whole && ascending && self.loss_mask.len() == self.num_tokens() {
            return Ok(());
        }
        let (tokens, mask, rows) = (self.num_tokens(), self.loss_mask.len(), self.num_documents());
        Err(RowsError::Shape { tokens, mask, rows, offsets: offsets.clone() })
    }

    /// Writes record and rows into a slot's host part; gives the record's length and the checksum over all.
    pub(super) fn store(&self, batch: BatchId, words: &[AtomicU32]) -> Result<(u32, u32), RowsError> {
        let (tokens, documents) = (self.num_tokens() as u32, self.num_documents() as u32);
        let record = wire::encode(&Record { batch: batch.0, tokens, documents })?;
        let body = self.to_bytes();
        let (first, rest) = words.split_at(ROWS_HEADER_BYTES / 4);
        store_bytes(first, &record);
        store_bytes(rest, &body);
        Ok((record.len() as u32, checksum(&record, &body)))
    }

    /// Reads back what [`Rows::store`] wrote for that batch.
    pub(super) fn load(batch: BatchId, words: &[AtomicU32], record_len: u32, expected: u32) -> Result<Rows, RowsError> {
        let (first, rest) = words.split_at(ROWS_HEADER_BYTES / 4);
        let header = load_bytes(first, (record_len as usize).min(ROWS_HEADER_BYTES));
        let record: Record = wire::decode(&header)?;
        let (tokens, documents) = (record.tokens as usize, record.documents as usize);
        let len = tokens.saturating_mul(5).saturating_add(documents.saturating_mul(12)).saturating_add(4);
        let body = load_bytes(rest, len.min(rest.len() * 4));
        let found = checksum(&header, &body);
        if found != expected || body.len() != len || record.batch != batch.0 {
            return Err(RowsError::Checksum { found, expected });
        }
        Ok(Rows::from_bytes(&body, tokens, documents))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.num_tokens() * 5 + self.num_documents() * 12 + 4);
        append(&mut bytes, &self.token_ids, u32::to_le_bytes);
        append(&mut bytes, &self.document_offsets, u32::to_le_bytes);
        append(&mut bytes, &self.row_ids, u64::to_le_bytes);
        bytes.extend_from_slice(&self.loss_mask);
        bytes
    }

    fn from_bytes(bytes: &[u8], tokens: usize, documents: usize) -> Rows {
        let (token_ids, rest) = bytes.split_at(tokens * 4);
        let (offsets, rest) = rest.split_at((documents + 1) * 4);
        let (row_ids, loss_mask) = rest.split_at(documents * 8);
        Rows {
            token_ids: numbers(token_ids, u32::from_le_bytes),
            loss_mask: loss_mask.to_vec(),
            document_offsets: numbers(offsets, u32::from_le_bytes),
            row_ids: numbers(row_ids, u64::from_le_bytes),
        }
    }
}

fn append<T: Copy, const N: usize>(bytes: &mut Vec<u8>, numbers: &[T], write: impl Fn(T) -> [u8; N]) {
    let start = bytes.len();
    bytes.resize(start + numbers.len() * N, 0);
    for (place, number) in bytes[start..].as_chunks_mut::<N>().0.iter_mut().zip(numbers) {
        *place = write(*number);
    }
}

fn numbers<T, const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk)).collect()
}

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(body);
    hasher.finalize()
}

/// Copies bytes into a slot's host part, whole words at a time; the last one is zero-padded.
fn store_bytes(words: &[AtomicU32], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<4>();
    let mut padded = [0; 4];
    padded[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&padded);
    for (word, chunk) in words.iter().zip(whole.iter().chain(last)) {
        word.store(u32::from_le_bytes(*chunk), Ordering::Relaxed);
    }
}

/// Copies `len` bytes out of a slot's host part.
fn load_bytes(words: &[AtomicU32], len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.next_multiple_of(4)];
    for (chunk, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *chunk = word.load(Ordering::Relaxed).to_le_bytes();
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKENS: usize = 200;
    const DOCUMENTS: usize = 8;

    fn words() -> Vec<AtomicU32> {
        let bytes = ROWS_HEADER_BYTES + TOKENS * 5 + DOCUMENTS * 12 + 4;
        (0..bytes.div_ceil(4)).map(|_| AtomicU32::new(u32::MAX)).collect()
    }

    fn rows() -> impl Strategy<Value = Rows> {
        let lengths = prop::collection::vec(1u32..=25, 1..=DOCUMENTS);
        (lengths, any::<u32>(), any::<u64>()).prop_map(|(lengths, token, row)| {
            let mut document_offsets = vec![0];
            lengths.iter().for_each(|len| document_offsets.push(document_offsets[document_offsets.len() - 1] + len));
            let tokens: u32 = lengths.iter().sum();
            Rows {
                token_ids: (0..tokens).map(|place| token.wrapping_mul(place)).collect(),
                loss_mask: (0..tokens).map(|place| (token.wrapping_add(place) % 2) as u8).collect(),
                document_offsets,
                row_ids: (0..lengths.len() as u64).map(|place| row.wrapping_add(place)).collect(),
            }
        })
    }

    proptest! {
        #[test]
        fn rows_come_back_equal_and_a_flipped_bit_is_seen(rows in rows(), at: prop::sample::Index, bit in 0u32..32) {
            rows.check(TOKENS as u32, DOCUMENTS as u32).unwrap();
            let words = words();
            let (len, checksum) = rows.store(BatchId(9), &words).unwrap();
            prop_assert_eq!(&Rows::load(BatchId(9), &words, len, checksum).unwrap(), &rows);
            prop_assert!(Rows::load(BatchId(8), &words, len, checksum).is_err(), "another batch's");
            let used = (rows.num_tokens() * 5 + rows.num_documents() * 12 + 4) / 4;
            let place = ROWS_HEADER_BYTES / 4 + at.index(used);
            words[place].fetch_xor(1 << bit, Ordering::Relaxed);
            let is_seen = matches!(Rows::load(BatchId(9), &words, len, checksum), Err(RowsError::Checksum { .. }));
            prop_assert!(is_seen);
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u32>(), 64..400), len in any::<u32>()) {
            let words: Vec<AtomicU32> = bytes.into_iter().map(AtomicU32::new).collect();
            prop_assert!(Rows::load(BatchId(1), &words, len, 0).is_err());
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let good = Rows {
            token_ids: vec![1, 2, 3],
            loss_mask: vec![0, 1, 1],
            document_offsets: vec![0, 2, 3],
            row_ids: vec![7, 8],
        };
        assert!(good.check(3, 2).is_ok());
        assert!(matches!(good.check(2, 2), Err(RowsError::TooMany { what: "tokens", found: 3, capacity: 2 })));
        assert!(matches!(good.check(3, 1), Err(RowsError::TooMany { what: "rows", .. })));
        assert!(matches!(Rows::default().check(3, 1), Err(RowsError::TooMany { found: 0, .. })));
        for offsets in [vec![0, 3, 3], vec![1, 2, 3], vec![0, 2, 2], vec![0, 3]] {
            let bad = Rows { document_offsets: offsets, ..good.clone() };
            assert!(matches!(bad.check(3, 2), Err(RowsError::Shape { .. })), "{:?}", bad.document_offsets);
        }
        assert!(Rows { loss_mask: vec![1], ..good.clone() }.check(3, 2).is_err());
    }
}
