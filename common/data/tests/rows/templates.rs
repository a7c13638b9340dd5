//! What templates may say, and where they are looked for.

use data::chats::{Conversation, Message};
use data::tokenizer::{ChatOptions, ChatTokenizer, TokenizerError};

use crate::folder::{CHATML, LLAMA3, folder, tokenizer};

fn rendered(template: &str, row: &str) -> Result<String, String> {
    let conversation = Conversation::parse(row.as_bytes()).unwrap();
    // Written behind a branch, so that the plain chat every template is tried with passes.
    let template = format!("{{% if messages[0].content == 'go' %}}{template}{{% else %}}{CHATML}{{% endif %}}");
    tokenizer(&template).render(&conversation).map_err(|error| error.to_string())
}

const GO: &str = r#"{"messages":[{"role":"user","content":"go","n":null,"f":1.0,"t":true,"l":[1,"a"]}],"tools":[{"b":"é","a":{"x":[1,2]}}]}"#;

#[test]
fn a_conversation_is_written_as_the_template_says() {
    let chat = Conversation { messages: vec![Message::new("user", " hello ")], tools: None };
    assert_eq!(tokenizer(CHATML).render(&chat).unwrap(), "<|im_start|>user\n hello <|im_end|>\n");
    assert_eq!(
        tokenizer(LLAMA3).render_prompt(&chat).unwrap(),
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

/// Expected texts are what transformers 5 renders.
#[test]
fn the_engine_speaks_jinja_as_transformers_sets_it_up() {
    let cases = [
        ("{{ tools | tojson }}", r#"[{"b": "é", "a": {"x": [1, 2]}}]"#),
        ("{{ tools[0].a | tojson(indent=4) }}", "{\n    \"x\": [\n        1,\n        2\n    ]\n}"),
        ("{{ tools | tojson(separators=(',', ':')) }}", r#"[{"b":"é","a":{"x":[1,2]}}]"#),
        (
            "{% set m = messages[0] %}{{ m.n }} {{ m.f }} {{ m.t }} {{ m.l }} [{{ m.nothing }}]",
            "None 1.0 True [1, 'a'] []",
        ),
        ("{{ [\"it's\", 'a\\n', {'k': none, 1: 1e16}, []] }}", r#"["it's", 'a\n', {'k': None, 1: 1e+16}, []]"#),
        ("{{ 1e16 }} {{ 0.5 }}", "1e+16 0.5"),
        ("{{ eos_token }}{{ pad_token }}|", "</s>|"),
        (
            "{% for i in [1, 2, 3] %}\n    {% if i == 2 %}\n        {% continue %}\n    {% endif %}\n{{ i }}\n{% endfor %}\n",
            "1\n3\n",
        ),
        ("{{ '  a b '.strip().split(' ')[-1] + 'x'.upper() }}{{ messages[0].get('zz', 'd') }}", "bXd"),
        ("{{ strftime_now('%Y')[:2] }}", "20"),
        ("{% if documents is defined and documents is none %}none{% endif %}", "none"),
        ("{% generation %}\nkept\n{%- endgeneration -%}\n!", "kept!"),
        ("{{ 'generation' }}{# a < b #}", "generation"),
    ];
    for (template, expected) in cases {
        assert_eq!(rendered(template, GO), Ok(expected.to_owned()), "{template}");
    }
}

#[test]
fn a_templates_own_refusal_is_the_reason() {
    assert_eq!(rendered("{{ raise_exception('no such role') }}", GO), Err("no such role (template line 1)".to_owned()));
    let misuse = rendered("{{ messages[0].f.g.h }}", GO).unwrap_err();
    assert!(misuse.contains("undefined"), "{misuse}");
}

#[test]
fn the_template_is_looked_for_where_transformers_does() {
    let chat = Conversation { messages: vec![Message::new("user", "hello")], tools: None };
    let write =
        |folder: &tempfile::TempDir, name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let both = folder(LLAMA3);
    let before = ChatTokenizer::load(both.path(), ChatOptions::default()).unwrap();
    write(&both, "chat_template.jinja", CHATML);
    let after = ChatTokenizer::load(both.path(), ChatOptions::default()).unwrap();
    assert!(after.render(&chat).unwrap().starts_with("<|im_start|>user"));
    assert_ne!(before.fingerprint(), after.fingerprint());

    let named = folder(CHATML);
    let with_tools = format!("T{CHATML}");
    let entries = serde_json::json!({"chat_template": [
        {"name": "tool_use", "template": with_tools}, {"name": "default", "template": CHATML}
    ]});
    write(&named, "tokenizer_config.json", &entries.to_string());
    let tokenizer = ChatTokenizer::load(named.path(), ChatOptions::default()).unwrap();
    assert!(tokenizer.render(&chat).unwrap().starts_with("<|im_start|>"));
    let tools = Conversation { tools: Some(serde_json::json!([{}])), ..chat };
    assert!(tokenizer.render(&tools).unwrap().starts_with("T<|im_start|>"));
}

#[test]
fn a_folder_that_cannot_serve_says_which_file_and_why() {
    let refuse = |name: &str, text: Option<&str>| {
        let folder = folder(CHATML);
        let path = folder.path().join(name);
        match text {
            Some(text) => std::fs::write(path, text).unwrap(),
            None => std::fs::remove_file(path).unwrap(),
        }
        let Err(error) = ChatTokenizer::load(folder.path(), ChatOptions::default()) else { panic!("{name} passes") };
        assert!(!TokenizerError::hint(&error).is_empty());
        error.to_string()
    };
    let expected = [
        ("tokenizer.json", None, "tokenizer.json: No such file"),
        ("tokenizer.json", Some("{}"), "tokenizer.json: "),
        ("tokenizer_config.json", None, "no chat template"),
        ("tokenizer_config.json", Some("[1"), "tokenizer_config.json: EOF"),
        ("tokenizer_config.json", Some(r#"{"chat_template":[{"name":"rag","template":""}]}"#), "(found: rag)"),
        ("chat_template.jinja", Some("{% for %}"), "chat_template.jinja: the chat template is broken: "),
        (
            "chat_template.jinja",
            Some("{{ raise_exception('never') }}"),
            "cannot write a user's and an assistant's turn",
        ),
        ("chat_template.jinja", Some("always the same"), "leaves out what a plain conversation says"),
    ];
    for (name, text, reason) in expected {
        let message = refuse(name, text);
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn every_text_comes_back_and_every_id_is_counted() {
    let tokenizer = tokenizer(CHATML);
    let text = "<|im_start|>user\nhello 🦊 quick\u{0}\n<|im_end|>";
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(tokenizer.decode(&ids), text);
    assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
    assert_eq!(tokenizer.encode("</s>").unwrap(), [tokenizer.vocab_len() as u32 - 1]);
}
