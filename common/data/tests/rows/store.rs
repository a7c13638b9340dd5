//! Stores: the same after opening as after building, rebuilt when an input changes, honest about what is lost.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use common::config::BadRows;
use data::chats::{Message, Record};
use data::pass::{PassOptions, Progress};
use data::row::tokenize;
use data::store::{Accounting, StoreError, StoreOptions, TokenStore};
use data::tokenizer::ChatTokenizer;
use proptest::prelude::*;

use crate::folder::{CHATML, INST, tokenizer};

const GOOD: &str = r#"{"messages":[{"role":"user","content":"hello"},{"role":"assistant","content":"yes you"}]}"#;
const LONG: &str = r#"{"conversations":[{"from":"human","value":"hello"},{"from":"gpt","value":"yes no yes no yes no yes no yes no yes no yes no yes no yes no yes no yes no yes no"}]}"#;

struct Case {
    folder: tempfile::TempDir,
    tokenizer: ChatTokenizer,
}

impl Case {
    fn new() -> Case {
        Case { folder: tempfile::tempdir().unwrap(), tokenizer: tokenizer(CHATML) }
    }

    fn options(&self, text: &str) -> StoreOptions {
        let path = self.folder.path().join("chats.jsonl");
        fs::write(&path, text).unwrap();
        let bad_rows = BadRows::Skip;
        let pass = PassOptions { data_paths: vec![path], max_length: 30, bad_rows, held_out_share: 0.0 };
        StoreOptions { pass, cache_dir: self.folder.path().join("cache/store"), max_dropped: 1.0 }
    }

    fn open(&self, options: &StoreOptions) -> Result<(TokenStore, Accounting), StoreError> {
        TokenStore::open_or_build(options, &self.tokenizer, &|_| {})
    }

    /// Whether opening had to build.
    fn builds(&self, options: &StoreOptions) -> bool {
        let seen = Mutex::new(Vec::<Progress>::new());
        TokenStore::open_or_build(options, &self.tokenizer, &|progress| seen.lock().unwrap().push(progress)).unwrap();
        !seen.into_inner().unwrap().is_empty()
    }

    fn error(&self, text: &str) -> String {
        let Err(error) = self.open(&self.options(text)) else { panic!("accepted") };
        assert!(!error.hint().is_empty());
        error.to_string()
    }
}

fn stores(cache_dir: &Path) -> usize {
    fs::read_dir(cache_dir).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
}

#[test]
fn every_row_is_kept_or_counted_with_line_and_reason() {
    let case = Case::new();
    let odd = [
        GOOD,
        "",
        r#"{"messages":[{"role":"user","content":"hello"}]}"#,
        r#"{"messages":[{"role":"villain","content":"hello"}]}"#,
        r#"{"messages":"hello"}"#,
        r#"{"messages":[{"role":"user","conte"#,
        LONG,
        r#"{"messages":[{"role":"user","content":null},{"role":"assistant","content":"a"}]}"#,
        r#"{"messages":[{"role":"user","content":"\ud83d"}]}"#,
        "nonsense",
    ];
    let options = case.options(&odd.join("\r\n"));
    let (store, accounting) = case.open(&options).unwrap();
    assert_eq!((accounting.rows_read, accounting.rows_kept, accounting.truncated), (9, 2, 1));
    assert_eq!(accounting.dropped.iter().map(|row| row.line).collect::<Vec<_>>(), [3, 4, 5, 6, 8, 9, 10]);
    let kinds = ["no assistant turn", "unknown role", "no messages", "not JSON", "bad message", "not JSON", "not JSON"];
    assert_eq!(accounting.dropped.iter().map(|row| row.kind()).collect::<Vec<_>>(), kinds);
    assert!(accounting.dropped.iter().all(|row| row.file == options.pass.data_paths[0]));
    assert_eq!((store.len(), store.line(0), store.line(1), store.row_len(1)), (2, 1, 7, 30));

    let long = tokenize(Record::parse(LONG.as_bytes()).unwrap(), &case.tokenizer, 30).unwrap();
    let row = store.row(1);
    assert_eq!((row.token_ids, row.loss_mask), (&long.row.token_ids[..], &long.row.loss_mask[..]));
    let supervised = store.supervised_tokens(0) + store.supervised_tokens(1);
    assert_eq!(
        (accounting.supervised_tokens, accounting.supervised_tokens_lost),
        (supervised as u64, long.supervised_lost)
    );
    assert_eq!(accounting.tokens as usize, store.row_len(0) + store.row_len(1));
    let (again, reopened) = case.open(&options).unwrap();
    assert_eq!((reopened, again.row(0), again.row(1)), (accounting, store.row(0), store.row(1)));
}

#[test]
fn a_store_is_built_once_and_again_when_an_input_changes() {
    let mut case = Case::new();
    let options = case.options(GOOD);
    assert!(case.builds(&options) && !case.builds(&options));
    let mut renamed = StoreOptions { max_dropped: 0.3, ..options.clone() };
    renamed.pass.data_paths = vec![case.folder.path().join("other")];
    fs::copy(&options.pass.data_paths[0], &renamed.pass.data_paths[0]).unwrap();
    assert!(!case.builds(&renamed), "the name of the data file is not the data");
    let mut shorter = options.clone();
    shorter.pass.max_length = 29;
    assert!(case.builds(&shorter));
    assert!(case.builds(&case.options(&format!("{GOOD}\n{LONG}"))));
    case.tokenizer = tokenizer(INST);
    assert!(case.builds(&options));
    assert_eq!(stores(&options.cache_dir), 4);
}

#[test]
fn debris_is_removed_and_a_damaged_store_built_again() {
    let case = Case::new();
    let options = case.options(GOOD);
    let debris = options.cache_dir.join("00ff.partial");
    fs::create_dir_all(&debris).unwrap();
    let (store, accounting) = case.open(&options).unwrap();
    assert!(!debris.exists());
    let tokens = store.path().join("token_ids.u32");
    fs::write(&tokens, "short").unwrap();
    let (store, again) = case.open(&options).unwrap();
    assert_eq!((store.len(), again), (1, accounting));
    assert_eq!(fs::metadata(&tokens).unwrap().len(), 4 * store.row_len(0) as u64);
}

#[test]
fn what_cannot_make_a_store_is_one_clear_error() {
    let case = Case::new();
    assert!(case.error("").contains("chats.jsonl: no rows: the file is empty"));
    assert!(case.error("\u{feff}\n\r\n").contains("the file is empty"));
    let useless = case.error("{}\nx\n{}\n");
    assert!(useless.contains("none of its 3 rows can be used: no messages (2, first "), "{useless}");
    assert_eq!(stores(&case.options(GOOD).cache_dir), 0, "a failed build leaves nothing");

    let strict = StoreOptions { max_dropped: 0.33, ..case.options(&format!("{GOOD}\n{GOOD}\nx\n")) };
    for _ in 0..2 {
        let Err(error) = case.open(&strict) else { panic!("accepted") };
        assert!(
            error.to_string().contains("1 of 3 rows dropped, more than data.max_dropped = 0.33: not JSON (1, first")
        );
    }
    assert!(case.open(&StoreOptions { max_dropped: 0.34, ..strict }).is_ok());
    let mut options = case.options(GOOD);
    options.pass.data_paths = vec!["/nowhere/chats.jsonl".into()];
    assert!(case.open(&options).is_err_and(|error| error.to_string().starts_with("/nowhere/chats.jsonl: ")));
    options = case.options(GOOD);
    options.cache_dir = options.pass.data_paths[0].join("under-a-file");
    assert!(case.open(&options).is_err_and(|error| error.hint().contains("data.cache_dir")));
}

#[test]
fn rows_keep_their_order_over_many_chunks_and_processes_build_once() {
    let case = Case::new();
    let rows: Vec<String> = (0..9000)
        .map(|number| {
            let messages = [Message::new("user", &number.to_string()), Message::new("assistant", "yes you")];
            serde_json::json!({ "messages": messages }).to_string()
        })
        .collect();
    let options = case.options(&format!("[\n{}\n]", rows.join(",\n")));
    let builds = Mutex::new(0);
    let open = || {
        let count = |progress: Progress| *builds.lock().unwrap() += u64::from(progress.rows == 9000);
        TokenStore::open_or_build(&options, &case.tokenizer, &count).unwrap()
    };
    let stores: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(builds.into_inner().unwrap(), 1);
    for (store, accounting) in &stores {
        assert_eq!((accounting.rows_kept, store.len()), (9000, 9000));
        for index in [0, 1, 4095, 4096, 8999] {
            assert_eq!(store.line(index), index as u64 + 2);
            let text = case.tokenizer.decode(store.row(index).token_ids);
            assert!(text.starts_with(&format!("<|im_start|>user\n{index}<|im_end|>")), "{text}");
        }
    }
}

/// A row with a few bytes changed, taken out or put in.
fn damaged_row() -> impl Strategy<Value = Vec<u8>> {
    let row = prop::sample::select(vec![GOOD, LONG, "[1]", "{\"messages\":[{}]}"]);
    let damage = (any::<prop::sample::Index>(), 0usize..3, prop::collection::vec(any::<u8>(), 0..3));
    (row, prop::collection::vec(damage, 0..3)).prop_map(|(row, damages)| {
        let mut row = row.as_bytes().to_vec();
        for (place, taken, put) in damages {
            let start = place.index(row.len() + 1);
            let end = (start + taken).min(row.len());
            row.splice(start..end, put);
        }
        row
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn no_damage_stops_the_count(rows in prop::collection::vec(damaged_row(), 1..20)) {
        let case = Case::new();
        let options = case.options("");
        fs::write(&options.pass.data_paths[0], rows.join(&b'\n')).unwrap();
        match case.open(&options) {
            Ok((store, accounting)) => {
                prop_assert_eq!(accounting.rows_kept + accounting.dropped.len() as u64, accounting.rows_read);
                prop_assert_eq!(accounting.rows_kept, store.len() as u64);
                prop_assert!((0..store.len()).all(|row| store.supervised_tokens(row) >= 2));
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
