//! What a row of a data file may be.

use serde_json::{Map, Value};

use super::{Conversation, Message, kind};
use crate::row::{RowFault, TokenRow};

/// Keys of a question with its answer.
const PAIRS: [(&str, &str); 3] = [("prompt", "response"), ("prompt", "completion"), ("question", "answer")];

/// A row of the data file.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Messages: `messages`, `conversations`, or a question with its answer.
    Chat(Conversation),
    /// `text`: rendered already.
    Text(String),
    /// `input_ids` and `loss_mask`: tokenised already.
    Tokens(TokenRow),
}

impl Record {
    /// Reads one row's JSON text.
    ///
    /// # Errors
    /// Not UTF-8, not JSON, or nothing that can be learnt from.
    pub fn parse(bytes: &[u8]) -> Result<Record, RowFault> {
        let text = std::str::from_utf8(bytes).map_err(|error| RowFault::NotUtf8(error.valid_up_to() + 1))?;
        let row: Value = serde_json::from_str(text).map_err(|error| RowFault::Json(error.to_string()))?;
        let Value::Object(mut row) = row else { return Err(RowFault::NotObject(kind(&row))) };
        let listed = ["messages", "conversations"].into_iter().find_map(|key| Some((key, row.remove(key)?)));
        if let Some((key, messages)) = listed {
            return Conversation::of(key, messages, row.remove("tools")).map(Record::Chat);
        }
        if let Some(ids) = row.get("input_ids") {
            return tokens(ids, row.get("loss_mask")).map(Record::Tokens);
        }
        let pair =
            PAIRS.into_iter().find(|(question, answer)| row.contains_key(*question) && row.contains_key(*answer));
        if let Some((question, answer)) = pair {
            let message = |role, key| text_of(&row, key).map(|text| Message::new(role, &text));
            let messages = vec![message("user", question)?, message("assistant", answer)?];
            return Ok(Record::Chat(Conversation { messages, tools: None }));
        }
        match row.contains_key("text") {
            true => text_of(&row, "text").map(Record::Text),
            false => Err(RowFault::NoMessages(row.keys().take(8).cloned().collect())),
        }
    }
}

fn text_of(row: &Map<String, Value>, key: &str) -> Result<String, RowFault> {
    match &row[key] {
        Value::String(text) => Ok(text.clone()),
        other => Err(RowFault::Field(key.to_owned(), format!("is {}, expected a string", kind(other)))),
    }
}

fn tokens(ids: &Value, mask: Option<&Value>) -> Result<TokenRow, RowFault> {
    let mask =
        mask.ok_or_else(|| RowFault::Field("loss_mask".to_owned(), "is missing beside `input_ids`".to_owned()))?;
    let token_ids = numbers("input_ids", ids, |value| u32::try_from(value.as_u64()?).ok(), "a token id")?;
    let bit = |value: &Value| match value.as_u64() {
        Some(bit @ 0..=1) => Some(bit as u8),
        _ => value.as_bool().map(u8::from),
    };
    let loss_mask = numbers("loss_mask", mask, bit, "0 or 1")?;
    if token_ids.len() != loss_mask.len() {
        let what = format!("has {} entries, `input_ids` {}", loss_mask.len(), token_ids.len());
        return Err(RowFault::Field("loss_mask".to_owned(), what));
    }
    Ok(TokenRow { token_ids, loss_mask })
}

fn numbers<T>(key: &str, list: &Value, one: impl Fn(&Value) -> Option<T>, expected: &str) -> Result<Vec<T>, RowFault> {
    let bad = |what: String| RowFault::Field(key.to_owned(), what);
    let Value::Array(list) = list else { return Err(bad(format!("is {}, expected a list", kind(list)))) };
    let entry =
        |(index, value)| one(value).ok_or_else(|| bad(format!("has {value} as entry {index}, expected {expected}")));
    list.iter().enumerate().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        Record::parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_question_with_its_answer_is_a_chat() {
        let chat = |text: &str| match Record::parse(text.as_bytes()) {
            Ok(Record::Chat(chat)) => chat.messages,
            other => panic!("{other:?}"),
        };
        let expected = vec![Message::new("user", "q"), Message::new("assistant", "a")];
        assert_eq!(chat(r#"{"prompt":"q","response":"a"}"#), expected);
        assert_eq!(chat(r#"{"prompt":"q","completion":"a","id":1}"#), expected);
        assert_eq!(chat(r#"{"question":"q","answer":"a"}"#), expected);
        assert_eq!(chat(r#"{"prompt":"x","response":"y","messages":[{"role":"user","content":"q"}]}"#), expected[..1]);
        assert_eq!(fault(r#"{"prompt":"q","response":null}"#), "bad field: `response` is null, expected a string");
        assert!(fault(r#"{"prompt":"q"}"#).starts_with("no messages: "));
    }

    #[test]
    fn text_and_tokens_pass_as_they_are() {
        assert_eq!(Record::parse(br#"{"text":"<s>hi"}"#), Ok(Record::Text("<s>hi".to_owned())));
        let tokens = TokenRow { token_ids: vec![7, 0, 9], loss_mask: vec![0, 1, 1] };
        assert_eq!(Record::parse(br#"{"input_ids":[7,0,9],"loss_mask":[0,1,true]}"#), Ok(Record::Tokens(tokens)));
        let expected = [
            (r#"{"input_ids":[7]}"#, "bad field: `loss_mask` is missing beside `input_ids`"),
            (r#"{"input_ids":7,"loss_mask":[]}"#, "bad field: `input_ids` is a number, expected a list"),
            (
                r#"{"input_ids":[7,-1],"loss_mask":[0,1]}"#,
                "bad field: `input_ids` has -1 as entry 1, expected a token id",
            ),
            (r#"{"input_ids":[7],"loss_mask":[2]}"#, "bad field: `loss_mask` has 2 as entry 0, expected 0 or 1"),
            (r#"{"input_ids":[7],"loss_mask":[]}"#, "bad field: `loss_mask` has 0 entries, `input_ids` 1"),
            (r#"{"text":["a"]}"#, "bad field: `text` is a list, expected a string"),
        ];
        for (text, reason) in expected {
            assert_eq!(fault(text), reason);
        }
    }
}
