//! Uninstalled, nothing of the gate remains that would create work: no configuration that waits for an answer, nobody who
//! puts one back, and a namespace and a definition that go when they are told to.

use anyhow::Context;
use cluster::{
    CERTIFICATE, Cluster, GATE, Replicas, TEAM_A,
    manifests::{deployment, in_namespace, job_that},
    until,
    workloads::{create, job_ends, running},
};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{Api, Client, ResourceExt, api::ListParams};

const STAMP: &str = "cedargate.dev/submitted-by";
const PERSON: &str = "cedargate.dev/person";
const TEAM: &str = "cedargate.dev/team";

#[tokio::test(flavor = "multi_thread")]
async fn after_helm_uninstall_nothing_of_the_gate_remains_and_creates_work() {
    let cluster = Cluster::start().expect("the cluster starts");
    let root = cluster.callers.root.client().await.expect("connects");

    let mut replicas = Replicas::start(&cluster, 3).await.expect("the gate starts");
    for (name, command) in [("running", ["sleep", "infinity"].as_slice()), ("ended", &["train"])] {
        create(&cluster, &cluster.people.alice, &job_that(name, command)).await.success().expect("is admitted");
    }
    running(&root, TEAM_A, "batch.kubernetes.io/job-name=running").await.expect("runs");
    create(&cluster, &cluster.people.alice, &deployment("served")).await.success().expect("is admitted");
    let of_alice = running(&root, TEAM_A, "app=served").await.expect("runs");
    assert!(of_alice.labels().contains_key(PERSON), "{:?}", of_alice.metadata);
    intruder_submits(&cluster, "refused").await.expect_err("the gate is there");

    // While it runs, as Helm does it: it takes the configurations first, and the pods end last.
    uninstall(&cluster).await;
    for index in 0..replicas.count() {
        until("the replica has looked for its configurations", async || {
            replicas.log(index).contains("the cluster does not hold what the Teams say").then_some(())
        })
        .await
        .expect("sees it");
    }
    nothing_remains(&cluster).await;
    for index in 0..replicas.count() {
        assert!(replicas.terminate(index).await, "it leaves by itself: {}", replicas.log(index));
    }
    nothing_remains(&cluster).await;
    drop(replicas);
    everything_is_as_without_a_gate(&cluster, "first").await;

    // Again, and this time whoever answers is gone before the configurations are.
    let mut replicas = Replicas::start(&cluster, 3).await.expect("what was left is no obstacle");
    intruder_submits(&cluster, "refused").await.expect_err("the gate is there");
    what_is_left_of_an_earlier_install_goes_on(&cluster, &root, &of_alice).await;
    replicas.kill_all();
    uninstall(&cluster).await;
    nothing_remains(&cluster).await;
    everything_is_as_without_a_gate(&cluster, "second").await;

    // What Helm does not own goes as easily, and takes the rest with it.
    let root = &cluster.callers.root;
    for arguments in
        [["delete", "namespace", GATE, "--timeout=60s"], ["delete", "crd", "teams.cedargate.dev", "--timeout=60s"]]
    {
        cluster.kubectl(root, &arguments, "").await.expect("kubectl runs").success().expect("goes");
    }
    everything_is_as_without_a_gate(&cluster, "third").await;
}

/// The Deployment still carries the stamp of then, and the deployment controller hands it down to what is made now. Nobody
/// knows who wrote it meanwhile: the work is the team's.
async fn what_is_left_of_an_earlier_install_goes_on(cluster: &Cluster, root: &Client, before: &Pod) {
    let alice = &cluster.people.alice;
    let deployments: Api<Deployment> = Api::namespaced(root.clone(), TEAM_A);
    let stamp = deployments.get("served").await.expect("is there").annotations().get(STAMP).cloned();
    assert!(stamp.is_some_and(|stamp| stamp.contains("alice.martin@example.com")));
    for arguments in [
        ["rollout", "restart", "deployment/served"].as_slice(),
        &["rollout", "status", "deployment/served", "--timeout=60s"],
        // One more round of the controller, which copies the stamp in each.
        &["scale", "deployment/served", "--replicas=2"],
        &["rollout", "status", "deployment/served", "--timeout=60s"],
    ] {
        let done = cluster.kubectl(alice, arguments, "").await.expect("kubectl runs");
        done.success().with_context(|| arguments.join(" ")).expect("is done");
    }
    let pods: Api<Pod> = Api::namespaced(root.clone(), TEAM_A);
    let pods = pods.list(&ListParams::default().labels("app=served")).await.expect("lists").items;
    let after: Vec<_> = pods.iter().filter(|pod| pod.uid() != before.uid()).collect();
    assert_eq!(after.len(), 2, "{after:?}");
    for pod in after {
        assert_eq!(pod.labels().get(TEAM).map(String::as_str), Some("team-a"), "{:?}", pod.metadata);
        assert_eq!(pod.labels().get(PERSON), None);
        let sets = pod.owner_references().iter().map(|owner| owner.name.clone()).collect::<Vec<_>>();
        let set = Api::<ReplicaSet>::namespaced(root.clone(), TEAM_A).get(&sets[0]).await.expect("is there");
        assert_eq!(set.annotations().get(STAMP).map(String::as_str), Some(r#"{"team":"team-a"}"#));
    }
}

async fn uninstall(cluster: &Cluster) {
    let uninstalled = cluster.helm(&cluster.callers.root, &["uninstall", "cedargate", "--namespace", GATE]).await;
    uninstalled.expect("helm runs").success().expect("uninstalls");
}

/// But for what does nothing by itself: the Secret that the replicas made, which nobody trusts any more, and the Teams, which
/// a release of the same name takes up again.
async fn nothing_remains(cluster: &Cluster) {
    let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,clusterrolebindings";
    let in_namespace = "configmaps,deployments,pods,roles,rolebindings,secrets,serviceaccounts,services";
    let mut left = String::new();
    for arguments in [
        vec!["get", kinds, "-o", "name"],
        vec!["get", in_namespace, "-n", GATE, "-o", "name"],
        vec!["get", "roles,rolebindings", "-n", "default", "-o", "name"],
    ] {
        let shown = cluster.kubectl(&cluster.callers.root, &arguments, "").await.expect("kubectl runs");
        left.push_str(&shown.success().expect("lists"));
    }
    let left: Vec<&str> = left.lines().filter(|name| name.contains("cedargate")).collect();
    assert_eq!(left, [format!("secret/{CERTIFICATE}")]);
}

async fn everything_is_as_without_a_gate(cluster: &Cluster, which: &str) {
    let root = cluster.callers.root.client().await.expect("connects");
    let name = format!("ungoverned-{which}");
    create(cluster, &cluster.people.alice, &job_that(&name, &["train"])).await.success().expect("nobody is asked");
    job_ends(&root, TEAM_A, &name, "Complete").await.expect("runs");
    intruder_submits(cluster, &format!("intruder-{which}")).await.expect("RBAC alone decides");
}

async fn intruder_submits(cluster: &Cluster, name: &str) -> anyhow::Result<String> {
    create(cluster, &cluster.people.intruder, &in_namespace(job_that(name, &["train"]), TEAM_A)).await.success()
}
