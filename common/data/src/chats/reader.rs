//! A data file as rows, each with the line where it starts: JSONL, or one JSON array. Read as a stream.
//!
//! A row is only cut out here, not parsed, so that a bad row costs itself alone. Where an array is cut off, what there is
//! of its last element is a row, which is no JSON.

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Why a data file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be opened, or reading stopped half-way.
    #[error("{path}: {source}")]
    File {
        /// The data file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its first bytes are a UTF-16 mark.
    #[error("{path}: UTF-16 text, expected UTF-8")]
    Utf16 {
        /// The data file.
        path: PathBuf,
    },
    /// It says that it is Parquet, and is not.
    #[error("{path}: {message}")]
    Parquet {
        /// The data file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A folder without data files.
    #[error("{path}: no .jsonl, .json, .ndjson or .parquet file in this folder (also not as .gz or .zst)")]
    NoFiles {
        /// The folder.
        path: PathBuf,
    },
    /// Something follows the JSON array.
    #[error("{path}:{line}: text after the end of the JSON array")]
    AfterArray {
        /// The data file.
        path: PathBuf,
        /// Where it starts.
        line: u64,
    },
}

impl ReadError {
    pub(super) fn parquet(path: &Path, error: &parquet::errors::ParquetError) -> ReadError {
        ReadError::Parquet { path: path.into(), message: error.to_string() }
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            ReadError::File { .. } => "check the path; it is relative to the folder the command was started in",
            ReadError::Utf16 { .. } => "save the file as UTF-8",
            ReadError::Parquet { .. } => "write the file again, compressed with snappy, gzip or zstd or not at all",
            ReadError::NoFiles { .. } => "name the files themselves in data.train_data_path",
            ReadError::AfterArray { .. } => {
                "write the rows as JSONL (one object a line), or mend the array at that line"
            }
        }
    }
}

/// One row as it stands in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRow {
    /// Line where it starts, from 1.
    pub line: u64,
    /// Its JSON text.
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Lines,
    Array,
    Ended,
}

/// The rows of a file, in order.
pub struct RowReader {
    path: PathBuf,
    source: Box<dyn BufRead + Send>,
    layout: Layout,
    line: u64,
}

impl RowReader {
    /// Finds out how the text is laid out: an array if its first character is `[`. `path` only serves errors.
    ///
    /// # Errors
    /// It cannot be read, or is UTF-16.
    pub fn new(path: &Path, source: impl BufRead + Send + 'static) -> Result<RowReader, ReadError> {
        let mut reader = RowReader { path: path.into(), source: Box::new(source), layout: Layout::Lines, line: 1 };
        let mut start = Vec::new();
        let read = reader.source.by_ref().take(BOM.len() as u64).read_to_end(&mut start);
        read.map_err(|source| reader.file_error(source))?;
        if start.starts_with(b"\xFF\xFE") || start.starts_with(b"\xFE\xFF") {
            return Err(ReadError::Utf16 { path: path.into() });
        }
        if start != BOM {
            // A mark that is none goes back in front of the rest.
            let rest = std::mem::replace(&mut reader.source, Box::new(std::io::empty()));
            reader.source = Box::new(std::io::Cursor::new(start).chain(rest));
        }
        if reader.skip_blank()? == Some(b'[') {
            reader.consume_byte(b'[');
            reader.layout = Layout::Array;
        }
        Ok(reader)
    }

    fn file_error(&self, source: std::io::Error) -> ReadError {
        ReadError::File { path: self.path.clone(), source }
    }

    fn peek(&mut self) -> Result<Option<u8>, ReadError> {
        match self.source.fill_buf() {
            Ok(buffer) => Ok(buffer.first().copied()),
            Err(source) => Err(ReadError::File { path: self.path.clone(), source }),
        }
    }

    fn consume_byte(&mut self, byte: u8) {
        self.source.consume(1);
        self.line += u64::from(byte == b'\n');
    }

    /// Moves to the next byte that is no white space and returns it without taking it.
    fn skip_blank(&mut self) -> Result<Option<u8>, ReadError> {
        loop {
            match self.peek()? {
                Some(byte) if byte.is_ascii_whitespace() => self.consume_byte(byte),
                other => return Ok(other),
            }
        }
    }

    fn next_line(&mut self) -> Result<Option<RawRow>, ReadError> {
        if self.skip_blank()?.is_none() {
            return Ok(None);
        }
        let mut row = RawRow { line: self.line, bytes: Vec::new() };
        self.source.read_until(b'\n', &mut row.bytes).map_err(|source| self.file_error(source))?;
        self.line += 1;
        row.bytes.truncate(row.bytes.trim_ascii_end().len());
        Ok(Some(row))
    }

    fn next_element(&mut self) -> Result<Option<RawRow>, ReadError> {
        let first = self.skip_blank()?;
        let mut row = RawRow { line: self.line, bytes: Vec::new() };
        if first == Some(b']') {
            self.consume_byte(b']');
            self.end_array()?;
            return Ok(None);
        }
        let mut cutter = Cutter::default();
        loop {
            let taken = match self.source.fill_buf() {
                Ok(buffer) => cutter.take(buffer, &mut row.bytes),
                Err(source) => return Err(ReadError::File { path: self.path.clone(), source }),
            };
            if taken == 0 {
                self.layout = Layout::Ended;
                return Ok(Some(row));
            }
            self.source.consume(taken);
            if let Some(end) = cutter.end {
                self.line += cutter.newlines;
                if end == b']' {
                    self.end_array()?;
                }
                row.bytes.truncate(row.bytes.trim_ascii_end().len());
                return Ok(Some(row));
            }
        }
    }

    fn end_array(&mut self) -> Result<(), ReadError> {
        self.layout = Layout::Ended;
        match self.skip_blank()? {
            None => Ok(()),
            Some(_) => Err(ReadError::AfterArray { path: self.path.clone(), line: self.line }),
        }
    }
}

impl Iterator for RowReader {
    type Item = Result<RawRow, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = match self.layout {
            Layout::Lines => self.next_line(),
            Layout::Array => self.next_element(),
            Layout::Ended => Ok(None),
        };
        if row.is_err() {
            self.layout = Layout::Ended;
        }
        row.transpose()
    }
}

/// Finds the end of an array's element without parsing it: the first `,` or `]` outside strings and brackets.
#[derive(Default)]
struct Cutter {
    depth: u64,
    in_string: bool,
    escaped: bool,
    newlines: u64,
    end: Option<u8>,
}

impl Cutter {
    /// Copies the element's bytes to `row`; returns how many bytes of `buffer` are done with.
    fn take(&mut self, buffer: &[u8], row: &mut Vec<u8>) -> usize {
        for (index, &byte) in buffer.iter().enumerate() {
            self.newlines += u64::from(byte == b'\n');
            if self.in_string {
                self.in_string = self.escaped || byte != b'"';
                self.escaped = byte == b'\\' && !self.escaped;
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b',' | b']' if self.depth == 0 => {
                    row.extend_from_slice(&buffer[..index]);
                    self.end = Some(byte);
                    return index + 1;
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        row.extend_from_slice(buffer);
        buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    fn rows(text: &[u8]) -> Result<Vec<(u64, String)>, ReadError> {
        // A buffer of three bytes puts every border somewhere inside a row.
        let source = BufReader::with_capacity(3, std::io::Cursor::new(text.to_vec()));
        let rows: Result<Vec<RawRow>, _> = RowReader::new(Path::new("f"), source)?.collect();
        Ok(rows?.into_iter().map(|row| (row.line, String::from_utf8(row.bytes).unwrap())).collect())
    }

    fn expect(text: &[u8], expected: &[(u64, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(line, text)| (*line, (*text).to_owned())).collect();
        assert_eq!(rows(text).unwrap(), expected);
    }

    #[test]
    fn lines_keep_their_number_through_marks_blank_lines_and_windows_ends() {
        expect(b"\xEF\xBB\xBF{\"a\":1}\r\n\r\n  \n{\"b\":2}\r\n{", &[(1, "{\"a\":1}"), (4, "{\"b\":2}"), (5, "{")]);
        expect("{\"a\":\"x\u{2028}y\"}\n".as_bytes(), &[(1, "{\"a\":\"x\u{2028}y\"}")]);
        expect(b"\n{}\n", &[(2, "{}")]);
        expect(b"a", &[(1, "a")]);
    }

    #[test]
    fn array_elements_keep_the_line_where_they_start() {
        let text = b"\xEF\xBB\xBF\n[\n  {\"a\": [1, 2]},\n\n  {\n \"b\": \"],\\\"{\"\n  }, 7\n]\n";
        expect(text, &[(3, "{\"a\": [1, 2]}"), (5, "{\n \"b\": \"],\\\"{\"\n  }"), (7, "7")]);
        expect(b"[]", &[]);
        expect(b"[1,]", &[(1, "1")]);
        expect(b"[\"\\\\\", 2]", &[(1, "\"\\\\\""), (1, "2")]);
    }

    #[test]
    fn an_empty_file_has_no_rows() {
        expect(b"", &[]);
        expect(b"\xEF\xBB\xBF \r\n", &[]);
    }

    #[test]
    fn a_doubtful_file_is_an_error_with_its_line() {
        let error = |text: &[u8]| rows(text).unwrap_err().to_string();
        assert!(error(b"[1]\n{}").starts_with("f:2: text after"));
        assert!(error(b"\xFF\xFE{\0").contains("UTF-16"));
    }

    #[test]
    fn an_array_that_is_cut_off_ends_with_what_there_is() {
        expect(b"[\n{\"a\":1},\n{\"b\": \"", &[(2, "{\"a\":1}"), (3, "{\"b\": \"")]);
        expect(b"\n[ \n", &[(3, "")]);
        expect(b"[1,", &[(1, "1"), (1, "")]);
    }
}
