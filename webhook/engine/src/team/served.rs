//! Teams as a cluster serves them: objects that others write, one after the other and sometimes at once.
//!
//! Offline, an overlap is refused and somebody puts it right. In a cluster two overlapping Teams may exist all the same
//! (written at the same instant, or before the gate was there), and every replica must come to the same end without
//! asking another: the older Team keeps what both declare, the younger loses just that, and is told.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    API_VERSION, Claimed, ObjectRevision, Person, Team, TeamError, TeamFile, TeamMetadata, TeamSpec, Teams, check,
    digest,
};
use crate::cluster::Meta;
use crate::json;
use crate::vocabulary::Level;

/// One Team object, read for itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServedTeam {
    pub name: String,
    pub created: Option<Timestamp>,
    /// Tells an older reading of the Team from a newer one.
    #[serde(default)]
    pub revision: ObjectRevision,
    /// From `status`: when the gate began to see what is created in each namespace.
    pub governed: BTreeMap<String, Timestamp>,
    /// As written; where that is `unusable`, the namespaces alone.
    pub spec: TeamSpec,
    /// Why nothing but the namespaces counts. They stay governed: a Team that cannot be read must not open them.
    pub unusable: Option<String>,
    /// The object is gone, and pods of it are left.
    pub vanished: bool,
}

/// Teams free of overlap, and what each of them lost.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    pub teams: Teams,
    /// By team, sentences.
    pub conflicts: BTreeMap<String, Vec<String>>,
}

/// Namespaces that no team may declare, with the reason: the cluster's own, and those of trusted controllers.
pub trait Reserved {
    fn reason(&self, namespace: &str) -> Option<String>;
}

impl<F: Fn(&str) -> Option<String>> Reserved for F {
    fn reason(&self, namespace: &str) -> Option<String> {
        self(namespace)
    }
}

/// When the gate has not begun to see a namespace, everything in it is older than the gate.
const NOT_YET: Timestamp = Timestamp::MAX;

impl ServedTeam {
    pub fn read(object: &Value) -> Self {
        let Meta { name, created, uid, generation, .. } = Meta::read(object, None);
        let revision = ObjectRevision { uid, generation: generation.unwrap_or_default() };
        let (spec, unusable) = match file(object) {
            Ok(file) => match check("", &file).as_slice() {
                [] => (file.spec, None),
                problems => (namespaces_alone(object), Some(sentence(problems))),
            },
            Err(problem) => (namespaces_alone(object), Some(problem)),
        };
        Self { name, created, revision, governed: governed(object), spec, unusable, vanished: false }
    }

    /// What stays of a Team whose object is gone while pods of it run in `namespaces`: controllers may replace them at the
    /// team's level, and since nobody is a member, nobody submits anything new.
    pub fn vanish(&self, namespaces: BTreeSet<String>) -> Self {
        let spec = TeamSpec {
            namespaces: namespaces.into_iter().collect(),
            members: Vec::new(),
            people: Vec::new(),
            groups: Vec::new(),
            leads: Vec::new(),
            ..self.spec.clone()
        };
        Self { spec, vanished: true, ..self.clone() }
    }

    /// As much of it as keeps its namespaces governed.
    pub fn bare(&self) -> Self {
        let spec = TeamSpec { namespaces: self.spec.namespaces.clone(), ..TeamSpec::default() };
        Self { spec, ..self.clone() }
    }

    fn into_file(self) -> (TeamFile, BTreeMap<String, Timestamp>, bool, ObjectRevision) {
        let Self { name, created: _, revision, mut governed, spec, unusable: _, vanished } = self;
        governed.retain(|namespace, _| spec.namespaces.contains(namespace));
        for namespace in &spec.namespaces {
            governed.entry(namespace.clone()).or_insert(NOT_YET);
        }
        (file_of(name, spec), governed, vanished, revision)
    }
}

impl Teams {
    /// Settles overlap: what the older Team (`creationTimestamp`, then name) declares, a younger one loses; a vanished Team
    /// loses to all others. Nothing is refused, and the order in which the objects were seen does not matter.
    pub fn resolve(served: impl IntoIterator<Item = ServedTeam>, reserved: &impl Reserved) -> Resolved {
        let mut served: Vec<ServedTeam> = served.into_iter().collect();
        served.sort_by(|a, b| rank(a).cmp(&rank(b)));
        let mut claimed = Claimed::default();
        let mut conflicts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut kept = Vec::new();
        for mut team in served {
            if team.vanished && claimed.holds("team", &team.name) {
                // A Team of the same name exists again: what is left of the old one must not be its members'.
                team.name = format!("{:.58}.gone", team.name);
            }
            let lost = settle(&mut team, &mut claimed, reserved);
            if team.vanished && team.spec.namespaces.is_empty() {
                continue;
            }
            if !lost.is_empty() && !team.vanished {
                conflicts.insert(team.name.clone(), lost);
            }
            kept.push(team.into_file());
        }
        let files: Vec<(String, TeamFile)> = kept.iter().map(|(file, ..)| (String::new(), file.clone())).collect();
        let mut teams = Teams { revision: digest(&files), ..Teams::default() };
        for (file, governed, vanished, revision) in kept {
            let TeamFile { api_version: _, kind: _, metadata: TeamMetadata { name }, spec } = file;
            let level = spec.level.unwrap_or(Level::Baseline);
            teams.insert_team(Team { level, name, spec, governed, vanished, revision });
        }
        Resolved { teams, conflicts }
    }
}

/// Whether a Team may be written or deleted, judged against all others. The sentence is for whoever writes it.
///
/// Only what the write adds is refused: an overlap that stands already must not keep anybody from mending the rest.
/// `pods` counts the unfinished pods of a namespace.
pub fn check_team_write(
    old: Option<&Value>,
    new: Option<&Value>,
    teams: &Teams,
    reserved: &impl Reserved,
    pods: impl Fn(&str) -> usize,
) -> Result<(), String> {
    let before = old.map(ServedTeam::read);
    let Some(object) = new else {
        return before.as_ref().map_or(Ok(()), |team| refuse_to_leave(team.spec.namespaces.iter(), "the Team", &pods));
    };
    if old.is_some_and(|old| json::at(old, &["spec"]) == json::at(object, &["spec"])) {
        return Ok(());
    }
    let file = file(object)?;
    if let problems @ [_, ..] = check("", &file).as_slice() {
        return Err(sentence(problems));
    }
    let after = ServedTeam::read(object);
    let stands: BTreeSet<String> = before.iter().flat_map(|team| overlaps(team, teams, reserved)).collect();
    let added: Vec<String> =
        overlaps(&after, teams, reserved).into_iter().filter(|sentence| !stands.contains(sentence)).collect();
    if !added.is_empty() {
        return Err(added.join("; "));
    }
    let kept: BTreeSet<&String> = after.spec.namespaces.iter().collect();
    let dropped = before.iter().flat_map(|team| &team.spec.namespaces).filter(|namespace| !kept.contains(namespace));
    refuse_to_leave(dropped, "the namespace", &pods)
}

fn refuse_to_leave<'a>(
    namespaces: impl Iterator<Item = &'a String>,
    what: &str,
    pods: impl Fn(&str) -> usize,
) -> Result<(), String> {
    let busy: Vec<String> = namespaces
        .filter_map(|namespace| match pods(namespace) {
            0 => None,
            1 => Some(format!("1 pod runs in `{namespace}`")),
            count => Some(format!("{count} pods run in `{namespace}`")),
        })
        .collect();
    if busy.is_empty() {
        return Ok(());
    }
    Err(format!("{what} cannot go while {}; delete the workloads first", busy.join(" and ")))
}

/// What others declare, or nobody may.
fn overlaps(team: &ServedTeam, teams: &Teams, reserved: &impl Reserved) -> Vec<String> {
    let mut claimed = Claimed::default();
    for other in teams.iter().filter(|other| other.name != team.name && !other.vanished) {
        claimed.claim(&format!("Team {}", other.name), &file_of(other.name.clone(), other.spec.clone()));
    }
    settle(&mut team.clone(), &mut claimed, reserved)
}

/// Takes away from a team what is claimed already, claims the rest, and says what was lost.
fn settle(team: &mut ServedTeam, claimed: &mut Claimed, reserved: &impl Reserved) -> Vec<String> {
    let at = format!("Team {}", team.name);
    let mut lost: Vec<String> = Vec::new();
    let TeamSpec { namespaces, members, people, groups, .. } = &mut team.spec;
    members.retain(|member| match claimed.take_member(&at, member) {
        Some(TeamError { at: _, problem }) => {
            lost.push(problem);
            false
        }
        None => true,
    });
    let mut keeps = |kind: &'static str, name: String| match claimed.take(&at, kind, name) {
        Some(TeamError { at: _, problem }) => {
            lost.push(problem);
            false
        }
        None => true,
    };
    keeps("team", team.name.clone());
    people.retain(|person| keeps("person", person.name.clone()));
    for Person { uid, home, .. } in people.iter_mut() {
        // Without its uid or home a person is given nothing that needs it.
        *uid = uid.filter(|uid| keeps("uid", uid.to_string()));
        *home = home.take().filter(|home| keeps("home", home.clone()));
    }
    groups.retain(|group| keeps("group", group.name.clone()));
    namespaces.retain(|namespace| keeps("namespace", namespace.clone()));
    namespaces.retain(|namespace| match reserved.reason(namespace) {
        Some(reason) => {
            lost.push(format!("namespace `{namespace}` {reason}"));
            false
        }
        None => true,
    });
    lost
}

/// The older first, and a vanished Team after all others.
fn rank(team: &ServedTeam) -> (bool, Timestamp, &str) {
    (team.vanished, team.created.unwrap_or(Timestamp::MAX), &team.name)
}

fn sentence(problems: &[TeamError]) -> String {
    problems.iter().map(|problem| problem.problem.clone()).collect::<Vec<_>>().join("; ")
}

/// What was typed, without what the API server adds.
fn file(object: &Value) -> Result<TeamFile, String> {
    let spec = json::at(object, &["spec"]).cloned().unwrap_or_else(|| Value::Object(Default::default()));
    let spec = serde_json::from_value(spec).map_err(|error| format!("spec: {error}"))?;
    let name = json::text(object, &["metadata", "name"]).unwrap_or_default();
    Ok(file_of(name.to_owned(), spec))
}

fn file_of(name: String, spec: TeamSpec) -> TeamFile {
    TeamFile { api_version: API_VERSION.to_owned(), kind: "Team".to_owned(), metadata: TeamMetadata { name }, spec }
}

fn namespaces_alone(object: &Value) -> TeamSpec {
    let namespaces = json::list(object, &["spec", "namespaces"]).iter().filter_map(Value::as_str).map(str::to_owned);
    TeamSpec { namespaces: namespaces.collect(), ..TeamSpec::default() }
}

fn governed(object: &Value) -> BTreeMap<String, Timestamp> {
    let entry = |entry: &Value| {
        let name = json::text(entry, &["name"])?.to_owned();
        Some((name, json::text(entry, &["governedSince"])?.parse().ok()?))
    };
    json::list(object, &["status", "namespaces"]).iter().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn team(name: &str, created: &str, spec: Value) -> Value {
        json!({
            "apiVersion": API_VERSION,
            "kind": "Team",
            "metadata": {"name": name, "creationTimestamp": created, "resourceVersion": "7", "labels": {"a": "b"}},
            "spec": spec,
        })
    }

    fn free(_: &str) -> Option<String> {
        None
    }

    fn resolve(objects: &[Value]) -> Resolved {
        Teams::resolve(objects.iter().map(ServedTeam::read), &free)
    }

    fn older() -> Value {
        team(
            "b",
            "2026-01-01T00:00:00Z",
            json!({
                "namespaces": ["shared", "ns-b"],
                "members": [{"permissionSet": "TeamB"}],
                "people": [{"name": "bob", "uid": 1001, "gid": 1, "home": "bob"}],
                "groups": [{"name": "g"}],
            }),
        )
    }

    fn younger() -> Value {
        team(
            "a",
            "2026-01-02T00:00:00Z",
            json!({
                "namespaces": ["ns-a", "shared"],
                "members": [{"permissionSet": "TeamB"}, {"permissionSet": "TeamA"}],
                "people": [{"name": "alice", "uid": 1001, "gid": 1, "home": "alice"}, {"name": "bob"}, {"name": "carol", "home": "bob"}],
                "groups": [{"name": "g"}],
            }),
        )
    }

    #[test]
    fn the_younger_loses_what_is_contested_and_nothing_else_whatever_the_order() {
        for objects in [[older(), younger()], [younger(), older()]] {
            let Resolved { teams, conflicts } = resolve(&objects);
            assert_eq!(teams.of_namespace("shared").map(|team| team.name.as_str()), Some("b"));
            let a = teams.named("a").expect("is there");
            assert_eq!(a.spec.namespaces, ["ns-a"]);
            assert_eq!(a.spec.members.len(), 1);
            let people: Vec<_> = a.spec.people.iter().map(|p| (p.name.as_str(), p.uid, p.home.as_deref())).collect();
            assert_eq!(people, [("alice", None, Some("alice")), ("carol", None, None)]);
            assert!(a.spec.groups.is_empty());
            assert_eq!(conflicts.keys().collect::<Vec<_>>(), ["a"]);
            assert_eq!(
                conflicts["a"],
                [
                    "member `TeamB` is declared in Team b already",
                    "person `bob` is declared in Team b already",
                    "uid `1001` is declared in Team b already",
                    "home `bob` is declared in Team b already",
                    "group `g` is declared in Team b already",
                    "namespace `shared` is declared in Team b already",
                ]
            );
        }
    }

    #[test]
    fn of_the_same_second_the_name_decides() {
        let at = "2026-01-01T00:00:00Z";
        let objects = ["y", "x"].map(|name| team(name, at, json!({"namespaces": ["shared"]})));
        assert_eq!(resolve(&objects).teams.of_namespace("shared").map(|team| team.name.as_str()), Some("x"));
    }

    #[test]
    fn an_unusable_team_keeps_its_namespaces_governed_and_has_no_members() {
        let object = team(
            "a",
            "2026-01-01T00:00:00Z",
            json!({"namespaces": ["ns-a"], "memebers": [], "members": [{"role": "R"}]}),
        );
        let served = ServedTeam::read(&object);
        let problem = served.unusable.clone().expect("is unusable");
        assert!(problem.starts_with("spec: unknown field `memebers`, expected one of"), "{problem}");
        let teams = resolve(&[object]).teams;
        let team = teams.of_namespace("ns-a").expect("is governed");
        assert!(team.spec.members.is_empty());
    }

    #[test]
    fn what_is_not_governed_yet_is_older_than_the_gate() {
        let mut object = team("a", "2026-01-01T00:00:00Z", json!({"namespaces": ["old", "new"]}));
        object["status"] = json!({"namespaces": [
            {"name": "old", "governedSince": "2026-02-01T00:00:00Z"},
            {"name": "left", "governedSince": "2026-02-01T00:00:00Z"},
        ]});
        let teams = resolve(&[object]).teams;
        let team = teams.named("a").expect("is there");
        assert_eq!(team.governed_since("old"), "2026-02-01T00:00:00Z".parse().ok());
        assert_eq!(team.governed_since("new"), Some(Timestamp::MAX));
        assert_eq!(team.governed_since("left"), None);
    }

    #[test]
    fn a_reserved_namespace_is_nobodys() {
        let reserved = |namespace: &str| (namespace == "kube-system").then(|| "belongs to the cluster".to_owned());
        let object = team("a", "2026-01-01T00:00:00Z", json!({"namespaces": ["kube-system", "ns-a"]}));
        let resolved = Teams::resolve([ServedTeam::read(&object)], &reserved);
        assert!(resolved.teams.of_namespace("kube-system").is_none());
        assert_eq!(resolved.conflicts["a"], ["namespace `kube-system` belongs to the cluster"]);
    }

    #[test]
    fn a_vanished_team_yields_to_whoever_declares_its_namespaces() {
        let gone = ServedTeam::read(&older()).vanish(["shared".to_owned(), "ns-b".to_owned()].into());
        let alone = Teams::resolve([gone.clone()], &free).teams;
        let team = alone.of_namespace("ns-b").expect("stays governed");
        assert!(team.vanished && team.spec.members.is_empty() && team.name == "b");

        let again = ServedTeam::read(&team_again());
        let Resolved { teams, conflicts } = Teams::resolve([gone, again], &free);
        assert!(conflicts.is_empty(), "{conflicts:?}");
        assert!(!teams.of_namespace("shared").expect("is b's again").vanished);
        assert_eq!(teams.of_namespace("ns-b").map(|team| (team.name.as_str(), team.vanished)), Some(("b.gone", true)));
    }

    fn team_again() -> Value {
        team("b", "2026-03-01T00:00:00Z", json!({"namespaces": ["shared"], "members": [{"permissionSet": "TeamB"}]}))
    }

    #[test]
    fn writes_are_refused_for_what_they_add() {
        let teams = resolve(&[older()]).teams;
        let none = |_: &str| 0;
        let write = |old: Option<&Value>, new: &Value| check_team_write(old, Some(new), &teams, &free, none);
        let refused = write(None, &younger()).expect_err("overlaps");
        assert!(refused.contains("namespace `shared` is declared in Team b already"), "{refused}");
        assert!(refused.contains("uid `1001` is declared in Team b already"), "{refused}");
        // What stands already does not keep anybody from mending the rest.
        let mut mended = younger();
        mended["spec"]["members"] = json!([{"permissionSet": "TeamA"}]);
        assert_eq!(write(Some(&younger()), &mended), Ok(()));
        assert_eq!(write(Some(&older()), &older()), Ok(()));
        let impossible = team(
            "q",
            "2026-01-01T00:00:00Z",
            json!({"quota": {"limit": {"nvidia.com/gpu": 8}, "ceiling": {"nvidia.com/gpu": 4}}}),
        );
        assert_eq!(
            write(None, &impossible),
            Err("quota: ceiling of `nvidia.com/gpu` is 4, below its limit 8".to_owned())
        );
        let unknown = team("q", "2026-01-01T00:00:00Z", json!({"storage": [{"name": "x", "readonly": true}]}));
        let refused = write(None, &unknown).expect_err("unknown field");
        assert!(refused.starts_with("spec: unknown field `readonly`"), "{refused}");
    }

    #[test]
    fn a_team_and_its_namespaces_stay_while_they_hold_pods() {
        let teams = resolve(&[older()]).teams;
        let pods = |namespace: &str| usize::from(namespace == "ns-b") * 2;
        assert_eq!(
            check_team_write(Some(&older()), None, &teams, &free, pods),
            Err("the Team cannot go while 2 pods run in `ns-b`; delete the workloads first".to_owned())
        );
        let mut smaller = older();
        smaller["spec"]["namespaces"] = json!(["shared"]);
        assert_eq!(
            check_team_write(Some(&older()), Some(&smaller), &teams, &free, pods),
            Err("the namespace cannot go while 2 pods run in `ns-b`; delete the workloads first".to_owned())
        );
        assert_eq!(check_team_write(Some(&older()), None, &teams, &free, |_| 0), Ok(()));
    }
}
