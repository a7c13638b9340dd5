//! Builds a store: the rows of a pass are written in order.
//!
//! Everything goes into a folder of another name, which gets its own name only
//! when every byte is on disk: a killed build leaves nothing that looks like a store.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::{Accounting, Contents, StoreError, StoreOptions};
use crate::pass::{Outcome, PassedRow, Progress, each_row};
use crate::tokenizer::ChatTokenizer;

pub(super) const TOKEN_IDS: &str = "token_ids.u32";
pub(super) const LOSS_MASK: &str = "loss_mask.u8";
/// Where each row's tokens end.
pub(super) const ENDS: &str = "ends.u64";
pub(super) const LINES: &str = "lines.u64";
/// [`Contents`].
pub(super) const CONTENTS: &str = "contents.json";

const PARTIAL: &str = "partial";

/// Builds the store of `files` in `folder`, which must not exist.
pub(super) fn build(
    folder: &Path,
    files: &[PathBuf],
    options: &StoreOptions,
    tokenizer: &ChatTokenizer,
    progress: &dyn Fn(Progress),
) -> Result<(), StoreError> {
    let partial = folder.with_extension(PARTIAL);
    let cache = |source| StoreError::Cache { path: partial.clone(), source };
    let mut writer = Writer::create(&partial, files).map_err(cache)?;
    each_row(files, &options.pass, tokenizer, progress, |row| writer.row(&row).map_err(cache))?;
    check_usable(options, &writer.contents.accounting)?;
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

fn check_usable(options: &StoreOptions, accounting: &Accounting) -> Result<(), StoreError> {
    let data = options.data();
    if accounting.rows_read == 0 {
        return Err(StoreError::Empty { data });
    }
    if accounting.rows_kept == 0 {
        let reasons = super::common_reasons(&accounting.dropped, 3);
        return Err(StoreError::NoUsableRow { data, rows_read: accounting.rows_read, reasons });
    }
    Ok(())
}

struct Writer {
    partial: PathBuf,
    token_ids: BufWriter<File>,
    loss_mask: BufWriter<File>,
    ends: BufWriter<File>,
    lines: BufWriter<File>,
    contents: Contents,
}

impl Writer {
    fn create(partial: &Path, files: &[PathBuf]) -> io::Result<Writer> {
        fs::create_dir(partial)?;
        let file = |name: &str| File::create(partial.join(name)).map(|file| BufWriter::with_capacity(1 << 18, file));
        Ok(Writer {
            partial: partial.into(),
            token_ids: file(TOKEN_IDS)?,
            loss_mask: file(LOSS_MASK)?,
            ends: file(ENDS)?,
            lines: file(LINES)?,
            contents: Contents { files: files.to_vec(), accounting: Accounting::default() },
        })
    }

    fn row(&mut self, row: &PassedRow) -> io::Result<()> {
        let Contents { files, accounting } = &mut self.contents;
        accounting.count(row, files);
        let Outcome::Kept(cut) = &row.outcome else { return Ok(()) };
        self.token_ids.write_all(bytemuck::cast_slice(&cut.row.token_ids))?;
        self.loss_mask.write_all(&cut.row.loss_mask)?;
        self.ends.write_all(&accounting.tokens.to_le_bytes())?;
        self.lines.write_all(&row.raw.line.to_le_bytes())
    }

    fn finish(self, folder: &Path) -> io::Result<()> {
        for file in [self.token_ids, self.loss_mask, self.ends, self.lines] {
            file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        }
        let text = serde_json::to_vec(&self.contents)?;
        let mut file = File::create(self.partial.join(CONTENTS))?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&self.partial, folder)
    }
}
