//! Submitting what `manifests` makes, and waiting for what becomes of it.

use anyhow::Result;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{Api, Client, api::ListParams};
use serde_json::Value;

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
