//! What a ledger sees of stored objects, and what is made of them when it is lost.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::{Ledger, Observed, PodSight, RootSight, View, complete, rebuilt};
use super::sums;
use crate::amounts::{Amounts, ResourceName};
use crate::cluster::Cluster;
use crate::facts::kinds::Kinds;
use crate::team::{Quota, Team, TeamSpec};
use crate::vocabulary::Level;

fn team() -> Team {
    let quota = Quota { limit: BTreeMap::from([(ResourceName::new("nvidia.com/gpu"), 8)]), ..Quota::default() };
    let spec = TeamSpec { namespaces: vec!["ns".to_owned()], quota: Some(quota), ..TeamSpec::default() };
    Team {
        name: "a".to_owned(),
        level: Level::Baseline,
        spec,
        governed: BTreeMap::new(),
        vanished: false,
        revision: Default::default(),
    }
}

fn containers(gpus: u64) -> Value {
    json!([{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": gpus}}}])
}

fn meta(name: &str, owner: Option<(&str, &str, &str)>) -> Value {
    let mut meta = json!({"namespace": "ns", "name": name, "uid": format!("uid-{name}"), "generation": 1});
    if let Some((api_version, kind, owner)) = owner {
        meta["ownerReferences"] = json!([{
            "apiVersion": api_version, "kind": kind, "name": owner, "uid": format!("uid-{owner}"), "controller": true,
        }]);
    }
    meta
}

fn pod(name: &str, owner: Option<(&str, &str, &str)>, gpus: u64, phase: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name, owner),
        "spec": {"containers": containers(gpus)},
        "status": {"phase": phase},
    })
}

fn job(name: &str, spec: Value, status: Value) -> Value {
    let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta(name, None), "spec": spec});
    job["spec"]["template"] = json!({"spec": {"restartPolicy": "Never", "containers": containers(2)}});
    job["status"] = status;
    job
}

fn cluster(objects: impl IntoIterator<Item = Value>) -> Cluster {
    let mut cluster = Cluster::default();
    objects.into_iter().for_each(|object| cluster.insert(object));
    cluster
}

fn deployment() -> Vec<Value> {
    let template = json!({"spec": {"containers": containers(1)}});
    vec![
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta("web", None),
            "spec": {"replicas": 3, "template": template},
        }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": meta("web-1", Some(("apps/v1", "Deployment", "web"))),
            "spec": {"replicas": 3, "template": template},
        }),
        pod("web-1-a", Some(("apps/v1", "ReplicaSet", "web-1")), 1, "Running"),
        pod("web-1-b", Some(("apps/v1", "ReplicaSet", "web-1")), 1, "Pending"),
    ]
}

/// Of each root: floor, and what each pod holds.
fn shape(ledger: &Ledger) -> BTreeMap<&str, (u64, BTreeMap<&str, u64>)> {
    let gpus = |amounts: &Amounts| amounts.get("nvidia.com/gpu");
    let entries = ledger.entries.iter().map(|(uid, entry)| {
        let pods = entry.pods.iter().map(|(uid, pod)| (uid.as_str(), gpus(&pod.amounts))).collect();
        (uid.as_str(), (gpus(&entry.floor), pods))
    });
    entries.collect()
}

fn rebuilt_from(objects: impl IntoIterator<Item = Value>) -> Ledger {
    rebuilt(&Observed { cluster: &cluster(objects), team: &team(), kinds: Kinds::defaults() })
}

#[test]
fn a_deployment_holds_for_the_pods_of_its_replica_sets() {
    let ledger = rebuilt_from(deployment());
    let pods = BTreeMap::from([("uid-web-1-a", 1), ("uid-web-1-b", 1)]);
    assert_eq!(shape(&ledger), BTreeMap::from([("uid-web", (3, pods))]));
    let entry = &ledger.entries["uid-web"];
    assert_eq!((entry.kind.as_str(), entry.name.as_str(), entry.generation), ("Deployment", "web", Some(1)));
}

#[test]
fn a_job_holds_what_it_has_left_to_run() {
    let floor = |spec: Value, status: Value| {
        let cluster = cluster([job("train", spec, status)]);
        match (Observed { cluster: &cluster, team: &team(), kinds: Kinds::defaults() }).root("uid-train") {
            RootSight::Stands { floor, generation: Some(1) } => floor.get("nvidia.com/gpu"),
            other @ (RootSight::Unknown | RootSight::Stands { .. } | RootSight::Over) => unreachable!("{other:?}"),
        }
    };
    assert_eq!(floor(json!({"parallelism": 3, "completions": 5}), json!({})), 6);
    assert_eq!(floor(json!({"parallelism": 3, "completions": 5}), json!({"succeeded": 3})), 4);
    assert_eq!(floor(json!({"parallelism": 3, "completions": 5}), json!({"succeeded": 5})), 0);
    assert_eq!(floor(json!({"parallelism": 3, "completions": 2}), json!({})), 4);
    assert_eq!(floor(json!({"parallelism": 3}), json!({"succeeded": 1})), 4);
    assert_eq!(floor(json!({"parallelism": 3, "suspend": true}), json!({})), 0);
    let complete = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    assert_eq!(floor(json!({"parallelism": 3}), complete), 0);
    let failing = json!({"conditions": [{"type": "Failed", "status": "False"}]});
    assert_eq!(floor(json!({"parallelism": 3}), failing), 6);
}

#[test]
fn bare_pods_and_orphans_hold_for_themselves() {
    let orphan = pod("orphan", Some(("batch/v1", "Job", "gone")), 2, "Running");
    let ledger = rebuilt_from([pod("bare", None, 1, "Running"), orphan]);
    let of = |uid: &'static str, gpus| (uid, (0, BTreeMap::from([(uid, gpus)])));
    assert_eq!(shape(&ledger), BTreeMap::from([of("uid-bare", 1), of("uid-orphan", 2)]));
}

#[test]
fn a_job_of_a_cron_job_is_a_root() {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": containers(1)}});
    let cron_job = json!({
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": meta("nightly", None),
        "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}},
    });
    let mut run = job("nightly-1", json!({"parallelism": 1}), json!({}));
    run["metadata"] = meta("nightly-1", Some(("batch/v1", "CronJob", "nightly")));
    let worker = pod("nightly-1-x", Some(("batch/v1", "Job", "nightly-1")), 2, "Running");
    let ledger = rebuilt_from([cron_job, run, worker]);
    assert_eq!(shape(&ledger), BTreeMap::from([("uid-nightly-1", (2, BTreeMap::from([("uid-nightly-1-x", 2)])))]));
}

#[test]
fn what_is_over_and_what_is_not() {
    let mut terminating = pod("terminating", None, 1, "Running");
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut elsewhere = pod("elsewhere", None, 1, "Running");
    elsewhere["metadata"]["namespace"] = json!("moved");
    let mut cluster = cluster([
        terminating,
        elsewhere,
        pod("running", None, 1, "Running"),
        pod("pending", None, 1, "Pending"),
        pod("succeeded", None, 1, "Succeeded"),
        pod("failed", None, 1, "Failed"),
        pod("deleted", None, 1, "Running"),
        pod("replaced", None, 1, "Running"),
        pod("idle", None, 0, "Running"),
    ]);
    cluster.remove("uid-deleted");
    let mut other = pod("replaced", None, 1, "Running");
    other["metadata"]["uid"] = json!("uid-other");
    cluster.insert(other);
    let (team, ledger) = (team(), Ledger::default());
    let observed = Observed { cluster: &cluster, team: &team, kinds: Kinds::defaults() };
    let sights = [
        ("terminating", PodSight::Runs),
        ("running", PodSight::Runs),
        ("pending", PodSight::Runs),
        ("other", PodSight::Runs),
        ("succeeded", PodSight::Over),
        ("failed", PodSight::Over),
        ("deleted", PodSight::Over),
        ("replaced", PodSight::Over),
        ("elsewhere", PodSight::Over),
        ("never-seen", PodSight::Unknown),
    ];
    for (name, sight) in sights {
        assert_eq!(observed.pod(&format!("uid-{name}")), sight, "{name}");
    }
    let strays: Vec<String> = observed.strays(&ledger).into_iter().map(|stray| stray.name).collect();
    assert_eq!(strays, ["replaced", "pending", "running", "terminating"], "by uid; what holds nothing is left out");
}

#[test]
fn a_namespace_that_went_to_another_team_is_let_go() {
    let cluster = cluster(deployment());
    let mut team = team();
    team.spec.namespaces = vec!["other".to_owned()];
    let observed = Observed { cluster: &cluster, team: &team, kinds: Kinds::defaults() };
    assert_eq!(observed.pod("uid-web-1-a"), PodSight::Over);
    assert_eq!(observed.root("uid-web"), RootSight::Over);
    assert_eq!(rebuilt(&observed), Ledger::default());
}

#[test]
fn what_the_ledger_has_is_no_stray() {
    let cluster = cluster([pod("one", None, 1, "Running"), pod("two", None, 1, "Running")]);
    let mut ledger = Ledger::default();
    ledger.add(&sums::pod("uid-one", "one", 1));
    let team = team();
    let strays = (Observed { cluster: &cluster, team: &team, kinds: Kinds::defaults() }).strays(&ledger);
    assert_eq!(strays.iter().map(|stray| stray.uid.as_str()).collect::<Vec<_>>(), ["uid-two"]);
}

#[test]
fn a_ledger_made_anew_is_completed_with_what_came_since() {
    let team = team();
    let mut objects = deployment();
    let late = objects.split_off(3);
    let mut ledger = rebuilt_from(objects.clone());
    ledger.entries.get_mut("uid-web").expect("is there").person = Some("ada".to_owned());
    let train = job("train", json!({"parallelism": 1}), json!({}));
    let all = cluster(objects.into_iter().chain(late).chain([train]));
    let observed = Observed { cluster: &all, team: &team, kinds: Kinds::defaults() };
    complete(&mut ledger, &observed);
    let pods = BTreeMap::from([("uid-web-1-a", 1), ("uid-web-1-b", 1)]);
    assert_eq!(shape(&ledger), BTreeMap::from([("uid-web", (3, pods)), ("uid-train", (2, BTreeMap::new()))]));
    assert_eq!(ledger.entries["uid-web"].person.as_deref(), Some("ada"), "what is known stays known");
    let completed = ledger.clone();
    complete(&mut ledger, &observed);
    assert_eq!(ledger, completed, "once is enough");
}
