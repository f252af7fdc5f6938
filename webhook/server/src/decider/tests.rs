//! The decider with an API server that follows a script.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::amounts::{Amounts, ResourceName};
use engine::cluster::Cluster;
use engine::config::Config;
use engine::policies::{Policies, starter_files, starter_schema};
use engine::quota::{Adds, Entry, HeldPod, Ledger, Reservation};
use engine::stamp::{Submitter, SubmitterName};
use engine::team::Teams;
use engine::vocabulary::Class;
use serde_json::{Value, json};

use super::*;
use crate::cluster::lookup::{Fetching, Listing, Unanswered, Wanted, WantedKind};
use crate::ledger::{InMemory, Stored, Swap, Unavailable, Version, Versioned};

/// Answers by name, and writes down what it was asked.
#[derive(Debug, Default)]
struct Script {
    objects: Vec<Value>,
    silent: bool,
    slow: bool,
    /// Of this name nothing can be read.
    unreadable: Option<&'static str>,
    asked: Mutex<Vec<String>>,
}

impl Lookup for Script {
    fn fetch<'a>(&'a self, wanted: &'a Wanted) -> Fetching<'a> {
        let kind = match &wanted.kind {
            WantedKind::Kind(kind) | WantedKind::Plural(kind) => kind,
        };
        self.asked.lock().expect("not poisoned").push(format!("{kind}/{}", wanted.name));
        Box::pin(async move {
            if self.silent || self.unreadable == Some(wanted.name.as_str()) {
                return Err(Unanswered("connection refused".to_owned()));
            }
            if self.slow {
                std::future::pending::<()>().await;
            }
            let is_it = |object: &&Value| object["metadata"]["name"] == wanted.name.as_str();
            Ok(self.objects.iter().find(is_it).cloned())
        })
    }

    fn pods<'a>(&'a self, namespace: &'a str) -> Listing<'a> {
        let is_there = |object: &&Value| object["kind"] == "Pod" && object["metadata"]["namespace"] == namespace;
        let pods: Vec<Value> = self.objects.iter().filter(is_there).cloned().collect();
        Box::pin(std::future::ready(Ok(pods)))
    }
}

const NAMESPACE: &str = "hyperpod-ns-team-a";

fn snapshot(objects: &[Value]) -> Snapshot {
    let load = || Policies::load(&starter_schema(), &starter_files()).expect("load");
    let stack = std::thread::Builder::new().stack_size(64 << 20);
    let policies = stack.spawn(load).expect("a thread").join().expect("does not panic");
    let team = include_str!("../../../../policies/teams/team-a.yaml");
    let mut cluster = Cluster::default();
    objects.iter().for_each(|object| cluster.insert(object.clone()));
    Snapshot {
        config: Arc::new(Config { accounts: ["111122223333".to_owned()].into(), ..Config::default() }),
        teams: Arc::new(Teams::parse([("team-a.yaml", team)]).expect("parses")),
        policies: Arc::new(policies),
        cluster: Arc::new(cluster),
    }
}

fn metadata(name: &str, owner: Option<(&str, &str)>) -> Value {
    let references: Vec<Value> = owner
        .into_iter()
        .map(|(kind, name)| {
            json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": format!("uid-{name}"), "controller": true})
        })
        .collect();
    json!({
        "namespace": NAMESPACE, "name": name, "uid": format!("uid-{name}"),
        "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": references,
    })
}

fn pod_spec() -> Value {
    json!({"containers": [{"name": "main", "image": "111122223333.dkr.ecr.us-west-2.amazonaws.com/web:1"}]})
}

fn deployment() -> Value {
    let alice = Submitter {
        team: "team-a".to_owned(),
        name: SubmitterName::PermissionSet {
            partition: "aws".to_owned(),
            account: "111122223333".to_owned(),
            name: "TeamA".to_owned(),
        },
        person: Some("alice.martin@example.com".to_owned()),
    };
    let mut metadata = metadata("web", None);
    metadata["annotations"] = json!({engine::stamp::SUBMITTED_BY: alice.annotation()});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": {"spec": pod_spec()}}})
}

fn replica_set() -> Value {
    let metadata = metadata("web-1", Some(("Deployment", "web")));
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": {"template": {"spec": pod_spec()}}})
}

fn user(username: &str) -> Value {
    json!({
        "username": username, "uid": "u", "groups": ["system:authenticated"],
        "extra": {"authentication.kubernetes.io/credential-id": ["JTI=1"]},
    })
}

fn review(request: Value) -> Bytes {
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    Bytes::from(review.to_string())
}

/// As the controller of ReplicaSets makes it.
fn pod_of_replica_set() -> Bytes {
    let mut metadata = metadata("web-1-x", Some(("ReplicaSet", "web-1")));
    metadata.as_object_mut().expect("an object").remove("uid");
    review(json!({
        "uid": "r", "operation": "CREATE", "namespace": NAMESPACE, "name": "web-1-x",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": user("system:serviceaccount:kube-system:replicaset-controller"),
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec()},
    }))
}

fn team_write(object: Value) -> Bytes {
    review(json!({
        "uid": "r", "operation": "CREATE", "name": object["metadata"]["name"],
        "kind": {"group": "cedargate.dev", "version": "v1alpha1", "kind": "Team"},
        "resource": {"group": "cedargate.dev", "version": "v1alpha1", "resource": "teams"},
        "userInfo": user("kubernetes-admin"),
        "object": object,
    }))
}

async fn ask(known: &[Value], script: Arc<Script>, endpoint: Endpoint, body: Bytes) -> Value {
    let decider = Decider::new(Arc::new(ArcSwap::from_pointee(snapshot(known))), Arc::new(InMemory::default()));
    let deadline = Instant::now() + Duration::from_secs(5);
    let answered = decider.with_lookup(script).decide(endpoint, body, deadline).await;
    let answer: Value = serde_json::from_slice(&answered.body).expect("a review");
    answer["response"].clone()
}

fn asked(script: &Script) -> Vec<String> {
    script.asked.lock().expect("not poisoned").clone()
}

#[tokio::test]
async fn owners_that_are_too_new_are_asked_for_one_by_one() {
    let script = Arc::new(Script { objects: vec![deployment(), replica_set()], ..Script::default() });
    let response = ask(&[], Arc::clone(&script), Endpoint::Mutate, pod_of_replica_set()).await;
    assert_eq!(response["allowed"], true, "{response}");
    let known = [deployment(), replica_set()];
    let alices = ask(&known, Arc::default(), Endpoint::Mutate, pod_of_replica_set()).await;
    assert!(alices["patch"].is_string());
    assert_eq!(response["patch"], alices["patch"], "as if they had been known");
    assert_eq!(asked(&script), ["ReplicaSet/web-1", "Deployment/web"]);
}

#[tokio::test]
async fn what_is_known_is_not_asked_for() {
    let script = Arc::new(Script::default());
    let known = [deployment(), replica_set()];
    let response = ask(&known, Arc::clone(&script), Endpoint::Mutate, pod_of_replica_set()).await;
    assert_eq!(response["allowed"], true, "{response}");
    assert!(asked(&script).is_empty());
}

#[tokio::test]
async fn an_owner_that_is_gone_is_a_final_no() {
    let script = Arc::new(Script { objects: vec![replica_set()], ..Script::default() });
    let response = ask(&[], Arc::clone(&script), Endpoint::Mutate, pod_of_replica_set()).await;
    assert_eq!(response["status"]["code"], 403, "{response}");
    let message = response["status"]["message"].as_str().expect("a message");
    assert!(message.contains("its owner Deployment `web` is gone"), "{message}");
    assert_eq!(asked(&script), ["ReplicaSet/web-1", "Deployment/web"], "each once");
}

#[tokio::test]
async fn an_api_server_that_does_not_answer_is_not_now() {
    let script = Arc::new(Script { silent: true, ..Script::default() });
    let response = ask(&[], script, Endpoint::Validate, pod_of_replica_set()).await;
    assert_eq!(response["status"]["code"], 429, "{response}");
    let message = response["status"]["message"].as_str().expect("a message");
    assert!(message.contains("whether `web-1` exists cannot be found out now"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_api_server_is_not_waited_for_beyond_the_deadline() {
    let script = Arc::new(Script { slow: true, ..Script::default() });
    let begun = Instant::now();
    let response = ask(&[], script, Endpoint::Validate, pod_of_replica_set()).await;
    assert_eq!(response["status"]["code"], 429, "{response}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn the_target_of_exec_is_asked_for() {
    let body = review(json!({
        "uid": "r", "operation": "CONNECT", "namespace": NAMESPACE, "name": "p", "subResource": "exec",
        "kind": {"group": "", "version": "v1", "kind": "PodExecOptions"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": user("somebody"),
        "object": {"apiVersion": "v1", "kind": "PodExecOptions", "command": ["sh"]},
    }));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata("p", None), "spec": pod_spec()});
    let script = Arc::new(Script { objects: vec![pod], ..Script::default() });
    let response = ask(&[], Arc::clone(&script), Endpoint::Validate, body.clone()).await;
    assert_eq!(asked(&script), ["pods/p"]);
    let message = response["status"]["message"].as_str().expect("a refusal");
    assert!(!message.contains("cannot be read"), "{message}");

    let nothing = Arc::new(Script::default());
    let response = ask(&[], nothing, Endpoint::Validate, body).await;
    let message = response["status"]["message"].as_str().expect("a refusal");
    assert!(message.contains("the Pod `p` cannot be read"), "{message}");
}

#[tokio::test]
async fn a_team_that_overlaps_is_refused() {
    let other = json!({
        "apiVersion": "cedargate.dev/v1alpha1", "kind": "Team", "metadata": {"name": "other"},
        "spec": {"namespaces": [NAMESPACE, "kube-system"]},
    });
    let response = ask(&[], Arc::default(), Endpoint::Validate, team_write(other)).await;
    let message = response["status"]["message"].as_str().expect("a refusal");
    assert!(message.contains("namespace `hyperpod-ns-team-a` is declared in Team team-a already"), "{message}");
    assert!(message.contains("namespace `kube-system` belongs to the cluster"), "{message}");
}

#[tokio::test]
async fn the_first_teams_are_written_by_whom_rbac_lets_and_later_ones_by_whom_the_policies_let() {
    let team = |spec: Value| {
        team_write(json!({
            "apiVersion": "cedargate.dev/v1alpha1", "kind": "Team", "metadata": {"name": "other"}, "spec": spec,
        }))
    };
    let body = team(json!({"namespaces": ["ns-other"]}));
    let response = ask(&[], Arc::default(), Endpoint::Validate, body.clone()).await;
    assert_eq!(response["allowed"], true, "no Team declares a group: {response}");
    assert_eq!(
        response["warnings"],
        json!(["no Team declares a group yet, so RBAC alone decided who writes this one"])
    );

    let with_groups = Teams::parse([
        ("team-a.yaml", include_str!("../../../../policies/teams/team-a.yaml")),
        ("platform.yaml", include_str!("../../../../policies/teams/platform.yaml")),
    ]);
    let snapshot = Snapshot { teams: Arc::new(with_groups.expect("parses")), ..snapshot(&[]) };
    let decider = Decider::new(Arc::new(ArcSwap::from_pointee(snapshot)), Arc::new(InMemory::default()));
    let answered = decider.decide(Endpoint::Validate, body, Instant::now() + Duration::from_secs(5)).await;
    let answer: Value = serde_json::from_slice(&answered.body).expect("a review");
    let message = answer["response"]["status"]["message"].as_str().expect("a refusal");
    assert!(message.contains("no policy permits you to open it"), "{message}");
}

fn held(uid: &str, name: &str) -> Reservation {
    let amounts = Amounts::of(ResourceName::new("nvidia.com/gpu"), 1);
    let pod = HeldPod { name: name.to_owned(), amounts };
    let adds = Adds::Pod { uid: uid.to_owned(), pod };
    Reservation { root: uid.to_owned(), entry: Entry::new("Pod", NAMESPACE, name, Class::Pod), adds }
}

/// A kind may have lost its conversion webhook, or RBAC may leave it out.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_keeps_nothing_else_in_the_ledger() {
    let mut ledger = Ledger::default();
    [held("1", "unreadable"), held("2", "gone")].iter().for_each(|reservation| ledger.add(reservation));
    let store = Arc::new(InMemory::new([("team-a".to_owned(), ledger)].into()));
    let script = Arc::new(Script { unreadable: Some("unreadable"), ..Script::default() });
    let decider = Decider::new(Arc::new(ArcSwap::from_pointee(snapshot(&[]))), Arc::clone(&store)).with_lookup(script);
    let ledgers = decider.ledgers();
    let followed = tokio::time::timeout(Duration::from_secs(600), ledgers.follow_teams()).await;
    assert!(followed.is_err(), "it goes on for ever");
    let uids: Vec<String> = store.peek("team-a").entries.into_keys().collect();
    assert_eq!(uids, ["1"]);
    let mut much = held("3", "much");
    much.adds = Adds::Floor { amounts: Amounts::of(ResourceName::new("nvidia.com/gpu"), 100_000), generation: None };
    let told = ledgers.reserve(asking_for(much, Arc::new(snapshot(&[deployment(), replica_set()])))).await;
    assert!(matches!(told, Told::Refused(_)), "it goes on counting, and that is a final answer: {told:?}");
}

/// As if the pod of a ReplicaSet needed this.
fn asking_for(reservation: Reservation, snapshot: Arc<Snapshot>) -> Ask {
    let review = Arc::new(Review::parse(&pod_of_replica_set()).expect("a review"));
    let mut evaluation = pipeline::evaluate(&review, Phase::Mutate, &snapshot, jiff::Timestamp::UNIX_EPOCH);
    (evaluation.reservation, evaluation.workload) = (Some(reservation), None);
    let team = Arc::clone(snapshot.teams.named("team-a").expect("is there"));
    Ask { review, evaluation: Arc::new(evaluation), snapshot, team, deadline: Instant::now() + Duration::from_secs(10) }
}

/// It answers, and takes nothing: it is too large, or RBAC does not let the gate write it.
#[derive(Debug, Default)]
struct Unwritable {
    swaps: AtomicU64,
}

impl LedgerStore for Unwritable {
    fn known(&self, _: &str) -> Option<Stored> {
        Some(Stored::Built(Versioned::default()))
    }

    async fn read(&self, _: &str) -> Result<Stored, Unavailable> {
        Ok(Stored::Built(Versioned::default()))
    }

    async fn swap(&self, _: &str, _: &Version, _: &Ledger) -> Result<Swap, Unavailable> {
        self.swaps.fetch_add(1, Ordering::Relaxed);
        Err(Unavailable("forbidden".to_owned()))
    }

    async fn create(&self, _: &str) -> Result<(), Unavailable> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn why_the_ledger_is_not_written_is_told_and_it_is_not_stormed() {
    let (store, snapshot) = (Arc::new(Unwritable::default()), Arc::new(snapshot(&[])));
    let ledgers = Ledgers::new(Arc::clone(&store), Arc::new(ArcSwap::new(Arc::clone(&snapshot))));
    let told = ledgers.reserve(asking_for(held("1", "pod"), snapshot)).await;
    assert!(matches!(&told, Told::Busy(why) if why.contains("forbidden")), "{told:?}");
    assert!(store.swaps.load(Ordering::Relaxed) < 30, "{store:?}");
}
