//! Namespaces and RBAC as task governance and the HyperPod charts lay them out.
//!
//! A team's rights in its namespace are wide on purpose: what a member may not do here, the gate must refuse, not RBAC.

use anyhow::{Error, Result};
use k8s_openapi::{
    api::{
        core::v1::Namespace,
        rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
    },
    serde::de::DeserializeOwned,
};
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

use crate::{people::ADMINS, people::Callers};

pub const TEAM_A: &str = "hyperpod-ns-team-a";
pub const TEAM_B: &str = "hyperpod-ns-team-b";

/// Where operators live. The gate's own namespace is the chart's business.
const SYSTEM_NAMESPACES: [&str; 4] =
    ["aws-hyperpod", "hyperpod-inference-system", "jupyter-k8s-system", "kueue-system"];

const MEMBER: &str = "team-member";
const CLUSTER_READER: &str = "team-cluster-reader";

pub(crate) async fn lay_out(root: &Client, callers: &Callers) -> Result<()> {
    for namespace in [TEAM_A, TEAM_B].map(team_namespace).into_iter().chain(SYSTEM_NAMESPACES.map(system_namespace)) {
        create::<Namespace>(Api::all(root.clone()), namespace).await?;
    }
    let roles: Api<ClusterRole> = Api::all(root.clone());
    for role in [member(), cluster_reader()] {
        create(roles.clone(), role).await?;
    }
    let bindings: Api<ClusterRoleBinding> = Api::all(root.clone());
    for binding in cluster_bindings(callers) {
        create(bindings.clone(), binding).await?;
    }
    for team in [TEAM_A, TEAM_B] {
        bind(root, team, subject("Group", &team_group(team)), "team").await?;
    }
    Ok(())
}

/// Lets a user work in a namespace that is not their team's: the mistake in RBAC that the gate must withstand. A second
/// time changes nothing.
pub(crate) async fn grant(root: &Client, namespace: &str, username: &str, name: &str) -> Result<()> {
    match bind(root, namespace, subject("User", username), name).await {
        Err(error) if is_there(&error) => Ok(()),
        result => result,
    }
}

fn is_there(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.is_already_exists())
}

async fn bind(root: &Client, namespace: &str, subject: Value, name: &str) -> Result<()> {
    let binding = json!({
        "metadata": { "name": name },
        "roleRef": role_ref(MEMBER),
        "subjects": [subject],
    });
    create::<RoleBinding>(Api::namespaced(root.clone(), namespace), binding).await
}

async fn create<K>(api: Api<K>, object: Value) -> Result<()>
where
    K: DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// Labelled as the task governance add-on labels what it creates for an allocation.
fn team_namespace(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "sagemaker.amazonaws.com/sagemaker-managed-queue": "true",
                "sagemaker.amazonaws.com/quota-allocation-id": format!("{name}-allocation"),
                "sagemaker.amazonaws.com/activate-quota": "Enabled",
            },
        },
    })
}

fn system_namespace(name: &str) -> Value {
    json!({ "metadata": { "name": name } })
}

/// Subresources come with `*`: scale, exec, ephemeralcontainers, tokens of service accounts.
fn member() -> Value {
    let groups = [
        "",
        "apps",
        "autoscaling",
        "batch",
        "events.k8s.io",
        "inference.sagemaker.aws.amazon.com",
        "jobset.x-k8s.io",
        "kubeflow.org",
        "kueue.x-k8s.io",
        "leaderworkerset.x-k8s.io",
        "networking.k8s.io",
        "policy",
        "ray.io",
        "rbac.authorization.k8s.io",
        "sagemaker.amazonaws.com",
        "workspace.jupyter.org",
    ];
    let rule = json!({ "apiGroups": groups, "resources": ["*"], "verbs": ["*"] });
    json!({ "metadata": { "name": MEMBER }, "rules": [rule] })
}

fn cluster_reader() -> Value {
    json!({
        "metadata": { "name": CLUSTER_READER },
        "rules": [
            { "apiGroups": [""], "resources": ["namespaces", "nodes", "persistentvolumes"], "verbs": ["get", "list", "watch"] },
            { "apiGroups": ["kueue.x-k8s.io", "storage.k8s.io", "scheduling.k8s.io"], "resources": ["*"], "verbs": ["get", "list", "watch"] },
            { "apiGroups": ["cedargate.dev"], "resources": ["teams"], "verbs": ["get", "list", "watch"] },
        ],
    })
}

fn cluster_bindings(callers: &Callers) -> Vec<Value> {
    let Callers {
        root: _,
        controller_manager: _, // the API server's own bootstrap roles know it, the scheduler and nodes
        scheduler: _,
        kubelet: _,
        space_operator,
        inference_operator,
        training_operator,
        kueue,
        service_linked_role,
    } = callers;
    let operators = [space_operator, inference_operator, training_operator, kueue, service_linked_role];
    let operators = operators.map(|operator| subject("User", operator.username()));
    let teams = [TEAM_A, TEAM_B].map(|team| subject("Group", &team_group(team)));
    vec![
        cluster_binding("platform-admins", "cluster-admin", json!([subject("Group", ADMINS)])),
        cluster_binding("operators", "cluster-admin", json!(operators)),
        cluster_binding("teams-read-cluster", CLUSTER_READER, json!(teams)),
        cluster_binding("somebodys-mistake", MEMBER, json!([subject("Group", "somebody-elses-group")])),
    ]
}

fn cluster_binding(name: &str, role: &str, subjects: Value) -> Value {
    json!({ "metadata": { "name": name }, "roleRef": role_ref(role), "subjects": subjects })
}

fn role_ref(name: &str) -> Value {
    json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name })
}

fn subject(kind: &str, name: &str) -> Value {
    json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name })
}

fn team_group(namespace: &str) -> String {
    format!("{namespace}-namespace-level-group")
}
