//! `[data]`: which rows there are and what is learnt of them.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[data]`
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// A file, several, or folders: JSONL, a JSON array or Parquet, also compressed with gzip or zstd.
    pub train_data_path: DataPaths,
    /// What a row that is no UTF-8 or no JSON does.
    #[serde(default)]
    pub bad_rows: BadRows,
    /// A chat template to use instead of the model's own.
    #[serde(default)]
    pub chat_template_path: Option<PathBuf>,
    /// Variables that the chat template reads, for example `{ enable_thinking = false }`.
    #[serde(default)]
    pub template_variables: toml::Table,
    /// Which of the assistant's turns are supervised.
    #[serde(default)]
    pub supervised_turns: SupervisedTurns,
    /// Whether reasoning is supervised like the answer that follows it.
    #[serde(default = "defaults::yes")]
    pub supervise_reasoning: bool,
    /// In rows of pre-rendered text: what opens the assistant's words, and what ends them (supervised too).
    #[serde(default)]
    pub text_markers: Option<[String; 2]>,
    /// Share of the rows that are kept out of training, chosen by a hash of the row.
    #[serde(default)]
    pub held_out_share: f64,
    /// Rows are cut to this many tokens.
    #[serde(default = "defaults::max_length")]
    pub max_length: u32,
    /// Tokens of one packed batch at most; at least `max_length`.
    #[serde(default = "defaults::batch_tokens")]
    pub batch_tokens: u32,
    /// Upper row lengths of the length buckets, ascending; the last is raised to `max_length`. Empty: one bucket.
    #[serde(default)]
    pub bucket_bounds: Vec<u32>,
    /// The run is refused when more than this share of the rows is dropped.
    #[serde(default = "defaults::max_dropped")]
    pub max_dropped: f64,
    /// Where tokenised rows are kept between runs.
    #[serde(default = "defaults::cache_dir")]
    pub cache_dir: PathBuf,
}

/// What a row that cannot be read does.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum BadRows {
    /// It is dropped and counted.
    #[default]
    Skip,
    /// It stops the run.
    Stop,
}

/// Which of the assistant's turns are supervised.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum SupervisedTurns {
    /// Every one.
    #[default]
    All,
    /// The last one of a conversation.
    Last,
}

/// Files and folders, in order; written as one text or as a list.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(from = "OneOrMore", into = "OneOrMore")]
pub struct DataPaths(pub Vec<PathBuf>);

#[derive(Clone, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a path or a list of paths")]
enum OneOrMore {
    One(PathBuf),
    More(Vec<PathBuf>),
}

impl From<OneOrMore> for DataPaths {
    fn from(paths: OneOrMore) -> DataPaths {
        match paths {
            OneOrMore::One(path) => DataPaths(vec![path]),
            OneOrMore::More(paths) => DataPaths(paths),
        }
    }
}

impl From<DataPaths> for OneOrMore {
    fn from(DataPaths(mut paths): DataPaths) -> OneOrMore {
        match paths.len() {
            1 => OneOrMore::One(paths.remove(0)),
            _ => OneOrMore::More(paths),
        }
    }
}

impl fmt::Display for DataPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(|path| path.display().to_string()).collect();
        f.write_str(&texts.join(", "))
    }
}

mod defaults {
    use std::path::PathBuf;

    pub(super) fn yes() -> bool {
        true
    }
    pub(super) fn max_length() -> u32 {
        3072
    }
    pub(super) fn batch_tokens() -> u32 {
        12_288
    }
    pub(super) fn max_dropped() -> f64 {
        0.5
    }
    pub(super) fn cache_dir() -> PathBuf {
        PathBuf::from("runs/token-store")
    }
}
