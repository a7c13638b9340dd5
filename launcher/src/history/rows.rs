//! `rows.json`: what became of the data's rows, the dropped ones by reason.

use std::path::Path;

use data::store::{Accounting, Dropped};
use serde::{Deserialize, Serialize};

use crate::report::{SummaryError, write_json};

/// The file's name in a run folder.
pub(crate) const ROWS_FILE: &str = "rows.json";

/// Rows named per reason.
const EXAMPLES: usize = 5;

/// What became of every row: kept, held out and dropped ones are all that were read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rows {
    pub(crate) rows_read: u64,
    pub(crate) rows_kept: u64,
    pub(crate) rows_held_out: u64,
    /// Kept rows that were cut to `data.max_length`.
    pub(crate) truncated: u64,
    pub(crate) tokens: u64,
    pub(crate) supervised_tokens: u64,
    pub(crate) supervised_tokens_lost: u64,
    /// In the order of their first row.
    pub(crate) dropped: Vec<DroppedRows>,
}

/// Rows dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DroppedRows {
    pub(crate) reason: String,
    pub(crate) rows: u64,
    /// The first of them, as `file:line: reason in full`.
    pub(crate) examples: Vec<String>,
}

impl Rows {
    /// Sums the accounting up.
    pub(crate) fn of(accounting: &Accounting) -> Rows {
        let mut dropped: Vec<DroppedRows> = Vec::new();
        for row in &accounting.dropped {
            match dropped.iter_mut().find(|known| known.reason == row.kind()) {
                Some(known) => known.count(row),
                None => {
                    let mut new = DroppedRows { reason: row.kind().to_owned(), ..DroppedRows::default() };
                    new.count(row);
                    dropped.push(new);
                }
            }
        }
        Rows {
            rows_read: accounting.rows_read,
            rows_kept: accounting.rows_kept,
            rows_held_out: accounting.rows_held_out,
            truncated: accounting.truncated,
            tokens: accounting.tokens,
            supervised_tokens: accounting.supervised_tokens,
            supervised_tokens_lost: accounting.supervised_tokens_lost,
            dropped,
        }
    }

    /// Writes `rows.json`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, run_dir: &Path) -> Result<(), SummaryError> {
        write_json(run_dir.join(ROWS_FILE), self)
    }
}

impl DroppedRows {
    fn count(&mut self, row: &Dropped) {
        self.rows += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(format!("{}:{}: {}", row.file.display(), row.line, row.reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_rows_are_counted_by_reason_and_the_first_ones_named() {
        let row = |line, reason: &str| Dropped { file: "a.jsonl".into(), line, reason: reason.into() };
        let mut dropped: Vec<_> = (1..=7).map(|line| row(line, &format!("not JSON: column {line}"))).collect();
        dropped.insert(1, row(90, "no answer"));
        let rows = Rows::of(&Accounting { rows_read: 10, rows_kept: 2, dropped, ..Accounting::default() });
        let counts: Vec<_> = rows.dropped.iter().map(|known| (known.reason.as_str(), known.rows)).collect();
        assert_eq!(counts, [("not JSON", 7), ("no answer", 1)]);
        assert_eq!((rows.dropped[0].examples.len(), rows.dropped[1].examples.len()), (EXAMPLES, 1));
        assert_eq!(rows.dropped[1].examples, ["a.jsonl:90: no answer"]);
        let folder = tempfile::tempdir().unwrap();
        rows.write(folder.path()).unwrap();
        let text = std::fs::read_to_string(folder.path().join(ROWS_FILE)).unwrap();
        assert_eq!(serde_json::from_str::<Rows>(&text).unwrap(), rows);
    }
}
