//! Spans of several processes as one trace in Chrome's JSON format, which Perfetto reads too.
//!
//! Every worker is a process, each of its threads a thread, and so are its GPU's computing and copying; times are microseconds of the monotonic clock, which all
//! processes of a machine share. A drafter's steps are spans of their own, around the phases that belong to them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::worker_name;
use crate::ids::{Rank, Role};
use crate::queue::{SpanView, Track};

/// A thread, or a GPU's half, whose spans are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// Target or drafter.
    pub role: Role,
    /// Its number within the role.
    pub rank: Rank,
    /// Which of them.
    pub track: Track,
}

/// Spans by thread, each thread's oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    lanes: BTreeMap<Lane, Vec<SpanView>>,
}

impl Lane {
    /// The first drafter's main thread: its steps are the run's.
    const FIRST_DRAFTER: Lane = Lane { role: Role::Drafter, rank: Rank(0), track: Track::Main };

    fn has_steps(self) -> bool {
        self.role == Role::Drafter && self.track == Track::Main
    }

    /// What its spans are about.
    fn about(self) -> &'static str {
        match (self.role, self.track) {
            (Role::Drafter, Track::Main | Track::Gpu) => "step",
            _ => "batch",
        }
    }

    fn name(self) -> &'static str {
        match self.track {
            Track::Main => "main thread",
            Track::Side => "second thread",
            Track::Gpu => "GPU",
            Track::Copies => "GPU copies",
        }
    }

    /// Perfetto's number of the process: targets from 1, drafters from 1001.
    fn process(self) -> u32 {
        1 + self.rank.0 + if self.role == Role::Drafter { 1000 } else { 0 }
    }
}

impl Timeline {
    /// Adds spans that come after those that are there.
    pub fn add(&mut self, lane: Lane, spans: &[SpanView]) {
        if !spans.is_empty() {
            self.lanes.entry(lane).or_default().extend_from_slice(spans);
        }
    }

    /// What every thread did while the first drafter was in these steps, both included; none if it never was.
    pub fn of_steps(&self, first: u64, last: u64) -> Option<Timeline> {
        let steps = self.lanes.get(&Lane::FIRST_DRAFTER)?;
        let mut within = steps.iter().filter(|span| (first..=last).contains(&span.about));
        let from = within.next()?;
        let to = within.next_back().unwrap_or(from);
        let touches = |span: &&SpanView| span.to_ns > from.from_ns && span.from_ns < to.to_ns;
        let cut = |spans: &Vec<SpanView>| spans.iter().filter(touches).copied().collect();
        Some(Timeline { lanes: self.lanes.iter().map(|(lane, spans)| (*lane, cut(spans))).collect() })
    }

    /// As Chrome's JSON.
    pub fn to_json(&self) -> String {
        let mut events: Vec<Value> = Vec::new();
        for (lane, spans) in &self.lanes {
            events.extend(names(*lane));
            if lane.has_steps() {
                events.extend(steps(spans).iter().map(|step| event(*lane, &format!("step {}", step.about), step)));
            }
            events.extend(spans.iter().map(|span| event(*lane, &span.phase.name(), span)));
        }
        json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
    }
}

fn names(lane: Lane) -> [Value; 2] {
    let (process, thread) = (lane.process(), lane.track as u32);
    let name = |what: &str, name: &str| json!({ "name": what, "ph": "M", "pid": process, "tid": thread, "args": { "name": name } });
    [name("process_name", &worker_name(lane.role, lane.rank)), name("thread_name", lane.name())]
}

/// Stretches of spans of one step; time before the first step is nobody's.
fn steps(spans: &[SpanView]) -> Vec<SpanView> {
    let runs = spans.chunk_by(|a, b| a.about == b.about);
    let whole = |run: &[SpanView]| Some(SpanView { to_ns: run.last()?.to_ns, ..*run.first()? });
    runs.filter_map(whole).filter(|step| step.about > 0).collect()
}

fn event(lane: Lane, name: &str, span: &SpanView) -> Value {
    let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
    json!({
        "name": name,
        "cat": if span.phase.is_wait() { "wait" } else { "work" },
        "ph": "X",
        "pid": lane.process(),
        "tid": lane.track as u32,
        "ts": microseconds(span.from_ns),
        "dur": microseconds(span.to_ns.saturating_sub(span.from_ns)),
        "args": { lane.about(): span.about },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Phase;

    fn spans(parts: &[(Phase, u64, u64, u64)]) -> Vec<SpanView> {
        let numbered = parts.iter().enumerate();
        numbered
            .map(|(number, &(phase, from, to, about))| SpanView {
                number: number as u64,
                from_ns: from * 1000,
                to_ns: to * 1000,
                phase,
                about,
            })
            .collect()
    }

    fn timeline() -> Timeline {
        let mut timeline = Timeline::default();
        let target = Lane { role: Role::Target, rank: Rank(0), track: Track::Main };
        timeline
            .add(target, &spans(&[(Phase::Forward, 0, 30, 4), (Phase::WaitSlot, 30, 90, 4), (Phase::Data, 90, 99, 5)]));
        timeline.add(
            Lane::FIRST_DRAFTER,
            &spans(&[
                (Phase::Loading, 0, 10, 0),
                (Phase::Draft, 10, 20, 1),
                (Phase::Backward, 20, 40, 1),
                (Phase::Draft, 40, 50, 2),
                (Phase::Backward, 50, 60, 2),
                (Phase::Draft, 60, 95, 3),
            ]),
        );
        timeline
    }

    /// The complete events of a trace: process, thread, name, start, end.
    fn events(json: &str) -> Vec<(u64, u64, String, f64, f64)> {
        let trace: Value = serde_json::from_str(json).unwrap();
        let complete = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
        complete
            .map(|event| {
                let (start, duration) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
                let name = event["name"].as_str().unwrap().to_owned();
                (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap(), name, start, start + duration)
            })
            .collect()
    }

    #[test]
    fn phases_lie_within_their_steps_and_all_threads_share_one_clock() {
        let events = events(&timeline().to_json());
        let drafter: Vec<_> =
            events.iter().filter(|event| event.0 == 1001).map(|event| (&*event.2, event.3, event.4)).collect();
        assert!(drafter.contains(&("step 1", 10.0, 40.0)) && drafter.contains(&("step 2", 40.0, 60.0)), "{drafter:?}");
        assert!(!drafter.iter().any(|(name, ..)| *name == "step 0"));
        assert!(events.contains(&(1, 0, "wait_slot".into(), 30.0, 90.0)));
    }

    #[test]
    fn a_gpu_is_a_thread_of_its_worker_and_its_spans_are_the_steps() {
        let gpu = Lane { track: Track::Gpu, ..Lane::FIRST_DRAFTER };
        let mut timeline = timeline();
        timeline.add(gpu, &spans(&[(Phase::Idle, 0, 12, 0), (Phase::Draft, 12, 30, 1), (Phase::Idle, 30, 99, 1)]));
        let json: Value = serde_json::from_str(&timeline.to_json()).unwrap();
        let of_gpu = json["traceEvents"].as_array().unwrap().iter().filter(|event| event["tid"] == Track::Gpu as u32);
        let of_gpu: Vec<_> = of_gpu.collect();
        assert!(of_gpu.iter().all(|event| event["pid"] == 1001));
        assert!(of_gpu.iter().any(|event| event["args"]["name"] == "GPU"));
        let draft = of_gpu.iter().find(|event| event["name"] == "draft").unwrap();
        assert_eq!((&draft["args"]["step"], &draft["cat"]), (&json!(1), &json!("work")));
        assert_eq!(of_gpu.iter().filter(|event| event["name"] == "idle" && event["cat"] == "wait").count(), 2);
    }

    #[test]
    fn a_window_of_steps_holds_what_everybody_did_meanwhile() {
        let cut = timeline().of_steps(2, 2).unwrap();
        let names: Vec<_> = events(&cut.to_json()).into_iter().map(|event| event.2).collect();
        assert_eq!(names, ["wait_slot", "step 2", "draft", "backward"]);
        assert_eq!(timeline().of_steps(7, 9), None);
    }
}
