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

/// Applies as a person types it: nothing is said beside that it was created. What was stored.
async fn submit(who: &Identity, resource: &str, manifest: Value) -> Value {
    let applied = cluster().kubectl(who, &["apply", "-f", "-"], &manifest.to_string()).await.expect("kubectl runs");
    assert_eq!(applied.stderr, "");
    assert!(applied.success().expect("applies").ends_with(" created\n"));
    let name = manifest["metadata"]["name"].as_str().expect("a name");
    made(who, resource, name).await.response_object.expect("is logged")
}

async fn made(who: &Identity, resource: &str, prefix: &str) -> Event {
    let namespace = who.namespace().expect("people have a namespace");
    cluster().audit().created(namespace, resource, prefix).await.expect("is created")
}

/// The first pod whose name begins so, as this controller made it.
async fn pod(who: &Identity, prefix: &str, controller: &str) -> Value {
    let event = made(who, "pods", prefix).await;
    assert_eq!(event.username(), format!("system:serviceaccount:kube-system:{controller}"));
    event.response_object.expect("is logged")
}

/// What stands between root and pod is an operator's, who would compare and rewrite it for ever: of our keys it has what it
/// was sent with.
async fn assert_untouched(who: &Identity, resource: &str, prefix: &str) {
    let event = made(who, resource, prefix).await;
    let (asked, stored) = (event.request_object.expect("is logged"), event.response_object.expect("is logged"));
    for metadata in ["/metadata", "/spec/template/metadata"] {
        for list in ["labels", "annotations"] {
            let path = format!("{metadata}/{list}");
            assert_eq!(ours(stored.pointer(&path)), ours(asked.pointer(&path)), "{path} of {resource} {prefix}");
        }
    }
}

/// Keys that the gate gives.
fn ours(keys: Option<&Value>) -> Vec<(&String, &Value)> {
    let is_ours = |key: &str| key == "team" || key.starts_with("cedargate.dev/") || key.starts_with("kueue.x-k8s.io/");
    keys.and_then(Value::as_object).into_iter().flatten().filter(|(key, _)| is_ours(key)).collect()
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

/// Keys in their order: whether JSON keeps the order in which it was written depends on what else is built.
fn assert_given(name: &str, given: Value) {
    insta::with_settings!({ sort_maps => true }, { insta::assert_json_snapshot!(name, given) });
}

/// Less the token that the API server mounts into every pod.
fn own(volumes: &Value) -> Vec<&Value> {
    let is_token = |volume: &Value| volume["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"));
    volumes.as_array().into_iter().flatten().filter(|volume| !is_token(volume)).collect()
}

#[tokio::test]
async fn of_a_job() {
    let alice = &cluster().people.alice;
    let root = submit(alice, "jobs", manifests::job("train")).await;
    assert_given("job", given(&root));
    assert_given("job_pod", given(&pod(alice, "train-", "job-controller").await));
}

#[tokio::test]
async fn of_a_deployment() {
    let alice = &cluster().people.alice;
    let root = submit(alice, "deployments", manifests::deployment("web")).await;
    assert_given("deployment", given(&root));
    assert_given("deployment_pod", given(&pod(alice, "web-", "replicaset-controller").await));
    assert_untouched(alice, "replicasets", "web-").await;
}

#[tokio::test]
async fn of_a_cron_job() {
    let alice = &cluster().people.alice;
    let root = submit(alice, "cronjobs", manifests::cron_job("nightly")).await;
    assert_given("cron_job", given(&root));
    let mut pod = given(&pod(alice, "nightly-", "job-controller").await);
    for key in ["batch.kubernetes.io/job-name", "job-name"] {
        let name = &mut pod["metadata"]["labels"][key];
        assert!(name.as_str().is_some_and(|name| name.starts_with("nightly-")), "{key} is {name}");
        *name = "nightly-[minute]".into();
    }
    assert_given("cron_job_pod", pod);
    assert_untouched(alice, "jobs", "nightly-").await;
}

#[tokio::test]
async fn of_a_stateful_set() {
    let bob = &cluster().people.bob;
    let root = submit(bob, "statefulsets", manifests::stateful_set("cache")).await;
    assert_given("stateful_set", given(&root));
    assert_given("stateful_set_pod", given(&pod(bob, "cache-0", "statefulset-controller").await));
}

#[tokio::test]
async fn of_a_space() {
    let _operator = cluster().space_operator().await.expect("starts");
    let alice = &cluster().people.alice;
    let root = submit(alice, "workspaces", manifests::space("notes")).await;
    assert_given("space", given(&root));
    let pod = pod(alice, "workspace-notes-", "replicaset-controller").await;
    assert_given("space_pod", given(&pod));
    assert_untouched(alice, "deployments", "workspace-notes").await;
    assert_eq!(rewritten("deployments", "workspace-notes"), 0);
}

/// Through the domain's role, which says which team and not which person.
#[tokio::test]
async fn of_an_endpoint() {
    let _operator = cluster().endpoint_operator().await.expect("starts");
    let bob = &cluster().people.bob_in_studio;
    let root = submit(bob, "inferenceendpointconfigs", manifests::endpoint("chat")).await;
    assert_given("endpoint", given(&root));
    assert_given("endpoint_pod", given(&pod(bob, "chat-", "replicaset-controller").await));
    assert_untouched(bob, "deployments", "chat").await;
    assert_eq!(rewritten("deployments", "chat"), 0);
}

/// How often its operator wrote it again.
fn rewritten(resource: &str, name: &str) -> usize {
    let is_meant = |event: &&Event| {
        event.verb == "update"
            && event.resource() == resource
            && event.name() == name
            && event.username().ends_with("-controller-manager")
    };
    cluster().audit().events().iter().filter(is_meant).count()
}
