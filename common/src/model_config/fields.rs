//! What target's and drafter's files have in common: reading JSON, ids that may be one or many.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ModelConfigError;

/// `eos_token_id`: one id, a list of them, or null.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(untagged)]
pub(super) enum TokenIds {
    One(u32),
    Many(Vec<u32>),
}

impl TokenIds {
    /// Null for none and a bare number for one, as published files have it.
    pub(super) fn from_slice(ids: &[u32]) -> Option<TokenIds> {
        match ids {
            [] => None,
            [id] => Some(TokenIds::One(*id)),
            _ => Some(TokenIds::Many(ids.to_vec())),
        }
    }

    pub(super) fn into_vec(ids: Option<TokenIds>) -> Vec<u32> {
        match ids {
            None => Vec::new(),
            Some(TokenIds::One(id)) => vec![id],
            Some(TokenIds::Many(ids)) => ids,
        }
    }
}

pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, ModelConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ModelConfigError::File { path: path.into(), source })?;
    serde_json::from_str(&text).map_err(|source| ModelConfigError::Parse { path: path.into(), source })
}

/// Refuses a key that is present with anything but a value that changes nothing.
pub(super) fn require_neutral(
    path: &Path,
    section: &Value,
    key: &'static str,
    neutral: &[Value],
) -> Result<(), ModelConfigError> {
    match section.get(key) {
        None | Some(Value::Null) => Ok(()),
        Some(found) if neutral.contains(found) => Ok(()),
        Some(found) => {
            let allowed = neutral.first().map_or_else(|| "no such key".to_owned(), Value::to_string);
            Err(ModelConfigError::unsupported(path, key, found, allowed))
        }
    }
}
