//! What became of every row.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What became of every row. `rows_kept + dropped.len() == rows_read`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounting {
    /// Rows in the data file.
    pub rows_read: u64,
    /// Rows in the store.
    pub rows_kept: u64,
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
