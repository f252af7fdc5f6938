//! Tells each Team when the policies that somebody wrote do not load: a condition in its status, and an Event.
//!
//! ```text
//!  policy directory --Standing--> governor --status, by compare-and-swap--> Team: PoliciesCurrent False
//!                                    +--Event--> whoever of the replicas wrote that
//! ```
//!
//! Each replica sees the directory for itself, and not at the same time as the others: kubelet brings a change to each node
//! when it comes by. What one says must therefore not be taken back by another that has seen less, and one whose mount alone
//! is broken must not argue with the rest for ever.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use kube::api::DynamicObject;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Client, Resource};

use super::governor::FIELD_MANAGER;
use super::team_object::{self, Condition};
use crate::policy_directory::{Problem, Standing};

pub const CONDITION: &str = "PoliciesCurrent";

/// How long a replica that has no problem lets another's stand which it knows nothing of: long after kubelet has been
/// everywhere. Whoever still has the problem says it again, and that is how often two can disagree.
const STANDS_FOR: SignedDuration = SignedDuration::from_mins(10);

/// Absent while there is nothing to say: most policies load.
pub fn condition(before: &[Condition], standing: &Standing, now: Timestamp) -> Option<Condition> {
    let found = before.iter().find(|condition| condition.kind == CONDITION);
    let said =
        |holds, reason: &str, message| Some(team_object::condition(CONDITION, holds, reason, message, before, now));
    match (standing, found) {
        (Standing::Stale(problem), _) => said(false, problem.reason, note(problem)),
        (Standing::Current { .. }, None) => None,
        (Standing::Current { since }, Some(found)) if found.status == "False" && !is_over(found, *since, now) => {
            Some(found.clone())
        }
        (Standing::Current { .. }, Some(_)) => said(true, "Loaded", String::new()),
    }
}

/// It was said before this replica found all well; or so long ago that whoever said it is gone.
fn is_over(found: &Condition, well_since: Timestamp, now: Timestamp) -> bool {
    let said = found.last_transition_time;
    said <= well_since || now.duration_since(said) >= STANDS_FOR
}

fn note(Problem { reason: _, message }: &Problem) -> String {
    format!("the policies that were loaded before go on deciding: {message}")
}

/// Which Teams have had their Event about the problem of now.
#[derive(Debug, Default)]
pub struct Announced {
    problem: Option<Problem>,
    teams: BTreeSet<String>,
}

impl Announced {
    /// Call it also when all is well: the same problem later is another one.
    pub fn look(&mut self, standing: &Standing) {
        let problem = match standing {
            Standing::Current { .. } => None,
            Standing::Stale(problem) => Some(problem),
        };
        if self.problem.as_ref() != problem {
            *self = Self { problem: problem.cloned(), teams: BTreeSet::new() };
        }
    }

    /// The problem that the Team has to be told of by whoever has just written `after` into its status.
    fn news(&mut self, team: &str, before: &[Condition], after: &[Condition]) -> Option<&Problem> {
        let text = |conditions: &[Condition]| {
            let found = conditions.iter().find(|condition| condition.kind == CONDITION && condition.status == "False");
            found.map(|condition| condition.message.clone())
        };
        let problem = self.problem.as_ref()?;
        let is_news = text(after).is_some() && text(after) != text(before);
        (is_news && self.teams.insert(team.to_owned())).then_some(problem)
    }

    /// A Team has no namespace, so its Events lie in `default`, where `kubectl describe team` finds them.
    pub async fn announce(
        &mut self,
        client: &Client,
        team: &DynamicObject,
        before: &[Condition],
        after: &[Condition],
    ) -> kube::Result<()> {
        let name = team.metadata.name.as_deref().unwrap_or_default();
        let Some(problem) = self.news(name, before, after) else { return Ok(()) };
        let event = Event {
            type_: EventType::Warning,
            reason: problem.reason.to_owned(),
            note: Some(note(problem)),
            action: "LoadPolicies".to_owned(),
            secondary: None,
        };
        let recorder = Recorder::new(client.clone(), FIELD_MANAGER.into());
        recorder.publish(&event, &team.object_ref(&team_object::resource())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("in range")
    }

    fn stale(message: &str) -> Standing {
        Standing::Stale(Problem { reason: "PoliciesInvalid", message: message.to_owned() })
    }

    fn well(seconds: i64) -> Standing {
        Standing::Current { since: at(seconds) }
    }

    /// What stands after each of these looked, in turn.
    fn after(looks: &[(Standing, i64)]) -> Vec<Condition> {
        looks
            .iter()
            .fold(Vec::new(), |before, (standing, now)| condition(&before, standing, at(*now)).into_iter().collect())
    }

    fn stands(looks: &[(Standing, i64)]) -> Option<String> {
        after(looks).into_iter().next().map(|condition| condition.status)
    }

    #[test]
    fn a_problem_is_said_and_taken_back_by_who_found_all_well_since() {
        assert_eq!(stands(&[(well(0), 10)]), None, "nothing to say");
        let said = after(&[(well(0), 10), (stale("x"), 20)]);
        let expected = Condition {
            kind: "PoliciesCurrent".to_owned(),
            status: "False".to_owned(),
            reason: "PoliciesInvalid".to_owned(),
            message: "the policies that were loaded before go on deciding: x".to_owned(),
            last_transition_time: at(20),
        };
        assert_eq!(said, [expected]);
        assert_eq!(stands(&[(stale("x"), 20), (well(30), 31)]).as_deref(), Some("True"));
    }

    #[test]
    fn who_has_seen_less_takes_nothing_back() {
        let said = [(stale("x"), 20), (well(0), 30)];
        assert_eq!(after(&said), after(&said[..1]));
        assert_eq!(stands(&[(stale("x"), 20), (well(0), 619)]).as_deref(), Some("False"));
        assert_eq!(stands(&[(stale("x"), 20), (well(0), 620)]).as_deref(), Some("True"), "whoever said it is gone");
        assert_eq!(stands(&[(stale("x"), 20), (well(0), 620), (stale("x"), 650)]).as_deref(), Some("False"));
    }

    #[test]
    fn one_event_for_each_team_and_problem_by_whoever_wrote_it() {
        let (none, x, y) = (after(&[]), after(&[(stale("x"), 0)]), after(&[(stale("y"), 0)]));
        let mut announced = Announced::default();
        announced.look(&stale("x"));
        assert!(announced.news("a", &none, &x).is_some());
        assert!(announced.news("a", &none, &x).is_none(), "once");
        assert!(announced.news("b", &x, &x).is_none(), "another replica wrote it");
        assert!(announced.news("c", &none, &x).is_some());
        announced.look(&stale("x"));
        assert!(announced.news("c", &none, &x).is_none(), "still the same");
        announced.look(&stale("y"));
        assert!(announced.news("a", &x, &y).is_some(), "another problem");
        announced.look(&well(0));
        assert!(announced.news("a", &x, &none).is_none());
        announced.look(&stale("y"));
        assert!(announced.news("a", &none, &y).is_some(), "it came back");
    }
}
