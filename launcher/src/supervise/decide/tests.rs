use super::*;

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

#[test]
fn a_failed_drafter_takes_the_others_along_and_all_go_on_from_the_checkpoint() {
    let mut crew = crew(3, 3);
    decide(&mut crew, exited(target(2), Ending::Exit(0)));
    decide(&mut crew, exited(drafter(2), Ending::Exit(0)));
    assert!(!crew.expected(drafter(0), KILLED));
    assert_eq!(decide(&mut crew, exited(drafter(0), KILLED)), kill(drafter(1)));
    assert!(crew.expected(drafter(1), KILLED), "its death was our doing");
    let rest = Action::Set(Alarm::RespawnDrafters, Duration::ZERO);
    assert_eq!(decide(&mut crew, exited(drafter(1), Ending::Exit(3))), [rest]);
    let again = [target(2), drafter(0), drafter(1), drafter(2)].map(Action::Spawn);
    let actions = decide(&mut crew, Event::Rang(Alarm::RespawnDrafters));
    assert_eq!((actions[0], &actions[1..]), (Action::Rewind, &again[..]));
    assert_eq!((crew.restarts(drafter(0)), crew.restarts(drafter(1)), crew.restarts_of(Role::Target)), (1, 0, 0));
}

#[test]
fn a_lone_drafter_rests_at_once_and_longer_if_it_did_nothing() {
    let mut crew = crew(1, 3);
    assert_eq!(decide(&mut crew, exited(drafter(0), KILLED)), [Action::Set(Alarm::RespawnDrafters, Duration::ZERO)]);
    decide(&mut crew, Event::Rang(Alarm::RespawnDrafters));
    decide(&mut crew, fruitless(drafter(0), KILLED));
    decide(&mut crew, Event::Rang(Alarm::RespawnDrafters));
    let actions = decide(&mut crew, fruitless(drafter(0), KILLED));
    let [Action::Set(Alarm::RespawnDrafters, rest)] = actions[..] else { panic!("{actions:?}") };
    assert!((0.8..=1.2).contains(&rest.as_secs_f64()), "{rest:?}");
}

#[test]
fn what_hangs_in_the_kernel_is_left_behind_and_is_the_cause() {
    let mut crew = crew(2, 3);
    let actions = decide(&mut crew, exited(drafter(0), KILLED));
    assert_eq!(actions, kill(drafter(1)));
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
    decide(&mut crew, exited(drafter(1), KILLED));
    decide(&mut crew, Event::Rang(Alarm::RespawnDrafters));
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
    assert_eq!(actions, GRACES, "drafter 1 is being killed already");
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Respawn(target(0)))), []);
    assert_eq!(decide(&mut crew, exited(drafter(1), KILLED)), []);
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::RespawnDrafters)), []);
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
