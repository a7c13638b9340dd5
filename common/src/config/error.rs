//! What can be wrong with a configuration.

use std::path::PathBuf;

/// Each names the line of the file or the override of the command line, the key, what was found and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value of the wrong kind.
    #[error("{origin}: {message}")]
    Parse {
        /// File and line, or override.
        origin: String,
        /// The parser's words: key, found, allowed.
        message: String,
    },
    /// An override that is not `section.key=value`.
    #[error("command line: '{0}' is not section.key=value")]
    Override(String),
    /// A value outside what is allowed.
    #[error("{origin}: {key}: found {found}, allowed: {allowed}")]
    Value {
        /// File and line, or override.
        origin: String,
        /// `section.key`.
        key: &'static str,
        /// The value.
        found: String,
        /// What would do.
        allowed: String,
    },
}
