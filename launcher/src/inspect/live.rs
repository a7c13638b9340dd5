//! `tandem-queue watch`: looks again and again until it is told to stop; the drawing is `screen`'s.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use common::exit::{Blame, Fault};
use common::queue::Snapshot;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};

use super::screen::{self, View};
use super::{blamed, segment};
use crate::args::OneQueue;
use crate::command::print;

/// Rates are taken over the last so much time.
const WINDOW: Duration = Duration::from_secs(5);

/// Follows a queue until `q`, or with `--json` until it is gone.
pub(super) fn watch(queue: &OneQueue, interval: f64) -> Result<(), Fault> {
    let name = segment(&queue.run)?;
    let first = blamed(Snapshot::read(&name))?;
    let allowed = Duration::try_from_secs_f64(interval).ok().filter(|pause| *pause >= Duration::from_millis(20));
    let interval = allowed.ok_or("--interval").your_input("give 0.02 seconds or more")?;
    if queue.json {
        return lines(&name, interval);
    }
    if !io::stdout().is_terminal() {
        return Err("stdout is no terminal").your_input("use `tandem-queue show`, or watch --json for a program");
    }
    let mut terminal = ratatui::try_init().your_input("the terminal does not take full-screen programs")?;
    let outcome = follow(&mut terminal, &name, first, interval);
    ratatui::restore();
    outcome.our_failure("the terminal went away")
}

/// An object a line while the queue is there.
fn lines(name: &str, interval: Duration) -> Result<(), Fault> {
    while let Ok(snapshot) = Snapshot::read(name) {
        print(&(serde_json::to_string(&snapshot).expect("a snapshot has only values that JSON can hold") + "\n"))?;
        thread::sleep(interval);
    }
    Ok(())
}

fn follow(terminal: &mut DefaultTerminal, name: &str, first: Snapshot, interval: Duration) -> io::Result<()> {
    let mut history = History::default();
    let mut view = View { snapshot: first, rates: None, gone: None };
    loop {
        match Snapshot::read(name) {
            Ok(snapshot) => view = View { rates: history.rates(Instant::now(), &snapshot), snapshot, gone: None },
            Err(error) => view.gone = Some(error.to_string()),
        }
        terminal.draw(|frame| screen::draw(frame, &view))?;
        if asked_to_end(interval)? {
            return Ok(());
        }
    }
}

/// Waits for the interval's end, a key, or a new size of the window.
fn asked_to_end(interval: Duration) -> io::Result<bool> {
    if !event::poll(interval)? {
        return Ok(false);
    }
    let Event::Key(key) = event::read()? else { return Ok(false) };
    let is_break = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    Ok(is_break || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

/// What the totals were, and when.
#[derive(Default)]
struct History {
    totals: VecDeque<(Instant, [u64; 3])>,
}

impl History {
    /// Batches published, released and trained per second; none before there is something to compare.
    fn rates(&mut self, now: Instant, snapshot: &Snapshot) -> Option<[f64; 3]> {
        let sum = |count: fn(&common::queue::BucketView) -> u64| snapshot.buckets.iter().map(count).sum();
        self.of(now, [sum(|bucket| bucket.produced), sum(|bucket| bucket.consumed), snapshot.batches.trained])
    }

    fn of(&mut self, now: Instant, totals: [u64; 3]) -> Option<[f64; 3]> {
        self.totals.push_back((now, totals));
        while self.totals.len() > 2 && now - self.totals[1].0 >= WINDOW {
            self.totals.pop_front();
        }
        let (since, before) = *self.totals.front()?;
        let seconds = now.duration_since(since).as_secs_f64();
        // A step back to a checkpoint takes trained batches away: that is no speed.
        let rate = |place: usize| totals[place].saturating_sub(before[place]) as f64 / seconds;
        (seconds > 0.0).then(|| [rate(0), rate(1), rate(2)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_window() {
        let (mut history, start) = (History::default(), Instant::now());
        let mut at = |seconds, totals| history.of(start + Duration::from_secs(seconds), totals);
        assert_eq!(at(0, [0, 0, 0]), None);
        assert_eq!(at(2, [20, 10, 4]), Some([10.0, 5.0, 2.0]));
        assert_eq!(at(7, [70, 10, 2]), Some([10.0, 0.0, 0.0]), "after a step back");
    }
}
