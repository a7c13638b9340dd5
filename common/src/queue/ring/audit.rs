//! What must hold whenever nobody is inside the lock, as sentences about what does not.

use std::fmt::Display;

use super::Ring;
use super::ledger::BatchState;
use super::lock::Holder;
use super::word::{SlotState, Word};
use crate::ids::{BatchId, SlotIndex};
use crate::sync::Ordering;

/// Every invariant that is broken; empty if all hold.
pub(crate) fn audit(ring: &Ring<'_>) -> Vec<String> {
    let mut audit = Audit { problems: Vec::new() };
    let carried = audit.slots(ring);
    audit.ledger(ring, &carried);
    audit.tickets(ring);
    audit.problems
}

struct Audit {
    problems: Vec<String>,
}

/// By batch: the slot that carries it, if one does.
type Carried = Vec<Option<(SlotIndex, Word)>>;

impl Audit {
    fn expect(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.problems.push(problem());
        }
    }

    fn slots(&mut self, ring: &Ring<'_>) -> Carried {
        let mut carried: Carried = vec![None; ring.ledger.len() as usize];
        for slot in (0..ring.slots.len() as u32).map(SlotIndex) {
            let (word, batch) = (ring.word(slot), ring.batch(slot));
            self.owner(ring, slot, word);
            if word.state == SlotState::Free {
                continue;
            }
            let Some(place) = carried.get_mut(batch.0 as usize) else {
                self.problems.push(format!("slot {slot} carries batch {batch}, which is beyond the plan"));
                continue;
            };
            if let Some((other, _)) = place.replace((slot, word)) {
                self.problems.push(format!("batch {batch} is in slots {other} and {slot}"));
            }
            let bucket = ring.slots[slot.0 as usize].bucket.load(Ordering::Relaxed) as usize;
            let known = word.state == SlotState::Writing || bucket < ring.buckets.len();
            self.expect(known, || format!("slot {slot} is in bucket {bucket} of {}", ring.buckets.len()));
        }
        carried
    }

    /// Targets write, drafters read, nobody owns the rest.
    fn owner(&mut self, ring: &Ring<'_>, slot: SlotIndex, word: Word) {
        let (code, targets) = (u32::from(Holder::code_of(word.owner)), ring.rules.targets);
        let fits = match word.state {
            SlotState::Free | SlotState::Ready => code == 0,
            SlotState::Writing => (1..=targets).contains(&code),
            SlotState::Reading => code > targets && code < u32::from(Holder::LAUNCHER),
        };
        self.expect(fits, || format!("slot {slot} is {:?} in the hands of participant {code}", word.state));
    }

    fn ledger(&mut self, ring: &Ring<'_>, carried: &Carried) {
        let ledger = ring.ledger;
        let mut counts = [0; 5];
        for batch in ledger.ids() {
            let state = ledger.get(batch);
            counts[state.kind()] += 1;
            let slot = carried[batch.0 as usize];
            let found = slot.map(|(_, word)| (word.state, Holder::code_of(word.owner)));
            let fits = match state {
                BatchState::Pending => found.is_none(),
                BatchState::Claimed(code) => found == Some((SlotState::Writing, code)),
                BatchState::Ready => found == Some((SlotState::Ready, 0)),
                BatchState::Held(code) => found.is_none_or(|found| found == (SlotState::Reading, code)),
                BatchState::Trained(_) => found.is_none_or(|(state, _)| state != SlotState::Ready),
            };
            self.expect(fits, || disagreement(batch, state, slot));
        }
        self.expect(counts == ledger.counts(), || {
            format!("the ledger counts {:?}, its words say {counts:?}", ledger.counts())
        });
        let floor = ring.control.pending_floor.load(Ordering::Relaxed).min(ledger.len());
        let below = (0..floor).map(BatchId).find(|batch| ledger.get(*batch) == BatchState::Pending);
        self.expect(below.is_none(), || format!("a batch below {floor} is pending: {below:?}"));
    }

    fn tickets(&mut self, ring: &Ring<'_>) {
        let next = ring.control.next_ticket.load(Ordering::Relaxed);
        let ticket = |slot: SlotIndex| ring.slots[slot.0 as usize].ticket.load(Ordering::Relaxed);
        let mut tickets: Vec<u64> = ring.in_state(SlotState::Ready).map(ticket).collect();
        tickets.sort_unstable();
        self.expect(tickets.windows(2).all(|pair| pair[0] < pair[1]), || same("publication number", &tickets));
        self.expect(tickets.last().is_none_or(|last| *last < next), || {
            format!("a slot has publication number {tickets:?}, the next one is {next}")
        });
    }
}

fn same(what: impl Display, numbers: &[u64]) -> String {
    format!("two slots have the same {what}: {numbers:?}")
}

fn disagreement(batch: BatchId, state: BatchState, slot: Option<(SlotIndex, Word)>) -> String {
    let slot = slot.map_or("no slot carries it".into(), |(slot, word)| {
        format!("slot {slot} says {:?} by {}", word.state, Holder::code_of(word.owner))
    });
    format!("batch {batch} is {state:?} in the ledger, but {slot}")
}
