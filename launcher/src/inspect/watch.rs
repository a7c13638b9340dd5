//! What the progress bar shows of a live queue.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use common::ids::Role;
use common::queue::{Gauge, ParticipantView, Snapshot};
use common::run_plan::RunPlan;

use crate::progress::Progress;

/// Speed is taken over the last so much time.
const WINDOW: Duration = Duration::from_secs(10);

/// Follows one run's queue.
pub(crate) struct Watch {
    name: String,
    total_steps: u64,
    /// When, and the tokens trained until then.
    history: VecDeque<(Instant, f64)>,
}

impl Watch {
    /// Follows the queue of a run.
    pub(crate) fn new(plan: &RunPlan) -> Watch {
        Watch { name: plan.queue_name(), total_steps: plan.total_steps, history: VecDeque::new() }
    }

    /// Where training stands; none if the queue cannot be read.
    pub(crate) fn progress(&mut self) -> Option<Progress> {
        let snapshot = Snapshot::read(&self.name).ok()?;
        let first = snapshot.participants.iter().find(|worker| worker.role == Role::Drafter)?;
        let speed = self.speed(Instant::now(), gauge(first, Gauge::Tokens));
        let step = gauge(first, Gauge::Step) as u64;
        Some(Progress { what: "step", done: step, total: self.total_steps, text: words(&snapshot, first, speed) })
    }

    /// Tokens per second over the window; none until there is something to compare.
    fn speed(&mut self, now: Instant, tokens: f64) -> Option<f64> {
        if self.history.back().is_some_and(|(_, before)| tokens < *before) {
            // A restarted drafter counts from zero again.
            self.history.clear();
        }
        self.history.push_back((now, tokens));
        while self.history.len() > 2 && now - self.history[1].0 >= WINDOW {
            self.history.pop_front();
        }
        let (since, before) = *self.history.front()?;
        let seconds = now.duration_since(since).as_secs_f64();
        (tokens > before && seconds > 0.0).then(|| (tokens - before) / seconds)
    }
}

fn words(snapshot: &Snapshot, drafter: &ParticipantView, speed: Option<f64>) -> String {
    let numbers = if gauge(drafter, Gauge::Step) > 0.0 {
        let (loss, accuracy) = (gauge(drafter, Gauge::Loss), gauge(drafter, Gauge::Accuracy));
        format!("loss {loss:.3} acc {accuracy:.3} ")
    } else {
        String::new()
    };
    let speed = speed.map(|speed| format!("{speed:.0} tok/s ")).unwrap_or_default();
    let slots = snapshot.slots;
    let capacity = slots.free + slots.writing + slots.ready + slots.reading;
    let restarts: u32 = snapshot.participants.iter().map(|worker| worker.incarnation.saturating_sub(1)).sum();
    let restarts = if restarts > 0 { format!(" restarts {restarts}") } else { String::new() };
    format!("{numbers}{speed}queue {}/{capacity}{restarts}", slots.ready)
}

fn gauge(worker: &ParticipantView, gauge: Gauge) -> f64 {
    worker.gauges.get(&gauge).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_that_of_the_window_and_survives_a_restart() {
        let mut watch = Watch { name: String::new(), total_steps: 1, history: VecDeque::new() };
        let start = Instant::now();
        let mut speed = |seconds: u64, tokens: f64| watch.speed(start + Duration::from_secs(seconds), tokens);
        assert_eq!(speed(0, 0.0), None);
        assert_eq!(speed(10, 1000.0), Some(100.0));
        assert_eq!(speed(20, 5000.0), Some(400.0));
        assert_eq!(speed(21, 100.0), None);
        assert_eq!(speed(23, 300.0), Some(100.0));
    }
}
