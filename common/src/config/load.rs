//! File and overrides to a checked [`Config`].

use std::path::Path;

use super::{Config, ConfigError};

/// The resolved configuration's name in the run folder.
const RESOLVED_FILE: &str = "config.toml";

impl Config {
    /// Reads `path`, lays `section.key=value` overrides over it and checks every value.
    ///
    /// An override's value is TOML (`3`, `true`, `"text"`, `[1, 2]`); what is no TOML is taken as text, so paths need
    /// no quotes.
    ///
    /// # Errors
    /// Unreadable file, bad TOML, unknown key, value out of range.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::File { path: path.into(), source })?;
        let file = path.display().to_string();
        let origin = if overrides.is_empty() { file.clone() } else { format!("{file} with {}", overrides.join(" ")) };
        let config = match overrides {
            [] => parse(&text, file)?,
            _ => {
                let mut table: toml::Table = parse(&text, file)?;
                for text in overrides {
                    lay_over(&mut table, text)?;
                }
                table.try_into().map_err(|error: toml::de::Error| {
                    let message = error.to_string().trim_end().to_owned();
                    ConfigError::Parse { origin: origin.clone(), message }
                })?
            }
        };
        super::check::check(&config, &origin)?;
        Ok(config)
    }

    /// Reads the resolved configuration of a run folder.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn of_run(run_dir: &Path) -> Result<Config, ConfigError> {
        Config::load(&run_dir.join(RESOLVED_FILE), &[])
    }

    /// Writes the configuration into the run folder.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, run_dir: &Path) -> Result<(), ConfigError> {
        let path = run_dir.join(RESOLVED_FILE);
        let text = toml::to_string(self).expect("a Config has only keys and values that TOML can hold");
        std::fs::write(&path, text).map_err(|source| ConfigError::File { path, source })
    }
}

fn parse<T: serde::de::DeserializeOwned>(text: &str, origin: String) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        ConfigError::Parse { origin: format!("{origin}:{line}"), message: error.message().to_owned() }
    })
}

fn lay_over(table: &mut toml::Table, text: &str) -> Result<(), ConfigError> {
    let not_one = || ConfigError::Override(text.to_owned());
    let (key, value) = text.split_once('=').ok_or_else(not_one)?;
    let (section, key) = key.split_once('.').ok_or_else(not_one)?;
    let section = table.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
    section.as_table_mut().ok_or_else(not_one)?.insert(key.to_owned(), value_of(value));
    Ok(())
}

fn value_of(text: &str) -> toml::Value {
    let line = format!("value = {text}");
    let parsed = toml::from_str::<toml::Table>(&line).ok().and_then(|mut table| table.remove("value"));
    parsed.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}
