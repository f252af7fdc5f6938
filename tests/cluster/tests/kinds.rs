//! Kinds of operators as their real definitions serve them: with the defaults that the API server fills in before it asks the
//! gate, in every version, and with the walk from a pod up to whoever submitted.

use std::sync::LazyLock;

use cluster::{Cluster, Gate, Identity, Output, TEAM_A, manifests, until};
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

fn alice() -> &'static Identity {
    &cluster().people.alice
}

async fn kubectl(who: &Identity, arguments: &[&str], manifest: &Value) -> Output {
    cluster().kubectl(who, arguments, &manifest.to_string()).await.expect("kubectl runs")
}

/// Server-side apply; what is then stored.
async fn applied(manifest: &Value) -> Value {
    let output = kubectl(alice(), &["apply", "--server-side", "-f", "-", "-o", "json"], manifest).await;
    serde_json::from_str(&output.success().expect("is applied")).expect("JSON")
}

/// What a person reads.
async fn refused(arguments: &[&str], manifest: &Value) -> String {
    let output = kubectl(alice(), arguments, manifest).await;
    assert_ne!(output.code, 0, "{}", output.stdout);
    output.stderr
}

/// Two GPUs.
fn template() -> Value {
    let mut spec = manifests::pod_spec("Never", manifests::SLEEP);
    spec["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "2"}});
    json!({ "spec": spec })
}

fn object(api_version: &str, kind: &str, name: &str, spec: Value) -> Value {
    let metadata = json!({ "name": name, "namespace": TEAM_A, "labels": { "project": "p-7" } });
    json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec })
}

fn ray_cluster(replicas: u64) -> Value {
    let head = json!({ "rayStartParams": {}, "template": { "spec": manifests::pod_spec("Always", manifests::SLEEP) } });
    let workers = json!({
        "groupName": "gpu", "replicas": replicas, "minReplicas": 0, "rayStartParams": {}, "template": template(),
    });
    json!({ "headGroupSpec": head, "workerGroupSpecs": [workers] })
}

fn roles(field: &str, replicas: u64) -> Value {
    let mut spec = json!({});
    spec[field] = json!({"Worker": { "replicas": replicas, "template": template() }});
    spec
}

/// Versions, kind, class, and the spec for a number of replicas.
type Sample = (&'static [&'static str], &'static str, &'static str, fn(u64) -> Value);

const SAMPLES: &[Sample] = &[
    (&["ray.io/v1", "ray.io/v1alpha1"], "RayCluster", "ray", ray_cluster),
    (
        &["ray.io/v1", "ray.io/v1alpha1"],
        "RayJob",
        "ray",
        |n| json!({ "entrypoint": "true", "rayClusterSpec": ray_cluster(n) }),
    ),
    (&["ray.io/v1", "ray.io/v1alpha1"], "RayService", "ray", |n| json!({ "rayClusterConfig": ray_cluster(n) })),
    (&["jobset.x-k8s.io/v1alpha2"], "JobSet", "batch", |n| {
        let job = json!({ "spec": { "parallelism": n, "template": template() } });
        json!({ "suspend": true, "replicatedJobs": [{ "name": "workers", "template": job }] })
    }),
    (
        &["leaderworkerset.x-k8s.io/v1"],
        "LeaderWorkerSet",
        "service",
        |n| json!({ "replicas": n, "leaderWorkerTemplate": { "size": 2, "workerTemplate": template() } }),
    ),
    (&["kubeflow.org/v2beta1"], "MPIJob", "training", |n| roles("mpiReplicaSpecs", n)),
    (&["kubeflow.org/v1"], "PyTorchJob", "training", |n| roles("pytorchReplicaSpecs", n)),
];

#[tokio::test]
async fn each_goes_through_in_every_version() {
    for (versions, kind, class, spec) in SAMPLES {
        let name = format!("every-{}", kind.to_lowercase());
        for (replicas, version) in (1_u64..).zip(*versions) {
            let stored = applied(&object(version, kind, &name, spec(replicas))).await;
            let labels = &stored["metadata"]["labels"];
            assert_eq!(labels["cedargate.dev/class"], *class, "{version} {kind}");
            assert_eq!(labels["kueue.x-k8s.io/queue-name"], "hyperpod-ns-team-a-localqueue", "{version} {kind}");
            let stamp = stored["metadata"]["annotations"]["cedargate.dev/submitted-by"].as_str().expect("a stamp");
            assert!(stamp.contains("alice.martin@example.com"), "{version} {kind}: {stamp}");
        }
        let last = versions.last().expect("a version");
        let too_many = refused(&["apply", "--server-side", "-f", "-"], &object(last, kind, &name, spec(40))).await;
        assert!(too_many.contains("team-a may never hold more than 64"), "{kind}: {too_many}");
    }
}

/// The definition fills in the largest number there is, before the gate is asked.
#[tokio::test]
async fn a_ray_cluster_that_scales_itself_needs_a_maximum() {
    let mut spec = ray_cluster(1);
    spec["enableInTreeAutoscaling"] = true.into();
    let message = refused(&["create", "-f", "-"], &object("ray.io/v1", "RayCluster", "boundless", spec.clone())).await;
    assert!(message.contains("set `maxReplicas` of every worker group"), "{message}");
    spec["workerGroupSpecs"][0]["maxReplicas"] = 4.into();
    let bounded = applied(&object("ray.io/v1", "RayCluster", "bounded", spec)).await;
    assert_eq!(bounded["spec"]["headGroupSpec"]["template"]["spec"]["serviceAccountName"], "team-a");
}

#[tokio::test]
async fn a_leader_worker_set_is_scaled_up_to_the_limit() {
    let set = object(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "scaled",
        json!({ "replicas": 1, "leaderWorkerTemplate": { "size": 2, "workerTemplate": template() } }),
    );
    applied(&set).await;
    let known = async || {
        let scaled = kubectl(alice(), &["scale", "leaderworkersets/scaled", "--replicas=2"], &Value::Null).await;
        (scaled.code == 0).then_some(())
    };
    until("the gate knows the set", known).await.expect("is scaled");
    let message = refused(&["scale", "leaderworkersets/scaled", "--replicas=17"], &Value::Null).await;
    assert!(message.contains("it asks for 68 nvidia.com/gpu"), "{message}");
}

/// MPIJob is served in v2beta1 alone, while its group prefers v1.
#[tokio::test]
async fn a_pod_of_an_mpi_job_is_whoever_submitted_the_job() {
    let admin = &cluster().people.admin;
    for arguments in
        [["create", "namespace", "mpi-operator"].as_slice(), &["create", "sa", "-n", "mpi-operator", "mpi-operator"]]
    {
        kubectl(admin, arguments, &Value::Null).await.success().expect("is created");
    }
    let operator = cluster().service_account("mpi-operator", "mpi-operator", None).await.expect("a token");
    cluster().grant(&operator, TEAM_A).await.expect("binds");
    let job = applied(&object("kubeflow.org/v2beta1", "MPIJob", "walked", roles("mpiReplicaSpecs", 1))).await;
    let mut pod = manifests::pod("walked-worker-0");
    pod["spec"] = template()["spec"].clone();
    pod["metadata"]["namespace"] = TEAM_A.into();
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "walked", "uid": job["metadata"]["uid"],
        "controller": true,
    }]);
    let made = async || {
        let output = kubectl(&operator, &["create", "-f", "-", "-o", "json"], &pod).await;
        (output.code == 0).then_some(output.stdout)
    };
    let made = until("RBAC lets the operator", made).await.expect("is created");
    let made: Value = serde_json::from_str(&made).expect("JSON");
    let stamp = |object: &Value| object["metadata"]["annotations"]["cedargate.dev/submitted-by"].clone();
    assert_eq!(stamp(&made), stamp(&job));
    assert_eq!(made["spec"]["serviceAccountName"], "team-a");
}
