//! Generation tags: a template's own marks around what the assistant wrote.
//!
//! transformers knows `{% generation %} ... {% endgeneration %}`, the engine does not: the block becomes a filter that
//! puts a character of private use at either end, and what is rendered is searched for them.

use std::ops::Range;

use super::RenderError;

/// The filter's name in templates.
pub(super) const FILTER: &str = "generation_block";

const OPEN: char = '\u{10FFFB}';
const CLOSE: char = '\u{10FFFA}';

/// The filter.
pub(super) fn mark(text: &str) -> String {
    format!("{OPEN}{text}{CLOSE}")
}

/// The template with filters in place of generation tags.
pub(super) fn as_filters(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + length];
        let word = tag.trim_matches(['-', '+']).trim();
        out.push_str(&rest[..start + 2]);
        match word {
            "generation" => out.push_str(&tag.replace(word, &format!("filter {FILTER}"))),
            "endgeneration" => out.push_str(&tag.replace(word, "endfilter")),
            _ => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &rest[start + length + 2..];
    }
    out + rest
}

/// The text without marks, and what stood between them.
///
/// # Errors
/// Marks that do not come in pairs: the conversation itself has such characters.
pub(super) fn take_marks(rendered: String) -> Result<(String, Vec<Range<usize>>), RenderError> {
    if rendered.is_ascii() || !rendered.contains([OPEN, CLOSE]) {
        return Ok((rendered, Vec::new()));
    }
    let (mut text, mut spans, mut open) = (String::with_capacity(rendered.len()), Vec::new(), None);
    for character in rendered.chars() {
        match (character, open) {
            (OPEN, None) => open = Some(text.len()),
            (CLOSE, Some(start)) => {
                spans.push(start..text.len());
                open = None;
            }
            (OPEN | CLOSE, _) => return Err(RenderError(format!("it holds the private character {character:?}"))),
            _ => text.push(character),
        }
    }
    match open {
        None => Ok((text, spans)),
        Some(_) => Err(RenderError(format!("it holds the private character {OPEN:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_out_in_pairs() {
        let text = format!("a{}b{}", mark("xé"), mark(""));
        assert_eq!(take_marks(text), Ok(("axéb".to_owned(), vec![1..4, 5..5])));
        for bad in [format!("{OPEN}"), format!("{CLOSE}{OPEN}"), mark(&mark("x"))] {
            assert!(take_marks(bad).is_err());
        }
    }
}
