//! Kubernetes' own fixtures of the Pod Security Standards through the starter policies. What a level refuses is refused to a
//! team of that level by the policy about the control that the file's name gives, and nothing good is refused by a policy
//! about hosts, privileges or Pod Security: as a pod, and in the template of a Job, a PyTorchJob and a Deployment, which Pod
//! Security admission would let in, to fail their pods later.
//!
//! Loading policies recurses deeply; run with `RUST_MIN_STACK=16777216`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use engine::team::Teams;
use serde_json::{Value, json};
use tests::gate::{self, Admitted, Gate, sample};

/// The control in a file's name, and the policy about it.
const SUBJECTS: [(&str, &str); 18] = [
    ("allowprivilegeescalation", "restricted-no-escalation"),
    ("apparmorprofile", "apparmor-stays-on"),
    ("capabilities_baseline", "no-privileged"),
    ("capabilities_restricted", "restricted-drops-capabilities"),
    ("hostnamespaces", "no-host-namespaces"),
    ("hostpathvolumes", "volume-kinds"),
    ("hostports", "no-host-ports"),
    ("hostprobesandhostlifecycle", "no-host-probes"),
    ("privileged", "no-privileged"),
    ("procmount", "proc-stays-masked"),
    ("restrictedvolumes", "restricted-volume-kinds"),
    ("runasnonroot", "restricted-non-root"),
    ("runasuser", "restricted-uid-not-zero"),
    ("seccompprofile_baseline", "seccomp-stays-on"),
    ("seccompprofile_restricted", "restricted-sets-seccomp"),
    ("selinuxoptions", "selinux-labels-of-containers"),
    ("sysctls", "safe-sysctls-only"),
    ("windowshostprocess", "no-windows-host-processes"),
];

/// None of whose policies may refuse a good pod; nor may `volume-kinds`.
const FILES_ABOUT_PODS: [&str; 2] = ["host.cedar", "pod-security.cedar"];

const LEVELS: [&str; 2] = ["baseline", "restricted"];
const KINDS: [&str; 4] = ["Pod", "Job", "PyTorchJob", "Deployment"];

#[test]
fn what_a_level_refuses_is_refused_by_the_policy_for_it() {
    let files = fixtures("fail");
    let mut seen = BTreeSet::new();
    for (level, path) in &files {
        let (control, policy) = subject(path);
        seen.insert(control);
        for kind in KINDS {
            let refused_by = admit(level, kind, path).refused_by();
            let name = stem(path);
            assert!(refused_by.iter().any(|id| id == policy), "{level} {name} as {kind}: {refused_by:?}, not {policy}");
        }
    }
    let counts = LEVELS.map(|level| files.iter().filter(|(of, _)| *of == level).count());
    assert_eq!(counts, [27, 47], "files of each level");
    assert_eq!(seen.len(), SUBJECTS.len(), "controls");
    let [baseline, restricted] = counts;
    gate::say(&format!(
        "refused: {baseline} baseline and {restricted} restricted files, of {} controls, each as {KINDS:?}",
        seen.len()
    ));
}

#[test]
fn what_a_level_admits_is_refused_by_no_policy_about_pods() {
    let policies = gate::policies();
    let infos = policies.infos().iter().filter(|info| FILES_ABOUT_PODS.contains(&info.file.as_str()));
    let about_pods: BTreeSet<&str> = infos.map(|info| info.id.as_str()).chain(["volume-kinds"]).collect();
    assert!(SUBJECTS.iter().all(|(_, policy)| about_pods.contains(policy)), "{about_pods:?}");
    let files = fixtures("pass");
    for (level, path) in &files {
        for kind in KINDS {
            let refused_by = admit(level, kind, path).refused_by();
            let wrongly: Vec<_> = refused_by.iter().filter(|id| about_pods.contains(id.as_str())).collect();
            assert_eq!(wrongly, Vec::<&String>::new(), "{level} {} as {kind}", stem(path));
        }
    }
    let counts = LEVELS.map(|level| files.iter().filter(|(of, _)| *of == level).count());
    assert_eq!(counts, [12, 12], "files of each level");
    let [baseline, restricted] = counts;
    gate::say(&format!(
        "admitted: {baseline} baseline and {restricted} restricted files, by {} policies, each as {KINDS:?}",
        about_pods.len()
    ));
}

/// Level baseline does not ask what only restricted asks, and what baseline asks is asked of every team.
#[test]
fn levels_are_levels() {
    for (level, path) in fixtures("fail") {
        let (_, policy) = subject(&path);
        let other = if level == "baseline" { "restricted" } else { "baseline" };
        let refused = admit(other, "Pod", &path).refused_by().iter().any(|id| id == policy);
        assert_eq!(refused, !policy.starts_with("restricted-"), "{level} {} at {other}", stem(&path));
    }
}

fn subject(path: &Path) -> (&'static str, &'static str) {
    let control = stem(path).trim_end_matches(|c: char| c.is_ascii_digit());
    let subject = SUBJECTS.into_iter().find(|(known, _)| *known == control);
    subject.unwrap_or_else(|| unreachable!("{control}: a control that SUBJECTS does not know"))
}

/// Alice creates it in the namespace of a team of this level, which offers nothing that the gate would put in.
fn admit(level: &str, kind: &str, path: &Path) -> Admitted {
    let team = format!(
        "{{apiVersion: cedargate.dev/v1alpha1, kind: Team, metadata: {{name: team-a}},
          spec: {{namespaces: [hyperpod-ns-team-a], level: {level}, members: [{{permissionSet: TeamA}}]}}}}"
    );
    let mut object = wrapped(kind, pod(path));
    object["metadata"]["namespace"] = json!("hyperpod-ns-team-a");
    let teams = Teams::parse([("team-a.yaml", team.as_str())]).expect("a team");
    Gate::new(gate::snapshot(teams)).create(&object, &sample("01-sso-teama-default-username"))
}

fn wrapped(kind: &str, pod: Value) -> Value {
    let template = json!({"metadata": pod["metadata"], "spec": pod["spec"]});
    let metadata = json!({"name": "wrapped"});
    match kind {
        "Pod" => pod,
        "Job" => json!({
            "apiVersion": "batch/v1", "kind": kind, "metadata": metadata, "spec": {"template": template},
        }),
        "PyTorchJob" => json!({
            "apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": metadata,
            "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template}}},
        }),
        "Deployment" => json!({
            "apiVersion": "apps/v1", "kind": kind, "metadata": metadata,
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "wrapped"}}, "template": template},
        }),
        other => unreachable!("no template of a {other}"),
    }
}

/// The fixtures of both levels, with their level.
fn fixtures(outcome: &str) -> Vec<(&'static str, PathBuf)> {
    let folder = gate::repository().join("webhook/engine/testdata/pod-security");
    let of_level =
        |level| gate::files(&folder.join(level).join(outcome), "yaml").into_iter().map(move |path| (level, path));
    let fixtures: Vec<_> = LEVELS.into_iter().flat_map(of_level).collect();
    assert!(!fixtures.is_empty());
    fixtures
}

fn pod(path: &Path) -> Value {
    gate::documents(&gate::read(path)).into_iter().next().unwrap_or_else(|| unreachable!("{}", path.display()))
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}
