//! What `tandem` does: a file per command, each a page that names its steps.

mod decode;
mod evaluate;
mod plan;
mod prepare;
mod preview;
mod report;
mod run;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use common::config::{Config, ConfigError};
use common::exit::{Blame, Code, Fault};
use data::tokenizer::ChatTokenizer;

use crate::plan::Models;

pub(crate) use evaluate::evaluate;
pub(crate) use plan::plan;
pub(crate) use prepare::prepare;
pub(crate) use preview::preview;
pub(crate) use report::report;
pub(crate) use run::run;

/// Why a worker may not start.
const PROGRAMS_HINT: &str = "target-worker and drafter-worker have to lie beside tandem: build all programs";

/// The folder that holds the workers' programs: the launcher's own.
fn programs() -> Result<PathBuf, Fault> {
    let own = std::env::current_exe().our_failure("start tandem by its full path")?;
    let folder = own.parent().expect("a program lies in a folder").to_owned();
    for name in ["target-worker", "drafter-worker"] {
        let program = folder.join(name);
        if !program.is_file() {
            return Err(format!("{} is not there", program.display())).our_failure(PROGRAMS_HINT);
        }
    }
    Ok(folder)
}

/// Reads the command line's configuration.
fn load(file: &Path, overrides: &[String]) -> Result<Config, Fault> {
    Config::load(file, overrides).map_err(|error| {
        let hint = match error {
            ConfigError::File { .. } => "check the path; it is relative to the folder the command was started in",
            _ => "docs/configuration.md describes every key",
        };
        Fault::new(Code::Input, error).with_hint(hint)
    })
}

/// The target's tokenizer alone: data need nothing else of the model.
fn tokenizer(config: &Config) -> Result<ChatTokenizer, Fault> {
    ChatTokenizer::of(config).map_err(|error| {
        let hint = error.hint();
        Fault::new(Code::Input, error).with_hint(hint)
    })
}

/// Refuses held-out chats that hold no prompt; how many they hold, of those asked for. None if there are none to decode.
fn held_out_prompts(models: &Models) -> Result<Option<usize>, Fault> {
    let prompts = data::prompts::of_run(&models.config, &models.tokenizer).map_err(|error| {
        Fault::new(Code::Input, format!("evaluation.eval_data_path: {error}")).with_hint(error.hint())
    })?;
    Ok(prompts.map(|found| found.prompts.len()))
}

/// Results go to stdout; a reader that has gone away (`| head`) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Fault> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.your_input("stdout cannot be written to"),
    }
}
