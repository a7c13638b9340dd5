//! Cutting a text where the tokenizer cuts it: first at added tokens, then by its patterns.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::utils::SysRegex;
use tokenizers::{AddedVocabulary, PreTokenizerWrapper, SplitDelimiterBehavior};

/// Byte-level's own pattern.
const BYTE_LEVEL: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Tokens that are found in a text before anything else: special ones and others beyond the model's own.
pub(super) struct AddedTokens {
    finder: AhoCorasick,
    ids: Vec<u32>,
}

impl AddedTokens {
    /// Those that are looked for before or after normalising. None if some take white space or word ends into account.
    pub(super) fn of(vocabulary: &AddedVocabulary, normalized: bool) -> Option<AddedTokens> {
        let (mut texts, mut ids) = (Vec::new(), Vec::new());
        for (&id, token) in vocabulary.get_added_tokens_decoder() {
            if token.lstrip || token.rstrip || token.single_word || !token.content.is_ascii() && token.normalized {
                return None;
            }
            if token.normalized == normalized && !token.content.is_empty() {
                texts.push(token.content.as_str());
                ids.push(id);
            }
        }
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts).ok()?;
        Some(AddedTokens { finder, ids })
    }

    /// The text's parts in order, each with the added token that it is.
    pub(super) fn cut<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (&'a str, Option<u32>)> {
        let (mut at, mut found) = (0, self.finder.find_iter(text).peekable());
        std::iter::from_fn(move || {
            let (end, token) = match found.next_if(|next| next.start() == at) {
                Some(next) => (next.end(), Some(self.ids[next.pattern().as_usize()])),
                None => (found.peek().map_or(text.len(), |next| next.start()), None),
            };
            let part = &text[at..end];
            at = end;
            (!part.is_empty()).then_some((part, token))
        })
    }
}

/// One way to cut.
enum Cut {
    /// Every match is a piece, and so is what lies between two.
    Pattern(SysRegex),
    /// Every digit.
    Digit,
    /// Every run of digits.
    Digits,
}

/// The pre-tokenizer: each cut is made in the pieces of the one before.
pub(super) struct Splitter {
    cuts: Vec<Cut>,
}

impl Splitter {
    /// None if it does anything besides cutting and writing bytes, or writes bytes before the last cut.
    pub(super) fn of(pre_tokenizer: &PreTokenizerWrapper) -> Option<Splitter> {
        let steps = match pre_tokenizer {
            PreTokenizerWrapper::Sequence(steps) => steps.as_ref(),
            one => std::slice::from_ref(one),
        };
        let (PreTokenizerWrapper::ByteLevel(last), steps) = steps.split_last()? else { return None };
        if last.add_prefix_space {
            return None;
        }
        let mut cuts = steps.iter().map(cut).collect::<Option<Vec<_>>>()?;
        if last.use_regex {
            cuts.push(Cut::Pattern(SysRegex::new(BYTE_LEVEL).ok()?));
        }
        Some(Splitter { cuts })
    }

    /// Calls `take` with every piece, in order.
    pub(super) fn each<E>(&self, text: &str, take: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        each(&self.cuts, text, take)
    }
}

fn cut(step: &PreTokenizerWrapper) -> Option<Cut> {
    match step {
        PreTokenizerWrapper::Digits(digits) if digits.individual_digits => Some(Cut::Digit),
        PreTokenizerWrapper::Digits(_) => Some(Cut::Digits),
        PreTokenizerWrapper::Split(split) if split.behavior == SplitDelimiterBehavior::Isolated && !split.invert => {
            let SplitPattern::Regex(pattern) = &split.pattern else { return None };
            Some(Cut::Pattern(SysRegex::new(pattern).ok()?))
        }
        _ => None,
    }
}

fn each<E>(cuts: &[Cut], text: &str, take: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    let Some((cut, deeper)) = cuts.split_first() else { return take(text) };
    let mut at = 0;
    let mut piece = |from: usize, to: usize| if from < to { each(deeper, &text[from..to], take) } else { Ok(()) };
    match cut {
        Cut::Pattern(pattern) => {
            for (start, end) in pattern.find_iter(text) {
                piece(at, start)?;
                piece(start, end)?;
                at = end;
            }
        }
        Cut::Digit => {
            for (start, digit) in text.match_indices(char::is_numeric) {
                piece(at, start)?;
                at = start + digit.len();
                piece(start, at)?;
            }
        }
        Cut::Digits => {
            while let Some(start) = text[at..].find(char::is_numeric).map(|start| at + start) {
                piece(at, start)?;
                at = text[start..].find(|c: char| !c.is_numeric()).map_or(text.len(), |end| start + end);
                piece(start, at)?;
            }
        }
    }
    piece(at, text.len())
}
