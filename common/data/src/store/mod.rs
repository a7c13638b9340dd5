//! Tokenised rows kept on disk and memory-mapped.
//!
//! A store is a folder of plain arrays in the cache folder, named by a key over the data file, the tokenizer, the
//! template, the options and the store's own version; whatever changes one of them makes another store. The accounting
//! lies beside the rows, so opening a store tells the same as building it. One process builds, others wait for it.

mod accounting;
mod build;
mod mapping;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use common::config::Config;
use sha2::{Digest, Sha256};

pub use accounting::{Accounting, Dropped, common_reasons};
use mapping::Mapped;

use crate::chats::ReadError;
use crate::tokenizer::ChatTokenizer;

/// Raised whenever the same inputs give other rows or other files.
const VERSION: u32 = 1;

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
pub enum StoreError {
    /// The data file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It has no rows.
    #[error("{path}: no rows: the file is empty")]
    Empty {
        /// The data file.
        path: PathBuf,
    },
    /// Every row was dropped.
    #[error("{path}: none of its {rows_read} rows can be used: {reasons}")]
    NoUsableRow {
        /// The data file.
        path: PathBuf,
        /// Its rows.
        rows_read: u64,
        /// The most common reasons.
        reasons: String,
    },
    /// More rows were dropped than is allowed.
    #[error("{path}: {dropped} of {rows_read} rows dropped, more than data.max_dropped = {max_dropped}: {reasons}")]
    TooManyDropped {
        /// The data file.
        path: PathBuf,
        /// Rows dropped.
        dropped: u64,
        /// Its rows.
        rows_read: u64,
        /// The share that is allowed.
        max_dropped: f64,
        /// The most common reasons.
        reasons: String,
    },
    /// The cache folder cannot be written or read.
    #[error("{path}: {source}")]
    Cache {
        /// File or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl StoreError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            StoreError::Read(error) => error.hint(),
            StoreError::Empty { .. } | StoreError::NoUsableRow { .. } => {
                "a row is one JSON object a line: {\"messages\": [{\"role\": \"user\", \"content\": ...}, {\"role\": \"assistant\", ...}]}"
            }
            StoreError::TooManyDropped { .. } => "mend the rows named there, or raise data.max_dropped",
            StoreError::Cache { .. } => "data.cache_dir must be a folder on a disk with room that you may write to",
        }
    }
}

/// Tokenised rows, memory-mapped.
pub struct TokenStore {
    path: PathBuf,
    token_ids: Mapped<u32>,
    loss_mask: Mapped<u8>,
    ends: Mapped<u64>,
    lines: Mapped<u64>,
}

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
        progress: &dyn Fn(Progress),
    ) -> Result<(TokenStore, Accounting), StoreError> {
        let folder = options.cache_dir.join(key(options, tokenizer)?);
        let opened = match TokenStore::open(&folder) {
            Ok(opened) => opened,
            Err(_) => TokenStore::build(&folder, options, tokenizer, progress)?,
        };
        let (store, mut accounting) = opened;
        // The key looks into the data file, not at its name: it may have another one now.
        accounting.dropped.iter_mut().for_each(|row| row.file.clone_from(&options.data_path));
        check_dropped(options, &accounting)?;
        Ok((store, accounting))
    }

    fn build(
        folder: &Path,
        options: &StoreOptions,
        tokenizer: &ChatTokenizer,
        progress: &dyn Fn(Progress),
    ) -> Result<(TokenStore, Accounting), StoreError> {
        let cache = |source| StoreError::Cache { path: options.cache_dir.clone(), source };
        fs::create_dir_all(&options.cache_dir).map_err(cache)?;
        let lock = File::create(options.cache_dir.join("lock")).map_err(cache)?;
        lock.lock().map_err(cache)?;
        match TokenStore::open(folder) {
            // Another process built it in the meantime.
            Ok(opened) => return Ok(opened),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("{}: {error}: this store is built again", folder.display()),
        }
        build::remove_debris(&options.cache_dir, folder).map_err(cache)?;
        if let Err(error) = build::build(folder, options, tokenizer, progress) {
            // What failed is told; that its leavings stay until the next build is no second failure.
            let _ = build::remove_debris(&options.cache_dir, folder);
            return Err(error);
        }
        TokenStore::open(folder).map_err(cache)
    }

    /// Opens a store that is there, by the folder that [`TokenStore::path`] named.
    ///
    /// # Errors
    /// No whole store in `folder`.
    pub fn reopen(folder: &Path) -> Result<TokenStore, StoreError> {
        let opened = TokenStore::open(folder).map_err(|source| StoreError::Cache { path: folder.into(), source })?;
        Ok(opened.0)
    }

    fn open(folder: &Path) -> io::Result<(TokenStore, Accounting)> {
        let accounting: Accounting = serde_json::from_slice(&fs::read(folder.join(build::ACCOUNTING))?)?;
        let (rows, tokens) = (accounting.rows_kept, accounting.tokens);
        let store = TokenStore {
            path: folder.into(),
            token_ids: Mapped::open(&folder.join(build::TOKEN_IDS), tokens)?,
            loss_mask: Mapped::open(&folder.join(build::LOSS_MASK), tokens)?,
            ends: Mapped::open(&folder.join(build::ENDS), rows)?,
            lines: Mapped::open(&folder.join(build::LINES), rows)?,
        };
        Ok((store, accounting))
    }

    /// Number of rows; never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a store without rows is refused when it is built")]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Row `index`, from 0.
    #[must_use]
    pub fn row(&self, index: usize) -> TokenRowRef<'_> {
        let range = self.range(index);
        TokenRowRef { token_ids: &self.token_ids[range.clone()], loss_mask: &self.loss_mask[range] }
    }

    /// Tokens of row `index`.
    #[must_use]
    pub fn row_len(&self, index: usize) -> usize {
        self.range(index).len()
    }

    fn range(&self, index: usize) -> std::ops::Range<usize> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        start as usize..self.ends[index] as usize
    }

    /// Line of the data file where row `index` starts.
    #[must_use]
    pub fn line(&self, index: usize) -> u64 {
        self.lines[index]
    }

    /// Supervised tokens of row `index`.
    #[must_use]
    pub fn supervised_tokens(&self, index: usize) -> usize {
        self.row(index).loss_mask.iter().map(|&bit| usize::from(bit)).sum()
    }

    /// The folder on disk.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn check_dropped(options: &StoreOptions, accounting: &Accounting) -> Result<(), StoreError> {
    let (dropped, rows_read) = (accounting.dropped.len() as u64, accounting.rows_read);
    if dropped as f64 <= options.max_dropped * rows_read as f64 {
        return Ok(());
    }
    Err(StoreError::TooManyDropped {
        path: options.data_path.clone(),
        dropped,
        rows_read,
        max_dropped: options.max_dropped,
        reasons: common_reasons(&accounting.dropped, 3),
    })
}

/// The store's name: a hash over everything its rows depend on.
fn key(options: &StoreOptions, tokenizer: &ChatTokenizer) -> Result<String, StoreError> {
    let read = |source| ReadError::File { path: options.data_path.clone(), source };
    let mut hash = Sha256::new();
    hash.update(VERSION.to_le_bytes());
    hash.update(options.max_length.to_le_bytes());
    hash.update(tokenizer.fingerprint());
    let mut file = File::open(&options.data_path).map_err(read)?;
    io::copy(&mut file, &mut hash).map_err(read)?;
    Ok(hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}
