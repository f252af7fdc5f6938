//! A team whose work task governance queues: the gate gives queue and priority, refuses what the queue could never give, and
//! keeps the ways past it shut. No Kueue runs here: the harness does what Kueue does, under its name.

use cluster::{Cluster, Gate, Identity, Output, TEAM_A, manifests, until};
use serde_json::{Value, json};

const GPU: &str = "nvidia.com/gpu";

const QUEUE: &str = "hyperpod-ns-team-a-localqueue";

#[tokio::test(flavor = "multi_thread")]
async fn a_team_whose_work_is_queued() {
    let cluster = Cluster::start().expect("the cluster starts");
    let _gate = Gate::start(&cluster).expect("the gate starts");
    a_team_goes_over_to_its_queue(&cluster).await;
    a_job_gets_queue_and_priority(&cluster).await;
    what_could_never_be_had_is_refused(&cluster).await;
    nobody_goes_past_the_queue(&cluster).await;
    the_queue_starts_the_job(&cluster).await;
    an_older_version_is_read_as_well(&cluster).await;
}

/// Eight of its own, four to borrow of another queue; Kueue says that three are given.
async fn a_team_goes_over_to_its_queue(cluster: &Cluster) {
    let task_governance = &cluster.callers.service_linked_role;
    let objects = [
        cluster_queue("v1beta2", "hyperpod-ns-team-a-clusterqueue", json!({ "nominalQuota": 8, "borrowingLimit": 4 })),
        cluster_queue("v1beta2", "hyperpod-ns-team-b-clusterqueue", json!({ "nominalQuota": 16 })),
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "LocalQueue",
            "metadata": { "name": QUEUE, "namespace": TEAM_A },
            "spec": { "clusterQueue": "hyperpod-ns-team-a-clusterqueue" },
        }),
    ];
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    create(cluster, task_governance, &list).await.success().expect("are made");
    let given = json!({ "name": "ml.p5.48xlarge", "resources": [{ "name": GPU, "total": 3, "borrowed": 0 }] });
    let status = json!({ "status": {
        "flavorsReservation": [given], "flavorsUsage": [given],
        "pendingWorkloads": 0, "reservingWorkloads": 1, "admittedWorkloads": 1,
    } });
    patch(
        cluster,
        &cluster.callers.kueue,
        &["clusterqueue", "hyperpod-ns-team-a-clusterqueue", "--subresource=status"],
        &status,
    )
    .await
    .success()
    .expect("Kueue tells");
    let mode = json!({ "spec": { "quota": { "mode": "kueue", "limit": null } } });
    patch(cluster, &cluster.people.admin, &["team", "team-a"], &mode).await.success().expect("is patched");
    team_says(cluster, "nvidia.com/gpu 3", "by Kueue, nvidia.com/gpu 8 (up to 12)").await;
}

async fn a_job_gets_queue_and_priority(cluster: &Cluster) {
    let alice = &cluster.people.alice;
    create(cluster, alice, &job("train", 8)).await.success().expect("is let in");
    let stored = get(cluster, alice, &["job", "train"]).await;
    let labels = &stored["metadata"]["labels"];
    assert_eq!(labels["kueue.x-k8s.io/queue-name"], QUEUE);
    assert_eq!(labels["kueue.x-k8s.io/priority-class"], "training-priority");
}

async fn what_could_never_be_had_is_refused(cluster: &Cluster) {
    let refused = create(cluster, &cluster.people.alice, &job("too-large", 16)).await;
    insta::assert_snapshot!("never_to_be_had", refused.stderr);
}

async fn nobody_goes_past_the_queue(cluster: &Cluster) {
    let (alice, kueue) = (&cluster.people.alice, &cluster.callers.kueue);
    let record = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": { "name": "job-train", "namespace": TEAM_A },
        "spec": { "queueName": QUEUE, "podSets": [{ "name": "main", "count": 1, "template": { "spec": {
            "restartPolicy": "Never", "containers": [{ "name": "main", "image": manifests::IMAGE }],
        } } }] },
    });
    create(cluster, kueue, &record).await.success().expect("Kueue notes the job");
    let admits = |refused: Output| refused.stderr;
    let by_alice = patch(cluster, alice, &["workload", "job-train", "--subresource=status"], &admission()).await;
    insta::assert_snapshot!("a_workload_is_admitted", admits(by_alice));
    let started = patch(cluster, alice, &["job", "train"], &json!({ "spec": { "suspend": false } })).await;
    insta::assert_snapshot!("a_job_is_started", started.stderr);
    let own = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": { "name": "fast", "namespace": TEAM_A },
        "spec": { "clusterQueue": "hyperpod-ns-team-b-clusterqueue" },
    });
    insta::assert_snapshot!("a_queue_of_ones_own", create(cluster, alice, &own).await.stderr);
    let mut grouped = manifests::pod("grouped");
    grouped["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] = json!("job-train");
    grouped["metadata"]["annotations"] = json!({ "kueue.x-k8s.io/pod-group-total-count": "1" });
    insta::assert_snapshot!("into_what_another_was_given", create(cluster, alice, &grouped).await.stderr);
}

/// With the node labels and tolerations of the flavor, which no policy allows people; and the pod is alice's all the same.
async fn the_queue_starts_the_job(cluster: &Cluster) {
    let kueue = &cluster.callers.kueue;
    patch(cluster, kueue, &["workload", "job-train", "--subresource=status", "-n", TEAM_A], &admission())
        .await
        .success()
        .expect("Kueue admits");
    let starts = json!({ "spec": { "suspend": false, "template": {
        "metadata": { "labels": { "kueue.x-k8s.io/podset": "main" } },
        "spec": {
            "nodeSelector": { "example.com/flavor": "reserved" },
            "tolerations": [{ "key": "example.com/reserved", "operator": "Exists" }],
        },
    } } });
    patch(cluster, kueue, &["job", "train", "-n", TEAM_A], &starts).await.success().expect("Kueue starts it");
    let made = cluster.audit().created(TEAM_A, "pods", "train-").await.expect("its pod comes");
    let pod = made.response_object.expect("is logged");
    assert_eq!(pod["spec"]["nodeSelector"], json!({ "example.com/flavor": "reserved" }));
    assert_eq!(pod["spec"]["serviceAccountName"], "team-a");
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().cloned().unwrap_or_default();
    let paths: Vec<&Value> = mounts.iter().map(|mount| &mount["mountPath"]).collect();
    assert!(paths.contains(&&json!("/fsx")) && paths.contains(&&json!("/home/alice")), "{paths:?}");
    assert!(
        pod["metadata"]["annotations"]["cedargate.dev/submitted-by"].as_str().is_some_and(|by| by.contains("alice"))
    );
}

/// Served by whoever has not upgraded yet. Without its operator the API server drops what the versions call by two names, so
/// that nothing is to be borrowed any more.
async fn an_older_version_is_read_as_well(cluster: &Cluster) {
    let root = &cluster.callers.root;
    for plural in ["clusterqueues", "localqueues", "cohorts"] {
        let name = format!("{plural}.kueue.x-k8s.io");
        let definition = get(cluster, root, &["crd", &name]).await;
        let versions = definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
        let newer = versions.iter().position(|version| version["name"] == "v1beta2").expect("is served");
        let path = format!("/spec/versions/{newer}/served");
        let off = json!([{ "op": "replace", "path": path, "value": false }]).to_string();
        let arguments = ["patch", "crd", &name, "--type=json", "--patch", &off];
        cluster.kubectl(root, &arguments, "").await.expect("kubectl runs").success().expect("is not served any more");
    }
    let flavors = json!([{ "name": "ml.p5.48xlarge", "resources": [{ "name": GPU, "nominalQuota": 2 }] }]);
    let less = json!({ "spec": { "resourceGroups": [{ "coveredResources": [GPU], "flavors": flavors }] } });
    let queue = ["clusterqueues.v1beta1.kueue.x-k8s.io", "hyperpod-ns-team-a-clusterqueue"];
    until("the queue has less", async || {
        patch(cluster, &cluster.callers.service_linked_role, &queue, &less).await.success().ok()
    })
    .await
    .expect("less");
    team_says(cluster, "nvidia.com/gpu 3", "by Kueue, nvidia.com/gpu 2").await;
}

/// What `kubectl get teams` shows.
async fn team_says(cluster: &Cluster, used: &str, limit: &str) {
    until(&format!("team-a uses {used} and has {limit}"), async || {
        let status = get(cluster, &cluster.people.admin, &["team", "team-a"]).await["status"].take();
        (status["used"] == used && status["limit"] == limit).then_some(())
    })
    .await
    .expect("says so");
}

fn admission() -> Value {
    let now = "2026-01-01T00:00:00Z";
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now });
    json!({ "status": {
        "admission": {
            "clusterQueue": "hyperpod-ns-team-a-clusterqueue",
            "podSetAssignments": [{ "name": "main", "count": 1 }],
        },
        "conditions": [condition("QuotaReserved"), condition("Admitted")],
    } })
}

/// As Kueue's webhook leaves it.
fn job(name: &str, gpus: u64) -> Value {
    let mut job = manifests::job(name);
    job["spec"]["suspend"] = json!(true);
    job["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({ "limits": { GPU: gpus } });
    job
}

fn cluster_queue(version: &str, name: &str, quota: Value) -> Value {
    let mut quota = quota;
    quota["name"] = json!(GPU);
    json!({
        "apiVersion": format!("kueue.x-k8s.io/{version}"),
        "kind": "ClusterQueue",
        "metadata": { "name": name },
        "spec": {
            "cohortName": "site",
            "namespaceSelector": {},
            "resourceGroups": [{
                "coveredResources": [GPU],
                "flavors": [{ "name": "ml.p5.48xlarge", "resources": [quota] }],
            }],
        },
    })
}

async fn create(cluster: &Cluster, who: &Identity, manifest: &Value) -> Output {
    cluster.kubectl(who, &["create", "-f", "-"], &manifest.to_string()).await.expect("kubectl runs")
}

async fn patch(cluster: &Cluster, who: &Identity, what: &[&str], patch: &Value) -> Output {
    let patch = patch.to_string();
    let arguments = [&["patch"], what, &["--type=merge", "--patch", &patch]].concat();
    cluster.kubectl(who, &arguments, "").await.expect("kubectl runs")
}

async fn get(cluster: &Cluster, who: &Identity, what: &[&str]) -> Value {
    let arguments = [&["get"], what, &["-o", "json"]].concat();
    let found = cluster.kubectl(who, &arguments, "").await.expect("kubectl runs").success().expect("is there");
    serde_json::from_str(&found).expect("JSON")
}
