//! Rendered text whose supervised stretches stand between two markers.

use super::Marking;
use crate::row::RowFault;

/// Everything between an opening and the next ending is supervised, the ending too.
///
/// # Errors
/// No markers are known, or they do not come in pairs.
pub fn marked_text(text: String, markers: Option<&[String; 2]>) -> Result<Marking, RowFault> {
    let bad = |what: String| RowFault::Text(what);
    let [open, close] = markers.ok_or_else(|| bad("data.text_markers does not say what is supervised".to_owned()))?;
    let (mut spans, mut at) = (Vec::new(), 0);
    while let Some(start) = text[at..].find(open.as_str()).map(|start| at + start + open.len()) {
        let end = text[start..].find(close.as_str()).map(|end| start + end);
        let end = end.ok_or_else(|| bad(format!("stretch {} is not ended by {close:?}", spans.len() + 1)))?;
        if text[start..end].contains(open.as_str()) {
            return Err(bad(format!("stretch {} is opened twice", spans.len() + 1)));
        }
        at = end + close.len();
        spans.push(start..at);
    }
    match spans.is_empty() {
        true => Err(bad(format!("no {open:?} in it"))),
        false => Ok(Marking { text, spans }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_stand_between_markers() {
        let markers = ["<a>".to_owned(), "</a>".to_owned()];
        let marked = |text: &str| marked_text(text.to_owned(), Some(&markers));
        let marking = marked("u<a>x</a>v</a><a></a>").unwrap();
        let stretches: Vec<&str> = marking.spans.iter().map(|span| &marking.text[span.clone()]).collect();
        assert_eq!(stretches, ["x</a>", "</a>"]);
        let reason = |text: &str| marked(text).unwrap_err().to_string();
        assert_eq!(reason("u"), "bad text: no \"<a>\" in it");
        assert_eq!(reason("<a>x</a><a>y"), "bad text: stretch 2 is not ended by \"</a>\"");
        assert_eq!(reason("<a>x<a>y</a>"), "bad text: stretch 1 is opened twice");
        assert!(marked_text("x".to_owned(), None).unwrap_err().to_string().contains("data.text_markers"));
    }
}
