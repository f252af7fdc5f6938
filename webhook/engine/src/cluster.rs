//! What the cluster holds, as far as a decision needs it: the objects on the way from a pod up to its root, the targets of
//! `scale` and `exec`. A decision reads one frozen view; whoever keeps it up to date is outside.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::json;

/// A frozen view.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    by_uid: HashMap<String, Arc<StoredObject>>,
    by_name: HashMap<Name, String>,
}

/// Group, kind (lower case), namespace, name: versions are views of the same object.
type Name = (String, String, String, String);

/// An object as it was last seen.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredObject {
    pub meta: Meta,
    pub object: Value,
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
        trim(&mut object);
        let uid = if meta.uid.is_empty() { format!("{}/{}/{}", meta.kind, meta.namespace, meta.name) } else { meta.uid.clone() };
        let name = name(&meta.group, &meta.kind, &meta.namespace, &meta.name);
        if let Some(before) = self.by_name.insert(name, uid.clone()).filter(|before| *before != uid) {
            self.by_uid.remove(&before);
        }
        self.by_uid.insert(uid, Arc::new(StoredObject { meta, object }));
    }

    /// What has taken the name of the removed object since stays.
    pub fn remove(&mut self, uid: &str) {
        if let Some(gone) = self.by_uid.remove(uid) {
            let Meta { group, kind, namespace, name: object_name, .. } = &gone.meta;
            let name = name(group, kind, namespace, object_name);
            if self.by_name.get(&name).is_some_and(|named| named == uid) {
                self.by_name.remove(&name);
            }
        }
    }

    /// Everything, in no order.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<StoredObject>> {
        self.by_uid.values()
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
/// Of a Pod's status the phase stays, since a finished pod holds nothing.
fn trim(object: &mut Value) {
    let phase = json::text(object, &["status", "phase"]).map(str::to_owned);
    let Some(fields) = object.as_object_mut() else { return };
    fields.remove("status");
    if let Some(phase) = phase {
        fields.insert("status".to_owned(), serde_json::json!({ "phase": phase }));
    }
    let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    metadata.remove("managedFields");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
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
