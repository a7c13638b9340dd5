//! What became of every row.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::pass::{Outcome, PassedRow};

/// What became of every row. `rows_kept + rows_held_out + dropped.len() == rows_read`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounting {
    /// Rows in the data files.
    pub rows_read: u64,
    /// Rows in the store.
    pub rows_kept: u64,
    /// Rows kept out of training.
    pub rows_held_out: u64,
    /// Kept rows that were cut to `max_length`.
    pub truncated: u64,
    /// Tokens in the store.
    pub tokens: u64,
    /// Supervised tokens in the store.
    pub supervised_tokens: u64,
    /// Supervised tokens that the cuts took away from kept rows.
    pub supervised_tokens_lost: u64,
    /// Rows that were not kept.
    pub dropped: Vec<Dropped>,
}

impl Accounting {
    /// Counts a row of `files`.
    pub fn count(&mut self, row: &PassedRow, files: &[PathBuf]) {
        self.rows_read += 1;
        match &row.outcome {
            Outcome::HeldOut => self.rows_held_out += 1,
            Outcome::Dropped(fault) => {
                let file = files[row.file].clone();
                self.dropped.push(Dropped { file, line: row.raw.line, reason: fault.to_string() });
            }
            Outcome::Kept(cut) => {
                self.rows_kept += 1;
                self.tokens += cut.row.token_ids.len() as u64;
                self.truncated += u64::from(cut.full_length > cut.row.token_ids.len());
                self.supervised_tokens += cut.row.loss_mask.iter().map(|&bit| u64::from(bit)).sum::<u64>();
                self.supervised_tokens_lost += cut.supervised_lost;
            }
        }
    }
}

/// A row that was not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Data file.
    pub file: PathBuf,
    /// Line where the row starts, from 1.
    pub line: u64,
    /// Why; the words before the first colon name the kind.
    pub reason: String,
}

impl Dropped {
    /// The reason without its details.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.reason.split(':').next().unwrap_or_default()
    }
}

/// The most common kinds of reason, each with how often and where first: `not JSON (12, first file.jsonl:7), ...`.
#[must_use]
pub fn common_reasons(dropped: &[Dropped], kinds: usize) -> String {
    let mut counts: HashMap<&str, (usize, &Dropped)> = HashMap::new();
    for row in dropped {
        counts.entry(row.kind()).or_insert((0, row)).0 += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, (count, first))| (std::cmp::Reverse(*count), first.line));
    let texts = counts
        .iter()
        .take(kinds)
        .map(|(kind, (count, first))| format!("{kind} ({count}, first {}:{})", first.file.display(), first.line));
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_by_kind() {
        let row = |line, reason: &str| Dropped { file: "f".into(), line, reason: reason.to_owned() };
        let dropped = [row(1, "bad tools: x"), row(4, "not JSON: a"), row(9, "not JSON: b"), row(7, "unknown role: q")];
        assert_eq!(common_reasons(&dropped, 2), "not JSON (2, first f:4), bad tools (1, first f:1)");
    }
}
