//! Kubernetes' own fixtures of the Pod Security Standards through the starter policies: a team that is held to a level is
//! refused what the level refuses, by a policy whose subject is the control that the file's name gives; and nothing of a
//! level's good pods is refused by a policy about hosts, privileges or Pod Security.
//!
//! Loading policies recurses deeply; run with `RUST_MIN_STACK=16777216`.

use std::path::{Path, PathBuf};

use engine::team::Teams;
use serde_json::{Value, json};
use tests::gate::{self, Admitted, Gate, sample};

/// The start of a file's name, and the policy that must refuse it.
const SUBJECTS: &[(&str, &str)] = &[
    ("allowprivilegeescalation", "pod-security-restricted"),
    ("apparmorprofile", "pod-security-baseline"),
    ("capabilities_baseline", "no-privileged"),
    ("capabilities_restricted", "pod-security-restricted"),
    ("hostnamespaces", "no-host-namespaces"),
    ("hostpathvolumes", "volume-kinds"),
    ("hostports", "pod-security-baseline"),
    ("hostprobesandhostlifecycle", "pod-security-baseline"),
    ("privileged", "no-privileged"),
    ("procmount", "pod-security-baseline"),
    ("restrictedvolumes", "volume-kinds"),
    ("runasnonroot", "pod-security-restricted"),
    ("runasuser", "pod-security-restricted"),
    ("seccompprofile_baseline", "pod-security-baseline"),
    ("seccompprofile_restricted", "pod-security-restricted"),
    ("selinuxoptions", "pod-security-baseline"),
    ("sysctls", "pod-security-baseline"),
    ("windowshostprocess", "pod-security-baseline"),
];

/// Policies about the same subjects, none of which may refuse a good pod.
const ABOUT_PODS: [&str; 6] = [
    "no-host-namespaces",
    "no-privileged",
    "pod-security-baseline",
    "pod-security-restricted",
    "volume-kinds",
    "nothing-unknown",
];

const LEVELS: [&str; 2] = ["baseline", "restricted"];

#[test]
fn what_a_level_refuses_is_refused_by_the_policy_for_it() {
    for (level, path) in fixtures("fail") {
        let name = stem(&path);
        let subject = SUBJECTS.iter().find(|(prefix, _)| name.starts_with(prefix));
        let (_, policy) = subject.unwrap_or_else(|| unreachable!("{name}: a control that SUBJECTS does not know"));
        let refused_by = admit(level, &path).refused_by();
        assert!(refused_by.iter().any(|id| id == policy), "{level} {name}: refused by {refused_by:?}, not {policy}");
    }
}

#[test]
fn what_a_level_admits_is_refused_by_no_policy_about_pods() {
    for (level, path) in fixtures("pass") {
        let refused_by = admit(level, &path).refused_by();
        let wrongly: Vec<_> = refused_by.iter().filter(|id| ABOUT_PODS.contains(&id.as_str())).collect();
        assert_eq!(wrongly, Vec::<&String>::new(), "{level} {}", stem(&path));
    }
}

/// Level baseline does not ask what only restricted asks.
#[test]
fn a_baseline_team_is_not_held_to_restricted() {
    let only_restricted = [
        "allowprivilegeescalation",
        "capabilities_restricted",
        "runasnonroot",
        "runasuser",
        "seccompprofile_restricted",
    ];
    let files = fixtures("fail").into_iter().filter(|(level, path)| {
        *level == "restricted" && only_restricted.iter().any(|prefix| stem(path).starts_with(prefix))
    });
    for (_, path) in files {
        let refused_by = admit("baseline", &path).refused_by();
        assert!(!refused_by.iter().any(|id| id == "pod-security-restricted"), "{}: {refused_by:?}", stem(&path));
    }
}

/// The same pod in a Job's template: Pod Security admission would let the Job in and fail its pods.
#[test]
fn templates_are_judged_as_their_pods_are() {
    for (level, path) in fixtures("fail") {
        let pod = pod(&path);
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"},
            "spec": {"template": {"metadata": pod["metadata"], "spec": pod["spec"]}},
        });
        let (of_job, of_pod) = (admit_object(level, job).refused_by(), admit(level, &path).refused_by());
        let missing: Vec<_> =
            of_pod.iter().filter(|id| ABOUT_PODS.contains(&id.as_str()) && !of_job.contains(id)).collect();
        assert_eq!(missing, Vec::<&String>::new(), "{level} {}", stem(&path));
    }
}

fn admit(level: &str, path: &Path) -> Admitted {
    admit_object(level, pod(path))
}

/// Alice creates it in the namespace of a team of this level, which offers nothing that the gate would put in.
fn admit_object(level: &str, mut object: Value) -> Admitted {
    let team = format!(
        "{{apiVersion: cedargate.dev/v1alpha1, kind: Team, metadata: {{name: team-a}},
          spec: {{namespaces: [hyperpod-ns-team-a], level: {level}, members: [{{permissionSet: TeamA}}]}}}}"
    );
    object["metadata"]["namespace"] = json!("hyperpod-ns-team-a");
    let teams = Teams::parse([("team-a.yaml", team.as_str())]).expect("a team");
    Gate::new(gate::snapshot(teams)).create(&object, &sample("01-sso-teama-default-username"))
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
