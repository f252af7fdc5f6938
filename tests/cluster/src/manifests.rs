//! What people submit, as small as it can be: one container of the company's registry, and the project that it is for.

use serde_json::{Value, json};

/// Of the registry that the starter policies know.
pub const IMAGE: &str = "111122223333.dkr.ecr.us-west-2.amazonaws.com/train:1";

/// Until it is ended; the node says what it makes of others.
pub const SLEEP: &[&str] = &["sleep", "infinity"];

pub fn pod_spec(restart_policy: &str, command: &[&str]) -> Value {
    json!({
        "restartPolicy": restart_policy,
        "containers": [{ "name": "main", "image": IMAGE, "command": command }],
    })
}

pub fn pod(name: &str) -> Value {
    pod_that(name, SLEEP)
}

pub fn pod_that(name: &str, command: &[&str]) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata(name), "spec": pod_spec("Never", command) })
}

pub fn job(name: &str) -> Value {
    job_that(name, SLEEP)
}

pub fn job_that(name: &str, command: &[&str]) -> Value {
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(name), "spec": job_spec(command) })
}

/// Its first Job comes at the next full minute.
pub fn cron_job(name: &str) -> Value {
    json!({
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": metadata(name),
        "spec": { "schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": { "spec": job_spec(SLEEP) } },
    })
}

pub fn deployment(name: &str) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(name), "spec": replicated_spec(name) })
}

pub fn replica_set(name: &str) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata(name), "spec": replicated_spec(name) })
}

pub fn stateful_set(name: &str) -> Value {
    let mut spec = replicated_spec(name);
    spec["serviceName"] = name.into();
    json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata(name), "spec": spec })
}

pub fn space(name: &str) -> Value {
    json!({
        "apiVersion": "workspace.jupyter.org/v1alpha1",
        "kind": "Workspace",
        "metadata": metadata(name),
        "spec": { "displayName": name, "image": IMAGE },
    })
}

/// Weights in one of team B's buckets.
pub fn endpoint(name: &str) -> Value {
    json!({
        "apiVersion": "inference.sagemaker.aws.amazon.com/v1",
        "kind": "InferenceEndpointConfig",
        "metadata": metadata(name),
        "spec": {
            "modelName": "model",
            "instanceType": "ml.g5.8xlarge",
            "modelSourceConfig": {
                "modelSourceType": "s3",
                "s3Storage": { "bucketName": "team-b-models", "region": "us-west-2" },
                "modelLocation": "model",
            },
            "worker": {
                "image": format!("{}@sha256:{}", IMAGE.trim_end_matches(":1"), "0".repeat(64)),
                "resources": { "limits": { "nvidia.com/gpu": 1 } },
                "modelInvocationPort": { "containerPort": 8000, "name": "http" },
                "modelVolumeMount": { "name": "weights", "mountPath": "/opt/ml/model" },
            },
        },
    })
}

pub fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

pub fn in_namespace(mut manifest: Value, namespace: &str) -> Value {
    manifest["metadata"]["namespace"] = namespace.into();
    manifest
}

fn metadata(name: &str) -> Value {
    json!({ "name": name, "labels": { "project": "p-7" } })
}

fn job_spec(command: &[&str]) -> Value {
    json!({ "backoffLimit": 0, "template": { "spec": pod_spec("Never", command) } })
}

fn replicated_spec(name: &str) -> Value {
    let labels = json!({ "app": name });
    json!({
        "replicas": 1,
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": pod_spec("Always", SLEEP) },
    })
}
