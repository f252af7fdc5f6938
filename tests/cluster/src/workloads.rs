//! What scenarios submit: the same few workloads, small enough that a thousand of them are no load.
//!
//! The image is one that the starter policies know, so that no warning stands between a test and what it looks for.

use anyhow::Result;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{Api, Client, api::ListParams};
use serde_json::{Value, json};

use crate::{Cluster, Identity, Output, wait::until};

/// Submits as a person would, with `kubectl create`.
pub async fn create(cluster: &Cluster, who: &Identity, manifest: &Value) -> Output {
    cluster.kubectl(who, &["create", "-f", "-"], &manifest.to_string()).await.expect("kubectl runs")
}

/// Waits until a pod with this label runs.
pub async fn running(client: &Client, namespace: &str, label: &str) -> Result<Pod> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let only = ListParams::default().labels(label);
    until(&format!("a pod of {label} runs in {namespace}"), async || {
        let pods = api.list(&only).await.ok()?.items;
        pods.into_iter().find(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
        })
    })
    .await
}

/// Waits until a Job is `Complete` or `Failed`, as `condition` says.
pub async fn job_ends(client: &Client, namespace: &str, name: &str, condition: &str) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    until(&format!("{name} is {condition}"), async || {
        let conditions = jobs.get_opt(name).await.ok()??.status?.conditions?;
        conditions.iter().any(|one| one.type_ == condition && one.status == "True").then_some(())
    })
    .await
}

pub fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

pub fn job(name: &str, command: &[&str]) -> Value {
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "name": name },
        "spec": { "template": { "spec": pod_spec("Never", command) }, "backoffLimit": 0 },
    })
}

pub fn pod(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": pod_spec("Never", &["train"]) })
}

pub fn deployment(name: &str) -> Value {
    let labels = json!({ "app": name });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod_spec("Always", &["serve"]) },
        },
    })
}

fn pod_spec(restart_policy: &str, command: &[&str]) -> Value {
    json!({
        "restartPolicy": restart_policy,
        "containers": [{ "name": "main", "image": "public.ecr.aws/sagemaker/image:1", "command": command }],
    })
}

pub fn in_namespace(mut manifest: Value, namespace: &str) -> Value {
    manifest["metadata"]["namespace"] = namespace.into();
    manifest
}
