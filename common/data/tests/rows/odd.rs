//! Odd rows: each is kept or dropped with its line and reason, and none of them ends the pass.

use std::fs;
use std::path::{Path, PathBuf};

use common::config::BadRows;
use data::pass::{Outcome, PassError, PassOptions, each_row};
use data::store::Accounting;
use data::tokenizer::{ChatOptions, ChatTokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::folder::{CHATML, folder, tokenizer};

/// Counts a file's rows; the kept ones' lines.
fn account(text: &[u8], tokenizer: &ChatTokenizer) -> (Accounting, Vec<u64>) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("odd.jsonl");
    fs::write(&path, text).unwrap();
    let files = [path];
    let options =
        PassOptions { data_paths: Vec::new(), max_length: 4096, bad_rows: BadRows::Skip, held_out_share: 0.0 };
    let (mut accounting, mut kept) = (Accounting::default(), Vec::new());
    each_row(&files, &options, tokenizer, &|_| {}, |row| {
        accounting.count(&row, &files);
        kept.extend(matches!(row.outcome, Outcome::Kept(_)).then_some(row.raw.line));
        Ok::<_, PassError>(())
    })
    .unwrap();
    assert_eq!(accounting.rows_kept + accounting.dropped.len() as u64, accounting.rows_read);
    assert_eq!(kept.len() as u64, accounting.rows_kept);
    (accounting, kept)
}

fn chat(messages: &Value) -> String {
    json!({ "id": "same", "messages": messages }).to_string()
}

#[test]
fn every_odd_row_is_kept_or_dropped_with_line_and_reason() {
    let (user, assistant) =
        (json!({"role": "user", "content": "hello"}), json!({"role": "assistant", "content": "yes you"}));
    let long = format!("hello {}", "quick brown fox ".repeat(10 << 16));
    assert!(long.len() > 10_000_000);
    let rows = [
        (chat(&json!([user, user, assistant])), None),
        (
            chat(&json!([user, {"role": "villain", "content": "x"}, assistant])),
            Some("unknown role: 'villain' of message 2"),
        ),
        (
            json!({"messages": [user, assistant], "tools": "[]"}).to_string(),
            Some("bad tools: a string, expected a list"),
        ),
        (
            chat(&json!([{"role": "user", "content": null}, assistant])),
            Some("bad message: number 1 has null as content"),
        ),
        (chat(&json!([user, {"role": "assistant"}])), Some("bad message: number 2 has no content")),
        (json!({"id": 1, "chat": []}).to_string(), Some("no messages: ")),
        (chat(&json!([assistant, user, assistant])), None),
        (chat(&json!([user, {"role": "assistant", "content": long}])), None),
        (chat(&json!([{"role": "user", "content": long}, assistant])), Some("too long: ")),
        (chat(&json!([user, {"role": "assistant", "content": "?"}])).replace('?', "\\ud83d"), Some("not JSON: ")),
        (
            chat(&json!([{"role": "user", "content": [["nested"]]}, assistant])),
            Some("bad message: number 1 holds a list among"),
        ),
        (
            chat(&json!([{"role": "user", "content": [{"type": "image_url"}]}, assistant])),
            Some("bad message: number 1 holds a part of"),
        ),
        (chat(&json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}, assistant])), None),
        (chat(&json!([user, assistant])), None),
        (chat(&json!([user, assistant])), None),
        (r#"{"messages": [{"role": "us"#.to_owned(), Some("not JSON: EOF")),
    ];
    let text: Vec<&str> = rows.iter().map(|(row, _)| row.as_str()).collect();
    let (accounting, kept) = account(text.join("\n").as_bytes(), &tokenizer(CHATML));
    assert_eq!((accounting.rows_read, accounting.truncated), (rows.len() as u64, 1));
    let mut dropped = accounting.dropped.iter();
    for (line, (_, reason)) in (1..).zip(&rows) {
        let Some(reason) = reason else {
            assert!(kept.contains(&line), "line {line}");
            continue;
        };
        let row = dropped.next().unwrap();
        assert!(row.line == line && row.reason.starts_with(reason), "line {line}: {}", row.reason);
    }
}

/// Any JSON value, leaning towards what chats are made of.
fn value() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "user",
        "assistant",
        "tool",
        "system",
        "text",
        "<think>a</think>b",
        "<|im_end|>",
        "",
    ]);
    let leaf = prop_oneof![
        6 => words.prop_map(Value::from),
        1 => any::<String>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let keys = prop::sample::select(vec!["role", "content", "text", "type", "name", "arguments", "function"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((keys, inner), 0..4).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            )),
        ]
    })
}

/// A message that may be right, with any field replaced by anything.
fn message() -> impl Strategy<Value = Value> {
    let role = prop::sample::select(vec!["user", "assistant", "tool", "system"]);
    let field = prop::sample::select(vec!["role", "content", "tool_calls", "reasoning_content", "from"]);
    (role, any::<String>(), prop::option::weighted(0.4, (field, value()))).prop_map(|(role, content, odd)| {
        let mut message = json!({"role": role, "content": content});
        if let Some((field, value)) = odd {
            message[field] = value;
        }
        message
    })
}

fn row() -> impl Strategy<Value = Value> {
    let messages = prop::collection::vec(message(), 0..5).prop_map(Value::from);
    let keys = prop::sample::select(vec!["messages", "conversations", "prompt", "text", "input_ids"]);
    let odd =
        (keys, value(), value()).prop_map(|(key, one, other)| json!({key: one, "response": other, "loss_mask": other}));
    prop_oneof![4 => (messages, value()).prop_map(|(messages, tools)| json!({"messages": messages, "tools": tools})),
        2 => prop::collection::vec(message(), 1..5).prop_map(|messages| json!({"conversations": messages})),
        1 => odd, 1 => value()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_row_ends_the_pass(rows in prop::collection::vec(row(), 1..30), which in 0usize..4) {
        let shape = ["chatml", "qwen3", "mistral", "generation"][which];
        let template_path = Some(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/shapes/{shape}.jinja")));
        let options = ChatOptions { template_path, ..ChatOptions::default() };
        let place = folder(CHATML);
        let tokenizer = ChatTokenizer::load(place.path(), options).unwrap();
        // A file that begins with a list would be one JSON array.
        let text: Vec<String> = [json!({})].iter().chain(&rows).map(Value::to_string).collect();
        let (accounting, _) = account(text.join("\n").as_bytes(), &tokenizer);
        prop_assert_eq!(accounting.rows_read, rows.len() as u64 + 1);
        prop_assert!(accounting.dropped.iter().all(|row| !row.reason.is_empty() && row.file.file_name() == PathBuf::from("odd.jsonl").file_name()));
    }
}
