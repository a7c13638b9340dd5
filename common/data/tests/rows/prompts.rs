//! Prompts end where the assistant begins.

use std::path::Path;

use common::config::Config;
use data::pass::{Outcome, PassError, PassOptions, each_row};
use data::prompts::{Prompts, PromptsError, read};

use crate::folder::{CHATML, tokenizer};

fn prompts(text: &str, count: usize) -> Result<Prompts, PromptsError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("held-out.jsonl");
    std::fs::write(&path, text).unwrap();
    read(&path, &tokenizer(CHATML), count)
}

const CHATS: &str = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]}
{"messages":[{"role":"system","content":"s"}]}
{"messages":[{"role":"user","content":"e"}]}
{"messages":[{"role":"user","content":"f"}]}
"#;

#[test]
fn a_prompt_is_the_conversation_up_to_the_last_question() {
    let found = prompts(CHATS, 2).unwrap();
    let tokenizer = tokenizer(CHATML);
    let texts: Vec<String> = found.prompts.iter().map(|prompt| tokenizer.decode(&prompt.token_ids)).collect();
    let first = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(texts, [first, "<|im_start|>user\ne<|im_end|>\n<|im_start|>assistant\n"]);
    assert_eq!(found.prompts.iter().map(|prompt| prompt.line).collect::<Vec<_>>(), [1, 3]);
    assert_eq!((found.dropped.len(), found.dropped[0].line, found.dropped[0].kind()), (1, 2, "no user turn"));
    assert_eq!(prompts(CHATS, 99).unwrap().prompts.len(), 3);
}

#[test]
fn a_file_without_prompts_is_an_error() {
    assert!(prompts("", 3).is_err_and(|error| error.to_string().contains("the file is empty")));
    let none = prompts("{}\n{}\n", 3).unwrap_err();
    assert!(none.to_string().contains("no prompt in any of its 2 rows: no messages (2, first "), "{none}");
    assert!(none.hint().contains("\"role\": \"user\""));
    let missing = read(Path::new("/nowhere/held-out.jsonl"), &tokenizer(CHATML), 3).unwrap_err();
    assert!(missing.to_string().starts_with("/nowhere/held-out.jsonl: "), "{missing}");
}

#[test]
fn without_a_file_the_held_out_rows_are_the_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let row = |number: u32| format!("{{\"prompt\":\"{number}\",\"response\":\"b\"}}\n");
    std::fs::write(path("rows.jsonl"), (0..40).map(row).collect::<String>()).unwrap();
    let text = "[run]\noutput_dir='o'\n[model]\ntarget_model_path='m'\n[data]\n";
    std::fs::write(path("c.toml"), format!("{text}train_data_path='{}'\n", path("rows.jsonl").display())).unwrap();
    let of_run = |share: &str| {
        let config = Config::load(&path("c.toml"), &[format!("data.held_out_share={share}")]).unwrap();
        let found = data::prompts::of_run(&config, &tokenizer(CHATML)).unwrap();
        let out: Vec<u64> =
            found.map(|found| found.prompts.iter().map(|prompt| prompt.line).collect()).unwrap_or_default();
        let files = data::chats::files(&config.data.train_data_path.0).unwrap();
        let (options, mut held_out) = (PassOptions::of(&config), Vec::new());
        each_row(&files, &options, &tokenizer(CHATML), &|_| {}, |row| {
            held_out.extend((row.outcome == Outcome::HeldOut).then_some(row.raw.line));
            Ok::<_, PassError>(())
        })
        .unwrap();
        assert_eq!(out, held_out, "share {share}");
        out.len()
    };
    assert_eq!(of_run("0.0"), 0);
    assert!((5..25).contains(&of_run("0.4")));
}
