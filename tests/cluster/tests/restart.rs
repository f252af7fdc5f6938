//! What a scenario that restarts the API server builds on. It has a cluster of its own, since it disturbs others.

use cluster::{Cluster, TEAM_A, until};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

#[tokio::test]
async fn after_a_restart_pods_run_and_go_as_before() {
    let cluster = Cluster::start().expect("the cluster starts");
    cluster.restart_api_server().await.expect("restarts");
    cluster.node().heartbeat().await.expect("is heard");

    let pods: Api<Pod> = Api::namespaced(cluster.people.alice.client().await.expect("connects"), TEAM_A);
    let pod = json!({
        "metadata": { "name": "late" },
        "spec": { "containers": [{ "name": "main", "image": "example.com/image:1" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).expect("a pod")).await.expect("is created");
    let running =
        until("it runs", async || (pods.get_opt("late").await.ok()??.status?.phase? == "Running").then_some(()));
    running.await.expect("runs");
    pods.delete("late", &DeleteParams::default()).await.expect("is deleted");
    until("it is gone", async || pods.get_opt("late").await.ok()?.is_none().then_some(())).await.expect("goes");
}
