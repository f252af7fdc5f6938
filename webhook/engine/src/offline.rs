//! What stands in for a cluster where there is none: a state file, and the reviews that an API server would make of a
//! manifest. `explain`, `demo` and the case files share it, so that none of them is a second implementation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::amounts::Amounts;
use crate::cluster::{Cluster, group_version};
use crate::json as read;
use crate::quota::{Entry, Ledger};
use crate::review::{API_VERSION, Operation, UserInfo};
use crate::vocabulary::Class;

/// What a state file says: YAML or JSON.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct State {
    /// Kubernetes objects that exist: owners, targets of `scale` and `exec`.
    pub objects: Vec<Value>,
    /// By team: what is used, by work that matters no further.
    pub used: BTreeMap<String, Amounts>,
    /// By team: the ledger, where it matters who holds what.
    pub ledgers: BTreeMap<String, Ledger>,
}

impl State {
    pub fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::default();
        self.objects.iter().for_each(|object| cluster.insert(object.clone()));
        cluster
    }

    pub fn ledgers(&self) -> BTreeMap<String, Ledger> {
        let mut ledgers = self.ledgers.clone();
        for (team, used) in &self.used {
            let entry = Entry { floor: used.clone(), ..Entry::new("Job", "", "other work", Class::Batch) };
            ledgers.entry(team.clone()).or_default().entries.insert("other-work".to_owned(), entry);
        }
        ledgers
    }
}

/// The namespace that an object goes to where it names none, as kubectl's context would say.
pub const DEFAULT_NAMESPACE: &str = "default";

/// The review that an API server makes of an object.
pub fn review_of(object: &Value, old: Option<&Value>, user: &UserInfo, operation: Operation, dry_run: bool) -> Value {
    let text = |keys: &[&str]| read::text(object, keys);
    let (group, version) = group_version(text(&["apiVersion"]).unwrap_or_default());
    let kind = text(&["kind"]).unwrap_or_default();
    let plural = plural(kind);
    let namespace = match kind {
        "Namespace" => text(&["metadata", "name"]),
        _ if CLUSTER_SCOPED.contains(&kind) => None,
        _ => Some(text(&["metadata", "namespace"]).unwrap_or(DEFAULT_NAMESPACE)),
    };
    let (object, old) = match operation {
        Operation::Delete => (Value::Null, old.unwrap_or(object).clone()),
        Operation::Create | Operation::Update | Operation::Connect => {
            (object.clone(), old.cloned().unwrap_or(Value::Null))
        }
    };
    let name = read::text(if object.is_null() { &old } else { &object }, &["metadata", "name"]);
    let uid = crate::digest(format!("{kind}/{}/{}", namespace.unwrap_or_default(), object).as_bytes());
    json!({
        "apiVersion": API_VERSION,
        "kind": "AdmissionReview",
        "request": {
            "uid": uid.trim_start_matches("sha256:"),
            "kind": {"group": group, "version": version, "kind": kind},
            "resource": {"group": group, "version": version, "resource": plural},
            "requestKind": {"group": group, "version": version, "kind": kind},
            "requestResource": {"group": group, "version": version, "resource": plural},
            "name": name,
            "namespace": namespace,
            "operation": operation,
            "userInfo": user,
            "object": object,
            "oldObject": old,
            "dryRun": dry_run,
            "options": null,
        }
    })
}

/// Kinds that the gate meets and that live in no namespace.
const CLUSTER_SCOPED: [&str; 14] = [
    "Namespace",
    "PersistentVolume",
    "StorageClass",
    "ClusterRole",
    "ClusterRoleBinding",
    "ClusterQueue",
    "Cohort",
    "ResourceFlavor",
    "Topology",
    "AdmissionCheck",
    "WorkloadPriorityClass",
    "PriorityClass",
    "Team",
    "CustomResourceDefinition",
];

/// The plural of a kind, by the rule that `kubebuilder` uses for CRDs; the API server has the real one.
pub fn plural(kind: &str) -> String {
    let lower = kind.to_ascii_lowercase();
    if lower.ends_with('s') || lower.ends_with('x') {
        return format!("{lower}es");
    }
    match lower.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u'])) {
        Some(stem) => format!("{stem}ies"),
        None => format!("{lower}s"),
    }
}
