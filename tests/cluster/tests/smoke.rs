//! What scenarios build on: that the cluster behaves as a cluster, and callers look as they do on EKS.

use std::sync::LazyLock;

use cluster::{
    Answer, Cluster, Event, Fate, Identity, TEAM_A, TEAM_B, Webhook,
    manifests::{deployment, job, job_that, pod, pod_that},
    until,
};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration,
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{Namespace, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

/// Shared: every test has names of its own. It ends with this process, not with a destructor.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start().expect("the cluster starts"));

const CONTROLLERS: &str = "system:serviceaccount:kube-system";

fn replicated(name: &str, replicas: u32) -> Value {
    let mut manifest = deployment(name);
    manifest["spec"]["replicas"] = replicas.into();
    manifest
}

async fn apply(who: &Identity, manifest: &Value) {
    let applied = CLUSTER.kubectl(who, &["apply", "-f", "-"], &manifest.to_string()).await.expect("kubectl runs");
    applied.success().expect("applies");
}

/// Who created what in the audit log: the object's name begins so.
async fn creation(resource: &str, prefix: &str) -> Event {
    let what = format!("the creation of {resource} {prefix}*");
    let is_meant = |event: &Event| {
        event.verb == "create"
            && event.resource() == resource
            && event.name().starts_with(prefix)
            && event.code() == 201
    };
    CLUSTER.audit().find(&what, is_meant).await.expect("is logged").remove(0)
}

async fn available(who: &Identity, namespace: &str, name: &str, replicas: i32) {
    let deployments: Api<Deployment> = Api::namespaced(who.client().await.expect("connects"), namespace);
    until(&format!("{name} has {replicas} available"), async || {
        let status = deployments.get_opt(name).await.ok()??.status?;
        (status.available_replicas == Some(replicas)).then_some(())
    })
    .await
    .expect("becomes available");
}

async fn job_condition(namespace: &str, name: &str, condition: &str) {
    let jobs: Api<Job> = Api::namespaced(CLUSTER.callers.root.client().await.expect("connects"), namespace);
    until(&format!("{name} is {condition}"), async || {
        let conditions = jobs.get_opt(name).await.ok()??.status?.conditions?;
        conditions.iter().any(|one| one.type_ == condition && one.status == "True").then_some(())
    })
    .await
    .expect("comes to an end");
}

#[tokio::test]
async fn a_deployments_pods_are_made_by_controllers_under_their_own_names() {
    let alice = &CLUSTER.people.alice;
    apply(alice, &replicated("smoke-web", 2)).await;
    available(alice, TEAM_A, "smoke-web", 2).await;

    let created = creation("deployments", "smoke-web").await;
    assert_eq!(created.user, *alice.user(), "userInfo as the authenticator gave it");
    assert_eq!(creation("replicasets", "smoke-web-").await.username(), format!("{CONTROLLERS}:deployment-controller"));
    let pod = creation("pods", "smoke-web-").await;
    assert_eq!(pod.username(), format!("{CONTROLLERS}:replicaset-controller"));
    assert!(pod.user.uid.is_some_and(|uid| !uid.is_empty()), "a real service account has a uid");
    assert_eq!(creation("pods/binding", "smoke-web-").await.username(), "system:kube-scheduler");
}

#[tokio::test]
async fn jobs_complete_fail_or_run_until_they_are_ended() {
    let alice = &CLUSTER.people.alice;
    apply(alice, &job_that("smoke-done", &["train"])).await;
    apply(alice, &job_that("smoke-broken", &["false"])).await;
    apply(alice, &job("smoke-long")).await;
    job_condition(TEAM_A, "smoke-done", "Complete").await;
    job_condition(TEAM_A, "smoke-broken", "Failed").await;
    assert_eq!(creation("pods", "smoke-done-").await.username(), format!("{CONTROLLERS}:job-controller"));

    let pods: Api<Pod> = Api::namespaced(alice.client().await.expect("connects"), TEAM_A);
    let of_job = ListParams::default().labels("batch.kubernetes.io/job-name=smoke-long");
    let name = until("its pod runs", async || {
        let pod = pods.list(&of_job).await.ok()?.items.pop()?;
        (pod.status?.phase? == "Running").then_some(pod.metadata.name?)
    });
    let name = name.await.expect("runs");
    CLUSTER.node().end(TEAM_A, &name, Fate::Succeed).await.expect("ends");
    job_condition(TEAM_A, "smoke-long", "Complete").await;
}

#[tokio::test]
async fn a_namespace_with_everything_in_it_goes_away() {
    let admin = &CLUSTER.people.admin;
    let client = admin.client().await.expect("connects");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let passing = serde_json::from_value(json!({ "metadata": { "name": "smoke-passing" } })).expect("a namespace");
    namespaces.create(&PostParams::default(), &passing).await.expect("is created");
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "claim" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    for manifest in [replicated("web", 1), job("long"), claim] {
        let arguments = ["apply", "-n", "smoke-passing", "-f", "-"];
        let applied = CLUSTER.kubectl(admin, &arguments, &manifest.to_string()).await.expect("kubectl runs");
        applied.success().expect("applies");
    }
    available(admin, "smoke-passing", "web", 1).await;

    namespaces.delete("smoke-passing", &DeleteParams::default()).await.expect("is deleted");
    until("the namespace is gone", async || namespaces.get_opt("smoke-passing").await.ok()?.is_none().then_some(()))
        .await
        .expect("goes");
}

#[tokio::test]
async fn rbac_keeps_bob_out_of_team_a_until_somebody_lets_him_in() {
    let bob = &CLUSTER.people.bob;
    let manifest = job("smoke-bobs").to_string();
    let submit =
        async || CLUSTER.kubectl(bob, &["create", "-n", TEAM_A, "-f", "-"], &manifest).await.expect("kubectl runs");
    let refused = submit().await;
    assert_eq!(refused.code, 1);
    let why = "User \"team-b:bob.osei-example.com\" cannot create resource \"jobs\" in API group \"batch\"";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);

    CLUSTER.grant(bob, TEAM_A).await.expect("binds");
    until("RBAC knows of it", async || (submit().await.code == 0).then_some(())).await.expect("is let in");
}

#[tokio::test]
async fn operators_make_deployments_for_spaces_and_endpoints() {
    let (alice, bob) = (&CLUSTER.people.alice, &CLUSTER.people.bob_in_studio);
    let _space_operator = CLUSTER.space_operator().await.expect("starts");
    let _endpoint_operator = CLUSTER.endpoint_operator().await.expect("starts");
    let space = json!({
        "apiVersion": "workspace.jupyter.org/v1alpha1",
        "kind": "Workspace",
        "metadata": { "name": "smoke-space", "labels": { "who": "alice" }, "annotations": { "why": "to see" } },
        "spec": { "displayName": "Alice's" },
    });
    let endpoint = json!({
        "apiVersion": "inference.sagemaker.aws.amazon.com/v1",
        "kind": "InferenceEndpointConfig",
        "metadata": { "name": "smoke-endpoint" },
        "spec": {
            "modelName": "model",
            "instanceType": "ml.g5.8xlarge",
            "modelSourceConfig": {
                "modelSourceType": "s3",
                "s3Storage": { "bucketName": "team-b-models", "region": "us-west-2" },
                "modelLocation": "model",
            },
            "worker": {
                "image": "example.com/image:1",
                "resources": { "limits": { "nvidia.com/gpu": 1 } },
                "modelInvocationPort": { "containerPort": 8000, "name": "http" },
                "modelVolumeMount": { "name": "weights", "mountPath": "/opt/ml/model" },
            },
        },
    });
    apply(alice, &space).await;
    apply(bob, &endpoint).await;
    available(alice, TEAM_A, "workspace-smoke-space", 1).await;
    available(bob, TEAM_B, "smoke-endpoint", 1).await;

    let made = creation("deployments", "workspace-smoke-space").await;
    assert_eq!(made.username(), "system:serviceaccount:jupyter-k8s-system:jupyter-k8s-controller-manager");
    let pod = creation("pods", "workspace-smoke-space-").await.response_object.expect("is logged");
    assert_eq!(
        (&pod["metadata"]["labels"]["who"], &pod["metadata"]["annotations"]["why"]),
        (&json!("alice"), &json!("to see"))
    );
    let made = creation("deployments", "smoke-endpoint").await;
    let operator = "hyperpod-inference-system:hyperpod-inference-operator-controller-manager";
    assert_eq!(made.username(), format!("system:serviceaccount:{operator}"));

    let old = ["get", "inferenceendpointconfigs.v1alpha1.inference.sagemaker.aws.amazon.com", "smoke-endpoint"];
    let read = CLUSTER.kubectl(bob, &old, "").await.expect("kubectl runs");
    read.success().expect("is served in the old version too, without the conversion webhook");
}

#[tokio::test]
async fn kinds_that_are_not_public_have_stand_ins() {
    let alice = &CLUSTER.people.alice;
    let job = json!({
        "apiVersion": "sagemaker.amazonaws.com/v1",
        "kind": "HyperPodPyTorchJob",
        "metadata": { "name": "smoke-hyperpod" },
        "spec": {
            "replicaSpecs": [{ "name": "pods", "replicas": 2, "template": { "spec": pod_that("pods", &["train"])["spec"] } }],
            "runPolicy": { "anything": ["goes"] },
        },
    });
    apply(alice, &job).await;
    let shown = CLUSTER.kubectl(alice, &["get", "hyperpodpytorchjob", "smoke-hyperpod", "-o", "json"], "").await;
    let shown: Value = serde_json::from_str(&shown.expect("kubectl runs").success().expect("reads")).expect("JSON");
    assert_eq!(shown["spec"]["replicaSpecs"][0]["spares"], 0, "the default of the published model");
    assert_eq!(shown["spec"]["runPolicy"]["anything"][0], "goes", "what it does not spell out is kept");
}

#[tokio::test]
async fn a_webhook_sees_who_asks_and_kubectl_shows_its_answer() {
    let webhook = Webhook::serve(|request| match request["object"]["metadata"]["name"].as_str() {
        Some("smoke-unwanted") => Answer::Deny("not here, `chen`".to_owned()),
        _ => Answer::Allow,
    });
    let webhook = webhook.await.expect("serves");
    let root = CLUSTER.callers.root.client().await.expect("connects");
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(root);
    let configuration = json!({
        "metadata": { "name": "smoke" },
        "webhooks": [{
            "name": "smoke.cedargate.dev",
            "clientConfig": webhook.client_config(),
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"] }],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": TEAM_B } },
        }],
    });
    let configuration = serde_json::from_value(configuration).expect("a configuration");
    configurations.create(&PostParams::default(), &configuration).await.expect("is created");

    let chen = &CLUSTER.people.chen; // nobody else makes ConfigMaps in team B: a webhook is everybody's
    let create =
        async |name: &str| CLUSTER.kubectl(chen, &["create", "configmap", name], "").await.expect("kubectl runs");
    let refused = until("the API server knows the webhook", async || {
        let output = create("smoke-unwanted").await;
        let _retry = CLUSTER.kubectl(chen, &["delete", "configmap", "smoke-unwanted", "--ignore-not-found"], "").await;
        (output.code != 0).then_some(output)
    });
    let refused = refused.await.expect("is refused");
    let message = "admission webhook \"smoke.cedargate.dev\" denied the request: not here, `chen`";
    assert!(refused.stderr.contains(message), "{}", refused.stderr);
    create("smoke-wanted").await.success().expect("is allowed");

    let asked = webhook.requests().pop().expect("was asked");
    assert_eq!(asked["object"]["metadata"]["name"], "smoke-wanted");
    assert_eq!(asked["userInfo"], serde_json::to_value(chen.user()).expect("JSON"), "as EKS would send it");
    configurations.delete("smoke", &DeleteParams::default()).await.expect("is deleted");
}

#[tokio::test]
async fn a_pods_own_token_says_which_pod_it_is() {
    let alice = &CLUSTER.people.alice;
    let client = alice.client().await.expect("connects");
    let pods: Api<Pod> = Api::namespaced(client, TEAM_A);
    let notebook = json!({ "metadata": { "name": "smoke-notebook" }, "spec": pod("smoke-notebook")["spec"] });
    let notebook = pods.create(&PostParams::default(), &serde_json::from_value(notebook).expect("a pod")).await;
    let notebook = notebook.expect("is created");
    let inside = CLUSTER.service_account(TEAM_A, "default", Some(&notebook)).await.expect("a token");
    CLUSTER.grant(&inside, TEAM_A).await.expect("binds");
    let made = until("RBAC knows of it", async || {
        let output = CLUSTER.kubectl(&inside, &["create", "configmap", "smoke-from-inside"], "").await.ok()?;
        (output.code == 0).then_some(())
    });
    made.await.expect("is allowed");

    let user = creation("configmaps", "smoke-from-inside").await.user;
    assert_eq!(user.username.as_deref(), Some("system:serviceaccount:hyperpod-ns-team-a:default"));
    let extra = user.extra.expect("a pod-bound token has extra");
    assert_eq!(extra["authentication.kubernetes.io/pod-uid"], [notebook.metadata.uid.expect("a uid")]);
}

#[tokio::test]
async fn helm_installs_and_uninstalls() {
    let admin = &CLUSTER.people.admin;
    let chart = CLUSTER.directory().join("smoke-chart");
    std::fs::create_dir_all(chart.join("templates")).expect("a directory");
    std::fs::write(chart.join("Chart.yaml"), "apiVersion: v2\nname: smoke\nversion: 0.1.0\n").expect("writes");
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: smoke-chart}\n";
    std::fs::write(chart.join("templates/one.yaml"), template).expect("writes");
    let chart = chart.display().to_string();
    let helm = async |arguments: &[&str]| {
        CLUSTER.helm(admin, arguments).await.expect("helm runs").success().expect("succeeds")
    };
    helm(&["install", "smoke", &chart, "--namespace", "smoke-helm", "--create-namespace"]).await;
    assert_eq!(creation("configmaps", "smoke-chart").await.user, *admin.user());
    helm(&["uninstall", "smoke", "--namespace", "smoke-helm"]).await;
}
