//! `metrics.jsonl`: one JSON object per line, only ever appended to.
//!
//! Each line is one write, so a reader beside a live run sees whole lines. A drafter that restarts from a checkpoint
//! writes the steps after it once more: of several lines of one step the last counts.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The file's name in a run folder.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// Metrics that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct MetricsError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// The file's one writer.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Opens the file at its end. A line that a killed writer left unfinished stays a line of its own.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn append(path: &Path) -> Result<MetricsFile, MetricsError> {
        let path = path.to_owned();
        match open_at_line_start(&path) {
            Ok(file) => Ok(MetricsFile { path, file }),
            Err(source) => Err(MetricsError { path, source }),
        }
    }

    /// Appends one line.
    ///
    /// # Errors
    /// The line cannot be written, or the record is no JSON object (a map with keys that are no text).
    pub fn write(&mut self, record: &impl Serialize) -> Result<(), MetricsError> {
        let written = serde_json::to_vec(record).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            self.file.write_all(&line)
        });
        written.map_err(|source| MetricsError { path: self.path.clone(), source })
    }
}

fn open_at_line_start(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    if file.seek(SeekFrom::End(0))? > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Record {
        step: u64,
        loss: f64,
    }

    #[test]
    fn lines_are_appended_also_after_an_unfinished_one() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join(METRICS_FILE);
        MetricsFile::append(&path).unwrap().write(&Record { step: 1, loss: 2.5 }).unwrap();
        let mut torn = OpenOptions::new().append(true).open(&path).unwrap();
        torn.write_all(b"{\"step\":2,").unwrap();
        MetricsFile::append(&path).unwrap().write(&Record { step: 2, loss: 2.0 }).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\n{\"step\":2,\"loss\":2.0}\n");
    }
}
