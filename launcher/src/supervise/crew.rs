//! Who belongs to a run, and how each of them and the run stand.

use std::time::Duration;

use common::ids::Role;

use super::decide::{Action, Alarm, KILL_PATIENCE, Outcome, WorkerId};
use super::rules::{Reason, Record, Rules};
use crate::child::Ending;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Training,
    Finishing,
    Stopping { signal: i32, killed: bool },
    Failing(WorkerId, Reason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// A drafter that was asked to leave because another one failed.
    Leaving,
    /// It has left, and waits.
    Apart,
    /// It did not leave in time and is being killed.
    Condemned,
    /// Ended; comes back.
    Resting,
    /// Ended; comes back only if drafters are rewound.
    Done,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: WorkerId,
    pub(super) state: State,
    pub(super) record: Record,
    /// Times it was started.
    pub(super) lives: u32,
}

/// All workers and where the run stands.
#[derive(Debug)]
pub(crate) struct Crew {
    pub(super) rules: Rules,
    pub(super) phase: Phase,
    /// The longest rest that a drafter needs before they go on.
    pub(super) drafters_rest: Duration,
    /// How often the drafters were all found away from work.
    pub(super) gathered: u32,
    members: Vec<Member>,
}

impl Crew {
    /// A run whose workers have just been started.
    pub(crate) fn new(workers: impl IntoIterator<Item = WorkerId>, rules: Rules) -> Crew {
        let running = |id| Member { id, state: State::Running, record: Record::default(), lives: 1 };
        let members = workers.into_iter().map(running).collect();
        Crew { rules, phase: Phase::Training, drafters_rest: Duration::ZERO, gathered: 0, members }
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

    pub(super) fn of(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |member| member.id.role == role)
    }

    pub(super) fn member(&mut self, id: WorkerId) -> &mut Member {
        self.members.iter_mut().find(|member| member.id == id).expect("only workers of this crew are reported")
    }

    /// Every worker of `role` in state `from` goes to state `to`; who they were.
    pub(super) fn change(&mut self, role: Role, from: State, to: State) -> Vec<WorkerId> {
        let concerned = self.members.iter_mut().filter(|member| member.id.role == role && member.state == from);
        let changed = concerned.map(|member| {
            member.state = to;
            member.id
        });
        changed.collect()
    }

    /// Whoever is there and can be asked to end.
    pub(super) fn running(&self) -> impl Iterator<Item = &Member> {
        let askable = |state| matches!(state, State::Running | State::Leaving | State::Apart);
        self.members.iter().filter(move |member| askable(member.state))
    }

    pub(super) fn start(&mut self, id: WorkerId) -> Action {
        let member = self.member(id);
        member.state = State::Running;
        member.lives += 1;
        Action::Spawn(id)
    }

    pub(super) fn set_grace(&self, role: Role) -> Action {
        let grace = match role {
            Role::Target => self.rules.grace_target,
            Role::Drafter => self.rules.grace_drafter,
        };
        Action::Set(Alarm::Grace(role), grace)
    }

    /// Nobody comes back from here on; who runs is asked to end.
    pub(super) fn end(&mut self, phase: Phase) -> Vec<Action> {
        self.phase = phase;
        for member in self.members.iter_mut().filter(|member| member.state == State::Resting) {
            member.state = State::Done;
        }
        let graces = [Role::Target, Role::Drafter].map(|role| self.set_grace(role));
        self.running().map(|member| Action::Terminate(member.id)).chain(graces).collect()
    }
}

impl Member {
    pub(super) fn kill(&self) -> [Action; 2] {
        [Action::Kill(self.id), Action::Set(Alarm::Killed(self.id, self.lives), KILL_PATIENCE)]
    }
}
