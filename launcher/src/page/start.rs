//! The page's start: how the run ended, what it gained, what limited it.

use common::telemetry::verdict::Verdict;
use maud::{Markup, html};

use super::numbers::{duration, grouped, short};
use crate::history::History;
use crate::report::{Failure, Summary};

/// How it ended, in a line.
pub(super) fn state(history: &History) -> Markup {
    let (class, words) = match (&history.failure, &history.summary) {
        (Some(failure), _) => ("bad", format!("failed: {} {}", failure.cause.worker, failure.cause.ending)),
        (None, Some(Summary { stopped_by: Some(signal), steps, total_steps, .. })) => {
            ("mixed", format!("stopped by {signal} after {steps} of {total_steps} steps"))
        }
        (None, Some(Summary { lossless: Some(false), .. })) => {
            ("bad", "finished, but the lossless check failed".to_owned())
        }
        (None, Some(_)) => ("good", "finished".to_owned()),
        (None, None) => ("mixed", "no end is written down: it goes on, or was cut short".to_owned()),
    };
    html! { p class=(format!("state {class}")) { (words) } }
}

/// The figures that count.
pub(super) fn figures(history: &History) -> Markup {
    let figures = history.summary.as_ref().map_or_else(|| so_far(history), of_summary);
    html! {
        @if !figures.is_empty() {
            dl class="figures" {
                @for (name, value, more) in figures { div { dt { (name) } dd { (value) small { (more) } } } }
            }
        }
    }
}

/// Name, value, and what else there is to say.
type Figure = (&'static str, String, String);

fn of_summary(summary: &Summary) -> Vec<Figure> {
    let Summary { steps, total_steps, rows, tokens, train_seconds, steps_before, .. } = summary;
    let mut figures: Vec<Figure> = Vec::new();
    if let Some(after) = summary.accepted_length_after {
        let prompts = summary.eval_prompts.unwrap_or_default();
        let before =
            summary.accepted_length_before.map(|before| format!("{before:.2} before training, ")).unwrap_or_default();
        figures.push(("accepted length", format!("{after:.2}"), format!("{before}{prompts} held-out prompts")));
    }
    if let (Some(speedup), Some(with), Some(plain)) =
        (summary.speedup, summary.speculative_tokens_per_s, summary.plain_tokens_per_s)
    {
        let speeds = format!("{} tokens/s drafted, {} plain", short(with), short(plain));
        figures.push(("decoding", format!("{speedup:.2}×"), speeds));
    }
    if let Some(lossless) = summary.lossless {
        let words = if lossless { "passed" } else { "FAILED" };
        figures.push(("lossless check", words.into(), "in float32, against plain greedy decoding".into()));
    }
    let (in_all, from) = match steps_before {
        0 => ("", String::new()),
        step => (" in all", format!(" from step {} on", grouped(*step))),
    };
    let volume = format!("{} tokens, {} rows{in_all}", grouped(*tokens), grouped(*rows));
    figures.push(("training", format!("{} tokens/s", short(summary.tokens_per_s)), volume));
    let time = format!("of {},{from} in {}", grouped(*total_steps), duration(*train_seconds));
    figures.push(("steps", grouped(*steps), time));
    let (target, drafter) = (summary.target_restarts, summary.drafter_restarts);
    figures.push(("restarts", (target + drafter).to_string(), format!("{target} of targets, {drafter} of drafters")));
    figures.push(("rows dropped", grouped(summary.rows_dropped), format!("{} kept", grouped(summary.rows_kept))));
    let checkpoint = summary.checkpoint.as_ref().and_then(|folder| folder.file_name());
    let checkpoint = checkpoint.map_or("none".into(), |name| name.to_string_lossy().into_owned());
    figures.push(("checkpoint", checkpoint, "in checkpoints/".into()));
    figures
}

/// Without a summary the last step speaks.
fn so_far(history: &History) -> Vec<Figure> {
    let Some(last) = history.steps.0.last() else { return Vec::new() };
    let number = |value: Option<f64>| value.map_or("unknown".into(), short);
    vec![
        ("steps", grouped(last.step), "the last one written down".into()),
        ("loss", number(last.loss), "in that step".into()),
        ("accepted length", number(last.accepted_length), "as training shows it".into()),
    ]
}

/// Why a run failed.
pub(super) fn failure(history: &History) -> Markup {
    html! {
        @if let Some(failure) = &history.failure {
            section class="failure" {
                h2 { "What went wrong" }
                (one(&failure.cause))
                p { "Given up: " (failure.reason) "; " (failure.restarts) " restarts; exit code " (failure.exit_code) "." }
                @for other in &failure.others { h3 { "Also" } (one(other)) }
            }
        }
    }
}

fn one(failure: &Failure) -> Markup {
    html! {
        p {
            b { (failure.worker) } " " (failure.ending) " after " (duration(failure.uptime_s))
            @if let Some(doing) = &failure.doing { " (" (doing) ")" }
            @if let Some(error) = &failure.error { ": " (error) }
        }
        p { "Hint: " (failure.hint) }
        @if !failure.tail.is_empty() { pre { @for line in &failure.tail { (line) "\n" } } }
    }
}

/// Who limited the run: as the run itself said, else as its samples say.
pub(super) fn verdict(history: &History) -> Markup {
    let said = history.summary.as_ref().and_then(|summary| summary.verdict.clone());
    let verdict = said.or_else(|| history.samples.as_ref().and_then(|samples| samples.verdict()));
    html! { @if let Some(Verdict { sentence, figures, .. }) = verdict {
        section class="verdict" {
            h2 { "What limits it" }
            p { (sentence) "." }
            details {
                summary { "the figures" }
                div class="wide" { table { tbody {
                    @for (name, value) in &figures { tr { td { (name.replace('_', " ")) } td { (short(*value)) } } }
                } } }
            }
        }
    } }
}
