//! Token ids and masks as transformers gives them; tests/golden/make_golden.py made the files.

use std::fs;
use std::path::{Path, PathBuf};

use data::chats::{FileRows, Record};
use data::tokenizer::{ChatOptions, ChatTokenizer};
use sha2::{Digest, Sha256};

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Compares each conversation of the shared file, where it is there.
fn compare(dir: &Path, template: Option<&str>, golden: &str, with_mask: bool) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let chats = root.join("../shared/data/sharegpt_dummy_conversations.json");
    if !chats.exists() || !dir.join("tokenizer.json").exists() {
        return;
    }
    let options = ChatOptions { template_path: template.map(here), ..ChatOptions::default() };
    let tokenizer = ChatTokenizer::load(dir, options).unwrap();
    let expected = fs::read_to_string(here(golden)).unwrap();
    let rows = FileRows::open(&chats).unwrap().map(Result::unwrap);
    let mut compared = 0;
    for (raw, expected) in rows.zip(expected.lines()) {
        let row = tokenizer.token_row(Record::parse(&raw.bytes).unwrap()).unwrap();
        let mut hash = Sha256::new();
        row.token_ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        hash.update(if with_mask { &row.loss_mask[..] } else { &[] });
        let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(format!("{} {hash}", row.token_ids.len()), expected, "line {}", raw.line);
        compared += 1;
    }
    assert_eq!(compared, 500);
}

#[test]
fn smollm2_gets_transformers_ids() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    compare(&root.join("examples/smollm2-135m/target"), None, "golden/smollm2.txt", false);
}

#[test]
fn a_qwen_style_tokenizer_gets_transformers_ids() {
    compare(&here("golden/qwen"), Some("shapes/qwen3.jinja"), "golden/qwen3.txt", false);
}

#[test]
fn generation_tags_give_transformers_masks() {
    compare(&here("golden/qwen"), Some("shapes/generation.jinja"), "golden/generation.txt", true);
}
