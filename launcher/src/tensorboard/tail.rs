//! Lines that somebody else appends to a file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

/// A file's end.
pub(super) struct Tail {
    path: PathBuf,
    /// What was there before is not read.
    start: u64,
    file: Option<File>,
    /// The beginning of a line whose end is still to come.
    rest: Vec<u8>,
}

impl Tail {
    /// Of what is appended from now on to a file that need not be there yet.
    pub(super) fn new(path: PathBuf) -> Tail {
        let start = path.metadata().map_or(0, |file| file.len());
        Tail { path, start, file: None, rest: Vec::new() }
    }

    /// Whole lines that are new.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub(super) fn lines(&mut self) -> io::Result<Vec<String>> {
        if self.file.is_none() {
            self.file = match File::open(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                opened => Some(opened?),
            };
            self.file.as_mut().map_or(Ok(0), |file| file.seek(SeekFrom::Start(self.start)))?;
        }
        self.file.as_mut().map_or(Ok(0), |file| file.read_to_end(&mut self.rest))?;
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let rest = self.rest.split_off(whole);
        let whole = std::mem::replace(&mut self.rest, rest);
        Ok(String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_come_once_each_and_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut fresh = Tail::new(path.clone());
        assert!(fresh.lines().unwrap().is_empty(), "there is no file yet");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntwo\nthr").unwrap();
        let mut late = Tail::new(path);
        assert_eq!(fresh.lines().unwrap(), ["one", "two"]);
        assert!(fresh.lines().unwrap().is_empty());
        file.write_all(b"ee\nfour\n").unwrap();
        assert_eq!(fresh.lines().unwrap(), ["three", "four"]);
        assert_eq!(late.lines().unwrap(), ["ee", "four"]);
        assert!(Tail::new("/".into()).lines().is_err());
    }
}
