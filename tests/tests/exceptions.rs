//! AWS's own recipes that take more of a node than the starter policies give: each is refused without the exceptions of
//! `policies/examples`, let in with them until their day, and nothing else is let in by them.
//!
//! Loading policies recurses deeply; run with `RUST_MIN_STACK=16777216`.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::policies::{Policies, SourceFile, examples, starter_files, starter_schema};
use engine::review::UserInfo;
use engine::snapshot::Snapshot;
use engine::team::Teams;
use serde_json::{Value, json};
use tests::gate::{self, Admitted, Gate, sample, service_account};
use tests::published;

/// A published manifest, the exceptions that it needs, and what refuses its pods without them.
struct Recipe {
    file: &'static str,
    exceptions: &'static [&'static str],
    refused_by: &'static [&'static str],
}

const RECIPES: [Recipe; 5] = [
    Recipe { file: "adt-mpijob-nccl-tests.yaml", exceptions: &["dev-shm"], refused_by: &["volume-kinds"] },
    Recipe {
        file: "adt-pytorchjob-neuron-peft.tmpl.yaml",
        exceptions: &["dev-shm", "neuron-paths"],
        refused_by: &["volume-kinds"],
    },
    Recipe { file: "ado-hyperpodpytorchjob-1b.tmpl.yaml", exceptions: &["node-disks"], refused_by: &["volume-kinds"] },
    Recipe { file: "sghe-deployment-vllm-hostpath.yaml", exceptions: &["node-disks"], refused_by: &["volume-kinds"] },
    Recipe {
        file: "hpct-hyperpodpytorchjob-checkpointless-p5.yaml",
        exceptions: &["checkpointless"],
        refused_by: &["no-host-namespaces", "no-host-ports", "no-privileged"],
    },
];

/// For what no published manifest of ours asks for; a case shows it.
const WITHOUT_RECIPE: [&str; 1] = ["profiling"];

/// What the files of the set are named after, beside the name of the exception.
const NAMED: (&str, &str) = ("examples/exempt-team-a-", "-until-2027-03-01.cedar");

#[test]
fn each_recipe_needs_its_exceptions_and_no_others() {
    let all = exceptions();
    let used: BTreeSet<&str> = RECIPES.iter().flat_map(|recipe| recipe.exceptions).copied().collect();
    let shipped: BTreeSet<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(used.iter().copied().chain(WITHOUT_RECIPE).collect::<BTreeSet<_>>(), shipped);
    let set = |keep: &dyn Fn(&str) -> bool| policies(all.iter().filter(|(name, _)| keep(name)));
    let none = set(&|_| false);
    for recipe in &RECIPES {
        let refused = recipe.refused_by.iter().map(|policy| (*policy).to_owned()).collect();
        assert_eq!(pods_refused_by(recipe, "baseline", &none, BEFORE), refused, "{} without exceptions", recipe.file);
        let own = set(&|name| recipe.exceptions.contains(&name));
        assert_eq!(pods_refused_by(recipe, "baseline", &own, BEFORE), BTreeSet::new(), "{}", recipe.file);
        assert_eq!(pods_refused_by(recipe, "baseline", &own, AFTER), refused, "{} after the day", recipe.file);
        for missing in recipe.exceptions {
            let fewer = set(&|name| recipe.exceptions.contains(&name) && name != *missing);
            let refused_by = pods_refused_by(recipe, "baseline", &fewer, BEFORE);
            assert_ne!(refused_by, BTreeSet::new(), "{} without {missing}", recipe.file);
        }
        gate::say(&format!(
            "{}: let in by {}, for {}",
            recipe.file,
            recipe.exceptions.join(", "),
            recipe.refused_by.join(", ")
        ));
    }
}

/// A team that is held to level restricted chose it; `dev-shm` shows how one is excepted all the same.
#[test]
fn teams_of_level_restricted_are_let_in_by_none() {
    let everything = policies(exceptions().iter());
    for recipe in &RECIPES {
        let refused_by = pods_refused_by(recipe, "restricted", &everything, BEFORE);
        assert_ne!(refused_by, BTreeSet::new(), "{}", recipe.file);
    }
}

/// Every other published manifest, every one of these elsewhere, and every fixture that a Pod Security level refuses gets
/// the answer that it got before.
#[test]
fn nothing_else_is_let_in() {
    let (none, all) = (policies([].iter()), policies(exceptions().iter()));
    let folder = gate::repository().join("webhook/engine/testdata");
    let mut asked = 0;
    let mut same = |name: &str, object: &Value, level: &str, namespace: &str| {
        let answer = |policies| submitted(object, level, namespace, policies, BEFORE).refused_by();
        assert_eq!(answer(&none), answer(&all), "{name} in {namespace} at {level}");
        asked += 1;
    };
    for path in gate::files(&folder.join("manifests"), "yaml") {
        let file = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let recipe = RECIPES.iter().any(|recipe| recipe.file == file);
        for document in published::documents(file) {
            if !recipe {
                same(file, &document, "baseline", "hyperpod-ns-team-a");
            }
            same(file, &document, "baseline", "hyperpod-ns-team-b");
        }
    }
    for level in ["baseline", "restricted"] {
        for path in gate::files(&folder.join("pod-security").join(level).join("fail"), "yaml") {
            for pod in gate::documents(&gate::read(&path)) {
                same(&path.display().to_string(), &pod, level, "hyperpod-ns-team-a");
                let template = json!({"metadata": pod["metadata"], "spec": pod["spec"]});
                let job = json!({
                    "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template},
                });
                same(&path.display().to_string(), &job, level, "hyperpod-ns-team-a");
            }
        }
    }
    gate::say(&format!("{asked} objects answered as without the exceptions"));
    assert!(asked > 200, "{asked}");
}

// --------------------------------------------------------------------------------------------------------- helpers

const BEFORE: &str = "2027-02-28T23:59:59Z";
const BOB: &str = "permissionSet: TeamB_ML, username: 'team-b:{{SessionName}}'";
const AFTER: &str = "2027-03-01T00:00:00Z";

/// Name and file of each exception that is shipped.
fn exceptions() -> Vec<(String, SourceFile)> {
    let named = |file: SourceFile| {
        let name = file.path.strip_prefix(NAMED.0)?.strip_suffix(NAMED.1)?.to_owned();
        Some((name, file))
    };
    examples().into_iter().filter_map(named).collect()
}

fn policies<'a>(exceptions: impl IntoIterator<Item = &'a (String, SourceFile)>) -> Arc<Policies> {
    let files =
        starter_files().into_iter().chain(exceptions.into_iter().map(|(_, file)| file.clone())).collect::<Vec<_>>();
    Arc::new(Policies::load(&starter_schema(), &files).expect("to load"))
}

/// Who refuses the workload of a recipe, and the pods that its controller makes.
fn pods_refused_by(recipe: &Recipe, level: &str, policies: &Arc<Policies>, now: &str) -> BTreeSet<String> {
    let documents = published::documents(recipe.file);
    let root =
        documents.iter().find(|document| document["kind"] != "Service" && !is_helper(document)).expect("a workload");
    let mut gate = gate_of(level, policies, now);
    let admitted = gate.create(&placed(root, "hyperpod-ns-team-a"), &alice());
    let mut refused_by: BTreeSet<String> = admitted.refused_by().into_iter().collect();
    let workload = admitted.evaluation.workload.clone().expect("a workload");
    let mut owner = admitted.object.clone();
    if !admitted.is_allowed() {
        owner["metadata"]["uid"] = json!("slipped-in");
        gate.store(owner.clone());
    }
    for template in &workload.templates {
        let template = owner.pointer(&template.pointer).expect("a template").clone();
        let parent = if owner["kind"] == "Deployment" { replica_set(&mut gate, &owner) } else { owner.clone() };
        let pod = child("v1", "Pod", &parent, &template);
        refused_by.extend(gate.create(&pod, &controller(&parent)).refused_by());
    }
    refused_by
}

fn replica_set(gate: &mut Gate, deployment: &Value) -> Value {
    let mut set = child("apps/v1", "ReplicaSet", deployment, &deployment["spec"]["template"]);
    set["metadata"]["name"] = json!("set");
    set["metadata"]["uid"] = json!("of-the-set");
    gate.store(set.clone());
    set
}

/// The etcd beside a Neuron job, which needs nothing.
fn is_helper(document: &Value) -> bool {
    document["metadata"]["name"] == "etcd"
}

fn submitted(object: &Value, level: &str, namespace: &str, policies: &Arc<Policies>, now: &str) -> Admitted {
    let member = if namespace.ends_with("team-b") { bob() } else { alice() };
    gate_of(level, policies, now).create(&placed(object, namespace), &member)
}

fn alice() -> UserInfo {
    sample("01-sso-teama-default-username")
}

fn bob() -> UserInfo {
    sample("02-sso-teamb-custom-username-sessionname")
}

fn placed(object: &Value, namespace: &str) -> Value {
    let mut object = object.clone();
    object["metadata"]["namespace"] = json!(namespace);
    object
}

/// Alice's team and Bob's have whatever the recipes name and a team file can give.
fn gate_of(level: &str, policies: &Arc<Policies>, now: &str) -> Gate {
    let team = |name: &str, member: &str| {
        format!(
            "{{apiVersion: cedargate.dev/v1alpha1, kind: Team, metadata: {{name: {name}}}, spec: {{
              namespaces: [hyperpod-ns-{name}], level: {level}, members: [{{{member}}}],
              claims: [fsx-claim, fsx-pvc-hyperpod-ns-team-a], serviceAccounts: [default, sagemaker-mlflow-sa],
              queue: hyperpod-ns-training-team-localqueue, priorityClasses: [training-priority],
              quota: {{limit: {{nvidia.com/gpu: 4096, aws.amazon.com/neuron: 4096}}}}}}}}"
        )
    };
    let (a, b) = (team("team-a", "permissionSet: TeamA"), team("team-b", BOB));
    let teams = Teams::parse([("team-a.yaml", a.as_str()), ("team-b.yaml", b.as_str())]).expect("teams");
    let snapshot = Snapshot { policies: Arc::clone(policies), ..gate::snapshot(teams) };
    Gate::at(snapshot, now.parse().expect("a time"))
}

fn controller(owner: &Value) -> UserInfo {
    match owner["kind"].as_str().unwrap_or_default() {
        "ReplicaSet" => service_account("kube-system", "replicaset-controller"),
        "PyTorchJob" => service_account("kubeflow", "training-operator"),
        "MPIJob" => service_account("mpi-operator", "mpi-operator"),
        "HyperPodPyTorchJob" => service_account("aws-hyperpod", "hp-training-operator-controller-manager"),
        other => unreachable!("who makes the pods of a {other}?"),
    }
}

fn child(api_version: &str, kind: &str, owner: &Value, template: &Value) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind, "spec": template["spec"],
        "metadata": {
            "generateName": "made-", "namespace": owner["metadata"]["namespace"],
            "labels": template["metadata"]["labels"], "annotations": template["metadata"]["annotations"],
            "ownerReferences": [{
                "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"], "controller": true,
            }],
        },
    })
}
