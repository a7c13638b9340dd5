//! Keeps what a run's queue shows: samples in the run folder, a trace if one is asked for, and the verdict at the end.
//!
//! Nothing here may end a run: what cannot be written is said once and left out. The samples' file is bounded: after
//! every [`THIN`] lines they come half as often.

mod trace;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::config::Config;
use common::ids::Role;
use common::queue::Snapshot;
use common::run_plan::RunPlan;
use common::telemetry::metrics::{MetricsError, MetricsFile};
use common::telemetry::period::Period;
use common::telemetry::sample::{SAMPLES_FILE, Sample, Sampler};
use common::telemetry::verdict::Verdict;

use crate::progress::Console;
pub(crate) use trace::Steps;
use trace::Trace;

/// Lines after which samples come half as often.
const THIN: u64 = 10_000;

/// A run's recorder; asked to look a few times a second.
pub(crate) struct Recorder {
    queue: String,
    file: Samples,
    sampler: Sampler,
    every: Every,
    /// All samples, and those in which everybody was at work.
    whole: Period,
    steady: Period,
    trace: Trace,
    console: Console,
}

impl Recorder {
    /// Records the run of that plan; `steps` are those to be traced, if any.
    pub(crate) fn new(config: &Config, plan: &RunPlan, steps: Option<Steps>, console: &Console) -> Recorder {
        let folder = &config.run.output_dir;
        let workers = (config.run.workers(Role::Target), config.run.workers(Role::Drafter));
        Recorder {
            queue: plan.queue_name(),
            file: Samples { path: folder.join(SAMPLES_FILE), file: None, has_warned: false },
            sampler: Sampler::default(),
            every: Every::new(config.telemetry.sample_interval_s),
            whole: Period::default(),
            steady: Period::default(),
            trace: Trace::new(folder, plan, workers, steps),
            console: console.clone(),
        }
    }

    /// From here on SIGUSR2 asks for a trace.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub(crate) fn listen(&self) -> io::Result<()> {
        self.trace.listen()
    }

    /// Looks, if it is time.
    pub(crate) fn look(&mut self, now: Instant) {
        if self.every.is_due(now) {
            self.sample();
        }
        self.trace.look().into_iter().for_each(|said| self.console.say(format!("tandem: {said}")));
    }

    /// The end of the workers, while the queue is still there: what limited the run, if there is anything to say.
    pub(crate) fn end(mut self) -> Option<Verdict> {
        self.sample();
        self.trace.end().into_iter().for_each(|said| self.console.say(format!("tandem: {said}")));
        Verdict::on(&self.steady).or_else(|| Verdict::on(&self.whole))
    }

    fn sample(&mut self) {
        let Ok(snapshot) = Snapshot::read(&self.queue) else { return };
        let sample = self.sampler.sample(&snapshot);
        self.whole.add(&sample);
        if sample.is_steady() {
            self.steady.add(&sample);
        }
        if self.every.is_on() {
            let refused = self.file.write(&sample).err();
            refused.into_iter().for_each(|error| {
                self.console.say(format!("tandem: {error}: samples are left out, the run goes on"));
            });
        }
    }
}

/// When the next sample is due.
struct Every {
    /// None if there are none.
    interval: Option<Duration>,
    next: Option<Instant>,
    taken: u64,
}

impl Every {
    fn new(seconds: f64) -> Every {
        let interval = Duration::try_from_secs_f64(seconds).ok().filter(|interval| !interval.is_zero());
        Every { interval, next: None, taken: 0 }
    }

    fn is_on(&self) -> bool {
        self.interval.is_some()
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let Some(interval) = self.interval else { return false };
        let due = self.next.is_none_or(|next| now >= next);
        if due {
            self.taken += 1;
            let thinned = interval * 2u32.saturating_pow(u32::try_from(self.taken / THIN).unwrap_or(u32::MAX));
            // From the time that it was due at, so that intervals do not grow by what a look takes.
            let from = self.next.filter(|next| now < *next + thinned).unwrap_or(now);
            self.next = Some(from + thinned);
        }
        due
    }
}

/// The samples' file.
struct Samples {
    path: PathBuf,
    file: Option<MetricsFile>,
    has_warned: bool,
}

impl Samples {
    /// Appends a line; the first one that cannot be written is an error, later ones are left out in silence.
    fn write(&mut self, sample: &Sample) -> Result<(), MetricsError> {
        let written = append(&mut self.file, &self.path, sample);
        if written.is_err() {
            // What a full disk left of the line gets a line of its own when the file is opened again.
            self.file = None;
            if std::mem::replace(&mut self.has_warned, true) {
                return Ok(());
            }
        }
        written
    }
}

fn append(file: &mut Option<MetricsFile>, path: &Path, sample: &Sample) -> Result<(), MetricsError> {
    if file.is_none() {
        *file = Some(MetricsFile::append(path)?);
    }
    file.as_mut().map_or(Ok(()), |file| file.write(sample))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_come_at_even_intervals_and_thin_out() {
        let start = Instant::now();
        let mut every = Every::new(1.0);
        let mut at = |milliseconds: u64| every.is_due(start + Duration::from_millis(milliseconds));
        // The second one came late, the third is due where it would have been anyway.
        assert_eq!([0, 900, 1150, 1900, 2000, 7500, 8400].map(&mut at), [true, false, true, false, true, true, false]);
        every.taken = THIN * 2 - 1;
        assert!(every.is_due(start + Duration::from_secs(20)));
        assert!(!every.is_due(start + Duration::from_secs(23)) && every.is_due(start + Duration::from_secs(24)));
        let mut off = Every::new(0.0);
        assert!(!off.is_on() && !off.is_due(start));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_said_once() {
        let sample: Sample = serde_json::from_str(
            r#"{"at_ns":1,"wall_s":1.0,"elapsed_s":1.0,"step":1,"loss":1.0,
                "slots":{"free":1,"writing":0,"ready":0,"reading":0},"gate":{"open":true,"ready":0,"min_ready":1},
                "buckets":[],"batches":{"total":0,"pending":0,"claimed":0,"ready":0,"held":0,"trained":0},"workers":[]}"#,
        )
        .unwrap();
        let mut full = Samples { path: "/dev/full".into(), file: None, has_warned: false };
        let said = full.write(&sample).unwrap_err().to_string();
        assert!(said.starts_with("/dev/full: "), "{said}");
        assert!(full.write(&sample).is_ok());
        let folder = tempfile::tempdir().unwrap();
        let mut samples = Samples { path: folder.path().join(SAMPLES_FILE), file: None, has_warned: false };
        (0..2).for_each(|_| samples.write(&sample).unwrap());
        let text = std::fs::read_to_string(&samples.path).unwrap();
        let lines: Vec<Sample> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, [sample.clone(), sample]);
    }
}
