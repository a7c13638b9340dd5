//! Held-out prompts for evaluation: conversations up to their last user turn, with the opening of the answer.

use std::path::{Path, PathBuf};

use common::config::{Config, DataPaths};

use crate::chats::{Conversation, FileRows, RawRow, ReadError, files};
use crate::pass::is_held_out;
use crate::row::RowFault;
use crate::store::{Dropped, common_reasons};
use crate::tokenizer::ChatTokenizer;

/// A conversation up to its last user turn, with the opening of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Ends where the assistant begins.
    pub token_ids: Vec<u32>,
    /// Line of the file where the row starts, from 1.
    pub line: u64,
}

/// The first rows of a file that hold a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    /// In file order; at least one.
    pub prompts: Vec<Prompt>,
    /// Rows passed over on the way, with the reason.
    pub dropped: Vec<Dropped>,
}

/// Why there are no prompts.
#[derive(Debug, thiserror::Error)]
pub enum PromptsError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It has no rows.
    #[error("{path}: no rows: the file is empty")]
    Empty {
        /// The file.
        path: DataPaths,
    },
    /// None of its rows holds a prompt.
    #[error("{path}: no prompt in any of its {rows_read} rows: {reasons}")]
    NoPrompt {
        /// The file.
        path: DataPaths,
        /// Its rows.
        rows_read: usize,
        /// The most common reasons.
        reasons: String,
    },
}

impl PromptsError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            PromptsError::Read(error) => error.hint(),
            PromptsError::Empty { .. } | PromptsError::NoPrompt { .. } => {
                "a row is one JSON object a line: {\"messages\": [{\"role\": \"user\", \"content\": ...}]}"
            }
        }
    }
}

/// The prompts of a run: of `evaluation.eval_data_path`, else of the rows held out of training; none if there is neither.
///
/// # Errors
/// Unreadable or empty files, no row with a user turn.
pub fn of_run(config: &Config, tokenizer: &ChatTokenizer) -> Result<Option<Prompts>, PromptsError> {
    let count = config.evaluation.num_prompts as usize;
    if let Some(path) = &config.evaluation.eval_data_path {
        return read(path, tokenizer, count).map(Some);
    }
    let share = config.data.held_out_share;
    if share == 0.0 {
        return Ok(None);
    }
    first(&files(&config.data.train_data_path.0)?, tokenizer, count, |raw| is_held_out(raw, share)).map(Some)
}

/// The first `count` prompts of a file of chats; fewer if it has fewer.
///
/// # Errors
/// Unreadable or empty file, no row with a user turn.
pub fn read(path: &Path, tokenizer: &ChatTokenizer, count: usize) -> Result<Prompts, PromptsError> {
    first(&[path.to_owned()], tokenizer, count, |_| true)
}

fn first(
    files: &[PathBuf],
    tokenizer: &ChatTokenizer,
    count: usize,
    takes: impl Fn(&RawRow) -> bool,
) -> Result<Prompts, PromptsError> {
    let mut found = Prompts::default();
    'files: for path in files {
        for raw in FileRows::open(path)? {
            let raw = raw?;
            if !takes(&raw) {
                continue;
            }
            match prompt(&raw, tokenizer) {
                Ok(token_ids) => found.prompts.push(Prompt { token_ids, line: raw.line }),
                Err(fault) => {
                    found.dropped.push(Dropped { file: path.into(), line: raw.line, reason: fault.to_string() });
                }
            }
            if found.prompts.len() >= count {
                break 'files;
            }
        }
    }
    let path = DataPaths(files.to_vec());
    match (found.prompts.len(), found.dropped.len()) {
        (0, 0) => Err(PromptsError::Empty { path }),
        (0, rows_read) => {
            let reasons = common_reasons(&found.dropped, 3);
            Err(PromptsError::NoPrompt { path, rows_read, reasons })
        }
        _ => Ok(found),
    }
}

fn prompt(raw: &RawRow, tokenizer: &ChatTokenizer) -> Result<Vec<u32>, RowFault> {
    let mut conversation = Conversation::parse(&raw.bytes)?;
    let last = conversation.messages.iter().rposition(|message| message.role() == "user").ok_or(RowFault::NoUser)?;
    conversation.messages.truncate(last + 1);
    tokenizer.encode(&tokenizer.render_prompt(&conversation)?)
}
