//! What goes wrong on the platform's side, in the order in which it would: a cluster with workloads and Teams older than the
//! gate, policies that do not load, Teams that overlap, a Team that goes while its pods run.

use std::{collections::BTreeSet, time::Duration};

use cluster::{
    Cluster, GATE_NAME, Replicas, TEAM_A, TEAM_B, condition, governed, install_definition,
    manifests::{deployment, in_namespace, job, job_that},
    mount, starter_policies, teams, until,
    workloads::{create, running},
};
use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Pod, events::v1::Event};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, EvictParams, ListParams, PostParams},
};
use serde_json::{Value, json};

const PERSON: &str = "cedargate.dev/person";
const TEAM: &str = "cedargate.dev/team";

#[tokio::test(flavor = "multi_thread")]
async fn each_trouble_has_the_designs_answer() {
    let cluster = Cluster::start().expect("the cluster starts");
    let root = cluster.callers.root.client().await.expect("connects");
    install_definition(&cluster).await.expect("is installed");
    older_than_the_gate(&cluster, &root).await;

    let mut replicas = Replicas::start(&cluster, 3).await.expect("the gate starts");
    the_older_team_keeps_what_both_declare(&root).await;
    told_everywhere(&replicas, "conflict", "Teams that declare what others have: a-younger").await;
    a_drain_brings_older_pods_back_at_team_level(&root).await;

    policies_that_do_not_load(&cluster, &root, &mut replicas).await;
    overlap_is_refused(&cluster).await;
    overlap_written_at_the_same_instant(&cluster, &root).await;
    told_everywhere(&replicas, "conflict", "Teams that declare what others have: a-younger").await;
    a_team_does_not_go_under_its_pods(&cluster, &root, &mut replicas).await;
}

/// Workloads, and two Teams that declare the same namespace; the younger has the name that sorts first.
async fn older_than_the_gate(cluster: &Cluster, root: &Client) {
    let mut long = job("older-job");
    long["spec"]["backoffLimit"] = json!(4);
    for manifest in [deployment("older"), long] {
        create(cluster, &cluster.people.alice, &manifest).await.success().expect("nobody is asked yet");
    }
    for label in ["app=older", "batch.kubernetes.io/job-name=older-job"] {
        running(root, TEAM_A, label).await.expect("runs");
    }
    let older = team("z-older", &["contested"]);
    create(cluster, &cluster.people.admin, &older).await.success().expect("nobody is asked yet");
    let created = teams(root).get("z-older").await.expect("is there").creation_timestamp().expect("a time");
    // A creationTimestamp has whole seconds.
    until("a second has passed", async || {
        let now = k8s_openapi::jiff::Timestamp::now();
        (now.as_second() > created.0.as_second()).then_some(())
    })
    .await
    .expect("passes");
    let younger = team("a-younger", &["contested", "uncontested"]);
    create(cluster, &cluster.people.admin, &younger).await.success().expect("nobody is asked yet");
}

async fn the_older_team_keeps_what_both_declare(root: &Client) {
    let younger = said(root, "a-younger", "Conflict").await;
    assert_eq!(younger["status"], "True");
    assert!(message(&younger).contains("namespace `contested`"), "{younger}");
    let older = teams(root).get("z-older").await.expect("is there");
    assert!(condition(&older, "Conflict").is_none(), "{:?}", older.data);
    until("each governs what it keeps", async || {
        let mut kept = Vec::new();
        for name in ["a-younger", "z-older"] {
            kept.push(governed_namespaces(&teams(root).get_opt(name).await.ok()??));
        }
        (kept == [vec!["uncontested".to_owned()], vec!["contested".to_owned()]]).then_some(())
    })
    .await
    .expect("is said in the status");
}

/// Whoever submitted them is not known for certain: the team goes on, and nobody's home is mounted.
async fn a_drain_brings_older_pods_back_at_team_level(root: &Client) {
    for label in ["app=older", "batch.kubernetes.io/job-name=older-job"] {
        let replaced = drain(root, TEAM_A, label).await;
        assert_eq!(replaced.labels().get(TEAM).map(String::as_str), Some("team-a"), "{:?}", replaced.metadata);
        assert_eq!(replaced.labels().get(PERSON), None);
        let volumes = serde_json::to_string(&replaced.spec.expect("a spec").volumes).expect("JSON");
        assert!(volumes.contains("fsx-pvc-hyperpod-ns-team-a"), "the team's storage: {volumes}");
        assert!(!volumes.contains("homes"), "nobody's home: {volumes}");
    }
}

/// The last good set goes on deciding, and readiness, metrics and each Team say so; who starts anew does not become ready on
/// a bad one.
async fn policies_that_do_not_load(cluster: &Cluster, root: &Client, replicas: &mut Replicas) {
    let starter = starter_policies().expect("are read");
    assert_eq!(stale(replicas).await, [Some(0.0); 3]);
    let broken = ("broken.cedar".to_owned(), "permit (principal, action, resource".to_owned());
    mount(&replicas.policies(), &[starter.clone(), vec![broken]].concat()).expect("is mounted");
    noted(replicas, "broken.cedar").await;
    teams_are_told(root, "PoliciesInvalid", "broken.cedar").await;
    decides_as_before(cluster, "broken").await;

    let away = replicas.policies().with_extension("away");
    std::fs::rename(replicas.policies(), &away).expect("is moved");
    noted(replicas, "cannot read").await;
    teams_are_told(root, "PoliciesUnreadable", "cannot read").await;
    decides_as_before(cluster, "unreadable").await;

    replicas.kill(0);
    replicas.start_one(0).expect("starts");
    replicas.ready(0).await.expect_err("never ready without policies");
    decides_as_before(cluster, "two-left").await;

    std::fs::rename(&away, replicas.policies()).expect("is moved back");
    mount(&replicas.policies(), &starter).expect("is mounted");
    replicas.start_one(0).expect("starts");
    replicas.all_ready().await.expect("all are ready");
    until("all decide by what is mounted", async || {
        let details = (0..replicas.count()).map(|index| replicas.readiness(index).map(|readiness| readiness.detail));
        details.into_iter().all(|detail| detail.is_some_and(|detail| detail.contains("[+]policies ok\n"))).then_some(())
    })
    .await
    .expect("the note is gone");
    assert_eq!(stale(replicas).await, [Some(0.0); 3]);
    for team in names_of_teams(root).await {
        until(&format!("{team} is told that all is well"), async || {
            let team = teams(root).get_opt(&team).await.ok()??;
            (condition(&team, "PoliciesCurrent")?["status"] == "True").then_some(())
        })
        .await
        .expect("is told");
    }
}

async fn stale(replicas: &Replicas) -> Vec<Option<f64>> {
    let mut stale = Vec::new();
    for index in 0..replicas.count() {
        stale.push(replicas.metric(index, "policies_stale").await);
    }
    stale
}

async fn noted(replicas: &Replicas, what: &str) {
    for index in 0..replicas.count() {
        let detail = until("readiness says that the policies are not those of the directory", async || {
            let readiness = replicas.readiness(index)?;
            assert!(readiness.is_ready, "it stays ready: {}", readiness.detail);
            readiness.detail.contains(what).then_some(readiness.detail)
        });
        let detail = detail.await.expect("says so");
        assert!(detail.contains("goes on deciding"), "{detail}");
        assert_eq!(replicas.metric(index, "policies_stale").await, Some(1.0));
        assert_eq!(replicas.metric(index, "ready").await, Some(1.0));
        let refused = replicas.metric(index, "policy_reloads_refused").await;
        assert!(refused.is_some_and(|refused| refused >= 1.0), "{refused:?}");
    }
}

/// Each by its condition and by one Event, however many replicas met the same.
async fn teams_are_told(root: &Client, reason: &str, what: &str) {
    let names = names_of_teams(root).await;
    assert!(names.len() >= 5, "{names:?}");
    for name in &names {
        let what_is_awaited = format!("{name} is told: {reason}");
        let said = until(&what_is_awaited, async || {
            let team = teams(root).get_opt(name).await.ok()??;
            condition(&team, "PoliciesCurrent").filter(|condition| condition["reason"] == reason).cloned()
        });
        let said = said.await.expect("is told");
        assert_eq!(said["status"], "False");
        let text = message(&said);
        assert!(text.contains(what) && text.contains("go on deciding"), "{said}");
    }
    let api: Api<Event> = Api::namespaced(root.clone(), "default");
    let of_reason = async || -> Option<Vec<Event>> {
        let events = api.list(&ListParams::default()).await.ok()?.items;
        Some(events.into_iter().filter(|event| event.reason.as_deref() == Some(reason)).collect())
    };
    let regarding = |event: &Event| event.regarding.as_ref().and_then(|team| team.name.clone()).unwrap_or_default();
    until(&format!("each Team has its Event: {reason}"), async || {
        let told: BTreeSet<String> = of_reason().await?.iter().map(regarding).collect();
        names.iter().all(|name| told.contains(name)).then_some(())
    })
    .await
    .expect("is written");
    // Two more looks at the directory: what lasts is no news.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let events = of_reason().await.expect("are listed");
    let mut told: Vec<String> = events.iter().map(regarding).collect();
    told.sort();
    assert_eq!(told, names, "one for each");
    for event in events {
        assert!(event.note.as_deref().is_some_and(|note| note.contains(what)), "{event:?}");
        assert_eq!((event.type_.as_deref(), event.series.map(|series| series.count)), (Some("Warning"), None));
        assert_eq!(event.reporting_controller.as_deref(), Some(GATE_NAME));
    }
}

async fn names_of_teams(root: &Client) -> Vec<String> {
    let mut names: Vec<String> =
        teams(root).list(&ListParams::default()).await.expect("lists").iter().map(ResourceExt::name_any).collect();
    names.sort();
    names
}

/// By the metrics of all replicas, and by their readiness: they stay ready.
async fn told_everywhere(replicas: &Replicas, trouble: &str, note: &str) {
    for index in 0..replicas.count() {
        until(&format!("replica {index} tells of {trouble}"), async || {
            let readiness = replicas.readiness(index)?;
            assert!(readiness.is_ready, "it stays ready: {}", readiness.detail);
            let counted = replicas.metric(index, &format!("teams_in_trouble{{trouble=\"{trouble}\"}}")).await?;
            (readiness.detail.contains(note) && counted >= 1.0).then_some(())
        })
        .await
        .expect("is told");
    }
}

async fn decides_as_before(cluster: &Cluster, which: &str) {
    let right = job_that(&format!("right-{which}"), &["train"]);
    create(cluster, &cluster.people.alice, &right).await.success().expect("is admitted");
    let wrong = in_namespace(job_that(&format!("wrong-{which}"), &["train"]), TEAM_A);
    let refused = create(cluster, &cluster.people.intruder, &wrong).await;
    assert!(refused.stderr.contains("denied the request"), "{}", refused.stderr);
}

async fn overlap_is_refused(cluster: &Cluster) {
    let refused = create(cluster, &cluster.people.admin, &team("poachers", &[TEAM_A])).await;
    assert!(refused.stderr.contains("denied the request"), "{}", refused.stderr);
    assert!(refused.stderr.contains(TEAM_A) && refused.stderr.contains("team-a"), "{}", refused.stderr);
}

/// Each replica judges by what it has heard so far: now and then both are let in. Whoever has the older time, or else the
/// name that sorts first, keeps what both declare.
#[expect(clippy::print_stdout, reason = "whether there was something to settle is chance")]
async fn overlap_written_at_the_same_instant(cluster: &Cluster, root: &Client) {
    let api = teams(&cluster.people.admin.client().await.expect("connects"));
    for attempt in 0..40 {
        let namespace = format!("instant-{attempt}");
        let [first, second] = ["first", "second"].map(|name| format!("{name}-{attempt}"));
        let post = PostParams::default();
        let object =
            |name: &str| -> DynamicObject { serde_json::from_value(team(name, &[&namespace])).expect("a Team") };
        let (one, other) = (object(&first), object(&second));
        let made = tokio::join!(api.create(&post, &one), api.create(&post, &other));
        let (Ok(one), Ok(other)) = made else {
            assert!(made.0.is_ok() || made.1.is_ok(), "one of them is new: {made:?}");
            continue;
        };
        let rank = |team: &DynamicObject| (team.creation_timestamp().map(|time| time.0), team.name_any());
        let (keeps, loses) = if rank(&one) < rank(&other) { (one, other) } else { (other, one) };
        let conflict = said(root, &loses.name_any(), "Conflict").await;
        assert!(conflict["status"] == "True" && message(&conflict).contains(&namespace), "{conflict}");
        governed(cluster, &[&keeps.name_any()]).await.expect("the other is governed");
        let keeps = teams(root).get(&keeps.name_any()).await.expect("is there");
        assert_eq!(governed_namespaces(&keeps), [namespace]);
        assert!(condition(&keeps, "Conflict").is_none(), "{:?}", keeps.data);
        println!("attempt {attempt}: both were let in, and settled");
        return;
    }
    println!("never both: there was nothing to settle but what was older than the gate");
}

async fn a_team_does_not_go_under_its_pods(cluster: &Cluster, root: &Client, replicas: &mut Replicas) {
    let bob = &cluster.people.bob;
    create(cluster, bob, &deployment("served")).await.success().expect("is admitted");
    let before = running(root, TEAM_B, "app=served").await.expect("runs");
    assert!(before.labels().contains_key(PERSON), "{:?}", before.metadata);

    let deleted = cluster.kubectl(&cluster.people.admin, &["delete", "team", "team-b", "--wait=false"], "").await;
    let deleted = deleted.expect("kubectl runs");
    assert!(deleted.stderr.contains("cannot go while 1 pod runs in `hyperpod-ns-team-b`"), "{}", deleted.stderr);

    force_away(root, "team-b").await;
    until("nobody is a member", async || refusal(cluster, "orphan").await).await.expect("new roots are refused");
    told_everywhere(replicas, "vanished", "Teams that are gone and still governed: team-b").await;
    let replaced = drain(root, TEAM_B, "app=served").await;
    assert_eq!(replaced.labels().get(TEAM).map(String::as_str), Some("team-b"), "{:?}", replaced.metadata);
    assert_eq!(replaced.labels().get(PERSON), None, "at team level");

    // Who starts anew knows it from the configuration.
    replicas.kill_all();
    replicas.start_all().expect("starts");
    replicas.all_ready().await.expect("all are ready");
    assert!(refusal(cluster, "orphan").await.is_some(), "still governed");
    drain(root, TEAM_B, "app=served").await;

    let again = cluster.directory().join("gate/values.json");
    let values: Value = serde_json::from_str(&std::fs::read_to_string(again).expect("is there")).expect("JSON");
    let declared = values["teams"].as_array().expect("a list").iter().find(|team| team["name"] == "team-b");
    let manifest = json!({
        "apiVersion": "cedargate.dev/v1alpha1",
        "kind": "Team",
        "metadata": { "name": "team-b" },
        "spec": declared.expect("is declared")["spec"],
    });
    create(cluster, &cluster.people.admin, &manifest).await.success().expect("may come back");
    governed(cluster, &["team-b"]).await.expect("is governed");
    until("bob is a member again", async || {
        create(cluster, bob, &job_that("returned", &["train"])).await.success().ok().map(drop)
    })
    .await
    .expect("is admitted");
}

/// What the gate says to bob, once it refuses him.
async fn refusal(cluster: &Cluster, name: &str) -> Option<String> {
    let output = create(cluster, &cluster.people.bob, &job_that(name, &["train"])).await;
    match output.code {
        0 => {
            let _gone = cluster.kubectl(&cluster.people.bob, &["delete", "job", name], "").await;
            None
        }
        _ => output.stderr.contains("denied the request").then_some(output.stderr),
    }
}

/// As somebody with all rights can: in the moment before the gate puts its configuration right.
async fn force_away(root: &Client, name: &str) {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(root.clone());
    let api = teams(root);
    until("the Team is gone", async || {
        let mut configuration = configurations.get(GATE_NAME).await.ok()?;
        configuration.webhooks.as_mut()?.retain(|webhook| !webhook.name.starts_with("teams."));
        configurations.replace(GATE_NAME, &PostParams::default(), &configuration).await.ok()?;
        for _ in 0..20 {
            let _perhaps = api.delete(name, &DeleteParams::default()).await;
            if api.get_opt(name).await.ok()?.is_none() {
                return Some(());
            }
        }
        None
    })
    .await
    .expect("goes");
}

/// Evicts what is there, as `kubectl drain` does, and gives what came in its place.
async fn drain(root: &Client, namespace: &str, label: &str) -> Pod {
    let api: Api<Pod> = Api::namespaced(root.clone(), namespace);
    let only = ListParams::default().labels(label);
    let before = running(root, namespace, label).await.expect("runs");
    api.evict(&before.name_any(), &EvictParams::default()).await.expect("is evicted");
    until(&format!("{label} is replaced"), async || {
        let pods = api.list(&only).await.ok()?.items;
        pods.into_iter().find(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.uid() != before.uid() && phase == Some("Running")
        })
    })
    .await
    .expect("comes back")
}

async fn said(root: &Client, team: &str, kind: &str) -> Value {
    let api = teams(root);
    until(&format!("{team} has condition {kind}"), async || condition(&api.get_opt(team).await.ok()??, kind).cloned())
        .await
        .expect("is said")
}

fn message(condition: &Value) -> &str {
    condition["message"].as_str().unwrap_or_default()
}

fn governed_namespaces(team: &DynamicObject) -> Vec<String> {
    let namespaces = team.data["status"]["namespaces"].as_array().cloned().unwrap_or_default();
    namespaces.iter().filter_map(|namespace| namespace["name"].as_str().map(str::to_owned)).collect()
}

fn team(name: &str, namespaces: &[&str]) -> Value {
    json!({
        "apiVersion": "cedargate.dev/v1alpha1",
        "kind": "Team",
        "metadata": { "name": name },
        "spec": { "namespaces": namespaces },
    })
}
