//! What several unit tests need.

use std::path::Path;
use std::process::Command;

/// Makes a program of shell. Another process writes it: what this one has open for writing, a child that another thread is just
/// starting has open too for a moment, and meanwhile nobody can run it ("text file busy").
pub(crate) fn write_program(path: &Path, body: &str) {
    let write = "printf '%s\\n' '#!/bin/sh' \"$1\" > \"$0\" && chmod 755 \"$0\"";
    assert!(Command::new("sh").args(["-c", write]).arg(path).arg(body).status().unwrap().success());
}
