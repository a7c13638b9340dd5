//! What `tandem` does: a file per command, each a page that names its steps.

mod decode;
mod evaluate;
mod run;

use std::io::{self, Write};
use std::path::PathBuf;

use common::exit::{Blame, Fault};

pub(crate) use evaluate::evaluate;
pub(crate) use run::run;

/// The folder that holds the workers' programs: the launcher's own.
fn programs() -> Result<PathBuf, Fault> {
    let own = std::env::current_exe().our_failure("start tandem by its full path")?;
    Ok(own.parent().expect("a program lies in a folder").to_owned())
}

/// Results go to stdout; a reader that has gone away (`| head`) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Fault> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.your_input("stdout cannot be written to"),
    }
}
