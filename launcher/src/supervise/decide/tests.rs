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
    let rules = Rules { max_restarts, grace: Duration::from_secs(60) };
    Crew::new((0..pairs).flat_map(|rank| [target(rank), drafter(rank)]), rules)
}

fn exited(id: WorkerId, ending: Ending) -> Event {
    Event::Exited(id, ending)
}

#[test]
fn a_run_that_goes_well_ends_with_its_drafters_then_its_targets() {
    let mut crew = crew(2, 3);
    assert_eq!(decide(&mut crew, exited(drafter(0), Ending::Exit(0))), []);
    assert_eq!(
        decide(&mut crew, exited(drafter(1), Ending::Exit(0))),
        [Action::Set(Alarm::Grace, Duration::from_secs(60))]
    );
    assert_eq!(decide(&mut crew, exited(target(1), Ending::Exit(0))), []);
    assert_eq!(crew.outcome(), None);
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Grace)), [Action::Kill(target(0))]);
    decide(&mut crew, exited(target(0), KILLED));
    assert_eq!(crew.outcome(), Some(Outcome::Trained));
}

#[test]
fn a_failed_target_comes_back_alone_and_rests_longer_each_time() {
    let mut crew = crew(2, 9);
    for seconds in [0, 1, 2, 4, 8, 16, 30, 30] {
        let rest = Action::Set(Alarm::Respawn(target(1)), Duration::from_secs(seconds));
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
    assert_eq!(decide(&mut crew, exited(drafter(0), KILLED)), [Action::Kill(drafter(1))]);
    assert!(crew.expected(drafter(1), KILLED), "its death was our doing");
    let rest = Action::Set(Alarm::RespawnDrafters, Duration::ZERO);
    assert_eq!(decide(&mut crew, exited(drafter(1), Ending::Exit(3))), [rest]);
    let again = [target(2), drafter(0), drafter(1), drafter(2)].map(Action::Spawn);
    let actions = decide(&mut crew, Event::Rang(Alarm::RespawnDrafters));
    assert_eq!((actions[0], &actions[1..]), (Action::Rewind, &again[..]));
    assert_eq!((crew.restarts(drafter(0)), crew.restarts(drafter(1)), crew.restarts_of(Role::Target)), (1, 0, 0));
}

#[test]
fn a_lone_drafter_rests_at_once() {
    let mut crew = crew(1, 3);
    let rest = |seconds| [Action::Set(Alarm::RespawnDrafters, Duration::from_secs(seconds))];
    assert_eq!(decide(&mut crew, exited(drafter(0), KILLED)), rest(0));
    decide(&mut crew, Event::Rang(Alarm::RespawnDrafters));
    assert_eq!(decide(&mut crew, exited(drafter(0), KILLED)), rest(1));
}

#[test]
fn what_is_your_input_or_beyond_the_budget_ends_the_run_and_is_its_cause() {
    for (max_restarts, ending) in [(3, Ending::Exit(1)), (0, KILLED)] {
        let mut crew = crew(1, max_restarts);
        let grace = Action::Set(Alarm::Grace, Duration::from_secs(60));
        assert_eq!(decide(&mut crew, exited(target(0), ending)), [Action::Terminate(drafter(0)), grace]);
        decide(&mut crew, exited(drafter(0), Ending::Exit(3)));
        assert_eq!(crew.outcome(), Some(Outcome::Failed(target(0), ending)));
        assert_eq!(crew.restarts_of(Role::Target), 0);
    }
}

#[test]
fn giving_up_calls_off_whoever_was_to_come_back() {
    let mut crew = crew(2, 3);
    decide(&mut crew, exited(target(0), KILLED));
    decide(&mut crew, exited(drafter(0), KILLED));
    let actions = decide(&mut crew, exited(target(1), Ending::Exit(1)));
    assert_eq!(actions, [Action::Set(Alarm::Grace, Duration::from_secs(60))], "drafter 1 is being killed already");
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Respawn(target(0)))), []);
    assert_eq!(decide(&mut crew, exited(drafter(1), KILLED)), []);
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::RespawnDrafters)), []);
    assert_eq!(crew.outcome(), Some(Outcome::Failed(target(1), Ending::Exit(1))));
}

#[test]
fn the_first_signal_asks_and_the_second_kills() {
    let mut crew = crew(1, 3);
    let grace = Action::Set(Alarm::Grace, Duration::from_secs(60));
    let asked = [Action::Terminate(target(0)), Action::Terminate(drafter(0)), grace];
    assert_eq!(decide(&mut crew, Event::Signal(TERM)), asked);
    decide(&mut crew, exited(target(0), Ending::Exit(0)));
    assert_eq!(decide(&mut crew, Event::Signal(2)), [Action::Kill(drafter(0))]);
    decide(&mut crew, exited(drafter(0), KILLED));
    assert_eq!(crew.outcome(), Some(Outcome::Stopped(TERM)));
}

#[test]
fn a_stopped_run_does_not_wait_for_ever() {
    let mut crew = crew(1, 3);
    decide(&mut crew, Event::Signal(TERM));
    assert_eq!(decide(&mut crew, Event::Rang(Alarm::Grace)), [Action::Kill(target(0)), Action::Kill(drafter(0))]);
    decide(&mut crew, exited(drafter(0), KILLED));
    decide(&mut crew, exited(target(0), KILLED));
    assert_eq!(crew.outcome(), Some(Outcome::Stopped(TERM)));
}

#[test]
fn a_drafter_that_cannot_save_when_stopped_is_the_cause_but_one_that_had_not_begun_is_not() {
    for (ending, outcome) in [
        (Ending::Exit(1), Outcome::Failed(drafter(0), Ending::Exit(1))),
        (Ending::Signal(TERM), Outcome::Stopped(TERM)),
    ] {
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
