//! File and overrides to a checked [`Config`].

use std::path::Path;

use serde::Deserialize;
use toml::de::Deserializer;

use super::check::{self, Said};
use super::layers::Layers;
use super::{Config, ConfigError};

/// The resolved configuration's name in the run folder.
const RESOLVED_FILE: &str = "config.toml";

impl Config {
    /// Reads `path`, lays `section.key=value` overrides over it and checks every value.
    ///
    /// An override's value is TOML (`3`, `true`, `"text"`, `[1, 2]`); what is no TOML is taken as text, so paths need
    /// no quotes. An empty value takes the key out, so that it has its default.
    ///
    /// # Errors
    /// Unreadable file, bad TOML, unknown key, value out of range; each with the line or the override at fault.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::File { path: path.into(), source })?;
        let layers = Layers::new(path, &text, overrides)?;
        let table = layers.table()?;
        let said = Said { places: layers.places(table.get_ref()), file: layers.file() };
        let config = Config::deserialize(Deserializer::from(table)).map_err(|error| layers.refused(&error))?;
        check::check(&config, &said)?;
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
