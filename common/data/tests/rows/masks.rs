//! Masks decoded back to text and compared with what a person would mark.

use data::chats::{Conversation, Record};
use data::row::tokenize;
use data::tokenizer::ChatTokenizer;

use crate::folder::{CHATML, INST, LLAMA3, THINKING, tokenizer};

fn conversation(messages: &serde_json::Value) -> Conversation {
    Conversation::parse(serde_json::json!({ "messages": messages }).to_string().as_bytes()).unwrap()
}

/// The supervised stretches as text.
fn supervised(tokenizer: &ChatTokenizer, messages: &serde_json::Value) -> Result<Vec<String>, String> {
    let row = tokenizer.token_row(Record::Chat(conversation(messages))).map_err(|fault| fault.to_string())?;
    assert_eq!(row.token_ids.len(), row.loss_mask.len());
    let both: Vec<(u32, u8)> = row.token_ids.into_iter().zip(row.loss_mask).collect();
    let stretches = both.chunk_by(|left, right| left.1 == right.1).filter(|stretch| stretch[0].1 == 1);
    let ids = stretches.map(|stretch| stretch.iter().map(|(id, _)| *id).collect::<Vec<u32>>());
    Ok(ids.map(|ids| tokenizer.decode(&ids)).collect())
}

macro_rules! check {
    ($template:expr, $messages:tt, [$($expected:expr),* $(,)?]) => {{
        let expected: Vec<String> = vec![$($expected.to_string()),*];
        assert_eq!(supervised(&tokenizer($template), &serde_json::json!($messages)), Ok(expected));
    }};
}

macro_rules! refused {
    ($template:expr, $messages:tt, $reason:expr) => {{
        let fault = supervised(&tokenizer($template), &serde_json::json!($messages)).unwrap_err();
        assert!(fault.starts_with($reason), "{fault}");
    }};
}

#[test]
fn one_turn_and_three() {
    let one = serde_json::json!([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes you"}]);
    for (template, end) in [(CHATML, "<|im_end|>"), (LLAMA3, "<|eot_id|>"), (THINKING, "<|im_end|>")] {
        assert_eq!(supervised(&tokenizer(template), &one), Ok(vec![format!("yes you{end}")]), "{end}");
    }
    check!(
        CHATML,
        [
            {"role": "system", "content": "the fox"},
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "one 🦊\n"},
            {"role": "user", "content": "b"}, {"role": "assistant", "content": ""},
            {"role": "user", "content": "c"}, {"role": "assistant", "content": "one 🦊\n"},
            {"role": "user", "content": "d"}
        ],
        ["one 🦊\n<|im_end|>", "<|im_end|>", "one 🦊\n<|im_end|>"]
    );
}

#[test]
fn stripped_answers_are_found_where_the_template_puts_them() {
    check!(
        LLAMA3,
        [{"role": "user", "content": " hello "}, {"role": "assistant", "content": "\n hello \n"}],
        ["hello<|eot_id|>"]
    );
}

#[test]
fn user_text_that_quotes_headers_and_answers_shifts_nothing() {
    check!(
        CHATML,
        [
            {"role": "user", "content": "hello<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "<|im_end|>hello"},
            {"role": "assistant", "content": "say <|im_end|> twice"}
        ],
        ["hello<|im_end|>", "say <|im_end|> twice<|im_end|>"]
    );
}

#[test]
fn a_space_between_prompt_and_answer_is_the_models() {
    check!(
        INST,
        [
            {"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "fox"}, {"role": "assistant", "content": "no"}
        ],
        [" yes</s>", " no</s>"]
    );
}

#[test]
fn a_thought_is_supervised_where_the_template_keeps_it() {
    let thoughtful = "<think>\nfox says\n</think>\n\nyes";
    check!(
        THINKING,
        [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nquick\n</think>\n\nno"},
            {"role": "user", "content": "b"}, {"role": "assistant", "content": thoughtful}
        ],
        ["no<|im_end|>", format!("{thoughtful}<|im_end|>")]
    );
    check!(
        THINKING,
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "reasoning_content": "fox says", "content": "yes"}
        ],
        [format!("{thoughtful}<|im_end|>")]
    );
    check!(
        THINKING,
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "reasoning_content": "fox", "content": thoughtful}
        ],
        [format!("<think>\nfox\n</think>\n\n{thoughtful}<|im_end|>")]
    );
    check!(
        CHATML,
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": thoughtful}],
        [format!("{thoughtful}<|im_end|>")]
    );
}

#[test]
fn an_empty_thought_is_not_supervised() {
    let empty = "<think>\n\n</think>\n\nyes";
    check!(THINKING, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "yes"}], ["yes<|im_end|>"]);
    check!(THINKING, [{"role": "user", "content": "a"}, {"role": "assistant", "content": empty}], ["yes<|im_end|>"]);
    let fault = "\n\nyes<|im_end|>";
    check!(CHATML, [{"role": "user", "content": "a"}, {"role": "assistant", "content": empty}], [fault]);
}

#[test]
fn calls_are_the_models_and_results_are_not() {
    check!(
        THINKING,
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "yes", "tool_calls": [{"name": "fox", "arguments": {"x": 1}}]},
            {"role": "tool", "content": "brown"},
            {"role": "assistant", "content": "hello"}
        ],
        [
            "yes\n<tool_call>\n{\"name\": \"fox\", \"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>",
            "hello<|im_end|>"
        ]
    );
}

#[test]
fn what_has_no_exact_mask_is_refused() {
    let dropping = "{% for m in messages %}{{ m.role }}:{% if loop.last or m.role == 'user' %}{{ m.content }}{% endif %}\n{% endfor %}";
    refused!(
        dropping,
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
        "no exact mask: assistant turn 1: the chat template leaves its text out"
    );
    let shouting = "{% for m in messages %}{{ m.role }}:{{ m.content | upper }}\n{% endfor %}";
    refused!(
        shouting,
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "no exact mask: assistant turn 1: the chat template rewrites its text"
    );
    let twice = "{% for m in messages %}{{ m.content + m.content }}{% endfor %}";
    refused!(
        twice,
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "no exact mask: assistant turn 1: the chat template repeats or reorders texts"
    );
    let glued = "{% for m in messages %}{{ m.role + ' ' + m.content }}{% endfor %}{% if add_generation_prompt %}assistant {% endif %}";
    refused!(
        glued,
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "hello"}],
        "no exact mask: assistant turn 1: a token lies across its border"
    );
    refused!(CHATML, [{"role": "user", "content": "a"}], "no assistant turn");
    refused!(
        INST,
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}],
        "refused by the chat template: Conversation roles must alternate"
    );
}

#[test]
fn cutting_keeps_an_anchor_or_drops_the_row() {
    let tokenizer = tokenizer(CHATML);
    let chat = conversation(&serde_json::json!([
        {"role": "user", "content": "hello fox"}, {"role": "assistant", "content": "yes yes yes yes"}
    ]));
    let whole = tokenize(Record::Chat(chat.clone()), &tokenizer, 1000).unwrap();
    let first = whole.row.loss_mask.iter().position(|&bit| bit == 1).unwrap();
    let supervised = whole.row.loss_mask.iter().filter(|&&bit| bit == 1).count();
    assert_eq!((whole.full_length, whole.supervised_lost), (whole.row.token_ids.len(), 0));
    let cut = tokenize(Record::Chat(chat.clone()), &tokenizer, first + 2).unwrap();
    assert_eq!((cut.full_length, cut.supervised_lost), (whole.full_length, supervised as u64 - 2));
    assert_eq!(cut.row.token_ids, whole.row.token_ids[..first + 2]);
    let fault = tokenize(Record::Chat(chat.clone()), &tokenizer, first + 1).unwrap_err().to_string();
    assert!(fault.starts_with("too long: no two supervised tokens"), "{fault}");
    let silent = conversation(&serde_json::json!([
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": ""}
    ]));
    let fault = tokenize(Record::Chat(silent.clone()), &tokenizer, 1000).unwrap_err().to_string();
    assert!(fault.starts_with("too little to learn"), "{fault}");
}
