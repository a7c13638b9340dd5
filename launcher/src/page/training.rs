//! Training's curves.

use maud::{Markup, html};

use super::chart::{Chart, Line};
use super::numbers::percent;
use crate::history::{History, StepRecord, Steps};

type Number = fn(&StepRecord) -> Option<f64>;

/// Charts, and the curves in each.
const CHARTS: [(&str, &[(&str, Number)]); 6] = [
    ("Loss", &[("loss", |step| step.loss)]),
    ("Accuracy of predicted tokens", &[("accuracy", |step| step.accuracy)]),
    (
        "Accepted tokens, in training",
        &[("accepted length", |step| step.accepted_length), ("expected accepted", |step| step.expected_accepted)],
    ),
    ("Learning rate", &[("learning rate", |step| step.learning_rate)]),
    ("Gradient norm, before clipping", &[("gradient norm", |step| step.grad_norm)]),
    ("Tokens trained a second", &[("tokens/s", |step| step.tokens_per_s)]),
];

/// All curves over the steps, and the accuracy of each slot.
pub(super) fn section(history: &History) -> Markup {
    let steps = &history.steps;
    let restarts = history.samples.iter().flat_map(|samples| &samples.restarts);
    let marks: Vec<f64> = restarts.map(|restart| restart.step as f64).collect();
    let chart = |(title, curves): &(&'static str, &'static [(&'static str, Number)])| {
        let lines = curves.iter().map(|(name, number)| Line { name, points: steps.curve(number) }).collect();
        Chart { title, along: "step", lines, marks: marks.clone() }.figure()
    };
    html! {
        section {
            h2 { "Training" }
            @if steps.0.is_empty() { p { "No step is written down." } }
            div class="grid" {
                @for figure in CHARTS.iter().filter_map(chart) { (figure) }
                (slots(steps))
            }
        }
    }
}

/// Accuracy by the place in the block, at the last step.
fn slots(steps: &Steps) -> Markup {
    let Some(last) = steps.0.last().filter(|last| !last.slot_accuracy.is_empty()) else { return html! {} };
    html! {
        figure {
            figcaption { "Accuracy by place in the block, at step " (last.step) }
            table class="bars" { tbody {
                @for (place, accuracy) in last.slot_accuracy.iter().enumerate() {
                    @let share = accuracy.unwrap_or_default().clamp(0.0, 1.0);
                    tr {
                        th { (place + 1) }
                        td { div class="bar" { span class="c0" style=(format!("width:{:.1}%", share * 100.0)) {} } }
                        td { (accuracy.map_or("unknown".into(), percent)) }
                    }
                }
            } }
        }
    }
}
