//! Kueue's queues, as far as the gate reads them: how much work of a queue could ever be given, what it holds now, and whether
//! it admits at all. Nothing of this is ever written: task governance owns it.
//!
//! ```text
//!  namespace, name --> LocalQueue --> ClusterQueue --> Cohort --> Cohort ...
//!                                        |   for each flavor and resource: nominal, what may be borrowed, what is lent
//!                                        +-- status: reserved by flavor, condition Active
//! ```
//!
//! What comes from where:
//! - **spec**: `nominalQuota`, `borrowingLimit`, `lendingLimit`. The status repeats none of them: it says what is reserved and,
//!   of that, what is borrowed now, so a bound on what may ever be had cannot be read from it.
//! - **status**: `flavorsReservation` (what is used; admission follows a reservation, so it is never less than `flavorsUsage`)
//!   and the condition `Active`. It is Kueue's word of a moment ago, which is good for telling people and for rules that need
//!   no exact sum.
//!
//! `v1beta1` and `v1beta2` differ here in one name: `cohort` became `cohortName`. Both are read.
//!
//! The bound is the one by which Kueue itself calls a workload too large for ever. A queue in no cohort has its nominal quota. In
//! a cohort it has what the others lend, too, up to `borrowingLimit`; a cohort may have quota of its own and be part of another.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::amounts::{Amounts, MAX, Quantity, ResourceName};
use crate::cluster::Meta;
use crate::json;

/// The API group of Kueue.
pub const GROUP: &str = "kueue.x-k8s.io";

/// Kinds of it that are read here.
pub const KINDS: [&str; 3] = ["LocalQueue", "ClusterQueue", "Cohort"];

/// Cohorts in cohorts. Kueue stops the queues of a loop; ours only must not run in it for ever.
const DEEPEST: usize = 32;

/// All queues of the cluster.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Queues {
    local: BTreeMap<(String, String), LocalQueue>,
    cluster: BTreeMap<String, ClusterQueue>,
    cohorts: BTreeMap<String, Cohort>,
}

#[derive(Debug, Clone, PartialEq)]
struct LocalQueue {
    cluster_queue: String,
    waits: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct ClusterQueue {
    cohort: Option<String>,
    quotas: Quotas,
    reserved: Amounts,
    waits: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Cohort {
    parent: Option<String>,
    quotas: Quotas,
}

/// By resource and flavor.
type Quotas = BTreeMap<Cell, Quota>;

type Cell = (ResourceName, String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Quota {
    nominal: u64,
    borrowing_limit: Option<u64>,
    lending_limit: Option<u64>,
}

/// Why there is no telling what a queue could give: Kueue would never admit what goes there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    LocalQueue,
    /// The LocalQueue names this one.
    ClusterQueue(String),
}

/// What the queue behind a LocalQueue could give.
#[derive(Debug, Clone, Copy)]
pub struct Capacity<'a> {
    queues: &'a Queues,
    local: &'a LocalQueue,
    queue: &'a ClusterQueue,
}

impl Queues {
    pub(crate) fn insert(&mut self, meta: &Meta, object: &Value) {
        let name = meta.name.clone();
        match meta.kind.as_str() {
            "LocalQueue" => drop(self.local.insert((meta.namespace.clone(), name), LocalQueue::read(object))),
            "ClusterQueue" => drop(self.cluster.insert(name, ClusterQueue::read(object))),
            "Cohort" => drop(self.cohorts.insert(name, Cohort::read(object))),
            _ => {}
        }
    }

    pub(crate) fn remove(&mut self, meta: &Meta) {
        match meta.kind.as_str() {
            "LocalQueue" => drop(self.local.remove(&(meta.namespace.clone(), meta.name.clone()))),
            "ClusterQueue" => drop(self.cluster.remove(&meta.name)),
            "Cohort" => drop(self.cohorts.remove(&meta.name)),
            _ => {}
        }
    }

    /// What work of a namespace could get that names this LocalQueue.
    pub fn behind(&self, namespace: &str, queue: &str) -> Result<Capacity<'_>, Missing> {
        let local = self.local.get(&(namespace.to_owned(), queue.to_owned())).ok_or(Missing::LocalQueue)?;
        let missing = || Missing::ClusterQueue(local.cluster_queue.clone());
        let queue = self.cluster.get(&local.cluster_queue).ok_or_else(missing)?;
        Ok(Capacity { queues: self, local, queue })
    }

    /// What a cohort and everything below it has together, and what of that it keeps from its parent.
    fn subtree(&self, name: &str, cell: &Cell, depth: usize) -> (u64, u64) {
        let quota = self.cohorts.get(name).and_then(|cohort| cohort.quotas.get(cell)).copied().unwrap_or_default();
        if depth > DEEPEST {
            return (0, 0);
        }
        let is_child = |parent: Option<&String>| parent.is_some_and(|parent| parent == name);
        let queues = self.cluster.values().filter(|queue| is_child(queue.cohort.as_ref()));
        let of_queues = queues.filter_map(|queue| queue.quotas.get(cell)).map(|quota| quota.lent(quota.nominal));
        let cohorts = self.cohorts.iter().filter(|(_, cohort)| is_child(cohort.parent.as_ref()));
        let of_cohorts = cohorts.map(|(child, _)| {
            let (all, kept) = self.subtree(child, cell, depth + 1);
            all.saturating_sub(kept)
        });
        let all = of_queues.chain(of_cohorts).fold(quota.nominal, plus);
        (all, quota.kept(all))
    }

    /// The most that may be had in a cohort, if nobody else has anything.
    fn most_in(&self, name: &str, cell: &Cell, depth: usize) -> u64 {
        let (all, kept) = self.subtree(name, cell, 0);
        let cohort = self.cohorts.get(name);
        let Some(parent) = cohort.and_then(|cohort| cohort.parent.as_ref()).filter(|_| depth < DEEPEST) else {
            return all;
        };
        let quota = cohort.and_then(|cohort| cohort.quotas.get(cell)).copied().unwrap_or_default();
        quota.with_borrowing(all, plus(kept, self.most_in(parent, cell, depth + 1)))
    }
}

impl<'a> Capacity<'a> {
    /// Name of the ClusterQueue.
    pub fn cluster_queue(&self) -> &'a str {
        &self.local.cluster_queue
    }

    /// Its own, of all flavors.
    pub fn nominal(&self, resource: &str) -> u64 {
        self.of(resource).map(|(_, quota)| quota.nominal).fold(0, plus)
    }

    /// The most that it could ever have, of all flavors, if nobody else had anything.
    pub fn most(&self, resource: &str) -> u64 {
        self.of(resource).map(|(cell, quota)| self.most_of(cell, quota)).fold(0, plus)
    }

    /// The flavor of which it could have most. Kueue gives all pods of a template one flavor.
    pub fn largest_flavor(&self, resource: &str) -> Option<(&'a str, u64)> {
        let flavors = self.of(resource).map(|(cell, quota)| (cell.1.as_str(), self.most_of(cell, quota)));
        flavors.max_by_key(|(_, most)| *most)
    }

    /// What its workloads hold, by its status.
    pub fn reserved(&self) -> &'a Amounts {
        &self.queue.reserved
    }

    /// Resources that it gives at all.
    pub fn resources(&self) -> BTreeSet<&'a ResourceName> {
        self.queue.quotas.keys().map(|(resource, _)| resource).collect()
    }

    /// Why it admits nothing at present.
    pub fn waits(&self) -> Option<&'a str> {
        self.queue.waits.as_deref().or(self.local.waits.as_deref())
    }

    fn of(&self, resource: &str) -> impl Iterator<Item = (&'a Cell, &'a Quota)> {
        self.queue.quotas.iter().filter(move |((name, _), _)| name.as_str() == resource)
    }

    fn most_of(&self, cell: &Cell, quota: &Quota) -> u64 {
        match &self.queue.cohort {
            None => quota.nominal,
            Some(cohort) => {
                let kept = quota.kept(quota.nominal);
                quota.with_borrowing(quota.nominal, plus(kept, self.queues.most_in(cohort, cell, 0)))
            }
        }
    }
}

impl Quota {
    /// Of `all`, what the others never get.
    fn kept(&self, all: u64) -> u64 {
        self.lending_limit.map_or(0, |limit| all.saturating_sub(limit))
    }

    fn lent(&self, all: u64) -> u64 {
        all - self.kept(all)
    }

    fn with_borrowing(&self, own: u64, most: u64) -> u64 {
        self.borrowing_limit.map_or(most, |limit| most.min(plus(own, limit)))
    }
}

impl LocalQueue {
    fn read(object: &Value) -> Self {
        let cluster_queue = json::text(object, &["spec", "clusterQueue"]).unwrap_or_default().to_owned();
        Self { cluster_queue, waits: waits(object) }
    }
}

impl ClusterQueue {
    fn read(object: &Value) -> Self {
        let cohort = named(object, "cohortName").or_else(|| named(object, "cohort"));
        Self { cohort, quotas: quotas(object), reserved: reserved(object), waits: waits(object) }
    }
}

impl Cohort {
    fn read(object: &Value) -> Self {
        Self { parent: named(object, "parentName"), quotas: quotas(object) }
    }
}

fn named(object: &Value, key: &str) -> Option<String> {
    json::text(object, &["spec", key]).filter(|name| !name.is_empty()).map(str::to_owned)
}

fn quotas(object: &Value) -> Quotas {
    let mut quotas = Quotas::new();
    for group in json::list(object, &["spec", "resourceGroups"]) {
        for (flavor, resource, quota) in flavored(json::list(group, &["flavors"])) {
            let limit = |key| json::at(quota, &[key]).map(amount);
            let quota = Quota {
                nominal: limit("nominalQuota").unwrap_or(0),
                borrowing_limit: limit("borrowingLimit"),
                lending_limit: limit("lendingLimit"),
            };
            quotas.insert((resource, flavor.to_owned()), quota);
        }
    }
    quotas
}

/// Of all flavors together.
fn reserved(object: &Value) -> Amounts {
    let reserved = flavored(json::list(object, &["status", "flavorsReservation"]));
    reserved.fold(Amounts::new(), |sum, (_, resource, usage)| {
        let total = json::at(usage, &["total"]).map_or(0, amount);
        sum.saturating_add(&Amounts::of(resource, total))
    })
}

/// Flavor, resource and what is said of the two.
fn flavored(flavors: &[Value]) -> impl Iterator<Item = (&str, ResourceName, &Value)> {
    flavors.iter().flat_map(|flavor| {
        let name = json::text(flavor, &["name"]).unwrap_or_default();
        let resources = json::list(flavor, &["resources"]).iter();
        resources.filter_map(move |of| Some((name, ResourceName::new(json::text(of, &["name"])?), of)))
    })
}

/// Whole units, the rest of one left out: half a unit cannot be had.
fn amount(value: &Value) -> u64 {
    const NANOS_PER_UNIT: i128 = 1_000_000_000;
    let units = Quantity::from_json(value).map_or(0, |quantity| quantity.nanos() / NANOS_PER_UNIT);
    u64::try_from(units).unwrap_or(0)
}

/// Amounts stay within what policies can compare.
fn plus(a: u64, b: u64) -> u64 {
    a.saturating_add(b).min(MAX)
}

/// Why a queue admits nothing: somebody stopped it, or Kueue says that something is amiss.
fn waits(object: &Value) -> Option<String> {
    let policy = json::text(object, &["spec", "stopPolicy"]).filter(|policy| *policy != "None");
    if let Some(policy) = policy {
        return Some(format!("stopped, {policy}"));
    }
    let says = |condition: &&Value, key, word| json::text(condition, &[key]) == Some(word);
    let conditions = json::list(object, &["status", "conditions"]).iter();
    let inactive = conditions.filter(|condition| says(condition, "type", "Active"));
    let inactive = inactive.filter(|condition| says(condition, "status", "False")).collect::<Vec<_>>();
    let message = |condition: &&Value| json::text(condition, &["message"]).unwrap_or("not active").to_owned();
    inactive.first().map(message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    fn queue(name: &str, version: &str, cohort: &str, flavors: &[(&str, Value)]) -> Value {
        let flavors: Vec<Value> = flavors
            .iter()
            .map(|(flavor, quota)| {
                let mut quota = quota.clone();
                quota["name"] = json!(GPU);
                json!({"name": flavor, "resources": [{"name": "cpu", "nominalQuota": "500m"}, quota]})
            })
            .collect();
        let key = if version == "v1beta1" { "cohort" } else { "cohortName" };
        json!({
            "apiVersion": format!("{GROUP}/{version}"), "kind": "ClusterQueue", "metadata": {"name": name},
            "spec": {key: cohort, "resourceGroups": [{"coveredResources": ["cpu", GPU], "flavors": flavors}]},
        })
    }

    fn local(name: &str, queue: &str) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/v1beta2"), "kind": "LocalQueue", "metadata": {"name": name, "namespace": "ns"},
            "spec": {"clusterQueue": queue},
        })
    }

    fn cohort(name: &str, parent: &str, quota: Value) -> Value {
        let mut quota = quota;
        quota["name"] = json!(GPU);
        json!({
            "apiVersion": format!("{GROUP}/v1beta2"), "kind": "Cohort", "metadata": {"name": name},
            "spec": {"parentName": parent, "resourceGroups": [{"flavors": [{"name": "p5", "resources": [quota]}]}]},
        })
    }

    fn queues(objects: &[Value]) -> Queues {
        let mut queues = Queues::default();
        objects.iter().for_each(|object| queues.insert(&Meta::read(object, None), object));
        queues
    }

    fn most(objects: &[Value]) -> (u64, u64) {
        let queues = queues(&[objects, &[local("q", "a")]].concat());
        let capacity = queues.behind("ns", "q").expect("is there");
        (capacity.nominal(GPU), capacity.most(GPU))
    }

    #[test]
    fn nominal_and_what_the_others_lend() {
        let of = |quota: Value| queue("a", "v1beta2", "", &[("p5", quota)]);
        let in_cohort = |version: &str, quota: Value| queue("a", version, "all", &[("p5", quota)]);
        let other = |quota: Value| queue("b", "v1beta2", "all", &[("p5", quota)]);
        let table = [
            (vec![of(json!({"nominalQuota": 8}))], (8, 8)),
            // Nobody to borrow from: of another cohort, of none, of another flavor.
            (vec![of(json!({"nominalQuota": "8"})), other(json!({"nominalQuota": 4}))], (8, 8)),
            (
                vec![
                    in_cohort("v1beta2", json!({"nominalQuota": 8})),
                    queue("b", "v1beta2", "all", &[("g5", json!({"nominalQuota": 4}))]),
                ],
                (8, 8),
            ),
            // Without a limit, all that the cohort has.
            (vec![in_cohort("v1beta2", json!({"nominalQuota": 8})), other(json!({"nominalQuota": 4}))], (8, 12)),
            (vec![in_cohort("v1beta1", json!({"nominalQuota": 8})), other(json!({"nominalQuota": 4}))], (8, 12)),
            (
                vec![
                    in_cohort("v1beta1", json!({"nominalQuota": 8, "borrowingLimit": 2})),
                    other(json!({"nominalQuota": 4})),
                ],
                (8, 10),
            ),
            (
                vec![
                    in_cohort("v1beta2", json!({"nominalQuota": 8, "borrowingLimit": 64})),
                    other(json!({"nominalQuota": 4})),
                ],
                (8, 12),
            ),
            // The other lends one, or nothing.
            (
                vec![
                    in_cohort("v1beta2", json!({"nominalQuota": 8})),
                    other(json!({"nominalQuota": 4, "lendingLimit": 1})),
                ],
                (8, 9),
            ),
            (
                vec![
                    in_cohort("v1beta2", json!({"nominalQuota": 8})),
                    other(json!({"nominalQuota": 4, "lendingLimit": "0"})),
                ],
                (8, 8),
            ),
            // What it keeps itself is its own all the same.
            (
                vec![
                    in_cohort("v1beta2", json!({"nominalQuota": 8, "lendingLimit": 0})),
                    other(json!({"nominalQuota": 4})),
                ],
                (8, 12),
            ),
        ];
        for (objects, expected) in table {
            assert_eq!(most(&objects), expected, "{objects:?}");
        }
    }

    #[test]
    fn cohorts_have_quota_of_their_own_and_parents() {
        let a = queue("a", "v1beta2", "team", &[("p5", json!({"nominalQuota": 8}))]);
        let b = queue("b", "v1beta2", "other", &[("p5", json!({"nominalQuota": 100}))]);
        let site = |quota: Value| cohort("site", "", quota);
        let team = |quota: Value| cohort("team", "site", quota);
        let other = |quota: Value| cohort("other", "site", quota);
        let none = || json!({"nominalQuota": 0});
        let table = [
            (vec![a.clone(), team(json!({"nominalQuota": 4}))], 12),
            (vec![a.clone(), b.clone(), team(none()), other(none())], 108),
            (vec![a.clone(), b.clone(), team(none()), other(none()), site(json!({"nominalQuota": 1}))], 109),
            (vec![a.clone(), b.clone(), team(json!({"nominalQuota": 0, "borrowingLimit": 3})), other(none())], 11),
            (vec![a.clone(), b, team(none()), other(json!({"nominalQuota": 0, "lendingLimit": 5}))], 13),
            // A loop ends.
            (vec![a, cohort("team", "site", none()), cohort("site", "team", none())], 8),
        ];
        for (objects, expected) in table {
            let (_, most) = most(&objects);
            match objects.len() {
                3 if objects[2]["spec"]["parentName"] == "team" => assert!(most >= expected),
                _ => assert_eq!(most, expected, "{objects:?}"),
            }
        }
    }

    #[test]
    fn flavors_are_added_up_and_the_largest_is_told() {
        let two = queue("a", "v1beta2", "", &[("g5", json!({"nominalQuota": 8})), ("p5", json!({"nominalQuota": 16}))]);
        let queues = queues(&[two, local("q", "a")]);
        let capacity = queues.behind("ns", "q").expect("is there");
        assert_eq!((capacity.most(GPU), capacity.largest_flavor(GPU)), (24, Some(("p5", 16))));
        assert_eq!((capacity.most("cpu"), capacity.largest_flavor("aws.amazon.com/neuron")), (0, None));
    }

    #[test]
    fn what_is_missing_and_what_waits() {
        let mut stopped = queue("a", "v1beta2", "", &[("p5", json!({"nominalQuota": 8}))]);
        let mut known = queues(&[stopped.clone(), local("q", "a"), local("lost", "gone")]);
        assert_eq!(known.behind("ns", "other").err(), Some(Missing::LocalQueue));
        assert_eq!(known.behind("elsewhere", "q").err(), Some(Missing::LocalQueue));
        assert_eq!(known.behind("ns", "lost").err(), Some(Missing::ClusterQueue("gone".to_owned())));
        let waits = |queues: &Queues| queues.behind("ns", "q").ok().and_then(|q| q.waits().map(str::to_owned));
        assert_eq!(waits(&known), None);
        stopped["status"] = json!({"conditions": [{"type": "Active", "status": "False", "message": "no flavor"}]});
        known.insert(&Meta::read(&stopped, None), &stopped);
        assert_eq!(waits(&known).as_deref(), Some("no flavor"));
        stopped["spec"]["stopPolicy"] = json!("Hold");
        known.insert(&Meta::read(&stopped, None), &stopped);
        assert_eq!(waits(&known).as_deref(), Some("stopped, Hold"));
        known.remove(&Meta::read(&stopped, None));
        assert_eq!(known.behind("ns", "q").err(), Some(Missing::ClusterQueue("a".to_owned())));
    }

    #[test]
    fn what_is_reserved_is_added_up_over_flavors() {
        let mut object = queue("a", "v1beta1", "", &[("p5", json!({"nominalQuota": 8}))]);
        object["status"] = json!({"flavorsReservation": [
            {"name": "p5", "resources": [{"name": GPU, "total": "6", "borrowed": 0}]},
            {"name": "g5", "resources": [{"name": GPU, "total": 2}, {"name": "cpu", "total": "1500m"}]},
        ]});
        let queues = queues(&[object, local("q", "a")]);
        let reserved = queues.behind("ns", "q").expect("is there").reserved().clone();
        assert_eq!((reserved.get(GPU), reserved.get("cpu")), (8, 1));
    }
}
