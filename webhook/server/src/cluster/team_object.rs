//! The `Team` custom resource: its definition, generated from the types that the engine reads, and its status.

use std::collections::{BTreeMap, BTreeSet};

use engine::amounts::{ResourceName, is_accelerator};
use engine::queues::{Capacity, Queues};
use engine::team::{QuotaMode, TeamSpec};
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::discovery::ApiResource;
use kube::core::schema::{OptionalEnum, StructuralSchemaRewriter};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::transform::{AddNullable, Transform, transform_subschemas};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::resources;

pub const KIND: &str = "Team";
pub const PLURAL: &str = "teams";
pub const GROUP: &str = "cedargate.dev";
pub const VERSION: &str = "v1alpha1";

/// How to reach Teams.
pub fn resource() -> ApiResource {
    resources::resource(GROUP, VERSION, KIND, PLURAL)
}

/// What the gate says about a Team.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TeamStatus {
    /// When the last of its namespaces came under the gate; absent while one has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governed_since: Option<Timestamp>,
    /// Namespaces that the gate sees, each with when it began to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<GovernedNamespace>,
    /// `Governed`: both webhook configurations hold every namespace. `Conflict`: another Team, or the cluster, has what this
    /// one declares. `Unusable`: the Team cannot be read, so that nothing but its namespaces counts. `PoliciesCurrent`: the
    /// gate decides by the policies that it was given last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Accelerators that may be held, for people: `nvidia.com/gpu 16`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Accelerators that are held, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GovernedNamespace {
    pub name: String,
    pub governed_since: Timestamp,
}

/// As `kubectl wait --for=condition=Governed` reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    pub reason: String,
    pub message: String,
    pub last_transition_time: Timestamp,
}

/// The limit as the printer column shows it. Of a team whose work Kueue queues, what its queues have, and what they could
/// borrow.
pub fn limit(spec: &TeamSpec, queues: &Queues) -> Option<String> {
    let quota = spec.quota.as_ref()?;
    match quota.mode {
        QuotaMode::Kueue => Some(queued_limit(queued_amounts(spec, queues))),
        QuotaMode::Ledger => {
            let amounts: Vec<String> =
                quota.limit.iter().map(|(resource, limit)| format!("{resource} {limit}")).collect();
            (!amounts.is_empty()).then(|| amounts.join(", "))
        }
    }
}

/// Accelerators that the team's ClusterQueues have given, as Kueue says; those of another team, too, that shares one.
pub fn queued(spec: &TeamSpec, queues: &Queues) -> Option<String> {
    if spec.quota.as_ref()?.mode != QuotaMode::Kueue {
        return None;
    }
    let given = queued_amounts(spec, queues).unwrap_or_default().into_iter().filter(|amount| amount.used > 0);
    let amounts: Vec<String> = given.map(|amount| format!("{} {}", amount.resource, amount.used)).collect();
    Some(if amounts.is_empty() { "nothing".to_owned() } else { amounts.join(", ") })
}

/// One accelerator of the queues of a team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedAmount {
    pub resource: ResourceName,
    pub used: u64,
    pub nominal: u64,
    /// With all that could be borrowed.
    pub most: u64,
}

/// What is behind the LocalQueues of its namespaces, each ClusterQueue once. `None`: nothing is.
pub fn queued_amounts(spec: &TeamSpec, queues: &Queues) -> Option<Vec<QueuedAmount>> {
    let behind = spec.namespaces.iter().filter_map(|namespace| queues.behind(namespace, spec.queue.as_ref()?).ok());
    let by_name: BTreeMap<&str, Capacity<'_>> = behind.map(|found| (found.cluster_queue(), found)).collect();
    let sum = |of: &dyn Fn(&Capacity<'_>) -> u64| by_name.values().map(of).fold(0, u64::saturating_add);
    let resources: BTreeSet<&ResourceName> = by_name.values().flat_map(Capacity::resources).collect();
    let accelerators = resources.into_iter().filter(|resource| is_accelerator(resource.as_str()));
    let amount = |resource: &ResourceName| QueuedAmount {
        resource: resource.clone(),
        used: sum(&|queue| queue.reserved().get(resource.as_str())),
        nominal: sum(&|queue| queue.nominal(resource.as_str())),
        most: sum(&|queue| queue.most(resource.as_str())),
    };
    (!by_name.is_empty()).then(|| accelerators.map(amount).collect())
}

fn queued_limit(amounts: Option<Vec<QueuedAmount>>) -> String {
    let amount = |QueuedAmount { resource, nominal, most, .. }: &QueuedAmount| {
        let borrowed = if most > nominal { format!(" (up to {most})") } else { String::new() };
        format!("{resource} {nominal}{borrowed}")
    };
    match amounts {
        None => "by Kueue, no queue".to_owned(),
        Some(amounts) if amounts.is_empty() => "by Kueue, nothing".to_owned(),
        Some(amounts) => format!("by Kueue, {}", amounts.iter().map(amount).collect::<Vec<_>>().join(", ")),
    }
}

/// The definition that `cedargate crds` prints and the chart installs.
pub fn definition() -> CustomResourceDefinition {
    let column = |name: &str, path: &str, kind: &str| json!({"name": name, "jsonPath": path, "type": kind});
    let condition = |kind: &str| format!(".status.conditions[?(@.type==\"{kind}\")].status");
    let definition = json!({
        "metadata": {"name": format!("{PLURAL}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"kind": KIND, "plural": PLURAL, "singular": "team"},
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Used", ".status.used", "string"),
                    column("Limit", ".status.limit", "string"),
                    column("Governed", &condition("Governed"), "string"),
                    column("Conflict", &condition("Conflict"), "string"),
                    column("Age", ".metadata.creationTimestamp", "date"),
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "description": "A team that shares the cluster: who is in it, where it works, what it may take.",
                    "required": ["spec"],
                    "properties": {"spec": schema_of::<TeamSpec>(), "status": schema_of::<TeamStatus>()},
                }},
            }],
        },
    });
    serde_json::from_value(definition).expect("the definition has the fields of its type")
}

pub(super) fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(AsWritten);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(fields) = schema.as_object_mut() {
        // The name of a Rust type.
        fields.remove("title");
    }
    schema
}

/// Keeps objects as they were written.
///
/// - No defaults: the API server would write them into every Team, and GitOps would see a difference for ever.
/// - Unknown fields reach the gate, which refuses them by name; pruned, a misspelt `readOnly` would vanish without a word.
/// - Formats that Kubernetes does not know (`uint32`, `uint64`) would only be warned about.
#[derive(Debug, Clone)]
struct AsWritten;

impl Transform for AsWritten {
    fn transform(&mut self, schema: &mut schemars::Schema) {
        transform_subschemas(self, schema);
        schema.remove("default");
        if schema.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
            schema.remove("format");
        }
        if schema.get("minimum").and_then(Value::as_f64) == Some(0.0) {
            // Whole numbers print without a fraction.
            schema.insert("minimum".to_owned(), json!(0));
        }
        if schema.get("properties").is_some() {
            schema.remove("additionalProperties");
            schema.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
        }
    }
}

/// Where a condition stands now.
pub fn condition(
    kind: &str,
    holds: bool,
    reason: &str,
    message: String,
    before: &[Condition],
    now: Timestamp,
) -> Condition {
    let status = if holds { "True" } else { "False" }.to_owned();
    let unchanged = before.iter().find(|condition| condition.kind == kind && condition.status == status);
    Condition {
        kind: kind.to_owned(),
        status,
        reason: reason.to_owned(),
        message,
        last_transition_time: unchanged.map_or(now, |condition| condition.last_transition_time),
    }
}

/// By name, from what the API server has.
pub fn status_of(object: &Value) -> TeamStatus {
    object.get("status").cloned().and_then(|status| serde_json::from_value(status).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition() {
        insta::assert_json_snapshot!(definition());
    }

    #[test]
    fn what_a_queued_team_has_and_holds() {
        let mut cluster = engine::cluster::Cluster::default();
        let quota = |nominal: &str, most: Value| json!({"name": "nvidia.com/gpu", "nominalQuota": nominal, "borrowingLimit": most});
        let queue = |name: &str, quota: Value| {
            json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name},
                "spec": {"cohortName": "site", "resourceGroups": [{"flavors": [{"name": "p5", "resources": [
                    quota, {"name": "cpu", "nominalQuota": 4}, {"name": "aws.amazon.com/neuron", "nominalQuota": 0},
                ]}]}]},
                "status": {"flavorsReservation": [{"name": "p5", "resources": [
                    {"name": "nvidia.com/gpu", "total": 6}, {"name": "cpu", "total": 3},
                ]}]},
            })
        };
        let local = |namespace: &str, queue: &str| {
            json!({
                "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue",
                "metadata": {"name": "q", "namespace": namespace}, "spec": {"clusterQueue": queue},
            })
        };
        let spec: TeamSpec = serde_json::from_value(json!({
            "namespaces": ["one", "two", "none"], "queue": "q", "quota": {"mode": "kueue"},
        }))
        .expect("a spec");
        let said = |cluster: &engine::cluster::Cluster| {
            (limit(&spec, cluster.queues()).unwrap_or_default(), queued(&spec, cluster.queues()).unwrap_or_default())
        };
        assert_eq!(said(&cluster), ("by Kueue, no queue".to_owned(), "nothing".to_owned()));
        cluster.insert(queue("a", quota("8", json!(2))));
        cluster.insert(queue("b", quota("4", json!(0))));
        // Two namespaces with one queue behind them: it counts once.
        cluster.insert(local("one", "a"));
        cluster.insert(local("two", "a"));
        let a = ("by Kueue, aws.amazon.com/neuron 0, nvidia.com/gpu 8 (up to 10)", "nvidia.com/gpu 6");
        assert_eq!(said(&cluster), (a.0.to_owned(), a.1.to_owned()));
        cluster.insert(local("two", "b"));
        let both = ("by Kueue, aws.amazon.com/neuron 0, nvidia.com/gpu 12 (up to 14)", "nvidia.com/gpu 12");
        assert_eq!(said(&cluster), (both.0.to_owned(), both.1.to_owned()));
    }

    /// What the API server checks of a structural schema, as far as the types could break it.
    #[test]
    fn the_schema_is_structural() {
        fn walk(schema: &Value, path: &str) {
            let object = schema.as_object().unwrap_or_else(|| unreachable!("{path} is a schema"));
            for key in ["$ref", "anyOf", "oneOf", "allOf", "default", "title", "definitions", "const"] {
                assert!(!object.contains_key(key), "{path} has {key}");
            }
            assert!(object.contains_key("type"), "{path} has a type");
            assert!(!(object.contains_key("properties") && object.contains_key("additionalProperties")), "{path}");
            for (name, property) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
                walk(property, &format!("{path}.{name}"));
            }
            for key in ["items", "additionalProperties"] {
                if let Some(below) = object.get(key) {
                    walk(below, &format!("{path}.{key}"));
                }
            }
        }
        walk(&schema_of::<TeamSpec>(), "spec");
        walk(&schema_of::<TeamStatus>(), "status");
    }

    #[test]
    fn a_condition_keeps_its_time_while_it_stands() {
        let (then, now) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        let first = condition("Governed", true, "Held", String::new(), &[], then);
        let again = condition("Governed", true, "Held", "more".to_owned(), std::slice::from_ref(&first), now);
        assert_eq!(again.last_transition_time, then);
        let turned = condition("Governed", false, "Waiting", String::new(), &[first], now);
        assert_eq!(turned.last_transition_time, now);
    }
}
