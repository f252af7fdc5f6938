//! The gate as a site has it on its first day: starter policies, starter teams, one account. Before it stands `api_server`,
//! and what that leaves out: the defaults that are in a pod before any webhook.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use axum::body::Bytes;
use engine::attribution::Phase;
use engine::config::Config;
use engine::offline::review_of;
use engine::patch::Operation as PatchOperation;
use engine::pipeline::{Consumption, Evaluation, evaluate};
use engine::policies::{Policies, starter};
use engine::quota::Ledger;
use engine::record::{Record, Took};
use engine::review::{Operation, Review, UserInfo};
use engine::snapshot::Snapshot;
use engine::team::Teams;
use engine::verdict::{Answer, Refusal, Verdict};
use serde_json::{Value, json};
use server::decide::{Answered, Decide, Endpoint, Line};
use tokio::time::Instant;

use crate::api_server::{ApiServer, Ledgers};

/// The starter policies, loaded once. Cedar's parser recurses deeply, so they are read on a stack that is large enough.
pub fn policies() -> Arc<Policies> {
    static POLICIES: OnceLock<Arc<Policies>> = OnceLock::new();
    let load = || std::thread::Builder::new().stack_size(64 << 20).spawn(|| Arc::new(starter()));
    let policies = POLICIES.get_or_init(|| load().expect("a thread").join().expect("the starter policies load"));
    Arc::clone(policies)
}

/// The starter policies with these teams, in the account of the samples.
pub fn snapshot(teams: Teams) -> Snapshot {
    let config = Config::parse("accounts: ['111122223333']").expect("a configuration");
    Snapshot { config: Arc::new(config), teams: Arc::new(teams), policies: policies(), cluster: Arc::default() }
}

/// The teams of `policies/teams`.
pub fn starter_teams() -> Teams {
    let files = files(&repository().join("policies/teams"), "yaml");
    let files: Vec<_> = files.iter().map(|path| (path.display().to_string(), read(path))).collect();
    Teams::parse(files.iter().map(|(path, text)| (path.as_str(), text.as_str()))).expect("the starter teams")
}

/// A Wednesday at noon: nothing is borrowed.
pub fn noon() -> jiff::Timestamp {
    "2026-10-14T12:00:00Z".parse().expect("a time")
}

/// A `userInfo` file.
pub fn user(path: &Path) -> UserInfo {
    serde_json::from_str(&read(path)).unwrap_or_else(|error| unreachable!("{}: {error}", path.display()))
}

/// A sample of `data/identities`, by the number and name of its file.
pub fn sample(name: &str) -> UserInfo {
    user(&repository().join(format!("tests/data/identities/{name}.json")))
}

/// A service account's token, as it comes from the pod of a controller.
pub fn service_account(namespace: &str, name: &str) -> UserInfo {
    let credential = ("authentication.kubernetes.io/credential-id".to_owned(), vec!["JTI=1".to_owned()]);
    UserInfo {
        username: format!("system:serviceaccount:{namespace}:{name}"),
        uid: format!("uid-of-{namespace}-{name}"),
        groups: vec!["system:serviceaccounts".to_owned(), "system:authenticated".to_owned()],
        extra: BTreeMap::from([credential]),
    }
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A count that whoever runs the tests may want to see, with `--nocapture`.
#[expect(clippy::print_stdout, reason = "captured unless asked for")]
pub fn say(sentence: &str) {
    println!("{sentence}");
}

/// The files of a folder with this extension, in the order of their names.
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| unreachable!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    paths
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| unreachable!("{}: {error}", path.display()))
}

/// The YAML documents of a text; the blanks between two `---` are none.
pub fn documents(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap_or_else(|error| unreachable!("{error}"));
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// A cluster with the gate in front of it.
#[derive(Debug)]
pub struct Gate {
    server: ApiServer<Standing, Standing>,
    created: usize,
}

/// The engine with a clock that stands still: what a gate answers does not hang on when the tests run, and what it knew is
/// told. Clones share all of it.
#[derive(Debug, Clone)]
struct Standing {
    now: jiff::Timestamp,
    snapshot: Arc<ArcSwap<Snapshot>>,
    ledgers: Arc<Mutex<BTreeMap<String, Ledger>>>,
    told: Arc<Mutex<Vec<Told>>>,
}

/// One answer, with what is behind it.
#[derive(Debug, Clone)]
struct Told {
    evaluation: Evaluation,
    answer: Answer,
    record: Record,
}

/// What became of one object.
#[derive(Debug, Clone)]
pub struct Admitted {
    pub verdict: Verdict,
    /// What the caller reads.
    pub message: Option<String>,
    /// Of both webhooks.
    pub warnings: Vec<String>,
    /// As `/mutate` made it, whatever became of it.
    pub patch: Vec<PatchOperation>,
    /// The object as it is stored, or as it would have been.
    pub object: Value,
    /// The evaluation that decided: of `/validate`, or of `/mutate` if that refused already.
    pub evaluation: Evaluation,
    pub record: Record,
}

impl Admitted {
    pub fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allow
    }

    pub fn refusals(&self) -> &[Refusal] {
        match &self.verdict {
            Verdict::Allow | Verdict::RetryLater { .. } => &[],
            Verdict::Deny { refusals } => refusals,
        }
    }

    /// Ids of the policies that refused, and codes of what refused without one.
    pub fn refused_by(&self) -> Vec<String> {
        let code = |refusal: &Refusal| serde_json::to_value(refusal.reason).expect("a code");
        let name = |refusal: &Refusal| match &refusal.policy {
            Some(policy) => policy.clone(),
            None => code(refusal).as_str().unwrap_or_default().to_owned(),
        };
        self.refusals().iter().map(name).collect()
    }
}

impl Gate {
    /// At noon.
    pub fn new(snapshot: Snapshot) -> Self {
        Self::at(snapshot, noon())
    }

    pub fn at(snapshot: Snapshot, now: jiff::Timestamp) -> Self {
        let snapshot = Arc::new(ArcSwap::from_pointee(snapshot));
        let gate = Standing { now, snapshot: Arc::clone(&snapshot), ledgers: Arc::default(), told: Arc::default() };
        let server = ApiServer::before(gate.clone(), snapshot, gate).expect("a runtime");
        Self { server, created: 0 }
    }

    /// CREATE, as the API server does it. What is allowed is stored.
    pub fn create(&mut self, object: &Value, user: &UserInfo) -> Admitted {
        self.created += 1;
        let mut review = review_of(&defaulted(object), None, user, Operation::Create, false);
        review["request"]["uid"] = json!(format!("00000000-0000-0000-0000-{:012}", self.created));
        self.server.gate.told().clear();
        let outcome = self.server.admit(&review).expect("answers");
        assert_eq!(outcome.violations, Vec::<String>::new());
        let told = self.server.gate.told().clone();
        let (Some(first), Some(last)) = (told.first(), told.last()) else { unreachable!("nobody was asked") };
        let Told { evaluation: Evaluation { patch, patched, warnings: early, .. }, .. } = first.clone();
        let object = outcome.admitted.or(patched).or(outcome.object).unwrap_or_default();
        let Told { evaluation, answer, record } = last.clone();
        let early = early.into_iter().filter(|warning| !answer.warnings.contains(warning));
        let warnings = early.chain(answer.warnings.clone()).collect();
        Admitted { message: answer.message(), verdict: answer.verdict, warnings, patch, object, evaluation, record }
    }

    /// What the gate sees of the cluster.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.server.snapshot()
    }

    /// Puts an object into what the gate sees of the cluster.
    pub fn store(&mut self, object: Value) {
        self.server.store(object);
    }
}

impl Standing {
    fn told(&self) -> MutexGuard<'_, Vec<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ledgers(&self) -> MutexGuard<'_, BTreeMap<String, Ledger>> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn consumed(&self, review: &Review, snapshot: &Snapshot, evaluation: &Evaluation) -> Option<Consumption> {
        let team = evaluation.team.clone().filter(|_| !evaluation.is_refused())?;
        let mut ledgers = self.ledgers();
        let ledger = ledgers.entry(team.name.clone()).or_default();
        Some(evaluation.consume_alone(review, snapshot, ledger))
    }
}

impl Ledgers for Standing {
    fn of(&self, team: &str) -> Ledger {
        self.ledgers().get(team).cloned().unwrap_or_default()
    }
}

impl Decide for Standing {
    async fn decide(&self, endpoint: Endpoint, body: Bytes, _: Instant) -> Answered {
        let review = Review::parse(&body).expect("a review");
        let snapshot = self.snapshot.load_full();
        let (evaluation, consumption) = match endpoint {
            Endpoint::Mutate => (evaluate(&review, Phase::Mutate, &snapshot, self.now), None),
            Endpoint::Validate => {
                let evaluation = evaluate(&review, Phase::Validate, &snapshot, self.now);
                let consumption = self.consumed(&review, &snapshot, &evaluation);
                (evaluation, consumption)
            }
        };
        let (answer, record) = evaluation.clone().conclude(&review, consumption);
        let record = Record { took: Some(Took { evaluate_micros: 0, reserve_micros: 0 }), ..record };
        let answered = Answered::review(answer.response().to_string().into_bytes(), Line::Required(record.line()));
        self.told().push(Told { evaluation, answer, record });
        answered
    }

    fn refuse(&self, _: Endpoint, _: &[u8], why: server::Refusal) -> Answered {
        unreachable!("nobody is late here: {why:?}")
    }
}

/// The review of a CREATE.
pub fn review(object: &Value, user: &UserInfo) -> Review {
    let body = review_of(object, None, user, Operation::Create, false);
    Review::parse(body.to_string().as_bytes()).expect("a review")
}

/// What is in a Pod before any webhook: Kubernetes' defaults and its built-in admission plugins.
fn defaulted(object: &Value) -> Value {
    let mut object = object.clone();
    if object["kind"] == "Pod" && object["apiVersion"] == "v1" {
        default_pod(&mut object["spec"]);
    }
    object
}

fn default_pod(spec: &mut Value) {
    let mut set = |key: &str, value: Value| {
        if spec[key].is_null() {
            spec[key] = value;
        }
    };
    set("restartPolicy", json!("Always"));
    set("terminationGracePeriodSeconds", json!(30));
    set("dnsPolicy", json!("ClusterFirst"));
    set("securityContext", json!({}));
    set("schedulerName", json!("default-scheduler"));
    set("enableServiceLinks", json!(true));
    set("preemptionPolicy", json!("PreemptLowerPriority"));
    set("priority", json!(0));
    set("serviceAccountName", json!("default"));
    let account = spec["serviceAccountName"].clone();
    spec["serviceAccount"] = account;
    tolerate(spec);
    let token = json!({"name": "kube-api-access-x7k2q", "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]}});
    push(spec, "volumes", token);
    let host_network = spec["hostNetwork"] == true;
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            default_container(container);
            if host_network {
                default_host_ports(container);
            }
        }
    }
}

fn default_container(container: &mut Value) {
    let directory = "/var/run/secrets/kubernetes.io/serviceaccount";
    push(container, "volumeMounts", json!({"name": "kube-api-access-x7k2q", "readOnly": true, "mountPath": directory}));
    for (key, value) in [
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
        ("imagePullPolicy", json!("IfNotPresent")),
        ("resources", json!({})),
    ] {
        if container[key].is_null() {
            container[key] = value;
        }
    }
    // Requests are filled in from limits.
    for (name, amount) in container["resources"]["limits"].as_object().cloned().into_iter().flatten() {
        if container["resources"]["requests"][&name].is_null() {
            container["resources"]["requests"][&name] = amount;
        }
    }
}

/// In the node's network a port is the node's.
fn default_host_ports(container: &mut Value) {
    for port in container["ports"].as_array_mut().into_iter().flatten() {
        if port["hostPort"].is_null() {
            port["hostPort"] = port["containerPort"].clone();
        }
    }
}

/// DefaultTolerationSeconds, and ExtendedResourceToleration, which EKS turns on.
fn tolerate(spec: &mut Value) {
    let mut asked: Vec<String> = Vec::new();
    for container in spec["containers"].as_array().into_iter().flatten() {
        let limits = container["resources"]["limits"].as_object().into_iter().flatten();
        asked.extend(limits.map(|(name, _)| name.clone()).filter(|name| name.contains('/')));
    }
    asked.sort();
    asked.dedup();
    for name in asked {
        push(spec, "tolerations", json!({"key": name, "operator": "Exists"}));
    }
    for taint in ["not-ready", "unreachable"] {
        let key = format!("node.kubernetes.io/{taint}");
        let toleration = json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
        push(spec, "tolerations", toleration);
    }
}

fn push(object: &mut Value, key: &str, value: Value) {
    if object[key].is_null() {
        object[key] = json!([]);
    }
    if let Some(list) = object[key].as_array_mut() {
        list.push(value);
    }
}
