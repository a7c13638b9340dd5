//! The crate's own encoding is the oracle.

use proptest::prelude::*;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::metaspace::Metaspace;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Trainer};

use super::*;

/// Qwen's; Llama 3's has `\p{N}{1,3}`.
const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn split(pattern: &str) -> PreTokenizerWrapper {
    let pattern = SplitPattern::Regex(pattern.to_owned());
    Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap().into()
}

fn encoder(steps: Vec<PreTokenizerWrapper>, nfc: bool) -> Encoder {
    let mut model = BPE::default();
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    let mut trainer = BpeTrainerBuilder::new().show_progress(false).vocab_size(420).initial_alphabet(alphabet).build();
    let text = "Ġthe Ġquick the quick fox Ġsays Ġhe ll ĊĊ ĠĠĠ 123 Ã© ĠÃ© don 't ðŁĺĢ".split(' ').map(str::to_owned);
    trainer.feed(text, |piece| Ok(vec![piece.to_owned()])).unwrap();
    trainer.train(&mut model).unwrap();
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
    if nfc {
        tokenizer.with_normalizer(Some(NFC));
    }
    tokenizer.add_special_tokens(&["<|im_start|>", "<|im_end|>", "<|im"].map(|token| AddedToken::from(token, true)));
    tokenizer.add_tokens(&["<think>", "quick fox"].map(|token| AddedToken::from(token, false)));
    Encoder::new(tokenizer)
}

/// GPT-2's, SmolLM2's, Qwen's and Llama 3's way of cutting.
fn fast() -> Vec<Encoder> {
    let bytes = |regex| PreTokenizerWrapper::from(ByteLevel::new(false, true, regex));
    let llama = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|");
    vec![
        encoder(vec![bytes(true)], false),
        encoder(vec![Digits::new(true).into(), bytes(true)], false),
        encoder(vec![Digits::new(false).into(), bytes(true)], true),
        encoder(vec![split(QWEN), bytes(false)], true),
        encoder(vec![split(&llama), bytes(false)], false),
    ]
}

fn texts() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        "the",
        " quick",
        "quick fox",
        "<|im_start|>",
        "<|im",
        "<|im_end|>",
        "<think>",
        "\n",
        "\r\n",
        "  ",
        "\t",
        "12345",
        "é",
        "e\u{301}",
        "😀",
        "don't",
        "'LL",
        "\u{2028}",
        "\u{a0}",
        "中文",
        "½٣",
        "!?",
        "\0",
        "가",
    ]);
    let part = prop_oneof![4 => parts.prop_map(str::to_owned), 1 => any::<String>()];
    prop::collection::vec(part, 0..20).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn ids_and_ranges_are_the_crates(texts in prop::collection::vec(texts(), 1..4)) {
        for encoder in fast() {
            prop_assert!(encoder.by_pieces.is_some());
            // Twice: from the model, then from the table.
            for text in texts.iter().chain(&texts) {
                let (fast, plain) = (encoder.encode(text).unwrap(), encoder.encode_plainly(text).unwrap());
                prop_assert_eq!(&fast.ids, &plain.ids, "{:?}", text);
                // The crate gives every part of a character the whole character's range.
                let floor = |at: usize| (0..=at).rfind(|&at| text.is_char_boundary(at)).unwrap();
                let ceil = |at: usize| (at..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap();
                let whole: Vec<_> = fast.offsets.iter().map(|&(start, end)| (floor(start), ceil(end))).collect();
                prop_assert_eq!(whole, plain.offsets, "{:?}", text);
            }
        }
    }
}

#[test]
fn a_full_table_starts_anew_and_long_pieces_pass_by() {
    let encoder = &fast()[0];
    let long = "x".repeat(1000);
    for number in 0..3 * TABLE_PIECES {
        let text = format!(" {number} p{}q{long}", number / 3);
        assert_eq!(encoder.encode(&text).unwrap().ids, encoder.encode_plainly(&text).unwrap().ids);
    }
}

/// Published vocabularies lack bytes that UTF-8 never has, and some lack others.
#[test]
fn bytes_without_a_token_are_left_to_the_crate() {
    let json = fast()[0].tokenizer().to_string(false).unwrap();
    let encoder = Encoder::new(json.replacen("\"ñ\":", "\"gone\":", 1).parse().unwrap());
    assert!(encoder.by_pieces.is_some());
    for text in ["the quick \u{50000} fox", "the quick fox"] {
        assert_eq!(encoder.encode(text).unwrap(), encoder.encode_plainly(text).unwrap());
    }
}

#[test]
fn what_is_not_known_is_left_to_the_crate() {
    let bytes = || PreTokenizerWrapper::from(ByteLevel::new(false, true, true));
    let unknown = [
        vec![bytes(), Digits::new(true).into()],
        vec![ByteLevel::new(true, true, true).into()],
        vec![Metaspace::default().into(), bytes()],
        vec![Split::new("x", SplitDelimiterBehavior::Removed, false).unwrap().into(), bytes()],
    ];
    for steps in unknown {
        let encoder = encoder(steps, false);
        assert!(encoder.by_pieces.is_none());
        assert_eq!(encoder.encode("the quick").unwrap(), encoder.encode_plainly("the quick").unwrap());
    }
    let mut tokenizer = encoder(vec![bytes()], false).tokenizer().clone();
    tokenizer.add_tokens(&[AddedToken::from("word", false).single_word(true)]);
    assert!(ByPieces::of(&tokenizer).is_none());
}
