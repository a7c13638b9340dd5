//! What to do when something happens to a worker: a table without clock, processes or I/O.
//!
//! ```text
//!            last drafter ends well                       alarm: targets overdue
//! Training ──────────────────────────► Finishing ──────────────────────────────► killed
//!    │ signal                                │ signal
//!    ├───────────────► Stopping ◄────────────┘          second signal, or alarm: all killed
//!    │ a worker is given up
//!    └───────────────► Failing                          signal, or alarm: all killed
//! ```
//!
//! Whether a failed worker comes back at all is [`super::rules`]'. In Training a failed target comes back alone. A failed
//! drafter sends the others back with it: their weights have taken in batches that its death may have lost, so all go
//! back to one checkpoint or snapshot. The others stay alive: each leaves its step, says so, and goes on once it is told
//! from where; one that does not leave in time is killed and started again. Nobody waits in a sum for a drafter that is
//! gone: a drafter's failure ends the sum, in every phase. What is still there long after it was killed hangs in the
//! kernel: the run is over, and does not wait for it.

use std::fmt;
use std::time::Duration;

use common::ids::{Rank, Role};

use super::crew::{Crew, Member, Phase, State};
use super::rules::{Exit, Reason};

/// How long a killed process may take to be gone.
pub(super) const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// One worker of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WorkerId {
    pub(crate) role: Role,
    pub(crate) rank: Rank,
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&common::telemetry::worker_name(self.role, self.rank))
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A worker ended.
    Exited(WorkerId, Exit),
    /// A drafter has left its step and its place at the queue.
    Left(WorkerId),
    /// The launcher was sent this signal.
    Signal(i32),
    /// An alarm set before rang.
    Rang(Alarm),
}

/// What a later moment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// A failed target has rested.
    Respawn(WorkerId),
    /// No drafter is at work, and those that failed have rested; of the so many'th time that this was set.
    RespawnDrafters(u32),
    /// A drafter was asked to leave, when [`Alarm::RespawnDrafters`] had been set so many times.
    Leave(WorkerId, u32),
    /// Whoever of the role still runs has had its time.
    Grace(Role),
    /// The worker was killed, this long ago, in its so many'th life.
    Killed(WorkerId, u32),
}

/// What to do about it, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask the worker to end.
    Terminate(WorkerId),
    /// End the worker and all it started.
    Kill(WorkerId),
    /// Give what the dead worker held back to the queue.
    Reclaim(WorkerId),
    /// Stop waiting for the end of the worker.
    Abandon(WorkerId),
    /// End the sum of gradients: a drafter will not come to it any more.
    AbortSum,
    /// Ask a drafter to leave its step and its place at the queue.
    Leave(WorkerId),
    /// Take the queue back to the newest checkpoint, from which the drafters go on.
    Rewind,
    /// Let a drafter that left go on from there.
    Rejoin(WorkerId),
    /// Start the worker.
    Spawn(WorkerId),
    /// Ring later.
    Set(Alarm, Duration),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Every drafter reached its end.
    Trained,
    /// A signal ended it; every drafter ended well.
    Stopped(i32),
    /// This worker was given up, first of all.
    Failed(WorkerId, Reason),
}

/// The table. Time is the caller's: `now` is since the start; `Set` asks for an alarm, `Rang` brings it back.
pub(crate) fn decide(crew: &mut Crew, event: Event, now: Duration) -> Vec<Action> {
    match event {
        Event::Exited(id, exit) => {
            let abort = id.role == Role::Drafter && !exit.ending.is_success();
            let actions = exited(crew, id, exit, now);
            let waiting = abort && crew.running().any(|member| member.id.role == Role::Drafter);
            waiting.then_some(Action::AbortSum).into_iter().chain(actions).collect()
        }
        Event::Left(id) => left(crew, id),
        Event::Signal(signal) => signalled(crew, signal),
        Event::Rang(alarm) => rang(crew, alarm),
    }
}

fn exited(crew: &mut Crew, id: WorkerId, exit: Exit, now: Duration) -> Vec<Action> {
    let ending = exit.ending;
    let member = crew.member(id);
    if member.state == State::Condemned {
        member.record.ended(exit);
        member.state = State::Resting;
        return rest_of_drafters(crew);
    }
    let away = matches!(member.state, State::Leaving | State::Apart);
    match crew.phase {
        Phase::Training if !ending.is_success() => failed(crew, id, exit, now),
        // It had come to its end, which is not the end any more.
        Phase::Training if away => {
            crew.member(id).state = State::Resting;
            rest_of_drafters(crew)
        }
        Phase::Stopping { killed: false, .. } if id.role == Role::Drafter && !ending.is_success_when_asked() => {
            // It was to save and did not: that is what the user has to hear.
            crew.member(id).state = State::Done;
            crew.phase = Phase::Failing(id, Reason::Ending);
            Vec::new()
        }
        _ => done(crew, id),
    }
}

fn done(crew: &mut Crew, id: WorkerId) -> Vec<Action> {
    crew.member(id).state = State::Done;
    if crew.phase != Phase::Training || crew.of(Role::Drafter).any(|member| member.state != State::Done) {
        return Vec::new();
    }
    crew.phase = Phase::Finishing;
    crew.change(Role::Target, State::Resting, State::Done);
    vec![crew.set_grace(Role::Target)]
}

fn failed(crew: &mut Crew, id: WorkerId, exit: Exit, now: Duration) -> Vec<Action> {
    let rules = crew.rules;
    let member = crew.member(id);
    let rest = match member.record.failed(id, exit, now, &rules) {
        Ok(rest) => rest,
        Err(reason) => {
            member.state = State::Done;
            return crew.end(Phase::Failing(id, reason));
        }
    };
    member.state = State::Resting;
    match id.role {
        Role::Target => vec![Action::Reclaim(id), Action::Set(Alarm::Respawn(id), rest)],
        Role::Drafter => {
            crew.drafters_rest = crew.drafters_rest.max(rest);
            crew.change(Role::Drafter, State::Done, State::Resting);
            let (round, grace) = (crew.gathered, rules.grace_drafter);
            let others = crew.change(Role::Drafter, State::Running, State::Leaving);
            let leave = |id| [Action::Leave(id), Action::Set(Alarm::Leave(id, round), grace)];
            others.into_iter().flat_map(leave).chain(rest_of_drafters(crew)).collect()
        }
    }
}

fn left(crew: &mut Crew, id: WorkerId) -> Vec<Action> {
    let member = crew.member(id);
    if member.state != State::Leaving {
        return Vec::new();
    }
    member.state = State::Apart;
    rest_of_drafters(crew)
}

/// Once no drafter is at work, those that failed rest; or, as the run ends, are done.
fn rest_of_drafters(crew: &mut Crew) -> Vec<Action> {
    if crew.phase != Phase::Training {
        crew.change(Role::Drafter, State::Resting, State::Done);
        return Vec::new();
    }
    if crew.of(Role::Drafter).any(|member| !matches!(member.state, State::Resting | State::Apart)) {
        return Vec::new();
    }
    crew.gathered += 1;
    vec![Action::Set(Alarm::RespawnDrafters(crew.gathered), crew.drafters_rest)]
}

/// All drafters go on from one point, and the targets with them.
fn go_on(crew: &mut Crew) -> Vec<Action> {
    crew.drafters_rest = Duration::ZERO;
    // Batches that come back as pending need targets, also those that had seen their end.
    let targets = crew.change(Role::Target, State::Done, State::Running);
    let drafters = crew.change(Role::Drafter, State::Resting, State::Running);
    let spawns: Vec<_> = targets.into_iter().chain(drafters).map(|id| crew.start(id)).collect();
    let rejoin = crew.change(Role::Drafter, State::Apart, State::Running).into_iter().map(Action::Rejoin);
    [Action::Rewind].into_iter().chain(spawns).chain(rejoin).collect()
}

fn signalled(crew: &mut Crew, signal: i32) -> Vec<Action> {
    match crew.phase {
        Phase::Training | Phase::Finishing => crew.end(Phase::Stopping { signal, killed: false }),
        Phase::Stopping { signal: first, .. } => {
            crew.phase = Phase::Stopping { signal: first, killed: true };
            kill(crew, |_| true)
        }
        Phase::Failing(..) => kill(crew, |_| true),
    }
}

fn kill(crew: &Crew, concerned: impl Fn(Role) -> bool) -> Vec<Action> {
    crew.running().filter(|member| concerned(member.id.role)).flat_map(Member::kill).collect()
}

fn rang(crew: &mut Crew, alarm: Alarm) -> Vec<Action> {
    match (alarm, crew.phase) {
        (Alarm::Respawn(id), Phase::Training) if crew.member(id).state == State::Resting => vec![crew.start(id)],
        (Alarm::RespawnDrafters(time), Phase::Training) if time == crew.gathered => go_on(crew),
        (Alarm::Leave(id, round), Phase::Training) if round == crew.gathered => condemn(crew, id),
        (Alarm::Grace(role), Phase::Finishing | Phase::Failing(..)) => kill(crew, |of| of == role),
        (Alarm::Grace(role), Phase::Stopping { signal, killed }) => {
            crew.phase = Phase::Stopping { signal, killed: killed || role == Role::Drafter };
            kill(crew, |of| of == role)
        }
        (Alarm::Killed(id, life), _) => abandon(crew, id, life),
        _ => Vec::new(),
    }
}

fn condemn(crew: &mut Crew, id: WorkerId) -> Vec<Action> {
    let member = crew.member(id);
    if member.state != State::Leaving {
        return Vec::new();
    }
    member.state = State::Condemned;
    member.kill().into()
}

fn abandon(crew: &mut Crew, id: WorkerId, life: u32) -> Vec<Action> {
    let member = crew.member(id);
    if member.lives != life || matches!(member.state, State::Resting | State::Done) {
        return Vec::new();
    }
    member.state = State::Done;
    [Action::Abandon(id)].into_iter().chain(crew.end(Phase::Failing(id, Reason::Unkillable))).collect()
}

#[cfg(test)]
mod tests;
