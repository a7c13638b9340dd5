//! Sums that must hold in every reading, whatever the writer does meanwhile.

use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::queue::ring::layout::NUM_SPANS;

/// What every visit lasts in the stress test: each reading's total is then known from its count.
const VISIT: u64 = 3_000;
const CHANGES: u64 = 400_000;

fn memory() -> (TrackRecord, Vec<Span>) {
    (TrackRecord::default(), (0..NUM_SPANS).map(|_| Span::default()).collect())
}

fn whole(times: Times<'_>) -> TrackRead {
    loop {
        if let (read, true) = times.read() {
            return read;
        }
    }
}

#[test]
fn a_nested_phase_has_its_own_time_and_all_time_is_somebodys() {
    let (track, spans) = memory();
    let times = Times { track: &track, spans: &spans };
    assert!(!times.is_used());
    times.start(0, 1_000);
    times.about(7, 1_000);
    times.enter(2, 5_000);
    let interrupted = times.enter(3, 6_000);
    times.resume(interrupted, 8_000);
    times.enter(4, 20_000);
    times.stop(21_000);
    let (read, _) = times.read();
    let total = |phase: usize| (read.visits[phase].count, read.visits[phase].total_ns, read.visits[phase].max_ns);
    assert_eq!(
        [total(0), total(2), total(3), total(4)],
        [(1, 4_000, 0), (1, 13_000, 1_000), (1, 2_000, 2_000), (1, 1_000, 1_000)]
    );
    assert_eq!(read.visits.iter().map(|visits| visits.total_ns).sum::<u64>(), 20_000);
    assert_eq!(read.phase, None);
    let spans: Vec<_> = times.spans(0).iter().map(|span| (span.phase, span.from_ns, span.to_ns, span.about)).collect();
    let cut = (0, 1_000, 1_000, 0);
    let wanted = [cut, (0, 1_000, 5_000, 7), (2, 5_000, 6_000, 7), (3, 6_000, 8_000, 7), (2, 8_000, 20_000, 7)];
    assert_eq!(spans, [&wanted[..], &[(4, 20_000, 21_000, 7)]].concat());
}

#[test]
fn the_next_life_goes_on_counting_and_the_time_between_is_nobodys() {
    let (track, spans) = memory();
    let times = Times { track: &track, spans: &spans };
    times.start(0, 1_000);
    times.enter(1, 2_000);
    // Killed in phase 1, in the middle of a change.
    track.sequence.store(track.sequence.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    assert!(!times.read().1, "a dead writer's traces are said to be that");
    times.start(0, 9_000);
    times.stop(9_500);
    let read = whole(times);
    assert_eq!(read.visits.map(|visits| visits.total_ns)[..2], [1_500, 0]);
    // Within one process a life starts where the last one ended at the earliest.
    times.start(0, 1_000);
    assert_eq!(whole(times).since_ns, 9_500);
}

/// Nothing is torn: in every reading each phase's bins add up to its count and its total is what so many visits take.
/// Nothing is lost: in the end all changes are there.
#[test]
fn readers_beside_a_busy_writer_see_sums_that_add_up() {
    let (track, spans) = memory();
    let times = Times { track: &track, spans: &spans };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2).map(|_| scope.spawn(|| watch(times, &done))).collect();
        times.start(0, 0);
        let phase = |change: u64| 1 + (change % 7) as u32;
        for change in 1..=CHANGES {
            times.enter(phase(change), change * VISIT);
        }
        done.store(true, Ordering::Release);
        let readings: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(readings > 0, "nobody read anything");
    });
    let read = whole(times);
    assert_eq!(read.visits.iter().map(|visits| visits.count).sum::<u64>(), CHANGES);
    assert_eq!(read.visits.iter().map(|visits| visits.total_ns).sum::<u64>(), CHANGES * VISIT);
}

fn watch(times: Times<'_>, done: &AtomicBool) -> u64 {
    let (mut readings, mut seen) = (0, 0);
    while !done.load(Ordering::Acquire) || readings == 0 {
        if let (read, true) = times.read() {
            for visits in read.visits {
                assert_eq!(visits.bins.iter().sum::<u64>(), visits.count);
                assert_eq!(visits.total_ns, visits.count * VISIT);
            }
            let count: u64 = read.visits.iter().map(|visits| visits.count).sum();
            assert!(count >= seen, "{count} visits after {seen}");
            (readings, seen) = (readings + 1, count);
        }
        for span in times.spans(0) {
            assert_eq!((span.from_ns, span.to_ns), (span.number * VISIT, (span.number + 1) * VISIT));
        }
    }
    readings
}
