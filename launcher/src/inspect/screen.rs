//! The queue on one screen, for any terminal of 80 x 24 or more; a pure function of what was read.

use common::queue::{BucketView, ParticipantView, Snapshot};
use common::telemetry::worker_name;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, Wrap};

use super::text;

/// What is drawn.
pub(super) struct View {
    pub(super) snapshot: Snapshot,
    /// Batches published, released, trained per second.
    pub(super) rates: Option<[f64; 3]>,
    /// Why the queue cannot be read any more; the rest is then its last state.
    pub(super) gone: Option<String>,
}

/// From this width on, all columns are shown.
const WIDE: u16 = 120;
/// Characters of a bucket's bar.
const BAR: u16 = 12;

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let snapshot = &view.snapshot;
    let buckets = u16::try_from(snapshot.buckets.len()).unwrap_or(u16::MAX).saturating_add(3);
    let parts = [Constraint::Length(6), Constraint::Max(buckets), Constraint::Min(4), Constraint::Length(1)];
    let [head, middle, low, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(summary(view)).wrap(Wrap { trim: true }), head);
    draw_buckets(frame, middle, snapshot);
    draw_workers(frame, low, snapshot);
    let foot_text = format!("{}   q quits", text::lock(snapshot));
    frame.render_widget(Paragraph::new(foot_text).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

fn summary(view: &View) -> Vec<Line<'static>> {
    let snapshot = &view.snapshot;
    let (batches, slots) = (snapshot.batches, snapshot.slots);
    let state = match (&view.gone, snapshot.aborted, snapshot.launcher_alive) {
        (Some(gone), ..) => Span::styled(gone.clone(), Color::Red),
        (None, true, _) => Span::styled("given up", Color::Red),
        (None, _, false) => Span::styled("launcher is dead", Color::Red),
        (None, false, true) => Span::styled("alive", Color::Green),
    };
    let rates = view.rates.map_or(String::new(), |[published, released, trained]| {
        format!("per second: {published:.1} published, {released:.1} released, {trained:.1} trained")
    });
    let gate = if snapshot.gate.open { Color::Green } else { Color::Yellow };
    let share = 100.0 * batches.trained as f64 / batches.total.max(1) as f64;
    vec![
        Line::from(vec![Span::raw(format!("run {}  launcher {}  ", snapshot.run_id, snapshot.launcher_pid)), state]),
        Line::raw(format!(
            "trained {}/{} ({share:.0} %)  pending {}  claimed {}  ready {}  held {}",
            batches.trained, batches.total, batches.pending, batches.claimed, batches.ready, batches.held
        )),
        Line::raw(format!(
            "slots {}: {} free  {} writing  {} ready  {} reading; {} taken back from the dead",
            text::capacity(snapshot),
            slots.free,
            slots.writing,
            slots.ready,
            slots.reading,
            snapshot.reclaimed
        )),
        Line::raw(rates),
        Line::styled(format!("gate {}", snapshot.gate.reason), gate),
    ]
}

fn table<'a>(title: &'a str, names: &[&'static str], rows: Vec<Row<'a>>, widths: Vec<Constraint>) -> Table<'a> {
    let head = Row::new(names.to_vec()).style(Style::new().add_modifier(Modifier::BOLD));
    Table::new(rows, widths).header(head).block(Block::new().borders(Borders::TOP).title(title))
}

fn draw_buckets(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let wide = area.width >= WIDE;
    let capacity = text::capacity(snapshot).max(1);
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
    let names = ["worker", "pid", "state", "again", "batches", "does"];
    let mut widths = [12, 8, 8, 6, 8].map(Constraint::Length).to_vec();
    widths.push(Constraint::Min(20));
    let rows = snapshot.participants.iter().map(worker_row).collect();
    frame.render_widget(table("workers ", &names, rows, widths), area);
}

fn worker_row(worker: &ParticipantView) -> Row<'static> {
    let (state, color) = match (worker.pid, worker.alive, worker.stopped) {
        (None, ..) => ("-", Color::DarkGray),
        (_, false, _) => ("dead", Color::Red),
        (_, true, true) => ("STOPPED", Color::Yellow),
        (_, true, false) => ("alive", Color::Green),
    };
    Row::new(vec![
        Cell::from(worker_name(worker.role, worker.rank)),
        Cell::from(worker.pid.map_or("-".into(), |pid| pid.to_string())),
        Cell::from(state).style(color),
        Cell::from(worker.incarnation.saturating_sub(1).to_string()),
        Cell::from(worker.batches.to_string()),
        Cell::from(text::does(worker)),
    ])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use common::config::{GateMode, PopPolicy};
    use common::ids::Rank;
    use common::queue::{Phase, Queue, QueueOwner, QueueSpec};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn screen(width: u16, height: u16, view: &View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        terminal.backend().to_string()
    }

    fn queue(name: &str) -> QueueOwner {
        let spec = QueueSpec {
            run_id: format!("{name}-{}", std::process::id()),
            capacity: 4,
            batch_tokens: 64,
            max_documents: 8,
            slot_bytes: 64,
            bucket_bounds: vec![16, 2048],
            min_ready: 2,
            gate: GateMode::Level,
            policy: PopPolicy::Mixed,
            max_age: Duration::from_secs(5),
            targets: 1,
            drafters: 1,
            total_batches: 9,
            seed: 0,
        };
        Queue::create(&spec).unwrap()
    }

    #[test]
    fn the_gate_the_workers_and_the_buckets_are_there_on_any_terminal() {
        let queue = queue("screen");
        let target = queue.producer(Rank(0)).unwrap();
        target.phase(Phase::Forward);
        let mut view = View { snapshot: queue.snapshot(), rates: Some([1.0, 2.0, 3.5]), gone: None };
        for (width, height) in [(80, 24), (200, 60)] {
            let screen = screen(width, height, &view);
            let wanted =
                ["closed: 0 of 2", "pending 9", "3.5 trained", "<= 2048", "target 0", "forward", "lock free", "alive"];
            wanted.iter().for_each(|text| assert!(screen.contains(text), "{text} is not on\n{screen}"));
            assert_eq!(screen.contains("hold p50/p99"), width == 200, "{screen}");
        }
        view.gone = Some("it is gone".into());
        assert!(screen(80, 24, &view).contains("it is gone"));
        // Too small for anything: no panic.
        screen(7, 3, &view);
    }

    #[test]
    fn a_stopped_lock_holder_is_named() {
        let queue = queue("stopped");
        let _places = (queue.producer(Rank(0)).unwrap(), queue.consumer(Rank(0)).unwrap());
        let mut snapshot = queue.snapshot();
        snapshot.participants[0].stopped = true;
        snapshot.lock.held_by = Some("target 0".into());
        snapshot.participants[1].waits_for = Some("the lock");
        let lock = format!("held by target 0 (pid {}), which is STOPPED", std::process::id());
        let page = text::show(&snapshot);
        let screen = screen(120, 24, &View { snapshot, rates: None, gone: None });
        for text in [lock.as_str(), "waits for the lock"] {
            assert!(page.contains(text) && screen.contains(text), "{text}: {page}{screen}");
        }
        assert!(page.contains(" stopped ") && screen.contains(" STOPPED "), "{page}{screen}");
    }
}
