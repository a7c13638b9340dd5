//! `tandem preview`.

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;

use common::exit::{Blame, Fault};
use data::pass::{Outcome, PassError, PassOptions, PassedRow, data_files, each_row};
use data::row::{CutRow, TokenRow};
use data::store::Accounting;
use data::tokenizer::ChatTokenizer;
use serde::Serialize;

use super::{load, print, tokenizer};
use crate::args::PreviewArgs;
use crate::plan::tokenising;
use crate::progress::Console;

/// Shows rows as they would be learnt, and with `--json` what became of every row.
///
/// # Errors
/// Data that cannot be read, a model folder without a usable tokenizer, a line that does not exist.
pub(crate) fn preview(args: &PreviewArgs) -> Result<(), Fault> {
    let config = load(&args.config, &args.overrides)?;
    let tokenizer = tokenizer(&config)?;
    let options = PassOptions::of(&config);
    let console = Console::start();
    let seen = See { args, tokenizer: &tokenizer, options: &options, console: &console }.rows();
    console.clear_progress();
    console.flush();
    let seen = seen?;
    if seen.rows.is_empty() && args.line.is_some() {
        let line = args.line.unwrap_or_default();
        let missing = format!("{}: no row starts in line {line}", config.data.train_data_path);
        return Err(missing).your_input("blank lines and lines inside a row are not rows: try the line above");
    }
    let text = if args.json { as_json(&seen) } else { as_text(&seen, args.ids, Paint::of_stdout()) };
    print(&text)
}

/// What was seen of the data.
#[derive(Serialize)]
struct Seen {
    #[serde(flatten)]
    accounting: Accounting,
    /// The rows to show.
    rows: Vec<Shown>,
}

/// One row.
#[derive(Serialize)]
struct Shown {
    file: PathBuf,
    line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped: Option<String>,
    held_out: bool,
    tokens: usize,
    /// Before the cut.
    full_length: usize,
    supervised_tokens: usize,
    supervised_tokens_lost: u64,
    stretches: Vec<Stretch>,
}

/// Neighbouring tokens that are all supervised, or all not.
#[derive(Serialize)]
struct Stretch {
    supervised: bool,
    text: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ids: Vec<u32>,
}

/// Ends a pass before the data do.
enum Stop {
    Enough,
    Failed(PassError),
}

impl From<PassError> for Stop {
    fn from(error: PassError) -> Stop {
        Stop::Failed(error)
    }
}

struct See<'a> {
    args: &'a PreviewArgs,
    tokenizer: &'a ChatTokenizer,
    options: &'a PassOptions,
    console: &'a Console,
}

impl See<'_> {
    /// The rows asked for; all rows are counted if the count is asked for too.
    fn rows(&self) -> Result<Seen, Fault> {
        let fault = |error: PassError| Fault::new(common::exit::Code::Input, error.to_string()).with_hint(error.hint());
        let files = data_files(self.options).map_err(|error| fault(error.into()))?;
        let mut seen = Seen { accounting: Accounting::default(), rows: Vec::new() };
        let progress = tokenising(self.console);
        let done = each_row(&files, self.options, self.tokenizer, &progress, |row| {
            seen.accounting.count(&row, &files);
            if seen.rows.len() < self.wanted() && self.args.line.is_none_or(|line| line == row.raw.line) {
                seen.rows.push(self.shown(row, &files));
            }
            let enough = seen.rows.len() >= self.wanted() && !self.args.json;
            if enough { Err(Stop::Enough) } else { Ok(()) }
        });
        match done {
            Err(Stop::Failed(error)) => Err(fault(error)),
            Ok(()) | Err(Stop::Enough) => Ok(seen),
        }
    }

    fn wanted(&self) -> usize {
        if self.args.line.is_some() { 1 } else { self.args.rows }
    }

    fn shown(&self, row: PassedRow, files: &[PathBuf]) -> Shown {
        let held_out = row.outcome == Outcome::HeldOut;
        let (cut, dropped) = match row.outcome {
            Outcome::Kept(cut) => (cut, None),
            Outcome::HeldOut => (CutRow::default(), None),
            Outcome::Dropped(fault) => (CutRow::default(), Some(fault.to_string())),
        };
        Shown {
            file: files[row.file].clone(),
            line: row.raw.line,
            dropped,
            held_out,
            tokens: cut.row.token_ids.len(),
            full_length: cut.full_length,
            supervised_tokens: cut.row.loss_mask.iter().filter(|&&bit| bit == 1).count(),
            supervised_tokens_lost: cut.supervised_lost,
            stretches: self.stretches(&cut.row),
        }
    }

    fn stretches(&self, row: &TokenRow) -> Vec<Stretch> {
        let both: Vec<(u32, u8)> = row.token_ids.iter().copied().zip(row.loss_mask.iter().copied()).collect();
        let stretch = |tokens: &[(u32, u8)]| {
            let ids: Vec<u32> = tokens.iter().map(|(id, _)| *id).collect();
            let text = self.tokenizer.decode(&ids);
            Stretch { supervised: tokens[0].1 == 1, text, ids: if self.args.ids { ids } else { Vec::new() } }
        };
        both.chunk_by(|left, right| left.1 == right.1).map(stretch).collect()
    }
}

fn as_json(seen: &Seen) -> String {
    serde_json::to_string(seen).expect("what was seen has only values that JSON can hold") + "\n"
}

/// What goes around supervised text.
#[derive(Clone, Copy)]
struct Paint {
    supervised: [&'static str; 2],
    heading: [&'static str; 2],
}

impl Paint {
    /// Colours for eyes, brackets for files.
    fn of_stdout() -> Paint {
        match stdout().is_terminal() {
            true => Paint { supervised: ["\x1b[30;42m", "\x1b[0m"], heading: ["\x1b[1m", "\x1b[0m"] },
            false => Paint { supervised: ["⟦", "⟧"], heading: ["", ""] },
        }
    }
}

fn as_text(seen: &Seen, ids: bool, paint: Paint) -> String {
    let mut out = String::new();
    for row in &seen.rows {
        let [start, end] = paint.heading;
        out += &format!("{start}{}{end}\n", heading(row));
        for Stretch { supervised, text, .. } in &row.stretches {
            let [start, end] = if *supervised { paint.supervised } else { ["", ""] };
            out += &format!("{start}{}{end}", harmless(text));
        }
        if ids && !row.stretches.is_empty() {
            out += &format!("\nids: {}", id_line(&row.stretches));
        }
        out += "\n\n";
    }
    out
}

fn heading(row: &Shown) -> String {
    let place = format!("{}:{}", row.file.display(), row.line);
    match &row.dropped {
        Some(reason) => format!("{place}: dropped: {reason}"),
        None if row.held_out => format!("{place}: held out"),
        None => {
            let cut = if row.full_length > row.tokens {
                format!(", cut from {} ({} to learn lost)", row.full_length, row.supervised_tokens_lost)
            } else {
                String::new()
            };
            format!("{place}: {} tokens, {} to learn{cut}", row.tokens, row.supervised_tokens)
        }
    }
}

fn id_line(stretches: &[Stretch]) -> String {
    let text = |stretch: &Stretch| {
        let ids: Vec<String> = stretch.ids.iter().map(u32::to_string).collect();
        if stretch.supervised { format!("[{}]", ids.join(" ")) } else { ids.join(" ") }
    };
    stretches.iter().map(text).collect::<Vec<_>>().join(" ")
}

/// Control characters could do anything to a terminal.
fn harmless(text: &str) -> String {
    let shown =
        |c: char| if c.is_control() && c != '\n' && c != '\t' { c.escape_debug().to_string() } else { c.into() };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervised_text_is_set_apart_and_nothing_reaches_the_terminal_raw() {
        let stretch = |supervised, text: &str, ids| Stretch { supervised, text: text.to_owned(), ids };
        let row = Shown {
            file: "chats.jsonl".into(),
            line: 7,
            dropped: None,
            held_out: false,
            tokens: 3,
            full_length: 9,
            supervised_tokens: 1,
            supervised_tokens_lost: 4,
            stretches: vec![stretch(false, "q\n", vec![5, 6]), stretch(true, "a\x1b[2J", vec![7])],
        };
        let dropped =
            Shown { line: 8, dropped: Some("not JSON: x".to_owned()), stretches: Vec::new(), ..row_like(&row) };
        let seen = Seen { accounting: Accounting::default(), rows: vec![row, dropped] };
        let paint = Paint { supervised: ["<", ">"], heading: ["", ""] };
        let expected = "chats.jsonl:7: 3 tokens, 1 to learn, cut from 9 (4 to learn lost)\nq\n<a\\u{1b}[2J>\nids: 5 6 [7]\n\n\
                        chats.jsonl:8: dropped: not JSON: x\n\n\n";
        assert_eq!(as_text(&seen, true, paint), expected);
    }

    fn row_like(row: &Shown) -> Shown {
        Shown { file: row.file.clone(), dropped: None, stretches: Vec::new(), ..*row }
    }
}
