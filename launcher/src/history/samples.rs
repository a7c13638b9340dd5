//! `telemetry.jsonl`: where the time went, how full the queue was, and when workers were started again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use common::ids::{Rank, Role};
use common::telemetry::period::Period;
use common::telemetry::sample::Sample;
use common::telemetry::verdict::Verdict;

/// All samples of a run, summed up.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Everything that workers spent time on.
    pub(crate) whole: Period,
    /// That of the time in which everybody was at work.
    steady: Period,
    /// Slots by state over time.
    pub(crate) depth: Vec<Depth>,
    /// In the order of time.
    pub(crate) restarts: Vec<Restart>,
    /// Every worker, with how often its place had been taken again when last seen.
    pub(crate) workers: BTreeMap<(Role, Rank), u32>,
    now_s: f64,
}

/// The queue at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Depth {
    /// Seconds since the first worker was started.
    pub(crate) at_s: f64,
    pub(crate) writing: u32,
    pub(crate) ready: u32,
    pub(crate) reading: u32,
    /// READY batches that open the gate.
    pub(crate) min_ready: u64,
}

/// A worker that was started again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Restart {
    /// Seconds since the first worker was started.
    pub(crate) at_s: f64,
    /// Optimizer steps done then.
    pub(crate) step: u64,
    pub(crate) worker: (Role, Rank),
}

impl Samples {
    /// Reads the file; lines that were cut off are passed over.
    ///
    /// # Errors
    /// It cannot be read, or holds no line that this build knows.
    pub(crate) fn read(path: &Path) -> io::Result<Samples> {
        let mut samples = Samples::default();
        for line in BufReader::new(File::open(path)?).split(b'\n') {
            let sample = line.map(|line| serde_json::from_slice(&line).ok())?;
            sample.iter().for_each(|sample| samples.add(sample));
        }
        if samples.depth.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no whole line of this build's form"));
        }
        Ok(samples)
    }

    fn add(&mut self, sample: &Sample) {
        self.whole.add(sample);
        if sample.is_steady() {
            self.steady.add(sample);
        }
        self.now_s += sample.elapsed_s.max(0.0);
        let (at_s, slots, min_ready) = (self.now_s, sample.slots, sample.gate.min_ready);
        self.depth.push(Depth { at_s, writing: slots.writing, ready: slots.ready, reading: slots.reading, min_ready });
        for worker in &sample.workers {
            let name = (worker.role, worker.rank);
            let before = self.workers.insert(name, worker.restarts).unwrap_or(0);
            let new = Restart { at_s, step: sample.step, worker: name };
            self.restarts.extend((before..worker.restarts).map(|_| new));
        }
    }

    /// What limited the run, as far as the samples tell.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        Verdict::on(&self.steady).or_else(|| Verdict::on(&self.whole))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A line at that step, with a target that was restarted so often.
    pub(crate) fn line(step: u64, restarts: u32) -> String {
        format!(
            r#"{{"at_ns":1,"wall_s":1.0,"elapsed_s":1.5,"step":{step},"loss":1.0,
                "slots":{{"free":1,"writing":1,"ready":{step},"reading":1}},"gate":{{"open":true,"ready":0,"min_ready":2}},
                "buckets":[],"batches":{{"total":0,"pending":0,"claimed":0,"ready":0,"held":0,"trained":0}},
                "workers":[{{"role":"target","rank":0,"alive":true,"restarts":{restarts},"cpu_ns":1,"runnable_ns":1,
                "stages":{{"main":{{"forward":{{"count":2,"ns":900000000}},"wait_slot":{{"count":1,"ns":600000000}}}}}}}},
                {{"role":"drafter","rank":0,"alive":true,"restarts":0,"cpu_ns":1,"runnable_ns":1,
                "stages":{{"main":{{"backward":{{"count":2,"ns":1500000000}}}}}}}}]}}"#
        )
        .replace('\n', " ")
    }

    #[test]
    fn time_adds_up_and_restarts_are_seen() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = [line(1, 0), line(2, 2), "{torn".into(), line(3, 2)].join("\n");
        std::fs::write(file.path(), text).unwrap();
        let samples = Samples::read(file.path()).unwrap();
        let depth: Vec<_> = samples.depth.iter().map(|depth| (depth.at_s, depth.ready)).collect();
        assert_eq!(depth, [(1.5, 1), (3.0, 2), (4.5, 3)]);
        let restart = Restart { at_s: 3.0, step: 2, worker: (Role::Target, Rank(0)) };
        assert_eq!(samples.restarts, [restart, restart]);
        let forward = samples.whole.stages((Role::Target, Rank(0))).unwrap();
        assert_eq!(serde_json::to_value(forward).unwrap()["main"]["forward"]["ns"], 2_700_000_000_u64);
        assert!(samples.verdict().unwrap().sentence.contains("drafters limit"));
    }
}
