//! A file with overrides laid over it, each value still knowing where it was said.
//!
//! TOML positions are offsets into the file's text. An override is parsed as if its text stood behind the file's, so
//! that one offset says which of them is at fault.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

use super::ConfigError;

pub(super) struct Layers<'a> {
    file: String,
    text: &'a str,
    overrides: Vec<Override<'a>>,
}

/// One `section.key=value`.
struct Override<'a> {
    said: &'a str,
    section: &'a str,
    key: &'a str,
    value: &'a str,
    /// Where its stretch begins, behind the file's text and the overrides before it.
    start: usize,
    /// The value as a line of TOML that begins there.
    line: String,
}

impl<'a> Layers<'a> {
    pub(super) fn new(path: &Path, text: &'a str, overrides: &'a [String]) -> Result<Layers<'a>, ConfigError> {
        let mut start = text.len() + 1;
        let mut layers = Layers { file: path.display().to_string(), text, overrides: Vec::new() };
        for said in overrides {
            let not_one = || ConfigError::Override(said.to_owned());
            let (key, value) = said.split_once('=').ok_or_else(not_one)?;
            let (section, key) = key.split_once('.').ok_or_else(not_one)?;
            let line = format!("{:start$}v={value}", "");
            let next = line.len() + 1;
            layers.overrides.push(Override { said, section, key, value, start, line });
            start = next;
        }
        Ok(layers)
    }

    /// The file with every override in its place.
    pub(super) fn table(&self) -> Result<Spanned<DeTable<'_>>, ConfigError> {
        let mut table = DeTable::parse(self.text).map_err(|error| self.refused(&error))?;
        for layer in &self.overrides {
            layer.lay_over(table.get_mut())?;
        }
        Ok(table)
    }

    /// Where each `section.key` of the table was said.
    pub(super) fn places(&self, table: &DeTable<'_>) -> BTreeMap<String, String> {
        let sections = table.iter().filter_map(|(name, section)| Some((name.get_ref(), section.get_ref().as_table()?)));
        let keys = sections.flat_map(|(section, keys)| keys.keys().map(move |key| (section, key)));
        keys.map(|(section, key)| (format!("{section}.{}", key.get_ref()), self.place(key.span().start))).collect()
    }

    /// The parser's words, with the place they are about; in the file, with what stands there.
    pub(super) fn refused(&self, error: &Error) -> ConfigError {
        // What is missing is missing in the whole file.
        let span = error.span().filter(|span| *span != (0..self.text.len()));
        let origin = span.as_ref().map_or_else(|| self.file.clone(), |span| self.place(span.start));
        let line = span.and_then(|span| self.line(span.start)).map(|line| format!("`{line}`: ")).unwrap_or_default();
        ConfigError::Parse { origin, message: line + error.message() }
    }

    /// The file's line around a position; none for an override, whose place says it all.
    fn line(&self, position: usize) -> Option<&str> {
        let (before, after) = self.text.split_at_checked(position)?;
        let (before, after) = (before.rsplit('\n').next()?, after.split('\n').next()?);
        let line = &self.text[position - before.len()..position + after.len()];
        Some(line.trim()).filter(|line| !line.is_empty())
    }

    /// The file, for what was said nowhere.
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    fn place(&self, position: usize) -> String {
        match self.overrides.iter().rev().find(|layer| layer.start <= position) {
            Some(layer) => format!("command line: {}", layer.said),
            None => {
                let before = &self.text[..position.min(self.text.len())];
                format!("{}:{}", self.file, 1 + before.matches('\n').count())
            }
        }
    }
}

impl Override<'_> {
    fn lay_over<'a>(&'a self, table: &mut DeTable<'a>) -> Result<(), ConfigError> {
        let not_one = || ConfigError::Override(self.said.to_owned());
        let span = self.start..self.start + 1;
        if table.get(self.section).is_none() {
            let section = Spanned::new(span.clone(), DeValue::Table(DeTable::new()));
            table.insert(Spanned::new(span.clone(), Cow::from(self.section)), section);
        }
        let section = table.get_mut(self.section).map(Spanned::get_mut);
        let Some(DeValue::Table(section)) = section else { return Err(not_one()) };
        // The key goes too: it knows its place.
        section.remove(self.key);
        if !self.value.is_empty() {
            section.insert(Spanned::new(span, Cow::from(self.key)), self.value());
        }
        Ok(())
    }

    /// The value as TOML; as text where it is none.
    fn value(&self) -> Spanned<DeValue<'_>> {
        let parsed = DeTable::parse(&self.line).ok().filter(|table| table.get_ref().len() == 1);
        let value = parsed.and_then(|mut table| table.get_mut().remove("v"));
        let span = self.start..self.start + 1;
        value.unwrap_or_else(|| Spanned::new(span, DeValue::String(Cow::from(self.value))))
    }
}
