//! A burst against one quota with three replicas: the limit holds at every instant, whatever fails meanwhile, and afterwards
//! the ledger is what lives.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cluster::{
    Answer, Cluster, Event, Replicas, TEAM_A, Webhook,
    burst::{Ended, GPU, Sampler, Submitted, ledger, ledgers, live, submit, with_gpus},
    manifests::{deployment, job_that, pod, pod_that},
    until,
};
use engine::quota::Balance;
use futures_util::future::join_all;
use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job, core::v1::Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::sleep;

/// What `policies/teams/team-a.yaml` says.
const LIMIT: u64 = 64;

const SUBMISSIONS: u64 = 200;

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_holds_at_every_instant_and_the_ledger_is_what_lives() {
    let cluster = Cluster::start().expect("the cluster starts");
    let root = cluster.callers.root.client().await.expect("connects");
    let alice = cluster.people.alice.client().await.expect("connects");
    let older = submit(&root, TEAM_A, with_gpus(sleeping(pod("older-than-the-gate")), 2)).await;
    assert_eq!(older.ended, Ended::Admitted);
    let mut replicas = Replicas::start(&cluster, 3).await.expect("the gate starts");

    holds(&root, 2).await;
    is_empty_again(&root).await;
    exactly_the_limit(&root, &alice).await;
    is_empty_again(&root).await;
    a_person_is_told(&cluster).await;
    is_empty_again(&root).await;
    only_the_gate_writes_ledgers(&cluster).await;
    what_changes_size_is_asked_for(&cluster, &replicas, &root).await;
    is_empty_again(&root).await;
    kubectl_waits_while_a_ledger_is_made_anew(&cluster, &root).await;
    is_empty_again(&root).await;
    while_everything_fails(&cluster, &mut replicas, &root, &alice).await;
    is_empty_again(&root).await;
}

/// Pods of one GPU and nothing that fails: not one less, either.
async fn exactly_the_limit(root: &Client, alice: &Client) {
    let sampler = Sampler::start(root.clone(), TEAM_A);
    let manifest = |number| with_gpus(sleeping(pod(&format!("one-{number}"))), 1);
    let submitted = join_all((0..SUBMISSIONS).map(|number| submit(alice, TEAM_A, manifest(number)))).await;
    let (most, samples) = sampler.stop().await;
    told("200 pods of one GPU", &submitted, most, samples);
    let admitted = submitted.iter().filter(|submitted| submitted.ended == Ended::Admitted).count() as u64;
    let over = submitted.iter().filter(|submitted| matches!(submitted.ended, Ended::OverQuota(_))).count() as u64;
    assert_eq!((admitted, over), (LIMIT, SUBMISSIONS - LIMIT));
    assert_eq!(most, LIMIT);
}

/// Over the quota, kubectl shows a sentence; used, asked, limit and holders are in it.
async fn a_person_is_told(cluster: &Cluster) {
    let alice = &cluster.people.alice;
    let mut large = with_gpus(sleeping(job_that("large", &[])), 8);
    large["spec"]["parallelism"] = json!(7);
    large["spec"]["completions"] = json!(7);
    cluster::workloads::create(cluster, alice, &large).await.success().expect("fits");
    let more = with_gpus(sleeping(pod("one-more")), 9);
    let refused = cluster::workloads::create(cluster, alice, &more).await;
    insta::assert_snapshot!("over_quota", refused.stderr);
}

async fn only_the_gate_writes_ledgers(cluster: &Cluster) {
    let root = &cluster.callers.root;
    let made = json!({
        "apiVersion": "cedargate.dev/v1alpha1", "kind": "QuotaLedger", "metadata": { "name": "mine" },
    });
    let refused = cluster.kubectl(root, &["create", "-f", "-"], &made.to_string()).await.expect("kubectl runs");
    insta::assert_snapshot!("a_ledger_of_ones_own", refused.stderr);
    let patch = r#"{"status":{"entries":null}}"#;
    let emptied = ["patch", "quotaledger", "team-a", "--subresource=status", "--type=merge", "--patch", patch];
    let refused = cluster.kubectl(root, &emptied, "").await.expect("kubectl runs");
    insta::assert_snapshot!("a_ledger_is_emptied", refused.stderr);
    let refused = cluster.kubectl(root, &["delete", "quotaledger", "team-a"], "").await.expect("kubectl runs");
    insta::assert_snapshot!("a_ledger_is_deleted", refused.stderr);
}

/// Scaled up and down, suspended and resumed: what is held follows, and what would not fit is refused to whoever asks.
async fn what_changes_size_is_asked_for(cluster: &Cluster, replicas: &Replicas, root: &Client) {
    let alice = &cluster.people.alice;
    let create = async |manifest: Value| cluster::workloads::create(cluster, alice, &manifest).await.success();
    let kubectl = async |arguments: &[&str]| cluster.kubectl(alice, arguments, "").await.expect("kubectl runs");
    let mut serves = with_gpus(deployment("web"), 4);
    serves["spec"]["replicas"] = json!(2);
    create(serves).await.expect("fits");
    let mut waits = with_gpus(job_that("waits", &["sleep", "infinity"]), 8);
    waits["spec"]["suspend"] = json!(true);
    waits["spec"]["parallelism"] = json!(7);
    waits["spec"]["completions"] = json!(7);
    create(waits).await.expect("a suspended Job holds nothing");
    holds(root, 8).await;

    let resumed = ["patch", "job", "waits", "--type=merge", "--patch", r#"{"spec":{"suspend":false}}"#];
    kubectl(&["scale", "deployment", "web", "--replicas=3"]).await.success().expect("fits");
    holds(root, 12).await;
    insta::assert_snapshot!("resumed_and_too_large", kubectl(&resumed).await.stderr);
    insta::assert_snapshot!(
        "scaled_and_too_large",
        kubectl(&["scale", "deployment", "web", "--replicas=17"]).await.stderr
    );
    let refused = scaled_by_the_autoscaler(cluster, "web", 17).await.expect_err("does not fit");
    assert!(refused.to_string().contains(GPU), "{refused}");

    kubectl(&["scale", "deployment", "web", "--replicas=2"]).await.success().expect("is smaller");
    holds(root, 8).await;
    kubectl(&resumed).await.success().expect("fits now");
    holds(root, 64).await;
    let shown = replicas.quota(&cluster.people.admin).expect("cedargate quota runs");
    println_figures(&shown);
    assert!(shown.contains("Job `waits` in hyperpod-ns-team-a of alice.martin@example.com"), "{shown}");
}

/// As its controller does it, which does not run here: by its own account and the role that Kubernetes gives it.
async fn scaled_by_the_autoscaler(cluster: &Cluster, name: &str, replicas: i32) -> kube::Result<()> {
    let (system, account) = ("kube-system", "horizontal-pod-autoscaler");
    let made = cluster.kubectl(&cluster.callers.root, &["create", "serviceaccount", account, "-n", system], "").await;
    made.expect("kubectl runs");
    let autoscaler = cluster.service_account(system, account, None).await.expect("a token");
    let deployments: Api<Deployment> = Api::namespaced(autoscaler.client().await.expect("connects"), TEAM_A);
    let mut scale = deployments.get_scale(name).await?;
    scale.spec.get_or_insert_default().replicas = Some(replicas);
    deployments.replace_scale(name, &PostParams::default(), &scale).await.map(drop)
}

/// Waits until the ledger of team A holds so many GPUs: what is let go is let go by what the watch shows.
async fn holds(root: &Client, gpus: u64) {
    let held = async || Some(Balance::from(ledger(root, "team-a").await.ok()?).used().get(GPU));
    let reached = until("the ledger holds it", async || (held().await == Some(gpus)).then_some(()));
    if reached.await.is_err() {
        unreachable!("{gpus} are to be held, not {:?}", ledger(root, "team-a").await);
    }
}

/// 429 with `Retry-After`: client-go comes again by itself, and a person sees a command that takes longer. Controllers are
/// told nothing of the kind, since theirs would sleep in a worker that serves everybody.
async fn kubectl_waits_while_a_ledger_is_made_anew(cluster: &Cluster, root: &Client) {
    let (alice, admin) = (&cluster.people.alice, &cluster.people.admin);
    let runs = with_gpus(sleeping(deployment("serves")), 1);
    cluster::workloads::create(cluster, alice, &runs).await.success().expect("fits");
    let pods: Api<Pod> = Api::namespaced(root.clone(), TEAM_A);
    let of_it = ListParams::default().labels("app=serves");
    until("its pod is there", async || (!pods.list(&of_it).await.ok()?.items.is_empty()).then_some(()))
        .await
        .expect("runs");

    let lost = ["delete", "quotaledger", "team-a"];
    cluster.kubectl(admin, &lost, "").await.expect("kubectl runs").success().expect("an administrator may");
    // Its controller makes another, and is told to come again.
    pods.delete_collection(&DeleteParams::default(), &of_it).await.expect("is deleted");
    let waits = with_gpus(sleeping(pod("waits")), 1);
    let begun = std::time::Instant::now();
    cluster::workloads::create(cluster, alice, &waits).await.success().expect("is let in, in the end");
    let took = begun.elapsed();
    until("the Deployment has its pod again", async || {
        pods.list(&of_it).await.ok()?.items.iter().any(|pod| pod.metadata.deletion_timestamp.is_none()).then_some(())
    })
    .await
    .expect("comes back");

    let busy = |by: &str, name: &str| {
        let events = cluster.audit().events().into_iter();
        let of_it = move |event: &Event| {
            let asked = event.request_object.as_ref().map(|object| object["metadata"].clone()).unwrap_or_default();
            let named = [&asked["name"], &asked["generateName"]].into_iter().filter_map(Value::as_str);
            event.code() == 429 && event.username().contains(by) && named.into_iter().any(|text| text.starts_with(name))
        };
        let events: Vec<_> = events.filter(of_it).collect();
        let with_time = events.iter().filter(|event| {
            event.response_status.as_ref().is_some_and(|status| status.details["retryAfterSeconds"].is_u64())
        });
        (events.len(), with_time.count())
    };
    let (person, controller) = (busy("TeamA", "waits"), busy("replicaset-controller", "serves"));
    println_figures(&format!(
        "while the ledger was made anew kubectl was answered 429 {} times and came through after {} s; the controller \
         was answered 429 {} times",
        person.0,
        took.as_secs(),
        controller.0
    ));
    assert!(person.0 > 0 && person.1 == person.0, "with the time to come again: {person:?}");
    assert!(controller.0 > 0 && controller.1 == 0, "without: {controller:?}");
    let get = cluster.kubectl(admin, &["get", "teams", "team-a", "team-b"], "").await.expect("runs").success();
    println_figures(&get.expect("are shown"));
}

/// A neighbour refuses three of ten, each replica is killed, the ledger is deleted once.
async fn while_everything_fails(cluster: &Cluster, replicas: &mut Replicas, root: &Client, alice: &Client) {
    let neighbour = Neighbour::install(cluster).await;
    let later = |event: &Event| event.code() == 429 && event.username().contains("TeamA");
    let before = cluster.audit().events().iter().filter(|event| later(event)).count();
    let sampler = Sampler::start(root.clone(), TEAM_A);
    let storm = tokio::spawn({
        let alice = alice.clone();
        async move {
            let one = |number| {
                let alice = alice.clone();
                async move {
                    // Spread over what is done to the replicas.
                    sleep(Duration::from_millis(number * 120)).await;
                    submit(&alice, TEAM_A, mixed(number)).await
                }
            };
            join_all((0..SUBMISSIONS).map(one)).await
        }
    });
    for index in 0..replicas.count() {
        sleep(Duration::from_secs(3)).await;
        replicas.kill(index);
        sleep(Duration::from_secs(2)).await;
        replicas.start_one(index).expect("starts");
        replicas.ready(index).await.expect("is back");
        if index == 0 {
            let admin = &cluster.people.admin;
            let deleted = cluster.kubectl(admin, &["delete", "quotaledger", "team-a"], "").await;
            deleted.expect("kubectl runs").success().expect("an administrator may");
        }
    }
    let submitted = storm.await.expect("no panic");
    neighbour.relents();
    // Clients come again by themselves: how often only the API server knows.
    let times = cluster.audit().events().iter().filter(|event| later(event)).count() - before;
    println_figures(&format!("people's clients were answered 429 {times} times on the way"));
    // Controllers come again by themselves, and make what was refused to them.
    sleep(Duration::from_secs(5)).await;
    let (most, samples) = sampler.stop().await;
    told("200 Jobs, Deployments and pods, while everything fails", &submitted, most, samples);
    assert!(most <= LIMIT, "{most}");
    let admitted = submitted.iter().filter(|submitted| submitted.ended == Ended::Admitted).count();
    assert!(admitted > 20, "{admitted}");
    let held = the_ledger_is_what_lives(root).await;
    // What is left can be had to the last, and no more.
    let one = |number| with_gpus(sleeping(pod(&format!("last-{number}"))), 1);
    let last = join_all((0..LIMIT).map(|number| submit(alice, TEAM_A, one(number)))).await;
    let admitted = last.iter().filter(|submitted| submitted.ended == Ended::Admitted).count() as u64;
    assert_eq!(admitted, LIMIT - held);
    the_ledger_is_what_lives(root).await;
}

/// Of each root the larger of what it needs and what its pods hold, worked out from what is stored.
async fn the_ledger_is_what_lives(root: &Client) -> u64 {
    let compared = until("the ledger is what lives", async || {
        let expected = expected(root).await?;
        let ledger = ledger(root, "team-a").await.ok()?;
        let pods: BTreeSet<String> = ledger.entries.values().flat_map(|entry| entry.pods.keys().cloned()).collect();
        let live = live(root, TEAM_A).await.ok()?;
        let same = pods.iter().eq(live.keys()) && Balance::from(ledger).used().get(GPU) == expected;
        same.then_some(expected)
    });
    match compared.await {
        Ok(gpus) => {
            println_figures(&format!("afterwards the ledger holds {gpus} GPUs, which is what lives"));
            gpus
        }
        Err(error) => {
            let (ledger, live) = (ledger(root, "team-a").await, live(root, TEAM_A).await);
            unreachable!("{error}: {:?} is expected, {ledger:#?} is held, {live:#?} lives", expected(root).await);
        }
    }
}

async fn expected(root: &Client) -> Option<u64> {
    let jobs: Api<Job> = Api::namespaced(root.clone(), TEAM_A);
    let deployments: Api<Deployment> = Api::namespaced(root.clone(), TEAM_A);
    let mut needs: BTreeMap<String, u64> = BTreeMap::new();
    for job in jobs.list(&ListParams::default()).await.ok()?.items {
        let (spec, status) = (json!(job.spec), json!(job.status));
        let is_over = status["conditions"].as_array().into_iter().flatten().any(|condition| {
            condition["status"] == "True" && (condition["type"] == "Complete" || condition["type"] == "Failed")
        });
        let left = spec["completions"].as_u64().unwrap_or(1).saturating_sub(status["succeeded"].as_u64().unwrap_or(0));
        let pods = if is_over { 0 } else { left.min(spec["parallelism"].as_u64().unwrap_or(1)) };
        needs.insert(job.name_any(), pods * gpus_of(&spec["template"]["spec"]));
    }
    for deployment in deployments.list(&ListParams::default()).await.ok()?.items {
        let spec = json!(deployment.spec);
        needs.insert(deployment.name_any(), spec["replicas"].as_u64()? * gpus_of(&spec["template"]["spec"]));
    }
    let mut holds: BTreeMap<String, u64> = BTreeMap::new();
    let pods: Api<Pod> = Api::namespaced(root.clone(), TEAM_A);
    let live = live(root, TEAM_A).await.ok()?;
    for pod in pods.list(&ListParams::default()).await.ok()?.items {
        let labels = pod.labels();
        let root = labels.get("batch.kubernetes.io/job-name").or_else(|| labels.get("app"));
        let root = root.cloned().unwrap_or_else(|| format!("pod/{}", pod.name_any()));
        *holds.entry(root).or_default() += pod.uid().and_then(|uid| live.get(&uid).copied()).unwrap_or(0);
    }
    let roots: BTreeSet<&String> = needs.keys().chain(holds.keys()).collect();
    let charge = |root: &String| needs.get(root).copied().unwrap_or(0).max(holds.get(root).copied().unwrap_or(0));
    Some(roots.into_iter().map(charge).sum())
}

fn gpus_of(spec: &Value) -> u64 {
    spec["containers"][0]["resources"]["limits"][GPU].as_str().and_then(|amount| amount.parse().ok()).unwrap_or(0)
}

/// Everything is deleted, and nothing is held any more.
async fn is_empty_again(root: &Client) {
    let all = ListParams::default();
    let now =
        DeleteParams { propagation_policy: Some(kube::api::PropagationPolicy::Background), ..DeleteParams::default() };
    let jobs: Api<Job> = Api::namespaced(root.clone(), TEAM_A);
    let deployments: Api<Deployment> = Api::namespaced(root.clone(), TEAM_A);
    let pods: Api<Pod> = Api::namespaced(root.clone(), TEAM_A);
    jobs.delete_collection(&now, &all).await.expect("are deleted");
    deployments.delete_collection(&now, &all).await.expect("are deleted");
    until("nothing is held", async || {
        // The garbage collector makes way; what it has not reached is deleted here.
        pods.delete_collection(&now, &all).await.ok()?;
        let held = ledger(root, "team-a").await.ok()?;
        held.entries.is_empty().then_some(())
    })
    .await
    .expect("is let go");
    assert!(ledgers(root).get("team-a").await.is_ok());
}

fn sleeping(mut manifest: Value) -> Value {
    let spec = match manifest["kind"] == "Pod" {
        true => &mut manifest["spec"],
        false => &mut manifest["spec"]["template"]["spec"],
    };
    spec["containers"][0]["command"] = json!(["sleep", "infinity"]);
    manifest
}

/// Jobs of one to eight GPUs in one pod or in many, Deployments, pods; some end at once, most stay.
fn mixed(number: u64) -> Value {
    let size = number / 5 % 8 + 1;
    match number % 5 {
        0 => {
            let mut many = with_gpus(job_that(&format!("many-{number}"), &["train"]), 1);
            many["spec"]["parallelism"] = json!(size);
            many["spec"]["completions"] = json!(size);
            if number.is_multiple_of(2) { sleeping(many) } else { many }
        }
        1 => with_gpus(sleeping(pod(&format!("pod-{number}"))), 1),
        2 => with_gpus(job_that(&format!("quick-{number}"), &["train"]), size),
        3 => {
            let mut serves = with_gpus(deployment(&format!("web-{number}")), 1);
            serves["spec"]["replicas"] = json!(size.min(3));
            serves
        }
        _ => with_gpus(pod_that(&format!("short-{number}"), &["train"]), 2),
    }
}

#[expect(clippy::print_stdout, reason = "figures are what this scenario is asked for")]
fn println_figures(text: &str) {
    println!("{text}");
}

fn told(what: &str, submitted: &[Submitted], most: u64, samples: u64) {
    let count = |is: fn(&Ended) -> bool| submitted.iter().filter(|submitted| is(&submitted.ended)).count();
    println_figures(&format!(
        "{what}: {} admitted, {} over quota, {} refused by others, {} later, {} failed; at most {most} GPUs lived in {samples} \
         samples",
        count(|ended| *ended == Ended::Admitted),
        count(|ended| matches!(ended, Ended::OverQuota(_))),
        count(|ended| matches!(ended, Ended::Refused(_))),
        count(|ended| matches!(ended, Ended::Later(_))),
        count(|ended| matches!(ended, Ended::Failed(_))),
    ));
    let mut shown = BTreeSet::new();
    for submitted in submitted {
        if let Ended::Refused(why) | Ended::Later(why) | Ended::Failed(why) = &submitted.ended {
            let end: String = why.chars().rev().take(160).collect::<Vec<_>>().into_iter().rev().collect();
            if shown.len() < 6 && shown.insert(end.clone()) {
                println_figures(&format!("    ... {end}"));
            }
        }
    }
}

/// Three of ten, in no order: uids are random.
fn is_unlucky(request: &Value) -> bool {
    request["uid"].as_str().is_some_and(|uid| uid.starts_with(['0', '1', '2', '3', '4']))
}

/// A validating webhook beside ours, which refuses three of ten.
struct Neighbour {
    webhook: Webhook,
    refuses: Arc<AtomicBool>,
}

impl Neighbour {
    async fn install(cluster: &Cluster) -> Self {
        let refuses = Arc::new(AtomicBool::new(true));
        let refusing = Arc::clone(&refuses);
        let webhook = Webhook::serve(move |request| match refusing.load(Ordering::Relaxed) && is_unlucky(request) {
            true => Answer::Deny("the neighbour does not like it".to_owned()),
            false => Answer::Allow,
        })
        .await
        .expect("serves");
        let rule = |groups: &str, resources: &str| {
            json!({
                "apiGroups": [groups], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resources],
            })
        };
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": "neighbour" },
            "webhooks": [{
                "name": "neighbour.example.com",
                "clientConfig": webhook.client_config(),
                "rules": [rule("", "pods"), rule("batch", "jobs"), rule("apps", "deployments")],
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": TEAM_A } },
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        });
        let root = &cluster.callers.root;
        cluster
            .kubectl(root, &["apply", "-f", "-"], &configuration.to_string())
            .await
            .expect("runs")
            .success()
            .expect("is installed");
        // The API server takes up a new configuration in its own time.
        sleep(Duration::from_secs(2)).await;
        Self { webhook, refuses }
    }

    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    fn relents(&self) {
        let asked = self.webhook.requests();
        let refused = asked.iter().filter(|request| is_unlucky(request)).count();
        let share = refused as f64 / asked.len() as f64;
        println_figures(&format!("the neighbour refused {refused} of {} requests", asked.len()));
        assert!((0.2..0.4).contains(&share), "{share}");
        self.refuses.store(false, Ordering::Relaxed);
    }
}
