//! Many submissions at once against one quota, and what an outsider sees of it: a list of the pods that live.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::manifests::in_namespace;

pub const GPU: &str = "nvidia.com/gpu";

/// As often as client-go comes again after a 429.
const ATTEMPTS: usize = 10;

/// How one submission ended, and how long it took with all its attempts.
#[derive(Debug)]
pub struct Submitted {
    pub manifest: Value,
    pub ended: Ended,
    pub took: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    Admitted,
    /// By the quota, with what it said.
    OverQuota(String),
    /// By somebody else.
    Refused(String),
    /// 429 to the end.
    Later(String),
    /// Without an answer.
    Failed(String),
}

/// Submits as kubectl does: what is answered 429 with `Retry-After` is sent again, a few times by the client itself.
pub async fn submit(client: &Client, namespace: &str, manifest: Value) -> Submitted {
    let begun = Instant::now();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource(&manifest));
    let object: DynamicObject =
        serde_json::from_value(in_namespace(manifest.clone(), namespace)).expect("manifests are objects");
    let mut waits = 0;
    let ended = loop {
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => break Ended::Admitted,
            Err(kube::Error::Api(status)) if status.code == 429 => {
                waits += 1;
                if waits >= ATTEMPTS {
                    break Ended::Later(status.message);
                }
                let after = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                sleep(Duration::from_secs(after.into()).max(Duration::from_millis(50))).await;
            }
            Err(kube::Error::Api(status)) if status.message.contains("failed calling webhook") => {
                break Ended::Failed(status.message);
            }
            Err(kube::Error::Api(status)) if status.message.contains(GPU) => break Ended::OverQuota(status.message),
            Err(kube::Error::Api(status)) => break Ended::Refused(status.message),
            Err(error) => break Ended::Failed(error.to_string()),
        }
    };
    Submitted { manifest, ended, took: begun.elapsed() }
}

fn resource(manifest: &Value) -> ApiResource {
    let (group, plural) = match manifest["kind"].as_str().unwrap_or_default() {
        "Job" => ("batch", "jobs"),
        "Deployment" => ("apps", "deployments"),
        _ => ("", "pods"),
    };
    let kind = manifest["kind"].as_str().unwrap_or_default().to_owned();
    let api_version = manifest["apiVersion"].as_str().unwrap_or_default().to_owned();
    ApiResource { group: group.to_owned(), version: "v1".to_owned(), api_version, kind, plural: plural.to_owned() }
}

/// Asks for so many GPUs in each pod.
pub fn with_gpus(mut manifest: Value, gpus: u64) -> Value {
    let spec = match manifest["kind"] == "Pod" {
        true => &mut manifest["spec"],
        false => &mut manifest["spec"]["template"]["spec"],
    };
    spec["containers"][0]["resources"] = json!({ "limits": { GPU: gpus } });
    manifest
}

/// What the pods that live hold together, and each: a finished one holds nothing, a Terminating one all of it.
pub async fn live(client: &Client, namespace: &str) -> Result<BTreeMap<String, u64>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    // Without a resourceVersion: a quorum read.
    let pods = pods.list(&ListParams::default()).await?;
    let lives = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        !matches!(phase, Some("Succeeded" | "Failed"))
    };
    let held = pods.items.into_iter().filter(lives).map(|pod| (pod.uid().unwrap_or_default(), gpus(&pod)));
    Ok(held.filter(|(_, gpus)| *gpus > 0).collect())
}

fn gpus(pod: &Pod) -> u64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref()?.get(GPU));
    limits.filter_map(|amount| amount.0.parse::<u64>().ok()).sum()
}

/// Looks again and again until it is stopped.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    samples: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Sampler {
    pub fn start(client: Client, namespace: &str) -> Self {
        let (stop, most, samples) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let namespace = namespace.to_owned();
        let (stopped, highest, counted) = (Arc::clone(&stop), Arc::clone(&most), Arc::clone(&samples));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                // An API server that is busy is asked again.
                if let Ok(live) = live(&client, &namespace).await {
                    highest.fetch_max(live.values().sum(), Ordering::Relaxed);
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                sleep(Duration::from_millis(40)).await;
            }
        });
        Self { stop, most, samples, task }
    }

    /// The most that lived at once, and how often it has looked.
    pub async fn stop(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no panic");
        (self.most.load(Ordering::Relaxed), self.samples.load(Ordering::Relaxed))
    }
}

/// The ledger of a team as it is stored.
pub async fn ledger(client: &Client, team: &str) -> Result<engine::quota::Ledger> {
    let object = ledgers(client).get(team).await?;
    Ok(serde_json::from_value(object.data["status"].clone())?)
}

pub fn ledgers(client: &Client) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "cedargate.dev".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "cedargate.dev/v1alpha1".to_owned(),
        kind: "QuotaLedger".to_owned(),
        plural: "quotaledgers".to_owned(),
    };
    Api::all_with(client.clone(), &resource)
}
