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
//! In Training a failed target comes back alone. A failed drafter takes the other drafters with it: their weights have
//! taken in batches that its death may have lost, so all go back to one checkpoint.

use std::fmt;
use std::time::Duration;

use common::ids::{Rank, Role};

use crate::child::Ending;

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

/// The rules of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// How often one worker may be restarted.
    pub(crate) max_restarts: u32,
    /// How long workers may take to end once asked, or once all is trained.
    pub(crate) grace: Duration,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A worker ended.
    Exited(WorkerId, Ending),
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
    /// All drafters are gone and have rested.
    RespawnDrafters,
    /// Whoever still runs has had its time.
    Grace,
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
    /// Take the queue back to the newest checkpoint, from which the next drafters go on.
    Rewind,
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
    Failed(WorkerId, Ending),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Training,
    Finishing,
    Stopping { signal: i32, killed: bool },
    Failing(WorkerId, Ending),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// A drafter that is being ended because another one failed.
    Condemned,
    /// Ended; comes back.
    Resting,
    /// Ended; comes back only if drafters are rewound.
    Done,
}

#[derive(Debug)]
struct Member {
    id: WorkerId,
    state: State,
    restarts: u32,
}

/// All workers and where the run stands.
#[derive(Debug)]
pub(crate) struct Crew {
    rules: Rules,
    phase: Phase,
    members: Vec<Member>,
}

impl Crew {
    /// A run whose workers have just been started.
    pub(crate) fn new(workers: impl IntoIterator<Item = WorkerId>, rules: Rules) -> Crew {
        let running = |id| Member { id, state: State::Running, restarts: 0 };
        Crew { rules, phase: Phase::Training, members: workers.into_iter().map(running).collect() }
    }

    /// How it ended, once nobody runs and nobody comes back.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        if self.members.iter().any(|member| member.state != State::Done) {
            return None;
        }
        Some(match self.phase {
            Phase::Training | Phase::Finishing => Outcome::Trained,
            Phase::Stopping { signal, .. } => Outcome::Stopped(signal),
            Phase::Failing(id, ending) => Outcome::Failed(id, ending),
        })
    }

    /// Whether the workers have been asked to end already, so that the next signal kills them.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. } | Phase::Failing(..))
    }

    /// Whether the worker, seen to end like this, only did what it was made to do.
    pub(crate) fn expected(&self, id: WorkerId, ending: Ending) -> bool {
        let condemned = self.members.iter().any(|member| member.id == id && member.state == State::Condemned);
        let ending_all = self.phase != Phase::Training;
        ending.is_success() || condemned || ending_all && matches!(ending, Ending::Signal(_))
    }

    /// How often the worker was restarted because it failed.
    pub(crate) fn restarts(&self, id: WorkerId) -> u32 {
        self.members.iter().find(|member| member.id == id).map_or(0, |member| member.restarts)
    }

    /// How often workers of a role were restarted because they failed.
    pub(crate) fn restarts_of(&self, role: Role) -> u32 {
        self.of(role).map(|member| member.restarts).sum()
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |member| member.id.role == role)
    }

    fn member(&mut self, id: WorkerId) -> &mut Member {
        self.members.iter_mut().find(|member| member.id == id).expect("only workers of this crew are reported")
    }

    /// Every worker of `role` in state `from` goes to state `to`; who they were.
    fn change(&mut self, role: Role, from: State, to: State) -> Vec<WorkerId> {
        let concerned = self.members.iter_mut().filter(|member| member.id.role == role && member.state == from);
        let changed = concerned.map(|member| {
            member.state = to;
            member.id
        });
        changed.collect()
    }

    fn running(&self) -> impl Iterator<Item = WorkerId> {
        self.members.iter().filter(|member| member.state == State::Running).map(|member| member.id)
    }

    /// Nobody comes back from here on; who runs is asked to end.
    fn end(&mut self, phase: Phase) -> Vec<Action> {
        self.phase = phase;
        for member in self.members.iter_mut().filter(|member| member.state == State::Resting) {
            member.state = State::Done;
        }
        self.running().map(Action::Terminate).chain([Action::Set(Alarm::Grace, self.rules.grace)]).collect()
    }
}

/// The table. Time is the caller's: `Set` asks for an alarm, `Rang` brings it back.
pub(crate) fn decide(crew: &mut Crew, event: Event) -> Vec<Action> {
    match event {
        Event::Exited(id, ending) => exited(crew, id, ending),
        Event::Signal(signal) => signalled(crew, signal),
        Event::Rang(alarm) => rang(crew, alarm),
    }
}

fn exited(crew: &mut Crew, id: WorkerId, ending: Ending) -> Vec<Action> {
    if crew.member(id).state == State::Condemned {
        crew.member(id).state = if crew.phase == Phase::Training { State::Resting } else { State::Done };
        return rest_of_drafters(crew);
    }
    match crew.phase {
        Phase::Training if !ending.is_success() => failed(crew, id, ending),
        Phase::Stopping { killed: false, .. } if id.role == Role::Drafter && !ending.is_success_when_asked() => {
            // It was to save and did not: that is what the user has to hear.
            crew.member(id).state = State::Done;
            crew.phase = Phase::Failing(id, ending);
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
    vec![Action::Set(Alarm::Grace, crew.rules.grace)]
}

fn failed(crew: &mut Crew, id: WorkerId, ending: Ending) -> Vec<Action> {
    let rules = crew.rules;
    let member = crew.member(id);
    if ending == Ending::YOUR_INPUT || member.restarts >= rules.max_restarts {
        member.state = State::Done;
        return crew.end(Phase::Failing(id, ending));
    }
    let rest = rest(member.restarts);
    member.restarts += 1;
    member.state = State::Resting;
    match id.role {
        Role::Target => vec![Action::Reclaim(id), Action::Set(Alarm::Respawn(id), rest)],
        Role::Drafter => {
            crew.change(Role::Drafter, State::Done, State::Resting);
            let others = crew.change(Role::Drafter, State::Running, State::Condemned);
            others.into_iter().map(Action::Kill).chain(rest_of_drafters(crew)).collect()
        }
    }
}

/// Once no drafter is left, they may rest together.
fn rest_of_drafters(crew: &Crew) -> Vec<Action> {
    if crew.phase != Phase::Training || crew.of(Role::Drafter).any(|member| member.state != State::Resting) {
        return Vec::new();
    }
    let restarts = crew.of(Role::Drafter).map(|member| member.restarts).max().unwrap_or(0);
    vec![Action::Set(Alarm::RespawnDrafters, rest(restarts.saturating_sub(1)))]
}

/// Nothing before the first restart, then a second, doubling up to half a minute.
fn rest(restarts: u32) -> Duration {
    match restarts {
        0 => Duration::ZERO,
        n => Duration::from_secs(1 << (n - 1).min(5)).min(Duration::from_secs(30)),
    }
}

fn signalled(crew: &mut Crew, signal: i32) -> Vec<Action> {
    match crew.phase {
        Phase::Training | Phase::Finishing => crew.end(Phase::Stopping { signal, killed: false }),
        Phase::Stopping { signal: first, .. } => {
            crew.phase = Phase::Stopping { signal: first, killed: true };
            kill_all(crew)
        }
        Phase::Failing(..) => kill_all(crew),
    }
}

fn kill_all(crew: &Crew) -> Vec<Action> {
    crew.running().map(Action::Kill).collect()
}

fn rang(crew: &mut Crew, alarm: Alarm) -> Vec<Action> {
    match (alarm, crew.phase) {
        (Alarm::Respawn(id), Phase::Training) if crew.member(id).state == State::Resting => {
            crew.member(id).state = State::Running;
            vec![Action::Spawn(id)]
        }
        (Alarm::RespawnDrafters, Phase::Training) => {
            // Batches that come back as pending need targets, also those that had seen their end.
            let targets = crew.change(Role::Target, State::Done, State::Running);
            let drafters = crew.change(Role::Drafter, State::Resting, State::Running);
            let spawns = targets.into_iter().chain(drafters).map(Action::Spawn);
            [Action::Rewind].into_iter().chain(spawns).collect()
        }
        (Alarm::Grace, Phase::Finishing | Phase::Failing(..)) => kill_all(crew),
        (Alarm::Grace, Phase::Stopping { signal, .. }) => {
            crew.phase = Phase::Stopping { signal, killed: true };
            kill_all(crew)
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
