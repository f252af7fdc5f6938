//! What the cluster holds, as far as a decision needs it: the objects on the way from a pod up to its root, the targets of
//! `scale` and `exec`. A decision reads one frozen view; whoever keeps it up to date is outside.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use crate::amounts::Amounts;
use crate::facts::kinds::Kinds;
use crate::json;
use crate::queues::{self, Queues};

/// A frozen view.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    by_uid: HashMap<String, Arc<StoredObject>>,
    by_name: HashMap<Name, String>,
    departed: Departed,
    queues: Arc<Queues>,
}

/// Uids of what was here and is gone, the latest of them: nothing of that uid ever comes back.
#[derive(Debug, Clone, Default)]
struct Departed {
    uids: HashSet<Arc<str>>,
    in_order: VecDeque<Arc<str>>,
}

impl Departed {
    /// More than end in the minutes that a ledger waits for the proof of one that it missed.
    const MOST: usize = 16_384;

    fn insert(&mut self, uid: &str) {
        let uid: Arc<str> = Arc::from(uid);
        if self.uids.insert(Arc::clone(&uid)) {
            self.in_order.push_back(uid);
        }
        if self.in_order.len() > Self::MOST
            && let Some(first) = self.in_order.pop_front()
        {
            self.uids.remove(&first);
        }
    }
}

/// Group, kind (lower case), namespace, name: versions are views of the same object.
type Name = (String, String, String, String);

/// An object as it was last seen.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredObject {
    pub meta: Meta,
    pub object: Value,
    /// See [`StoredObject::holds`].
    holds: OnceLock<Amounts>,
}

impl StoredObject {
    pub fn new(meta: Meta, object: Value) -> Self {
        Self { meta, object, holds: OnceLock::new() }
    }

    /// What it needs of the quota as it is stored: of a pod, what it asks for; of anything else, what runs now. Nothing once
    /// it has finished. Worked out once, since a ledger asks for it in every round.
    pub fn holds(&self, kinds: &Kinds) -> &Amounts {
        self.holds.get_or_init(|| crate::facts::stored_demand(kinds, self))
    }
}

/// The metadata that attribution reads.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Meta {
    pub group: String,
    pub kind: String,
    pub namespace: String,
    /// Name, or `generateName` followed by `*`.
    pub name: String,
    /// Empty on CREATE in `/mutate`, where none is given yet.
    pub uid: String,
    /// Grows with every change of the spec, for the kinds that have it.
    pub generation: Option<i64>,
    pub created: Option<jiff::Timestamp>,
    pub owners: Vec<OwnerReference>,
    /// The stamp's annotation, not yet believed.
    pub stamp: Option<String>,
    /// Its spec was written by the controller manager.
    pub made_by_controller_manager: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerReference {
    pub group: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub controller: bool,
}

impl Cluster {
    /// Adds or replaces an object; one without uid cannot be an owner and is found by name only. Another of the same name
    /// is an earlier incarnation, and goes.
    pub fn insert(&mut self, mut object: Value) {
        let meta = Meta::read(&object, None);
        if meta.group == queues::GROUP {
            Arc::make_mut(&mut self.queues).insert(&meta, &object);
        }
        trim(&mut object);
        let uid = if meta.uid.is_empty() {
            format!("{}/{}/{}", meta.kind, meta.namespace, meta.name)
        } else {
            meta.uid.clone()
        };
        let name = name(&meta.group, &meta.kind, &meta.namespace, &meta.name);
        if let Some(before) = self.by_name.insert(name, uid.clone()).filter(|before| *before != uid) {
            self.by_uid.remove(&before);
            self.departed.insert(&before);
        }
        self.by_uid.insert(uid, Arc::new(StoredObject { meta, object, holds: OnceLock::new() }));
    }

    /// What has taken the name of the removed object since stays.
    pub fn remove(&mut self, uid: &str) {
        if let Some(gone) = self.by_uid.remove(uid) {
            self.departed.insert(uid);
            let Meta { group, kind, namespace, name: object_name, .. } = &gone.meta;
            let name = name(group, kind, namespace, object_name);
            if self.by_name.get(&name).is_some_and(|named| named == uid) {
                self.by_name.remove(&name);
                if gone.meta.group == queues::GROUP {
                    Arc::make_mut(&mut self.queues).remove(&gone.meta);
                }
            }
        }
    }

    /// The pods of a namespace are these and no others.
    pub fn replace_pods(&mut self, namespace: &str, pods: Vec<Value>) {
        let are_pods_there = |meta: &Meta| meta.kind == "Pod" && meta.group.is_empty() && meta.namespace == namespace;
        let before: Vec<String> =
            self.by_uid.iter().filter(|(_, stored)| are_pods_there(&stored.meta)).map(|(uid, _)| uid.clone()).collect();
        before.iter().for_each(|uid| self.remove(uid));
        pods.into_iter().for_each(|pod| self.insert(pod));
    }

    /// Kueue's queues.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Everything, in no order.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<StoredObject>> {
        self.by_uid.values()
    }

    /// Whether it was here and is gone. Of what ended long ago nothing is known any more.
    pub fn has_departed(&self, uid: &str) -> bool {
        self.departed.uids.contains(uid)
    }

    pub fn of_uid(&self, uid: &str) -> Option<&Arc<StoredObject>> {
        self.by_uid.get(uid)
    }

    pub fn named(&self, group: &str, kind: &str, namespace: &str, object: &str) -> Option<&Arc<StoredObject>> {
        self.by_uid.get(self.by_name.get(&name(group, kind, namespace, object))?)
    }
}

fn name(group: &str, kind: &str, namespace: &str, name: &str) -> Name {
    (group.to_owned(), kind.to_ascii_lowercase(), namespace.to_owned(), name.to_owned())
}

impl Meta {
    /// Reads what is there; `namespace` of the request wins over the object's.
    pub fn read(object: &Value, namespace: Option<&str>) -> Self {
        let text = |keys: &[&str]| json::text(object, keys).unwrap_or_default().to_owned();
        let (group, _) = group_version(json::text(object, &["apiVersion"]).unwrap_or_default());
        let generated = || json::text(object, &["metadata", "generateName"]).map(|name| format!("{name}*"));
        Self {
            group: group.to_owned(),
            kind: text(&["kind"]),
            namespace: namespace.map_or_else(|| text(&["metadata", "namespace"]), str::to_owned),
            name: json::text(object, &["metadata", "name"]).map(str::to_owned).or_else(generated).unwrap_or_default(),
            uid: text(&["metadata", "uid"]),
            generation: json::at(object, &["metadata", "generation"]).and_then(Value::as_i64),
            created: json::text(object, &["metadata", "creationTimestamp"]).and_then(|time| time.parse().ok()),
            owners: json::list(object, &["metadata", "ownerReferences"]).iter().map(OwnerReference::read).collect(),
            stamp: json::text(object, &["metadata", "annotations", crate::stamp::SUBMITTED_BY]).map(str::to_owned),
            made_by_controller_manager: made_by_controller_manager(object),
        }
    }

    /// The one reference with `controller: true`, if there is exactly one.
    pub fn controller(&self) -> Option<&OwnerReference> {
        let mut controllers = self.owners.iter().filter(|owner| owner.controller);
        controllers.next().filter(|_| controllers.next().is_none())
    }

    pub fn has_controller(&self) -> bool {
        self.owners.iter().any(|owner| owner.controller)
    }
}

impl OwnerReference {
    fn read(reference: &Value) -> Self {
        let text = |key: &str| json::text(reference, &[key]).unwrap_or_default().to_owned();
        let (group, _) = group_version(json::text(reference, &["apiVersion"]).unwrap_or_default());
        Self {
            group: group.to_owned(),
            kind: text("kind"),
            name: text("name"),
            uid: text("uid"),
            controller: json::at(reference, &["controller"]).and_then(Value::as_bool).unwrap_or(false),
        }
    }
}

/// Takes away what no decision reads and what makes up most of an object: a cluster holds tens of thousands of them.
/// Of the status stays what says that nothing runs any more, or how much is left to run.
fn trim(object: &mut Value) {
    let status = json::at(object, &["status"]).map(trimmed_status).filter(|status| !status.is_empty());
    let Some(fields) = object.as_object_mut() else { return };
    fields.remove("status");
    if let Some(status) = status {
        fields.insert("status".to_owned(), Value::Object(status));
    }
    let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    metadata.remove("managedFields");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

fn trimmed_status(status: &Value) -> Map<String, Value> {
    let kept = ["phase", "succeeded", "jobDeploymentStatus"];
    let mut trimmed: Map<String, Value> =
        kept.iter().filter_map(|key| Some(((*key).to_owned(), status.get(*key)?.clone()))).collect();
    let holds = |condition: &&Value| json::text(condition, &["status"]) == Some("True");
    let conditions = json::list(status, &["conditions"]).iter().filter(holds);
    let conditions: Vec<Value> = conditions
        .filter_map(|condition| json::text(condition, &["type"]))
        .filter(|kind| FINISHED.contains(kind))
        .map(|kind| serde_json::json!({"type": kind, "status": "True"}))
        .collect();
    if !conditions.is_empty() {
        trimmed.insert("conditions".to_owned(), Value::Array(conditions));
    }
    trimmed
}

/// Conditions by which Job, JobSet, kubeflow's jobs and HyperPod's say that they are over. What runs pods for ever has none of
/// them, and a wrong word costs no more than the promise of a floor: pods are counted one by one.
const FINISHED: [&str; 4] = ["Complete", "Completed", "Failed", "Succeeded"];

/// Whether it will run nothing any more.
pub fn is_finished(object: &Value) -> bool {
    let says =
        |key: &str, words: &[&str]| json::text(object, &["status", key]).is_some_and(|word| words.contains(&word));
    let by_condition = json::list(object, &["status", "conditions"]).iter().any(|condition| {
        json::text(condition, &["status"]) == Some("True")
            && json::text(condition, &["type"]).is_some_and(|kind| FINISHED.contains(&kind))
    });
    let is_pod = json::text(object, &["kind"]) == Some("Pod");
    by_condition && !is_pod
        || is_pod && says("phase", &["Succeeded", "Failed"])
        || says("jobDeploymentStatus", &["Complete", "Failed"])
}

/// `apps/v1` -> `apps`, `v1`; the core group is empty.
pub fn group_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// An orphan keeps this trace of who made it: the API server writes it, and it names who owns the spec.
fn made_by_controller_manager(object: &Value) -> bool {
    json::list(object, &["metadata", "managedFields"]).iter().any(|entry| {
        json::text(entry, &["manager"]) == Some("kube-controller-manager")
            && json::at(entry, &["fieldsV1", "f:spec"]).is_some()
            && json::text(entry, &["subresource"]).is_none()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(name: &str, uid: &str) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "ns", "name": name, "uid": uid}})
    }

    #[test]
    fn an_earlier_incarnation_goes_and_its_late_removal_harms_nobody() {
        let mut cluster = Cluster::default();
        cluster.insert(job("train", "old"));
        cluster.insert(job("train", "new"));
        assert!(cluster.of_uid("old").is_none());
        cluster.remove("old");
        let found = cluster.named("batch", "job", "ns", "train").expect("is there");
        assert_eq!(found.meta.uid, "new");
        cluster.remove("new");
        assert!(cluster.named("batch", "job", "ns", "train").is_none());
    }

    #[test]
    fn is_trimmed_after_its_metadata_is_read() {
        let mut cluster = Cluster::default();
        let fields = json!([{"manager": "kube-controller-manager", "fieldsV1": {"f:spec": {}}}]);
        cluster.insert(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "p",
                "uid": "u",
                "managedFields": fields,
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"},
            },
            "spec": {"x": 1},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        }));
        let stored = cluster.of_uid("u").expect("is there");
        assert!(stored.meta.made_by_controller_manager);
        assert_eq!(
            stored.object,
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "p", "uid": "u", "annotations": {"a": "b"}},
                "spec": {"x": 1},
                "status": {"phase": "Running"},
            })
        );
    }
}
