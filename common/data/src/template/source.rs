//! Where a model folder keeps its chat template, and the special tokens a template may name.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// Why there is no template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The template to use instead of the model's cannot be read.
    #[error("{path}: {source}")]
    Override {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// tokenizer_config.json is not what it should be.
    #[error("{path}: {message}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Neither file has one.
    #[error("{dir}: no chat template: neither chat_template.jinja nor `chat_template` in tokenizer_config.json")]
    Missing {
        /// The model folder.
        dir: PathBuf,
    },
    /// Several, none of them for every conversation.
    #[error("{path}: `chat_template` has no template named 'default' (found: {})", found.join(", "))]
    NoDefault {
        /// The file.
        path: PathBuf,
        /// Names that are there.
        found: Vec<String>,
    },
    /// A variable that the template does not read.
    #[error(
        "{origin}: the chat template reads no variable '{name}' (it reads: {})",
        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
    )]
    Variable {
        /// The file.
        origin: PathBuf,
        /// The variable.
        name: String,
        /// Those it reads.
        known: Vec<String>,
    },
    /// The template engine cannot read it.
    #[error("{origin}: the chat template is broken: {message}")]
    Syntax {
        /// The file.
        origin: PathBuf,
        /// The engine's words.
        message: String,
    },
}

impl TemplateError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            TemplateError::File { .. } | TemplateError::Config { .. } => {
                "download the model folder again; tokenizer_config.json belongs to it"
            }
            TemplateError::Override { .. } => "data.chat_template_path names a file with a Jinja template",
            TemplateError::Missing { .. } => {
                "a base model has no chat template: put the one it will be served with into the folder as chat_template.jinja, or name it in data.chat_template_path"
            }
            TemplateError::NoDefault { .. } => "name the template to use in data.chat_template_path",
            TemplateError::Variable { .. } => "correct data.template_variables",
            TemplateError::Syntax { .. } => "check the template at that line",
        }
    }
}

/// A model folder's template as text.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateSource {
    /// File it was read from.
    pub origin: PathBuf,
    /// The template for every conversation.
    pub text: String,
    /// The one for conversations with tools, where there are two.
    pub tool_use: Option<String>,
    /// `bos_token`, `eos_token`, ...: the names a template knows them by.
    pub special_tokens: Map<String, Value>,
}

const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl TemplateSource {
    /// Reads `instead` if given, else `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`; the special
    /// tokens come from the latter in any case.
    ///
    /// # Errors
    /// No template, or files that cannot be read.
    pub fn read(dir: &Path, instead: Option<&Path>) -> Result<TemplateSource, TemplateError> {
        let config_path = dir.join("tokenizer_config.json");
        let config = read_config(&config_path)?;
        let special_tokens = special_tokens(&config);
        if let Some(path) = instead {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|source| TemplateError::Override { path: path.into(), source })?;
            return Ok(TemplateSource { origin: path.into(), text, tool_use: None, special_tokens });
        }
        let path = dir.join("chat_template.jinja");
        if let Some(text) = read_optional(&path)? {
            return Ok(TemplateSource { origin: path, text, tool_use: None, special_tokens });
        }
        let of =
            |text: String, tool_use| TemplateSource { origin: config_path.clone(), text, tool_use, special_tokens };
        match config.get("chat_template") {
            Some(Value::String(text)) => Ok(of(text.clone(), None)),
            Some(Value::Array(entries)) => {
                let named = |name: &str| entries.iter().find(|entry| entry["name"] == name)?["template"].as_str();
                let found = || entries.iter().filter_map(|entry| entry["name"].as_str().map(str::to_owned)).collect();
                let Some(text) = named("default") else {
                    return Err(TemplateError::NoDefault { path: config_path.clone(), found: found() });
                };
                Ok(of(text.to_owned(), named("tool_use").map(str::to_owned)))
            }
            _ => Err(TemplateError::Missing { dir: dir.into() }),
        }
    }
}

fn read_optional(path: &Path) -> Result<Option<String>, TemplateError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TemplateError::File { path: path.into(), source }),
    }
}

/// A missing file is an empty one: a folder may bring its template as chat_template.jinja alone.
fn read_config(path: &Path) -> Result<Map<String, Value>, TemplateError> {
    let Some(text) = read_optional(path)? else { return Ok(Map::new()) };
    let message = match serde_json::from_str(&text) {
        Ok(Value::Object(config)) => return Ok(config),
        Ok(_) => "expected an object".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(TemplateError::Config { path: path.into(), message })
}

/// A token is written as text or as an object with its `content`.
fn special_tokens(config: &Map<String, Value>) -> Map<String, Value> {
    let content = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(Value::from);
    let single = SPECIAL_TOKENS.iter().filter_map(|&name| Some((name.to_owned(), content(config.get(name)?)?)));
    let mut tokens: Map<String, Value> = single.collect();
    if let Some(Value::Array(more)) = config.get("additional_special_tokens") {
        tokens.insert("additional_special_tokens".to_owned(), more.iter().filter_map(content).collect());
    }
    tokens
}
