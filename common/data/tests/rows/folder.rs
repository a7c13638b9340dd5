//! A model folder in a temporary place: a byte-level tokenizer trained on a few words, and a chat template.

use std::path::Path;

use data::tokenizer::{ChatOptions, ChatTokenizer};
use tempfile::TempDir;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, NormalizerWrapper, TokenizerBuilder};

pub(crate) const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

pub(crate) const LLAMA3: &str = "{{- bos_token }}\n{%- for message in messages %}\n    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}\n{%- endif %}\n";

/// Puts a reasoning block around every answer after the last question and takes it out of earlier ones.
pub(crate) const THINKING: &str = r"
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}
            {{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>\n' + (call | tojson) + '\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
";

/// No generation prompt, a space before each answer, strict alternation.
pub(crate) const INST: &str = "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}";

const SPECIAL: [&str; 21] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "</s>",
];

const WORDS: &str =
    "the quick brown fox says hello to you and you answer yes or no . hello hello fox fox assistant user";

/// A folder with tokenizer and template.
pub(crate) fn folder(template: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_tokenizer(&folder.path().join("tokenizer.json"));
    let config = serde_json::json!({
        "bos_token": "<|begin_of_text|>",
        "eos_token": {"content": "</s>", "lstrip": false},
        "chat_template": template,
    });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

pub(crate) fn tokenizer(template: &str) -> ChatTokenizer {
    ChatTokenizer::load(folder(template).path(), ChatOptions::default()).unwrap()
}

fn write_tokenizer(path: &Path) {
    let mut tokenizer = TokenizerBuilder::<BPE, NormalizerWrapper, ByteLevel, ByteLevel, ByteLevel>::default()
        .with_model(BPE::default())
        .with_pre_tokenizer(Some(ByteLevel::new(false, true, true)))
        // Trims offsets, as published tokenizers do: the mask must not follow it.
        .with_post_processor(Some(ByteLevel::new(false, true, true)))
        .with_decoder(Some(ByteLevel::default()))
        .build()
        .unwrap();
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    let mut trainer = BpeTrainerBuilder::new().show_progress(false).vocab_size(400).initial_alphabet(alphabet).build();
    let words = std::iter::repeat_n(WORDS, 4);
    tokenizer.train(&mut trainer, words).unwrap();
    tokenizer.add_special_tokens(&SPECIAL.map(|token| AddedToken::from(token, true)));
    tokenizer.save(path, false).unwrap();
}
