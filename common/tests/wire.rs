//! Records survive the wire; garbage never panics and never asks for memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bincode::{Decode, Encode};
use common::wire::{self, LIMIT, WireError};
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq, Encode, Decode)]
struct Record {
    number: u64,
    name: String,
    shape: Vec<u32>,
    flag: Option<bool>,
}

fn records() -> impl Strategy<Value = Record> {
    (any::<u64>(), "[a-z]{0,40}", prop::collection::vec(any::<u32>(), 0..40), any::<Option<bool>>())
        .prop_map(|(number, name, shape, flag)| Record { number, name, shape, flag })
}

proptest! {
    #[test]
    fn records_come_back_equal(record in records()) {
        let bytes = wire::encode(&record).unwrap();
        prop_assert!(bytes.len() <= LIMIT);
        prop_assert_eq!(wire::decode::<Record>(&bytes).unwrap(), record);
    }

    #[test]
    fn a_longer_or_shorter_record_is_refused(record in records()) {
        let mut bytes = wire::encode(&record).unwrap();
        bytes.push(0);
        let is_trailing = matches!(wire::decode::<Record>(&bytes), Err(WireError::Trailing { .. }));
        prop_assert!(is_trailing);
        prop_assert!(wire::decode::<Record>(&bytes[..bytes.len() - 2]).is_err());
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = wire::decode::<Record>(&bytes);
    }
}

#[test]
fn too_long_is_refused_both_ways() {
    let long = Record { number: 1, name: "x".repeat(LIMIT), shape: vec![], flag: None };
    assert!(matches!(wire::encode(&long), Err(WireError::Encode(_))));
    let mut bytes = 1u64.to_le_bytes().to_vec();
    bytes.extend((1u64 << 40).to_le_bytes());
    bytes.extend([0; 64]);
    assert!(matches!(wire::decode::<Record>(&bytes), Err(WireError::Decode(_))), "a length of 2^40 allocates nothing");
}
