//! What became of every row of the data, in a few lines.

use common::config::Config;
use data::store::{Accounting, Dropped};

/// Lines named per reason.
const EXAMPLES: usize = 5;

/// Read, kept, cut, dropped; then a line per reason.
pub(crate) fn lines(accounting: &Accounting, config: &Config) -> Vec<String> {
    let Accounting {
        rows_read,
        rows_kept,
        rows_held_out,
        truncated,
        supervised_tokens,
        supervised_tokens_lost,
        dropped,
        ..
    } = accounting;
    let mut first = format!(
        "data: {}: {rows_read} rows, {rows_kept} kept with {supervised_tokens} tokens to learn, {} dropped",
        config.data.train_data_path,
        dropped.len()
    );
    if *rows_held_out > 0 {
        first += &format!(", {rows_held_out} held out");
    }
    if *truncated > 0 {
        let max_length = config.data.max_length;
        first += &format!(", {truncated} cut to {max_length} tokens ({supervised_tokens_lost} tokens to learn lost)");
    }
    let reasons = by_kind(dropped).into_iter().map(|(kind, rows)| {
        let shown: Vec<_> = rows.iter().take(EXAMPLES).map(|row| row.line.to_string()).collect();
        let more = if rows.len() > EXAMPLES { ", ..." } else { "" };
        format!("data: {} dropped, {kind}: line {}{more}", rows.len(), shown.join(", "))
    });
    [first].into_iter().chain(reasons).collect()
}

/// Reasons in the order of their first row.
fn by_kind(dropped: &[Dropped]) -> Vec<(&str, Vec<&Dropped>)> {
    let mut kinds: Vec<(&str, Vec<&Dropped>)> = Vec::new();
    for row in dropped {
        let kind = row.kind();
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, rows)) => rows.push(row),
            None => kinds.push((kind, vec![row])),
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_comes_with_its_first_lines() {
        let row = |line, reason: &str| Dropped { file: "chats.jsonl".into(), line, reason: reason.into() };
        let mut dropped: Vec<_> = (1..=6).map(|line| row(line, &format!("no JSON: column {line}"))).collect();
        dropped.push(row(9, "no answer"));
        let accounting = Accounting {
            rows_read: 17,
            rows_kept: 9,
            rows_held_out: 1,
            truncated: 2,
            tokens: 100,
            supervised_tokens: 80,
            supervised_tokens_lost: 6,
            dropped,
        };
        let config = crate::plan::tests::config(&["data.train_data_path=chats.jsonl", "data.max_length=32"]);
        assert_eq!(
            lines(&accounting, &config),
            [
                "data: chats.jsonl: 17 rows, 9 kept with 80 tokens to learn, 7 dropped, 1 held out, 2 cut to 32 tokens (6 tokens to learn lost)",
                "data: 6 dropped, no JSON: line 1, 2, 3, 4, 5, ...",
                "data: 1 dropped, no answer: line 9",
            ]
        );
    }
}
