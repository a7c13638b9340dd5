//! Where each worker's time went: a bar per track, and the numbers beneath.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use common::ids::{Rank, Role};
use common::queue::{Phase, Track};
use common::telemetry::sample::Spent;
use maud::{Markup, html};

use super::numbers::{duration, grouped, percent};
use crate::history::Samples;

/// Phases outside of a worker's work: neither its doing nor its waiting.
const ASIDE: [Phase; 4] = [Phase::Starting, Phase::Loading, Phase::Ready, Phase::Finished];

/// Degrees from one phase's hue to the next: the golden angle keeps neighbours apart.
const HUE_STEP: u32 = 137;

/// Bars and tables of all workers.
pub(super) fn breakdown(samples: &Samples) -> Markup {
    html! {
        @for worker in samples.workers.keys() {
            @for (track, phases) in samples.whole.stages(*worker).into_iter().flatten() {
                (one(*worker, *track, phases))
            }
        }
    }
}

fn one((role, rank): (Role, Rank), track: Track, phases: &BTreeMap<Phase, Spent>) -> Markup {
    let total = phases.values().map(|spent| spent.ns).sum::<u64>() as f64;
    let mut sorted: Vec<_> = phases.iter().filter(|(_, spent)| spent.ns > 0).collect();
    sorted.sort_by_key(|(_, spent)| Reverse(spent.ns));
    let waits = sorted.iter().filter(|(phase, _)| phase.is_wait()).map(|(_, spent)| spent.ns).sum::<u64>() as f64;
    html! {
        section class="card" {
            h3 { (role) " " (rank) ", " (track_words(track)) }
            p { (duration(total / 1e9)) ", " (summary(track, waits / total.max(1.0))) }
            div class="bar" aria-hidden="true" {
                @for (phase, spent) in &sorted {
                    @let width = spent.ns as f64 / total * 100.0;
                    span class=(class(**phase)) style=(format!("width:{width:.3}%;{}", colour(**phase)))
                        title=(format!("{} {width:.1} %", words(**phase))) {}
                }
            }
            div class="wide" { table {
                thead { tr { th { "phase" } th { "share" } th { "time" } th { "visits" } th { "each" } } }
                tbody { @for (phase, spent) in &sorted { (row(**phase, spent, total)) } }
            } }
        }
    }
}

/// What the share of waits says.
fn summary(track: Track, waits: f64) -> String {
    if track.is_of_gpu() {
        format!("{} of it at work", percent(1.0 - waits))
    } else {
        format!("{} of it waiting for others", percent(waits))
    }
}

fn row(phase: Phase, spent: &Spent, total: f64) -> Markup {
    let each = match spent.count {
        0 => "goes on".into(),
        count => duration(spent.ns as f64 / 1e9 / count as f64),
    };
    html! {
        tr {
            td { span class=(format!("key {}", class(phase))) style=(colour(phase)) {} (words(phase)) }
            td { (percent(spent.ns as f64 / total)) }
            td { (duration(spent.ns as f64 / 1e9)) }
            td { (grouped(spent.count)) }
            td { (each) }
        }
    }
}

fn words(phase: Phase) -> String {
    phase.name().replace('_', " ")
}

fn track_words(track: Track) -> &'static str {
    match track {
        Track::Main => "main thread",
        Track::Side => "second thread",
        Track::Gpu => "GPU",
        Track::Copies => "GPU copies",
    }
}

fn class(phase: Phase) -> &'static str {
    match phase {
        _ if phase.is_wait() => "wait",
        _ if ASIDE.contains(&phase) => "aside",
        _ => "work",
    }
}

fn colour(phase: Phase) -> String {
    if class(phase) == "work" { format!("--hue:{}", phase as u32 * HUE_STEP % 360) } else { String::new() }
}
