//! `tandem prepare`.

use std::path::Path;
use std::time::Instant;

use common::exit::Fault;
use data::store::Accounting;
use serde::Serialize;

use super::{load, print, tokenizer};
use crate::args::PrepareArgs;
use crate::plan::{accounting_lines, tokenise};
use crate::progress::Console;

/// Tokenises the chats, or finds them tokenised, and prints what became of every row.
///
/// # Errors
/// Data that cannot be used, a model folder without a usable tokenizer.
pub(crate) fn prepare(args: &PrepareArgs) -> Result<(), Fault> {
    let config = load(&args.config, &args.overrides)?;
    let tokenizer = tokenizer(&config)?;
    let (console, start) = (Console::start(), Instant::now());
    let done = tokenise(&config, &tokenizer, &console);
    console.flush();
    let (store, accounting) = done?;
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        let prepared = Prepared { accounting: &accounting, store: store.path(), seconds };
        return print(&(serde_json::to_string(&prepared).expect("counts and a path are always JSON") + "\n"));
    }
    let mut lines = accounting_lines(&accounting, &config);
    lines.push(format!("store: {}, {} tokens, ready in {seconds:.1} s", store.path().display(), accounting.tokens));
    print(&(lines.join("\n") + "\n"))
}

#[derive(Serialize)]
struct Prepared<'a> {
    #[serde(flatten)]
    accounting: &'a Accounting,
    store: &'a Path,
    seconds: f64,
}
