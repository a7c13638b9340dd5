//! TensorBoard's event file: protocol buffers in length-prefixed records, each part with its masked CRC-32C.
//!
//! Formats: `tensorboard/compat/proto/{event,summary}.proto` and `summary/writer/record_writer.py` of TensorBoard.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use prost::{Message, Oneof};

/// The version of events that may be taken back by a later start.
const FILE_VERSION: &str = "brain.Event:2";

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub(super) what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(super) value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(string, tag = "1")]
    pub(super) tag: String,
    /// One of several kinds of value there, so a zero is written too.
    #[prost(float, optional, tag = "2")]
    pub(super) simple_value: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionLog {
    /// 1: a start.
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}

impl SessionLog {
    /// What had this event's step or a later one no longer counts.
    pub(super) const START: SessionLog = SessionLog { status: 1 };
}

/// An event file that is written to.
pub(super) struct EventFile(File);

impl EventFile {
    /// Makes the file and its folder.
    ///
    /// # Errors
    /// The file system says no, or there is a file of that name.
    pub(super) fn create(path: &Path, wall_time: f64) -> io::Result<EventFile> {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let mut file = EventFile(File::create_new(path)?);
        file.write(&Event { wall_time, step: 0, what: Some(What::FileVersion(FILE_VERSION.into())) })?;
        Ok(file)
    }

    /// Appends an event by one write, so that a reader beside sees whole ones.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&mut self, event: &Event) -> io::Result<()> {
        self.0.write_all(&record(&event.encode_to_vec()))
    }
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length, &masked_crc(&length).to_le_bytes()[..], data, &masked_crc(data).to_le_bytes()].concat()
}

/// Masked, so that a checksum of data that holds checksums is none of them.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// All events of a file, checksums checked.
    pub(in super::super) fn read(path: &Path) -> Vec<Event> {
        let bytes = fs::read(path).unwrap();
        let mut rest = bytes.as_slice();
        let mut events = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(rest[8..12], masked_crc(&rest[..8]).to_le_bytes());
            let data = &rest[12..12 + length];
            assert_eq!(rest[12 + length..16 + length], masked_crc(data).to_le_bytes());
            events.push(Event::decode(data).unwrap());
            rest = &rest[16 + length..];
        }
        events
    }

    /// Bytes of TensorBoard 2.x's own `RecordWriter` and `event_pb2`.
    #[test]
    fn records_are_those_of_tensorboards_own_writer() {
        let version = Event { wall_time: 1.5, step: 0, what: Some(What::FileVersion(FILE_VERSION.into())) };
        assert_eq!(hex(&record(&version.encode_to_vec())), GOLDEN[0]);
        let value = Value { tag: "train/loss".into(), simple_value: Some(0.0) };
        let what = What::Summary(Summary { value: vec![value] });
        assert_eq!(hex(&record(&Event { wall_time: 2.5, step: 300, what: Some(what) }.encode_to_vec())), GOLDEN[1]);
        let start = Event { wall_time: 3.5, step: 7, what: Some(What::SessionLog(SessionLog::START)) };
        assert_eq!(hex(&record(&start.encode_to_vec())), GOLDEN[2]);
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    const GOLDEN: [&str; 3] = [
        "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c",
        "2100000000000000017becf609000000000000044010ac022a130a110a0a747261696e2f6c6f73731500000000acfb1bde",
        "0f000000000000006d532b09090000000000000c4010073a0208018c2b37c8",
    ];
}
