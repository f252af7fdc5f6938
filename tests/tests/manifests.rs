//! What the field publishes, as a member of a team submits it. Every document goes through both webhooks under the starter
//! policies, and where it runs pods, so does what its controllers make of it: each step down to a pod of every template.
//!
//! A file's snapshot is for reading: each refusal must name something dangerous, or something that the team file does not
//! declare, with a hint that helps whoever wrote the manifest.
//!
//! Loading policies recurses deeply; run with `RUST_MIN_STACK=16777216`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use engine::amounts::Amounts;
use engine::facts::{Bound, PodTemplate, Workload};
use engine::judge::Judged;
use engine::review::UserInfo;
use engine::stamp;
use engine::verdict::Refusal;
use engine::vocabulary::Action;
use serde_json::{Map, Value, json};
use tests::gate::{self, Admitted, Gate, sample, service_account};
use tests::published::filled_in;

const NAMESPACE: &str = "hyperpod-ns-team-a";

#[test]
fn every_published_manifest() {
    let files = gate::files(&gate::repository().join("webhook/engine/testdata/manifests"), "yaml");
    assert_eq!(files.len(), 30);
    for path in files {
        let file = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let mut gate = Gate::new(gate::snapshot(gate::starter_teams()));
        let documents = gate::documents(&filled_in(file, &gate::read(&path)));
        let report: Vec<String> = documents.iter().map(|document| submitted(&mut gate, document)).collect();
        insta::assert_snapshot!(file.trim_end_matches(".yaml"), report.join("\n"));
    }
}

/// Alice's submission, and what follows from it.
fn submitted(gate: &mut Gate, document: &Value) -> String {
    let alice = sample("01-sso-teama-default-username");
    let admitted = gate.create(&placed(document), &alice);
    let mut report = describe(&admitted);
    let Some(workload) = admitted.evaluation.workload.clone() else { return report };
    let root = match admitted.is_allowed() {
        true => admitted.object.clone(),
        // As if it had slipped in: what its pods would meet.
        false => {
            let mut object = admitted.object.clone();
            object["metadata"]["uid"] = json!("slipped-in");
            object["metadata"]["name"] = json!(admitted.record.name.trim_end_matches('*'));
            gate.store(object.clone());
            object
        }
    };
    if root["kind"] == "Pod" {
        return report;
    }
    for template in &workload.templates {
        report.push_str(&made(gate, &admitted, &root, &workload, template));
    }
    report
}

/// In Alice's namespace, unless it lives in none.
fn placed(document: &Value) -> Value {
    let mut object = document.clone();
    if gate::review(&object, &UserInfo::default()).namespace.is_some() {
        object["metadata"]["namespace"] = json!(NAMESPACE);
    }
    object
}

// -------------------------------------------------------------------------------------------- what controllers make

/// Who makes the next object below one of a kind, and its apiVersion and kind.
fn next_below(kind: &str) -> (UserInfo, &'static str, &'static str) {
    let kube = |name| service_account("kube-system", name);
    let inference = || service_account("hyperpod-inference-system", "hyperpod-inference-operator-controller-manager");
    match kind {
        "CronJob" => (kube("cronjob-controller"), "batch/v1", "Job"),
        "Job" => (kube("job-controller"), "v1", "Pod"),
        "Deployment" => (kube("deployment-controller"), "apps/v1", "ReplicaSet"),
        "ReplicaSet" => (kube("replicaset-controller"), "v1", "Pod"),
        "StatefulSet" => (kube("statefulset-controller"), "v1", "Pod"),
        "PyTorchJob" => (service_account("kubeflow", "training-operator"), "v1", "Pod"),
        "MPIJob" => (service_account("mpi-operator", "mpi-operator"), "v1", "Pod"),
        "HyperPodPyTorchJob" => {
            (service_account("aws-hyperpod", "hp-training-operator-controller-manager"), "v1", "Pod")
        }
        "RayJob" | "RayService" => (service_account("kuberay-operator", "kuberay-operator"), "ray.io/v1", "RayCluster"),
        "RayCluster" => (service_account("kuberay-operator", "kuberay-operator"), "v1", "Pod"),
        "JobSet" => (service_account("jobset-system", "jobset-controller-manager"), "batch/v1", "Job"),
        "LeaderWorkerSet" => (service_account("lws-system", "lws-controller-manager"), "apps/v1", "StatefulSet"),
        "InferenceEndpointConfig" | "JumpStartModel" => (inference(), "apps/v1", "Deployment"),
        "Workspace" => {
            (service_account("jupyter-k8s-system", "jupyter-k8s-controller-manager"), "apps/v1", "Deployment")
        }
        other => unreachable!("who makes the children of a {other}?"),
    }
}

/// One pod of a template, and everything on the way down to it. Each step is allowed if the root was, and repeats its stamp.
fn made(gate: &mut Gate, root: &Admitted, object: &Value, workload: &Workload, template: &PodTemplate) -> String {
    let pod_template = pod_template(object, workload, template);
    let mut owner = object.clone();
    let mut report = String::new();
    loop {
        let (controller, api_version, kind) = next_below(owner["kind"].as_str().unwrap_or_default());
        let child = gate.create(&child(&owner, api_version, kind, &pod_template), &controller);
        writeln!(report, "  {kind} of {}: {}", pointer(template), told(&child)).expect("a string");
        check_child(root, object, &child, template);
        if kind == "Pod" {
            return report;
        }
        owner = child.object.clone();
        if !child.is_allowed() {
            owner["metadata"]["uid"] = json!(format!("slipped-in-{kind}"));
            gate.store(owner.clone());
        }
    }
}

fn child(owner: &Value, api_version: &str, kind: &str, template: &Value) -> Value {
    let meta = &owner["metadata"];
    let mut metadata = json!({
        "generateName": format!("{}-", meta["name"].as_str().unwrap_or_default()),
        "namespace": NAMESPACE,
        "labels": template["metadata"]["labels"],
        "annotations": template["metadata"]["annotations"],
        "ownerReferences": [{
            "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"],
            "controller": true, "blockOwnerDeletion": true,
        }],
    });
    // Jupyter's operator copies what stands on the Space down to the pod.
    if owner["kind"] == "Workspace" {
        for list in ["labels", "annotations"] {
            metadata[list] = meta[list].clone();
        }
    }
    let spec = match kind {
        "Pod" => template["spec"].clone(),
        "RayCluster" => [&owner["spec"]["rayClusterSpec"], &owner["spec"]["rayClusterConfig"]]
            .into_iter()
            .find(|spec| spec.is_object())
            .cloned()
            .unwrap_or_default(),
        _ => json!({"replicas": 1, "template": template}),
    };
    json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})
}

/// The template as the object holds it; where its operator makes one up, what the facts say of it.
fn pod_template(object: &Value, workload: &Workload, template: &PodTemplate) -> Value {
    if !template.synthetic {
        return object.pointer(&template.pointer).cloned().expect("facts point into the object");
    }
    let mut volumes = object["spec"]["kubernetes"]["volumes"].as_array().cloned().unwrap_or_default();
    for volume in &template.volumes {
        if !volumes.iter().any(|known| known["name"] == volume.name.as_str()) {
            let claim = volume.source.clone().unwrap_or_else(|| {
                format!("workspace-{}-pvc", object["metadata"]["name"].as_str().unwrap_or_default())
            });
            volumes.push(json!({"name": volume.name, "persistentVolumeClaim": {"claimName": claim}}));
        }
    }
    let containers: Vec<Value> = template
        .containers
        .iter()
        .map(|container| {
            let mounts: Vec<_> =
                container.mounts.iter().map(|mount| json!({"name": mount.volume, "mountPath": mount.path})).collect();
            let amounts: Map<String, Value> =
                container.amounts.iter().map(|(name, amount)| (name.to_string(), json!(amount.to_string()))).collect();
            let image = object.pointer(&format!("{}/image", container.pointer)).cloned();
            json!({
                "name": container.name, "image": image.unwrap_or_else(|| json!("public.ecr.aws/sagemaker/endpoint:1")),
                "resources": {"limits": amounts, "requests": amounts}, "volumeMounts": mounts,
            })
        })
        .collect();
    let account = workload.service_account.clone();
    json!({"metadata": {"labels": {"app": "made"}}, "spec": {
        "serviceAccountName": account, "containers": containers, "volumes": volumes,
    }})
}

/// Below an allowed root everything is allowed, repeats its stamp and is charged to it. What a refused root was refused for
/// because of a template, a pod of that template is refused for as well.
fn check_child(root: &Admitted, object: &Value, child: &Admitted, template: &PodTemplate) {
    let name = format!("{} below {} `{}`", child.object["kind"], object["kind"], root.record.name);
    if root.is_allowed() {
        assert!(child.is_allowed(), "{name}: {}", child.message.clone().unwrap_or_default());
    }
    if child.object["kind"] != "Pod" {
        return;
    }
    let stamp = |object: &Value| object["metadata"]["annotations"][stamp::SUBMITTED_BY].clone();
    assert_eq!(stamp(&child.object), stamp(object), "{name}");
    let (of_root, of_pod) = (refusing(root, &template.pointer), refusing(child, ""));
    assert!(of_root.is_subset(&of_pod), "{name}: the root was refused by {of_root:?}, the pod by {of_pod:?}");
    if let Some(reservation) = &child.evaluation.reservation {
        assert_eq!(Some(reservation.root.as_str()), object["metadata"]["uid"].as_str(), "{name}");
    }
}

/// The policies that refuse something of the template at this pointer.
fn refusing(admitted: &Admitted, pointer: &str) -> BTreeSet<String> {
    let of_template = |judged: &&Judged| {
        let question = &judged.asked.question;
        let takes = [Action::Schedule, Action::Run, Action::Mount].contains(&question.action);
        takes && AsRef::<str>::as_ref(question.resource.id()).starts_with(pointer)
    };
    let refusals = admitted.evaluation.judged.iter().filter(of_template).flat_map(Judged::refusals);
    refusals.map(|refusal| refusal.policy.unwrap_or(refusal.message)).collect()
}

// ------------------------------------------------------------------------------------------------------- the report

fn describe(admitted: &Admitted) -> String {
    let mut report = format!(
        "{} {} in {}: {}\n",
        admitted.object["kind"].as_str().unwrap_or_default(),
        admitted.record.name,
        admitted.record.namespace.as_deref().unwrap_or("the cluster"),
        if admitted.is_allowed() { "ALLOWED" } else { "REFUSED" },
    );
    if let Some(workload) = &admitted.evaluation.workload {
        writeln!(report, "  accelerators: {}", demand(workload)).expect("a string");
    }
    for Refusal { reason, message, hint, policy } in admitted.refusals() {
        let by = policy.clone().unwrap_or_else(|| json!(reason).as_str().unwrap_or_default().to_owned());
        writeln!(report, "  - [{by}] {message}").expect("a string");
        if let Some(hint) = hint {
            writeln!(report, "      {hint}").expect("a string");
        }
    }
    for warning in &admitted.warnings {
        writeln!(report, "  warning: {warning}").expect("a string");
    }
    report.push_str(&injected(admitted));
    report
}

fn told(child: &Admitted) -> String {
    match child.is_allowed() {
        false => format!("refused by {}", child.refused_by().join(", ")),
        true => {
            let reservation = child.evaluation.reservation.as_ref();
            let reserved = reservation.map(|reservation| amounts_text(reservation.adds.amounts()));
            let reserved = reserved.map(|amounts| format!(", {amounts} charged to the root")).unwrap_or_default();
            format!("allowed{reserved}\n{}", injected(child)).trim_end().to_owned()
        }
    }
}

/// Where the patch adds something; a list that grows by several is named once.
fn injected(admitted: &Admitted) -> String {
    let mut paths: Vec<(String, usize)> = Vec::new();
    for path in admitted.patch.iter().map(engine::patch::Operation::path) {
        match paths.iter_mut().find(|(known, _)| known == path) {
            Some((_, times)) => *times += 1,
            None => paths.push((path.to_owned(), 1)),
        }
    }
    let times = |(path, times): &(String, usize)| match times {
        1 => format!("    + {path}\n"),
        times => format!("    + {path} ({times} times)\n"),
    };
    paths.iter().map(times).collect()
}

fn demand(workload: &Workload) -> String {
    let floor = amounts_text(&workload.demand.floor);
    match &workload.demand.ceiling {
        Bound::AtMost(most) if most == &workload.demand.floor => floor,
        Bound::AtMost(most) => format!("{floor}, at most {}", amounts_text(most)),
        Bound::Unbounded { .. } => format!("{floor}, without bound"),
    }
}

fn amounts_text(amounts: &Amounts) -> String {
    let each: Vec<String> = amounts.iter().map(|(name, amount)| format!("{amount} {name}")).collect();
    if each.is_empty() { "none".to_owned() } else { each.join(" and ") }
}

fn pointer(template: &PodTemplate) -> &str {
    if template.pointer.is_empty() { "/" } else { &template.pointer }
}

#[test]
fn the_copies_are_complete() {
    let folder = gate::repository().join("webhook/engine/testdata/manifests");
    let readme = gate::read(Path::new(&folder).join("README.md").as_path());
    for path in gate::files(&folder, "yaml") {
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        assert!(readme.contains(&format!("| {file} |")), "{file}: where is it from, and under which licence?");
    }
}
