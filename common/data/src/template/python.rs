//! What Python writes: `json.dumps`, which chat templates reach through `tojson`, and the `repr` of values.

use std::fmt::Write;

use minijinja::value::ValueKind;
use serde_json::{Map, Number, Value};

/// How `json.dumps` is asked to write.
pub(super) struct JsonStyle {
    /// Spaces a level; `None`: all on one line.
    pub indent: Option<usize>,
    /// Between two items and between key and value.
    pub separators: (String, String),
    /// Keys in order of their characters.
    pub sort_keys: bool,
    /// Everything beyond ASCII as `\uXXXX`.
    pub ensure_ascii: bool,
}

/// `value` as `json.dumps` writes it.
pub(super) fn json(value: &Value, style: &JsonStyle) -> String {
    let mut writer = Writer { out: String::new(), level: 0, style };
    writer.value(value);
    writer.out
}

struct Writer<'a> {
    out: String,
    level: usize,
    style: &'a JsonStyle,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(truth) => self.out.push_str(if *truth { "true" } else { "false" }),
            Value::Number(number) => self.out.push_str(&number_text(number)),
            Value::String(text) => self.string(text),
            Value::Array(items) => self.items('[', ']', items.iter(), Writer::value),
            Value::Object(fields) => self.object(fields),
        }
    }

    fn object(&mut self, fields: &Map<String, Value>) {
        let mut fields: Vec<_> = fields.iter().collect();
        if self.style.sort_keys {
            fields.sort_by_key(|(key, _)| *key);
        }
        self.items('{', '}', fields.into_iter(), |writer, (key, value)| {
            writer.string(key);
            writer.out.push_str(&writer.style.separators.1);
            writer.value(value);
        });
    }

    fn items<T>(
        &mut self,
        open: char,
        close: char,
        items: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.out.push(open);
        let any = items.len() > 0;
        self.level += 1;
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.out.push_str(&self.style.separators.0);
            }
            self.break_line();
            write(self, item);
        }
        self.level -= 1;
        if any {
            self.break_line();
        }
        self.out.push(close);
    }

    fn break_line(&mut self) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * self.level));
        }
    }

    fn string(&mut self, text: &str) {
        let quoted = serde_json::to_string(text).expect("text is always JSON");
        if !self.style.ensure_ascii {
            self.out.push_str(&quoted);
            return;
        }
        for character in quoted.chars() {
            if character.is_ascii() {
                self.out.push(character);
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(self.out, "\\u{unit:04x}").expect("a string takes every text");
            }
        }
    }
}

/// A template's value as `repr` writes it.
pub(super) fn repr(value: &minijinja::Value) -> Result<String, minijinja::Error> {
    match value.kind() {
        ValueKind::String => Ok(quoted(value.as_str().unwrap_or_default())),
        ValueKind::Number if !value.is_integer() => Ok(f64::try_from(value.clone()).map(float_text)?),
        ValueKind::Seq => {
            let items: Vec<String> = value.try_iter()?.map(|item| repr(&item)).collect::<Result<_, _>>()?;
            Ok(format!("[{}]", items.join(", ")))
        }
        ValueKind::Map => {
            let field = |key: minijinja::Value| Ok(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?));
            let fields: Vec<String> = value.try_iter()?.map(field).collect::<Result<_, minijinja::Error>>()?;
            Ok(format!("{{{}}}", fields.join(", ")))
        }
        _ => Ok(value.to_string()),
    }
}

/// Single quotes, unless the text holds only such. Which characters are printable is Rust's table, not Python's; they
/// differ in code points newer than either.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for character in text.chars() {
        let code = u32::from(character);
        // Behind a letter a combining character counts as printable, as it does in Python.
        let printable = || format!("a{character}").escape_debug().count() == 2;
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => out.extend(['\\', quote]),
            ' '..='~' => out.push(character),
            _ if code > 0xA0 && printable() => out.push(character),
            _ if code <= 0xFF => out.push_str(&format!("\\x{code:02x}")),
            _ if code <= 0xFFFF => out.push_str(&format!("\\u{code:04x}")),
            _ => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    out.push(quote);
    out
}

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => float_text(float),
        _ => number.to_string(),
    }
}

/// A finite float: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
fn float_text(float: f64) -> String {
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').expect("Rust writes an exponent here");
    let exponent: i32 = exponent.parse().expect("Rust writes a whole exponent");
    if float == 0.0 || (-4..16).contains(&exponent) {
        return format!("{float:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(indent: Option<usize>) -> JsonStyle {
        let comma = if indent.is_some() { "," } else { ", " };
        JsonStyle { indent, separators: (comma.into(), ": ".into()), sort_keys: false, ensure_ascii: false }
    }

    /// Expected texts are the output of Python 3.11's repr.
    #[test]
    fn quotes_as_python_quotes() {
        let cases = [
            ("it's", r#""it's""#),
            ("it's \"so\"", r#"'it\'s "so"'"#),
            ("a\\b\n\t\r\u{1}\u{7f}\u{a0}\u{ad}", r"'a\\b\n\t\r\x01\x7f\xa0\xad'"),
            ("é🦊\u{301}\u{200b}\u{e000}\u{10ffff}", "'é🦊\u{301}\\u200b\\ue000\\U0010ffff'"),
        ];
        for (text, expected) in cases {
            assert_eq!(quoted(text), expected);
        }
    }

    /// Expected texts are the output of Python 3.11's json.dumps.
    #[test]
    fn writes_what_json_dumps_writes() {
        let text = r#"{"b": [1, 2.0, -0.0, 1e16, 1.5e-05, 0.0001, 123456789012345.6, 1e22, 5e-324], "a": {"x": null, "y": [true, false], "é\"\\/": "é\u007f\n\u0001\u2028"}, "e": [], "f": {}}"#;
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(
            json(&value, &style(None)),
            "{\"b\": [1, 2.0, -0.0, 1e+16, 1.5e-05, 0.0001, 123456789012345.6, 1e+22, 5e-324], \"a\": {\"x\": null, \"y\": [true, false], \"é\\\"\\\\/\": \"é\u{7f}\\n\\u0001\u{2028}\"}, \"e\": [], \"f\": {}}"
        );
        let value: Value = serde_json::from_str(r#"{"b":[1,{"c":2}],"a":{},"😀":[]}"#).unwrap();
        assert_eq!(
            json(&value, &style(Some(2))),
            "{\n  \"b\": [\n    1,\n    {\n      \"c\": 2\n    }\n  ],\n  \"a\": {},\n  \"😀\": []\n}"
        );
        let compact =
            JsonStyle { separators: (",".into(), ":".into()), sort_keys: true, ensure_ascii: true, ..style(None) };
        assert_eq!(json(&value, &compact), "{\"a\":{},\"b\":[1,{\"c\":2}],\"\\ud83d\\ude00\":[]}");
    }
}
