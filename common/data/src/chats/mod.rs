//! A conversation as the data file holds it, brought to one shape.
use serde_json::{Map, Value};

/// One message: an object with `role` and `content`; whatever else it holds (`tool_calls`, ...) reaches the template
/// untouched.
#[derive(Clone, Debug, PartialEq)]
pub struct Message(Map<String, Value>);

impl Message {
    /// A plain text message.
    #[must_use]
    pub fn new(role: &str, content: &str) -> Message {
        let mut fields = Map::new();
        fields.insert("role".to_owned(), role.into());
        fields.insert("content".to_owned(), content.into());
        Message(fields)
    }
}

/// A row of the data file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Its messages in order.
    pub messages: Vec<Message>,
    /// The tools on offer, passed untouched to the template.
    pub tools: Option<Value>,
}
