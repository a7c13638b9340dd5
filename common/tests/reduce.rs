//! The gradient sum: equal bits on every rank, whatever arrives first.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::ids::Rank;
use common::reduce::{MAX_SCALARS, Sum, SumError, SumOwner};
use common::shutdown::Shutdown;
use common::wait::{Patience, WaitError};

fn patience(timeout_ms: u64) -> Patience {
    Patience { timeout: Duration::from_millis(timeout_ms), shutdown: Shutdown::never() }
}

fn sum_of(ranks: u32, chunk: usize) -> (String, SumOwner) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tandem-test-reduce-{}-{number}", std::process::id());
    let owner = Sum::create(&name, ranks, chunk).unwrap();
    (name, owner)
}

/// What rank `rank` brings to round `round`: magnitudes so different that the order of addition shows in the bits.
fn brought(rank: u32, round: u32, place: usize) -> f32 {
    let seed = (rank + 1).wrapping_mul(2_654_435_761) ^ round.wrapping_mul(40_503) ^ (place as u32).wrapping_mul(97);
    ((seed % 2001) as f32 - 1000.0) * 10f32.powi((seed % 13) as i32 - 6)
}

fn expected(ranks: u32, round: u32, place: usize) -> f32 {
    (0..ranks).fold(0.0, |sum, rank| sum + brought(rank, round, place))
}

#[test]
fn every_rank_gets_the_rank_ordered_sum_bit_for_bit() {
    for (ranks, len) in [(2, 5), (3, 1000), (4, 64)] {
        let (name, _owner) = sum_of(ranks, 64);
        thread::scope(|scope| {
            for rank in 0..ranks {
                let mut sum = Sum::attach(&name, Rank(rank), ranks).unwrap();
                scope.spawn(move || {
                    for round in 0..50 {
                        let mut values: Vec<f32> = (0..len).map(|place| brought(rank, round, place)).collect();
                        let mut scalars = [f64::from(rank), 0.1];
                        sum.sum(&mut values, &mut scalars, &patience(20_000)).unwrap();
                        for (place, value) in values.iter().enumerate() {
                            assert_eq!(value.to_bits(), expected(ranks, round, place).to_bits(), "place {place}");
                        }
                        let tenths = (0..ranks).fold(0.0, |sum, _| sum + 0.1);
                        assert_eq!(scalars, [f64::from(ranks * (ranks - 1) / 2), tenths]);
                    }
                });
            }
        });
    }
}

#[test]
fn one_rank_changes_nothing_and_needs_no_memory() {
    let (name, _owner) = sum_of(1, 64);
    let mut sum = Sum::attach(&name, Rank(0), 1).unwrap();
    let (mut values, mut scalars) = ([1.5, -2.5], [3.0]);
    sum.sum(&mut values, &mut scalars, &patience(0)).unwrap();
    assert_eq!((values, scalars), ([1.5, -2.5], [3.0]));
    assert!(!std::path::Path::new("/dev/shm").join(name).exists());
}

#[test]
fn a_missing_rank_is_named_and_an_abort_ends_the_wait() {
    let (name, owner) = sum_of(2, 64);
    let mut sum = Sum::attach(&name, Rank(0), 2).unwrap();
    let error = sum.sum(&mut [1.0], &mut [], &patience(30)).unwrap_err();
    assert!(error.to_string().contains("drafter 1 to bring its gradients"), "{error}");
    thread::scope(|scope| {
        let ended = sum.ended();
        let waiter = scope.spawn(|| sum.sum(&mut [1.0], &mut [], &patience(60_000)));
        assert!(!ended.is_set());
        owner.abort();
        assert!(ended.is_set(), "whoever waits for something else sees it too");
        assert!(matches!(waiter.join().unwrap(), Err(SumError::Wait(WaitError::Aborted))));
    });
    assert!(matches!(Sum::attach(&name, Rank(0), 2), Err(SumError::Used { .. })));
    assert!(matches!(Sum::attach(&name, Rank(2), 2), Err(SumError::NotThisSum { .. })));
    assert!(matches!(Sum::attach(&name, Rank(1), 3), Err(SumError::NotThisSum { .. })));
}

#[test]
fn ranks_that_sum_different_things_all_hear_of_it() {
    let (name, _owner) = sum_of(2, 64);
    thread::scope(|scope| {
        for rank in 0..2 {
            let mut sum = Sum::attach(&name, Rank(rank), 2).unwrap();
            scope.spawn(move || {
                let mut values = vec![0.0; 100 + 100 * rank as usize];
                let error = sum.sum(&mut values, &mut [], &patience(20_000)).unwrap_err();
                assert!(matches!(error, SumError::Shape { .. }), "{error}");
                let error = sum.sum(&mut [], &mut [0.0; MAX_SCALARS + 1], &patience(0)).unwrap_err();
                assert!(matches!(error, SumError::Scalars(_)));
            });
        }
    });
}
