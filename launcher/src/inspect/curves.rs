//! Training's numbers step by step: from metrics.jsonl, where the run folder is known, and from what is seen since.

use std::path::Path;

use common::ids::Role;
use common::queue::{Gauge, Snapshot};
use common::telemetry::metrics::METRICS_FILE;
use serde::Deserialize;

/// Points kept: beyond that every other one goes.
const MOST: usize = 4096;

/// One step's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(super) struct Point {
    pub(super) step: u64,
    pub(super) loss: f64,
    pub(super) accuracy: f64,
    #[serde(rename = "accepted_length")]
    pub(super) accepted: f64,
}

/// Steps in ascending order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Curves(Vec<Point>);

impl Curves {
    /// What the run folder says; nothing if it is none, or says nothing yet.
    pub(super) fn of_run(folder: &Path) -> Curves {
        let text = std::fs::read_to_string(folder.join(METRICS_FILE)).unwrap_or_default();
        let mut curves = Curves::default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).for_each(|point| curves.add(point));
        curves
    }

    /// Takes in what the first drafter shows.
    pub(super) fn see(&mut self, snapshot: &Snapshot) {
        let Some(drafter) = snapshot.participants.iter().find(|worker| worker.role == Role::Drafter) else { return };
        let gauge = |gauge| drafter.gauges.get(&gauge).copied().unwrap_or_default();
        let (loss, accuracy, accepted) = (gauge(Gauge::Loss), gauge(Gauge::Accuracy), gauge(Gauge::AcceptedLength));
        self.add(Point { step: gauge(Gauge::Step) as u64, loss, accuracy, accepted });
    }

    /// A step that comes once more, after a restart, takes back what came after it.
    fn add(&mut self, point: Point) {
        if point.step == 0 {
            return;
        }
        self.0.truncate(self.0.partition_point(|earlier| earlier.step < point.step));
        self.0.push(point);
        if self.0.len() > MOST {
            let mut place = 0;
            self.0.retain(|_| {
                place += 1;
                place % 2 == 0
            });
        }
    }

    /// One number of each step.
    pub(super) fn of(&self, number: fn(&Point) -> f64) -> Vec<f64> {
        self.0.iter().map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_come_from_the_file_go_on_and_are_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let line =
            |step: u64| format!(r#"{{"step":{step},"loss":{step}.5,"accuracy":0.5,"accepted_length":2.0,"more":1}}"#);
        std::fs::write(folder.path().join(METRICS_FILE), [line(10), line(20), "{torn".into(), line(30)].join("\n"))
            .unwrap();
        let mut curves = Curves::of_run(folder.path());
        assert_eq!(curves.of(|point| point.loss), [10.5, 20.5, 30.5]);
        curves.add(Point { step: 15, loss: 1.0, accuracy: 0.0, accepted: 0.0 });
        assert_eq!(curves.of(|point| point.loss), [10.5, 1.0]);
        (16..20_000).for_each(|step| curves.add(Point { step, loss: 0.0, accuracy: 0.0, accepted: 0.0 }));
        assert!(curves.0.len() <= MOST && curves.0.is_sorted_by_key(|point| point.step));
        assert_eq!(Curves::of_run(Path::new("/no/such")), Curves::default());
    }
}
