//! Tokenised rows kept on disk and memory-mapped.
//!
//! A store is a folder of plain arrays in the cache folder, named by a key over the data files, the tokenizer, the
//! template, the options and the store's own version; whatever changes one of them makes another store. The accounting
//! lies beside the rows, so opening a store tells the same as building it. One process builds, others wait for it.

mod accounting;
mod build;
mod mapping;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use common::config::{BadRows, Config, DataPaths};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use accounting::{Accounting, Dropped, common_reasons};
use mapping::Mapped;

use crate::chats::ReadError;
use crate::pass::{PassError, PassOptions, Progress, data_files};
use crate::tokenizer::ChatTokenizer;

/// Raised whenever the same inputs give other rows or other files.
const VERSION: u32 = 2;

/// What to build a store from, where to keep it and how much may be lost.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The rows.
    pub pass: PassOptions,
    /// Where stores are kept between runs.
    pub cache_dir: PathBuf,
    /// Refuse when more than this share of the rows is dropped.
    pub max_dropped: f64,
}

impl StoreOptions {
    /// The options of a run.
    #[must_use]
    pub fn of(config: &Config) -> StoreOptions {
        let data = &config.data;
        StoreOptions { pass: PassOptions::of(config), cache_dir: data.cache_dir.clone(), max_dropped: data.max_dropped }
    }

    /// The data's name in messages.
    fn data(&self) -> DataPaths {
        DataPaths(self.pass.data_paths.clone())
    }
}

/// What lies beside a store's arrays.
#[derive(Serialize, Deserialize)]
struct Contents {
    /// Names of the data files when it was built.
    files: Vec<PathBuf>,
    accounting: Accounting,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The data cannot be read.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// It has no rows.
    #[error("{data}: no rows: the file is empty")]
    Empty {
        /// Its files.
        data: DataPaths,
    },
    /// Every row was dropped.
    #[error("{data}: none of its {rows_read} rows can be used: {reasons}")]
    NoUsableRow {
        /// Its files.
        data: DataPaths,
        /// Its rows.
        rows_read: u64,
        /// The most common reasons.
        reasons: String,
    },
    /// More rows were dropped than is allowed.
    #[error("{data}: {dropped} of {rows_read} rows dropped, more than data.max_dropped = {max_dropped}: {reasons}")]
    TooManyDropped {
        /// The data's files.
        data: DataPaths,
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
            StoreError::Pass(error) => error.hint(),
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
        let files = data_files(&options.pass).map_err(PassError::from)?;
        let folder = options.cache_dir.join(key(&files, options, tokenizer)?);
        let (store, contents) = match TokenStore::open(&folder) {
            Ok(opened) => opened,
            Err(_) => TokenStore::build(&folder, &files, options, tokenizer, progress)?,
        };
        let accounting = contents.under_names(&files);
        check_dropped(options, &accounting)?;
        Ok((store, accounting))
    }

    fn build(
        folder: &Path,
        files: &[PathBuf],
        options: &StoreOptions,
        tokenizer: &ChatTokenizer,
        progress: &dyn Fn(Progress),
    ) -> Result<(TokenStore, Contents), StoreError> {
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
        if let Err(error) = build::build(folder, files, options, tokenizer, progress) {
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

    fn open(folder: &Path) -> io::Result<(TokenStore, Contents)> {
        let contents: Contents = serde_json::from_slice(&fs::read(folder.join(build::CONTENTS))?)?;
        let (rows, tokens) = (contents.accounting.rows_kept, contents.accounting.tokens);
        let store = TokenStore {
            path: folder.into(),
            token_ids: Mapped::open(&folder.join(build::TOKEN_IDS), tokens)?,
            loss_mask: Mapped::open(&folder.join(build::LOSS_MASK), tokens)?,
            ends: Mapped::open(&folder.join(build::ENDS), rows)?,
            lines: Mapped::open(&folder.join(build::LINES), rows)?,
        };
        Ok((store, contents))
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
        data: options.data(),
        dropped,
        rows_read,
        max_dropped: options.max_dropped,
        reasons: common_reasons(&accounting.dropped, 3),
    })
}

/// The store's name: a hash over everything its rows depend on.
fn key(files: &[PathBuf], options: &StoreOptions, tokenizer: &ChatTokenizer) -> Result<String, StoreError> {
    let mut hash = Sha256::new();
    hash.update(VERSION.to_le_bytes());
    hash.update(options.pass.max_length.to_le_bytes());
    hash.update(options.pass.held_out_share.to_le_bytes());
    hash.update([u8::from(options.pass.bad_rows == BadRows::Stop)]);
    hash.update(tokenizer.fingerprint());
    for path in files {
        let read = |source| PassError::Read(ReadError::File { path: path.clone(), source });
        let mut file = File::open(path).map_err(read)?;
        let bytes = io::copy(&mut file, &mut hash).map_err(read)?;
        hash.update(bytes.to_le_bytes());
    }
    Ok(hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

impl Contents {
    /// The key looks into the data files, not at their names: they may have others now.
    fn under_names(self, names: &[PathBuf]) -> Accounting {
        let now: HashMap<PathBuf, &PathBuf> = self.files.into_iter().zip(names).collect();
        let mut accounting = self.accounting;
        for row in &mut accounting.dropped {
            row.file = now.get(&row.file).map_or_else(|| row.file.clone(), |name| (*name).clone());
        }
        accounting
    }
}
