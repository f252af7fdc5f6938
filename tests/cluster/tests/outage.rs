//! Nobody of the gate is there, and the API server has been restarted: what must go on goes on, what must be judged waits,
//! and when the gate comes back nobody has to do anything.

use cluster::{
    Cluster, Fate, GATE, Identity, Replicas, TEAM_A, TEAM_B, governed,
    manifests::{deployment, in_namespace, job, job_that, namespace, pod_that},
    until,
    workloads::{create, job_ends, running},
};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Namespace, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, EvictParams, ListParams},
};
use serde_json::{Value, json};

/// A Team of its own, so that a governed namespace can go.
const PASSING: &str = "hyperpod-ns-passing";

#[tokio::test(flavor = "multi_thread")]
async fn without_the_gate_clean_up_goes_on_and_nothing_of_a_team_begins() {
    let cluster = Cluster::start().expect("the cluster starts");
    let mut replicas = Replicas::start(&cluster, 3).await.expect("the gate starts");
    let Scene { alice, root } = Scene::set(&cluster).await;

    replicas.kill_all();
    cluster.restart_api_server().await.expect("restarts");

    refused_for_want_of_an_answer(&cluster, &cluster.people.alice, &job_that("unjudged", &["train"])).await;
    refused_for_want_of_an_answer(
        &cluster,
        &cluster.people.bob,
        &in_namespace(pod_that("unjudged", &["train"]), TEAM_B),
    )
    .await;
    refused_for_want_of_an_answer(&cluster, &cluster.people.admin, &team("late", "late")).await;

    the_cluster_itself_goes_on(&cluster).await;
    cluster.node().heartbeat().await.expect("the node's heartbeat goes through");
    what_runs_ends(&cluster, &alice).await;
    what_is_deleted_goes(&alice, &root).await;
    let evicted = a_pod_is_evicted(&alice).await;
    assert_eq!(pods(&alice, "app=served").await, Vec::<String>::new(), "nobody replaces it yet: {evicted} was judged");

    replicas.start_all().expect("starts");
    replicas.all_ready().await.expect("the gate is back");

    create(&cluster, &cluster.people.alice, &job_that("judged", &["train"])).await.success().expect("is admitted");
    job_ends(&alice, TEAM_A, "judged", "Complete").await.expect("ends");
    until("what was evicted is replaced", async || (pods(&alice, "app=served").await.len() == 1).then_some(()))
        .await
        .expect("comes back");
    let replaced = Api::<Pod>::namespaced(root.clone(), TEAM_A);
    let replaced = replaced.list(&ListParams::default().labels("app=served")).await.expect("lists").items.remove(0);
    let person = replaced.metadata.labels.as_ref().and_then(|labels| labels.get("cedargate.dev/person"));
    assert!(person.is_some_and(|person| person.starts_with("alice.martin")), "{:?}", replaced.metadata);
    governed(&cluster, &["team-a", "team-b", "platform"]).await.expect("Teams are governed");
    let foreign =
        create(&cluster, &cluster.people.intruder, &in_namespace(job_that("foreign", &["train"]), TEAM_A)).await;
    assert!(foreign.stderr.contains("denied the request"), "{}", foreign.stderr);
}

struct Scene {
    alice: Client,
    root: Client,
}

impl Scene {
    /// What runs before the gate goes.
    async fn set(cluster: &Cluster) -> Self {
        let alice = cluster.people.alice.client().await.expect("connects");
        let root = cluster.callers.root.client().await.expect("connects");
        create(cluster, &cluster.callers.root, &namespace(PASSING)).await.success().expect("is created");
        // Before its namespace is a Team's: nobody is a member there.
        let passing = in_namespace(deployment("passing"), PASSING);
        create(cluster, &cluster.callers.root, &passing).await.success().expect("nobody is asked");
        running(&root, PASSING, "app=passing").await.expect("runs");
        create(cluster, &cluster.people.admin, &team("passing", PASSING)).await.success().expect("is admitted");
        governed(cluster, &["passing"]).await.expect("is governed");
        for manifest in [job("long"), job("ending"), deployment("served")] {
            create(cluster, &cluster.people.alice, &manifest).await.success().expect("is admitted");
        }
        for (namespace, label) in [
            (TEAM_A, "batch.kubernetes.io/job-name=long"),
            (TEAM_A, "batch.kubernetes.io/job-name=ending"),
            (TEAM_A, "app=served"),
        ] {
            running(&root, namespace, label).await.expect("runs");
        }
        Self { alice, root }
    }
}

/// Fails closed, and kubectl says why.
async fn refused_for_want_of_an_answer(cluster: &Cluster, who: &Identity, manifest: &Value) {
    let output = create(cluster, who, manifest).await;
    assert_ne!(output.code, 0, "{manifest} slipped past");
    assert!(output.stderr.contains("failed calling webhook"), "{}", output.stderr);
}

/// The cluster's own pods, the gate's among them, made by the real controllers.
async fn the_cluster_itself_goes_on(cluster: &Cluster) {
    let root = cluster.callers.root.client().await.expect("connects");
    for namespace in ["kube-system", GATE] {
        let manifest = in_namespace(deployment("own"), namespace);
        create(cluster, &cluster.people.admin, &manifest).await.success().expect("nobody of the gate is asked");
        running(&root, namespace, "app=own").await.expect("runs");
    }
    create(cluster, &cluster.people.admin, &in_namespace(deployment("own"), "default"))
        .await
        .success()
        .expect("Ignore");
    create(cluster, &cluster.people.admin, &namespace("new")).await.success().expect("Ignore");
}

/// The job controller takes its finalizer off the pod and writes the Job's status.
async fn what_runs_ends(cluster: &Cluster, alice: &Client) {
    let pod = pods(alice, "batch.kubernetes.io/job-name=ending").await.remove(0);
    cluster.node().end(TEAM_A, &pod, Fate::Succeed).await.expect("kubelet reports");
    job_ends(alice, TEAM_A, "ending", "Complete").await.expect("ends");
    let api: Api<Pod> = Api::namespaced(alice.clone(), TEAM_A);
    until("the finalizer is off", async || {
        let pod = api.get_opt(&pod).await.ok()??;
        pod.metadata.finalizers.unwrap_or_default().is_empty().then_some(())
    })
    .await
    .expect("comes off");
}

/// A Job with its pod by the garbage collector, and a governed namespace with all that is in it.
async fn what_is_deleted_goes(alice: &Client, root: &Client) {
    let jobs: Api<Job> = Api::namespaced(alice.clone(), TEAM_A);
    jobs.delete("long", &DeleteParams::foreground()).await.expect("is deleted");
    until("the Job is gone", async || jobs.get_opt("long").await.ok()?.is_none().then_some(())).await.expect("goes");
    assert_eq!(
        pods(alice, "batch.kubernetes.io/job-name=long").await,
        Vec::<String>::new(),
        "foreground: its pod first"
    );

    let namespaces: Api<Namespace> = Api::all(root.clone());
    namespaces.delete(PASSING, &DeleteParams::default()).await.expect("is deleted");
    until("the namespace is gone", async || namespaces.get_opt(PASSING).await.ok()?.is_none().then_some(()))
        .await
        .expect("goes");
}

async fn a_pod_is_evicted(alice: &Client) -> String {
    let api: Api<Pod> = Api::namespaced(alice.clone(), TEAM_A);
    let pod = pods(alice, "app=served").await.remove(0);
    api.evict(&pod, &EvictParams::default()).await.expect("is evicted");
    until("the pod is gone", async || api.get_opt(&pod).await.ok()?.is_none().then_some(())).await.expect("goes");
    pod
}

async fn pods(client: &Client, label: &str) -> Vec<String> {
    let api: Api<Pod> = Api::namespaced(client.clone(), TEAM_A);
    let found = api.list(&ListParams::default().labels(label)).await.expect("lists");
    found.items.into_iter().filter_map(|pod| pod.metadata.name).collect()
}

fn team(name: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "cedargate.dev/v1alpha1",
        "kind": "Team",
        "metadata": { "name": name },
        "spec": { "namespaces": [namespace] },
    })
}
