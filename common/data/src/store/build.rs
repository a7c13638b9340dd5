//! Builds a store: rows are read in order, tokenised on all cores and written in order.
//!
//! Memory is bounded by one chunk of rows. Everything goes into a folder of another name, which gets its own name only
//! when every byte is on disk: a killed build leaves nothing that looks like a store.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::{Accounting, Dropped, Progress, StoreError, StoreOptions};
use crate::chats::{Conversation, RawRow, RowReader};
use crate::row::{CutRow, RowFault, tokenize};
use crate::tokenizer::ChatTokenizer;

pub(super) const TOKEN_IDS: &str = "token_ids.u32";
pub(super) const LOSS_MASK: &str = "loss_mask.u8";
/// Where each row's tokens end.
pub(super) const ENDS: &str = "ends.u64";
pub(super) const LINES: &str = "lines.u64";
pub(super) const ACCOUNTING: &str = "accounting.json";

const PARTIAL: &str = "partial";

/// A chunk ends with whichever comes first.
const CHUNK_ROWS: usize = 4096;
const CHUNK_BYTES: usize = 8 << 20;

/// Builds the store in `folder`, which must not exist.
pub(super) fn build(
    folder: &Path,
    options: &StoreOptions,
    tokenizer: &ChatTokenizer,
    progress: &dyn Fn(Progress),
) -> Result<(), StoreError> {
    let path = &options.data_path;
    let total_bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
    let mut reader = RowReader::open(path)?;
    let partial = folder.with_extension(PARTIAL);
    let cache = |source| StoreError::Cache { path: partial.clone(), source };
    let mut writer = Writer::create(&partial, path).map_err(cache)?;
    loop {
        let chunk = next_chunk(&mut reader)?;
        if chunk.is_empty() {
            break;
        }
        let rows: Vec<_> = chunk.par_iter().map(|raw| row(raw, options, tokenizer)).collect();
        for (raw, row) in chunk.iter().zip(rows) {
            writer.row(raw.line, row).map_err(cache)?;
        }
        progress(Progress { rows: writer.accounting.rows_read, bytes: reader.bytes_read(), total_bytes });
    }
    check_usable(path, &writer.accounting)?;
    writer.finish(folder).map_err(cache)
}

/// Removes what killed builds left in the cache, and a store that cannot be opened. The cache's lock is held, so nobody
/// else is building.
pub(super) fn remove_debris(cache_dir: &Path, broken: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cache_dir)? {
        let path = entry?.path();
        if path == broken || path.extension().is_some_and(|extension| extension == PARTIAL) {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}

fn next_chunk(reader: &mut RowReader) -> Result<Vec<RawRow>, StoreError> {
    let (mut chunk, mut bytes) = (Vec::new(), 0);
    while chunk.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
        let Some(raw) = reader.next().transpose()? else { break };
        bytes += raw.bytes.len();
        chunk.push(raw);
    }
    Ok(chunk)
}

fn row(raw: &RawRow, options: &StoreOptions, tokenizer: &ChatTokenizer) -> Result<CutRow, RowFault> {
    tokenize(&Conversation::parse(&raw.bytes)?, tokenizer, options.max_length as usize)
}

fn check_usable(path: &Path, accounting: &Accounting) -> Result<(), StoreError> {
    if accounting.rows_read == 0 {
        return Err(StoreError::Empty { path: path.into() });
    }
    if accounting.rows_kept == 0 {
        let reasons = super::common_reasons(&accounting.dropped, 3);
        return Err(StoreError::NoUsableRow { path: path.into(), rows_read: accounting.rows_read, reasons });
    }
    Ok(())
}

struct Writer {
    partial: PathBuf,
    data_path: PathBuf,
    token_ids: BufWriter<File>,
    loss_mask: BufWriter<File>,
    ends: BufWriter<File>,
    lines: BufWriter<File>,
    accounting: Accounting,
}

impl Writer {
    fn create(partial: &Path, data_path: &Path) -> io::Result<Writer> {
        fs::create_dir(partial)?;
        let file = |name: &str| File::create(partial.join(name)).map(|file| BufWriter::with_capacity(1 << 18, file));
        Ok(Writer {
            partial: partial.into(),
            data_path: data_path.into(),
            token_ids: file(TOKEN_IDS)?,
            loss_mask: file(LOSS_MASK)?,
            ends: file(ENDS)?,
            lines: file(LINES)?,
            accounting: Accounting::default(),
        })
    }

    fn row(&mut self, line: u64, row: Result<CutRow, RowFault>) -> io::Result<()> {
        let counts = &mut self.accounting;
        counts.rows_read += 1;
        let cut = match row {
            Ok(cut) => cut,
            Err(fault) => {
                counts.dropped.push(Dropped { file: self.data_path.clone(), line, reason: fault.to_string() });
                return Ok(());
            }
        };
        counts.rows_kept += 1;
        counts.tokens += cut.row.token_ids.len() as u64;
        counts.truncated += u64::from(cut.full_length > cut.row.token_ids.len());
        counts.supervised_tokens += cut.row.loss_mask.iter().map(|&bit| u64::from(bit)).sum::<u64>();
        counts.supervised_tokens_lost += cut.supervised_lost;
        self.token_ids.write_all(bytemuck::cast_slice(&cut.row.token_ids))?;
        self.loss_mask.write_all(&cut.row.loss_mask)?;
        self.ends.write_all(&counts.tokens.to_le_bytes())?;
        self.lines.write_all(&line.to_le_bytes())
    }

    fn finish(self, folder: &Path) -> io::Result<()> {
        for file in [self.token_ids, self.loss_mask, self.ends, self.lines] {
            file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        }
        let text = serde_json::to_vec_pretty(&self.accounting)?;
        let mut file = File::create(self.partial.join(ACCOUNTING))?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&self.partial, folder)
    }
}
