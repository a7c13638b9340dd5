//! The event loop around [`decide`]: waits, tells the table what happened, does what it says.

mod crew;
mod decide;
mod events;
mod rules;

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use common::ids::Role;
use common::line::ToWorker;

use crate::child::{Child, Ended, Ending, Launch, signal_name};
use crate::fleet::{Death, Fleet, FleetError, Happening};
use crate::progress::Console;
use crate::report;
use crew::Crew;
use decide::{Action, Event};
use events::Alarms;

pub(crate) use decide::{Outcome, WorkerId};
pub(crate) use events::{Signals, wait};
pub(crate) use rules::{Exit, Reason, Rules};

/// The longest sleep: the progress bar moves this often.
const TICK: Duration = Duration::from_millis(200);

/// How a fleet's life went.
pub(crate) struct Story {
    /// The end of it.
    pub(crate) outcome: Outcome,
    /// The last that was heard of each worker.
    pub(crate) ended: HashMap<WorkerId, Death>,
    /// Restarts of each worker that failed.
    pub(crate) restarts: HashMap<WorkerId, u32>,
    /// Restarts of targets that failed.
    pub(crate) target_restarts: u32,
    /// Restarts of drafters that failed; each sends the others back with it.
    pub(crate) drafter_restarts: u32,
    /// From the start of the workers to the end of the last drafter.
    pub(crate) training: Duration,
}

/// Supervision itself failed; the workers go down with it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SuperviseError {
    /// The system refused to wait for processes.
    #[error("cannot wait for workers: {0}")]
    Wait(#[from] io::Error),
    /// A worker could not be started, or the queue not be put in order.
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

/// Starts the fleet's workers and sees them through to their end. `watch` is called a few times a second.
///
/// # Errors
/// A worker does not start, or the queue is beyond repair. Then the fleet's drop ends whoever still runs.
pub(crate) fn supervise(
    fleet: &mut Fleet,
    signals: &mut Signals,
    rules: Rules,
    console: &Console,
    watch: &mut dyn FnMut(),
) -> Result<Story, SuperviseError> {
    let workers = fleet.workers();
    for worker in &workers {
        fleet.spawn(*worker)?;
    }
    let crew = Crew::new(workers.iter().copied(), rules);
    let started = Instant::now();
    let state = Loop { fleet, console, crew, workers, alarms: Alarms::default(), ended: HashMap::new(), started };
    state.run(signals, watch)
}

struct Loop<'a> {
    fleet: &'a mut Fleet,
    console: &'a Console,
    crew: Crew,
    workers: Vec<WorkerId>,
    alarms: Alarms,
    ended: HashMap<WorkerId, Death>,
    started: Instant,
}

impl Loop<'_> {
    fn run(mut self, signals: &mut Signals, watch: &mut dyn FnMut()) -> Result<Story, SuperviseError> {
        let mut training = Duration::ZERO;
        loop {
            if let Some(outcome) = self.crew.outcome() {
                return Ok(self.story(outcome, training));
            }
            for event in self.events(signals)? {
                self.tell(event);
                if matches!(event, Event::Exited(worker, _) if worker.role == Role::Drafter) {
                    training = self.started.elapsed();
                }
                for action in decide::decide(&mut self.crew, event, self.started.elapsed()) {
                    self.perform(action)?;
                }
            }
            watch();
        }
    }

    fn story(self, outcome: Outcome, training: Duration) -> Story {
        Story {
            outcome,
            restarts: self.workers.iter().map(|worker| (*worker, self.crew.restarts(*worker))).collect(),
            target_restarts: self.crew.restarts_of(Role::Target),
            drafter_restarts: self.crew.restarts_of(Role::Drafter),
            ended: self.ended,
            training,
        }
    }

    /// What happened since the last call: alarms, signals, then workers, those first that are not another one's fault.
    fn events(&mut self, signals: &mut Signals) -> Result<Vec<Event>, SuperviseError> {
        let happenings = self.fleet.wait(signals, self.alarms.next(TICK))?;
        let mut workers = Vec::new();
        for happening in happenings {
            workers.push(match happening {
                Happening::Left(worker) => Event::Left(worker),
                Happening::Ended(worker) => {
                    let death = self.fleet.reap(worker)?;
                    let event = Event::Exited(worker, death.exit);
                    self.ended.insert(worker, death);
                    event
                }
            });
        }
        workers.sort_by_key(|event| matches!(event, Event::Exited(_, exit) if exit.ending.is_collateral()));
        let alarms = self.alarms.rung().into_iter().map(Event::Rang);
        let signals = signals.pending().into_iter().map(Event::Signal);
        Ok(alarms.chain(signals).chain(workers).collect())
    }

    fn tell(&self, event: Event) {
        match event {
            Event::Signal(signal) => {
                let what = match self.crew.is_ending() {
                    false => "drafters save and all workers end; a second signal kills them",
                    true => "all workers are killed",
                };
                self.console.say(format!("tandem: {}: {what}", signal_name(signal)));
            }
            // What will not be tried again is the last page's to tell.
            Event::Exited(_, exit) if exit.ending == Ending::YOUR_INPUT => {}
            Event::Exited(worker, exit) if !self.crew.expected(worker, exit.ending) => {
                self.console.say(format!("tandem: {}", report::death(worker, &self.ended[&worker])));
            }
            Event::Exited(..) | Event::Left(_) | Event::Rang(_) => {}
        }
    }

    fn perform(&mut self, action: Action) -> Result<(), SuperviseError> {
        match action {
            Action::Terminate(worker) => self.fleet.terminate(worker),
            Action::Kill(worker) => self.fleet.kill(worker),
            Action::Reclaim(worker) => self.fleet.reclaim(worker)?,
            Action::Rewind => {
                let from = self.fleet.rewind()?;
                self.console.say(format!("tandem: drafters go on from {from}"));
            }
            Action::AbortSum => self.fleet.abort_sum(),
            Action::Leave(worker) => self.fleet.tell(worker, &ToWorker::Leave),
            Action::Rejoin(worker) => {
                self.console.say(format!("tandem: {worker}, still alive, goes on with the others"));
                self.fleet.rejoin(worker);
            }
            Action::Abandon(worker) => self.fleet.abandon(worker),
            Action::Spawn(worker) => {
                let restarts = self.crew.restarts(worker);
                self.console.say(format!("tandem: starting {worker} again (failures so far: {restarts})"));
                self.fleet.spawn(worker)?;
            }
            Action::Set(alarm, after) => self.alarms.set(alarm, after),
        }
        Ok(())
    }
}

/// Runs one process to its end; the signal, if one asked it to end before.
///
/// # Errors
/// It does not start.
pub(crate) fn run_alone(
    launch: &Launch,
    signals: &mut Signals,
    console: &Console,
) -> Result<(Ended, Option<i32>), SuperviseError> {
    let child = Child::spawn(launch, console).map_err(FleetError::from)?;
    let mut asked = None;
    while events::wait(signals, &[child.pidfd()], TICK)?.is_empty() {
        for signal in signals.pending() {
            if asked.replace(signal).is_none() { child.terminate() } else { child.kill() }
        }
    }
    Ok((child.reap()?, asked))
}

#[cfg(test)]
mod tests;
