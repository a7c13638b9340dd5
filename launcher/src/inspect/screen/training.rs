//! What training gains: a curve each for loss, accuracy and accepted length.

use common::ids::Role;
use common::queue::Gauge;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Sparkline};

use super::{View, block, dim};

/// Steps of a sparkline's height that its widget draws exactly.
const LEVELS: f64 = 1000.0;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let parts = [Constraint::Length(2), Constraint::Fill(1), Constraint::Fill(1), Constraint::Fill(1)];
    let [head, loss, accuracy, accepted] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(summary(view)), head);
    let curves = &view.curves;
    curve(frame, loss, ("loss", &curves.of(|point| point.loss)), Color::Yellow);
    curve(frame, accuracy, ("accuracy", &curves.of(|point| point.accuracy)), Color::Green);
    curve(frame, accepted, ("accepted length, tokens per block", &curves.of(|point| point.accepted)), Color::Cyan);
}

fn summary(view: &View) -> Vec<Line<'static>> {
    let Some(drafter) = view.snapshot.participants.iter().find(|worker| worker.role == Role::Drafter) else {
        return Vec::new();
    };
    let gauge = |gauge| drafter.gauges.get(&gauge).copied().unwrap_or_default();
    vec![
        Line::raw(format!(
            "step {}/{}  {:.0} tokens trained, {:.0} block slots scored",
            gauge(Gauge::Step),
            gauge(Gauge::TotalSteps),
            gauge(Gauge::Tokens),
            gauge(Gauge::ScoredSlots)
        )),
        Line::raw(format!(
            "learning rate {:.2e}  gradient norm {:.3}",
            gauge(Gauge::LearningRate),
            gauge(Gauge::GradNorm)
        )),
    ]
}

fn curve(frame: &mut Frame<'_>, area: Rect, (name, values): (&str, &[f64]), colour: Color) {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let (Some(last), Some(first)) = (finite().next_back(), finite().next()) else {
        frame.render_widget(dim("no step yet").block(block(name)), area);
        return;
    };
    let (least, most) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let title = format!("{name} {last:.3}  (first {first:.3}, least {least:.3}, most {most:.3}) ");
    let spread = (most - least).max(f64::MIN_POSITIVE);
    // The least one is a line too: an empty place would be a step that is missing.
    let level = |value: f64| (((value - least) / spread * (LEVELS - 1.0)) as u64).max(1) + LEVELS as u64 / 8;
    let levels: Vec<u64> = fitted(values, usize::from(area.width))
        .iter()
        .map(|value| if value.is_finite() { level(*value) } else { 0 })
        .collect();
    let line = Sparkline::default().data(&levels).max(LEVELS as u64 * 9 / 8).style(colour);
    frame.render_widget(line.block(block(&title)), area);
}

/// A value for each column: means of equal stretches, or each value over as many columns.
fn fitted(values: &[f64], columns: usize) -> Vec<f64> {
    let start = |column: usize| column * values.len() / columns;
    let stretch = |column: usize| &values[start(column)..start(column + 1).max(start(column) + 1)];
    (0..columns).map(stretch).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_take_all_columns_long_ones_by_means() {
        assert_eq!(fitted(&[1.0, 3.0, 5.0, 7.0], 2), [2.0, 6.0]);
        assert_eq!(fitted(&[1.0, 3.0], 5), [1.0, 1.0, 1.0, 3.0, 3.0]);
        assert_eq!(fitted(&[1.0, 3.0, 5.0], 4), [1.0, 1.0, 3.0, 5.0]);
        assert_eq!(fitted(&(0..1000).map(f64::from).collect::<Vec<_>>(), 80).len(), 80);
        assert!(fitted(&[1.0], 0).is_empty());
    }
}
