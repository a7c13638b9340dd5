//! `metrics.jsonl`: training's numbers, step by step.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

/// One line; what a line does not have, or has as no number, is none.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct StepRecord {
    pub(crate) step: u64,
    pub(crate) loss: Option<f64>,
    pub(crate) accuracy: Option<f64>,
    /// Of slots 1 to block_size - 1.
    pub(crate) slot_accuracy: Vec<Option<f64>>,
    pub(crate) accepted_length: Option<f64>,
    pub(crate) expected_accepted: Option<f64>,
    pub(crate) learning_rate: Option<f64>,
    pub(crate) grad_norm: Option<f64>,
    pub(crate) tokens_per_s: Option<f64>,
}

impl StepRecord {
    /// Reads a line; none of one that was cut off.
    pub(crate) fn parse(line: &str) -> Option<StepRecord> {
        serde_json::from_str(line).ok()
    }
}

/// All steps that count, in ascending order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Steps(pub(crate) Vec<StepRecord>);

impl Steps {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(path: &Path) -> io::Result<Steps> {
        let mut steps = Steps::default();
        for line in BufReader::new(File::open(path)?).split(b'\n') {
            let record = line.map(|line| StepRecord::parse(&String::from_utf8_lossy(&line)))?;
            record.into_iter().for_each(|record| steps.add(record));
        }
        Ok(steps)
    }

    /// A step that comes once more, after a restart, takes back what came after it.
    fn add(&mut self, record: StepRecord) {
        self.0.truncate(self.0.partition_point(|earlier| earlier.step < record.step));
        self.0.push(record);
    }

    /// One number over the steps: `(step, number)`, where there is one.
    pub(crate) fn curve(&self, number: impl Fn(&StepRecord) -> Option<f64>) -> Vec<(f64, f64)> {
        self.0.iter().filter_map(|record| Some((record.step as f64, number(record)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_lines_are_passed_over_and_repeated_steps_count_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines: [&[u8]; 7] = [
            br#"{"step":10,"loss":3.0,"accuracy":0.1}"#,
            br#"{"step":20,"loss":null,"slot_accuracy":[0.5,null]}"#,
            br#"{"step":30,"loss":2.0}"#,
            br#"{"step":20,"loss":2.5,"unknown":[1]}"#,
            b"\xff\xfe",
            br#"{"step":40,"loss":1.0}"#,
            br#"{"step":50,"lo"#,
        ];
        std::fs::write(file.path(), lines.join(&b'\n')).unwrap();
        let steps = Steps::read(file.path()).unwrap();
        assert_eq!(steps.curve(|record| record.loss), [(10.0, 3.0), (20.0, 2.5), (40.0, 1.0)]);
        assert_eq!(steps.curve(|record| record.accuracy), [(10.0, 0.1)]);
        assert!(Steps::read(Path::new("/no/such/file")).is_err());
    }
}
