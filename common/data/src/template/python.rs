//! Python's `json.dumps`, which chat templates reach through `tojson`.

use std::fmt::Write;

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

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => float_text(float),
        _ => number.to_string(),
    }
}

/// Python's `repr` of a finite float: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
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

    /// Expected texts are the output of Python 3.11's json.dumps.
    #[test]
    fn writes_what_python_writes() {
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
