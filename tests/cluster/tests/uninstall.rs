//! Uninstalled, nothing of the gate remains that would create work: no configuration that waits for an answer, nobody who
//! puts one back, and a namespace and a definition that go when they are told to.

use cluster::{
    CERTIFICATE, Cluster, GATE, Replicas, TEAM_A, until,
    workloads::{create, in_namespace, job, job_ends, running},
};

#[tokio::test(flavor = "multi_thread")]
async fn after_helm_uninstall_nothing_of_the_gate_remains_and_creates_work() {
    let cluster = Cluster::start().expect("the cluster starts");
    let root = cluster.callers.root.client().await.expect("connects");

    let mut replicas = Replicas::start(&cluster, 3).await.expect("the gate starts");
    for (name, command) in [("running", ["sleep", "infinity"].as_slice()), ("ended", &["train"])] {
        create(&cluster, &cluster.people.alice, &job(name, command)).await.success().expect("is admitted");
    }
    running(&root, TEAM_A, "batch.kubernetes.io/job-name=running").await.expect("runs");
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
    for arguments in [vec!["get", kinds, "-o", "name"], vec!["get", in_namespace, "-n", GATE, "-o", "name"]] {
        let shown = cluster.kubectl(&cluster.callers.root, &arguments, "").await.expect("kubectl runs");
        left.push_str(&shown.success().expect("lists"));
    }
    let left: Vec<&str> = left.lines().filter(|name| name.contains("cedargate")).collect();
    assert_eq!(left, [format!("secret/{CERTIFICATE}")]);
}

async fn everything_is_as_without_a_gate(cluster: &Cluster, which: &str) {
    let root = cluster.callers.root.client().await.expect("connects");
    let name = format!("ungoverned-{which}");
    create(cluster, &cluster.people.alice, &job(&name, &["train"])).await.success().expect("nobody is asked");
    job_ends(&root, TEAM_A, &name, "Complete").await.expect("runs");
    intruder_submits(cluster, &format!("intruder-{which}")).await.expect("RBAC alone decides");
}

async fn intruder_submits(cluster: &Cluster, name: &str) -> anyhow::Result<String> {
    create(cluster, &cluster.people.intruder, &in_namespace(job(name, &["train"]), TEAM_A)).await.success()
}
