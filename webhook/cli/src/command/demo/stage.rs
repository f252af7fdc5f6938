//! The server, and the API server that the demonstration plays for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use arc_swap::ArcSwap;
use certs::{Resolver, UnixTime, authority::Authority, issue::Names};
use engine::cluster::Cluster;
use engine::offline::review_of;
use engine::quota::Balance;
use engine::review::Operation;
use engine::snapshot::Snapshot;
use serde_json::{Value, json};
use server::decider::Decider;
use server::ledger::InMemory;
use server::{Check, Gate, Readiness, Server, decision_log, listen};
use tokio::sync::oneshot;

use super::cast::Scene;
use crate::inputs::Inputs;

/// Everything that a scene needs.
#[derive(Debug)]
pub(crate) struct Stage {
    client: reqwest::Client,
    url: String,
    snapshot: Arc<ArcSwap<Snapshot>>,
    ledgers: Arc<InMemory>,
    log: PathBuf,
    authority: PathBuf,
    last_review: std::sync::Mutex<Value>,
}

/// How a scene ended.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) decision: String,
    pub(crate) injected: String,
    pub(crate) gpus: String,
    pub(crate) message: Option<String>,
}

/// The server while it runs.
#[derive(Debug)]
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    server: tokio::task::JoinHandle<usize>,
    writer: decision_log::Writer,
}

/// A demonstration takes seconds; the certificate outlives `--serve` over a weekend.
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

impl Stage {
    pub(crate) async fn open(directory: &Path) -> Result<(Self, Running)> {
        let loaded = Inputs::defaults().load()?;
        let snapshot = Arc::new(ArcSwap::from_pointee(loaded.snapshot));
        let ledgers = Arc::new(InMemory::default());
        let readiness = Readiness::requiring([Check::Certificate, Check::Policies, Check::State]);
        let log = directory.join("decisions.jsonl");
        let (log_handle, writer) =
            decision_log::start(decision_log::file(&log)?, Default::default(), readiness.clone())?;
        let now = UnixTime::now();
        let authority = Authority::create("Cedargate demonstration", LIFETIME, now)?;
        let issued = authority.issue(&Names::parse(["localhost", "127.0.0.1"])?, LIFETIME, now)?;
        let authority_path = directory.join("ca.crt");
        std::fs::write(&authority_path, authority.certificate_pem())?;
        let resolver = Arc::new(Resolver::new(issued.certificate()?, now)?);
        for check in [Check::Certificate, Check::Policies, Check::State] {
            readiness.pass(check);
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("no port on loopback")?;
        let url = format!("https://localhost:{}", listener.local_addr()?.port());
        let decider = Decider::new(Arc::clone(&snapshot), Arc::clone(&ledgers));
        let server = Server {
            listener,
            tls: listen::tls(resolver)?,
            gate: Gate::new(Arc::new(decider), Some(log_handle), readiness, Default::default()),
            bounds: Default::default(),
            // Nobody routes to a demonstration: there is nothing to wait for.
            drain: server::drain::Times { propagation: Duration::ZERO, finish: Duration::from_secs(1) },
        };
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        let certificate = reqwest::Certificate::from_pem(authority.certificate_pem().as_bytes())?;
        let client = reqwest::Client::builder().tls_certs_only([certificate]).build()?;
        let stage = Self {
            client,
            url,
            snapshot,
            ledgers,
            log,
            authority: authority_path,
            last_review: std::sync::Mutex::new(Value::Null),
        };
        Ok((stage, Running { stop, server, writer }))
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    pub(crate) fn authority(&self) -> &Path {
        &self.authority
    }

    /// Mutate, apply, validate, and let it exist.
    pub(crate) async fn play(&self, scene: &Scene) -> Result<Outcome> {
        let object = match scene.pod_of {
            Some((kind, name)) => self.pod_of(kind, name)?,
            None => scene.object.clone(),
        };
        let review = review_of(&object, None, &scene.user, Operation::Create, false);
        let mutated = self.send("mutate", &review).await?;
        if mutated["allowed"] == false {
            return Ok(self.refused(&object, &mutated));
        }
        let mut admitted = object.clone();
        let patch = patch_of(&mutated)?;
        json_patch_apply(&mut admitted, &patch)?;
        // The API server fills these between the two calls.
        admitted["metadata"]["uid"] = review["request"]["uid"].clone();
        admitted["metadata"]["creationTimestamp"] = jiff::Timestamp::now().strftime("%FT%TZ").to_string().into();
        let review = review_of(&admitted, None, &scene.user, Operation::Create, false);
        let validated = self.send("validate", &review).await?;
        if validated["allowed"] == false {
            return Ok(self.refused(&object, &validated));
        }
        if let Ok(mut last) = self.last_review.lock() {
            *last = review;
        }
        self.exists(admitted);
        let warned = validated["warnings"].as_array().map_or(0, Vec::len);
        let decision = if warned == 0 { "allowed".to_owned() } else { format!("allowed, {warned} warned") };
        Ok(Outcome { decision, injected: injected(&patch), gpus: self.gpus(&object), message: None })
    }

    fn refused(&self, object: &Value, response: &Value) -> Outcome {
        let message = response["status"]["message"].as_str().unwrap_or_default().to_owned();
        Outcome {
            decision: format!("refused: {}", reasons(response)),
            injected: String::new(),
            gpus: self.gpus(object),
            message: Some(message),
        }
    }

    async fn send(&self, endpoint: &str, review: &Value) -> Result<Value> {
        let answer = self.client.post(format!("{}/{endpoint}?timeout=10s", self.url)).json(review).send().await?;
        let status = answer.status();
        let body: Value = answer.json().await?;
        ensure!(status.is_success(), "{endpoint} answered {status}");
        ensure!(body["response"]["uid"] == review["request"]["uid"], "{endpoint} answered another uid");
        Ok(body["response"].clone())
    }

    fn exists(&self, object: Value) {
        let now = self.snapshot.load();
        let mut cluster = Cluster::clone(&now.cluster);
        cluster.insert(object);
        self.snapshot.store(Arc::new(Snapshot { cluster: Arc::new(cluster), ..Snapshot::clone(&now) }));
    }

    fn pod_of(&self, kind: &str, name: &str) -> Result<Value> {
        let snapshot = self.snapshot.load();
        let owner = snapshot
            .cluster
            .named("kubeflow.org", kind, "hyperpod-ns-team-a", name)
            .ok_or_else(|| anyhow!("{kind} {name} was not admitted"))?;
        let template = owner.object.pointer("/spec/pytorchReplicaSpecs/Worker/template").cloned().unwrap_or_default();
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": format!("{name}-worker-0"),
                "namespace": owner.meta.namespace,
                "labels": template["metadata"]["labels"],
                "ownerReferences": [{
                    "apiVersion": owner.object["apiVersion"], "kind": kind, "name": name, "uid": owner.meta.uid,
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": template["spec"],
        }))
    }

    /// Used of limit, in the team of the object's namespace.
    fn gpus(&self, object: &Value) -> String {
        let snapshot = self.snapshot.load();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let Some(team) = snapshot.teams.of_namespace(namespace) else { return String::new() };
        let gpu = engine::amounts::ResourceName::new("nvidia.com/gpu");
        let used = Balance::from(self.ledgers.peek(&team.name)).used();
        format!("{} of {}", used.get(gpu.as_str()), team.limits(&gpu).limit)
    }

    /// A review that was allowed, for the curl line.
    pub(crate) fn keep_a_review(&self, directory: &Path) -> Result<PathBuf> {
        let path = directory.join("review.json");
        let review = self.last_review.lock().map(|review| review.clone()).unwrap_or_default();
        std::fs::write(&path, serde_json::to_vec_pretty(&review)?)?;
        Ok(path)
    }
}

impl Running {
    pub(crate) async fn end(self, limit: Duration) -> Result<()> {
        let Self { stop, server, writer } = self;
        let _ = stop.send(());
        server.await?;
        tokio::task::spawn_blocking(move || writer.close(limit))
            .await?
            .map_err(|_| anyhow!("the decision log was not written out"))?;
        Ok(())
    }
}

fn patch_of(response: &Value) -> Result<Vec<Value>> {
    use base64::Engine as _;
    match response["patch"].as_str() {
        Some(patch) => Ok(serde_json::from_slice(&base64::engine::general_purpose::STANDARD.decode(patch)?)?),
        None => Ok(Vec::new()),
    }
}

fn json_patch_apply(object: &mut Value, patch: &[Value]) -> Result<()> {
    let patch: json_patch::Patch = serde_json::from_value(Value::Array(patch.to_vec()))?;
    Ok(json_patch::patch(object, &patch)?)
}

/// What of the patch a reader cares about, in a few words.
fn injected(patch: &[Value]) -> String {
    let path = |operation: &Value| operation["path"].as_str().unwrap_or_default().to_owned();
    let text: Vec<(String, String)> =
        patch.iter().map(|operation| (path(operation), operation["value"].to_string())).collect();
    let has = |part: &str| text.iter().any(|(path, value)| path.contains(part) || value.contains(part));
    let mounts: Vec<String> = text
        .iter()
        .filter(|(path, _)| path.contains("volumeMounts"))
        .flat_map(|(_, value)| {
            value
                .split("\"mountPath\":\"")
                .skip(1)
                .map(|rest| rest.split('"').next().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    let mut words: Vec<String> = Vec::new();
    let mut distinct: Vec<String> = mounts;
    distinct.dedup();
    words.extend(distinct);
    let parts = [
        ("serviceAccountName", "service account"),
        ("runAsUser", "uid and gid"),
        ("queue-name", "queue"),
        ("submitted-by", "stamp"),
        ("cost-center", "cost labels"),
        ("NVIDIA_VISIBLE_DEVICES", "GPUs hidden"),
    ];
    words.extend(parts.into_iter().filter(|(part, _)| has(part)).map(|(_, word)| word.to_owned()));
    words.join(", ")
}

/// The deciding policies of a refusal, or else its reason codes, for one cell.
fn reasons(response: &Value) -> String {
    let audit = |key: &str| response["auditAnnotations"][key].as_str().unwrap_or_default().replace(',', ", ");
    let (policies, reasons) = (audit("policies"), audit("reasons"));
    if policies.is_empty() { reasons } else { policies }
}
