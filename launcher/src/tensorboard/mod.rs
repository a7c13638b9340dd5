//! TensorBoard's events of a run, in the run folder's `tensorboard/`: written while the run goes on, from what the workers
//! append to `metrics.jsonl` and the launcher to `telemetry.jsonl`.
//!
//! Nothing here may end a run: what cannot be written is said once and left out.

mod record;
mod tail;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::evaluation::EvaluationReport;
use common::ids::Role;
use common::queue::Phase;
use common::telemetry::metrics::METRICS_FILE;
use common::telemetry::period::Period;
use common::telemetry::sample::SAMPLES_FILE;

use crate::history::StepRecord;
use crate::progress::Console;
use record::{Event, EventFile, SessionLog, Summary, Value, What};
use tail::Tail;

/// The folder's name in a run folder.
const FOLDER: &str = "tensorboard";

/// Time between two looks at the files.
const INTERVAL: Duration = Duration::from_secs(2);

/// A run's events; asked to look a few times a second.
pub(crate) struct Events {
    /// None when none are written, or no more can be.
    writer: Option<Writer>,
    looked: Option<Instant>,
    console: Console,
}

impl Events {
    /// Events of what is appended from now on.
    pub(crate) fn of_run(run_dir: &Path, console: &Console) -> Events {
        Events { writer: Some(Writer::new(run_dir)), looked: None, console: console.clone() }
    }

    /// Writes nothing.
    pub(crate) fn none(console: &Console) -> Events {
        Events { writer: None, looked: None, console: console.clone() }
    }

    /// Takes up what is new, if it is time.
    pub(crate) fn look(&mut self, now: Instant) {
        if self.looked.is_none_or(|looked| now >= looked + INTERVAL) {
            self.looked = Some(now);
            self.catch_up();
        }
    }

    /// Takes up all that is new.
    pub(crate) fn catch_up(&mut self) {
        self.attempt(Writer::follow);
    }

    /// Takes up what decoding with the drafter of that step gave.
    pub(crate) fn evaluated(&mut self, step: u64, report: &EvaluationReport) {
        self.attempt(|writer| writer.evaluation(step, report));
    }

    fn attempt(&mut self, what: impl FnOnce(&mut Writer) -> io::Result<()>) {
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = what(writer) {
            let path = writer.path.display();
            self.console.say(format!("tandem: {path}: {error}: no more events for TensorBoard, the run goes on"));
            self.writer = None;
        }
    }
}

struct Writer {
    path: PathBuf,
    /// None before the first event.
    file: Option<EventFile>,
    metrics: Tail,
    samples: Tail,
    /// What workers did since the last step that was written.
    period: Period,
    /// The last step that was written.
    step: Option<u64>,
}

impl Writer {
    fn new(run_dir: &Path) -> Writer {
        let name = format!("events.out.tfevents.{:010}.{}.tandem", wall_time() as u64, std::process::id());
        Writer {
            path: run_dir.join(FOLDER).join(name),
            file: None,
            metrics: Tail::new(run_dir.join(METRICS_FILE)),
            samples: Tail::new(run_dir.join(SAMPLES_FILE)),
            period: Period::default(),
            step: None,
        }
    }

    fn follow(&mut self) -> io::Result<()> {
        let samples = self.samples.lines()?;
        let samples = samples.iter().filter_map(|line| serde_json::from_str(line).ok());
        samples.for_each(|sample| self.period.add(&sample));
        let records: Vec<_> = self.metrics.lines()?.iter().filter_map(|line| StepRecord::parse(line)).collect();
        records.iter().try_for_each(|record| self.step(record))?;
        records.last().map_or(Ok(()), |last| self.waits(last.step))
    }

    fn step(&mut self, record: &StepRecord) -> io::Result<()> {
        if self.step.is_none_or(|before| record.step <= before) {
            self.write(record.step, What::SessionLog(SessionLog::START))?;
        }
        self.step = Some(record.step);
        let named = [
            ("train/loss", record.loss),
            ("train/accuracy", record.accuracy),
            ("train/accepted_length", record.accepted_length),
            ("train/expected_accepted", record.expected_accepted),
            ("train/learning_rate", record.learning_rate),
            ("train/grad_norm", record.grad_norm),
            ("speed/tokens_per_s", record.tokens_per_s),
        ];
        let named = named.into_iter().map(|(tag, number)| (tag.to_owned(), number));
        let slots = record.slot_accuracy.iter().zip(1..);
        let slots = slots.map(|(accuracy, slot)| (format!("slot_accuracy/{slot:02}"), *accuracy));
        self.scalars(record.step, named.chain(slots))
    }

    /// Shares of their time in which workers of each role waited for others.
    fn waits(&mut self, step: u64) -> io::Result<()> {
        let period = std::mem::take(&mut self.period);
        let phases = Phase::ALL.iter().copied().filter(|phase| phase.is_wait() && *phase != Phase::WaitDrafters);
        let phases: Vec<_> = phases.collect();
        let share = |role| (period.active_ns(role) > 0).then(|| period.share(role, &phases));
        let shares = [("waits/targets", share(Role::Target)), ("waits/drafters", share(Role::Drafter))];
        self.scalars(step, shares.map(|(tag, share)| (tag.to_owned(), share)))
    }

    fn evaluation(&mut self, step: u64, report: &EvaluationReport) -> io::Result<()> {
        let numbers = [
            ("evaluation/accepted_length", Some(report.accepted_length)),
            ("evaluation/tokens_per_s", Some(report.tokens_per_s)),
            ("evaluation/plain_tokens_per_s", report.plain_tokens_per_s),
        ];
        self.scalars(step, numbers.map(|(tag, number)| (tag.to_owned(), number)))
    }

    fn scalars(&mut self, step: u64, numbers: impl IntoIterator<Item = (String, Option<f64>)>) -> io::Result<()> {
        let values = numbers.into_iter().filter_map(|(tag, number)| {
            let simple_value = number? as f32;
            Some(Value { tag, simple_value: Some(simple_value) })
        });
        let value: Vec<_> = values.collect();
        if value.is_empty() { Ok(()) } else { self.write(step, What::Summary(Summary { value })) }
    }

    fn write(&mut self, step: u64, what: What) -> io::Result<()> {
        let wall_time = wall_time();
        if self.file.is_none() {
            self.file = Some(EventFile::create(&self.path, wall_time)?);
        }
        let event = Event { wall_time, step: i64::try_from(step).unwrap_or(i64::MAX), what: Some(what) };
        self.file.as_mut().map_or(Ok(()), |file| file.write(&event))
    }
}

/// Seconds since 1970.
fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests;
