//! What is applied again and again stays as it is, and whatever another webhook adds after us is completed too.

use std::sync::LazyLock;

use cluster::{Answer, Cluster, Gate, TEAM_B, Webhook, manifests, until};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
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

const AGAIN: usize = 20;

/// Alice types it; it succeeds.
async fn kubectl(arguments: &[&str], manifest: &Value) -> String {
    let output = cluster().kubectl(&cluster().people.alice, arguments, &manifest.to_string()).await;
    output.expect("kubectl runs").success().expect("succeeds")
}

async fn stored(kind: &str, name: &str) -> Value {
    let text = kubectl(&["get", kind, name, "-o", "json", "--show-managed-fields"], &Value::Null).await;
    serde_json::from_str(&text).expect("JSON")
}

/// Less what controllers write.
fn of_people(mut object: Value) -> Value {
    object["status"] = Value::Null;
    for field in ["resourceVersion", "managedFields"] {
        object["metadata"][field] = Value::Null;
    }
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove("deployment.kubernetes.io/revision");
    }
    object
}

/// One of each kind that people keep in Git; the Job is suspended, since it would end.
fn kept_in_git(suffix: &str) -> Value {
    let mut job = manifests::job(&format!("job-{suffix}"));
    job["spec"]["suspend"] = true.into();
    let items = [
        manifests::deployment(&format!("web-{suffix}")),
        manifests::stateful_set(&format!("cache-{suffix}")),
        job,
        manifests::pod(&format!("pod-{suffix}")),
        manifests::space(&format!("space-{suffix}")),
    ];
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

async fn all_stored(list: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    for item in list["items"].as_array().into_iter().flatten() {
        let text = |value: &Value| value.as_str().map(str::to_owned).expect("a text");
        found.push(of_people(stored(&text(&item["kind"]), &text(&item["metadata"]["name"])).await));
    }
    found
}

#[tokio::test]
async fn server_side_apply_twenty_times_changes_nothing_and_conflicts_with_nobody() {
    let manifests = kept_in_git("ssa");
    let apply = ["apply", "--server-side", "--field-manager", "gitops", "-f", "-"];
    kubectl(&apply, &manifests).await;
    let first = all_stored(&manifests).await;
    for _ in 0..AGAIN {
        kubectl(&apply, &manifests).await;
    }
    assert_eq!(all_stored(&manifests).await, first);
    let diff = ["diff", "--server-side", "--field-manager", "gitops", "-f", "-"];
    assert_eq!(kubectl(&diff, &manifests).await, "");
}

/// `kubectl apply` of old writes a three-way patch; what the gate added is in neither manifest.
#[tokio::test]
async fn client_side_apply_again_changes_nothing() {
    let manifests = kept_in_git("csa");
    kubectl(&["apply", "-f", "-"], &manifests).await;
    for _ in 0..AGAIN {
        let said = kubectl(&["apply", "-f", "-"], &manifests).await;
        assert!(said.lines().count() == 5 && said.lines().all(|line| line.ends_with(" unchanged")), "{said}");
    }
    assert_eq!(kubectl(&["diff", "-f", "-"], &manifests).await, "");
}

/// Tools that write whole objects leave out what the gate added.
#[tokio::test]
async fn a_replacement_keeps_what_the_gate_added() {
    let mut manifest = manifests::deployment("web-replaced");
    kubectl(&["create", "-f", "-"], &manifest).await;
    let before = of_people(stored("deployment", "web-replaced").await);
    manifest["spec"]["replicas"] = 0.into();
    kubectl(&["replace", "-f", "-"], &manifest).await;
    let after = of_people(stored("deployment", "web-replaced").await);
    for field in ["labels", "annotations"] {
        assert_eq!(after["metadata"][field], before["metadata"][field], "{field}");
    }
    assert_eq!(after["spec"]["replicas"], 0);
}

/// In team B, where no other test of this file makes pods.
#[tokio::test]
async fn a_container_that_a_later_webhook_adds_gets_its_mounts() {
    let sidecar = json!({ "name": "sidecar", "image": manifests::IMAGE, "command": ["sleep", "infinity"] });
    let injector = Webhook::serve(move |request| {
        let containers = request["object"]["spec"]["containers"].as_array();
        match containers.is_some_and(|containers| containers.iter().any(|container| container["name"] == "sidecar")) {
            true => Answer::Allow,
            false => Answer::Patch(json!([{ "op": "add", "path": "/spec/containers/-", "value": sidecar }])),
        }
    });
    let injector = injector.await.expect("serves");
    let root = cluster().callers.root.client().await.expect("connects");
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(root);
    let configuration = json!({
        "metadata": { "name": "sidecar-injector" }, // after `cedargate`
        "webhooks": [{
            "name": "sidecar-injector.example.com",
            "clientConfig": injector.client_config(),
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"] }],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": TEAM_B } },
        }],
    });
    let configuration = serde_json::from_value(configuration).expect("a configuration");
    configurations.create(&PostParams::default(), &configuration).await.expect("is created");

    let bob = &cluster().people.bob;
    let dry_run = ["create", "--dry-run=server", "-f", "-"];
    let pod = manifests::pod("probe").to_string();
    let known = until("the API server knows the injector", async || {
        cluster().kubectl(bob, &dry_run, &pod).await.ok()?.success().ok()?;
        (!injector.requests().is_empty()).then_some(())
    });
    known.await.expect("is known");
    let applied = cluster().kubectl(bob, &["apply", "-f", "-"], &manifests::job("with-sidecar").to_string()).await;
    applied.expect("kubectl runs").success().expect("applies");
    let event = cluster().audit().created(TEAM_B, "pods", "with-sidecar-").await.expect("is created");
    configurations.delete("sidecar-injector", &DeleteParams::default()).await.expect("is deleted");

    let pod = event.response_object.expect("is logged");
    let containers = pod["spec"]["containers"].as_array().expect("containers");
    let names: Vec<_> = containers.iter().map(|container| &container["name"]).collect();
    assert_eq!(names, ["main", "sidecar"]);
    assert_eq!(own(&containers[1]["volumeMounts"]), own(&containers[0]["volumeMounts"]));
    assert_eq!(containers[1]["env"], containers[0]["env"]);
    let variables: Vec<_> = containers[1]["env"].as_array().into_iter().flatten().map(|entry| &entry["name"]).collect();
    assert_eq!(variables, ["HOME", "USER", "LOGNAME", "NVIDIA_VISIBLE_DEVICES"]);
    let paths: Vec<_> = own(&containers[1]["volumeMounts"]).into_iter().map(|mount| &mount["mountPath"]).collect();
    assert_eq!(paths, ["/fsx", "/home/bob"]);
    let patched_by_us = event.annotations.iter().filter(|(key, value)| {
        key.starts_with("patch.webhook.admission.k8s.io/") && value.contains("governed.cedargate.dev")
    });
    let rounds: Vec<_> = patched_by_us.map(|(key, _)| key.as_str()).collect();
    assert_eq!(rounds.len(), 2, "{rounds:?}");
}

/// Less the token that the API server mounts into every container.
fn own(mounts: &Value) -> Vec<&Value> {
    let is_token = |mount: &Value| mount["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"));
    mounts.as_array().into_iter().flatten().filter(|mount| !is_token(mount)).collect()
}
