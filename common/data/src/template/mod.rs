//! The model's own chat template, rendered as transformers renders it.
//!
//! Blocks are trimmed as there, Python's methods work on strings, lists and mappings, `tojson` writes what `json.dumps`
//! writes, `raise_exception` refuses a conversation and `strftime_now` tells the time. That time is the moment the
//! template was read: one run renders one date. Generation tags mark what the assistant wrote.

mod generation;
mod python;
mod source;

use std::fmt::Write;
use std::ops::Range;

use chrono::{DateTime, Local};
use minijinja::value::{Kwargs, ValueKind, ViaDeserialize};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, Value, context};
use serde_json::{Map, Value as Json};

pub use source::{TemplateError, TemplateSource};

use crate::chats::Conversation;

/// Why one conversation cannot be rendered, in the template's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RenderError(pub String);

/// What the text ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The last message.
    Closed,
    /// The opening of the assistant's next turn (`add_generation_prompt`).
    Prompt,
}

/// A compiled chat template with the special tokens it may name.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Special tokens, and variables that the user set.
    variables: Value,
    tool_template: bool,
    marks_generations: bool,
}

const DEFAULT: &str = "chat_template";
const TOOL_USE: &str = "chat_template for tool use";

impl ChatTemplate {
    /// Compiles a template. `variables` are set for every conversation.
    ///
    /// # Errors
    /// Its syntax is wrong, or it does not know one of the variables.
    pub fn new(source: &TemplateSource, variables: &Map<String, Json>) -> Result<ChatTemplate, TemplateError> {
        let mut environment = environment(Local::now());
        let mut add = |name: &'static str, text: &str| {
            environment
                .add_template_owned(name, generation::as_filters(text))
                .map_err(|error| TemplateError::Syntax { origin: source.origin.clone(), message: one_line(&error) })
        };
        add(DEFAULT, &source.text)?;
        if let Some(text) = &source.tool_use {
            add(TOOL_USE, text)?;
        }
        check_variables(&environment, source, variables)?;
        let both = source.special_tokens.iter().chain(variables);
        let texts = [Some(&source.text), source.tool_use.as_ref()];
        Ok(ChatTemplate {
            variables: Value::from_serialize(both.collect::<std::collections::BTreeMap<_, _>>()),
            tool_template: source.tool_use.is_some(),
            marks_generations: texts.into_iter().flatten().all(|text| generation::as_filters(text) != *text),
            environment,
        })
    }

    /// Whether the template itself says what the assistant wrote.
    #[must_use]
    pub fn marks_generations(&self) -> bool {
        self.marks_generations
    }

    /// A conversation as text.
    ///
    /// # Errors
    /// The template refuses it, or does with it what cannot be done.
    pub fn render(&self, conversation: &Conversation, ending: Ending) -> Result<String, RenderError> {
        Ok(generation::take_marks(self.rendered(conversation, ending)?)?.0)
    }

    /// A closed conversation as text, and the byte ranges that the template marks as the assistant's, ascending.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_marked(&self, conversation: &Conversation) -> Result<(String, Vec<Range<usize>>), RenderError> {
        generation::take_marks(self.rendered(conversation, Ending::Closed)?)
    }

    fn rendered(&self, conversation: &Conversation, ending: Ending) -> Result<String, RenderError> {
        let name = if self.tool_template && conversation.tools.is_some() { TOOL_USE } else { DEFAULT };
        let template = self.environment.get_template(name).map_err(|error| RenderError(one_line(&error)))?;
        let context = context! {
            messages => Value::from_serialize(&conversation.messages),
            tools => conversation.tools.as_ref().map(Value::from_serialize),
            documents => (),
            add_generation_prompt => ending == Ending::Prompt,
            ..self.variables.clone()
        };
        template.render(context).map_err(|error| RenderError(one_line(&error)))
    }
}

/// Names that a template gets from us, not from the user.
const OWN_NAMES: [&str; 12] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "raise_exception",
    "strftime_now",
    "namespace",
    "range",
    "dict",
    "loop",
    "cycler",
    "joiner",
];

/// Refuses variables that no template reads.
fn check_variables(
    environment: &Environment,
    source: &TemplateSource,
    variables: &Map<String, Json>,
) -> Result<(), TemplateError> {
    let templates = environment.templates().map(|(_, template)| template);
    let read = templates.flat_map(|template| template.undeclared_variables(false));
    let own = |name: &str| OWN_NAMES.contains(&name) || source.special_tokens.contains_key(name);
    let known: std::collections::BTreeSet<String> = read.filter(|name| !own(name)).collect();
    match variables.keys().find(|name| !known.contains(*name)) {
        None => Ok(()),
        Some(name) => Err(TemplateError::Variable {
            origin: source.origin.clone(),
            name: name.clone(),
            known: known.into_iter().collect(),
        }),
    }
}

/// The engine set up as transformers sets up Jinja.
fn environment(now: DateTime<Local>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_debug(false);
    environment.set_formatter(|out, _, value| write_value(out, value));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_filter(generation::FILTER, generation::mark);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |format: String| strftime(now, &format));
    environment
}

/// What `{{ value }}` writes. The engine writes text and whole numbers as Python does, but not everything else.
fn write_value(out: &mut Output, value: &Value) -> Result<(), Error> {
    let text = match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Number => python::repr(value)?,
        _ => return Ok(write!(out, "{value}")?),
    };
    Ok(out.write_str(&text)?)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime(now: DateTime<Local>, format: &str) -> Result<String, Error> {
    let mut text = String::new();
    match write!(text, "{}", now.format(format)) {
        Ok(()) => Ok(text),
        Err(_) => Err(Error::new(ErrorKind::InvalidOperation, format!("strftime_now cannot write '{format}'"))),
    }
}

fn to_json(ViaDeserialize(value): ViaDeserialize<serde_json::Value>, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let separators = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators are two texts")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let style = python::JsonStyle {
        indent,
        separators,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    Ok(python::json(&value, &style))
}

/// An error with its causes, without the engine's names for its own kinds where the template spoke itself.
fn one_line(error: &Error) -> String {
    let mut text = match (error.kind(), error.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    if let Some(line) = error.line() {
        text = format!("{text} (template line {line})");
    }
    text
}
