//! A trace of some steps over all processes, for Perfetto or chrome://tracing.
//!
//! The spans lie in the queue's segment, the last thousand of each thread. For given steps they are fetched while the
//! first drafter is in them; on SIGUSR2 those that are there are written at once, so that a run that hangs shows what
//! came before.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::ids::{Rank, Role};
use common::queue::{SpanView, Spans, Track};
use common::run_plan::RunPlan;
use common::telemetry::trace::{Lane, Timeline};
use nix::sys::signal::Signal;

/// Steps to trace, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    first: u64,
    last: u64,
}

impl FromStr for Steps {
    type Err = String;

    fn from_str(text: &str) -> Result<Steps, String> {
        let wrong = || format!("{text:?} is no range of steps: give it as 20..30, both included, counted from 1");
        let (first, last) = text.split_once("..").ok_or_else(wrong)?;
        let steps = Steps { first: first.parse().map_err(|_| wrong())?, last: last.parse().map_err(|_| wrong())? };
        if steps.first == 0 || steps.first > steps.last { Err(wrong()) } else { Ok(steps) }
    }
}

/// What is fetched, and where it goes.
pub(crate) struct Trace {
    queue: String,
    folder: PathBuf,
    targets: u32,
    drafters: u32,
    steps: Option<Steps>,
    fetched: Timeline,
    /// The next span of each lane.
    next: BTreeMap<Lane, u64>,
    asked: Arc<AtomicBool>,
    written: u32,
}

impl Trace {
    pub(crate) fn new(folder: &Path, plan: &RunPlan, workers: (u32, u32), steps: Option<Steps>) -> Trace {
        Trace {
            queue: plan.queue_name(),
            folder: folder.to_owned(),
            targets: workers.0,
            drafters: workers.1,
            steps,
            fetched: Timeline::default(),
            next: BTreeMap::new(),
            asked: Arc::default(),
            written: 0,
        }
    }

    /// From here on SIGUSR2 asks for a trace.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub(crate) fn listen(&self) -> io::Result<()> {
        signal_hook::flag::register(Signal::SIGUSR2 as i32, Arc::clone(&self.asked)).map(drop)
    }

    /// Fetches what is due; what there is to say about it.
    pub(crate) fn look(&mut self) -> Option<String> {
        if self.asked.swap(false, Ordering::Relaxed) {
            self.written += 1;
            let name = format!("trace-{}.json", self.written);
            return Some(self.write(&name, &self.everything()));
        }
        let steps = self.steps?;
        let step = self.step()?;
        if step >= steps.first {
            self.fetch();
        }
        if step > steps.last { self.end() } else { None }
    }

    /// Writes the steps that are fetched, if any are due.
    pub(crate) fn end(&mut self) -> Option<String> {
        let steps = self.steps.take()?;
        self.fetch();
        let timeline = std::mem::take(&mut self.fetched);
        let Some(cut) = timeline.of_steps(steps.first, steps.last) else {
            return Some(format!("no trace: no work of steps {} to {} was seen", steps.first, steps.last));
        };
        Some(self.write("trace.json", &cut))
    }

    /// The step that the first drafter is in, as its last span has it; its GPU's, if that is watched.
    fn step(&self) -> Option<u64> {
        let spans = Spans::open(&self.queue).ok()?;
        let first = (Role::Drafter, Rank(0));
        let last = |track| {
            let seen = self.next_of(Lane { role: first.0, rank: first.1, track }).saturating_sub(1);
            spans.of(first, track, seen).last().map(|span| span.about)
        };
        let host = last(Track::Main)?;
        // A watch that has ended leaves its last span behind for good.
        let gpu = last(Track::Gpu).filter(|_| spans.goes_on(first, Track::Gpu));
        Some(gpu.map_or(host, |gpu| gpu.min(host)))
    }

    fn next_of(&self, lane: Lane) -> u64 {
        self.next.get(&lane).copied().unwrap_or(0)
    }

    fn fetch(&mut self) {
        let Ok(spans) = Spans::open(&self.queue) else { return };
        for lane in self.lanes() {
            let new = spans.of((lane.role, lane.rank), lane.track, self.next_of(lane));
            if let Some(last) = new.last() {
                self.next.insert(lane, last.number + 1);
            }
            self.fetched.add(lane, &new);
        }
    }

    fn everything(&self) -> Timeline {
        let mut timeline = Timeline::default();
        if let Ok(spans) = Spans::open(&self.queue) {
            let all = |lane: Lane| -> Vec<SpanView> { spans.of((lane.role, lane.rank), lane.track, 0) };
            self.lanes().into_iter().for_each(|lane| timeline.add(lane, &all(lane)));
        }
        timeline
    }

    fn lanes(&self) -> Vec<Lane> {
        let ranks = [(Role::Target, self.targets), (Role::Drafter, self.drafters)];
        let workers = ranks.into_iter().flat_map(|(role, count)| (0..count).map(move |rank| (role, Rank(rank))));
        workers
            .flat_map(|(role, rank)| Track::ALL.iter().map(move |track| Lane { role, rank, track: *track }))
            .collect()
    }

    fn write(&self, name: &str, timeline: &Timeline) -> String {
        let path = self.folder.join(name);
        match fs::write(&path, timeline.to_json()) {
            Ok(()) => format!("trace in {}: open it at ui.perfetto.dev", path.display()),
            Err(error) => format!("no trace: {}: {error}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use common::config::{GateMode, PopPolicy};
    use common::queue::{Mark, Phase, Queue, QueueSpec, monotonic_ns};

    use super::*;

    fn spec() -> QueueSpec {
        QueueSpec {
            run_id: format!("trace-{}", std::process::id()),
            capacity: 1,
            batch_tokens: 64,
            max_documents: 8,
            slot_bytes: 64,
            bucket_bounds: vec![64],
            min_ready: 1,
            gate: GateMode::Level,
            policy: PopPolicy::Mixed,
            max_age: Duration::from_secs(5),
            targets: 1,
            drafters: 1,
            total_batches: 9,
            seed: 0,
        }
    }

    #[test]
    fn a_gpu_holds_a_trace_up_for_as_long_as_it_is_watched() {
        let queue = Queue::create(&spec()).unwrap();
        let drafter = queue.consumer(Rank(0)).unwrap();
        let mut gpu = drafter.gpu_track(Track::Gpu);
        for about in [3, 4] {
            gpu.pass(Mark { phase: Phase::Draft, about }, monotonic_ns());
        }
        for step in [8, 9] {
            drafter.about(step);
            drafter.phase(Phase::Draft);
        }
        let trace = Trace {
            queue: queue.snapshot().name,
            folder: PathBuf::new(),
            targets: 1,
            drafters: 1,
            steps: None,
            fetched: Timeline::default(),
            next: BTreeMap::new(),
            asked: Arc::default(),
            written: 0,
        };
        assert_eq!(trace.step(), Some(3), "the GPU's last step");
        drop(gpu);
        assert_eq!(trace.step(), Some(9), "the host's, as nobody tells the GPU's any more");
    }

    #[test]
    fn steps_are_a_range_from_1() {
        assert_eq!("20..30".parse(), Ok(Steps { first: 20, last: 30 }));
        assert_eq!("7..7".parse(), Ok(Steps { first: 7, last: 7 }));
        for wrong in ["", "5", "0..3", "9..8", "a..b", "1..", "-1..2"] {
            let refused = wrong.parse::<Steps>().unwrap_err();
            assert!(refused.contains("give it as 20..30"), "{refused}");
        }
    }
}
