//! Who does what in the demonstration: manifests as AWS and others publish them, by people as EKS reports them.

use anyhow::{Context, Result};
use engine::review::UserInfo;
use serde_json::{Value, json};

/// One object that somebody submits.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) who: String,
    pub(crate) what: String,
    pub(crate) user: UserInfo,
    pub(crate) object: Value,
    /// The object whose pod a controller makes here: `kind/name` of an earlier scene.
    pub(crate) pod_of: Option<(&'static str, &'static str)>,
    pub(crate) shown_in_full: bool,
}

macro_rules! manifest {
    ($name:literal) => {
        include_str!(concat!("../../../../engine/testdata/manifests/", $name))
    };
}

const TEAM_A: &str = "hyperpod-ns-team-a";
const TEAM_B: &str = "hyperpod-ns-team-b";

/// The names of a manifest that a team would write as its own.
const TEAM_A_NAMES: [(&str, &str); 5] = [
    ("gpu-queue", "hyperpod-ns-team-a-localqueue"),
    ("claimName: fsx-claim", "claimName: fsx-pvc-hyperpod-ns-team-a"),
    ("<PLACEHOLDER_MODEL_STORAGE_BUCKET>", "team-a-models"),
    ("<PLACEHOLDER_TLS_CERT_S3_URI>", "s3://team-a-tls/certs"),
    ("<PLACEHOLDER_L2_CACHE_LOCAL_URL>", "redis://redis:6379"),
];

/// In the order in which they happen: usage adds up.
pub(crate) fn scenes() -> Result<Vec<Scene>> {
    let alice = person("alice, kubectl", "AWSReservedSSO_TeamA_1234567890abcdef", "alice.martin@example.com");
    let bob = person("bob, Studio", "TeamB-studio", "SageMaker");
    let stranger = person("eve, no team", "SomeOtherRole", "eve@example.com");
    let taskgov_a = manifest!("adt-taskgov-pytorchjob-team-a.yaml");
    let taskgov_b = manifest!("adt-taskgov-pytorchjob-team-b-prio.yaml");
    let elastic = manifest!("adt-hyperpodpytorchjob-elastic-g6e.yaml");
    let endpoint = manifest!("hpcli-inferenceendpointconfig-kvcache.yaml");
    let space = manifest!("jk8saws-workspace-hyperpod-private.tmpl.yaml").replace("${WS_USER}", "alice");
    let storage_manager = manifest!("adt-pod-fsx-storage-manager.yaml");
    let checkpointless = manifest!("hpct-hyperpodpytorchjob-checkpointless-p5.yaml");
    let vjepa = manifest!("adt-pytorchjob-8node-efa-vjepa2.yaml");
    let vllm = manifest!("sghe-deployment-vllm-hostpath.yaml");
    let job = manifest!("kueue-job-queued.yaml").replace("user-queue", "hyperpod-ns-team-b-localqueue");

    Ok(vec![
        alice.submits("PyTorchJob, task governance", taskgov_a, "PyTorchJob", TEAM_A)?,
        pod_of("PyTorchJob", "imagenet-gpu-team-a-1", "its pod, by the operator")?,
        alice.submits("HyperPodPyTorchJob as published", elastic, "HyperPodPyTorchJob", TEAM_A)?,
        alice.submits("the same with the team's names", &own(elastic), "HyperPodPyTorchJob", TEAM_A)?,
        alice.submits("endpoint, model from S3", &own(endpoint), "InferenceEndpointConfig", TEAM_A)?,
        alice.submits("Space", &space, "Workspace", TEAM_A)?,
        alice.submits("pod with the team's FSx", &own(storage_manager), "Pod", TEAM_A)?,
        alice.submits("privileged job on 16 p5", checkpointless, "HyperPodPyTorchJob", TEAM_A)?.in_full(),
        alice.submits("vLLM with a hostPath cache", vllm, "Deployment", TEAM_A)?,
        alice.submits("PyTorchJob, 8 nodes x 8 GPUs", &own(vjepa), "PyTorchJob", TEAM_A)?,
        bob.submits("PyTorchJob, task governance", taskgov_b, "PyTorchJob", TEAM_B)?,
        bob.submits("Job, queued", &job, "Job", TEAM_B)?,
        bob.submits("alice's job, in her namespace", taskgov_a, "PyTorchJob", TEAM_A)?,
        stranger.submits("Job in team-b", &job, "Job", TEAM_B)?,
        Actor { who: "mallory, as alice".to_owned(), user: forged() }.submits("Job in team-a", &job, "Job", TEAM_A)?,
    ])
}

fn own(manifest: &str) -> String {
    TEAM_A_NAMES.iter().fold(manifest.to_owned(), |text, (published, ours)| text.replace(published, ours))
}

struct Actor {
    who: String,
    user: UserInfo,
}

impl Actor {
    /// The document of this kind, put into a namespace as `kubectl -n` would.
    fn submits(&self, what: &str, manifest: &str, kind: &str, namespace: &str) -> Result<Scene> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).with_context(|| what.to_owned())?;
        let mut object = documents
            .into_iter()
            .find(|document| document["kind"] == kind)
            .with_context(|| format!("{what}: no {kind} in the manifest"))?;
        object["metadata"]["namespace"] = namespace.into();
        Ok(Scene {
            who: self.who.clone(),
            what: what.to_owned(),
            user: self.user.clone(),
            object,
            pod_of: None,
            shown_in_full: false,
        })
    }
}

impl Scene {
    fn in_full(self) -> Self {
        Self { shown_in_full: true, ..self }
    }
}

/// A role session as aws-iam-authenticator reports it.
fn person(who: &str, role: &str, session: &str) -> Actor {
    let arn = format!("arn:aws:sts::111122223333:assumed-role/{role}/{session}");
    let principal = "AROAEXAMPLEDEMO000001";
    let user = json!({
        "username": arn.replace('@', "-"),
        "uid": format!("aws-iam-authenticator:111122223333:{principal}"),
        "groups": ["system:authenticated"],
        "extra": {
            "arn": [arn],
            "canonicalArn": [format!("arn:aws:iam::111122223333:role/{role}")],
            "sessionName": [session],
            "principalId": [principal],
            "accessKeyId": ["ASIAEXAMPLE"],
        },
    });
    Actor { who: who.to_owned(), user: serde_json::from_value(user).unwrap_or_default() }
}

/// What `kubectl --as` leaves of alice: no uid, and extra keys in lower case.
fn forged() -> UserInfo {
    let user = json!({
        "username": "arn:aws:sts::111122223333:assumed-role/AWSReservedSSO_TeamA_1234567890abcdef/alice.martin-example.com",
        "groups": ["system:authenticated"],
        "extra": {
            "arn": ["arn:aws:sts::111122223333:assumed-role/AWSReservedSSO_TeamA_1234567890abcdef/alice.martin@example.com"],
            "canonicalarn": ["arn:aws:iam::111122223333:role/AWSReservedSSO_TeamA_1234567890abcdef"],
            "sessionname": ["alice.martin@example.com"],
        },
    });
    serde_json::from_value(user).unwrap_or_default()
}

/// A pod as kubeflow's training operator makes it: the template, a name, a controller reference.
fn pod_of(kind: &'static str, name: &'static str, what: &str) -> Result<Scene> {
    let user = json!({
        "username": "system:serviceaccount:kubeflow:training-operator",
        "uid": "5d1d0944-6488-4227-8156-71c3c8fe49d1",
        "groups": ["system:serviceaccounts", "system:serviceaccounts:kubeflow", "system:authenticated"],
        "extra": {"authentication.kubernetes.io/credential-id": ["JTI=14e0c8c8-811e-4cf2-8351-c78e5f7b9f03"]},
    });
    Ok(Scene {
        who: "training-operator".to_owned(),
        what: what.to_owned(),
        user: serde_json::from_value(user).context("the operator's identity")?,
        object: Value::Null,
        pod_of: Some((kind, name)),
        shown_in_full: false,
    })
}
