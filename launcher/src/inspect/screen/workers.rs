//! Where each worker's time goes: who limits the run, then for each worker a bar of its main thread, another one of its
//! GPU, and a line for each of their phases.

use std::collections::BTreeMap;

use common::queue::{ParticipantView, Phase, PhaseView, Track};
use common::telemetry::sample::Spent;
use common::telemetry::verdict::Verdict;
use common::telemetry::worker_name;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::{View, block, dim, rows_of};
use crate::inspect::text;

/// Rows that a worker needs: its name and its bars.
const LEAST: usize = 2;
const LEAST_WITH_GPU: usize = 3;
/// What stands before a bar where there are two.
const NAMES: [(Track, &str); 2] = [(Track::Main, "host "), (Track::Gpu, "GPU  ")];
/// Work's colours, by phase: a step's phases differ, and each is the same on host and GPU. Waits are grey.
const COLOURS: [Color; 6] = [Color::Magenta, Color::Yellow, Color::Blue, Color::Cyan, Color::Green, Color::Red];

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let sentence =
        Verdict::on(&view.recent).map_or("no batch was cared for in the last seconds".into(), |v| v.sentence);
    let sentence = vec![Line::raw(sentence)];
    let top = rows_of(&sentence, area.width) + 1;
    let [top, body] = Layout::vertical([Constraint::Length(top), Constraint::Min(1)]).areas(area);
    frame.render_widget(Paragraph::new(sentence).wrap(Wrap { trim: true }).block(block("who limits the run ")), top);
    let (height, all) = (usize::from(body.height), &view.snapshot.participants);
    let least = all.iter().map(least).max().unwrap_or(LEAST);
    // A line is kept for what does not fit.
    let fit = if height >= all.len() * least { all.len() } else { height.saturating_sub(1) / least };
    let each = height.checked_div(fit).unwrap_or(0);
    let mut lines: Vec<Line<'_>> =
        all.iter().take(fit).flat_map(|worker| of_worker(worker, view, (body.width, each))).collect();
    if fit < all.len() {
        lines.push(Line::raw(format!("{} more workers: a higher window shows them", all.len() - fit)));
    }
    frame.render_widget(if lines.is_empty() { dim("no worker") } else { Paragraph::new(lines) }, body);
}

fn has_gpu(worker: &ParticipantView) -> bool {
    worker.profile.contains_key(&Track::Gpu)
}

fn least(worker: &ParticipantView) -> usize {
    if has_gpu(worker) { LEAST_WITH_GPU } else { LEAST }
}

fn of_worker(worker: &ParticipantView, view: &View, (width, rows): (u16, usize)) -> Vec<Line<'static>> {
    let stages = view.recent.stages((worker.role, worker.rank));
    let shares = |track| shares(stages.and_then(|stages| stages.get(&track)));
    let name = worker_name(worker.role, worker.rank);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![Line::from(vec![Span::styled(format!("{name:<12}"), bold), Span::raw(text::doing(worker))])];
    let left = rows.saturating_sub(least(worker) + 1);
    if !has_gpu(worker) {
        let shares = shares(Track::Main);
        lines.push(bar("", &shares, width));
        lines.extend(phases(worker, (Track::Main, ""), &shares).take(left));
        return lines;
    }
    let both = NAMES.map(|(track, name)| (track, name, shares(track)));
    lines.extend(both.iter().map(|(_, name, shares)| bar(name, shares, width)));
    // Each has half of the rows, or what the other one leaves of them.
    let of_gpu = left.saturating_sub(both[0].2.len()).max(left / 2).min(both[1].2.len());
    for ((track, name, shares), rows) in both.iter().zip([left - of_gpu, of_gpu]) {
        lines.extend(phases(worker, (*track, name), shares).take(rows));
    }
    lines
}

/// A line for each phase of a track.
fn phases(
    worker: &ParticipantView,
    (track, name): (Track, &'static str),
    shares: &[(Phase, f64)],
) -> impl Iterator<Item = Line<'static>> {
    let times = worker.profile.get(&track);
    shares.iter().map(move |(phase, share)| of_phase((name, *phase, *share), times.and_then(|times| times.get(phase))))
}

/// A worker's phases with their shares of its time, the longest first.
fn shares(spent: Option<&BTreeMap<Phase, Spent>>) -> Vec<(Phase, f64)> {
    let all: u64 = spent.iter().flat_map(|phases| phases.values()).map(|spent| spent.ns).sum();
    let share = |(phase, spent): (&Phase, &Spent)| (*phase, spent.ns as f64 / all as f64);
    let mut shares: Vec<_> = spent.into_iter().flatten().filter(|(_, spent)| spent.ns > 0).map(share).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    shares
}

fn colour(phase: Phase) -> Color {
    if phase.is_wait() { Color::DarkGray } else { COLOURS[phase as usize % COLOURS.len()] }
}

/// Waits are light, so that they differ also without colours.
fn shade(phase: Phase) -> &'static str {
    if phase.is_wait() { "░" } else { "█" }
}

fn bar(name: &'static str, shares: &[(Phase, f64)], width: u16) -> Line<'static> {
    let width = width.saturating_sub(name.len() as u16);
    let (mut spans, mut until, mut drawn) = (vec![Span::raw(name)], 0.0, 0);
    for (phase, share) in shares {
        until += share * f64::from(width);
        let end = (until.round() as usize).min(usize::from(width));
        spans.push(Span::styled(shade(*phase).repeat(end.saturating_sub(drawn)), colour(*phase)));
        drawn = end.max(drawn);
    }
    Line::from(spans)
}

fn of_phase((name, phase, share): (&'static str, Phase, f64), view: Option<&PhaseView>) -> Line<'static> {
    let (times, longest) = view.map_or((String::new(), 0), |view| (text::percentiles(&view.histogram), view.max_ns));
    Line::from(vec![
        Span::raw(if name.is_empty() { "  " } else { name }),
        Span::styled(format!("{} ", shade(phase)), colour(phase)),
        Span::raw(format!(
            "{:<14} {:>5.1} %   p50/p99 {times:>13}   longest {:>8.1} ms",
            phase.name(),
            share * 100.0,
            longest as f64 / 1e6
        )),
    ])
}
