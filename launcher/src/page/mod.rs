//! `report.html`: one page about a run, readable by itself: no script, no network, light and dark, narrow and wide.
//!
//! Everything that comes from files is escaped by the template.

mod chart;
mod numbers;
mod queue;
mod stages;
mod start;
mod training;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::history::{History, NoRun, Rows};
use numbers::grouped;

/// The page's name in a run folder.
pub(crate) const PAGE_FILE: &str = "report.html";

const STYLE: &str = include_str!("style.css");

/// A page that cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageError {
    /// There is nothing to tell.
    #[error(transparent)]
    NoRun(#[from] NoRun),
    /// The file cannot be written.
    #[error("{path}: {source}")]
    File {
        /// The page.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Reads a run folder and writes its page, to `out` or else into the folder; where it is.
///
/// # Errors
/// It is no run folder, or the file cannot be written.
pub(crate) fn write(run_dir: &Path, out: Option<&Path>) -> Result<PathBuf, PageError> {
    let history = History::read(run_dir)?;
    let path = out.map_or_else(|| run_dir.join(PAGE_FILE), Path::to_owned);
    match fs::write(&path, page(&history).into_string()) {
        Ok(()) => Ok(path),
        Err(source) => Err(PageError::File { path, source }),
    }
}

fn page(history: &History) -> Markup {
    let name = history.run_id().map(str::to_owned);
    let title = name.unwrap_or_else(|| history.folder.display().to_string());
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Tandem: run " (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { h1 { "Run " (title) } (start::state(history)) }
                main {
                    (start::figures(history))
                    (start::failure(history))
                    (start::verdict(history))
                    (training::section(history))
                    (stages(history))
                    (queue::section(history))
                    @if let Some(rows) = &history.rows { (data(rows)) }
                    (configuration(history))
                }
                footer { "Tandem " (env!("CARGO_PKG_VERSION")) ", from " (history.folder.display()) }
            }
        }
    }
}

fn stages(history: &History) -> Markup {
    html! {
        section {
            h2 { "Where the time went" }
            @match &history.samples {
                Some(samples) => div class="grid tables" { (stages::breakdown(samples)) },
                None => p { "Nothing is known: there is no telemetry.jsonl to read (telemetry.sample_interval_s = 0 writes none)." },
            }
        }
    }
}

fn data(rows: &Rows) -> Markup {
    let dropped: u64 = rows.dropped.iter().map(|reason| reason.rows).sum();
    html! {
        section {
            h2 { "Data" }
            p {
                (grouped(rows.rows_read)) " rows read, " (grouped(rows.rows_kept)) " kept with "
                (grouped(rows.supervised_tokens)) " tokens to learn of " (grouped(rows.tokens)) ", "
                (grouped(rows.rows_held_out)) " held out, " (grouped(rows.truncated)) " cut to data.max_length ("
                (grouped(rows.supervised_tokens_lost)) " tokens to learn lost), " (grouped(dropped)) " dropped."
            }
            @if dropped > 0 {
                div class="wide reasons" { table {
                    thead { tr { th { "dropped because" } th { "rows" } th { "first of them" } } }
                    tbody { @for reason in &rows.dropped {
                        tr {
                            td { (reason.reason) }
                            td { (grouped(reason.rows)) }
                            td { @for example in &reason.examples { div { (example) } } }
                        }
                    } }
                } }
            }
        }
    }
}

fn configuration(history: &History) -> Markup {
    html! {
        section {
            h2 { "Configuration" }
            @if let Some(config) = &history.config {
                details { summary { "config.toml, everything filled in" } pre { (config) } }
            }
            @if !history.unread.is_empty() {
                p { "Left out, as it cannot be read:" }
                ul { @for reason in &history.unread { li { (reason) } } }
            }
        }
    }
}

#[cfg(test)]
mod tests;
