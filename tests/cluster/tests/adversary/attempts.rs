//! The table: what is tried, as whom, and which policy refuses it. Sections follow the escape table and the lists of bypasses.

use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use cluster::{NODE, TEAM_A, TEAM_B, manifests};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::calls::{Call, connect, create, create_in, patch, with};
use crate::{
    Answer::{self, Gate as Refused, Nobody, Rbac},
    Attempt,
    Who::{self, Alice, Amir, Bob, Eve, Inside, Minted},
};

pub(crate) fn attempts() -> Vec<Attempt> {
    let sections = [
        host(),
        pod_security(),
        restricted(),
        every_kind(),
        volumes(),
        ids(),
        placement(),
        devices(),
        credentials(),
        tokens(),
        others_work(),
        stamps(),
        into_pods(),
        claims(),
        rights(),
        objects(),
        queueing(),
        what_others_start_from(),
        endpoints(),
        amounts(),
        elsewhere(),
        left_to_rbac(),
    ];
    sections.into_iter().flatten().collect()
}

fn attempt(what: &str, who: Who, call: Call, answer: Answer) -> Attempt {
    Attempt { what: what.to_owned(), who, call, answer }
}

/// Each a name, what differs from a harmless pod of alice's, and who refuses it.
fn pods<const COUNT: usize>(rows: [(&str, &str, Value, &'static str); COUNT]) -> Vec<Attempt> {
    let row = |(what, path, value, policies): (&str, &str, Value, &'static str)| {
        attempt(what, Alice, create(&with(pod(what), path, value)), Refused(policies))
    };
    rows.into_iter().map(row).collect()
}

/// A harmless pod, whose name is made of what is tried with it.
fn pod(what: &str) -> Value {
    manifests::pod(&name_of(what))
}

fn name_of(what: &str) -> String {
    let name: String =
        what.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    name.chars().take(50).collect::<String>().trim_matches('-').to_owned()
}

/// With a volume that the container mounts.
fn mounting(what: &str, source: Value, mount: Value) -> Value {
    let mut volume = json!({ "name": "v" });
    merge(&mut volume, source);
    let mut mounted = json!({ "name": "v", "mountPath": "/v" });
    merge(&mut mounted, mount);
    with(with(pod(what), "/spec/volumes", json!([volume])), "/spec/containers/0/volumeMounts", json!([mounted]))
}

fn merge(object: &mut Value, more: Value) {
    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
    }
}

fn env(name: &str, value: &str) -> Value {
    json!([{ "name": name, "value": value }])
}

const CONTAINER: &str = "/spec/containers/0/securityContext";

// ---------------------------------------------------------------------------------------- the node and the kernel

fn host() -> Vec<Attempt> {
    pods([
        ("the node's network", "/spec/hostNetwork", true.into(), "no-host-namespaces"),
        ("the node's processes", "/spec/hostPID", true.into(), "no-host-namespaces"),
        ("the node's IPC", "/spec/hostIPC", true.into(), "no-host-namespaces"),
        (
            "a port of the node",
            "/spec/containers/0/ports",
            json!([{ "containerPort": 80, "hostPort": 80 }]),
            "no-host-ports",
        ),
        ("a privileged container", CONTAINER, json!({ "privileged": true }), "no-privileged"),
        (
            "a privileged init container",
            "/spec/initContainers",
            json!([{ "name": "i", "image": manifests::IMAGE, "securityContext": { "privileged": true } }]),
            "no-privileged",
        ),
        (
            "CAP_SYS_ADMIN, to mount file systems",
            CONTAINER,
            json!({ "capabilities": { "add": ["SYS_ADMIN"] } }),
            "no-privileged",
        ),
        (
            "a probe that another host answers",
            "/spec/containers/0/livenessProbe",
            json!({ "httpGet": { "host": "169.254.169.254", "port": 80, "path": "/" } }),
            "no-host-probes",
        ),
        (
            "an unsafe sysctl",
            "/spec/securityContext",
            json!({ "sysctls": [{ "name": "kernel.msgmax", "value": "65536" }] }),
            "safe-sysctls-only",
        ),
    ])
}

fn pod_security() -> Vec<Attempt> {
    pods([
        ("no seccomp", CONTAINER, json!({ "seccompProfile": { "type": "Unconfined" } }), "seccomp-stays-on"),
        (
            "no AppArmor, by field",
            CONTAINER,
            json!({ "appArmorProfile": { "type": "Unconfined" } }),
            "apparmor-stays-on",
        ),
        (
            "no AppArmor, by annotation",
            "/metadata/annotations",
            json!({ "container.apparmor.security.beta.kubernetes.io/main": "unconfined" }),
            "apparmor-stays-on",
        ),
        (
            "an SELinux type of its own",
            CONTAINER,
            json!({ "seLinuxOptions": { "type": "spc_t" } }),
            "selinux-labels-of-containers",
        ),
        (
            "a process of the Windows host",
            "/spec",
            json!({
                "hostNetwork": true,
                "os": { "name": "windows" },
                "restartPolicy": "Never",
                "securityContext": { "windowsOptions": { "hostProcess": true } },
                "containers": [{ "name": "main", "image": manifests::IMAGE }],
            }),
            "no-host-namespaces, no-windows-host-processes",
        ),
    ])
}

/// In a team that is held to the stricter level.
fn restricted() -> Vec<Attempt> {
    let rows = [
        (
            "more rights than the process began with",
            "allowPrivilegeEscalation",
            true.into(),
            "own-uid-only, restricted-no-escalation",
        ),
        ("the default capabilities", "capabilities", json!({ "drop": [] }), "restricted-drops-capabilities"),
        ("whichever user the image says", "runAsNonRoot", false.into(), "restricted-non-root"),
        ("root", "runAsUser", 0.into(), "restricted-uid-not-zero"),
        ("no word about seccomp", "seccompProfile", Value::Null, "restricted-sets-seccomp"),
    ];
    let row = |(what, field, value, policies): (&str, &str, Value, &'static str)| {
        let harmless = manifests::in_namespace(with(pod(what), CONTAINER, RESTRICTED.clone()), TEAM_B);
        attempt(what, Bob, create(&with(harmless, &format!("{CONTAINER}/{field}"), value)), Refused(policies))
    };
    rows.into_iter().map(row).collect()
}

/// What the stricter level asks of a container.
pub(crate) static RESTRICTED: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "runAsNonRoot": true,
        "seccompProfile": { "type": "RuntimeDefault" },
    })
});

/// A pod spec that reaches the node's disk, by everything that runs pods.
fn every_kind() -> Vec<Attempt> {
    let spec = |restart: &str| {
        json!({
            "restartPolicy": restart,
            "containers": [{ "name": "main", "image": manifests::IMAGE, "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }],
            "volumes": [{ "name": "v", "hostPath": { "path": "/" } }],
        })
    };
    let template = |restart: &str| json!({ "metadata": { "labels": { "app": "a" } }, "spec": spec(restart) });
    let selector = json!({ "matchLabels": { "app": "a" } });
    let replicas = |restart: &str| json!({ "replicas": 1, "restartPolicy": "Never", "template": template(restart) });
    let head = json!({ "rayStartParams": {}, "template": template("Never") });
    let ray = json!({ "headGroupSpec": head, "workerGroupSpecs": [] });
    let kinds = [
        ("v1", "Pod", spec("Never")),
        ("v1", "ReplicationController", json!({ "selector": { "app": "a" }, "template": template("Always") })),
        ("apps/v1", "Deployment", json!({ "selector": selector, "template": template("Always") })),
        ("apps/v1", "ReplicaSet", json!({ "selector": selector, "template": template("Always") })),
        ("apps/v1", "StatefulSet", json!({ "selector": selector, "serviceName": "a", "template": template("Always") })),
        ("apps/v1", "DaemonSet", json!({ "selector": selector, "template": template("Always") })),
        ("batch/v1", "Job", json!({ "template": template("Never") })),
        (
            "batch/v1",
            "CronJob",
            json!({ "schedule": "0 0 1 1 *", "jobTemplate": { "spec": { "template": template("Never") } } }),
        ),
        ("kubeflow.org/v1", "PyTorchJob", json!({ "pytorchReplicaSpecs": { "Worker": replicas("Never") } })),
        ("kubeflow.org/v2beta1", "MPIJob", json!({ "mpiReplicaSpecs": { "Launcher": replicas("Never") } })),
        (
            "sagemaker.amazonaws.com/v1",
            "HyperPodPyTorchJob",
            json!({ "replicaSpecs": [{ "name": "pod", "replicas": 1, "template": template("Never") }] }),
        ),
        ("ray.io/v1", "RayCluster", ray.clone()),
        ("ray.io/v1", "RayJob", json!({ "entrypoint": "true", "rayClusterSpec": ray })),
        ("ray.io/v1", "RayService", json!({ "rayClusterConfig": ray })),
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            json!({ "replicatedJobs": [{ "name": "a", "replicas": 1, "template": { "spec": { "template": template("Never") } } }] }),
        ),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            json!({ "replicas": 1, "leaderWorkerTemplate": { "size": 1, "workerTemplate": template("Always") } }),
        ),
    ];
    let row = |(version, kind, spec): (&str, &str, Value)| {
        let what = format!("the node's disk, by {kind}");
        let name = name_of(&format!("disk-{kind}"));
        let object = json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec });
        attempt(&what, Alice, create(&object), Refused("volume-kinds"))
    };
    kinds.into_iter().map(row).collect()
}

// ----------------------------------------------------------------------------------------------------- volumes

fn volumes() -> Vec<Attempt> {
    let claim = |name: &str| json!({ "persistentVolumeClaim": { "claimName": name } });
    let claim_template = json!({ "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
    } });
    let rows = [
        ("NFS, inline", json!({ "nfs": { "server": "fs", "path": "/" } }), json!({}), "volume-kinds"),
        (
            "iSCSI, inline",
            json!({ "iscsi": { "targetPortal": "a:1", "iqn": "iqn.2000-01.com.example:a", "lun": 0 } }),
            json!({}),
            "volume-kinds",
        ),
        ("a driver of CSI, inline", json!({ "csi": { "driver": "fsx.csi.aws.com" } }), json!({}), "volume-kinds"),
        ("a flexVolume", json!({ "flexVolume": { "driver": "a/b" } }), json!({}), "volume-kinds"),
        (
            "a claim made with the pod",
            json!({ "ephemeral": { "volumeClaimTemplate": claim_template } }),
            json!({}),
            "volume-kinds",
        ),
        ("a claim that no team file declares", claim("amirs-data"), json!({}), "shared-claims-by-declared-path"),
        ("all homes, by no sub-path", claim("homes"), json!({}), "shared-claims-by-declared-path"),
        ("amir's home, by its sub-path", claim("homes"), json!({ "subPath": "amir" }), "own-home-only"),
        ("part of amir's home", claim("homes"), json!({ "subPath": "amir/.ssh" }), "shared-claims-by-declared-path"),
        (
            "amir's home, by an expression",
            claim("homes"),
            json!({ "subPathExpr": "$(NOBODY)" }),
            "no-sub-path-expressions, shared-claims-by-declared-path",
        ),
        (
            "mounts that the node makes later",
            claim("fsx-pvc-hyperpod-ns-team-a"),
            json!({ "mountPropagation": "HostToContainer" }),
            "mounts-do-not-propagate",
        ),
        (
            "devices in the place of mounts",
            json!({ "emptyDir": {} }),
            json!({ "mountPath": "/var/run/nvidia-container-devices/all" }),
            "gpus-only-by-request",
        ),
    ];
    let row = |(what, source, mount, policies): (&str, Value, Value, &'static str)| {
        attempt(what, Alice, create(&mounting(what, source, mount)), Refused(policies))
    };
    rows.into_iter().map(row).collect()
}

fn ids() -> Vec<Attempt> {
    let home = |what: &str| {
        mounting(what, json!({ "persistentVolumeClaim": { "claimName": "homes" } }), json!({ "subPath": "alice" }))
    };
    let init = |context: Value| {
        json!([{
            "name": "i", "image": manifests::IMAGE, "securityContext": context,
            "volumeMounts": [{ "name": "v", "mountPath": "/v", "subPath": "alice" }],
        }])
    };
    let rows = [
        (
            "amir's uid, for the pod",
            "/spec/securityContext",
            json!({ "runAsUser": 2002, "runAsGroup": 2000 }),
            "own-uid-only",
        ),
        ("amir's uid, for a container", CONTAINER, json!({ "runAsUser": 2002 }), "own-uid-only"),
        ("root, for an init container", "/spec/initContainers", init(json!({ "runAsUser": 0 })), "own-uid-only"),
        ("a group of team B", "/spec/securityContext", json!({ "runAsGroup": 2100 }), "own-uid-only"),
        ("fsGroup of team B", "/spec/securityContext", json!({ "fsGroup": 2100 }), "own-groups-only"),
        (
            "a supplemental group of team B",
            "/spec/securityContext",
            json!({ "supplementalGroups": [2100] }),
            "own-groups-only",
        ),
    ];
    let row = |(what, path, value, policies): (&str, &str, Value, &'static str)| {
        attempt(what, Alice, create(&with(home(what), path, value)), Refused(policies))
    };
    rows.into_iter().map(row).collect()
}

// --------------------------------------------------------------------------------------------- place and devices

fn placement() -> Vec<Attempt> {
    let term = json!({ "matchExpressions": [{ "key": "team", "operator": "In", "values": ["b"] }] });
    let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
    let preferred = json!({ "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1, "preference": term }] });
    let by_name = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
        { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [NODE] }] },
    ] } });
    let repel = |whose: Value| {
        let mut term = json!({ "topologyKey": "topology.kubernetes.io/zone", "labelSelector": {} });
        merge(&mut term, whose);
        json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } })
    };
    let mut attempts = pods([
        (
            "other names for the API server",
            "/spec/hostAliases",
            json!([{ "ip": "10.0.0.1", "hostnames": ["kubernetes.default"] }]),
            "names-resolve-as-the-cluster-says",
        ),
        (
            "the processes of what is added to the pod",
            "/spec/shareProcessNamespace",
            true.into(),
            "no-shared-processes",
        ),
        ("a node by its name", "/spec/nodeName", NODE.into(), "scheduler-decides"),
        ("a scheduler of its own", "/spec/schedulerName", "mine".into(), "scheduler-decides"),
        ("another runtime", "/spec/runtimeClassName", "other".into(), "scheduler-decides"),
        (
            "nodes of another team, by selector",
            "/spec/nodeSelector",
            json!({ "team": "b" }),
            "placement-by-allowed-labels",
        ),
        (
            "nodes of another team, by affinity",
            "/spec/affinity",
            json!({ "nodeAffinity": required }),
            "placement-by-allowed-labels",
        ),
        (
            "nodes of another team, by preference",
            "/spec/affinity",
            json!({ "nodeAffinity": preferred }),
            "placement-by-allowed-labels",
        ),
        (
            "a node by affinity to its name",
            "/spec/affinity",
            json!({ "nodeAffinity": by_name }),
            "placement-by-allowed-labels",
        ),
        (
            "all pods of a zone kept away, by namespaces",
            "/spec/affinity",
            repel(json!({ "namespaces": [TEAM_B] })),
            "others-are-not-kept-away",
        ),
        (
            "all pods of a zone kept away, by a selector",
            "/spec/affinity",
            repel(json!({ "namespaceSelector": {} })),
            "others-are-not-kept-away",
        ),
        ("every taint", "/spec/tolerations", json!([{ "operator": "Exists" }]), "tolerations-allowed"),
        (
            "the taint of unhealthy nodes",
            "/spec/tolerations",
            json!([{ "key": "sagemaker.amazonaws.com/node-health-status", "operator": "Exists" }]),
            "tolerations-allowed",
        ),
        (
            "the priority of the cluster's own",
            "/spec/priorityClassName",
            "system-node-critical".into(),
            "not-permitted",
        ),
        (
            "the priority of another team",
            "/spec/priorityClassName",
            "experimentation-priority".into(),
            "things-stay-in-their-team",
        ),
    ]);
    let mirror = json!({ "kubernetes.io/config.mirror": "a" });
    let mirrored = with(with(pod("static"), "/metadata/annotations", mirror), "/spec/nodeName", NODE.into());
    attempts.extend([
        attempt("a static pod", Alice, create(&mirrored), Refused("scheduler-decides")),
        attempt(
            "binds a pod",
            Alice,
            create_in(&format!("{}/alices-pod/binding", pods_path()), &binding("alices-pod")),
            Refused("not-permitted"),
        ),
        attempt("binds a pod, the old way", Alice, create(&binding("alices-pod")), Refused("not-permitted")),
    ]);
    attempts
}

fn devices() -> Vec<Attempt> {
    let claim = json!({
        "restartPolicy": "Never",
        "containers": [{ "name": "main", "image": manifests::IMAGE, "resources": { "claims": [{ "name": "gpu" }] } }],
        "resourceClaims": [{ "name": "gpu", "resourceClaimName": "gpu" }],
    });
    pods([
        (
            "all GPUs of the node, by variable",
            "/spec/containers/0/env",
            env("NVIDIA_VISIBLE_DEVICES", "all"),
            "gpus-only-by-request",
        ),
        (
            "all Neuron devices, by variable",
            "/spec/containers/0/env",
            env("AWS_NEURON_VISIBLE_DEVICES", "ALL"),
            "gpus-only-by-request",
        ),
        ("devices by a claim", "/spec", claim, "no-uncounted-devices"),
        (
            "GPUs in an init container",
            "/spec/initContainers",
            json!([{ "name": "i", "image": manifests::IMAGE, "resources": { "limits": { "nvidia.com/gpu": 1 } } }]),
            "init-containers-take-no-gpus",
        ),
    ])
}

// ------------------------------------------------------------------------------------------- credentials and tokens

fn credentials() -> Vec<Attempt> {
    let projected = |audience: &str| {
        let token = json!({ "serviceAccountToken": { "audience": audience, "path": "token" } });
        json!([{ "name": "mine", "projected": { "sources": [token] } }])
    };
    let mut attempts = pods([
        ("another service account", "/spec/serviceAccountName", "other".into(), "not-permitted"),
        ("another service account, by the old name", "/spec/serviceAccount", "other".into(), "not-permitted"),
        (
            "another role, by variable",
            "/spec/containers/0/env",
            env("AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/b"),
            "no-credentials-by-env",
        ),
        (
            "another token file, by variable",
            "/spec/containers/0/env",
            env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/v/token"),
            "no-credentials-by-env",
        ),
        (
            "no role at all, to get the node's, by label",
            "/metadata/labels",
            json!({ "eks.amazonaws.com/skip-pod-identity-webhook": "true" }),
            "no-way-round-the-role",
        ),
        (
            "no role at all, to get the node's, by annotation",
            "/metadata/annotations",
            json!({ "eks.amazonaws.com/skip-containers": "main" }),
            "no-way-round-the-role",
        ),
        ("a token for STS, projected", "/spec/volumes", projected("sts.amazonaws.com"), "tokens-for-the-cluster-only"),
        (
            "a token for Pod Identity, projected",
            "/spec/volumes",
            projected("pods.eks.amazonaws.com"),
            "tokens-for-the-cluster-only",
        ),
    ]);
    let role =
        json!({ "metadata": { "annotations": { "eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/b" } } });
    attempts.extend([
        attempt(
            "a role for a service account of its own",
            Alice,
            create(&with(
                json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "mine" } }),
                "/metadata/annotations",
                role["metadata"]["annotations"].clone(),
            )),
            Refused("not-permitted"),
        ),
        attempt(
            "another role for the team's service account",
            Alice,
            patch("v1", "ServiceAccount", "team-a", &role),
            Refused("not-permitted"),
        ),
    ]);
    attempts
}

fn tokens() -> Vec<Attempt> {
    let request = |audience: Option<&str>| {
        json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": { "audiences": audience.into_iter().collect::<Vec<_>>(), "expirationSeconds": 3600 },
        })
    };
    let token = |account: &str, audience: Option<&str>| {
        create_in(&format!("/api/v1/namespaces/{TEAM_A}/serviceaccounts/{account}/token"), &request(audience))
    };
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": { "name": "token", "annotations": { "kubernetes.io/service-account.name": "team-a" } },
    });
    vec![
        attempt("a token of the team's service account", Alice, token("team-a", None), Refused("not-permitted")),
        attempt("a token of another service account", Alice, token("other", None), Refused("not-permitted")),
        attempt("a token for STS", Alice, token("team-a", Some("sts.amazonaws.com")), Refused("not-permitted")),
        attempt(
            "a token for Pod Identity",
            Alice,
            token("team-a", Some("pods.eks.amazonaws.com")),
            Refused("not-permitted"),
        ),
        attempt("a Secret that becomes a token", Alice, create(&secret), Refused("not-permitted")),
        attempt("a token, by code in a pod", Inside, token("team-a", None), Refused("not-permitted")),
        attempt(
            "work, by a token without a pod",
            Minted,
            create(&manifests::job("by-a-minted-token")),
            Refused("not-permitted"),
        ),
    ]
}

// --------------------------------------------------------------------------------------------- the work of others

fn others_work() -> Vec<Attempt> {
    let other = "111122223333.dkr.ecr.us-west-2.amazonaws.com/other:1";
    let template = json!([{ "op": "replace", "path": "/spec/template/spec/containers/0/image", "value": other }]);
    let of_a_pod = json!([{ "op": "replace", "path": "/spec/containers/0/image", "value": other }]);
    let scale = json!({ "spec": { "replicas": 3 } });
    let scaled = |version: &str, kind: &str, name: &str| patch(version, kind, name, &scale).below("scale");
    let resize =
        json!({ "spec": { "containers": [{ "name": "main", "resources": { "requests": { "cpu": "20m" } } }] } });
    let owner = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "amirs", "controller": true });
    vec![
        attempt(
            "another image in amir's Deployment",
            Alice,
            patch("apps/v1", "Deployment", "amirs", &template),
            Refused("others-work-is-not-rewritten"),
        ),
        attempt(
            "another image in alice's, by her lead",
            Amir,
            patch("apps/v1", "Deployment", "alices", &template),
            Refused("others-work-is-not-rewritten"),
        ),
        attempt(
            "another image in amir's pod",
            Alice,
            patch("v1", "Pod", "amirs-pod", &of_a_pod),
            Refused("others-work-is-not-rewritten, own-uid-only"),
        ),
        attempt("more of amir's Deployment", Alice, scaled("apps/v1", "Deployment", "amirs"), Refused("not-permitted")),
        attempt(
            "more of amir's StatefulSet",
            Alice,
            scaled("apps/v1", "StatefulSet", "amirs-set"),
            Refused("not-permitted"),
        ),
        attempt(
            "more of amir's training",
            Alice,
            scaled("kubeflow.org/v1", "PyTorchJob", "amirs-training"),
            Refused("not-permitted"),
        ),
        attempt(
            "amir's pod made larger",
            Alice,
            patch("v1", "Pod", "amirs-held", &resize).below("resize").strategic(),
            Refused("not-permitted"),
        ),
        attempt(
            "amir's suspended Job, started",
            Alice,
            patch("batch/v1", "Job", "amirs-waiting", &json!({ "spec": { "suspend": false } })),
            Refused("not-permitted"),
        ),
        attempt(
            "amir's Space, opened to all",
            Alice,
            patch(
                "workspace.jupyter.org/v1alpha1",
                "Workspace",
                "amirs-space",
                &json!({ "spec": { "accessType": "Public" } }),
            ),
            Refused("others-work-is-not-rewritten"),
        ),
        attempt(
            "amir's pod, hung under alice's Deployment",
            Alice,
            patch(
                "v1",
                "Pod",
                "amirs-pod",
                &json!({ "metadata": { "ownerReferences": [with(owner, "/name", "alices".into())] } }),
            ),
            Refused("others-work-is-not-rewritten"),
        ),
    ]
}

fn stamps() -> Vec<Attempt> {
    let stamp = r#"{"team":"team-a","person":"amir.haddad@example.com","permissionSet":"TeamA","account":"111122223333","partition":"aws"}"#;
    let forged = json!({ "cedargate.dev/submitted-by": stamp });
    let by_status = json!({ "metadata": { "annotations": forged } });
    let status = |version: &str, kind: &str, name: &str| patch(version, kind, name, &by_status).below("status");
    let amirs = json!({ "apiVersion": "batch/v1", "kind": "Job", "name": "amirs-waiting", "controller": true });
    let queue = json!({ "metadata": { "labels": { "kueue.x-k8s.io/queue-name": "hyperpod-ns-team-b-localqueue" } } });
    let in_template = with(manifests::job("forged"), "/spec/template/metadata/annotations", forged.clone());
    vec![
        attempt("amir's stamp, in a template", Alice, create(&in_template), Refused("stamp")),
        attempt("amir's stamp, by a Job's status", Alice, status("batch/v1", "Job", "alices-job"), Refused("stamp")),
        attempt("amir's stamp, by a pod's status", Alice, status("v1", "Pod", "alices-pod"), Refused("stamp")),
        attempt(
            "amir's stamp, by a Deployment's status",
            Alice,
            status("apps/v1", "Deployment", "alices"),
            Refused("stamp"),
        ),
        attempt(
            "amir's stamp, by a StatefulSet's status",
            Alice,
            status("apps/v1", "StatefulSet", "alices-set"),
            Refused("stamp"),
        ),
        attempt(
            "a Job hung under amir's, by its status",
            Alice,
            patch("batch/v1", "Job", "alices-job", &json!({ "metadata": { "ownerReferences": [amirs] } }))
                .below("status"),
            Refused("stamp"),
        ),
        attempt(
            "another queue, by a Job's status",
            Alice,
            patch("batch/v1", "Job", "alices-job", &queue).below("status"),
            Refused("stamp"),
        ),
        attempt(
            "amir's stamp, by a CronJob's status",
            Alice,
            status("batch/v1", "CronJob", "alices-nightly"),
            Refused("stamp"),
        ),
    ]
}

fn into_pods() -> Vec<Attempt> {
    let exec = |name: &str| connect(&format!("{}/{name}/exec?command=id&stdout=true", pods_path()));
    let debug = |name: &str, container: Value| {
        let mut debugger = json!({ "name": "debugger", "image": manifests::IMAGE });
        merge(&mut debugger, container);
        patch("v1", "Pod", name, &json!({ "spec": { "ephemeralContainers": [debugger] } }))
            .below("ephemeralcontainers")
            .strategic()
    };
    let neutral = env("NVIDIA_VISIBLE_DEVICES", "void");
    vec![
        attempt("into amir's pod", Alice, exec("amirs-pod"), Refused("homes-are-entered-by-their-owner")),
        attempt("into alice's pod, by her lead", Amir, exec("alices-pod"), Refused("homes-are-entered-by-their-owner")),
        attempt(
            "attached to amir's pod",
            Alice,
            connect(&format!("{}/amirs-pod/attach?stdout=true", pods_path())),
            Refused("homes-are-entered-by-their-owner"),
        ),
        attempt(
            "a port of amir's pod",
            Alice,
            connect(&format!("{}/amirs-pod/portforward", pods_path())),
            Refused("homes-are-entered-by-their-owner"),
        ),
        attempt(
            "amir's pod, through the API server",
            Alice,
            connect(&format!("{}/amirs-pod/proxy/", pods_path())),
            Refused("homes-are-entered-by-their-owner"),
        ),
        attempt(
            "amir's pod, through its Service",
            Alice,
            connect(&format!("/api/v1/namespaces/{TEAM_A}/services/amirs/proxy/")),
            Refused("unknown-target"),
        ),
        attempt(
            "a container in amir's pod",
            Alice,
            debug("amirs-pod", json!({ "env": neutral })),
            Refused("homes-are-entered-by-their-owner"),
        ),
        attempt(
            "a privileged container in a pod that runs",
            Alice,
            debug("alices-pod", json!({ "name": "d1", "env": neutral, "securityContext": { "privileged": true } })),
            Refused("no-privileged"),
        ),
        attempt(
            "all GPUs, in a pod that runs, by variable",
            Alice,
            debug("alices-pod", json!({ "name": "d2", "env": env("NVIDIA_VISIBLE_DEVICES", "all") })),
            Refused("gpus-only-by-request"),
        ),
        attempt(
            "all GPUs, in a pod that runs, by its image",
            Alice,
            debug("alices-pod", json!({ "name": "d3" })),
            Refused("gpus-only-by-request"),
        ),
        attempt(
            "another uid on a home, in a pod that runs",
            Alice,
            debug(
                "alices-home",
                json!({
                    "name": "d4", "env": neutral, "securityContext": { "runAsUser": 2002 },
                    "volumeMounts": [{ "name": "home", "mountPath": "/h" }],
                }),
            ),
            Refused("own-uid-only, shared-claims-by-declared-path"),
        ),
    ]
}

// ------------------------------------------------------------------------------------- claims, rights, other objects

fn claims() -> Vec<Attempt> {
    let claim = |name: &str, spec: Value| {
        let mut whole = json!({ "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "1Gi" } } });
        merge(&mut whole, spec);
        create(
            &json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name }, "spec": whole }),
        )
    };
    let source = json!({ "apiGroup": null, "kind": "PersistentVolumeClaim", "name": "amirs-data" });
    let foreign = json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "of-team-b" });
    let volume = |name: &str, source: Value| {
        let mut spec = json!({ "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"] });
        merge(&mut spec, source);
        create(&json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name }, "spec": spec }))
    };
    vec![
        attempt(
            "another team's volume, by its name",
            Alice,
            claim("by-name", json!({ "storageClassName": "", "volumeName": "pv-of-team-b" })),
            Refused("not-permitted"),
        ),
        attempt(
            "another team's volume, by its labels",
            Alice,
            claim("by-label", json!({ "storageClassName": "", "selector": { "matchLabels": { "team": "b" } } })),
            Refused("not-permitted"),
        ),
        attempt(
            "a copy of amir's claim",
            Alice,
            claim("by-source", json!({ "dataSource": source })),
            Refused("not-permitted"),
        ),
        attempt(
            "another team's snapshot",
            Alice,
            claim("by-reference", json!({ "dataSourceRef": foreign })),
            Refused("not-permitted"),
        ),
        attempt(
            "a storage class that is not the team's",
            Alice,
            claim("by-class", json!({ "storageClassName": "fsx-of-team-b" })),
            Refused("not-permitted"),
        ),
        attempt(
            "the node's disk as a volume",
            Alice,
            volume("disk", json!({ "hostPath": { "path": "/" } })),
            Refused("not-permitted, members-work-in-their-namespaces"),
        ),
        attempt(
            "another team's directory as a volume",
            Alice,
            volume(
                "directory",
                json!({ "csi": { "driver": "fsx.csi.aws.com", "volumeHandle": "fs-1", "volumeAttributes": { "mountname": "abc/TeamB" } } }),
            ),
            Refused("members-work-in-their-namespaces"),
        ),
    ]
}

fn rights() -> Vec<Attempt> {
    let rbac = "rbac.authorization.k8s.io";
    let role = |name: &str, groups: &[&str], resources: &[&str], verbs: &[&str]| {
        let rule = json!({ "apiGroups": groups, "resources": resources, "verbs": verbs });
        create(
            &json!({ "apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": { "name": name }, "rules": [rule] }),
        )
    };
    let binding = json!({
        "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": { "name": "more" },
        "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": "team-member" },
        "subjects": [{ "apiGroup": rbac, "kind": "User", "name": "mallory" }],
    });
    let subjects = json!({ "subjects": [{ "apiGroup": rbac, "kind": "User", "name": "mallory" }] });
    let widen = json!([{ "op": "add", "path": "/rules/-", "value": { "apiGroups": [""], "resources": ["secrets"], "verbs": ["list"] } }]);
    vec![
        attempt(
            "a role that impersonates",
            Alice,
            role("impersonate", &[""], &["serviceaccounts"], &["impersonate"]),
            Refused("not-permitted"),
        ),
        attempt(
            "a role that escalates",
            Alice,
            role("escalate", &[rbac], &["roles"], &["escalate"]),
            Refused("not-permitted"),
        ),
        attempt("a role that binds", Alice, role("bind", &[rbac], &["roles"], &["bind"]), Refused("not-permitted")),
        attempt(
            "a role that reads all Secrets",
            Alice,
            role("secrets", &[""], &["secrets"], &["list"]),
            Refused("not-permitted"),
        ),
        attempt(
            "a role that may everything",
            Alice,
            role("everything", &["*"], &["*"], &["*"]),
            Refused("not-permitted"),
        ),
        attempt(
            "a role that enters pods",
            Alice,
            role("enters", &[""], &["pods/exec"], &["create"]),
            Refused("not-permitted"),
        ),
        attempt(
            "a role that takes tokens",
            Alice,
            role("tokens", &[""], &["serviceaccounts/token"], &["create"]),
            Refused("not-permitted"),
        ),
        attempt("a binding for somebody else", Alice, create(&binding), Refused("not-permitted")),
        attempt(
            "other subjects in a binding",
            Alice,
            patch("rbac.authorization.k8s.io/v1", "RoleBinding", "harmless", &subjects),
            Refused("not-permitted"),
        ),
        attempt(
            "a rule more in a role",
            Alice,
            patch("rbac.authorization.k8s.io/v1", "Role", "harmless", &widen),
            Refused("not-permitted"),
        ),
    ]
}

fn objects() -> Vec<Attempt> {
    let service = |name: &str, spec: Value| {
        let mut whole = json!({ "selector": { "app": "a" }, "ports": [{ "port": 80 }] });
        merge(&mut whole, spec);
        create(&json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": whole }))
    };
    let ingress = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": "open" },
        "spec": { "ingressClassName": "alb", "defaultBackend": { "service": { "name": "amirs", "port": { "number": 80 } } } },
    });
    let lets_out = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "lets-out" },
        "spec": { "podSelector": {}, "policyTypes": ["Egress"], "egress": [{ "to": [{ "ipBlock": { "cidr": "169.254.169.254/32" } }] }] },
    });
    let emptied = json!({ "spec": { "podSelector": { "matchLabels": { "no": "pod" } } } });
    let keep = json!(["example.com/keep"]);
    let finalizer = json!({ "metadata": { "finalizers": keep } });
    let amirs_set =
        json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "amirs-set", "controller": true }]);
    let revision = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1,
        "metadata": { "name": "amirs-set-forged", "labels": { "app": "amirs-set" }, "ownerReferences": amirs_set },
        "data": { "spec": { "template": manifests::stateful_set("amirs-set")["spec"]["template"] } },
    });
    let blocking =
        json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "amirs-waiting", "blockOwnerDeletion": true }]);
    let below_amirs = with(pod("below-amirs"), "/metadata/ownerReferences", blocking);
    let labels = |labels: Value| json!({ "metadata": { "labels": labels } });
    let namespace = |patched: &Value| patch("v1", "Namespace", TEAM_A, patched);
    vec![
        attempt(
            "a Service at an address of the outside",
            Alice,
            service("external", json!({ "externalIPs": ["10.0.0.1"] })),
            Refused("not-permitted"),
        ),
        attempt(
            "a load balancer",
            Alice,
            service("balanced", json!({ "type": "LoadBalancer" })),
            Refused("not-permitted"),
        ),
        attempt(
            "a port of every node",
            Alice,
            service("on-nodes", json!({ "type": "NodePort" })),
            Refused("not-permitted"),
        ),
        attempt(
            "a name that leads elsewhere",
            Alice,
            service("alias", json!({ "type": "ExternalName", "externalName": "a.example" })),
            Refused("not-permitted"),
        ),
        attempt("a load balancer, by Ingress", Alice, create(&ingress), Refused("not-permitted")),
        attempt(
            "the node's credentials, by a NetworkPolicy that lets out",
            Alice,
            create(&lets_out),
            Refused("not-permitted"),
        ),
        attempt(
            "the platform's NetworkPolicy, emptied",
            Alice,
            patch("networking.k8s.io/v1", "NetworkPolicy", "platforms", &emptied),
            Refused("not-permitted"),
        ),
        attempt("what amir's StatefulSet makes pods from", Alice, create(&revision), Refused("not-permitted")),
        attempt(
            "a finalizer on its own pod",
            Alice,
            create(&with(pod("stays"), "/metadata/finalizers", keep.clone())),
            Refused("not-permitted"),
        ),
        attempt(
            "a finalizer on its own Job",
            Alice,
            patch("batch/v1", "Job", "alices-job", &finalizer),
            Refused("not-permitted"),
        ),
        attempt(
            "a finalizer on amir's Job",
            Alice,
            patch("batch/v1", "Job", "amirs-waiting", &finalizer),
            Refused("not-permitted"),
        ),
        attempt("amir's Job kept from going", Alice, create(&below_amirs), Refused("not-permitted")),
        attempt(
            "no Pod Security for the namespace",
            Alice,
            namespace(&labels(json!({ "pod-security.kubernetes.io/enforce": "privileged" }))),
            Refused("not-permitted"),
        ),
        attempt(
            "another quota for the namespace",
            Alice,
            namespace(&labels(json!({ "sagemaker.amazonaws.com/activate-quota": null }))),
            Refused("not-permitted"),
        ),
        attempt(
            "labels of the namespace, by its status",
            Alice,
            namespace(&labels(json!({ "pod-security.kubernetes.io/warn": "privileged" }))).below("status"),
            Refused("not-permitted"),
        ),
        attempt(
            "a namespace of its own",
            Alice,
            create(&manifests::namespace("hyperpod-ns-alice")),
            Refused("members-work-in-their-namespaces"),
        ),
    ]
}

fn queueing() -> Vec<Attempt> {
    let key = |list: &str, key: &str, value: &str| {
        let name = name_of(&format!("queue-{key}"));
        let mut job = manifests::job(&name);
        job["metadata"][list][key] = value.into();
        create(&job)
    };
    let admitted = json!({ "status": { "conditions": [{
        "type": "Admitted", "status": "True", "reason": "Admitted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] } });
    let workload = |body: &Value| patch("kueue.x-k8s.io/v1beta1", "Workload", "amirs-workload", body);
    let elsewhere = json!({ "spec": { "stopPolicy": "Hold" } });
    let boost = json!({ "metadata": { "annotations": { "kueue.x-k8s.io/priority-boost": "1000" } } });
    vec![
        attempt(
            "past the queue, by its record's status",
            Alice,
            workload(&admitted).below("status"),
            Refused("not-permitted"),
        ),
        attempt("first in the queue, by its record", Alice, workload(&boost), Refused("not-permitted")),
        attempt(
            "the team's queue, changed",
            Alice,
            patch("kueue.x-k8s.io/v1beta1", "LocalQueue", "hyperpod-ns-team-a-localqueue", &elsewhere),
            Refused("not-permitted"),
        ),
        attempt(
            "another team's queue",
            Alice,
            key("labels", "kueue.x-k8s.io/queue-name", "hyperpod-ns-team-b-localqueue"),
            Refused("not-permitted"),
        ),
        attempt(
            "another team's priority",
            Alice,
            key("labels", "kueue.x-k8s.io/priority-class", "experimentation-priority"),
            Refused("things-stay-in-their-team"),
        ),
        attempt(
            "what was admitted already",
            Alice,
            key("labels", "kueue.x-k8s.io/prebuilt-workload-name", "amirs-workload"),
            Refused("no-way-round-the-queue"),
        ),
    ]
}

fn what_others_start_from() -> Vec<Attempt> {
    let object = |version: &str, kind: &str, name: &str, spec: Value| {
        create(&json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec }))
    };
    let template = json!({ "displayName": "t", "defaultImage": manifests::IMAGE });
    let strategy = json!({
        "displayName": "s", "accessResourceTemplates": [{
            "kind": "RoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "namePrefix": "a", "template": "{}",
        }],
    });
    let scaler = json!({
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "amirs" }, "maxReplicas": 9,
    });
    let spaces = "workspace.jupyter.org/v1alpha1";
    vec![
        attempt(
            "a template for others' Spaces",
            Alice,
            object(spaces, "WorkspaceTemplate", "mine", template),
            Refused("not-permitted"),
        ),
        attempt(
            "what enters others' Spaces",
            Alice,
            object(spaces, "WorkspaceAccessStrategy", "mine", strategy),
            Refused("not-permitted"),
        ),
        attempt(
            "an autoscaler of amir's Deployment",
            Alice,
            object("autoscaling/v2", "HorizontalPodAutoscaler", "mine", scaler),
            Refused("not-permitted"),
        ),
        attempt(
            "a gateway that asks nobody who they are",
            Alice,
            object(
                "inference.sagemaker.aws.amazon.com/v1alpha1",
                "InferenceGatewayConfig",
                "mine",
                json!({ "schedulers": [] }),
            ),
            Refused("not-permitted"),
        ),
    ]
}

fn endpoints() -> Vec<Attempt> {
    let endpoint = |name: &str| manifests::in_namespace(manifests::endpoint(name), TEAM_A);
    let ours =
        |name: &str| with(endpoint(name), "/spec/modelSourceConfig/s3Storage/bucketName", "team-a-models".into());
    let kubernetes = |name: &str, value: Value| create(&with(ours(name), "/spec/kubernetes", value));
    let jump_start = |name: &str, path: &str| {
        let model = json!({
            "apiVersion": "inference.sagemaker.aws.amazon.com/v1", "kind": "JumpStartModel", "metadata": { "name": name },
            "spec": { "model": { "modelId": "m" }, "server": { "instanceType": "ml.g5.8xlarge" } },
        });
        create(&with(model, path, "arn:aws:iam::111122223333:role/team-b".into()))
    };
    let fsx = json!({ "modelSourceType": "fsx", "fsxStorage": { "fileSystemId": "fs-0fedcba9876543210" }, "modelLocation": "m" });
    vec![
        attempt("another team's bucket", Alice, create(&endpoint("bucket")), Refused("things-stay-in-their-team")),
        attempt(
            "another file system",
            Alice,
            create(&with(endpoint("file-system"), "/spec/modelSourceConfig", fsx)),
            Refused("not-permitted"),
        ),
        attempt(
            "the node's disk, by an endpoint",
            Alice,
            kubernetes("disk", json!({ "volumes": [{ "name": "v", "hostPath": { "path": "/" } }] })),
            Refused("volume-kinds"),
        ),
        attempt(
            "a scheduler, by an endpoint",
            Alice,
            kubernetes("scheduler", json!({ "schedulerName": "mine" })),
            Refused("scheduler-decides"),
        ),
        attempt(
            "a service account, by an endpoint",
            Alice,
            kubernetes("account", json!({ "serviceAccountName": "other" })),
            Refused("not-permitted"),
        ),
        attempt(
            "another team's role, to run a model",
            Alice,
            jump_start("execution", "/spec/server/executionRole"),
            Refused("not-permitted"),
        ),
        attempt(
            "another team's role, to fetch a model",
            Alice,
            jump_start("gated", "/spec/model/gatedModelDownloadRole"),
            Refused("not-permitted"),
        ),
    ]
}

fn amounts() -> Vec<Attempt> {
    let gpus = |object: Value, path: &str, count: u64| {
        with(object, &format!("{path}/containers/0/resources"), json!({ "limits": { "nvidia.com/gpu": count } }))
    };
    let job = |name: &str, pods: u64| {
        let job = gpus(manifests::job(name), "/spec/template/spec", 8);
        with(with(job, "/spec/parallelism", pods.into()), "/spec/completions", pods.into())
    };
    let daemon_set = {
        let mut object = manifests::deployment("on-every-node");
        object["kind"] = "DaemonSet".into();
        object["spec"].as_object_mut().and_then(|spec| spec.remove("replicas"));
        gpus(object, "/spec/template/spec", 1)
    };
    let template = |count: u64| json!({ "spec": { "containers": [{ "name": "a", "image": manifests::IMAGE, "resources": { "limits": { "nvidia.com/gpu": count } } }] } });
    let ray = json!({
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": { "name": "boundless" },
        "spec": {
            "enableInTreeAutoscaling": true,
            "headGroupSpec": { "rayStartParams": {}, "template": template(0) },
            "workerGroupSpecs": [{ "groupName": "w", "rayStartParams": {}, "template": template(1) }],
        },
    });
    vec![
        attempt("more than the team may ever hold", Alice, create(&job("too-many", 9)), Refused("cannot-fit")),
        attempt("one on every node", Alice, create(&daemon_set), Refused("cannot-fit")),
        attempt("as many as the autoscaler likes", Alice, create(&ray), Refused("cannot-fit")),
        attempt(
            "a privileged pod, as a rehearsal",
            Alice,
            create(&with(pod("rehearsal"), CONTAINER, json!({ "privileged": true }))).rehearsed(),
            Refused("no-privileged"),
        ),
        attempt(
            "a privileged pod, by server-side apply",
            Alice,
            create(&with(pod("applied"), CONTAINER, json!({ "privileged": true }))).applied(),
            Refused("no-privileged"),
        ),
    ]
}

// ---------------------------------------------------------------------------------------------- who, and elsewhere

fn elsewhere() -> Vec<Attempt> {
    let in_b = |name: &str| {
        let job = with(manifests::job(name), "/spec/template/spec/containers/0/securityContext", RESTRICTED.clone());
        create(&manifests::in_namespace(job, TEAM_B))
    };
    let group = "hyperpod-ns-team-a-namespace-level-group";
    let alice = "arn:aws:sts::111122223333:assumed-role/AWSReservedSSO_TeamA_1234567890abcdef/alice.martin-example.com";
    let as_alice = create(&manifests::job("as-alice")).posing(alice, Some(group));
    let controller = "system:serviceaccount:kube-system:job-controller";
    let mut orphan = manifests::pod("as-the-job-controller");
    orphan["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "alices-job", "controller": true }]);
    let other = "111122223333.dkr.ecr.us-west-2.amazonaws.com/other:1";
    let image = json!([{ "op": "replace", "path": "/spec/template/spec/containers/0/image", "value": other }]);
    let rewrite = patch("apps/v1", "Deployment", "alices", &image);
    let bound = binding("alices-pod");
    vec![
        attempt("work in another team's namespace", Alice, in_b("abroad"), Refused("not-permitted")),
        attempt(
            "work in no team's namespace",
            Alice,
            create(&manifests::in_namespace(manifests::job("nowhere"), "default")),
            Refused("members-work-in-their-namespaces"),
        ),
        attempt(
            "into bob's pod",
            Alice,
            connect(&format!("/api/v1/namespaces/{TEAM_B}/pods/bobs-pod/exec?command=id&stdout=true")),
            Refused("homes-are-entered-by-their-owner"),
        ),
        attempt("work, by a role of no team", Eve, create(&manifests::job("by-eve")), Refused("not-permitted")),
        attempt("work as alice, by her name", Eve, as_alice, Refused("untrusted-identity")),
        attempt(
            "a pod as the job controller",
            Eve,
            create(&orphan).posing(controller, None),
            Refused("untrusted-identity"),
        ),
        attempt(
            "alice's pod bound, as the scheduler",
            Eve,
            create_in(&format!("{}/alices-pod/binding", pods_path()), &bound).posing("system:kube-scheduler", None),
            Nobody,
        ),
        attempt(
            "alice's work, as HyperPod",
            Eve,
            rewrite.posing("hyperpod-service-linked-role", None),
            Refused("not-permitted"),
        ),
    ]
}

/// What a webhook cannot see, or what must not hang on one.
fn left_to_rbac() -> Vec<Attempt> {
    let group = |group: &str, plural: &str, name: &str| format!("/apis/{group}/{plural}/{name}");
    let hook = group("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", "somebodys");
    let csr = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": "mine" },
        "spec": { "signerName": "example.com/any", "usages": ["client auth"], "request": certificate_request() },
    });
    let cluster_role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "mine" },
        "rules": [{ "apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"] }],
    });
    let aws_auth =
        patch("v1", "ConfigMap", "aws-auth", &json!({ "data": { "mapRoles": "[]" } })).in_namespace("kube-system");
    vec![
        attempt("webhooks that watch over it", Alice, Call::of("DELETE", &hook, Value::Null), Rbac),
        attempt(
            "the kubelet, through the API server",
            Alice,
            connect(&format!("/api/v1/nodes/{NODE}/proxy/pods")),
            Rbac,
        ),
        attempt("a certificate", Alice, create(&csr), Rbac),
        attempt("a role of the cluster", Alice, create(&cluster_role), Rbac),
        attempt("who is who, in aws-auth", Alice, aws_auth, Rbac),
        attempt(
            "a Job's status",
            Alice,
            patch("batch/v1", "Job", "amirs-waiting", &json!({ "status": { "ready": 0 } })).below("status"),
            Nobody,
        ),
        attempt(
            "amir's pod, deleted",
            Alice,
            Call::of("DELETE", &format!("{}/amirs-other-pod", pods_path()), Value::Null),
            Nobody,
        ),
        attempt(
            "amir's pod, evicted",
            Alice,
            create_in(
                &format!("{}/amirs-third-pod/eviction", pods_path()),
                &json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "amirs-third-pod" } }),
            ),
            Nobody,
        ),
    ]
}

fn binding(pod: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod }, "target": { "kind": "Node", "name": NODE } })
}

/// For a key that nobody keeps.
fn certificate_request() -> String {
    let key = KeyPair::generate().expect("a key");
    let request = CertificateParams::default().serialize_request(&key).expect("a request");
    BASE64.encode(request.pem().expect("PEM"))
}

fn pods_path() -> String {
    format!("/api/v1/namespaces/{TEAM_A}/pods")
}
