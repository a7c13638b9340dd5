//! Every kind of input: layouts, compression, folders, rows of text and ids, policies.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use common::config::{BadRows, SupervisedTurns};
use data::chats::files;
use data::mask::Supervision;
use data::pass::{Outcome, PassError, PassOptions, PassedRow, each_row};
use data::tokenizer::{ChatOptions, ChatTokenizer};

use crate::folder::{CHATML, THINKING, folder, tokenizer};

const CHAT: &str = r#"{"messages":[{"role":"user","content":"hello"},{"role":"assistant","content":"yes"}]}"#;

fn options(paths: &[PathBuf]) -> PassOptions {
    PassOptions { data_paths: paths.to_vec(), max_length: 1000, bad_rows: BadRows::Skip, held_out_share: 0.0 }
}

fn pass(options: &PassOptions, tokenizer: &ChatTokenizer) -> Result<Vec<PassedRow>, PassError> {
    let mut rows = Vec::new();
    each_row(&files(&options.data_paths).unwrap(), options, tokenizer, &|_| {}, |row| {
        rows.push(row);
        Ok::<_, PassError>(())
    })?;
    Ok(rows)
}

/// What is supervised of a row, or why it is not kept.
fn learnt(row: &PassedRow, tokenizer: &ChatTokenizer) -> String {
    match &row.outcome {
        Outcome::Dropped(fault) => fault.to_string(),
        Outcome::HeldOut => "held out".to_owned(),
        Outcome::Kept(cut) => {
            let both = cut.row.token_ids.iter().zip(&cut.row.loss_mask);
            tokenizer.decode(&both.filter(|(_, bit)| **bit == 1).map(|(id, _)| *id).collect::<Vec<u32>>())
        }
    }
}

fn learnt_of(text: &str, options: ChatOptions) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("rows.jsonl");
    fs::write(&path, text).unwrap();
    let tokenizer = ChatTokenizer::load(folder(THINKING).path(), options).unwrap();
    let rows = pass(&self::options(&[path]), &tokenizer).unwrap();
    rows.iter().map(|row| learnt(row, &tokenizer)).collect()
}

#[test]
fn compressed_files_and_parquet_give_the_same_rows() {
    let (place, tokenizer) = (tempfile::tempdir().unwrap(), tokenizer(CHATML));
    let text = format!("{CHAT}\n\n{}", CHAT.replace("yes", "no"));
    let path = |name: &str| place.path().join(name);
    fs::write(path("a.jsonl"), &text).unwrap();
    let mut gzip =
        flate2::write::GzEncoder::new(File::create(path("b.jsonl.gz")).unwrap(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap();
    fs::write(path("c.json.zst"), zstd::encode_all(format!("[{CHAT},\n{{}}]").as_bytes(), 3).unwrap()).unwrap();
    fs::write(path("README.md"), "no data").unwrap();
    let rows = pass(&options(&[place.path().into()]), &tokenizer).unwrap();
    let seen: Vec<_> = rows.iter().map(|row| (row.file, row.raw.line, learnt(row, &tokenizer))).collect();
    let end = |text: &str| format!("{text}<|im_end|>");
    assert_eq!(seen[..4], [(0, 1, end("yes")), (0, 3, end("no")), (1, 1, end("yes")), (1, 3, end("no"))]);
    assert_eq!((seen[4].clone(), seen[5].1, seen.len()), ((2, 1, end("yes")), 2, 6));

    for codec in ["none", "snappy", "gzip", "zstd"] {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/chats-{codec}.parquet"));
        let rows = pass(&options(&[golden]), &tokenizer).unwrap();
        let seen: Vec<_> = rows.iter().map(|row| (row.raw.line, learnt(row, &tokenizer))).collect();
        let null = "no messages: `messages` is null, expected a list".to_owned();
        assert_eq!(seen, [(1, end("yes é🦊")), (2, null), (3, end("no\n"))], "{codec}");
    }
}

#[test]
fn what_is_no_data_is_named() {
    let (place, tokenizer) = (tempfile::tempdir().unwrap(), tokenizer(CHATML));
    let none = files(&[place.path().into()]).unwrap_err();
    assert!(none.to_string().contains("no .jsonl, .json, .ndjson or .parquet file") && !none.hint().is_empty());
    let broken = |name: &str, bytes: &[u8]| {
        let path = place.path().join(name);
        fs::write(&path, bytes).unwrap();
        let error = pass(&options(std::slice::from_ref(&path)), &tokenizer).unwrap_err();
        assert!(!error.hint().is_empty() && error.to_string().contains(name), "{error}");
    };
    broken("cut.gz", b"\x1F\x8B\x08\0\0\0\0\0\0\x03\x4B");
    broken("cut.zst", b"\x28\xB5\x2F\xFD\x04");
    broken("x.parquet", b"PAR1 nothing");
}

#[test]
fn bad_lines_stop_where_they_are_told_to() {
    let (place, tokenizer) = (tempfile::tempdir().unwrap(), tokenizer(CHATML));
    let path = place.path().join("rows.jsonl");
    for (bad, reason) in [
        (&b"{\"messages\": [{"[..], "rows.jsonl:3: not JSON: EOF"),
        (b"\"\xFF\"", "rows.jsonl:3: not UTF-8: the row's byte 2"),
    ] {
        fs::write(&path, [CHAT.as_bytes(), b"\n{}\n", bad, b"\n", CHAT.as_bytes()].concat()).unwrap();
        let skip = options(std::slice::from_ref(&path));
        assert_eq!(pass(&skip, &tokenizer).unwrap().len(), 4);
        let error = pass(&PassOptions { bad_rows: BadRows::Stop, ..skip }, &tokenizer).unwrap_err();
        assert!(error.to_string().contains(reason) && error.hint().contains("data.bad_rows"), "{error}");
    }
}

#[test]
fn rows_of_text_and_of_ids_are_learnt_as_they_say() {
    let text = "{\"text\":\"<|im_start|>assistant\\nhello<|im_end|>\\nfox<|im_start|>assistant\\nyes<|im_end|>\"}\n\
                {\"input_ids\":[40,41,42],\"loss_mask\":[0,1,1]}\n{\"input_ids\":[40,99999],\"loss_mask\":[1,1]}\n\
                {\"prompt\":\"a\",\"response\":\"no\"}";
    let markers = Some(["<|im_start|>assistant\n".to_owned(), "<|im_end|>".to_owned()]);
    let seen = learnt_of(text, ChatOptions { text_markers: markers, ..ChatOptions::default() });
    let ids = tokenizer(THINKING).decode(&[41, 42]);
    let expected =
        ["hello<|im_end|>yes<|im_end|>", &ids, "bad field: `input_ids` has 99999, which is no token", "no<|im_end|>"];
    assert_eq!(seen, expected);
}

#[test]
fn turns_and_reasoning_are_supervised_as_asked() {
    let text = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"no"},{"role":"user","content":"b"},{"role":"assistant","content":"<think>\nfox\n</think>\n\nyes"}]}"#;
    let learn = |turns, answers_only| {
        let supervision = Supervision { turns, answers_only };
        learnt_of(text, ChatOptions { supervision, ..ChatOptions::default() }).remove(0)
    };
    let thought = "<think>\nfox\n</think>\n\n";
    assert_eq!(learn(SupervisedTurns::All, false), format!("no<|im_end|>{thought}yes<|im_end|>"));
    assert_eq!(learn(SupervisedTurns::Last, false), format!("{thought}yes<|im_end|>"));
    assert_eq!(learn(SupervisedTurns::All, true), "no<|im_end|>yes<|im_end|>");
    assert_eq!(learn(SupervisedTurns::Last, true), "yes<|im_end|>");
}

#[test]
fn the_held_out_rows_are_the_same_ones_whatever_the_order() {
    let (place, tokenizer) = (tempfile::tempdir().unwrap(), tokenizer(CHATML));
    let mut rows: Vec<String> = (0..400).map(|number| CHAT.replace("hello", &number.to_string())).collect();
    let held_out = |rows: &[String]| {
        let path = place.path().join("rows.jsonl");
        fs::write(&path, rows.join("\n")).unwrap();
        let passed = pass(&PassOptions { held_out_share: 0.25, ..options(&[path]) }, &tokenizer).unwrap();
        let out = passed.into_iter().filter(|row| row.outcome == Outcome::HeldOut);
        out.map(|row| row.raw.bytes).collect::<std::collections::BTreeSet<_>>()
    };
    let before = held_out(&rows);
    rows.reverse();
    rows.extend_from_within(..50);
    assert_eq!(held_out(&rows), before);
    assert!((70..130).contains(&before.len()), "{}", before.len());
}
