//! The one node: scheduler and kubelet, as far as an API server can tell.
//!
//! Each acts under its real name, so that the node authorizer, NodeRestriction and every webhook see what they would
//! see: `system:kube-scheduler` binds pods, `system:node:...` reports their status and ends their deletion.

use anyhow::{Context, Result};
use futures_util::{Stream, StreamExt, future::ready};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Binding, Container, ContainerStatus, Node as NodeObject, Pod},
    },
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{kubeconfig::Identity, people::Callers};

/// Named as HyperPod names its nodes.
pub const NODE: &str = "hyperpod-i-0123456789abcdef0";

const LEASES: &str = "kube-node-lease";

/// What becomes of a pod's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Run,
    Succeed,
    Fail,
}

impl Fate {
    /// A manifest says it in its own words: the first container `sleep`s or is a server (run for ever), calls `false`
    /// (fails), or is done at once.
    fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let restarts = spec.and_then(|spec| spec.restart_policy.as_deref()).is_none_or(|policy| policy == "Always");
        let words = spec.and_then(|spec| spec.containers.first()).map(words).unwrap_or_default();
        let says = |word: &str| words.split_whitespace().any(|said| said == word);
        if restarts || says("sleep") {
            Self::Run
        } else if says("false") {
            Self::Fail
        } else {
            Self::Succeed
        }
    }
}

fn words(container: &Container) -> String {
    let Container { command, args, .. } = container;
    command.iter().chain(args).flatten().map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// Works while it is held.
#[derive(Debug)]
pub struct Node {
    kubelet: Identity,
    tasks: Vec<JoinHandle<()>>,
}

impl Node {
    /// Registers the node and begins to schedule and run. On the current runtime.
    pub(crate) async fn start(callers: &Callers) -> Result<Self> {
        let kubelet = client(&callers.kubelet).await?;
        let scheduler = client(&callers.scheduler).await?;
        let root = client(&callers.root).await?;
        register(&kubelet, &root).await?;
        let tasks = vec![tokio::spawn(schedule(scheduler)), tokio::spawn(run(kubelet))];
        let node = Self { kubelet: callers.kubelet.clone(), tasks };
        node.heartbeat().await?;
        Ok(node)
    }

    /// What kubelet does every ten seconds; nobody here marks a node that does not.
    pub async fn heartbeat(&self) -> Result<()> {
        let kubelet = self.kubelet.client().await?;
        let leases: Api<Lease> = Api::namespaced(kubelet.clone(), LEASES);
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        let spec = json!({ "holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": now });
        if leases.get_opt(NODE).await?.is_none() {
            let lease = serde_json::from_value(json!({ "metadata": { "name": NODE }, "spec": spec }))?;
            leases.create(&PostParams::default(), &lease).await?;
            return Ok(());
        }
        leases.patch(NODE, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await?;
        let nodes: Api<NodeObject> = Api::all(kubelet);
        let status = json!({ "status": { "conditions": [condition("Ready", true)] } });
        nodes.patch_status(NODE, &PatchParams::default(), &Patch::Strategic(status)).await?;
        Ok(())
    }

    /// Ends a pod that runs: as its process would, in its own time.
    pub async fn end(&self, namespace: &str, pod: &str, fate: Fate) -> Result<()> {
        let kubelet = self.kubelet.client().await?;
        let pods: Api<Pod> = Api::namespaced(kubelet.clone(), namespace);
        report(&kubelet, &pods.get(pod).await?, fate).await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn client(identity: &Identity) -> Result<Client> {
    identity.client().await.with_context(|| identity.name().to_owned())
}

/// Kubelet registers its node itself; the taint that the API server puts on a new one is taken off by the node
/// lifecycle controller, which does not run here.
async fn register(kubelet: &Client, root: &Client) -> Result<()> {
    let resources = json!({
        "cpu": "192",
        "memory": "2Ti",
        "pods": "500",
        "ephemeral-storage": "2Ti",
        "nvidia.com/gpu": "64",
        "vpc.amazonaws.com/efa": "32",
    });
    let node = json!({
        "metadata": {
            "name": NODE,
            "labels": {
                "kubernetes.io/hostname": NODE,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": "ml.p5.48xlarge",
                "sagemaker.amazonaws.com/node-health-status": "Schedulable",
            },
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [condition("Ready", true)],
        },
    });
    let nodes: Api<NodeObject> = Api::all(kubelet.clone());
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await.context("cannot register the node")?;
    let untainted = Patch::Merge(json!({ "spec": { "taints": null } }));
    Api::<NodeObject>::all(root.clone()).patch(NODE, &PatchParams::default(), &untainted).await?;
    Ok(())
}

/// Every pod is bound to the one node, whether or not it would fit: how much fits is not what is tested here.
async fn schedule(scheduler: Client) {
    pods(&scheduler, watcher::Config::default().fields("spec.nodeName="))
        .for_each(|pod| {
            let scheduler = scheduler.clone();
            async move {
                let _lost = bind(&scheduler, &pod).await; // bound or deleted meanwhile, or refused: seen again if it matters
            }
        })
        .await;
}

async fn bind(scheduler: &Client, pod: &Pod) -> Result<()> {
    let spec = pod.spec.as_ref().context("a pod has a spec")?;
    let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    if gated || pod.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let binding: Binding = serde_json::from_value(json!({
        "metadata": { "name": pod.name_any(), "uid": pod.metadata.uid },
        "target": { "kind": "Node", "name": NODE },
    }))?;
    let pods: Api<Pod> = Api::namespaced(scheduler.clone(), &namespace(pod));
    let _bound: Value = pods.create_subresource("binding", &pod.name_any(), &PostParams::default(), &binding).await?;
    Ok(())
}

async fn run(kubelet: Client) {
    let ours = watcher::Config::default().fields(&format!("spec.nodeName={NODE}"));
    pods(&kubelet, ours)
        .for_each(|pod| {
            let kubelet = kubelet.clone();
            async move {
                let _overtaken = advance(&kubelet, &pod).await; // changed or gone meanwhile: the next event tells
            }
        })
        .await;
}

/// One step of a pod's life; the change that it makes is the event of the next.
async fn advance(kubelet: &Client, pod: &Pod) -> Result<()> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let ended = matches!(phase, "Succeeded" | "Failed");
    match (pod.metadata.deletion_timestamp.is_some(), phase, Fate::of(pod)) {
        (true, _, _) if !ended => report(kubelet, pod, Fate::Fail).await, // killed, and its containers say so
        (true, _, _) => remove(kubelet, pod).await,
        (false, "Pending", _) => report(kubelet, pod, Fate::Run).await,
        (false, "Running", fate @ (Fate::Succeed | Fate::Fail)) => report(kubelet, pod, fate).await,
        (false, _, _) => Ok(()),
    }
}

async fn report(kubelet: &Client, pod: &Pod, fate: Fate) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(kubelet.clone(), &namespace(pod));
    let status = Patch::Strategic(json!({ "metadata": { "uid": pod.metadata.uid }, "status": status(pod, fate) }));
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &status).await?;
    Ok(())
}

async fn remove(kubelet: &Client, pod: &Pod) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(kubelet.clone(), &namespace(pod));
    let now = DeleteParams::default()
        .grace_period(0)
        .preconditions(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None });
    pods.delete(&pod.name_any(), &now).await?;
    Ok(())
}

fn status(pod: &Pod, fate: Fate) -> Value {
    let (phase, ready) = match fate {
        Fate::Run => ("Running", true),
        Fate::Succeed => ("Succeeded", false),
        Fate::Fail => ("Failed", false),
    };
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let conditions = [("Initialized", true), ("PodScheduled", true), ("Ready", ready), ("ContainersReady", ready)];
    json!({
        "phase": phase,
        "podIP": "10.0.12.34",
        "podIPs": [{ "ip": "10.0.12.34" }],
        "startTime": pod.status.as_ref().and_then(|status| status.start_time.clone()).unwrap_or(Time(Timestamp::now())),
        "conditions": conditions.map(|(name, holds)| condition(name, holds)),
        "containerStatuses": containers.iter().map(|container| container_status(container, fate)).collect::<Vec<_>>(),
    })
}

fn container_status(container: &Container, fate: Fate) -> ContainerStatus {
    let now = Time(Timestamp::now());
    let terminated =
        |code: i32, reason: &str| json!({ "terminated": { "exitCode": code, "reason": reason, "finishedAt": now } });
    let state = match fate {
        Fate::Run => json!({ "running": { "startedAt": now } }),
        Fate::Succeed => terminated(0, "Completed"),
        Fate::Fail => terminated(1, "Error"),
    };
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        ready: fate == Fate::Run,
        started: Some(fate == Fate::Run),
        state: serde_json::from_value(state).ok(),
        ..ContainerStatus::default()
    }
}

fn condition(name: &str, holds: bool) -> Value {
    let now = Time(Timestamp::now());
    let status = if holds { "True" } else { "False" };
    json!({ "type": name, "status": status, "reason": "TestCluster", "lastTransitionTime": now })
}

/// Each pod as it is, whenever it changes; over every restart of the API server.
fn pods(client: &Client, config: watcher::Config) -> impl Stream<Item = Pod> + use<> {
    watcher(Api::<Pod>::all(client.clone()), config)
        .default_backoff()
        .applied_objects()
        .filter_map(|pod| ready(pod.ok()))
}

fn namespace(pod: &Pod) -> String {
    pod.namespace().unwrap_or_default()
}
