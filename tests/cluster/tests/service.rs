//! The chart as it is by default: API servers find the gate by its Service, and believe it by the Service's name.

use std::net::SocketAddr;

use anyhow::Context;
use cluster::{
    Cluster, Process, Release, TEAM_A, endpoints, free_port,
    manifests::{in_namespace, job, job_that},
    own_address, until,
    workloads::{create, running},
};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

const GATE: &str = "cedargate";
const NAMESPACE: &str = "cedargate-system";

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_is_found_and_believed_by_its_service() {
    let address = own_address().expect("an endpoint needs an address");
    let listen = SocketAddr::from((address, free_port().expect("a port")));
    let cluster = Cluster::start().expect("the cluster starts");
    let root = cluster.callers.root.client().await.expect("connects");
    let release = Release::install_behind_its_service(&cluster, listen).await.expect("is installed");
    let arguments = release.arguments(listen);
    let gate = Process::start(GATE, cluster.directory(), release.program(), arguments).expect("starts");
    release.governs(&cluster).await.with_context(|| gate.tail()).expect("governs");

    let bundle = only_by_service(&root).await;
    create(&cluster, &cluster.people.alice, &job("by-service")).await.success().expect("admits");
    let pod = running(&root, TEAM_A, "batch.kubernetes.io/job-name=by-service").await.expect("runs");
    assert!(pod.labels().contains_key("cedargate.dev/person"), "it was asked: {:?}", pod.metadata);
    let refused =
        create(&cluster, &cluster.people.intruder, &in_namespace(job_that("refused", &["train"]), TEAM_A)).await;
    assert!(refused.stderr.contains("denied the request"), "{}", refused.stderr);

    another_service_before_the_same_gate_is_not_believed(&cluster, listen, &bundle).await;
    the_endpoint_moves(&cluster, &release, gate).await;
}

/// Gives whom the API server is told to trust.
async fn only_by_service(root: &Client) -> String {
    let mutating = Api::<MutatingWebhookConfiguration>::all(root.clone()).get(GATE).await.expect("is there");
    let validating = Api::<ValidatingWebhookConfiguration>::all(root.clone()).get(GATE).await.expect("is there");
    let mutating = mutating.webhooks.unwrap_or_default().into_iter().map(|webhook| webhook.client_config);
    let validating = validating.webhooks.unwrap_or_default().into_iter().map(|webhook| webhook.client_config);
    let clients: Vec<_> = mutating.chain(validating).collect();
    assert!(clients.len() >= 5, "one mutating and four validating: {}", clients.len());
    for client in &clients {
        let service = client.service.as_ref().expect("by Service");
        assert_eq!((service.name.as_str(), service.namespace.as_str()), (GATE, NAMESPACE));
        assert_eq!(client.url, None);
    }
    let bundle = serde_json::to_value(&clients[0].ca_bundle).expect("JSON");
    bundle.as_str().expect("a bundle").to_owned()
}

/// The certificate speaks for one Service alone.
async fn another_service_before_the_same_gate_is_not_believed(cluster: &Cluster, listen: SocketAddr, bundle: &str) {
    let other = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "other", "namespace": NAMESPACE },
        "spec": { "ports": [{ "name": "https", "port": 443, "targetPort": listen.port() }] },
    });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "other" },
        "webhooks": [{
            "name": "other.example.com",
            "clientConfig": {
                "caBundle": bundle,
                "service": { "name": "other", "namespace": NAMESPACE, "path": "/validate" },
            },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"] }],
            "objectSelector": { "matchLabels": { "asks": "other" } },
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    });
    for manifest in [other, endpoints("other", Some(listen)), configuration] {
        apply(cluster, &manifest).await;
    }
    let asks = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "asks", "namespace": "default", "labels": { "asks": "other" } },
    });
    let why = "certificate is valid for cedargate.cedargate-system.svc, not other.cedargate-system.svc";
    let mut said = String::new();
    until("the API server asks there", async || {
        let arguments = ["create", "--dry-run=server", "-f", "-"];
        said = cluster.kubectl(&cluster.callers.root, &arguments, &asks.to_string()).await.ok()?.stderr;
        said.contains(why).then_some(())
    })
    .await
    .with_context(|| said.clone())
    .expect("is not believed");
}

/// As when one pod goes and another comes: in between nothing is admitted.
async fn the_endpoint_moves(cluster: &Cluster, release: &Release, gate: Process) {
    drop(gate);
    apply(cluster, &endpoints(GATE, None)).await;
    let refused = create(cluster, &cluster.people.alice, &job_that("nobody-there", &["train"])).await;
    assert!(refused.stderr.contains("failed calling webhook"), "{}: {}", refused.code, refused.stderr);

    let listen = SocketAddr::from((own_address().expect("an address"), free_port().expect("a port")));
    let next = Process::start(GATE, cluster.directory(), release.program(), release.arguments(listen)).expect("starts");
    apply(cluster, &endpoints(GATE, Some(listen))).await;
    until("it is found again", async || {
        create(cluster, &cluster.people.alice, &job_that("there-again", &["train"])).await.success().ok().map(drop)
    })
    .await
    .with_context(|| next.tail())
    .expect("is admitted");
}

async fn apply(cluster: &Cluster, manifest: &Value) {
    let applied =
        cluster.kubectl(&cluster.callers.root, &["apply", "--server-side", "-f", "-"], &manifest.to_string()).await;
    applied.expect("kubectl runs").success().expect("applies");
}
