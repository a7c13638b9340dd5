//! The event loop around [`decide`]: waits, tells the table what happened, does what it says.

mod decide;
mod events;

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use common::ids::Role;

use crate::child::{Child, Ended, Launch, signal_name};
use crate::fleet::{Fleet, FleetError};
use crate::progress::Console;
use decide::{Action, Crew, Event};
use events::Alarms;

pub(crate) use decide::{Outcome, Rules, WorkerId};
pub(crate) use events::{Signals, wait};

/// The longest sleep: the progress bar moves this often.
const TICK: Duration = Duration::from_millis(200);

/// How a fleet's life went.
pub(crate) struct Story {
    /// The end of it.
    pub(crate) outcome: Outcome,
    /// The last that was heard of each worker.
    pub(crate) ended: HashMap<WorkerId, Ended>,
    /// Restarts of the worker that the run failed with; 0 if it did not.
    pub(crate) restarts: u32,
    /// Restarts of targets that failed.
    pub(crate) target_restarts: u32,
    /// Restarts of drafters that failed; one takes all drafters along.
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
    let crew = Crew::new(workers, rules);
    let started = Instant::now();
    let state = Loop { fleet, console, crew, rules, alarms: Alarms::default(), ended: HashMap::new(), started };
    state.run(signals, watch)
}

struct Loop<'a> {
    fleet: &'a mut Fleet,
    console: &'a Console,
    crew: Crew,
    rules: Rules,
    alarms: Alarms,
    ended: HashMap<WorkerId, Ended>,
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
                for action in decide::decide(&mut self.crew, event) {
                    self.perform(action)?;
                }
            }
            watch();
        }
    }

    fn story(self, outcome: Outcome, training: Duration) -> Story {
        let restarts = match outcome {
            Outcome::Failed(worker, _) => self.crew.restarts(worker),
            Outcome::Trained | Outcome::Stopped(_) => 0,
        };
        Story {
            outcome,
            restarts,
            target_restarts: self.crew.restarts_of(Role::Target),
            drafter_restarts: self.crew.restarts_of(Role::Drafter),
            ended: self.ended,
            training,
        }
    }

    /// What happened since the last call: alarms, signals, then ends, those first that are not another one's fault.
    fn events(&mut self, signals: &mut Signals) -> Result<Vec<Event>, SuperviseError> {
        let ended = self.fleet.wait(signals, self.alarms.next(TICK))?;
        let mut exits = Vec::new();
        for worker in ended {
            let end = self.fleet.reap(worker)?;
            exits.push(Event::Exited(worker, end.ending));
            self.ended.insert(worker, end);
        }
        exits.sort_by_key(|event| matches!(event, Event::Exited(_, ending) if ending.is_collateral()));
        let alarms = self.alarms.rung().into_iter().map(Event::Rang);
        let signals = signals.pending().into_iter().map(Event::Signal);
        Ok(alarms.chain(signals).chain(exits).collect())
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
            Event::Exited(worker, ending) if !self.crew.expected(worker, ending) => {
                let uptime = self.ended[&worker].uptime.as_secs_f64();
                self.console.say(format!("tandem: {worker} {ending} after {uptime:.1} s"));
            }
            Event::Exited(..) | Event::Rang(_) => {}
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
            Action::Spawn(worker) => {
                let (restarts, most) = (self.crew.restarts(worker), self.rules.max_restarts);
                self.console.say(format!("tandem: starting {worker} again (restarts used: {restarts} of {most})"));
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
