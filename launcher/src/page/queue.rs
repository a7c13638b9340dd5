//! The queue over time, and the workers that were started again.

use maud::{Markup, html};

use super::chart::{Chart, Line};
use super::numbers::{duration, grouped};
use crate::history::{Depth, History, Samples};

/// Restarts listed at most.
const LISTED: usize = 100;

/// Depth over time and restarts; of a run without samples, what its summary says.
pub(super) fn section(history: &History) -> Markup {
    html! {
        section {
            h2 { "Queue" }
            @match &history.samples {
                Some(samples) => div class="grid" { @if let Some(depth) = depth(samples) { (depth) } (restarts(samples)) },
                None => p { "Its depth is not known: there is no telemetry.jsonl to read." },
            }
        }
    }
}

fn depth(samples: &Samples) -> Option<Markup> {
    let line = |name, count: fn(&Depth) -> f64| {
        let points = samples.depth.iter().map(|depth| (depth.at_s, count(depth))).collect();
        Line { name, points }
    };
    let lines = vec![
        line("ready", |depth| f64::from(depth.ready)),
        line("being written", |depth| f64::from(depth.writing)),
        line("being read", |depth| f64::from(depth.reading)),
        line("gate opens at", |depth| depth.min_ready as f64),
    ];
    let marks = samples.restarts.iter().map(|restart| restart.at_s).collect();
    Chart { title: "Slots by state", along: "seconds", lines, marks }.figure()
}

fn restarts(samples: &Samples) -> Markup {
    html! {
        div class="card" {
            h3 { "Restarts" }
            @if samples.restarts.is_empty() { p { "None: no worker was started again." } }
            ul { @for restart in samples.restarts.iter().take(LISTED) {
                li {
                    (restart.worker.0) " " (restart.worker.1) " at " (duration(restart.at_s)) ", step " (grouped(restart.step))
                }
            } }
            @if samples.restarts.len() > LISTED { p { "and " (samples.restarts.len() - LISTED) " more" } }
        }
    }
}
