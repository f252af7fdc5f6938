//! Who reaches for what is not theirs, and what kubectl then shows them. RBAC lets everybody in here: it is the gate that
//! refuses, or gives the work to whoever really submitted it.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::LazyLock};

use cluster::{Cluster, Gate, Identity, Output, TEAM_A, TEAM_B, manifests, until};
use k8s_openapi::api::{
    core::v1::Pod,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

/// Shared: every test has names of its own.
static SITE: LazyLock<(Cluster, Gate)> = LazyLock::new(|| {
    let cluster = Cluster::start().expect("the cluster starts");
    let policies = policies(&cluster);
    let gate = Gate::with_policies(&cluster, &policies).expect("the gate starts");
    (cluster, gate)
});

fn cluster() -> &'static Cluster {
    &SITE.0
}

/// The starter policies, but in team B leads may rewrite what others submitted.
fn policies(cluster: &Cluster) -> PathBuf {
    let starter = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../policies");
    let ours = cluster.directory().join("policies");
    fs::create_dir_all(&ours).expect("a directory");
    for entry in fs::read_dir(starter).expect("the starter policies") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "cedar") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("reads");
        let begin = text.find("@id(\"others-work-is-not-rewritten\")");
        let text = match begin.map(|begin| text.split_at(begin)) {
            Some((before, policy)) => {
                let exception = "when { !(context has team && context.team == Team::\"team-b\") && context has team";
                format!("{before}{}", policy.replacen("when { context has team", exception, 1))
            }
            None => text,
        };
        fs::write(ours.join(path.file_name().expect("a name")), text).expect("writes");
    }
    ours
}

async fn kubectl(who: &Identity, arguments: &[&str], manifest: &Value) -> Output {
    cluster().kubectl(who, arguments, &manifest.to_string()).await.expect("kubectl runs")
}

async fn submit(who: &Identity, manifest: &Value) {
    kubectl(who, &["create", "-f", "-"], manifest).await.success().expect("is created");
}

/// What a person reads.
async fn refused(who: &Identity, arguments: &[&str], manifest: &Value) -> String {
    let output = kubectl(who, arguments, manifest).await;
    assert_ne!(output.code, 0, "{}", output.stdout);
    assert_eq!(output.stdout, "");
    output.stderr
}

/// RBAC lets them.
async fn let_into(who: &Identity, namespace: &str) {
    cluster().grant(who, namespace).await.expect("binds");
    can(who, &["create", "jobs", "-n", namespace]).await;
}

async fn can(who: &Identity, what: &[&str]) {
    let question = [&["auth", "can-i"], what].concat();
    let can = async || {
        let answer = cluster().kubectl(who, &question, "").await.ok()?;
        (answer.code == 0).then_some(())
    };
    until(&format!("{} can {}", who.name(), what.join(" ")), can).await.expect("RBAC knows of it");
}

async fn stored(who: &Identity, kind: &str, name: &str) -> Value {
    let text = kubectl(who, &["get", kind, name, "-o", "json"], &Value::Null).await.success().expect("is there");
    serde_json::from_str(&text).expect("JSON")
}

/// As controllers made it.
async fn pod_of(namespace: &str, prefix: &str) -> Value {
    let event = cluster().audit().created(namespace, "pods", prefix).await.expect("is created");
    event.response_object.expect("is logged")
}

/// The person in the stamp, and the home that the first container has.
fn belongs_to(object: &Value) -> (Option<String>, Option<String>) {
    let stamp = object["metadata"]["annotations"]["cedargate.dev/submitted-by"].as_str().expect("a stamp");
    let stamp: Value = serde_json::from_str(stamp).expect("JSON");
    let mounts = object["spec"]["containers"][0]["volumeMounts"].as_array();
    let home = mounts.into_iter().flatten().filter_map(|mount| mount["mountPath"].as_str());
    let home = home.filter(|path| path.starts_with("/home/")).map(str::to_owned).next();
    (stamp["person"].as_str().map(str::to_owned), home)
}

fn owner(object: &Value) -> Value {
    json!([{
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"],
        "controller": true,
    }])
}

const CREATE: [&str; 3] = ["create", "-f", "-"];

#[tokio::test]
async fn alice_works_in_her_own_namespace_only() {
    let alice = &cluster().people.alice;
    let_into(alice, TEAM_B).await;
    let_into(alice, "default").await;
    let job = manifests::job("elsewhere");
    let create_in = |namespace| ["create", "-n", namespace, "-f", "-"];
    insta::assert_snapshot!("alice_in_team_b", refused(alice, &create_in(TEAM_B), &job).await);
    insta::assert_snapshot!("alice_in_default", refused(alice, &create_in("default"), &job).await);
}

#[tokio::test]
async fn others_work_is_not_rewritten() {
    let (alice, amir, bob) = (&cluster().people.alice, &cluster().people.amir, &cluster().people.bob);
    submit(alice, &manifests::deployment("alices")).await;
    let_into(bob, TEAM_A).await;
    let rewrite = [
        "set",
        "image",
        "-n",
        TEAM_A,
        "deployment/alices",
        "main=111122223333.dkr.ecr.us-west-2.amazonaws.com/other:1",
    ];
    insta::assert_snapshot!("bob_edits_alices", refused(bob, &rewrite, &Value::Null).await);
    insta::assert_snapshot!("amir_edits_alices", refused(amir, &rewrite, &Value::Null).await);
    let scaled = kubectl(amir, &["scale", "deployment/alices", "--replicas=2"], &Value::Null).await;
    scaled.success().expect("a lead resizes");
}

/// Where a site permits it, what runs from then on is the team's and no longer the person's.
#[tokio::test]
async fn where_leads_may_rewrite_the_home_is_gone_and_they_are_told() {
    let (bob, chen) = (&cluster().people.bob, &cluster().people.chen);
    submit(bob, &manifests::deployment("bobs")).await;
    let before = pod_of(TEAM_B, "bobs-").await;
    assert_eq!(belongs_to(&before), (Some("bob.osei@example.com".to_owned()), Some("/home/bob".to_owned())));

    let rewrite = ["set", "image", "deployment/bobs", "main=111122223333.dkr.ecr.us-west-2.amazonaws.com/other:1"];
    let output = kubectl(chen, &rewrite, &Value::Null).await;
    assert_eq!(output.code, 0, "{}", output.stderr);
    insta::assert_snapshot!("chen_edits_bobs", output.stderr);

    let pods: Api<Pod> = Api::namespaced(bob.client().await.expect("connects"), TEAM_B);
    let next = until("there is a pod of the new template", async || {
        let pods = pods.list(&Default::default()).await.ok()?.items.into_iter();
        let mut pods = pods.filter_map(|pod| serde_json::to_value(pod).ok());
        pods.find(|pod| {
            pod["metadata"]["labels"]["app"] == "bobs"
                && pod["spec"]["containers"][0]["image"].as_str().is_some_and(|image| image.ends_with("/other:1"))
        })
    });
    assert_eq!(belongs_to(&next.await.expect("is made")), (None, None));
    let root = stored(bob, "deployment", "bobs").await;
    assert_eq!(belongs_to(&root).0, None);
    assert_eq!(root["metadata"]["labels"]["cedargate.dev/person"], Value::Null);
}

/// The deployment controller copies the stamp to it; it is no root for that.
#[tokio::test]
async fn a_replica_set_is_changed_through_its_deployment() {
    let alice = &cluster().people.alice;
    submit(alice, &manifests::deployment("direct")).await;
    let made = cluster().audit().created(TEAM_A, "replicasets", "direct-").await.expect("is created");
    let scale = ["scale", &format!("replicaset/{}", made.name()), "--replicas=5"];
    let refused = refused(alice, &scale, &Value::Null).await;
    insta::assert_snapshot!("alice_scales_a_replica_set", refused.replace(made.name(), "[generated]"));
}

/// Ownership is not submission: what a person makes is theirs, whatever it says above it.
#[tokio::test]
async fn what_amir_hangs_under_alices_roots_is_amirs() {
    let (alice, amir) = (&cluster().people.alice, &cluster().people.amir);
    submit(alice, &manifests::deployment("host")).await;
    let mut cron_job = manifests::cron_job("host-nightly");
    cron_job["spec"]["suspend"] = true.into();
    submit(alice, &cron_job).await;
    submit(alice, &manifests::job("host-job")).await;
    let amirs = (Some("amir.haddad@example.com".to_owned()), Some("/home/amir".to_owned()));

    let mut replica_set = manifests::replica_set("parasite-set");
    replica_set["metadata"]["ownerReferences"] = owner(&stored(alice, "deployment", "host").await);
    submit(amir, &replica_set).await;
    assert_eq!(belongs_to(&pod_of(TEAM_A, "parasite-set-").await), amirs);

    let mut job = manifests::job("parasite-job");
    job["metadata"]["ownerReferences"] = owner(&stored(alice, "cronjob", "host-nightly").await);
    submit(amir, &job).await;
    assert_eq!(belongs_to(&pod_of(TEAM_A, "parasite-job-").await), amirs);

    let mut pod = manifests::pod("parasite-pod");
    pod["metadata"]["ownerReferences"] = owner(&stored(alice, "job", "host-job").await);
    submit(amir, &pod).await;
    assert_eq!(belongs_to(&pod_of(TEAM_A, "parasite-pod").await), amirs);
}

/// Code in a notebook is its owner's; a token without a pod is nobody's.
#[tokio::test]
async fn what_a_notebook_submits_is_its_owners() {
    let alice = &cluster().people.alice;
    submit(alice, &manifests::pod("notebook")).await;
    let pods: Api<Pod> = Api::namespaced(alice.client().await.expect("connects"), TEAM_A);
    let notebook = pods.get("notebook").await.expect("is there");
    let inside = cluster().service_account(TEAM_A, "team-a", Some(&notebook)).await.expect("a token");
    let_into(&inside, TEAM_A).await;
    submit(&inside, &manifests::job("from-notebook")).await;
    let alices = (Some("alice.martin@example.com".to_owned()), Some("/home/alice".to_owned()));
    assert_eq!(belongs_to(&pod_of(TEAM_A, "from-notebook-").await), alices);

    let minted = cluster().service_account(TEAM_A, "team-a", None).await.expect("a token");
    insta::assert_snapshot!("token_without_a_pod", refused(&minted, &CREATE, &manifests::job("from-nowhere")).await);
}

#[tokio::test]
async fn a_stamp_is_the_gates() {
    let (alice, amir) = (&cluster().people.alice, &cluster().people.amir);
    let forged = json!({ "cedargate.dev/submitted-by": r#"{"team":"team-a","person":"alice.martin@example.com"}"# });

    let mut job = manifests::job("forged-template");
    job["spec"]["template"]["metadata"]["annotations"] = forged.clone();
    insta::assert_snapshot!("forged_stamp_in_a_template", refused(amir, &CREATE, &job).await);

    let mut job = manifests::job("forged-root");
    job["metadata"]["annotations"] = forged;
    submit(amir, &job).await;
    let amirs = (Some("amir.haddad@example.com".to_owned()), Some("/home/amir".to_owned()));
    assert_eq!(belongs_to(&pod_of(TEAM_A, "forged-root-").await), amirs);

    submit(alice, &manifests::job("edited")).await;
    let before = stored(alice, "job", "edited").await["metadata"].clone();
    for who in [alice, amir] {
        let edit = ["annotate", "--overwrite", "job/edited", "cedargate.dev/submitted-by={}"];
        kubectl(who, &edit, &Value::Null).await;
        let edit = ["label", "--overwrite", "job/edited", "cedargate.dev/person=nobody", "cedargate.dev/cost-center-"];
        kubectl(who, &edit, &Value::Null).await;
        let after = stored(alice, "job", "edited").await["metadata"].clone();
        assert_eq!((&after["annotations"], &after["labels"]), (&before["annotations"], &before["labels"]));
    }
}

#[tokio::test]
async fn no_label_exempts() {
    let alice = &cluster().people.alice;
    let mut job = manifests::job("exempted");
    job["spec"]["template"]["spec"]["containers"][0]["securityContext"] = json!({ "privileged": true });
    job["metadata"]["labels"] = json!({ "cedargate.dev/exempt": "true" });
    insta::assert_snapshot!("a_label_of_ours", refused(alice, &CREATE, &job).await);
    job["metadata"]["labels"] = json!({ "admission.cedargate.dev/ignore": "true", "control-plane": "true" });
    insta::assert_snapshot!("labels_that_exempt_elsewhere", refused(alice, &CREATE, &job).await);
}

#[tokio::test]
async fn nobody_enters_a_pod_with_anothers_home() {
    let (alice, amir, bob) = (&cluster().people.alice, &cluster().people.amir, &cluster().people.bob);
    submit(alice, &manifests::pod("private")).await;
    let_into(bob, TEAM_A).await;
    let exec = ["exec", "-n", TEAM_A, "private", "--", "ls"];
    let neutral = "NVIDIA_VISIBLE_DEVICES=void";
    let debug = ["debug", "-n", TEAM_A, "private", "--env", neutral, "--image", manifests::IMAGE, "-c", "debugger"];
    let debug = [debug.as_slice(), &["--", "sleep", "1"]].concat();
    insta::assert_snapshot!("amir_execs", refused(amir, &exec, &Value::Null).await);
    insta::assert_snapshot!("bob_execs", refused(bob, &exec, &Value::Null).await);
    insta::assert_snapshot!("amir_debugs", refused(amir, &debug, &Value::Null).await);
    insta::assert_snapshot!("bob_debugs", refused(bob, &debug, &Value::Null).await);
    let own = kubectl(alice, &exec, &Value::Null).await;
    assert!(!own.stderr.contains("denied the request"), "only the kubelet is missing: {}", own.stderr);
}

/// Somebody may impersonate users and extras: what they cannot write is the authenticator's uid.
#[tokio::test]
async fn an_impersonated_person_is_nobody() {
    let (alice, intruder) = (&cluster().people.alice, &cluster().people.intruder);
    may_impersonate(intruder, alice).await;
    let group = "hyperpod-ns-team-a-namespace-level-group";
    let job = manifests::job("as-alice");
    let plain = ["create", "-n", TEAM_A, "--as", alice.username(), "--as-group", group, "-f", "-"];
    insta::assert_snapshot!("impersonated_by_name", refused(intruder, &plain, &job).await);

    // A header's key arrives in lower case, unless a part of it is percent-encoded.
    let extra = |key: &dyn Fn(&str) -> String| -> BTreeMap<String, String> {
        let extra = alice.user().extra.clone().expect("people have extra");
        extra.into_iter().map(|(name, values)| (key(&name), values.concat())).collect()
    };
    let as_it_is = |name: &str| name.replace('/', "%2F");
    let upper_case_encoded = |name: &str| -> String {
        let encode = |c: char| if c.is_ascii_uppercase() { format!("%{:02X}", u32::from(c)) } else { c.to_string() };
        as_it_is(name)
            .split("%2F")
            .map(|part| part.chars().map(encode).collect::<String>())
            .collect::<Vec<_>>()
            .join("%2F")
    };
    let lower = impersonating(intruder, alice.username(), group, extra(&as_it_is), &job).await;
    insta::assert_snapshot!("impersonated_with_extra", lower);
    let encoded = impersonating(intruder, alice.username(), group, extra(&upper_case_encoded), &job).await;
    insta::assert_snapshot!("impersonated_with_encoded_extra", encoded);

    let controller = "system:serviceaccount:kube-system:job-controller";
    submit(alice, &manifests::job("target")).await;
    let mut pod = manifests::pod("as-controller");
    pod["metadata"]["ownerReferences"] = owner(&stored(alice, "job", "target").await);
    let plain = ["create", "-n", TEAM_A, "--as", controller, "-f", "-"];
    insta::assert_snapshot!("impersonated_controller", refused(intruder, &plain, &pod).await);
}

async fn may_impersonate(who: &Identity, whom: &Identity) {
    let root = cluster().callers.root.client().await.expect("connects");
    let extra = whom.user().extra.iter().flat_map(BTreeMap::keys);
    let extra: Vec<_> =
        extra.flat_map(|key| [key.clone(), key.to_lowercase()]).map(|key| format!("userextras/{key}")).collect();
    let rules = json!([
        { "apiGroups": [""], "resources": ["users", "groups", "serviceaccounts"], "verbs": ["impersonate"] },
        { "apiGroups": ["authentication.k8s.io"], "resources": extra, "verbs": ["impersonate"] },
    ]);
    let role = json!({ "metadata": { "name": "impersonator" }, "rules": rules });
    let binding = json!({
        "metadata": { "name": "impersonator" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "impersonator" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who.username() }],
    });
    let role: ClusterRole = serde_json::from_value(role).expect("a role");
    let binding: ClusterRoleBinding = serde_json::from_value(binding).expect("a binding");
    Api::all(root.clone()).create(&PostParams::default(), &role).await.expect("is created");
    Api::all(root).create(&PostParams::default(), &binding).await.expect("is created");
    can(who, &["impersonate", "users"]).await;
}

/// A raw client, since kubectl has no flag for extras. The message that it is answered with.
async fn impersonating(
    who: &Identity,
    username: &str,
    group: &str,
    extra: BTreeMap<String, String>,
    job: &Value,
) -> String {
    let client = who.client().await.expect("connects");
    let mut request = axum::http::Request::post(format!("/apis/batch/v1/namespaces/{TEAM_A}/jobs"))
        .header("Content-Type", "application/json")
        .header("Impersonate-User", username)
        .header("Impersonate-Group", group);
    for (key, value) in extra {
        request = request.header(format!("Impersonate-Extra-{key}"), value);
    }
    let request = request.body(job.to_string().into_bytes()).expect("a request");
    match client.request_text(request).await {
        Err(kube::Error::Api(status)) => status.message,
        other => unreachable!("the gate refuses: {other:?}"),
    }
}
