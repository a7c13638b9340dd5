//! `tandem-queue watch`: looks again and again until it is told to stop; the drawing is `screen`'s.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use common::exit::{Blame, Fault};
use common::queue::{Details, Snapshot};
use common::telemetry::period::Period;
use common::telemetry::sample::{Sample, Sampler};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};

use super::curves::Curves;
use super::screen::{self, Page, View};
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
    let curves = Curves::of_run(Path::new(&queue.run));
    let outcome = Follower::new(name, first, curves).follow(&mut terminal, interval);
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

/// What is kept from look to look.
struct Follower {
    name: String,
    view: View,
    history: History,
    sampler: Sampler,
    samples: VecDeque<Sample>,
}

impl Follower {
    fn new(name: String, snapshot: Snapshot, curves: Curves) -> Follower {
        let (recent, events) = (Period::default(), Vec::new());
        let view = View { page: Page::default(), snapshot, rates: None, recent, curves, events, gone: None };
        Follower { name, view, history: History::default(), sampler: Sampler::default(), samples: VecDeque::new() }
    }

    fn follow(mut self, terminal: &mut DefaultTerminal, interval: Duration) -> io::Result<()> {
        loop {
            match Snapshot::read(&self.name) {
                Ok(snapshot) => self.see(snapshot),
                Err(error) => self.view.gone = Some(error.to_string()),
            }
            terminal.draw(|frame| screen::draw(frame, &self.view))?;
            match asked(interval)? {
                Some(Key::Quit) => return Ok(()),
                Some(Key::Page(page)) => self.view.page = page,
                Some(Key::Next) => self.view.page = self.view.page.next(),
                None => {}
            }
        }
    }

    fn see(&mut self, snapshot: Snapshot) {
        let view = &mut self.view;
        self.samples.push_back(self.sampler.sample(&snapshot));
        while self.samples.len() > 1
            && self.samples.iter().map(|sample| sample.elapsed_s).sum::<f64>() > WINDOW.as_secs_f64()
        {
            self.samples.pop_front();
        }
        view.recent = Period::default();
        self.samples.iter().for_each(|sample| view.recent.add(sample));
        view.rates = self.history.rates(Instant::now(), &snapshot);
        view.curves.see(&snapshot);
        if view.page == Page::Events {
            view.events = Details::read(&self.name).map(|details| details.events).unwrap_or_default();
        }
        (view.snapshot, view.gone) = (snapshot, None);
    }
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Quit,
    Page(Page),
    Next,
}

/// Waits for the interval's end, a key, or a new size of the window.
fn asked(interval: Duration) -> io::Result<Option<Key>> {
    if !event::poll(interval)? {
        return Ok(None);
    }
    let Event::Key(key) = event::read()? else { return Ok(None) };
    let is_break = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    Ok(match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        _ if is_break => Some(Key::Quit),
        KeyCode::Tab => Some(Key::Next),
        KeyCode::Char(key) => Page::of_key(key).map(Key::Page),
        _ => None,
    })
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
