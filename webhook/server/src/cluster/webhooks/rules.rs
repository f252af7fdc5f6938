//! Which requests reach the gate: resources by name, never `*`, so that what the gate does not judge does not wait for it.

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

/// In team namespaces, and outside them for people.
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
        name: "kubeflow.org",
        objects: &["pytorchjobs", "mpijobs", "tfjobs", "xgboostjobs", "paddlejobs", "jaxjobs"],
        subresources: &["pytorchjobs/scale", "tfjobs/scale", "xgboostjobs/scale", "paddlejobs/scale", "jaxjobs/scale"],
    },
    Group {
        name: "sagemaker.amazonaws.com",
        objects: &["hyperpodpytorchjobs"],
        subresources: &["hyperpodpytorchjobs/scale"],
    },
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
    Group { name: "ray.io", objects: &["rayclusters", "rayjobs", "rayservices", "raycronjobs"], subresources: &[] },
    Group { name: "jobset.x-k8s.io", objects: &["jobsets"], subresources: &[] },
    Group {
        name: "leaderworkerset.x-k8s.io",
        objects: &["leaderworkersets"],
        subresources: &["leaderworkersets/scale"],
    },
    // A Workload's status is what admits it to a queue.
    Group { name: "kueue.x-k8s.io", objects: &["workloads", "localqueues"], subresources: &["workloads/status"] },
];

/// Ways into a running pod.
const CONNECTED: [&str; 5] = ["pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy"];

/// Created under another object's path.
const CREATED_BELOW: [&str; 3] = ["serviceaccounts/token", "pods/binding", "bindings"];

/// What `/mutate` sees: the objects themselves. Subresources, DELETE and CONNECT are never patched.
pub(super) fn mutated() -> Vec<RuleWithOperations> {
    GROUPS.iter().map(objects).collect()
}

/// What `/validate` sees. Not DELETE, eviction, a mere status and finalizers: clean-up must not hang on the gate.
pub(super) fn validated() -> Vec<RuleWithOperations> {
    let subresources = GROUPS.iter().filter(|group| !group.subresources.is_empty());
    let subresources = subresources.map(|group| rule(group.name, group.subresources, &["UPDATE"], NAMESPACED));
    let core = [rule("", &CONNECTED, &["CONNECT"], NAMESPACED), rule("", &CREATED_BELOW, &["CREATE"], NAMESPACED)];
    GROUPS.iter().map(objects).chain(subresources).chain(core).collect()
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

/// A namespace selector does not keep objects of the cluster out.
const NAMESPACED: &str = "Namespaced";

fn objects(group: &Group) -> RuleWithOperations {
    rule(group.name, group.objects, &["CREATE", "UPDATE"], NAMESPACED)
}

fn rule(group: &str, resources: &[&str], operations: &[&str], scope: &str) -> RuleWithOperations {
    let owned = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    RuleWithOperations {
        api_groups: owned(&[group]),
        // Every version is a view of the same object.
        api_versions: owned(&["*"]),
        operations: owned(operations),
        resources: owned(resources),
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
            assert!(covers(&mutated(), &resource.group, &resource.plural), "{}", resource.plural);
        }
    }

    #[test]
    fn every_stamped_object_is_both_mutated_and_validated() {
        for rule in mutated() {
            assert!(validated().contains(&rule), "{rule:?}");
        }
    }

    #[test]
    fn nothing_that_clean_up_needs() {
        for rule in validated().into_iter().chain(mutated()) {
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
