//! The files of a data set: plain, compressed with gzip or zstd, or Parquet, told apart by their first bytes.

use std::fs::{self, File};
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;

use super::reader::{RawRow, ReadError, RowReader};

const GZIP: &[u8] = b"\x1F\x8B";
const ZSTD: &[u8] = b"\x28\xB5\x2F\xFD";
const PARQUET: &[u8] = b"PAR1";

/// Endings of the files that are taken from a folder, each also with `.gz` or `.zst` behind it.
const ENDINGS: [&str; 4] = [".jsonl", ".json", ".ndjson", ".parquet"];

const BUFFER: usize = 1 << 20;

/// Files as they are, and in place of each folder its data files by name.
///
/// # Errors
/// A folder that cannot be read or holds no data file.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ReadError> {
    let mut found = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => found.extend(folder(path)?),
            false => found.push(path.clone()),
        }
    }
    Ok(found)
}

fn folder(path: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let failed = |source| ReadError::File { path: path.into(), source };
    let entries = fs::read_dir(path).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let is_data = |path: &PathBuf| {
        let name = path.to_string_lossy();
        let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
        path.is_file() && ENDINGS.iter().any(|ending| name.ends_with(ending))
    };
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(is_data).collect();
    files.sort_unstable();
    match files.is_empty() {
        true => Err(ReadError::NoFiles { path: path.into() }),
        false => Ok(files),
    }
}

/// The rows of one file, in order.
pub struct FileRows {
    rows: Rows,
    /// The same open file, for its position.
    file: File,
    size: u64,
}

enum Rows {
    Text(RowReader),
    Parquet(Box<ParquetRows>),
}

struct ParquetRows {
    path: PathBuf,
    rows: RowIter<'static>,
    read: u64,
    total: u64,
}

impl FileRows {
    /// Opens a file of any kind.
    ///
    /// # Errors
    /// It cannot be opened, is UTF-16, or is no Parquet although it says so.
    pub fn open(path: &Path) -> Result<FileRows, ReadError> {
        let failed = |source| ReadError::File { path: path.into(), source };
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let mut source = file.try_clone().map_err(failed)?;
        let mut start = Vec::new();
        (&mut source).take(4).read_to_end(&mut start).and_then(|_| source.rewind()).map_err(failed)?;
        let rows = if start == PARQUET {
            Rows::Parquet(Box::new(ParquetRows::open(path, source)?))
        } else {
            let source = BufReader::with_capacity(BUFFER, source);
            Rows::Text(if start.starts_with(GZIP) {
                RowReader::new(path, BufReader::with_capacity(BUFFER, MultiGzDecoder::new(source)))?
            } else if start == ZSTD {
                let decoder = zstd::Decoder::with_buffer(source).map_err(failed)?;
                RowReader::new(path, BufReader::with_capacity(BUFFER, decoder))?
            } else {
                RowReader::new(path, source)?
            })
        };
        Ok(FileRows { rows, file, size })
    }

    /// Bytes of the file taken so far.
    pub fn bytes_read(&mut self) -> u64 {
        match &self.rows {
            // Progress is all it serves.
            Rows::Text(_) => self.file.stream_position().unwrap_or(0),
            Rows::Parquet(rows) => self.size * rows.read / rows.total.max(1),
        }
    }

    /// Bytes of the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl Iterator for FileRows {
    type Item = Result<RawRow, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.rows {
            Rows::Text(rows) => rows.next(),
            Rows::Parquet(rows) => rows.next(),
        }
    }
}

impl ParquetRows {
    fn open(path: &Path, file: File) -> Result<ParquetRows, ReadError> {
        let failed = |error: parquet::errors::ParquetError| ReadError::parquet(path, &error);
        let reader = SerializedFileReader::new(file).map_err(failed)?;
        let total = u64::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(0);
        let rows = RowIter::from_file_into(Box::new(reader));
        Ok(ParquetRows { path: path.into(), rows, read: 0, total })
    }

    /// A row as the JSON text that it would be in a JSONL file; its number is its line.
    fn next(&mut self) -> Option<Result<RawRow, ReadError>> {
        let row = self.rows.next()?;
        self.read += 1;
        Some(match row {
            Ok(row) => Ok(RawRow { line: self.read, bytes: row.to_json_value().to_string().into_bytes() }),
            Err(error) => Err(ReadError::parquet(&self.path, &error)),
        })
    }
}
