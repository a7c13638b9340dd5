//! Slots, gate and buckets, and what every worker does.

use common::queue::{BucketView, ParticipantView, Snapshot};
use common::telemetry::worker_name;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Wrap};

use super::{View, WIDE, rows_of, table};
use crate::inspect::text;

/// Characters of a bucket's bar.
const BAR: u16 = 12;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let snapshot = &view.snapshot;
    let lines = summary(view);
    let head = rows_of(&lines, area.width) + 1;
    let buckets = u16::try_from(snapshot.buckets.len()).unwrap_or(u16::MAX).saturating_add(3);
    let parts = [Constraint::Length(head), Constraint::Max(buckets), Constraint::Min(4)];
    let [head, middle, low] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), head);
    draw_buckets(frame, middle, snapshot);
    draw_workers(frame, low, snapshot);
}

fn summary(view: &View) -> Vec<Line<'static>> {
    let snapshot = &view.snapshot;
    let (batches, slots) = (snapshot.batches, snapshot.slots);
    let rates = view.rates.map_or(String::new(), |[published, released, trained]| {
        format!("per second: {published:.1} published, {released:.1} released, {trained:.1} trained")
    });
    let gate = if snapshot.gate.open { Color::Green } else { Color::Yellow };
    let share = 100.0 * batches.trained as f64 / batches.total.max(1) as f64;
    vec![
        Line::raw(format!(
            "trained {}/{} ({share:.0} %)  pending {}  claimed {}  ready {}  held {}",
            batches.trained, batches.total, batches.pending, batches.claimed, batches.ready, batches.held
        )),
        Line::raw(format!(
            "slots {}: {} free  {} writing  {} ready  {} reading; {} taken back from the dead",
            snapshot.slots.total(),
            slots.free,
            slots.writing,
            slots.ready,
            slots.reading,
            snapshot.reclaimed
        )),
        Line::raw(rates),
        Line::styled(format!("gate {}", snapshot.gate.reason), gate),
        Line::raw(text::lock(snapshot)),
    ]
}

fn draw_buckets(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let wide = area.width >= WIDE;
    let capacity = snapshot.slots.total().max(1);
    let mut names = vec!["tokens", "ready", "", "most", "out", "back", "wait p50/p99", "age p50/p99"];
    let mut widths = [9, BAR, 5, 5, 9, 6, 13, 13].map(Constraint::Length).to_vec();
    if wide {
        names.extend(["hold p50/p99", "produced", "dropped"]);
        widths.extend([13, 10, 8].map(Constraint::Length));
    }
    let rows = snapshot.buckets.iter().map(|bucket| bucket_row(bucket, capacity, wide)).collect();
    frame.render_widget(table("buckets ", &names, rows, widths), area);
}

fn bucket_row(bucket: &BucketView, capacity: u32, wide: bool) -> Row<'static> {
    let filled = (bucket.ready * u32::from(BAR)).div_ceil(capacity).min(u32::from(BAR)) as usize;
    let bar = "█".repeat(filled) + &"░".repeat(usize::from(BAR) - filled);
    let mut cells = vec![
        Cell::from(format!("<= {}", bucket.bound)),
        Cell::from(bar).style(Color::Cyan),
        Cell::from(bucket.ready.to_string()),
        Cell::from(bucket.high_water.to_string()),
        Cell::from(bucket.consumed.to_string()),
        Cell::from(bucket.redelivered.to_string()),
        Cell::from(text::percentiles(&bucket.waited)),
        Cell::from(text::percentiles(&bucket.aged)),
    ];
    if wide {
        cells.push(Cell::from(text::percentiles(&bucket.held)));
        cells.extend([bucket.produced, bucket.dropped].map(|count| Cell::from(count.to_string())));
    }
    Row::new(cells)
}

fn draw_workers(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let wide = area.width >= WIDE;
    let mut names = vec!["worker", "state", "again", "batches"];
    let mut widths = [11, 7, 5, 7].map(Constraint::Length).to_vec();
    if wide {
        names.insert(1, "pid");
        widths.insert(1, Constraint::Length(8));
    }
    names.push("does");
    widths.push(Constraint::Min(20));
    let rows = snapshot.participants.iter().map(|worker| worker_row(worker, wide)).collect();
    frame.render_widget(table("workers ", &names, rows, widths), area);
}

fn worker_row(worker: &ParticipantView, wide: bool) -> Row<'static> {
    let (state, color) = match (worker.pid, worker.alive, worker.stopped) {
        (None, ..) => ("-", Color::DarkGray),
        (_, false, _) => ("dead", Color::Red),
        (_, true, true) => ("STOPPED", Color::Yellow),
        (_, true, false) => ("alive", Color::Green),
    };
    let mut cells = vec![
        Cell::from(worker_name(worker.role, worker.rank)),
        Cell::from(state).style(color),
        Cell::from(worker.incarnation.saturating_sub(1).to_string()),
        Cell::from(worker.batches.to_string()),
    ];
    if wide {
        cells.insert(1, Cell::from(worker.pid.map_or("-".into(), |pid| pid.to_string())));
    }
    cells.push(Cell::from(if wide { text::does(worker) } else { text::doing(worker) }));
    Row::new(cells)
}
