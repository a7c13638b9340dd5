//! Tokenised rows kept on disk and memory-mapped.
use std::path::{Path, PathBuf};

use common::config::Config;
use serde::{Deserialize, Serialize};

use crate::tokenizer::ChatTokenizer;

/// What to build a store from, where to keep it and how much may be lost.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The chats.
    pub data_path: PathBuf,
    /// Where stores are kept between runs.
    pub cache_dir: PathBuf,
    /// Rows are cut to this many tokens.
    pub max_length: u32,
    /// Refuse when more than this share of the rows is dropped.
    pub max_dropped: f64,
}

impl StoreOptions {
    /// The options of a run.
    #[must_use]
    pub fn of(config: &Config) -> StoreOptions {
        let data = &config.data;
        StoreOptions {
            data_path: data.train_data_path.clone(),
            cache_dir: data.cache_dir.clone(),
            max_length: data.max_length,
            max_dropped: data.max_dropped,
        }
    }
}

/// What became of every row. `rows_kept + dropped.len() == rows_read`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounting {
    /// Rows in the data file.
    pub rows_read: u64,
    /// Rows in the store.
    pub rows_kept: u64,
    /// Kept rows that were cut to `max_length`.
    pub truncated: u64,
    /// Supervised tokens in the store.
    pub supervised_tokens: u64,
    /// Supervised tokens that the cuts took away from kept rows.
    pub supervised_tokens_lost: u64,
    /// Rows that were not kept.
    pub dropped: Vec<Dropped>,
}

/// A row that was not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Data file.
    pub file: PathBuf,
    /// Line where the row starts, from 1.
    pub line: u64,
    /// Why; the words before the first colon name the kind.
    pub reason: String,
}

/// How far a build is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows read.
    pub rows: u64,
    /// Bytes of the data file read.
    pub bytes: u64,
    /// Its size.
    pub total_bytes: u64,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {}

/// Tokenised rows, memory-mapped.
pub struct TokenStore {}

/// One row of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRowRef<'a> {
    /// The whole rendering.
    pub token_ids: &'a [u32],
    /// 1 where the token is supervised, else 0.
    pub loss_mask: &'a [u8],
}

impl TokenStore {
    /// Opens the store of these inputs, after building it if it is not there yet. `progress` is called during a build.
    ///
    /// # Errors
    /// Unreadable or empty data, no usable row, too many dropped rows, a cache folder that cannot be written.
    pub fn open_or_build(
        options: &StoreOptions,
        tokenizer: &ChatTokenizer,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<(TokenStore, Accounting), StoreError> {
        progress(Progress { rows: 0, bytes: 0, total_bytes: 0 });
        unimplemented!("{options:?} {}", tokenizer.vocab_len())
    }

    /// Number of rows; never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a store without rows is refused when it is built")]
    pub fn len(&self) -> usize {
        unimplemented!()
    }

    /// Row `index`, from 0.
    #[must_use]
    pub fn row(&self, index: usize) -> TokenRowRef<'_> {
        unimplemented!("{index}")
    }

    /// Tokens of row `index`.
    #[must_use]
    pub fn row_len(&self, index: usize) -> usize {
        unimplemented!("{index}")
    }

    /// Line of the data file where row `index` starts.
    #[must_use]
    pub fn line(&self, index: usize) -> u64 {
        unimplemented!("{index}")
    }

    /// Supervised tokens of row `index`.
    #[must_use]
    pub fn supervised_tokens(&self, index: usize) -> usize {
        unimplemented!("{index}")
    }

    /// The folder on disk.
    #[must_use]
    pub fn path(&self) -> &Path {
        unimplemented!()
    }
}
