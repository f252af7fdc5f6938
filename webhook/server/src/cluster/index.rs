//! What the watches have told, kept in order. Synchronous, and time is an argument, so that any order of events can be
//! tried in a test.
//!
//! ```text
//! Init, InitApply ..., InitDone     the list: what is not in it any more goes when it is complete, not before
//! Apply, Delete                     what happened since; a Delete of an earlier incarnation is ignored
//! ```
//!
//! A Team that vanishes while pods of it run leaves its namespaces behind, governed: its name and storage go on serving
//! what controllers replace, and nobody is a member.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use engine::cluster::Cluster;
use engine::config::Config;
use engine::json;
use engine::team::Teams;
use engine::team::served::{Resolved, ServedTeam};
use jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher::Event;
use serde_json::Value;

use super::resources::KindName;
use super::team_object::{self, TeamStatus};
use super::team_write::{Reserving, unfinished_pods};

/// How long the namespaces of a vanished Team stay governed although no pod is known in them: the news of the last pod and
/// the news of the Team come by different watches, and either may be late.
const GRACE: SignedDuration = SignedDuration::from_secs(30);

/// Fed by watches, read by the publisher and by the governor.
#[derive(Debug)]
pub struct Index {
    config: Arc<Config>,
    watches: BTreeMap<KindName, Watch>,
    cluster: Arc<Cluster>,
    namespaces: BTreeSet<String>,
    teams: BTreeMap<String, SeenTeam>,
    gone: BTreeMap<(String, String), Gone>,
    /// Since when namespaces of a Team that vanished and came back have been governed: they never ceased to be.
    inherited: BTreeMap<(String, String), Timestamp>,
    resolved: Resolved,
    /// Kept apart from `resolved`, so that a snapshot costs no copy.
    shared_teams: Arc<Teams>,
    /// The highest resourceVersion of a Team so far.
    teams_version: u64,
    unpublished: Option<Timestamp>,
}

#[derive(Debug)]
struct Watch {
    present: HashMap<Place, String>,
    /// During a list: what it has shown.
    listed: Option<HashSet<Place>>,
    complete: bool,
    required: bool,
    events: u64,
    lists: u64,
    errors: u64,
    error: Option<String>,
    last_event: Option<Timestamp>,
}

/// Namespace and name.
type Place = (String, String);

#[derive(Debug, Clone)]
struct SeenTeam {
    served: ServedTeam,
    resource_version: String,
    status: TeamStatus,
}

#[derive(Debug, Clone)]
struct Gone {
    last: ServedTeam,
    since: Timestamp,
}

/// What a snapshot takes over.
#[derive(Debug, Clone)]
pub struct View {
    pub teams: Arc<Teams>,
    pub cluster: Arc<Cluster>,
    /// When the first change that this view brings was heard of.
    pub since: Timestamp,
}

/// What the webhook configurations and the Teams' status are made from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Governance {
    /// Of all Teams, the vanished among them.
    pub namespaces: BTreeSet<String>,
    /// Label keys that some Team gives to its workloads.
    pub label_keys: BTreeSet<String>,
    pub teams: Vec<GovernedTeam>,
    pub vanished: Vec<ServedTeam>,
    /// What would be left of the others.
    pub left: Vec<ServedTeam>,
    pub teams_version: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct GovernedTeam {
    pub name: String,
    pub resource_version: String,
    pub status: TeamStatus,
    /// Which it declares and has.
    pub namespaces: Vec<String>,
    /// Since when, of those that were governed before.
    pub governed: BTreeMap<String, Timestamp>,
    /// Of these, which do not exist yet.
    pub absent: Vec<String>,
    pub conflicts: Vec<String>,
    pub unusable: Option<String>,
    pub limit: Option<String>,
}

/// Teams that are not as whoever wrote them meant it, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trouble {
    /// An older one, or the cluster, has what they declare.
    pub conflicting: Vec<String>,
    /// They cannot be read.
    pub unusable: Vec<String>,
    /// The object is gone, and its namespaces are governed still: pods of it are left, or may be.
    pub vanished: Vec<String>,
}

/// How many names a sentence has room for.
const NAMED: usize = 5;

impl Trouble {
    /// For whoever is on call; `None` without trouble.
    pub fn note(&self) -> Option<String> {
        let Self { conflicting, unusable, vanished } = self;
        let part = |what: &str, names: &[String]| {
            let more = if names.len() > NAMED { ", ..." } else { "" };
            let first = &names[..names.len().min(NAMED)];
            (!names.is_empty()).then(|| format!("{what}: {}{more}", first.join(", ")))
        };
        let parts = [
            part("Teams that declare what others have", conflicting),
            part("Teams that cannot be used", unusable),
            part("Teams that are gone and still governed", vanished),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// How a watch stands: plain numbers for whoever shows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchReport {
    pub kind: KindName,
    pub complete: bool,
    pub objects: usize,
    pub events: u64,
    /// More than one: the watch had to start over.
    pub lists: u64,
    pub errors: u64,
    pub error: Option<String>,
    pub last_event: Option<Timestamp>,
}

impl Index {
    pub fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            watches: BTreeMap::new(),
            cluster: Arc::default(),
            namespaces: BTreeSet::new(),
            teams: BTreeMap::new(),
            gone: BTreeMap::new(),
            inherited: BTreeMap::new(),
            resolved: Resolved::default(),
            shared_teams: Arc::default(),
            teams_version: 0,
            unpublished: None,
        }
    }

    /// Expects events of a kind. The gate is not ready before the first list of each `required` one is complete.
    pub fn expect(&mut self, kind: KindName, required: bool) {
        self.watches.entry(kind).or_insert_with(|| Watch::new(required));
    }

    /// The kind is not served any more: its objects are gone.
    pub fn forget(&mut self, kind: &KindName, now: Timestamp) {
        if let Some(watch) = self.watches.remove(kind) {
            let uids = watch.present.into_iter().collect::<Vec<_>>();
            uids.into_iter().for_each(|(place, uid)| self.gone_is(kind, &place, &uid, now));
        }
    }

    /// The first list of what can be done without has failed for so long that the gate starts without it; the walk asks
    /// the API server instead.
    pub fn do_without(&mut self, kind: &KindName) {
        if let Some(watch) = self.watches.get_mut(kind) {
            watch.required = false;
        }
    }

    /// What would be left of the Teams that there were before this process began, and the version that this was taken from.
    /// Call it before they are listed: those that are there say so themselves, and the others have vanished meanwhile. The
    /// list is the younger one, and with it this replica has seen all that whoever wrote the version had.
    pub fn remember(&mut self, left: impl IntoIterator<Item = ServedTeam>, teams_version: u64, now: Timestamp) {
        for last in left {
            for namespace in last.spec.namespaces.clone() {
                let gone = Gone { last: last.clone(), since: now };
                self.gone.entry((last.name.clone(), namespace)).or_insert(gone);
            }
        }
        self.teams_version = self.teams_version.max(teams_version);
        self.resolve(now);
    }

    pub fn feed(&mut self, kind: &KindName, event: Event<Value>, now: Timestamp) {
        let Some(watch) = self.watches.get_mut(kind) else { return };
        watch.events += 1;
        watch.last_event = Some(now);
        // That a list begins says nothing yet: one that cannot be made begins again and again.
        if !matches!(event, Event::Init) {
            watch.error = None;
        }
        match event {
            Event::Init => {
                watch.lists += 1;
                watch.listed = Some(HashSet::new());
            }
            Event::InitApply(object) | Event::Apply(object) => self.is_there(kind, object, now),
            Event::Delete(object) => {
                let (place, uid) = (place(&object), text(&object, "uid"));
                if *kind == KindName::teams() {
                    self.saw_version(&object);
                }
                self.gone_is(kind, &place, &uid, now);
            }
            Event::InitDone => self.list_is_complete(kind, now),
        }
    }

    pub fn failed(&mut self, kind: &KindName, error: String) {
        if let Some(watch) = self.watches.get_mut(kind) {
            watch.errors += 1;
            watch.error = Some(error);
        }
    }

    /// Lets go of what was kept only for a while. Call it now and then.
    pub fn tidy(&mut self, now: Timestamp) {
        if !self.gone.is_empty() {
            self.resolve(now);
        }
    }

    /// Required kinds whose first list is not complete, each with its error.
    pub fn pending(&self) -> Vec<(&KindName, Option<&str>)> {
        let pending = self.watches.iter().filter(|(_, watch)| watch.required && !watch.complete);
        pending.map(|(kind, watch)| (kind, watch.error.as_deref())).collect()
    }

    pub fn is_dirty(&self) -> bool {
        self.unpublished.is_some()
    }

    /// What has changed since the last call, as a whole.
    pub fn take(&mut self) -> Option<View> {
        let since = self.unpublished.take()?;
        Some(View { teams: Arc::clone(&self.shared_teams), cluster: Arc::clone(&self.cluster), since })
    }

    pub fn governance(&self) -> Governance {
        let teams = &self.resolved.teams;
        Governance {
            namespaces: teams.iter().flat_map(|team| team.spec.namespaces.iter().cloned()).collect(),
            label_keys: teams.iter().flat_map(|team| team.spec.labels.keys().cloned()).collect(),
            teams: self.teams.values().map(|seen| self.governed(seen)).collect(),
            vanished: self.vanished().collect(),
            left: self.teams.values().map(|seen| self.left(seen)).collect(),
            teams_version: self.teams_version,
        }
    }

    pub fn trouble(&self) -> Trouble {
        let unusable = self.teams.values().filter(|seen| seen.served.unusable.is_some());
        let vanished: BTreeSet<&String> = self.gone.keys().map(|(team, _)| team).collect();
        Trouble {
            conflicting: self.resolved.conflicts.keys().cloned().collect(),
            unusable: unusable.map(|seen| seen.served.name.clone()).collect(),
            vanished: vanished.into_iter().cloned().collect(),
        }
    }

    /// What teams hold whose work Kueue queues, by name, as people read it.
    pub fn queued(&self) -> BTreeMap<String, String> {
        let teams = self.teams.values().map(|seen| &seen.served);
        teams
            .filter_map(|team| Some((team.name.clone(), team_object::queued(&team.spec, self.cluster.queues())?)))
            .collect()
    }

    pub fn report(&self) -> Vec<WatchReport> {
        let report = |(kind, watch): (&KindName, &Watch)| WatchReport {
            kind: kind.clone(),
            complete: watch.complete,
            objects: watch.present.len(),
            events: watch.events,
            lists: watch.lists,
            errors: watch.errors,
            error: watch.error.clone(),
            last_event: watch.last_event,
        };
        self.watches.iter().map(report).collect()
    }

    fn left(&self, SeenTeam { served, .. }: &SeenTeam) -> ServedTeam {
        let kept = self.resolved.teams.named(&served.name).map(|team| team.spec.namespaces.iter().cloned().collect());
        served.vanish(kept.unwrap_or_default())
    }

    fn governed(&self, seen: &SeenTeam) -> GovernedTeam {
        let SeenTeam { served, resource_version, status } = seen;
        let kept = self.resolved.teams.named(&served.name);
        let namespaces = kept.map(|team| team.spec.namespaces.clone()).unwrap_or_default();
        GovernedTeam {
            name: served.name.clone(),
            resource_version: resource_version.clone(),
            status: status.clone(),
            absent: namespaces.iter().filter(|namespace| !self.namespaces.contains(*namespace)).cloned().collect(),
            namespaces,
            governed: served.governed.clone(),
            conflicts: self.resolved.conflicts.get(&served.name).cloned().unwrap_or_default(),
            unusable: served.unusable.clone(),
            limit: team_object::limit(&served.spec, self.cluster.queues()),
        }
    }

    fn is_there(&mut self, kind: &KindName, object: Value, now: Timestamp) {
        let place = place(&object);
        if let Some(watch) = self.watches.get_mut(kind) {
            if let Some(listed) = &mut watch.listed {
                listed.insert(place.clone());
            }
            watch.present.insert(place.clone(), text(&object, "uid"));
        }
        if *kind == KindName::teams() {
            self.saw_version(&object);
            self.team_is_there(&object, now);
        } else if *kind == KindName::namespaces() {
            self.namespaces.insert(place.1);
            self.changed(now);
        } else {
            Arc::make_mut(&mut self.cluster).insert(object);
            self.changed(now);
        }
    }

    fn gone_is(&mut self, kind: &KindName, place: &Place, uid: &str, now: Timestamp) {
        if let Some(watch) = self.watches.get_mut(kind) {
            // A late word of an earlier incarnation.
            if watch.present.get(place).is_some_and(|present| present != uid) {
                return;
            }
            watch.present.remove(place);
        }
        if *kind == KindName::teams() {
            if let Some(before) = self.teams.remove(&place.1) {
                self.leave_behind(&before.served, &BTreeSet::new(), now);
                self.resolve(now);
            }
        } else if *kind == KindName::namespaces() {
            self.namespaces.remove(&place.1);
            self.changed(now);
        } else {
            Arc::make_mut(&mut self.cluster).remove(uid);
            self.changed(now);
        }
    }

    fn list_is_complete(&mut self, kind: &KindName, now: Timestamp) {
        let Some(watch) = self.watches.get_mut(kind) else { return };
        let listed = watch.listed.take().unwrap_or_default();
        let gone = watch.present.iter().filter(|(place, _)| !listed.contains(*place));
        let gone: Vec<(Place, String)> = gone.map(|(place, uid)| (place.clone(), uid.clone())).collect();
        let first = !watch.complete;
        watch.complete = true;
        gone.into_iter().for_each(|(place, uid)| self.gone_is(kind, &place, &uid, now));
        if first {
            // An empty list is news too.
            self.changed(now);
        }
    }

    fn team_is_there(&mut self, object: &Value, now: Timestamp) {
        let mut served = ServedTeam::read(object);
        self.inherit(&mut served);
        let seen = SeenTeam {
            resource_version: text(object, "resourceVersion"),
            status: team_object::status_of(object),
            served: served.clone(),
        };
        let before = self.teams.insert(served.name.clone(), seen);
        let before = before.map(|before| before.served);
        if before.as_ref() == Some(&served) {
            return;
        }
        if let Some(before) = before {
            self.leave_behind(&before, &served.spec.namespaces.iter().cloned().collect(), now);
        }
        self.resolve(now);
    }

    /// A Team that comes back finds its roots as they were, not older than the gate.
    fn inherit(&mut self, served: &mut ServedTeam) {
        for namespace in &served.spec.namespaces {
            let key = (served.name.clone(), namespace.clone());
            let left = self.gone.get(&key).and_then(|gone| gone.last.governed.get(namespace));
            if let Some(since) = left {
                self.inherited.insert(key.clone(), *since);
            }
            match (served.governed.contains_key(namespace), self.inherited.get(&key)) {
                // Its status says so itself now.
                (true, _) => drop(self.inherited.remove(&key)),
                (false, Some(since)) => drop(served.governed.insert(namespace.clone(), *since)),
                (false, None) => {}
            }
        }
    }

    /// The namespaces that a Team declared and, but for `kept`, does not any more.
    fn leave_behind(&mut self, before: &ServedTeam, kept: &BTreeSet<String>, now: Timestamp) {
        for namespace in before.spec.namespaces.iter().filter(|namespace| !kept.contains(*namespace)) {
            let gone = Gone { last: before.clone(), since: now };
            self.gone.insert((before.name.clone(), namespace.clone()), gone);
        }
    }

    fn resolve(&mut self, now: Timestamp) {
        self.let_go(now);
        let served = self.teams.values().map(|seen| seen.served.clone()).chain(self.vanished());
        let resolved = Teams::resolve(served.collect::<Vec<_>>(), &Reserving(&self.config));
        if resolved.teams.revision() != self.resolved.teams.revision() || !self.same_times(&resolved.teams) {
            self.shared_teams = Arc::new(resolved.teams.clone());
            self.changed(now);
        }
        self.resolved = resolved;
    }

    /// The revision covers what Teams say; since when they are governed comes from their status.
    fn same_times(&self, teams: &Teams) -> bool {
        let times = |teams: &Teams| teams.iter().map(|team| team.governed.clone()).collect::<Vec<_>>();
        times(teams) == times(&self.resolved.teams)
    }

    /// A namespace that another Team declares, that is deleted, or that holds no pods any more.
    fn let_go(&mut self, now: Timestamp) {
        let complete = |kind: KindName| self.watches.get(&kind).is_some_and(|watch| watch.complete);
        let (knows_namespaces, knows_pods) = (complete(KindName::namespaces()), complete(KindName::pods()));
        let declared: BTreeSet<&String> = self.teams.values().flat_map(|seen| &seen.served.spec.namespaces).collect();
        let (namespaces, cluster) = (&self.namespaces, &self.cluster);
        self.gone.retain(|(_, namespace), gone| {
            let exists = !knows_namespaces || namespaces.contains(namespace);
            let recent = now.duration_since(gone.since) < GRACE;
            let holds_pods = || !knows_pods || unfinished_pods(cluster, namespace) > 0;
            !declared.contains(namespace) && exists && (recent || holds_pods())
        });
    }

    fn vanished(&self) -> impl Iterator<Item = ServedTeam> {
        let mut by_team: BTreeMap<&String, (&ServedTeam, BTreeSet<String>)> = BTreeMap::new();
        for ((team, namespace), gone) in &self.gone {
            by_team.entry(team).or_insert((&gone.last, BTreeSet::new())).1.insert(namespace.clone());
        }
        by_team.into_values().map(|(last, namespaces)| last.vanish(namespaces))
    }

    fn saw_version(&mut self, object: &Value) {
        let version = text(object, "resourceVersion").parse().unwrap_or(0);
        self.teams_version = self.teams_version.max(version);
    }

    fn changed(&mut self, now: Timestamp) {
        self.unpublished.get_or_insert(now);
    }
}

impl Watch {
    fn new(required: bool) -> Self {
        Self {
            present: HashMap::new(),
            listed: None,
            complete: false,
            required,
            events: 0,
            lists: 0,
            errors: 0,
            error: None,
            last_event: None,
        }
    }
}

fn place(object: &Value) -> Place {
    (text(object, "namespace"), text(object, "name"))
}

fn text(object: &Value, key: &str) -> String {
    json::text(object, &["metadata", key]).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PODS_OF: &str = "ns-a";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("in range")
    }

    fn pod(name: &str, uid: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": PODS_OF, "name": name, "uid": uid}})
    }

    fn team(name: &str, namespaces: &[&str]) -> Value {
        json!({
            "apiVersion": "cedargate.dev/v1alpha1",
            "kind": "Team",
            "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "10"},
            "spec": {"namespaces": namespaces, "members": [{"permissionSet": name}]},
        })
    }

    fn versioned(mut object: Value, version: u64) -> Value {
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object
    }

    fn namespace(name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "uid": name}})
    }

    struct Fed(Index);

    impl Fed {
        fn new() -> Self {
            let mut index = Index::new(Arc::default());
            for kind in [KindName::pods(), KindName::teams(), KindName::namespaces()] {
                index.expect(kind, true);
            }
            Self(index)
        }

        /// All first lists are complete.
        fn listed(teams: &[Value], pods: &[Value]) -> Self {
            let mut fed = Self::new();
            fed.list(KindName::teams(), teams);
            fed.list(KindName::pods(), pods);
            fed.list(KindName::namespaces(), &[namespace(PODS_OF), namespace("ns-b")]);
            fed
        }

        fn list(&mut self, kind: KindName, objects: &[Value]) {
            self.0.feed(&kind, Event::Init, at(0));
            objects.iter().for_each(|object| self.0.feed(&kind, Event::InitApply(object.clone()), at(0)));
            self.0.feed(&kind, Event::InitDone, at(0));
        }

        fn pod(&mut self, event: Event<Value>) {
            self.0.feed(&KindName::pods(), event, at(0));
        }

        fn team(&mut self, event: Event<Value>, now: Timestamp) {
            self.0.feed(&KindName::teams(), event, now);
        }

        fn uids(&self) -> BTreeSet<String> {
            self.0.cluster.objects().map(|stored| stored.meta.uid.clone()).collect()
        }

        fn owner(&self, namespace: &str) -> Option<(&str, bool)> {
            self.0.resolved.teams.of_namespace(namespace).map(|team| (team.name.as_str(), team.vanished))
        }
    }

    fn set(uids: &[&str]) -> BTreeSet<String> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    #[test]
    fn is_pending_until_every_first_list_is_complete() {
        let mut fed = Fed::new();
        assert_eq!(fed.0.pending().len(), 3);
        fed.list(KindName::teams(), &[]);
        fed.pod(Event::Init);
        fed.pod(Event::InitApply(pod("p", "1")));
        let pending: Vec<_> = fed.0.pending().into_iter().map(|(kind, _)| kind.to_string()).collect();
        assert_eq!(pending, ["Namespace", "Pod"]);
        fed.pod(Event::InitDone);
        fed.list(KindName::namespaces(), &[]);
        assert!(fed.0.pending().is_empty());
        // An error later leaves the gate ready: it goes on with what it knows.
        fed.0.failed(&KindName::pods(), "no route".to_owned());
        assert!(fed.0.pending().is_empty());
    }

    #[test]
    fn events_in_any_order_and_again() {
        let mut fed = Fed::listed(&[], &[pod("p", "1")]);
        fed.pod(Event::Apply(pod("p", "1")));
        fed.pod(Event::Apply(pod("p", "1")));
        assert_eq!(fed.uids(), set(&["1"]));
        // The next incarnation is heard of before the end of this one.
        fed.pod(Event::Apply(pod("p", "2")));
        fed.pod(Event::Delete(pod("p", "1")));
        assert_eq!(fed.uids(), set(&["2"]));
        fed.pod(Event::Delete(pod("p", "2")));
        fed.pod(Event::Delete(pod("p", "2")));
        assert_eq!(fed.uids(), set(&[]));
        // Of a kind that nobody watches.
        fed.0.feed(&KindName::new("x", "Y"), Event::Apply(pod("q", "3")), at(0));
        assert_eq!(fed.uids(), set(&[]));
    }

    #[test]
    fn a_watch_that_starts_over_drops_what_is_gone_when_its_list_is_complete() {
        let mut fed = Fed::listed(&[], &[pod("stays", "1"), pod("goes", "2"), pod("again", "3")]);
        fed.pod(Event::Init);
        fed.pod(Event::InitApply(pod("stays", "1")));
        assert_eq!(fed.uids(), set(&["1", "2", "3"]), "nothing goes while the list is coming");
        fed.pod(Event::InitApply(pod("again", "4")));
        fed.pod(Event::InitDone);
        assert_eq!(fed.uids(), set(&["1", "4"]));
        assert_eq!(fed.0.report().into_iter().find(|report| report.kind == KindName::pods()).map(|r| r.lists), Some(2));
    }

    #[test]
    fn a_list_that_is_broken_off_is_forgotten() {
        let mut fed = Fed::listed(&[], &[pod("a", "1"), pod("b", "2")]);
        fed.pod(Event::Init);
        fed.pod(Event::InitApply(pod("a", "1")));
        fed.pod(Event::Init);
        fed.pod(Event::InitApply(pod("b", "2")));
        fed.pod(Event::InitDone);
        assert_eq!(fed.uids(), set(&["2"]));
    }

    #[test]
    fn a_kind_that_is_not_served_any_more_takes_its_objects_with_it() {
        let mut fed = Fed::listed(&[], &[pod("a", "1")]);
        fed.0.forget(&KindName::pods(), at(0));
        assert_eq!(fed.uids(), set(&[]));
    }

    #[test]
    fn changes_are_taken_once() {
        let mut fed = Fed::listed(&[team("a", &[PODS_OF])], &[]);
        let view = fed.0.take().expect("is dirty");
        assert_eq!(view.teams.of_namespace(PODS_OF).map(|team| team.name.as_str()), Some("a"));
        assert!(fed.0.take().is_none());
        // The same Team again is no news.
        fed.team(Event::Apply(team("a", &[PODS_OF])), at(1));
        assert!(fed.0.take().is_none());
        fed.pod(Event::Apply(pod("p", "1")));
        let next = fed.0.take().expect("is dirty");
        assert!(view.cluster.of_uid("1").is_none(), "a view that was taken is frozen");
        assert!(next.cluster.of_uid("1").is_some());
    }

    #[test]
    fn a_vanished_team_leaves_its_namespaces_governed_while_pods_are_left() {
        let mut fed = Fed::listed(&[team("a", &[PODS_OF, "ns-b"])], &[pod("p", "1")]);
        fed.team(Event::Delete(team("a", &[])), at(0));
        assert_eq!(fed.owner(PODS_OF), Some(("a", true)));
        assert_eq!(fed.owner("ns-b"), Some(("a", true)), "its last pod may just not have been heard of");
        fed.0.tidy(at(60));
        assert_eq!((fed.owner(PODS_OF), fed.owner("ns-b")), (Some(("a", true)), None));
        assert_eq!(fed.0.governance().vanished.len(), 1);

        fed.pod(Event::Delete(pod("p", "1")));
        fed.0.tidy(at(61));
        assert_eq!(fed.owner(PODS_OF), None);
    }

    #[test]
    fn trouble_is_told_by_name_and_ends() {
        let mut unusable = team("c", &["ns-c"]);
        unusable["spec"]["quota"] = json!("much");
        let teams = [team("a", &[PODS_OF]), team("b", &["ns-b"]), team("x", &["ns-b"]), unusable];
        let mut fed = Fed::listed(&teams, &[pod("p", "1")]);
        fed.team(Event::Delete(team("a", &[])), at(0));
        let expected = "Teams that declare what others have: x; Teams that cannot be used: c; \
                        Teams that are gone and still governed: a";
        assert_eq!(fed.0.trouble().note().as_deref(), Some(expected));
        fed.team(Event::Apply(team("a", &[PODS_OF])), at(1));
        fed.team(Event::Apply(team("c", &["ns-c"])), at(1));
        fed.team(Event::Apply(team("x", &["ns-x"])), at(1));
        assert_eq!(fed.0.trouble().note(), None);
    }

    #[test]
    fn a_finished_pod_keeps_nothing() {
        let mut done = pod("p", "1");
        done["status"] = json!({"phase": "Succeeded"});
        let mut fed = Fed::listed(&[team("a", &[PODS_OF])], &[done]);
        fed.team(Event::Delete(team("a", &[])), at(0));
        fed.0.tidy(at(60));
        assert_eq!(fed.owner(PODS_OF), None);
    }

    #[test]
    fn a_namespace_that_a_team_drops_is_like_a_vanished_team() {
        let mut fed = Fed::listed(&[team("a", &[PODS_OF, "ns-b"])], &[pod("p", "1")]);
        fed.team(Event::Apply(team("a", &["ns-b"])), at(0));
        fed.0.tidy(at(60));
        assert_eq!(fed.owner(PODS_OF), Some(("a.gone", true)));
        assert_eq!(fed.owner("ns-b"), Some(("a", false)));
        fed.team(Event::Apply(team("b", &[PODS_OF])), at(61));
        assert_eq!(fed.owner(PODS_OF), Some(("b", false)));
    }

    #[test]
    fn a_team_missing_from_a_new_list_has_vanished_and_a_deleted_namespace_ends_it() {
        let mut fed = Fed::listed(&[team("a", &[PODS_OF])], &[pod("p", "1")]);
        fed.list(KindName::teams(), &[]);
        assert_eq!(fed.owner(PODS_OF), Some(("a", true)));
        fed.0.feed(&KindName::namespaces(), Event::Delete(namespace(PODS_OF)), at(1));
        fed.0.tidy(at(1));
        assert_eq!(fed.owner(PODS_OF), None);
    }

    #[test]
    fn what_had_vanished_before_the_start_is_remembered_until_a_team_says_otherwise() {
        let last = ServedTeam::read(&team("a", &[PODS_OF]));
        let mut fed = Fed::new();
        fed.0.remember([last.vanish([PODS_OF.to_owned()].into())], 0, at(0));
        fed.list(KindName::teams(), &[]);
        fed.list(KindName::pods(), &[pod("p", "1")]);
        fed.list(KindName::namespaces(), &[namespace(PODS_OF)]);
        fed.0.tidy(at(60));
        assert_eq!(fed.owner(PODS_OF), Some(("a", true)));
        fed.team(Event::Apply(team("a", &[PODS_OF])), at(61));
        assert_eq!(fed.owner(PODS_OF), Some(("a", false)));
        assert!(fed.0.governance().vanished.is_empty());
    }

    #[test]
    fn a_team_that_went_while_nobody_ran_has_vanished_and_is_let_go_with_its_pods() {
        let before = Fed::listed(&[team("a", &[PODS_OF]), team("b", &["ns-b"])], &[pod("p", "1")]);
        let Governance { left, teams_version, vanished, .. } = before.0.governance();
        assert_eq!((left.len(), vanished.len(), teams_version), (2, 0, 10));

        let mut fed = Fed::new();
        fed.0.remember(left, teams_version, at(100));
        fed.list(KindName::teams(), &[versioned(team("b", &["ns-b"]), 9)]);
        fed.list(KindName::pods(), &[pod("p", "1")]);
        fed.list(KindName::namespaces(), &[namespace(PODS_OF), namespace("ns-b")]);
        fed.0.tidy(at(160));
        assert_eq!((fed.owner(PODS_OF), fed.owner("ns-b")), (Some(("a", true)), Some(("b", false))));
        let Governance { namespaces, teams_version, .. } = fed.0.governance();
        assert_eq!((namespaces.len(), teams_version), (2, 10));

        fed.pod(Event::Delete(pod("p", "1")));
        fed.0.tidy(at(161));
        let after = fed.0.governance();
        assert_eq!(
            (after.namespaces, after.teams_version),
            (["ns-b".to_owned()].into(), 10),
            "not behind: it takes away"
        );
    }

    /// The Team that came last was the one that went: no Team that is left has its version.
    #[test]
    fn who_has_listed_all_teams_is_not_behind_the_one_that_is_gone() {
        let mut fed = Fed::new();
        fed.0.remember([], 50, at(0));
        fed.list(KindName::teams(), &[versioned(team("b", &["ns-b"]), 9)]);
        assert_eq!(fed.0.governance().teams_version, 50);
    }

    #[test]
    fn a_team_that_comes_back_has_been_governed_all_the_time() {
        let since: Timestamp = "2026-02-01T00:00:00Z".parse().expect("a time");
        let mut governed = team("a", &[PODS_OF]);
        governed["status"] = json!({"namespaces": [{"name": PODS_OF, "governedSince": since}]});
        let mut fed = Fed::listed(&[governed.clone()], &[pod("p", "1")]);
        let times = |fed: &Fed| fed.0.governance().teams.first().map(|team| team.governed.clone());
        fed.team(Event::Delete(governed.clone()), at(0));
        for _ in 0..2 {
            fed.team(Event::Apply(team("a", &[PODS_OF])), at(1));
            assert_eq!(times(&fed), Some([(PODS_OF.to_owned(), since)].into()), "until its status says so itself");
        }
        fed.team(Event::Apply(governed), at(2));
        assert!(fed.0.inherited.is_empty());
        // Another Team's time is not inherited.
        fed.team(Event::Delete(team("a", &[])), at(3));
        fed.team(Event::Apply(team("b", &[PODS_OF])), at(3));
        assert_eq!(times(&fed), Some(BTreeMap::new()));
    }

    #[test]
    fn a_list_that_begins_again_and_again_still_has_its_error() {
        let mut fed = Fed::new();
        fed.0.failed(&KindName::pods(), "forbidden".to_owned());
        fed.pod(Event::Init);
        let errors: Vec<_> = fed.0.pending().into_iter().map(|(_, error)| error.map(str::to_owned)).collect();
        assert!(errors.contains(&Some("forbidden".to_owned())), "{errors:?}");
    }

    #[test]
    fn governance_says_what_each_team_has_and_lost() {
        let fed = Fed::listed(&[team("a", &[PODS_OF, "later"]), team("b", &["ns-b", PODS_OF, "kube-system"])], &[]);
        let governance = fed.0.governance();
        assert_eq!(governance.namespaces, set(&[PODS_OF, "later", "ns-b"]));
        assert_eq!(governance.teams_version, 10);
        let [a, b] = governance.teams.as_slice() else { unreachable!("two teams") };
        assert_eq!((a.namespaces.len(), a.absent.as_slice()), (2, ["later".to_owned()].as_slice()));
        assert_eq!(b.namespaces, ["ns-b"]);
        assert_eq!(
            b.conflicts,
            [
                "namespace `ns-a` is declared in Team a already".to_owned(),
                "namespace `kube-system` belongs to the cluster".to_owned(),
            ]
        );
    }
}
