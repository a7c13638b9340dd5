use super::super::rules::Rules;
use super::*;
use crate::child::Ending;

const KILLED: Ending = Ending::Signal(9);
const TERM: i32 = 15;

fn target(rank: u32) -> WorkerId {
    WorkerId { role: Role::Target, rank: Rank(rank) }
}

fn drafter(rank: u32) -> WorkerId {
    WorkerId { role: Role::Drafter, rank: Rank(rank) }
}

fn crew(pairs: u32, max_restarts: u32) -> Crew {
    let rules = Rules {
        max_restarts,
        window: Duration::from_secs(600),
        startup_retries: 0,
        grace_target: Duration::from_secs(30),
        grace_drafter: Duration::from_secs(60),
    };
    Crew::new((0..pairs).flat_map(|rank| [target(rank), drafter(rank)]), rules)
}

/// The end of a worker that had done something.
fn exited(id: WorkerId, ending: Ending) -> Event {
    Event::Exited(id, Exit { ending, ready: true, batches: 1 })
}

/// The end of one that had done nothing.
fn fruitless(id: WorkerId, ending: Ending) -> Event {
    Event::Exited(id, Exit { ending, ready: true, batches: 0 })
}

/// As the table is asked, at no time in particular.
fn decide(crew: &mut Crew, event: Event) -> Vec<Action> {
    super::decide(crew, event, Duration::ZERO)
}

const GRACES: [Action; 2] = [
    Action::Set(Alarm::Grace(Role::Target), Duration::from_secs(30)),
    Action::Set(Alarm::Grace(Role::Drafter), Duration::from_secs(60)),
];

/// Of a worker's first life.
fn kill(id: WorkerId) -> [Action; 2] {
    [Action::Kill(id), Action::Set(Alarm::Killed(id, 1), KILL_PATIENCE)]
}

#[test]
fn a_run_that_goes_well_ends_with_its_drafters_then_its_targets() {
    let mut crew = crew(2, 3);
    assert_eq!(decide(&mut crew, exited(drafter(0), Ending::Exit(0))), []);
    assert_eq!(decide(&mut crew, exited(drafter(1), Ending::Exit(0))), GRACES[..1]);
    assert_eq!(decide(&mut crew, exited(target(1), Ending::Exit(0))), []);
    assert_eq!(crew.outcome(), None);
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Grace(Role::Target))), kill(target(0)));
    decide(&mut crew, exited(target(0), KILLED));
    assert_eq!(crew.outcome(), Some(Outcome::Trained));
}

#[test]
fn a_failed_target_comes_back_alone_and_at_once_if_it_had_done_something() {
    let mut crew = crew(2, 9);
    for _ in 0..8 {
        let rest = Action::Set(Alarm::Respawn(target(1)), Duration::ZERO);
        let actions = decide(&mut crew, exited(target(1), Ending::Exit(101)));
        assert_eq!(actions, [Action::Reclaim(target(1)), rest]);
        assert_eq!(decide(&mut crew, Event::Rang(Alarm::Respawn(target(1)))), [Action::Spawn(target(1))]);
    }
    assert_eq!((crew.restarts_of(Role::Target), crew.restarts_of(Role::Drafter)), (8, 0));
    assert_eq!((crew.restarts(target(1)), crew.restarts(target(0))), (8, 0));
}

/// As drafters are asked when the others go on for the `time`th time.
fn leave(id: WorkerId, round: u32) -> [Action; 2] {
    [Action::Leave(id), Action::Set(Alarm::Leave(id, round), Duration::from_secs(60))]
}

fn respawn(time: u32) -> Action {
    Action::Set(Alarm::RespawnDrafters(time), Duration::ZERO)
}

#[test]
fn a_failed_drafter_sends_the_others_back_to_the_checkpoint_and_they_stay_alive() {
    let mut crew = crew(3, 3);
    decide(&mut crew, exited(target(2), Ending::Exit(0)));
    decide(&mut crew, exited(drafter(2), Ending::Exit(0)));
    let actions = decide(&mut crew, exited(drafter(0), KILLED));
    assert_eq!((actions[0], &actions[1..]), (Action::AbortSum, &leave(drafter(1), 0)[..]));
    assert_eq!(decide(&mut crew, Event::Left(drafter(1))), [respawn(1)]);
    assert_eq!(decide(&mut crew, Event::Left(drafter(1))), [], "saying it twice changes nothing");
    let again = [target(2), drafter(0), drafter(2)].map(Action::Spawn);
    let actions = decide(&mut crew, Event::Rang(Alarm::RespawnDrafters(1)));
    assert_eq!((actions[0], &actions[1..4]), (Action::Rewind, &again[..]));
    assert_eq!(actions[4..], [Action::Rejoin(drafter(1))]);
    assert_eq!((crew.restarts(drafter(0)), crew.restarts(drafter(1)), crew.restarts_of(Role::Target)), (1, 0, 0));
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Leave(drafter(1), 0))), [], "it left in time");
    decide(&mut crew, exited(drafter(0), KILLED));
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Leave(drafter(1), 0))), [], "an alarm of the time before");
}

#[test]
fn a_drafter_that_does_not_leave_is_killed_and_that_is_no_failure_of_its_own() {
    let mut crew = crew(2, 0);
    crew.rules.max_restarts = 1;
    decide(&mut crew, exited(drafter(0), KILLED));
    assert!(!crew.expected(drafter(1), KILLED));
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Leave(drafter(1), 0))), kill(drafter(1)));
    assert!(crew.expected(drafter(1), KILLED), "its death was our doing");
    assert_eq!(decide(&mut crew, exited(drafter(1), KILLED)), [respawn(1)]);
    let actions = decide(&mut crew, Event::Rang(Alarm::RespawnDrafters(1)));
    assert_eq!(actions, [Action::Rewind, Action::Spawn(drafter(0)), Action::Spawn(drafter(1))]);
    assert_eq!((crew.restarts(drafter(0)), crew.restarts(drafter(1))), (1, 0));
}

#[test]
fn drafters_that_fail_or_end_while_they_are_to_leave_come_back_too() {
    let mut crew = crew(3, 3);
    decide(&mut crew, exited(drafter(0), KILLED));
    assert_eq!(decide(&mut crew, exited(drafter(2), Ending::Exit(0))), [], "drafter 1 is still at work");
    assert_eq!(decide(&mut crew, Event::Left(drafter(1))), [respawn(1)]);
    assert_eq!(decide(&mut crew, exited(drafter(1), KILLED)), [respawn(2)]);
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::RespawnDrafters(1))), [], "not the last word any more");
    let actions = decide(&mut crew, Event::Rang(Alarm::RespawnDrafters(2)));
    assert_eq!((actions[0], &actions[1..]), (Action::Rewind, &[0, 1, 2].map(|rank| Action::Spawn(drafter(rank)))[..]));
    assert_eq!([0, 1, 2].map(|rank| crew.restarts(drafter(rank))), [1, 1, 0]);
}

#[test]
fn nobody_waits_in_a_sum_for_a_drafter_that_is_gone_also_as_the_run_ends() {
    let mut crew = crew(2, 3);
    decide(&mut crew, Event::Signal(TERM));
    assert_eq!(decide(&mut crew, exited(drafter(1), KILLED)), [Action::AbortSum]);
    assert_eq!(decide(&mut crew, Event::Left(drafter(0))), [], "it is told to end, not to go on");
    decide(&mut crew, exited(drafter(0), Ending::Exit(0)));
    decide(&mut crew, exited(target(0), Ending::Exit(0)));
    decide(&mut crew, exited(target(1), Ending::Exit(0)));
    assert_eq!(crew.outcome(), Some(Outcome::Failed(drafter(1), Reason::Ending)));
}

#[test]
fn drafters_that_left_are_asked_to_end_like_all() {
    let mut crew = crew(2, 3);
    decide(&mut crew, exited(drafter(0), KILLED));
    decide(&mut crew, Event::Left(drafter(1)));
    let asked = [target(0), target(1), drafter(1)].map(Action::Terminate);
    let actions = decide(&mut crew, Event::Signal(TERM));
    assert!(asked.iter().all(|action| actions.contains(action)), "{actions:?}");
    decide(&mut crew, exited(drafter(1), Ending::Exit(0)));
    decide(&mut crew, exited(target(0), Ending::Exit(0)));
    decide(&mut crew, exited(target(1), Ending::Exit(0)));
    assert_eq!(crew.outcome(), Some(Outcome::Stopped(TERM)));
}

#[test]
fn a_lone_drafter_rests_at_once_and_longer_if_it_did_nothing() {
    let mut crew = crew(1, 3);
    assert_eq!(decide(&mut crew, exited(drafter(0), KILLED)), [respawn(1)]);
    decide(&mut crew, Event::Rang(Alarm::RespawnDrafters(1)));
    decide(&mut crew, fruitless(drafter(0), KILLED));
    decide(&mut crew, Event::Rang(Alarm::RespawnDrafters(2)));
    let actions = decide(&mut crew, fruitless(drafter(0), KILLED));
    let [Action::Set(Alarm::RespawnDrafters(3), rest)] = actions[..] else { panic!("{actions:?}") };
    assert!((0.8..=1.2).contains(&rest.as_secs_f64()), "{rest:?}");
}

#[test]
fn what_hangs_in_the_kernel_is_left_behind_and_is_the_cause() {
    let mut crew = crew(2, 3);
    decide(&mut crew, exited(drafter(0), KILLED));
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Leave(drafter(1), 0))), kill(drafter(1)));
    let actions = decide(&mut crew, Event::Rang(Alarm::Killed(drafter(1), 1)));
    let rest = [Action::Terminate(target(0)), Action::Terminate(target(1)), GRACES[0], GRACES[1]];
    assert_eq!((actions[0], &actions[1..]), (Action::Abandon(drafter(1)), &rest[..]));
    decide(&mut crew, exited(target(0), Ending::Exit(0)));
    decide(&mut crew, exited(target(1), Ending::Exit(0)));
    assert_eq!(crew.outcome(), Some(Outcome::Failed(drafter(1), Reason::Unkillable)));
}

#[test]
fn an_alarm_of_an_earlier_life_harms_nobody() {
    let mut crew = crew(2, 3);
    decide(&mut crew, exited(drafter(0), KILLED));
    decide(&mut crew, Event::Rang(Alarm::Leave(drafter(1), 0)));
    decide(&mut crew, exited(drafter(1), KILLED));
    decide(&mut crew, Event::Rang(Alarm::RespawnDrafters(1)));
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Killed(drafter(1), 1))), []);
}

#[test]
fn what_is_your_input_or_beyond_the_budget_ends_the_run_and_is_its_cause() {
    let budget = Reason::Budget(0, Duration::from_secs(600));
    for (max_restarts, ending, reason) in [(3, Ending::Exit(1), Reason::Refused), (0, KILLED, budget)] {
        let mut crew = crew(1, max_restarts);
        let asked = [Action::Terminate(drafter(0)), GRACES[0], GRACES[1]];
        assert_eq!(decide(&mut crew, exited(target(0), ending)), asked);
        decide(&mut crew, exited(drafter(0), Ending::Exit(3)));
        assert_eq!(crew.outcome(), Some(Outcome::Failed(target(0), reason)));
        assert_eq!(crew.restarts_of(Role::Target), 0);
    }
}

#[test]
fn giving_up_calls_off_whoever_was_to_come_back() {
    let mut crew = crew(2, 3);
    decide(&mut crew, exited(target(0), KILLED));
    decide(&mut crew, exited(drafter(0), KILLED));
    let actions = decide(&mut crew, exited(target(1), Ending::Exit(1)));
    assert_eq!((actions[0], &actions[1..]), (Action::Terminate(drafter(1)), &GRACES[..]), "it was to leave only");
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Respawn(target(0)))), []);
    assert_eq!(decide(&mut crew, Event::Left(drafter(1))), []);
    assert_eq!(decide(&mut crew, exited(drafter(1), Ending::Exit(0))), []);
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::RespawnDrafters(1))), []);
    assert_eq!(crew.outcome(), Some(Outcome::Failed(target(1), Reason::Refused)));
}

#[test]
fn the_first_signal_asks_and_the_second_kills() {
    let mut crew = crew(1, 3);
    let asked = [Action::Terminate(target(0)), Action::Terminate(drafter(0)), GRACES[0], GRACES[1]];
    assert_eq!(decide(&mut crew, Event::Signal(TERM)), asked);
    decide(&mut crew, exited(target(0), Ending::Exit(0)));
    assert_eq!(decide(&mut crew, Event::Signal(2)), kill(drafter(0)));
    decide(&mut crew, exited(drafter(0), KILLED));
    assert_eq!(crew.outcome(), Some(Outcome::Stopped(TERM)));
}

#[test]
fn a_stopped_run_does_not_wait_for_ever() {
    let mut crew = crew(1, 3);
    decide(&mut crew, Event::Signal(TERM));
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Grace(Role::Target))), kill(target(0)));
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Grace(Role::Drafter))), kill(drafter(0)));
    decide(&mut crew, exited(drafter(0), KILLED));
    decide(&mut crew, exited(target(0), KILLED));
    assert_eq!(crew.outcome(), Some(Outcome::Stopped(TERM)));
}

#[test]
fn a_drafter_that_cannot_save_when_stopped_is_the_cause_but_one_that_had_not_begun_is_not() {
    for (ending, outcome) in
        [(Ending::Exit(1), Outcome::Failed(drafter(0), Reason::Ending)), (Ending::Signal(TERM), Outcome::Stopped(TERM))]
    {
        let mut crew = crew(1, 3);
        decide(&mut crew, Event::Signal(TERM));
        assert_eq!(decide(&mut crew, exited(drafter(0), ending)), []);
        decide(&mut crew, exited(target(0), Ending::Exit(0)));
        assert_eq!(crew.outcome(), Some(outcome));
    }
}

#[test]
fn a_target_that_fails_after_all_is_trained_is_let_go() {
    let mut crew = crew(2, 3);
    decide(&mut crew, exited(target(0), KILLED));
    decide(&mut crew, exited(drafter(0), Ending::Exit(0)));
    decide(&mut crew, exited(drafter(1), Ending::Exit(0)));
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Respawn(target(0)))), []);
    assert_eq!(decide(&mut crew, exited(target(1), Ending::Exit(101))), []);
    assert_eq!(crew.outcome(), Some(Outcome::Trained));
}
