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
//! Whether a failed worker comes back at all is [`super::rules`]'. In Training a failed target comes back alone. A failed drafter takes the other drafters with it: their weights have
//! taken in batches that its death may have lost, so all go back to one checkpoint or snapshot. What is still there long
//! after it was killed hangs in the kernel: the run is over, and does not wait for it.

use std::fmt;
use std::time::Duration;

use common::ids::{Rank, Role};

use super::rules::{Exit, Reason, Record, Rules};
use crate::child::Ending;

/// How long a killed process may take to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

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
    Failed(WorkerId, Reason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Training,
    Finishing,
    Stopping { signal: i32, killed: bool },
    Failing(WorkerId, Reason),
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
    record: Record,
    /// Times it was started.
    lives: u32,
}

/// All workers and where the run stands.
#[derive(Debug)]
pub(crate) struct Crew {
    rules: Rules,
    phase: Phase,
    /// The longest rest that a drafter of this round needs.
    drafters_rest: Duration,
    members: Vec<Member>,
}

impl Crew {
    /// A run whose workers have just been started.
    pub(crate) fn new(workers: impl IntoIterator<Item = WorkerId>, rules: Rules) -> Crew {
        let running = |id| Member { id, state: State::Running, record: Record::default(), lives: 1 };
        let members = workers.into_iter().map(running).collect();
        Crew { rules, phase: Phase::Training, drafters_rest: Duration::ZERO, members }
    }

    /// How it ended, once nobody runs and nobody comes back.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        if self.members.iter().any(|member| member.state != State::Done) {
            return None;
        }
        Some(match self.phase {
            Phase::Training | Phase::Finishing => Outcome::Trained,
            Phase::Stopping { signal, .. } => Outcome::Stopped(signal),
            Phase::Failing(id, reason) => Outcome::Failed(id, reason),
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
        self.members.iter().find(|member| member.id == id).map_or(0, |member| member.record.restarts)
    }

    /// How often workers of a role were restarted because they failed.
    pub(crate) fn restarts_of(&self, role: Role) -> u32 {
        self.of(role).map(|member| member.record.restarts).sum()
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

    fn running(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state == State::Running)
    }

    fn start(&mut self, id: WorkerId) -> Action {
        let member = self.member(id);
        member.state = State::Running;
        member.lives += 1;
        Action::Spawn(id)
    }

    fn set_grace(&self, role: Role) -> Action {
        let grace = match role {
            Role::Target => self.rules.grace_target,
            Role::Drafter => self.rules.grace_drafter,
        };
        Action::Set(Alarm::Grace(role), grace)
    }

    /// Nobody comes back from here on; who runs is asked to end.
    fn end(&mut self, phase: Phase) -> Vec<Action> {
        self.phase = phase;
        for member in self.members.iter_mut().filter(|member| member.state == State::Resting) {
            member.state = State::Done;
        }
        let graces = [Role::Target, Role::Drafter].map(|role| self.set_grace(role));
        self.running().map(|member| Action::Terminate(member.id)).chain(graces).collect()
    }
}

impl Member {
    fn kill(&self) -> [Action; 2] {
        [Action::Kill(self.id), Action::Set(Alarm::Killed(self.id, self.lives), KILL_PATIENCE)]
    }
}

/// The table. Time is the caller's: `now` is since the start; `Set` asks for an alarm, `Rang` brings it back.
pub(crate) fn decide(crew: &mut Crew, event: Event, now: Duration) -> Vec<Action> {
    match event {
        Event::Exited(id, exit) => exited(crew, id, exit, now),
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
    match crew.phase {
        Phase::Training if !ending.is_success() => failed(crew, id, exit, now),
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
            let kills: Vec<_> = crew.running().filter(|member| member.id.role == Role::Drafter).collect();
            let kills: Vec<_> = kills.into_iter().flat_map(Member::kill).collect();
            crew.change(Role::Drafter, State::Running, State::Condemned);
            kills.into_iter().chain(rest_of_drafters(crew)).collect()
        }
    }
}

/// Once no drafter is left, they may rest together; or, as the run ends, for good.
fn rest_of_drafters(crew: &mut Crew) -> Vec<Action> {
    if crew.phase != Phase::Training {
        crew.change(Role::Drafter, State::Resting, State::Done);
        return Vec::new();
    }
    if crew.of(Role::Drafter).any(|member| member.state != State::Resting) {
        return Vec::new();
    }
    vec![Action::Set(Alarm::RespawnDrafters, std::mem::take(&mut crew.drafters_rest))]
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
        (Alarm::RespawnDrafters, Phase::Training) => {
            // Batches that come back as pending need targets, also those that had seen their end.
            let targets = crew.change(Role::Target, State::Done, State::Running);
            let drafters = crew.change(Role::Drafter, State::Resting, State::Running);
            let spawns: Vec<_> = targets.into_iter().chain(drafters).map(|id| crew.start(id)).collect();
            [Action::Rewind].into_iter().chain(spawns).collect()
        }
        (Alarm::Grace(role), Phase::Finishing | Phase::Failing(..)) => kill(crew, |of| of == role),
        (Alarm::Grace(role), Phase::Stopping { signal, killed }) => {
            crew.phase = Phase::Stopping { signal, killed: killed || role == Role::Drafter };
            kill(crew, |of| of == role)
        }
        (Alarm::Killed(id, life), _) => abandon(crew, id, life),
        _ => Vec::new(),
    }
}

fn abandon(crew: &mut Crew, id: WorkerId, life: u32) -> Vec<Action> {
    let member = crew.member(id);
    if member.lives != life || !matches!(member.state, State::Running | State::Condemned) {
        return Vec::new();
    }
    member.state = State::Done;
    [Action::Abandon(id)].into_iter().chain(crew.end(Phase::Failing(id, Reason::Unkillable))).collect()
}

#[cfg(test)]
mod tests;
