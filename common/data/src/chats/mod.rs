//! Conversations as data files hold them, brought to one shape.
//!
//! A row is a [`Record`]; most are conversations. A message has `role` and `content` (text, or a list of text parts), or
//! ShareGPT's `from` and `value`. Everything else of a message reaches the template untouched.

mod files;
mod reader;
mod record;

use serde_json::{Map, Value};

pub use files::{FileRows, files};
pub use reader::{RawRow, ReadError, RowReader};
pub use record::Record;

use crate::row::RowFault;

/// Roles that reach a template. What a template makes of them is its own affair.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// One message: an object with `role`, and `content` unless it only calls tools.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(transparent)]
pub struct Message(Map<String, Value>);

impl Message {
    /// A plain text message.
    #[must_use]
    pub fn new(role: &str, content: &str) -> Message {
        let fields = [("role".to_owned(), role.into()), ("content".to_owned(), content.into())];
        Message(fields.into_iter().collect())
    }

    /// `system`, `user`, `assistant`, ...
    #[must_use]
    pub fn role(&self) -> &str {
        self.text("role").expect("a message is only made with a role")
    }

    /// The value of `key` where it is text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(Value::as_str)
    }

    /// Whether the message calls tools.
    #[must_use]
    pub fn calls_tools(&self) -> bool {
        self.0.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty())
    }

    /// Whether it calls tools and says nothing.
    #[must_use]
    pub fn only_calls_tools(&self) -> bool {
        self.calls_tools() && self.text("content").is_none_or(|text| text.trim().is_empty())
    }

    /// The same message with another text under `key`.
    #[must_use]
    pub fn with_text(mut self, key: &str, text: &str) -> Message {
        self.0.insert(key.to_owned(), text.into());
        self
    }

    /// `number` counts from 1 and only serves the reason.
    fn parse(number: usize, value: Value) -> Result<Message, RowFault> {
        let bad = |what: String| RowFault::Message(number, what);
        let Value::Object(mut fields) = value else {
            return Err(bad(format!("is {}, not an object", kind(&value))));
        };
        if !fields.contains_key("role")
            && let Some(from) = fields.remove("from")
        {
            let content = fields.remove("value").ok_or_else(|| bad("has `from` but no `value`".to_owned()))?;
            let role = from.as_str().map_or(from.clone(), |from| sharegpt_role(from).into());
            fields.insert("role".to_owned(), role);
            fields.insert("content".to_owned(), content);
        }
        match fields.get("role") {
            None => return Err(bad("has no role".to_owned())),
            Some(Value::String(role)) if ROLES.contains(&role.as_str()) => {}
            Some(Value::String(role)) => return Err(RowFault::Role(number, role.clone())),
            Some(other) => return Err(bad(format!("has {} as role", kind(other)))),
        }
        if let Some(Value::Array(parts)) = fields.get("content") {
            let text = joined(parts).map_err(|kind| bad(format!("holds {kind} among its parts, expected text")))?;
            fields.insert("content".to_owned(), text.into());
        }
        let message = Message(fields);
        match message.0.get("content") {
            Some(Value::String(_)) => Ok(message),
            None | Some(Value::Null) if message.calls_tools() => Ok(message),
            None => Err(bad("has no content".to_owned())),
            Some(other) => Err(bad(format!("has {} as content", kind(other)))),
        }
    }
}

/// The text of a list of parts: `{"type": "text", "text": ...}` or plain strings. What else there is, as the error.
fn joined(parts: &[Value]) -> Result<String, String> {
    let text = |part: &Value| match (part, part.get("type").and_then(Value::as_str), part.get("text")) {
        (Value::String(text), ..) | (_, None | Some("text"), Some(Value::String(text))) => Ok(text.clone()),
        (_, Some(other), _) => Err(format!("a part of type '{other}'")),
        (other, ..) => Err(kind(other).to_owned()),
    };
    parts.iter().map(text).collect()
}

/// ShareGPT's names for the speakers; others pass as they are.
fn sharegpt_role(from: &str) -> &str {
    match from {
        "human" => "user",
        "gpt" => "assistant",
        other => other,
    }
}

/// Messages in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Its messages in order; at least one.
    pub messages: Vec<Message>,
    /// The tools on offer, passed untouched to the template.
    pub tools: Option<Value>,
}

impl Conversation {
    /// Reads one row's JSON text.
    ///
    /// # Errors
    /// Not UTF-8, not JSON, not a conversation.
    pub fn parse(bytes: &[u8]) -> Result<Conversation, RowFault> {
        match Record::parse(bytes)? {
            Record::Chat(conversation) => Ok(conversation),
            Record::Text(_) | Record::Tokens(_) => Err(RowFault::NotChat),
        }
    }

    /// The messages under `key`, with the tools on offer.
    fn of(key: &'static str, messages: Value, tools: Option<Value>) -> Result<Conversation, RowFault> {
        let tools = match tools {
            None | Some(Value::Null) => None,
            Some(tools @ Value::Array(_)) => Some(tools),
            Some(other) => return Err(RowFault::Tools(kind(&other))),
        };
        let messages = match messages {
            Value::Array(messages) if !messages.is_empty() => messages,
            Value::Array(_) => return Err(RowFault::Empty(key)),
            other => return Err(RowFault::NotList(key, kind(&other))),
        };
        let messages = messages.into_iter().enumerate().map(|(index, value)| Message::parse(index + 1, value));
        Ok(Conversation { messages: messages.collect::<Result<_, _>>()?, tools })
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        Conversation::parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn both_spellings_give_the_same_conversation() {
        let expected = vec![Message::new("user", "hi"), Message::new("assistant", "yes")];
        for text in [
            r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yes"}]}"#,
            r#"{"conversations":[{"role":"user","content":"hi"},{"role":"assistant","content":"yes"}]}"#,
            r#"{"id":7,"conversations":[{"from":"human","value":"hi"},{"from":"gpt","value":"yes"}]}"#,
        ] {
            assert_eq!(Conversation::parse(text.as_bytes()).unwrap().messages, expected);
        }
    }

    #[test]
    fn what_a_message_holds_besides_is_kept_in_order() {
        let text = r#"{"messages":[{"role":"assistant","tool_calls":[{"b":1,"a":2.0}],"content":null,"x":"y"}],"tools":[{"t":1}]}"#;
        let conversation = Conversation::parse(text.as_bytes()).unwrap();
        let kept = serde_json::to_string(&conversation.messages[0]).unwrap();
        assert_eq!(kept, r#"{"role":"assistant","tool_calls":[{"b":1,"a":2.0}],"content":null,"x":"y"}"#);
        assert_eq!(conversation.tools.unwrap().to_string(), r#"[{"t":1}]"#);
    }

    #[test]
    fn every_odd_row_has_its_reason() {
        let expected = [
            (r#"{"messages":"#, "not JSON: "),
            (r#"{"messages":[{"role":"user","content":"\ud83d"}]}"#, "not JSON: "),
            ("[1]", "not a chat: the row is a list, expected an object"),
            (r#"{"words":"a","id":1}"#, "no messages: neither `messages` nor `conversations` among the keys words, id"),
            (r#"{"messages":[]}"#, "no messages: `messages` is empty"),
            (r#"{"messages":"hi"}"#, "no messages: `messages` is a string, expected a list"),
            (r#"{"messages":["hi"]}"#, "bad message: number 1 is a string, not an object"),
            (r#"{"messages":[{"content":"a"}]}"#, "bad message: number 1 has no role"),
            (r#"{"messages":[{"role":3,"content":"a"}]}"#, "bad message: number 1 has a number as role"),
            (r#"{"messages":[{"role":"user"}]}"#, "bad message: number 1 has no content"),
            (r#"{"messages":[{"role":"user","content":null}]}"#, "bad message: number 1 has null as content"),
            (r#"{"messages":[{"from":"gpt"}]}"#, "bad message: number 1 has `from` but no `value`"),
            (r#"{"messages":[{"from":"bing","value":"a"}]}"#, "unknown role: 'bing' of message 1"),
            (r#"{"tools":"[]","messages":[]}"#, "bad tools: a string, expected a list"),
        ];
        for (text, reason) in expected {
            assert!(fault(text).starts_with(reason), "{text}: {}", fault(text));
        }
        let fault = Conversation::parse(b"{\"a\xFF").unwrap_err().to_string();
        assert_eq!(fault, "not UTF-8: the row's byte 4");
    }
}
