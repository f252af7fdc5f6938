//! What an UPDATE changed, beside status: the two objects are compared as JSON, and each differing place is named by the
//! fields on its way. Works for every kind, so that a new one cannot be forgotten.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::stamp;
use crate::vocabulary::Change;

/// The outcome of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    pub set: BTreeSet<Change>,
    /// What runs is not what the submitter wrote: container, command, volume or identity, in a template or a pod.
    pub rewrites: bool,
}

impl Changes {
    /// Compares what an UPDATE found with what it leaves.
    pub fn between(old: &Value, new: &Value) -> Self {
        let mut changes = Self::default();
        compare(&mut Vec::new(), old, new, &mut |path| changes.note(path));
        changes
    }

    /// Nothing but metadata that takes nothing: labels, annotations, finalizers.
    pub fn is_bookkeeping(&self) -> bool {
        self.set.iter().all(|change| matches!(change, Change::Labels | Change::Annotations | Change::Finalizers))
    }

    fn note(&mut self, path: &[&str]) {
        let Some(change) = classify(path) else { return };
        self.set.insert(change);
        self.rewrites |= match change {
            Change::Image | Change::Command | Change::Env | Change::Identity | Change::Storage | Change::Owners => true,
            Change::Other
            | Change::Resources
            | Change::Replicas
            | Change::Placement
            | Change::Queue
            | Change::Priority
            | Change::Suspend
            | Change::Labels
            | Change::Annotations
            | Change::Finalizers => false,
        };
    }
}

fn compare<'a>(path: &mut Vec<&'a str>, old: &'a Value, new: &'a Value, note: &mut dyn FnMut(&[&str])) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => compare_maps(path, old, new, note),
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (old, new) in old.iter().zip(new) {
                compare(path, old, new, note);
            }
        }
        (old, new) if old == new => {}
        // Absent and null are the same: what comes or goes is named field by field.
        (Value::Null, Value::Object(new)) if !new.is_empty() => compare_maps(path, &NOTHING, new, note),
        (Value::Object(old), Value::Null) if !old.is_empty() => compare_maps(path, old, &NOTHING, note),
        _ => note(path),
    }
}

static NULL: Value = Value::Null;
static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

fn compare_maps<'a>(
    path: &mut Vec<&'a str>,
    old: &'a Map<String, Value>,
    new: &'a Map<String, Value>,
    note: &mut dyn FnMut(&[&str]),
) {
    let keys: BTreeSet<&'a String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        path.push(key);
        compare(path, old.get(key).unwrap_or(&NULL), new.get(key).unwrap_or(&NULL), note);
        path.pop();
    }
}

/// Names a place by the last field on its way that means something. `None` for what no rule governs.
fn classify(path: &[&str]) -> Option<Change> {
    match path {
        ["status", ..] | ["apiVersion" | "kind"] => None,
        ["metadata", rest @ ..] => metadata(rest),
        // `kubectl rollout restart` starts the same again.
        [.., "annotations", "kubectl.kubernetes.io/restartedAt"] => Some(Change::Other),
        _ => Some(of_spec(named(path))),
    }
}

/// The part of a path that Kubernetes names: keys of a map that users fill, such as a template's annotations, must not
/// pass for fields.
fn named<'a, 'b>(path: &'a [&'b str]) -> &'a [&'b str] {
    let maps = [
        "labels",
        "annotations",
        "nodeSelector",
        "matchLabels",
        "limits",
        "requests",
        "data",
        "stringData",
        "selector",
    ];
    let end = path.iter().position(|key| maps.contains(key)).map_or(path.len(), |position| position + 1);
    &path[..end]
}

/// The last field on the way that means something. One that nobody knows may be what runs.
fn of_spec(path: &[&str]) -> Change {
    let harmless = path.last().is_some_and(|key| HARMLESS.contains(key)) || path.contains(&"strategy");
    match path.iter().rev().find_map(|key| field(key)) {
        Some(change) => change,
        None if harmless => Change::Other,
        None => Change::Command,
    }
}

/// Fields that say when and how often, never what.
const HARMLESS: [&str; 20] = [
    "paused",
    "ttlSecondsAfterFinished",
    "backoffLimit",
    "activeDeadlineSeconds",
    "minReadySeconds",
    "revisionHistoryLimit",
    "progressDeadlineSeconds",
    "updateStrategy",
    "concurrencyPolicy",
    "schedule",
    "timeZone",
    "successfulJobsHistoryLimit",
    "failedJobsHistoryLimit",
    "startingDeadlineSeconds",
    "terminationGracePeriodSeconds",
    "idleShutdown",
    "displayName",
    "cleanPodPolicy",
    "active",
    "selector",
];

fn metadata(path: &[&str]) -> Option<Change> {
    match path {
        ["labels" | "annotations", "kueue.x-k8s.io/priority-class"] => Some(Change::Priority),
        // Which queue, and whatever else Kueue is told by metadata: what it manages, what it groups, what was admitted.
        ["labels" | "annotations", key] if key.starts_with("kueue.x-k8s.io/") => Some(Change::Queue),
        ["labels" | "annotations", key] if key.starts_with(stamp::PREFIX) && *key != stamp::REASON => None,
        ["labels", ..] => Some(Change::Labels),
        ["annotations", "kubectl.kubernetes.io/last-applied-configuration"] => None,
        ["annotations", ..] => Some(Change::Annotations),
        ["finalizers", ..] => Some(Change::Finalizers),
        ["ownerReferences", ..] => Some(Change::Owners),
        // The API server's own: managedFields, resourceVersion, generation, deletionTimestamp ...
        _ => None,
    }
}

fn field(key: &str) -> Option<Change> {
    Some(match key {
        "image" | "containers" | "initContainers" | "ephemeralContainers" | "defaultImage" => Change::Image,
        "command" | "args" | "workingDir" | "lifecycle" | "livenessProbe" | "readinessProbe" | "startupProbe"
        | "entrypoint" | "containerConfig" => Change::Command,
        "env" | "envFrom" | "environmentVariables" => Change::Env,
        "resources" | "resourceClaims" | "overhead" => Change::Resources,
        "replicas" | "parallelism" | "completions" | "minReplicas" | "maxReplicas" | "spares" | "autoScalingSpec"
        | "elasticPolicy" | "minReplicaCount" | "maxReplicaCount" | "numOfHosts" | "numNodes" | "scaleStrategy"
        | "workersToDelete" => Change::Replicas,
        "nodeSelector"
        | "affinity"
        | "nodeAffinity"
        | "tolerations"
        | "nodeName"
        | "schedulerName"
        | "topologySpreadConstraints"
        | "instanceType"
        | "instanceTypes"
        | "runtimeClassName"
        | "schedulingGates" => Change::Placement,
        "serviceAccountName"
        | "serviceAccount"
        | "securityContext"
        | "podSecurityContext"
        | "containerSecurityContext"
        | "executionRole"
        | "gatedModelDownloadRole"
        | "hostNetwork"
        | "hostPID"
        | "hostIPC"
        | "automountServiceAccountToken"
        | "imagePullSecrets" => Change::Identity,
        "volumes" | "volumeMounts" | "volumeDevices" | "volumeClaimTemplates" | "storage" | "modelSourceConfig" => {
            Change::Storage
        }
        "priorityClassName" | "priority" | "preemptionPolicy" => Change::Priority,
        "suspend" | "desiredStatus" => Change::Suspend,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn changes(old: Value, new: Value) -> (Vec<Change>, bool) {
        let Changes { set, rewrites } = Changes::between(&old, &new);
        (set.into_iter().collect(), rewrites)
    }

    #[test]
    fn each_place_has_its_name() {
        let pod = |container: Value| json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        let cases = [
            (json!({"status": {"a": 1}}), json!({"status": {"a": 2}}), vec![], false),
            (
                json!({"metadata": {"resourceVersion": "1"}}),
                json!({"metadata": {"resourceVersion": "2"}}),
                vec![],
                false,
            ),
            (json!({}), json!({"metadata": {"labels": {"a": "b"}}}), vec![Change::Labels], false),
            (json!({"metadata": {"finalizers": ["x"]}}), json!({"metadata": {}}), vec![Change::Finalizers], false),
            (json!({}), json!({"metadata": {"ownerReferences": [{}]}}), vec![Change::Owners], true),
            (json!({"spec": {"replicas": 1}}), json!({"spec": {"replicas": 2}}), vec![Change::Replicas], false),
            (json!({"spec": {"suspend": true}}), json!({"spec": {"suspend": false}}), vec![Change::Suspend], false),
            (pod(json!({"image": "a"})), pod(json!({"image": "b"})), vec![Change::Image], true),
            (pod(json!({"name": "a"})), pod(json!({"name": "b"})), vec![Change::Image], true),
            (pod(json!({})), pod(json!({"env": [{"name": "A"}]})), vec![Change::Env], true),
            (pod(json!({"args": ["a"]})), pod(json!({"args": ["a", "b"]})), vec![Change::Command], true),
            (
                pod(json!({"securityContext": {"runAsUser": 1}})),
                pod(json!({"securityContext": {"runAsUser": 2}})),
                vec![Change::Identity],
                true,
            ),
            (
                json!({"spec": {"template": {"spec": {"newField": 1}}}}),
                json!({"spec": {"template": {"spec": {"newField": 2}}}}),
                vec![Change::Command],
                true,
            ),
            (
                json!({"spec": {"serveConfigV2": "a"}}),
                json!({"spec": {"serveConfigV2": "b"}}),
                vec![Change::Command],
                true,
            ),
            (
                json!({"spec": {"template": {"metadata": {"annotations": {}}}}}),
                json!({"spec": {"template": {"metadata": {"annotations": {"replicas": "2"}}}}}),
                vec![Change::Command],
                true,
            ),
            (
                json!({}),
                json!({"metadata": {"annotations": {"kueue.x-k8s.io/pod-group-name": "g"}}}),
                vec![Change::Queue],
                false,
            ),
            (
                json!({"metadata": {"labels": {"kueue.x-k8s.io/managed": "true", "kueue.x-k8s.io/priority-class": "a"}}}),
                json!({}),
                vec![Change::Queue, Change::Priority],
                false,
            ),
            (json!({"spec": {"paused": false}}), json!({"spec": {"paused": true}}), vec![Change::Other], false),
            (
                json!({"metadata": {"labels": {"cedargate.dev/team": "a"}}}),
                json!({"metadata": {"labels": {}}}),
                vec![],
                false,
            ),
        ];
        for (old, new, set, rewrites) in cases {
            assert_eq!(changes(old.clone(), new.clone()), (set, rewrites), "{old} -> {new}");
        }
    }
}
