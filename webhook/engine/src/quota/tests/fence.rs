//! Who takes whom for outdated.

use super::super::memory::{Memory, Revision, Standing};
use super::super::{Fence, Known, Ledger, Moment, PodSight, RootSight, Round, Stray, View, Waiter, round};
use std::time::Duration;

fn revision(policies: &str, generation: i64) -> Revision {
    Revision { policies: policies.to_owned(), team: "team".to_owned(), generation }
}

fn fence(number: u64, policies: &str, generation: i64) -> Fence {
    let Revision { policies, team, generation } = revision(policies, generation);
    Fence { number, policies, team, generation }
}

/// What was seen last (fence and own revision), what is seen now, and what follows.
type Row = (Option<(Fence, Revision)>, Option<Fence>, Revision, Standing);

#[test]
fn the_table_of_standings() {
    use Standing::{Current, Newer, Older};
    let of_another_team = Fence { team: "another".to_owned(), ..fence(3, "p1", 9) };
    let table: Vec<Row> = vec![
        // Nobody has decided yet.
        (None, None, revision("p1", 1), Newer(fence(1, "p1", 1))),
        // Alike.
        (None, Some(fence(3, "p1", 1)), revision("p1", 1), Current),
        // Generations have an order.
        (None, Some(fence(3, "p1", 2)), revision("p1", 1), Older),
        (None, Some(fence(3, "p0", 2)), revision("p1", 1), Older),
        (None, Some(fence(3, "p1", 1)), revision("p1", 2), Newer(fence(4, "p1", 2))),
        (
            Some((fence(3, "p1", 1), revision("p1", 1))),
            Some(fence(3, "p1", 1)),
            revision("p1", 2),
            Newer(fence(4, "p1", 2)),
        ),
        // Whoever has just begun has just read.
        (None, Some(fence(3, "p0", 1)), revision("p1", 1), Newer(fence(4, "p1", 1))),
        // Its policies have changed since it looked.
        (
            Some((fence(3, "p0", 1), revision("p0", 1))),
            Some(fence(3, "p0", 1)),
            revision("p1", 1),
            Newer(fence(4, "p1", 1)),
        ),
        // They have not, and the fence has moved.
        (Some((fence(3, "p0", 1), revision("p0", 1))), Some(fence(4, "p1", 1)), revision("p0", 1), Older),
        // A Team that was made anew begins to count from one.
        (None, Some(of_another_team.clone()), revision("p1", 1), Newer(fence(4, "p1", 1))),
        (
            Some((of_another_team.clone(), revision("p1", 1))),
            Some(of_another_team),
            revision("p1", 1),
            Newer(fence(4, "p1", 1)),
        ),
    ];
    for (before, now, mine, expected) in table {
        let mut memory = Memory::default();
        if let Some((fence, mine)) = &before {
            memory.standing(Some(fence), mine);
        }
        assert_eq!(memory.standing(now.as_ref(), &mine), expected, "{before:?}, then {now:?} with {mine:?}");
    }
}

#[test]
fn a_move_that_lost_a_race_is_made_again() {
    let (before, mine) = (fence(3, "p0", 1), revision("p1", 1));
    let mut memory = Memory::default();
    memory.standing(Some(&before), &revision("p0", 1));
    for _ in 0..3 {
        assert_eq!(memory.standing(Some(&before), &mine), Standing::Newer(fence(4, "p1", 1)));
    }
    assert_eq!(memory.standing(Some(&fence(4, "p1", 1)), &mine), Standing::Current);
    // Others move on; this replica will read what they have.
    assert_eq!(memory.standing(Some(&fence(5, "p2", 1)), &mine), Standing::Older);
    assert_eq!(memory.standing(Some(&fence(5, "p2", 1)), &revision("p2", 1)), Standing::Current);
}

/// It was written, and the answer was lost; meanwhile the policies have changed again.
#[test]
fn its_own_word_is_no_news() {
    let mut memory = Memory::default();
    assert_eq!(memory.standing(None, &revision("p0", 1)), Standing::Newer(fence(1, "p0", 1)));
    assert_eq!(memory.standing(None, &revision("p1", 1)), Standing::Newer(fence(1, "p1", 1)));
    assert_eq!(memory.standing(Some(&fence(1, "p0", 1)), &revision("p1", 1)), Standing::Newer(fence(2, "p1", 1)));
    let mut memory = Memory::default();
    memory.standing(Some(&fence(5, "p0", 1)), &revision("p0", 1));
    assert_eq!(memory.standing(Some(&fence(5, "p0", 1)), &revision("p0", 2)), Standing::Newer(fence(6, "p0", 2)));
    assert_eq!(memory.standing(Some(&fence(5, "p0", 1)), &revision("p1", 2)), Standing::Newer(fence(6, "p1", 2)));
    assert_eq!(memory.standing(Some(&fence(6, "p0", 2)), &revision("p1", 2)), Standing::Newer(fence(7, "p1", 2)));
}

#[test]
fn who_lost_to_other_policies_waits() {
    let mut memory = Memory::default();
    memory.standing(Some(&fence(3, "p0", 1)), &revision("p0", 1));
    assert_eq!(memory.standing(Some(&fence(3, "p0", 1)), &revision("p1", 1)), Standing::Newer(fence(4, "p1", 1)));
    assert_eq!(memory.standing(Some(&fence(4, "p2", 1)), &revision("p1", 1)), Standing::Older);
    assert_eq!(memory.standing(Some(&fence(4, "p2", 1)), &revision("p3", 1)), Standing::Newer(fence(5, "p3", 1)));
}

struct Nothing;

impl View for Nothing {
    fn pod(&self, _: &str) -> PodSight {
        PodSight::Unknown
    }

    fn root(&self, _: &str) -> RootSight {
        RootSight::Unknown
    }

    fn strays(&self, _: &Ledger) -> Vec<Stray> {
        Vec::new()
    }
}

/// Nobody waits: a look in the background.
fn look(ledger: &Ledger, memory: &mut Memory, now: u64) -> Round {
    let moment = Moment { now: Duration::from_secs(now), patience: Duration::from_secs(120), mine: None };
    let known = Known { ledger: ledger.clone(), fresh: false };
    round(&known, &Nothing, memory, &moment, &mut [] as &mut [Nobody])
}

struct Nobody;

impl Waiter for Nobody {
    fn reservation(&self) -> &super::super::Reservation {
        unreachable!("nobody waits")
    }

    fn revision(&self) -> Option<&Revision> {
        None
    }

    fn is_dry_run(&self) -> bool {
        false
    }

    fn may(&mut self, _: &super::super::Balance) -> bool {
        false
    }
}

/// A release that lost a race is tried again at once, instead of being waited for anew.
#[test]
fn a_proof_outlives_a_lost_race() {
    let mut ledger = Ledger::default();
    ledger.add(&super::sums::pod("u", "pod", 1));
    let mut memory = Memory::default();
    assert!(look(&ledger, &mut memory, 0).doubts.is_empty());
    assert!(look(&ledger, &mut memory, 119).doubts.is_empty());
    let doubts = look(&ledger, &mut memory, 120).doubts;
    assert_eq!(doubts.iter().map(|doubt| doubt.uid.as_str()).collect::<Vec<_>>(), ["u"]);
    memory.learn("u", false, false);
    for now in [121, 122] {
        let round = look(&ledger, &mut memory, now);
        assert_eq!(round.write, Some(Ledger::default()), "at {now}");
        assert_eq!((round.released, round.leaked), (1, 1), "at {now}");
    }
}
