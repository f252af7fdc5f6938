//! What a person submits, and the pods that real controllers make of it: the team's storage, the person's home and ids, the
//! team's service account, labels to bill by, and who submitted.

use std::sync::LazyLock;

use cluster::{Cluster, Event, Gate, Identity, manifests};
use serde_json::{Value, json};

/// Shared: every test has names of its own.
static SITE: LazyLock<(Cluster, Gate)> = LazyLock::new(|| {
    let cluster = Cluster::start().expect("the cluster starts");
    let gate = Gate::start(&cluster).expect("the gate starts");
    (cluster, gate)
});

fn cluster() -> &'static Cluster {
    &SITE.0
}

/// Applies as a person types it, and nothing is said beside that it was created.
async fn submit(who: &Identity, manifest: &Value) {
    let applied = cluster().kubectl(who, &["apply", "-f", "-"], &manifest.to_string()).await.expect("kubectl runs");
    assert_eq!(applied.stderr, "");
    assert!(applied.success().expect("applies").ends_with(" created\n"));
}

/// The first object of this resource whose name begins so.
async fn created(resource: &str, prefix: &str) -> Event {
    let is_meant = |event: &Event| {
        event.verb == "create"
            && event.resource() == resource
            && event.name().starts_with(prefix)
            && event.code() == 201
    };
    cluster()
        .audit()
        .find(&format!("the creation of {resource} {prefix}*"), is_meant)
        .await
        .expect("is logged")
        .remove(0)
}

async fn pod(prefix: &str, controller: &str) -> Value {
    let event = created("pods", prefix).await;
    assert_eq!(event.username(), format!("system:serviceaccount:kube-system:{controller}"));
    event.response_object.expect("is logged")
}

/// Keys whose values are generated.
const GENERATED: [&str; 4] =
    ["batch.kubernetes.io/controller-uid", "controller-uid", "pod-template-hash", "controller-revision-hash"];

/// What the gate is about, of a root or a pod as it was stored; less what everybody gets.
fn given(object: &Value) -> Value {
    let mut labels = object["metadata"]["labels"].clone();
    for key in GENERATED {
        if let Some(value) = labels.get_mut(key) {
            *value = "[generated]".into();
        }
    }
    let mut annotations = object["metadata"]["annotations"].clone();
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    let metadata = json!({ "labels": labels, "annotations": annotations });
    if object["kind"] != "Pod" {
        return metadata;
    }
    let spec = &object["spec"];
    let containers = spec["containers"].as_array().into_iter().flatten().map(|container| {
        json!({
            "name": container["name"],
            "env": container["env"],
            "volumeMounts": own(&container["volumeMounts"]),
            "securityContext": container["securityContext"],
        })
    });
    json!({
        "metadata": metadata,
        "serviceAccountName": spec["serviceAccountName"],
        "securityContext": spec["securityContext"],
        "volumes": own(&spec["volumes"]),
        "containers": containers.collect::<Vec<_>>(),
    })
}

/// Less the token that the API server mounts into every pod.
fn own(volumes: &Value) -> Vec<&Value> {
    let is_token = |volume: &Value| volume["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"));
    volumes.as_array().into_iter().flatten().filter(|volume| !is_token(volume)).collect()
}

#[tokio::test]
async fn the_pods_of_a_job() {
    submit(&cluster().people.alice, &manifests::job("train")).await;
    let root = created("jobs", "train").await.response_object.expect("is logged");
    insta::assert_json_snapshot!("job", given(&root));
    insta::assert_json_snapshot!("job_pod", given(&pod("train-", "job-controller").await));
}
