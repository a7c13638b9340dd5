//! Golden masks for the shapes of eight published chat templates: the same chats through each, what is supervised decoded
//! back to text.

use std::fs;
use std::path::Path;

use data::chats::{Conversation, Record};
use data::tokenizer::{ChatOptions, ChatTokenizer};

use crate::folder;

/// Name in tests/shapes, and variables.
const SHAPES: [(&str, &str); 9] = [
    ("chatml", "{}"),
    ("llama3", "{}"),
    ("qwen3", "{}"),
    ("qwen3", r#"{"enable_thinking": false}"#),
    ("mistral", "{}"),
    ("gemma", "{}"),
    ("phi", "{}"),
    ("generation", "{}"),
    ("rewriting", "{}"),
];

/// What is supervised of every chat under one template, or why nothing is.
fn masks(template: &str, variables: &str) -> String {
    let shapes = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shapes");
    let options = ChatOptions {
        template_path: Some(shapes.join(format!("{template}.jinja"))),
        template_variables: serde_json::from_str(variables).unwrap(),
        ..ChatOptions::default()
    };
    let tokenizer = ChatTokenizer::load(folder::folder(folder::CHATML).path(), options).unwrap();
    let chats = fs::read_to_string(shapes.join("chats.jsonl")).unwrap();
    let mut out = format!("# {template} {variables}\n");
    for line in chats.lines() {
        let name = serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].as_str().unwrap().to_owned();
        let chat = Conversation::parse(line.as_bytes()).unwrap();
        out += &format!("{name}:\n");
        match tokenizer.token_row(Record::Chat(chat)) {
            Err(fault) => out += &format!("  - {fault}\n"),
            Ok(row) => {
                let both: Vec<(u32, u8)> = row.token_ids.into_iter().zip(row.loss_mask).collect();
                for stretch in both.chunk_by(|left, right| left.1 == right.1).filter(|stretch| stretch[0].1 == 1) {
                    let ids: Vec<u32> = stretch.iter().map(|(id, _)| *id).collect();
                    out += &format!("  {:?}\n", tokenizer.decode(&ids));
                }
            }
        }
    }
    out
}

#[test]
fn masks_are_the_golden_ones() {
    let found: String = SHAPES.map(|(template, variables)| masks(template, variables)).join("\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shapes/expected.txt");
    let expected = fs::read_to_string(path).unwrap();
    for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {}", number + 1);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}
