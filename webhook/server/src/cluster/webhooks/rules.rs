//! Which requests reach the gate: resources by name, never `*`, so that what the gate does not judge does not wait for it.

use std::collections::BTreeMap;

use engine::facts::kinds::Kinds;
use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;

/// Resources of one API group.
struct Group {
    name: &'static str,
    /// Created and updated; of these the mutating webhook sees the same.
    objects: &'static [&'static str],
    /// Updated under their own path. Of a status of Kubernetes' own kinds only what changes metadata that matters gets here,
    /// by a match condition; a CustomResourceDefinition's carries none.
    subresources: &'static [&'static str],
}

/// In team namespaces, and outside them for people: what the engine reads itself. Configured kinds come beside it.
const GROUPS: &[Group] = &[
    Group {
        name: "",
        objects: &[
            "pods",
            "replicationcontrollers",
            "services",
            "secrets",
            "serviceaccounts",
            "persistentvolumeclaims",
        ],
        subresources: &[
            "pods/ephemeralcontainers",
            "pods/resize",
            "pods/status",
            "replicationcontrollers/scale",
            "replicationcontrollers/status",
            "services/status",
            "persistentvolumeclaims/status",
        ],
    },
    Group {
        name: "apps",
        objects: &["deployments", "statefulsets", "replicasets", "daemonsets", "controllerrevisions"],
        subresources: &[
            "deployments/scale",
            "deployments/status",
            "statefulsets/scale",
            "statefulsets/status",
            "replicasets/scale",
            "replicasets/status",
            "daemonsets/status",
        ],
    },
    Group { name: "batch", objects: &["jobs", "cronjobs"], subresources: &["jobs/status", "cronjobs/status"] },
    Group {
        name: "networking.k8s.io",
        objects: &["ingresses", "networkpolicies"],
        subresources: &["ingresses/status"],
    },
    Group { name: "rbac.authorization.k8s.io", objects: &["roles", "rolebindings"], subresources: &[] },
    Group {
        name: "inference.sagemaker.aws.amazon.com",
        objects: &[
            "inferenceendpointconfigs",
            "jumpstartmodels",
            "sagemakerendpointregistrations",
            "inferencegatewayconfigs",
        ],
        subresources: &["inferenceendpointconfigs/scale", "jumpstartmodels/scale"],
    },
    Group {
        name: "workspace.jupyter.org",
        objects: &["workspaces", "workspacetemplates", "workspaceaccessstrategies"],
        subresources: &[],
    },
    // What jobs of others are made from.
    Group { name: "trainer.kubeflow.org", objects: &["trainingruntimes"], subresources: &[] },
    // What scales others.
    Group { name: "keda.sh", objects: &["scaledobjects"], subresources: &[] },
    Group { name: "autoscaling", objects: &["horizontalpodautoscalers"], subresources: &[] },
    // A Workload's status is what admits it to a queue.
    Group { name: "kueue.x-k8s.io", objects: &["workloads", "localqueues"], subresources: &["workloads/status"] },
];

/// Ways into a running pod.
const CONNECTED: [&str; 5] = ["pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy"];

/// Created under another object's path.
const CREATED_BELOW: [&str; 3] = ["serviceaccounts/token", "pods/binding", "bindings"];

/// What `/mutate` sees: the objects themselves. Subresources, DELETE and CONNECT are never patched.
pub(super) fn mutated(kinds: &Kinds) -> Vec<RuleWithOperations> {
    let Resources { objects, .. } = Resources::governed(kinds);
    objects.iter().map(|(group, resources)| rule(group, resources, &["CREATE", "UPDATE"], NAMESPACED)).collect()
}

/// What `/validate` sees. Not DELETE, eviction, a mere status and finalizers: clean-up must not hang on the gate.
pub(super) fn validated(kinds: &Kinds) -> Vec<RuleWithOperations> {
    let Resources { subresources, .. } = Resources::governed(kinds);
    let subresources = subresources.iter().map(|(group, resources)| rule(group, resources, &["UPDATE"], NAMESPACED));
    let core = [rule("", &CONNECTED, &["CONNECT"], NAMESPACED), rule("", &CREATED_BELOW, &["CREATE"], NAMESPACED)];
    mutated(kinds).into_iter().chain(subresources).chain(core).collect()
}

/// By group; one rule holds all resources of a group. A rule for what no CRD of the cluster serves matches nothing.
#[derive(Default)]
struct Resources {
    objects: BTreeMap<String, Vec<String>>,
    subresources: BTreeMap<String, Vec<String>>,
}

impl Resources {
    fn governed(kinds: &Kinds) -> Self {
        let mut resources = Self::default();
        for Group { name, objects, subresources } in GROUPS {
            for object in *objects {
                resources.objects.entry((*name).to_owned()).or_default().push((*object).to_owned());
            }
            for subresource in *subresources {
                resources.subresources.entry((*name).to_owned()).or_default().push((*subresource).to_owned());
            }
        }
        for kind in kinds.iter() {
            resources.objects.entry(kind.group.clone()).or_default().push(kind.plural.clone());
            if kind.has_scale() {
                resources.subresources.entry(kind.group.clone()).or_default().push(format!("{}/scale", kind.plural));
            }
        }
        resources
    }
}

/// The gate's own objects.
pub(super) fn own() -> Vec<RuleWithOperations> {
    vec![rule(
        "cedargate.dev",
        &["teams", "quotaledgers", "quotaledgers/status"],
        &["CREATE", "UPDATE", "DELETE"],
        "Cluster",
    )]
}

/// What belongs to no namespace and still decides who gets what: labels that select, volumes that bind.
pub(super) fn of_the_cluster() -> Vec<RuleWithOperations> {
    let objects = ["namespaces", "namespaces/status", "namespaces/finalize", "persistentvolumes"];
    vec![rule("", &objects, &["CREATE", "UPDATE"], "Cluster")]
}

/// Kueue's own configuration: who has how much of which nodes, and what goes first.
pub(super) fn of_the_queue() -> Vec<RuleWithOperations> {
    let resources =
        ["clusterqueues", "cohorts", "resourceflavors", "topologies", "workloadpriorityclasses", "admissionchecks"];
    vec![rule("kueue.x-k8s.io", &resources, &["CREATE", "UPDATE"], "Cluster")]
}

/// A namespace selector does not keep objects of the cluster out.
const NAMESPACED: &str = "Namespaced";

fn rule(group: &str, resources: &[impl AsRef<str>], operations: &[&str], scope: &str) -> RuleWithOperations {
    let owned = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    RuleWithOperations {
        api_groups: owned(&[group]),
        // Every version is a view of the same object.
        api_versions: owned(&["*"]),
        operations: owned(operations),
        resources: Some(resources.iter().map(|resource| resource.as_ref().to_owned()).collect()),
        scope: Some(scope.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::resources::built_in;

    fn covers(rules: &[RuleWithOperations], group: &str, resource: &str) -> bool {
        let holds = |list: &Option<Vec<String>>, text: &str| list.iter().flatten().any(|found| found == text);
        rules.iter().any(|rule| holds(&rule.api_groups, group) && holds(&rule.resources, resource))
    }

    #[test]
    fn every_kind_that_is_watched_is_judged() {
        for resource in built_in() {
            assert!(covers(&mutated(Kinds::defaults()), &resource.group, &resource.plural), "{}", resource.plural);
        }
    }

    #[test]
    fn every_configured_kind_is_judged_and_its_scale_too() {
        let kinds: Kinds = serde_json::from_value(serde_json::json!([{
            "group": "ml.example.org", "plural": "sweeps", "kind": "Sweep", "scale": "/spec/parallel",
            "pods": [{"template": "/spec/template"}],
        }]))
        .expect("a kind");
        let rules = validated(&kinds);
        assert!(covers(&rules, "ml.example.org", "sweeps") && covers(&rules, "ml.example.org", "sweeps/scale"));
        for kind in kinds.iter() {
            assert!(covers(&mutated(&kinds), &kind.group, &kind.plural), "{}", kind.plural);
            let scale = format!("{}/scale", kind.plural);
            assert_eq!(covers(&rules, &kind.group, &scale), kind.has_scale(), "{scale}");
        }
    }

    #[test]
    fn every_stamped_object_is_both_mutated_and_validated() {
        for rule in mutated(Kinds::defaults()) {
            assert!(validated(Kinds::defaults()).contains(&rule), "{rule:?}");
        }
    }

    #[test]
    fn nothing_that_clean_up_needs() {
        for rule in validated(Kinds::defaults()).into_iter().chain(mutated(Kinds::defaults())) {
            let resources = rule.resources.unwrap_or_default();
            let never = |resource: &String| {
                resource.contains('*') || resource.ends_with("/eviction") || resource.ends_with("/finalizers")
            };
            assert!(!resources.iter().any(never), "{resources:?}");
            assert!(
                !rule.operations.unwrap_or_default().iter().any(|operation| operation == "DELETE" || operation == "*")
            );
        }
    }
}
