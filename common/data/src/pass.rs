//! One pass over the data: every row with what became of it, in order, tokenised on all cores.
//!
//! Memory is bounded by one chunk of rows.

use std::path::{Path, PathBuf};

use common::config::{BadRows, Config};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::chats::{FileRows, RawRow, ReadError, Record, files};
use crate::row::{CutRow, RowFault, tokenize};
use crate::tokenizer::ChatTokenizer;

/// A chunk ends with whichever comes first.
const CHUNK_ROWS: usize = 4096;
const CHUNK_BYTES: usize = 8 << 20;

/// What rows there are and what is kept of them.
#[derive(Clone, Debug, PartialEq)]
pub struct PassOptions {
    /// Files, and folders of files.
    pub data_paths: Vec<PathBuf>,
    /// Rows are cut to this many tokens.
    pub max_length: u32,
    /// What a bad line does.
    pub bad_rows: BadRows,
    /// Share of the rows that is held out.
    pub held_out_share: f64,
}

impl PassOptions {
    /// The options of a run.
    #[must_use]
    pub fn of(config: &Config) -> PassOptions {
        let data = &config.data;
        PassOptions {
            data_paths: data.train_data_path.0.clone(),
            max_length: data.max_length,
            bad_rows: data.bad_rows,
            held_out_share: data.held_out_share,
        }
    }
}

/// How far a pass is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows read.
    pub rows: u64,
    /// Bytes of the files read.
    pub bytes: u64,
    /// All bytes.
    pub total_bytes: u64,
}

/// What became of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It can be learnt from.
    Kept(CutRow),
    /// It is kept out of training.
    HeldOut,
    /// It cannot be used.
    Dropped(RowFault),
}

/// A row with what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedRow {
    /// Index into the files.
    pub file: usize,
    /// The row as it stands there.
    pub raw: RawRow,
    /// What became of it.
    pub outcome: Outcome,
}

/// Why a pass ends early.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A bad line, and bad lines stop.
    #[error("{file}:{line}: {fault}")]
    BadRow {
        /// The file.
        file: PathBuf,
        /// Where the row starts, from 1.
        line: u64,
        /// What is wrong with it.
        fault: RowFault,
    },
}

impl PassError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            PassError::Read(error) => error.hint(),
            PassError::BadRow { .. } => "mend that line, or set data.bad_rows = \"skip\" to drop and count such rows",
        }
    }
}

/// The files of a pass.
///
/// # Errors
/// A folder that cannot be read or holds no data file.
pub fn data_files(options: &PassOptions) -> Result<Vec<PathBuf>, ReadError> {
    files(&options.data_paths)
}

/// Calls `take` with every row of `files`, in order. It returns what `take` returns as soon as that is an error.
///
/// # Errors
/// A file cannot be read, a bad line stops, or `take` fails.
pub fn each_row<E: From<PassError>>(
    files: &[PathBuf],
    options: &PassOptions,
    tokenizer: &ChatTokenizer,
    progress: &dyn Fn(Progress),
    mut take: impl FnMut(PassedRow) -> Result<(), E>,
) -> Result<(), E> {
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let mut done = Progress { total_bytes: files.iter().map(size).sum(), ..Progress::default() };
    let mut earlier = 0;
    for (file, path) in files.iter().enumerate() {
        let mut rows = FileRows::open(path).map_err(PassError::from)?;
        loop {
            let chunk = next_chunk(&mut rows).map_err(PassError::from)?;
            if chunk.is_empty() {
                break;
            }
            let passed: Vec<_> = chunk.into_par_iter().map(|raw| pass(file, raw, options, tokenizer)).collect();
            done.rows += passed.len() as u64;
            done.bytes = earlier + rows.bytes_read();
            for row in passed {
                refuse_bad_line(path, &row, options)?;
                take(row)?;
            }
            progress(done);
        }
        earlier += rows.size();
    }
    Ok(())
}

fn next_chunk(rows: &mut FileRows) -> Result<Vec<RawRow>, ReadError> {
    let (mut chunk, mut bytes) = (Vec::new(), 0);
    while chunk.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
        let Some(raw) = rows.next().transpose()? else { break };
        bytes += raw.bytes.len();
        chunk.push(raw);
    }
    Ok(chunk)
}

fn pass(file: usize, raw: RawRow, options: &PassOptions, tokenizer: &ChatTokenizer) -> PassedRow {
    let outcome = if is_held_out(&raw, options.held_out_share) {
        Outcome::HeldOut
    } else {
        let row = Record::parse(&raw.bytes);
        let row = row.and_then(|record| tokenize(record, tokenizer, options.max_length as usize));
        row.map_or_else(Outcome::Dropped, Outcome::Kept)
    };
    PassedRow { file, raw, outcome }
}

/// Equal rows are on the same side, wherever they stand.
pub(crate) fn is_held_out(raw: &RawRow, share: f64) -> bool {
    if share == 0.0 {
        return false;
    }
    let hash: [u8; 32] = Sha256::digest(&raw.bytes).into();
    let number = hash[..8].iter().fold(0, |number: u64, &byte| number << 8 | u64::from(byte));
    (number as f64) < share * u64::MAX as f64
}

fn refuse_bad_line(path: &Path, row: &PassedRow, options: &PassOptions) -> Result<(), PassError> {
    match &row.outcome {
        Outcome::Dropped(fault) if fault.is_bad_line() && options.bad_rows == BadRows::Stop => {
            Err(PassError::BadRow { file: path.into(), line: row.raw.line, fault: fault.clone() })
        }
        _ => Ok(()),
    }
}
