//! The gate, and which READY batch goes next.

use super::Ring;
use super::word::SlotState;
use crate::ids::{BatchId, SlotIndex};
use crate::sync::Ordering;

/// What was decided when the queue was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) min_ready: u64,
    pub(crate) strict: bool,
    /// Once open, the gate stays open until nothing is READY.
    pub(crate) latch: bool,
    /// Targets that share the slots.
    pub(crate) targets: u32,
    pub(crate) max_age_ns: u64,
}

/// Whether pops are let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Enough are ready.
    Open,
    /// No target will bring more: what is there goes out.
    Draining,
    /// Fewer are ready than the gate wants, and more will come.
    Closed { ready: u64, needed: u64 },
}

impl Gate {
    /// By the ledger's counts (Pending, Claimed, Ready, Held, Trained), and whether it was latched open.
    pub(crate) fn of([pending, claimed, ready, ..]: [u64; 5], rules: &Rules, latched: bool) -> Gate {
        if (pending, claimed) == (0, 0) {
            Gate::Draining
        } else if ready >= rules.min_ready || (rules.latch && latched && ready > 0) {
            Gate::Open
        } else {
            Gate::Closed { ready, needed: rules.min_ready }
        }
    }
}

/// A READY slot as the choice sees it.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    slot: SlotIndex,
    bucket: u32,
    ticket: u64,
    since_ns: u64,
}

/// The policy's choice among the READY slots; the lottery moves on with it.
pub(super) fn choose(ring: &Ring<'_>, now: u64) -> Option<SlotIndex> {
    if ring.rules.strict {
        return next_in_order(ring);
    }
    let candidates = ring.in_state(SlotState::Ready).map(|slot| candidate(ring, slot));
    let drawn = draw(ring.control.lottery.load(Ordering::Relaxed));
    ring.control.lottery.store(drawn, Ordering::Relaxed);
    choose_mixed(candidates, now, ring.rules.max_age_ns, drawn)
}

fn candidate(ring: &Ring<'_>, slot: SlotIndex) -> Candidate {
    let shared = &ring.slots[slot.0 as usize];
    Candidate {
        slot,
        bucket: shared.bucket.load(Ordering::Relaxed),
        ticket: shared.ticket.load(Ordering::Relaxed),
        since_ns: shared.since_ns.load(Ordering::Relaxed),
    }
}

/// The lowest READY id, unless a lower one is still on its way.
fn next_in_order(ring: &Ring<'_>) -> Option<SlotIndex> {
    let slot = ring.in_state(SlotState::Ready).min_by_key(|slot| ring.batch(*slot))?;
    (ring.batch(slot) < first_on_its_way(ring)).then_some(slot)
}

/// The lowest id that is pending or being written.
fn first_on_its_way(ring: &Ring<'_>) -> BatchId {
    let written = ring.in_state(SlotState::Writing).map(|slot| ring.batch(slot)).min();
    let pending = ring.ledger.lowest_pending();
    written.into_iter().chain(pending).min().unwrap_or(BatchId(u64::MAX))
}

/// How many READY batches could be popped one after the other now.
pub(super) fn available(ring: &Ring<'_>) -> u64 {
    let limit = if ring.rules.strict { first_on_its_way(ring) } else { BatchId(u64::MAX) };
    ring.in_state(SlotState::Ready).filter(|slot| ring.batch(*slot) < limit).count() as u64
}

/// The part of an arena that a slot lies in: each of `parts` has an equal run of the `slots`, one more or less.
pub(crate) fn part_of(slot: u32, slots: u32, parts: u32) -> u32 {
    (((u64::from(slot) + 1) * u64::from(parts) - 1) / u64::from(slots)) as u32
}

/// The slots that one target may fill while another waits for one.
pub(super) fn share(capacity: usize, targets: u32) -> usize {
    capacity.div_ceil(targets.max(1) as usize)
}

/// The one that waited longer than `max_age_ns`, if any; else the oldest of a bucket drawn by its share of what is
/// ready.
fn choose_mixed(
    candidates: impl Iterator<Item = Candidate> + Clone,
    now: u64,
    max_age_ns: u64,
    drawn: u64,
) -> Option<SlotIndex> {
    let oldest = candidates.clone().min_by_key(|candidate| candidate.since_ns)?;
    if now.saturating_sub(oldest.since_ns) > max_age_ns {
        return Some(oldest.slot);
    }
    let winner = drawn % candidates.clone().count() as u64;
    let bucket = candidates.clone().nth(winner as usize)?.bucket;
    let of_bucket = candidates.filter(|candidate| candidate.bucket == bucket);
    of_bucket.min_by_key(|candidate| candidate.ticket).map(|candidate| candidate.slot)
}

/// The next number of a xorshift generator; never 0 from a state that is not.
pub(crate) fn draw(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(slot: u32, bucket: u32, ticket: u64, since_ns: u64) -> Candidate {
        Candidate { slot: SlotIndex(slot), bucket, ticket, since_ns }
    }

    #[test]
    fn the_gate_opens_on_enough_or_on_the_end() {
        let rules = Rules { min_ready: 3, strict: false, latch: false, targets: 1, max_age_ns: 0 };
        assert_eq!(Gate::of([5, 1, 2, 0, 0], &rules, true), Gate::Closed { ready: 2, needed: 3 });
        assert_eq!(Gate::of([0, 1, 2, 0, 0], &rules, true), Gate::Closed { ready: 2, needed: 3 });
        assert_eq!(Gate::of([5, 1, 3, 0, 0], &rules, true), Gate::Open);
        assert_eq!(Gate::of([0, 0, 2, 4, 9], &rules, true), Gate::Draining);
        let latch = Rules { latch: true, ..rules };
        assert_eq!(Gate::of([5, 1, 2, 0, 0], &latch, false), Gate::Closed { ready: 2, needed: 3 });
        assert_eq!(Gate::of([5, 1, 1, 0, 0], &latch, true), Gate::Open);
        assert_eq!(Gate::of([5, 1, 0, 0, 0], &latch, true), Gate::Closed { ready: 0, needed: 3 });
    }

    #[test]
    fn buckets_are_drawn_by_their_share_and_give_their_oldest() {
        let candidates = [ready(0, 0, 8, 50), ready(1, 0, 5, 50), ready(2, 0, 9, 50), ready(3, 1, 7, 50)];
        let mut lottery = 42;
        let mut picks = [0u32; 4];
        for _ in 0..4000 {
            lottery = draw(lottery);
            picks[choose_mixed(candidates.iter().copied(), 60, 1000, lottery).unwrap().0 as usize] += 1;
        }
        assert_eq!((picks[0], picks[2]), (0, 0), "not the oldest of their bucket");
        assert!((850..1150).contains(&picks[3]), "a quarter of the READY slots: {picks:?}");
    }

    #[test]
    fn an_old_head_goes_first_whatever_its_bucket() {
        let mut candidates = vec![ready(0, 1, 3, 10)];
        candidates.extend((1..100).map(|slot| ready(slot, 0, u64::from(slot) + 3, 900)));
        for lottery in 1..200 {
            assert_eq!(choose_mixed(candidates.iter().copied(), 1000, 500, lottery), Some(SlotIndex(0)));
        }
        assert!(
            (1..200).any(|lottery| choose_mixed(candidates.iter().copied(), 1000, 5000, lottery) != Some(SlotIndex(0)))
        );
    }
}
