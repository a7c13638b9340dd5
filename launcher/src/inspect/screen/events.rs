//! What happened at the queue, the newest at the bottom.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::widgets::Paragraph;

use super::{View, block, dim};
use crate::inspect::text;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let frame_lines = 2;
    let room = usize::from(area.height).saturating_sub(frame_lines);
    let newest = &view.events[view.events.len().saturating_sub(room)..];
    if newest.is_empty() {
        let why = if view.gone.is_some() { "they are gone with the queue" } else { "nothing has happened yet" };
        frame.render_widget(dim(why).block(block("events ")), area);
        return;
    }
    frame.render_widget(Paragraph::new(text::events(newest)).block(block("events ")), area);
}
