//! Every page on the smallest and on a large terminal: all that it has to say is there, whole.

use std::time::Duration;

use common::config::{GateMode, PopPolicy};
use common::ids::Rank;
use common::queue::{Gauge, Phase, Queue, QueueSpec, Rows, Track};
use common::shutdown::Shutdown;
use common::telemetry::sample::Sampler;
use common::wait::Patience;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::inspect::text;

pub(in crate::inspect) fn spec(name: &str) -> QueueSpec {
    QueueSpec {
        run_id: format!("screen-{name}-{}", std::process::id()),
        capacity: 4,
        batch_tokens: 64,
        max_documents: 8,
        slot_bytes: 64,
        bucket_bounds: vec![16, 2048],
        min_ready: 2,
        gate: GateMode::Level,
        policy: PopPolicy::Mixed,
        max_age: Duration::from_secs(5),
        targets: 1,
        drafters: 1,
        total_batches: 9,
        seed: 0,
    }
}

const SIZES: [(u16, u16); 2] = [(80, 24), (200, 60)];

fn screen(width: u16, height: u16, view: &View) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    terminal.backend().to_string()
}

/// All of a paragraph's words, wherever its lines are broken.
fn words(screen: &str) -> String {
    screen.replace('"', " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A queue at which a target has published a batch, in the midst of a forward, and a drafter waits for the gate's sake.
fn view(queue: &Queue) -> View {
    let (target, drafter) = (queue.producer(Rank(0)).unwrap(), queue.consumer(Rank(0)).unwrap());
    let patience = Patience { timeout: Duration::ZERO, shutdown: Shutdown::never() };
    let lease = target.claim(&patience).unwrap().unwrap();
    target.phase(Phase::Forward);
    let rows = Rows { token_ids: vec![1; 8], loss_mask: vec![1; 8], document_offsets: vec![0, 8], row_ids: vec![3] };
    lease.publish(0, &rows).unwrap();
    target.claim(&patience).unwrap().unwrap();
    drafter.phase(Phase::Backward);
    let gauges = [(Gauge::Step, 12.0), (Gauge::TotalSteps, 800.0), (Gauge::Loss, 3.25), (Gauge::Accuracy, 0.5)];
    gauges.into_iter().for_each(|(gauge, value)| drafter.gauge(gauge, value));
    std::thread::sleep(Duration::from_millis(5));
    let snapshot = queue.snapshot();
    let mut recent = Period::default();
    recent.add(&Sampler::default().sample(&snapshot));
    let mut curves = Curves::default();
    curves.see(&snapshot);
    let events = common::queue::Details::read(&snapshot.name).unwrap().events;
    View { page: Page::Queue, rates: Some([1.0, 2.0, 3.5]), recent, curves, events, gone: None, snapshot }
}

#[test]
fn the_gate_the_workers_and_the_buckets_are_there_on_any_terminal() {
    let queue = Queue::create(&spec("queue")).unwrap();
    let mut view = view(&queue);
    for (width, height) in SIZES {
        let screen = screen(width, height, &view);
        let wanted =
            ["closed: 1 of 2", "pending 8", "3.5 trained", "<= 2048", "target 0", "forward", "lock free", "dead"];
        wanted.iter().for_each(|text| assert!(screen.contains(text), "{text} is not on\n{screen}"));
        assert_eq!(screen.contains("hold p50/p99"), width == 200, "{screen}");
    }
    let gone = "/dev/shm/tandem-of-a-run-with-a-long-name does not exist: the run has ended, or never started";
    view.gone = Some(gone.into());
    SIZES.iter().for_each(|(width, height)| assert!(words(&screen(*width, *height, &view)).contains(gone)));
}

#[test]
fn a_stopped_lock_holder_is_named() {
    let queue = Queue::create(&spec("stopped")).unwrap();
    let mut view = view(&queue);
    view.snapshot.participants.iter_mut().for_each(|worker| worker.alive = true);
    view.snapshot.participants[0].stopped = true;
    view.snapshot.lock.held_by = Some("target 0".into());
    view.snapshot.participants[1].waits_for = Some("the lock");
    let lock = format!("held by target 0 (pid {}), which is STOPPED", std::process::id());
    let page = text::show(&view.snapshot);
    for (width, height) in SIZES {
        let screen = screen(width, height, &view);
        for text in [lock.as_str(), "waits for the lock"] {
            assert!(page.contains(text) && screen.contains(text), "{text}: {page}{screen}");
        }
        assert!(page.contains(" stopped ") && screen.contains(" STOPPED "), "{page}{screen}");
    }
}

#[test]
fn a_long_reason_and_a_long_wait_are_not_cut() {
    let queue = Queue::create(&spec("long")).unwrap();
    let mut view = view(&queue);
    for worker in &mut view.snapshot.participants {
        (worker.waits_for, worker.waits_s, worker.alive) =
            (Some("others to get their share of the slots"), 1234.5, true);
    }
    view.snapshot.gate.reason +=
        "; target 0 waits for others to get their share of the slots (1234.5 s), the last words";
    let seen = words(&screen(80, 24, &view));
    assert!(seen.contains("the last words"), "{seen}");
    assert!(seen.contains("1234.5 s"), "{seen}");
}

#[test]
fn the_workers_page_has_the_verdict_and_a_bar_for_every_phase() {
    let queue = Queue::create(&spec("workers")).unwrap();
    let mut view = view(&queue);
    view.page = Page::Workers;
    for (width, height) in SIZES {
        let screen = screen(width, height, &view);
        for text in ["target 0", "drafter 0", "forward", "backward", "p50/p99", "longest", "█"] {
            assert!(screen.contains(text), "{text} is not on\n{screen}");
        }
        let verdict = common::telemetry::verdict::Verdict::on(&view.recent).unwrap().sentence;
        assert!(words(&screen).contains(&verdict), "{verdict} is not on\n{screen}");
    }
    // The longest sentence there is.
    let mut sample = Sampler::default().sample(&view.snapshot);
    sample.workers.iter_mut().for_each(|worker| worker.runnable_ns = 1_000_000_000_000);
    view.recent.add(&sample);
    assert!(words(&screen(80, 24, &view)).contains("less beside the run would help"));
    let worker = view.snapshot.participants[0].clone();
    view.snapshot.participants.extend(std::iter::repeat_n(worker, 20));
    assert!(screen(80, 24, &view).contains("more workers"));
}

#[test]
fn a_gpu_has_a_bar_of_its_own_and_phases_of_both_are_there() {
    let queue = Queue::create(&spec("gpu")).unwrap();
    let mut view = view(&queue);
    view.page = Page::Workers;
    assert!(!screen(80, 24, &view).contains("GPU"));
    let spent = |ns| common::telemetry::sample::Spent { count: 1, ns };
    let mut sample = Sampler::default().sample(&view.snapshot);
    for worker in &mut sample.workers {
        worker.stages.insert(Track::Gpu, [(Phase::Loss, spent(700)), (Phase::Idle, spent(300))].into());
    }
    view.recent = Period::default();
    view.recent.add(&sample);
    let phases = [Phase::Loss, Phase::Idle].map(|phase| (phase, common::queue::PhaseView::default()));
    let workers = &mut view.snapshot.participants;
    workers.iter_mut().for_each(|worker| drop(worker.profile.insert(Track::Gpu, phases.clone().into())));
    for (width, height) in SIZES {
        let screen = screen(width, height, &view);
        for text in ["host █", "GPU  █", "GPU  █ loss", "70.0 %", "GPU  ░ idle", "host █ forward", "drafter 0"]
        {
            assert!(screen.contains(text), "{text} is not on\n{screen}");
        }
    }
    let worker = view.snapshot.participants[0].clone();
    view.snapshot.participants.extend(std::iter::repeat_n(worker, 20));
    assert!(screen(80, 24, &view).contains("more workers"));
}

#[test]
fn the_training_page_has_three_curves() {
    let queue = Queue::create(&spec("training")).unwrap();
    let mut view = view(&queue);
    view.page = Page::Training;
    for (width, height) in SIZES {
        let screen = screen(width, height, &view);
        for text in ["step 12/800", "loss 3.250", "accuracy 0.500", "accepted length, tokens per block"] {
            assert!(screen.contains(text), "{text} is not on\n{screen}");
        }
        let bars = screen.lines().filter(|line| line.contains(['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'])).count();
        assert!(bars >= 3, "{screen}");
    }
    view.curves = Curves::default();
    assert!(screen(80, 24, &view).contains("no step yet"));
}

#[test]
fn the_events_page_ends_with_the_newest() {
    let queue = Queue::create(&spec("events")).unwrap();
    let mut view = view(&queue);
    view.page = Page::Events;
    view.events = view.events.iter().cycle().take(200).cloned().collect();
    let last = view.events.len() - 1;
    (view.events[last].number, view.events[last].what) = (123_456, "reclaim");
    for (width, height) in SIZES {
        let screen = screen(width, height, &view);
        assert!(screen.contains("123456") && screen.contains("reclaim") && screen.contains("NUMBER"), "{screen}");
    }
    view.events.clear();
    assert!(screen(80, 24, &view).contains("nothing has happened yet"));
    view.gone = Some("it has ended".into());
    assert!(screen(80, 24, &view).contains("they are gone with the queue"));
}

#[test]
fn keys_turn_the_pages_and_a_tiny_terminal_is_no_panic() {
    assert_eq!(
        ['1', '2', '3', '4', '5', 'x'].map(Page::of_key),
        [Some(Page::Queue), Some(Page::Workers), Some(Page::Training), Some(Page::Events), None, None]
    );
    let queue = Queue::create(&spec("tiny")).unwrap();
    let mut view = view(&queue);
    for _ in 0..4 {
        view.page = view.page.next();
        (1..12).for_each(|size| drop(screen(size * 3, size, &view)));
        assert!(screen(80, 24, &view).contains("q quits"));
    }
    assert_eq!(view.page, Page::Queue);
}
