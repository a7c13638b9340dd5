//! Snapshots in Prometheus' text format, version 0.0.4: families with help and type, samples with labels.

use std::fmt::Write as _;

use common::queue::{BucketView, Gauge, ParticipantView, Snapshot};

/// What HTTP calls it.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Labels and value of one sample.
type Sample = (Vec<(&'static str, String)>, f64);

/// All of the snapshots' numbers.
pub(super) fn text(snapshots: &[Snapshot]) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: &dyn Fn(&Snapshot) -> Vec<Sample>| {
        push(&mut text, &format!("# HELP tandem_{name} {help}"));
        push(&mut text, &format!("# TYPE tandem_{name} {kind}"));
        for snapshot in snapshots {
            for (labels, value) in samples(snapshot) {
                let run = [("run", snapshot.run_id.clone())];
                let labels: Vec<String> =
                    run.into_iter().chain(labels).map(|(name, value)| label(name, &value)).collect();
                push(&mut text, &format!("tandem_{name}{{{}}} {}", labels.join(","), number(value)));
            }
        }
    };
    queue(&mut family);
    buckets(&mut family);
    workers(&mut family);
    training(&mut family);
    text
}

type Family<'a> = dyn FnMut(&str, &str, &str, &dyn Fn(&Snapshot) -> Vec<Sample>) + 'a;

fn queue(family: &mut Family<'_>) {
    family("launcher_up", "gauge", "Whether the run's launcher lives.", &|seen| single(seen.launcher_alive));
    family("gate_open", "gauge", "Whether drafters get batches.", &|seen| single(seen.gate.open));
    family("gate_min_ready", "gauge", "READY batches that open the gate.", &|seen| {
        vec![(Vec::new(), seen.gate.min_ready as f64)]
    });
    family("slots", "gauge", "Slots by state.", &|seen| {
        let slots = seen.slots;
        let states =
            [("free", slots.free), ("writing", slots.writing), ("ready", slots.ready), ("reading", slots.reading)];
        states.map(|(state, count)| (vec![("state", state.into())], f64::from(count))).to_vec()
    });
    family("batches", "gauge", "Batches of the run by state.", &|seen| {
        let batches = seen.batches;
        let states = [
            ("pending", batches.pending),
            ("claimed", batches.claimed),
            ("ready", batches.ready),
            ("held", batches.held),
            ("trained", batches.trained),
        ];
        states.map(|(state, count)| (vec![("state", state.into())], count as f64)).to_vec()
    });
    family("slots_reclaimed_total", "counter", "Slots taken back from dead workers.", &|seen| {
        vec![(Vec::new(), seen.reclaimed as f64)]
    });
    family("lock_steals_total", "counter", "Times the queue's lock was taken over from the dead.", &|seen| {
        vec![(Vec::new(), seen.lock.steals as f64)]
    });
}

fn buckets(family: &mut Family<'_>) {
    let of = |count: fn(&BucketView) -> f64| {
        move |seen: &Snapshot| {
            let bound = |bucket: &BucketView| vec![("bound", bucket.bound.to_string())];
            seen.buckets.iter().map(|bucket| (bound(bucket), count(bucket))).collect::<Vec<Sample>>()
        }
    };
    family("bucket_ready", "gauge", "READY batches by length bucket.", &of(|one| f64::from(one.ready)));
    family("bucket_produced_total", "counter", "Batches published.", &of(|one| one.produced as f64));
    family("bucket_consumed_total", "counter", "Batches released by drafters.", &of(|one| one.consumed as f64));
    family("bucket_redelivered_total", "counter", "Batches that came back.", &of(|one| one.redelivered as f64));
    family("bucket_dropped_total", "counter", "Batches dropped undelivered.", &of(|one| one.dropped as f64));
}

fn workers(family: &mut Family<'_>) {
    let of = |count: fn(&ParticipantView) -> f64| {
        move |seen: &Snapshot| seen.participants.iter().map(|one| (names(one), count(one))).collect::<Vec<Sample>>()
    };
    family("worker_up", "gauge", "Whether the worker lives.", &of(|one| f64::from(u8::from(one.alive))));
    family(
        "worker_restarts_total",
        "counter",
        "Times the worker was started again.",
        &of(|one| f64::from(one.incarnation.saturating_sub(1))),
    );
    family("worker_batches_total", "counter", "Batches published or released by it.", &of(|one| one.batches as f64));
    family("worker_phase_seconds_total", "counter", "Time in each phase.", &|seen| {
        phases(seen, |phase| phase.total_ns as f64 / 1e9)
    });
    family("worker_phase_visits_total", "counter", "Visits of each phase that ended.", &|seen| {
        phases(seen, |phase| phase.count as f64)
    });
}

fn training(family: &mut Family<'_>) {
    let gauges = [
        (Gauge::Step, "step", "Optimizer steps done."),
        (Gauge::TotalSteps, "steps_planned", "Optimizer steps of the whole run."),
        (Gauge::Loss, "loss", "Training loss of the last step."),
        (Gauge::Accuracy, "accuracy", "Share of predicted tokens that were right in the last step."),
        (Gauge::AcceptedLength, "accepted_length", "Accepted length as training shows it, tokens per block."),
        (Gauge::Tokens, "trained_tokens", "Tokens trained on."),
        (
            Gauge::ScoredSlots,
            "scored_block_slots",
            "Slots of blocks scored; a token counts in each block that predicts it.",
        ),
        (Gauge::LearningRate, "learning_rate", "Learning rate of the last step."),
        (Gauge::GradNorm, "grad_norm", "Gradient norm of the last step, before clipping."),
    ];
    for (gauge, name, help) in gauges {
        family(name, "gauge", help, &|seen| {
            let drafters = seen.participants.iter().filter(|one| one.role == common::ids::Role::Drafter);
            drafters.filter_map(|one| Some((names(one), *one.gauges.get(&gauge)?))).collect()
        });
    }
}

fn single(flag: bool) -> Vec<Sample> {
    vec![(Vec::new(), f64::from(u8::from(flag)))]
}

fn names(worker: &ParticipantView) -> Vec<(&'static str, String)> {
    vec![("role", worker.role.to_string()), ("rank", worker.rank.to_string())]
}

fn phases(snapshot: &Snapshot, value: fn(&common::queue::PhaseView) -> f64) -> Vec<Sample> {
    let mut samples = Vec::new();
    for worker in &snapshot.participants {
        for (track, phases) in &worker.profile {
            for (phase, view) in phases {
                let mut labels = names(worker);
                labels.extend([("track", track.name()), ("phase", phase.name())]);
                samples.push((labels, value(view)));
            }
        }
    }
    samples
}

fn label(name: &str, value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{escaped}\"")
}

/// The format's own names for what is no number.
fn number(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".into(),
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        _ => value.to_string(),
    }
}

fn push(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("text takes any text");
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use common::ids::Rank;
    use common::queue::{Phase, Queue};

    use super::*;
    use crate::inspect::screen::tests::spec;

    /// A family's name, and the samples read: name with labels, value.
    fn parse(text: &str) -> Vec<(String, f64)> {
        let (mut family, mut typed, mut seen, mut samples) = (String::new(), String::new(), HashSet::new(), Vec::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(!help.is_empty() && seen.insert(name.to_owned()), "{line}");
                family = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(name == family && ["gauge", "counter"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                typed = name.to_owned();
            } else {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let (metric, labels) = name.split_once('{').unwrap();
                assert!(metric == typed && labels.ends_with('}'), "{line}");
                samples.push((name.to_owned(), value.parse().unwrap()));
            }
        }
        let different: HashSet<_> = samples.iter().map(|(name, _)| name).collect();
        assert_eq!(different.len(), samples.len(), "a sample is there twice");
        samples
    }

    #[test]
    fn the_text_parses_and_says_what_the_queue_shows() {
        let queue = Queue::create(&spec("serve")).unwrap();
        let target = queue.producer(Rank(0)).unwrap();
        target.phase(Phase::Forward);
        target.phase(Phase::Publish);
        let drafter = queue.consumer(Rank(0)).unwrap();
        drafter.gauge(Gauge::Loss, f64::NAN);
        drafter.gauge(Gauge::Step, 7.0);
        let snapshot = queue.snapshot();
        let run = snapshot.run_id.clone();
        let samples = parse(&text(&[snapshot]));
        let value = |name: &str| {
            let name = name.replace("RUN", &run);
            samples.iter().find(|(found, _)| *found == name).unwrap_or_else(|| panic!("{name} is not there")).1
        };
        assert_eq!(value("tandem_slots{run=\"RUN\",state=\"free\"}"), 4.0);
        assert_eq!(value("tandem_batches{run=\"RUN\",state=\"pending\"}"), 9.0);
        assert_eq!(value("tandem_bucket_ready{run=\"RUN\",bound=\"2048\"}"), 0.0);
        assert_eq!(value("tandem_step{run=\"RUN\",role=\"drafter\",rank=\"0\"}"), 7.0);
        assert!(value("tandem_loss{run=\"RUN\",role=\"drafter\",rank=\"0\"}").is_nan());
        let forward = "{run=\"RUN\",role=\"target\",rank=\"0\",track=\"main\",phase=\"forward\"}";
        assert_eq!(value(&format!("tandem_worker_phase_visits_total{forward}")), 1.0);
        assert!(value(&format!("tandem_worker_phase_seconds_total{forward}")) > 0.0);
    }

    #[test]
    fn labels_and_numbers_are_written_as_the_format_wants() {
        assert_eq!(label("a", "x\"y\\z\n"), r#"a="x\"y\\z\n""#);
        let numbers = [1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e21];
        assert_eq!(numbers.map(number), ["1.5", "NaN", "+Inf", "-Inf", "1000000000000000000000"]);
        assert_eq!(parse(&text(&[])), []);
    }
}
