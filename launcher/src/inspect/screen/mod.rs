//! The pages of `tandem-queue watch`, for any terminal of 80 x 24 or more; a pure function of what was read.

mod events;
mod queue;
mod training;
mod workers;

use common::queue::{EventView, Snapshot};
use common::telemetry::period::Period;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table, Wrap};

use super::curves::Curves;

/// From this width on, all columns are shown.
const WIDE: u16 = 120;

/// What is drawn.
pub(super) struct View {
    pub(super) page: Page,
    pub(super) snapshot: Snapshot,
    /// Batches published, released, trained per second.
    pub(super) rates: Option<[f64; 3]>,
    /// The last seconds of every worker.
    pub(super) recent: Period,
    /// Training so far.
    pub(super) curves: Curves,
    /// What happened last, oldest first; read for its page alone.
    pub(super) events: Vec<EventView>,
    /// Why the queue cannot be read any more; the rest is then its last state.
    pub(super) gone: Option<String>,
}

/// Which page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    /// Slots, gate, buckets, who does what.
    #[default]
    Queue,
    /// Where each worker's time goes.
    Workers,
    /// What training gains.
    Training,
    /// What happened at the queue.
    Events,
}

impl Page {
    const ALL: [(Page, &str); 4] = [
        (Page::Queue, "1 queue"),
        (Page::Workers, "2 workers"),
        (Page::Training, "3 training"),
        (Page::Events, "4 events"),
    ];

    /// The page of a key from 1 to 4.
    pub(super) fn of_key(key: char) -> Option<Page> {
        Page::ALL.iter().find(|(_, name)| name.starts_with(key)).map(|(page, _)| *page)
    }

    /// The one after it.
    pub(super) fn next(self) -> Page {
        let place = Page::ALL.iter().position(|(page, _)| *page == self).unwrap_or(0);
        Page::ALL[(place + 1) % Page::ALL.len()].0
    }
}

/// Draws the page.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let title = title(view);
    let parts = [Constraint::Length(rows_of(&title, frame.area().width)), Constraint::Min(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(title).wrap(Wrap { trim: true }), head);
    match view.page {
        Page::Queue => queue::draw(frame, body, view),
        Page::Workers => workers::draw(frame, body, view),
        Page::Training => training::draw(frame, body, view),
        Page::Events => events::draw(frame, body, view),
    }
    frame.render_widget(tabs(view.page), foot);
}

/// The run and its state; a line of its own says why it cannot be read any more.
fn title(view: &View) -> Vec<Line<'static>> {
    let snapshot = &view.snapshot;
    let state = match (&view.gone, snapshot.aborted, snapshot.launcher_alive) {
        (Some(_), ..) => Span::styled("gone", Color::Red),
        (None, true, _) => Span::styled("given up", Color::Red),
        (None, _, false) => Span::styled("launcher is dead", Color::Red),
        (None, false, true) => Span::styled("alive", Color::Green),
    };
    let run = Span::raw(format!("run {}  launcher {}  ", snapshot.run_id, snapshot.launcher_pid));
    let gone = view.gone.iter().map(|gone| Line::styled(gone.clone(), Color::Red));
    [Line::from(vec![run, state])].into_iter().chain(gone).collect()
}

fn tabs(page: Page) -> Line<'static> {
    let tab = |(of, name): (Page, &str)| {
        let style = if of == page { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        [Span::styled(format!(" {name} "), style), Span::raw(" ")]
    };
    let hint = Span::styled(" Tab next  q quits", Style::new().add_modifier(Modifier::DIM));
    Line::from(Page::ALL.into_iter().flat_map(tab).chain([hint]).collect::<Vec<_>>())
}

fn table<'a>(title: &'a str, names: &[&'static str], rows: Vec<Row<'a>>, widths: Vec<Constraint>) -> Table<'a> {
    let head = Row::new(names.to_vec()).style(Style::new().add_modifier(Modifier::BOLD));
    Table::new(rows, widths).header(head).block(block(title))
}

fn block(title: &str) -> Block<'_> {
    Block::new().borders(Borders::TOP).title(title)
}

/// Rows that lines take when they are wrapped. Words are not split, so a line may take one row more than its letters.
fn rows_of(lines: &[Line<'_>], width: u16) -> u16 {
    let width = usize::from(width.max(1));
    let rows_of = |line: &Line<'_>| line.width().div_ceil(width).max(1) + usize::from(line.width() > width);
    let rows = lines.iter().map(rows_of).sum::<usize>();
    u16::try_from(rows).unwrap_or(u16::MAX)
}

fn dim(text: impl Into<String>) -> Paragraph<'static> {
    Paragraph::new(text.into()).style(Style::new().add_modifier(Modifier::DIM))
}

#[cfg(test)]
pub(super) mod tests;
