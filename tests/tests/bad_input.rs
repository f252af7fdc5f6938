//! What no API server would send, and what a person can make it send: at both endpoints, bytes in and bytes out.
//!
//! Whatever comes, the answer is HTTP 400 with a sentence, or a well-formed AdmissionReview that carries the same uid; no
//! input makes the gate panic, which the server would hide behind `internal`. A refusal has code 403 or 429 and no patch.
//! A patch applies, and applied twice it changes nothing. What runs pods in a team's namespace is let in by a policy, and
//! stamped.
//!
//! Loading policies recurses deeply; run with `RUST_MIN_STACK=16777216`.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::http::StatusCode;
use engine::facts::kinds::Kinds;
use engine::facts::{Facts, KindRef, extract};
use engine::offline::plural;
use engine::review::UserInfo;
use engine::snapshot::Snapshot;
use engine::stamp::SUBMITTED_BY;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use server::decide::{Answered, Content, Decide, Endpoint, Line};
use server::decider::Decider;
use server::ledger::InMemory;
use tests::gate::{self, sample, service_account};

const NAMESPACE: &str = "hyperpod-ns-team-a";

// --------------------------------------------------------------------------------------------------------- the property

/// What the answers to one body were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    BadRequest,
    Refused,
    /// By `/validate`, for which `/mutate` leaves only the quota.
    OverQuota,
    Allowed,
}

/// Sends a body to both endpoints, and what `/mutate` leaves of it to `/validate`, as an API server does.
fn hold(body: &[u8]) -> Outcome {
    let validated = answer(Endpoint::Validate, body);
    let Some(mutated) = answer(Endpoint::Mutate, body) else {
        assert_eq!(validated, None, "both read the same envelope");
        return Outcome::BadRequest;
    };
    if !mutated.allowed {
        return Outcome::Refused;
    }
    // Fields that the gate passes over may nest deeper than this test can read.
    let Ok(mut review) = serde_json::from_slice::<Value>(body) else { return Outcome::Allowed };
    if let Some(patch) = &mutated.patch {
        json_patch::patch(&mut review["request"]["object"], patch).expect("the patch applies");
        let again = answer(Endpoint::Mutate, review.to_string().as_bytes()).expect("a patched review is a review");
        assert!(again.allowed, "patched, it is refused: {review}");
        assert_eq!(again.patch, None, "patched twice: {review}");
    }
    let body = review.to_string();
    let decided = answer(Endpoint::Validate, body.as_bytes()).expect("a patched review is a review");
    if !decided.allowed {
        assert!(decided.reasons.iter().all(|reason| reason == "quota"), "{:?} came late: {body}", decided.reasons);
        return Outcome::OverQuota;
    }
    let request = &review["request"];
    if is_governed(request) {
        assert!(decided.permitted, "let in by no policy: {body}");
        let creates =
            request["operation"] == "CREATE" && request["subResource"].as_str().unwrap_or_default().is_empty();
        assert!(!creates || request["object"]["metadata"]["annotations"][SUBMITTED_BY].is_string(), "no stamp: {body}");
    }
    Outcome::Allowed
}

/// A well-formed answer, or `None` for HTTP 400.
#[derive(Debug, Clone, PartialEq)]
struct Decided {
    allowed: bool,
    patch: Option<json_patch::Patch>,
    /// At least one question was answered yes by a policy.
    permitted: bool,
    /// Codes of the refusals.
    reasons: Vec<Value>,
}

fn answer(endpoint: Endpoint, body: &[u8]) -> Option<Decided> {
    let Answered { status, content, body: answer, line } = decide(endpoint, body);
    let shown = || String::from_utf8_lossy(&body[..body.len().min(4000)]).into_owned();
    if status == StatusCode::BAD_REQUEST {
        assert_eq!((content, line), (Content::Text, Line::None));
        assert!(std::str::from_utf8(&answer).is_ok_and(|sentence| !sentence.is_empty()), "{}", shown());
        return None;
    }
    assert_eq!((status, content), (StatusCode::OK, Content::Json), "{}", shown());
    let (asked, review): (Value, Value) =
        (serde_json::from_slice(body).unwrap_or_default(), serde_json::from_slice(&answer).expect("JSON"));
    assert_eq!((&review["apiVersion"], &review["kind"]), (&json!("admission.k8s.io/v1"), &json!("AdmissionReview")));
    let response = &review["response"];
    let uid = response["uid"].as_str().expect("a uid");
    assert!(asked.is_null() || asked["request"]["uid"] == uid, "another uid: {}", shown());
    let allowed = response["allowed"].as_bool().expect("yes or no");
    assert_eq!(response["patch"].is_null(), response["patchType"].is_null());
    if !allowed {
        let status = &response["status"];
        assert!([json!(403), json!(429)].contains(&status["code"]), "{status}");
        assert!(status["message"].as_str().is_some_and(|message| !message.is_empty()), "{status}");
        assert!(response["patch"].is_null());
    }
    let patch = response["patch"].as_str().map(|patch| {
        assert_eq!(endpoint, Endpoint::Mutate, "/validate never patches");
        json_patch::Patch(serde_json::from_slice(&base64(patch)).expect("RFC 6902"))
    });
    let record: Value = match &line {
        Line::Required(line) | Line::Optional(line) => serde_json::from_str(line).expect("one JSON line"),
        Line::None => unreachable!("an answer without a line: {}", shown()),
    };
    let questions = record["questions"].as_array().cloned().unwrap_or_default();
    let permitted = questions.iter().any(|line| line["allowed"] == true && line["policies"] != json!([]));
    let refusals = record["refusals"].as_array().into_iter().flatten();
    let reasons = refusals.map(|refusal| refusal["reason"].clone()).collect();
    Some(Decided { allowed, patch, permitted, reasons })
}

/// Decides on a fresh ledger; a panic fails the test.
fn decide(endpoint: Endpoint, body: &[u8]) -> Answered {
    static SNAPSHOT: LazyLock<Arc<Snapshot>> = LazyLock::new(|| {
        let mut gate = gate::Gate::new(gate::snapshot(gate::starter_teams()));
        let stored = KINDS.iter().map(|kind| kind.object());
        stored.for_each(|object| gate.store(object));
        gate.snapshot()
    });
    static RUNTIME: LazyLock<tokio::runtime::Runtime> =
        LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime"));
    let decider = Decider::new(Arc::new(ArcSwap::new(Arc::clone(&SNAPSHOT))), Arc::new(InMemory::default()));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(600);
    RUNTIME.block_on(decider.decide(endpoint, body.to_vec().into(), deadline))
}

/// Something that runs pods, in a team's namespace, asked for by somebody whose work is governed.
fn is_governed(request: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, kind) = (text(&request["kind"]["group"]), text(&request["kind"]["kind"]));
    let resource = text(&request["resource"]["resource"]);
    let facts =
        extract(Kinds::defaults(), &KindRef { group: &group, kind: &kind, resource: &resource }, &request["object"]);
    let by_a_person = request["userInfo"]["username"].as_str().is_some_and(|name| name.starts_with("arn:"));
    matches!(facts, Ok(Facts::Workload(_))) && request["namespace"] == NAMESPACE && by_a_person
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u32> = text.bytes().filter(|byte| *byte != b'=').map(|byte| digit(byte).into()).collect();
    let of_four = |four: &[u32]| {
        let bits = four.iter().enumerate().fold(0, |bits, (at, digit)| bits | digit << (18 - 6 * at));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(of_four).collect()
}

// --------------------------------------------------------------------------------------------------------------- inputs

/// A kind with a specification that is allowed; `{}` where the kind has its content elsewhere.
#[derive(Debug)]
struct Kind {
    api_version: &'static str,
    kind: &'static str,
    spec: fn() -> Value,
}

const KINDS: &[Kind] = &[
    Kind { api_version: "v1", kind: "Pod", spec: pod },
    Kind {
        api_version: "batch/v1",
        kind: "Job",
        spec: || json!({"parallelism": 2, "completions": 4, "template": template()}),
    },
    Kind {
        api_version: "batch/v1",
        kind: "CronJob",
        spec: || json!({"schedule": "@daily", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": {"template": template()}}}),
    },
    Kind { api_version: "apps/v1", kind: "Deployment", spec: || json!({"replicas": 1, "template": template()}) },
    Kind { api_version: "apps/v1", kind: "ReplicaSet", spec: || json!({"replicas": 1, "template": template()}) },
    Kind {
        api_version: "apps/v1",
        kind: "StatefulSet",
        spec: || json!({"replicas": 2, "template": template(), "volumeClaimTemplates": [{"metadata": {"name": "data"}}]}),
    },
    Kind { api_version: "apps/v1", kind: "DaemonSet", spec: || json!({"template": small_template()}) },
    Kind { api_version: "v1", kind: "ReplicationController", spec: || json!({"replicas": 1, "template": template()}) },
    Kind {
        api_version: "kubeflow.org/v1",
        kind: "PyTorchJob",
        spec: || {
            json!({
                "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}, "runPolicy": {"suspend": false},
                "pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template()}, "Worker": {"replicas": 2, "template": template()}},
            })
        },
    },
    Kind {
        api_version: "sagemaker.amazonaws.com/v1",
        kind: "HyperPodPyTorchJob",
        spec: || {
            json!({
                "nprocPerNode": "1", "runPolicy": {"suspend": true}, "elasticPolicy": {"maxReplicas": 3},
                "replicaSpecs": [{"name": "pods", "replicas": 2, "maxReplicas": 3, "spares": 1, "template": template()}],
            })
        },
    },
    Kind {
        api_version: "inference.sagemaker.aws.amazon.com/v1",
        kind: "InferenceEndpointConfig",
        spec: || {
            json!({
                "modelName": "m", "instanceType": "ml.g5.8xlarge", "replicas": 1, "autoScalingSpec": {"maxReplicaCount": 2},
                "modelSourceConfig": {"modelSourceType": "s3", "s3Storage": {"bucketName": "team-a-models", "region": "us-west-2"}},
                "tlsConfig": {"tlsCertificateOutputS3Uri": "s3://team-a-tls/certs"},
                "worker": {
                    "image": "vllm@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
                    "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"nvidia.com/gpu": 1}},
                    "modelVolumeMount": {"name": "weights", "mountPath": "/opt/ml/model"},
                    "environmentVariables": [{"name": "A", "value": "b"}],
                },
                "kubernetes": {"serviceAccountName": "team-a", "volumes": [{"name": "tmp", "emptyDir": {}}]},
            })
        },
    },
    Kind {
        api_version: "inference.sagemaker.aws.amazon.com/v1",
        kind: "JumpStartModel",
        spec: || {
            json!({
                "model": {"modelId": "m", "gatedModelDownloadRole": "arn:aws:iam::111122223333:role/team-a-jumpstart"},
                "server": {"instanceType": "ml.g5.8xlarge", "executionRole": "arn:aws:iam::111122223333:role/team-a-jumpstart"},
                "autoScalingSpec": {"minReplicaCount": 1, "maxReplicaCount": 2},
            })
        },
    },
    Kind {
        api_version: "workspace.jupyter.org/v1alpha1",
        kind: "Workspace",
        spec: || {
            json!({
                "displayName": "w", "image": "public.ecr.aws/sagemaker/sagemaker-distribution:latest-gpu", "desiredStatus": "Running",
                "resources": {"limits": {"nvidia.com/gpu": 1}}, "storage": {"size": "5Gi", "mountPath": "/home/sagemaker-user"},
                "volumes": [{"name": "fsx", "mountPath": "/fsx", "persistentVolumeClaimName": "fsx-pvc-hyperpod-ns-team-a"}],
            })
        },
    },
    Kind {
        api_version: "ray.io/v1",
        kind: "RayCluster",
        spec: || json!({"headGroupSpec": {"template": small_template()}}),
    },
    Kind { api_version: "v1", kind: "Secret", spec: || json!({}) },
    Kind { api_version: "v1", kind: "ServiceAccount", spec: || json!({}) },
    Kind { api_version: "v1", kind: "ConfigMap", spec: || json!({}) },
    Kind { api_version: "v1", kind: "Service", spec: || json!({"ports": [{"port": 80}], "externalIPs": []}) },
    Kind {
        api_version: "v1",
        kind: "PersistentVolumeClaim",
        spec: || json!({"storageClassName": "gp3", "volumeName": ""}),
    },
    Kind { api_version: "v1", kind: "Namespace", spec: || json!({}) },
    Kind { api_version: "rbac.authorization.k8s.io/v1", kind: "Role", spec: || json!({}) },
    Kind { api_version: "rbac.authorization.k8s.io/v1", kind: "RoleBinding", spec: || json!({}) },
    Kind {
        api_version: "kueue.x-k8s.io/v1beta1",
        kind: "Workload",
        spec: || json!({"podSets": [{"template": template()}]}),
    },
];

impl Kind {
    fn object(&self) -> Value {
        let Self { api_version, kind, spec } = self;
        let name = kind.to_ascii_lowercase();
        json!({
            "apiVersion": api_version, "kind": kind, "spec": spec(),
            "metadata": {
                "name": name, "namespace": NAMESPACE, "uid": format!("uid-of-{name}"),
                "labels": {"project": "p-1", "kueue.x-k8s.io/queue-name": "hyperpod-ns-team-a-localqueue"},
                "annotations": {"note": "x"}, "ownerReferences": [], "finalizers": [],
            },
        })
    }
}

/// Every field of a pod that is read, in a form that is allowed.
fn pod() -> Value {
    json!({
        "serviceAccountName": "team-a", "schedulerName": "default-scheduler", "priorityClassName": "training-priority",
        "hostNetwork": false, "hostPID": false, "hostIPC": false, "shareProcessNamespace": false,
        "automountServiceAccountToken": true, "restartPolicy": "Never", "hostUsers": true,
        "securityContext": {
            "seccompProfile": {"type": "RuntimeDefault"}, "sysctls": [], "supplementalGroups": [3000], "runAsNonRoot": true,
            "fsGroup": 2000, "seLinuxOptions": {"level": "s0"}, "appArmorProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": {"node.kubernetes.io/instance-type": "ml.g5.8xlarge"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]},
        ]}}},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "overhead": {"cpu": "1"}, "resourceClaims": [], "imagePullSecrets": [{"name": "s"}],
        "volumes": [
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "team", "persistentVolumeClaim": {"claimName": "fsx-pvc-hyperpod-ns-team-a", "readOnly": false}},
            {"name": "settings", "configMap": {"name": "c"}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}, {"secret": {"name": "s"}}]}},
        ],
        "initContainers": [{"name": "init", "image": "busybox", "restartPolicy": "Always"}],
        "containers": [{
            "name": "main", "image": "registry.example.com:5000/a/b:c", "command": ["a"], "args": ["b"],
            "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": 1, "cpu": "500m"}, "claims": []},
            "env": [{"name": "A", "value": "b"}], "envFrom": [{"configMapRef": {"name": "c"}}],
            "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": 80}},
            "lifecycle": {"preStop": {"exec": {"command": ["a"]}}},
            "volumeMounts": [
                {"name": "tmp", "mountPath": "/tmp", "subPath": "a", "readOnly": false, "mountPropagation": "None"},
                {"name": "team", "mountPath": "/fsx"},
            ],
            "securityContext": {
                "privileged": false, "allowPrivilegeEscalation": false, "procMount": "Default", "runAsNonRoot": true,
                "capabilities": {"drop": ["ALL"], "add": []}, "seccompProfile": {"type": "RuntimeDefault"},
            },
        }],
        "ephemeralContainers": null,
    })
}

/// A template with one accelerator.
fn template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [
        {"name": "main", "image": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}},
    ]}})
}

fn small_template() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "a"}]}})
}

/// Whoever may ask.
fn callers() -> Vec<UserInfo> {
    let samples = ["01-sso-teama-default-username", "04-studio-shared-domain-role", "10-team-pod-service-account"];
    let more = ["11-kcm-job-controller", "13-hyperpod-service-linked-role", "15-impersonated-forged"];
    let mut callers: Vec<_> = samples.iter().chain(&more).map(|name| sample(name)).collect();
    callers.push(service_account(NAMESPACE, "team-a"));
    callers
}

/// CREATE by Alice.
fn creation(object: &Value) -> Value {
    envelope(object, &sample("01-sso-teama-default-username"), "CREATE", "")
}

fn envelope(object: &Value, user: &UserInfo, operation: &str, subresource: &str) -> Value {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let api_version = text(&object["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let resource = plural(&text(&object["kind"]));
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "5a3c1f1e-6c7e-4a38-9f67-3d1f8a6f9d10",
        "kind": {"group": group, "version": version, "kind": object["kind"]},
        "resource": {"group": group, "version": version, "resource": resource},
        "subResource": subresource, "name": object["metadata"]["name"], "namespace": NAMESPACE,
        "operation": operation, "userInfo": user, "object": object, "oldObject": null, "dryRun": false, "options": {},
    }})
}

fn held(review: &Value) -> Outcome {
    hold(review.to_string().as_bytes())
}

// ---------------------------------------------------------------------------------------------------------------- tests

/// The tests below spoil what is sound: this is sound.
#[test]
fn the_inputs_are_sound() {
    for kind in KINDS {
        let outcome = held(&creation(&kind.object()));
        // Nobody in a team may write these at all.
        let closed = ["Namespace", "RoleBinding", "Workload"].contains(&kind.kind);
        assert_eq!(outcome, if closed { Outcome::Refused } else { Outcome::Allowed }, "{}", kind.kind);
    }
}

#[test]
fn truncated_reviews() {
    for kind in KINDS {
        let body = creation(&kind.object()).to_string();
        for length in (0..body.len()).step_by(97) {
            assert_eq!(hold(&body.as_bytes()[..length]), Outcome::BadRequest, "{} bytes of {body}", length);
        }
    }
}

/// Each leaf and each node of a review in turn becomes a value of every other type.
#[test]
fn wrong_types_in_the_envelope() {
    let review = creation(&KINDS[1].object());
    let pointers = pointers(&review).into_iter().filter(|pointer| !pointer.starts_with("/request/object/"));
    spoil(&review, pointers);
}

#[test]
fn wrong_types_in_a_pod() {
    let review = creation(&KINDS[0].object());
    spoil(&review, pointers(&review).into_iter().filter(|pointer| pointer.starts_with("/request/object/")));
}

#[test]
fn wrong_types_in_everything_else() {
    for kind in &KINDS[1..] {
        let review = creation(&kind.object());
        let of_pods = ["/template/spec/", "/metadata/labels/"];
        let own = |pointer: &String| {
            pointer.starts_with("/request/object/") && !of_pods.iter().any(|path| pointer.contains(path))
        };
        spoil(&review, pointers(&review).into_iter().filter(own));
    }
}

fn spoil(review: &Value, pointers: impl Iterator<Item = String>) {
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1.5),
        json!(""),
        json!("x"),
        json!([]),
        json!([{}]),
        json!({}),
        json!({"x": []}),
    ];
    for pointer in pointers {
        for value in &values {
            let mut spoilt = review.clone();
            *spoilt.pointer_mut(&pointer).expect("it is there") = value.clone();
            held(&spoilt);
        }
    }
}

fn pointers(value: &Value) -> Vec<String> {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value)).collect()
        }
        Value::Array(list) => list.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    let below = |(key, value): (String, &Value)| {
        let tails = pointers(value);
        std::iter::once(format!("/{key}"))
            .chain(tails.into_iter().map(move |tail| format!("/{key}{tail}")))
            .collect::<Vec<_>>()
    };
    children.into_iter().flat_map(below).collect()
}

/// Deeper than the parser goes, the envelope is still answered.
#[test]
fn deep_nesting() {
    let frame = creation(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "HERE"}})).to_string();
    for depth in [50, 120, 127, 128, 129, 1_000, 10_000] {
        let objects = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        let lists = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        for nested in [objects, lists] {
            let in_object = frame.replace("\"HERE\"", &nested);
            assert_eq!(hold(in_object.as_bytes()), Outcome::Refused, "{depth}");
            for place in ["\"options\":{}", "\"dryRun\":false", "\"userInfo\":{", "\"name\":"] {
                let key = place.split(':').next().unwrap_or_default();
                let elsewhere = frame.replace(
                    place,
                    &format!("{key}:{nested},\"was\":{}", place.split_once(':').map_or("", |(_, rest)| rest)),
                );
                hold(elsewhere.as_bytes());
            }
            assert_eq!(hold(nested.as_bytes()), Outcome::BadRequest);
        }
    }
}

fn with_container(change: impl Fn(&mut Value)) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "main", "image": "a"}]},
    });
    change(&mut pod);
    creation(&pod)
}

#[test]
fn large_objects() {
    let megabytes = "x".repeat(3 << 20);
    let annotation = with_container(|pod| pod["metadata"]["annotations"] = json!({"a": megabytes}));
    let argument = with_container(|pod| pod["spec"]["containers"][0]["args"] = json!([megabytes]));
    let image = with_container(|pod| pod["spec"]["containers"][0]["image"] = json!(megabytes));
    let label = with_container(|pod| pod["metadata"]["labels"] = json!({"a": megabytes}));
    for review in [annotation, argument, image, label] {
        held(&review);
    }
    let labels: Map<String, Value> = (0..5_000).map(|n| (format!("label-{n}"), json!(n.to_string()))).collect();
    assert_eq!(held(&with_container(|pod| pod["metadata"]["labels"] = json!(labels))), Outcome::Allowed);
    // Each container is a question: more than can be judged in time would keep every other review waiting.
    let containers =
        |count: usize| -> Vec<Value> { (0..count).map(|n| json!({"name": format!("c{n}"), "image": "a"})).collect() };
    for (count, outcome) in [(500, Outcome::Allowed), (5_000, Outcome::Refused)] {
        assert_eq!(held(&with_container(|pod| pod["spec"]["containers"] = json!(containers(count)))), outcome);
    }
    let mounts: Vec<_> =
        (0..15_000).map(|n| json!({"name": "v", "mountPath": format!("/{n}"), "subPath": n.to_string()})).collect();
    let mounted = with_container(|pod| {
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!(mounts);
    });
    assert_eq!(held(&mounted), Outcome::Refused);
}

#[test]
fn amounts_in_every_spelling() {
    let gpus = |amount: &str| {
        let review = with_container(|pod| {
            pod["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "HERE"}})
        });
        hold(review.to_string().replace("\"HERE\"", amount).as_bytes())
    };
    for one in ["1", "1e0", "1.0", "\"1\"", "\"1e0\"", "\"1.0\"", "\"1000m\"", "\"+1\"", "0", "null", "64"] {
        assert_eq!(gpus(one), Outcome::Allowed, "{one}");
    }
    let none = [
        "18446744073709551616",
        "\"18446744073709551616\"",
        "9223372036854775808",
        "1e400",
        "\"1e400\"",
        "-1",
        "\"-1\"",
        "0.5",
        "\"500m\"",
        "\"\"",
        "\"NaN\"",
        "true",
        "[]",
        "{}",
        "65",
        "\"1Ki\"",
        "\"0x1\"",
        "\"１\"",
        "\" 1\"",
        "\"1 \"",
    ];
    for amount in none {
        assert_ne!(gpus(amount), Outcome::Allowed, "{amount}");
    }
}

#[test]
fn null_lists_are_empty_lists() {
    let review = with_container(|pod| {
        for list in
            ["volumes", "initContainers", "ephemeralContainers", "tolerations", "imagePullSecrets", "securityContext"]
        {
            pod["spec"][list] = Value::Null;
        }
        for list in ["env", "volumeMounts", "envFrom", "ports", "resources", "securityContext"] {
            pod["spec"]["containers"][0][list] = Value::Null;
        }
        for map in ["labels", "annotations", "ownerReferences", "finalizers"] {
            pod["metadata"][map] = Value::Null;
        }
    });
    assert_eq!(held(&review), Outcome::Allowed);
    held(&with_container(|pod| pod["spec"]["containers"] = Value::Null));
    held(&with_container(|pod| pod["spec"] = Value::Null));
    held(&with_container(|pod| pod["metadata"] = Value::Null));
}

/// Names that repeat: each of what bears them is judged.
#[test]
fn repeated_names() {
    let privileged = json!({"name": "main", "image": "a", "securityContext": {"privileged": true}});
    let host = json!({"name": "v", "hostPath": {"path": "/"}});
    let harmless = json!({"name": "v", "emptyDir": {}});
    let plain = json!({"name": "main", "image": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    for containers in [json!([plain, privileged]), json!([privileged, plain])] {
        let review = with_container(|pod| pod["spec"]["containers"] = containers.clone());
        assert_eq!(held(&review), Outcome::Refused, "{containers}");
    }
    for volumes in [json!([harmless, host]), json!([host, harmless])] {
        let review = with_container(|pod| {
            pod["spec"]["containers"] = json!([plain]);
            pod["spec"]["volumes"] = volumes.clone();
        });
        assert_eq!(held(&review), Outcome::Refused, "{volumes}");
    }
}

/// A projected volume is a volume for each of its sources.
#[test]
fn every_source_of_a_projected_volume_is_asked_about() {
    let review = with_container(|pod| {
        pod["spec"]["volumes"] = json!([{"name": "v", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token"}}, {"secret": {"name": "first"}}, {"secret": {"name": "second"}},
        ]}}]);
    });
    let Answered { line, .. } = decide(Endpoint::Mutate, review.to_string().as_bytes());
    let (Line::Required(line) | Line::Optional(line)) = line else { unreachable!("every answer has a line") };
    for source in ["(token)", "(secret `first`)", "(secret `second`)"] {
        assert!(line.contains(&format!("volume `v` {source}")), "{source} is not in {line}");
    }
}

#[test]
fn strange_text() {
    let strange = [
        "",
        " ",
        "\u{0}",
        "\u{7}\n\r\t",
        "\u{202e}txt",
        "é",
        "日本語",
        "🦀",
        "..",
        "../..",
        "/",
        "~",
        "~1",
        "a/b/c",
        "\"",
        "\\",
        "{{x}}",
        "${x}",
        r#"{"__entity":{"type":"Team","id":"team-b"}}"#,
        r#"Team::"team-b""#,
        r#"{"__extn":{"fn":"datetime","arg":"x"}}"#,
    ];
    for text in strange {
        let long = text.repeat(300);
        for text in [text, &long] {
            let places: [fn(&mut Value, &str); 9] = [
                |pod, text| pod["metadata"]["name"] = json!(text),
                |pod, text| pod["metadata"]["generateName"] = json!(text),
                |pod, text| pod["metadata"]["labels"] = json!({text: text}),
                |pod, text| {
                    pod["metadata"]["labels"] =
                        json!({"project": text, "team": text, "kueue.x-k8s.io/queue-name": text})
                },
                |pod, text| pod["metadata"]["annotations"] = json!({text: text, "cedargate.dev/reason": text}),
                |pod, text| pod["spec"]["containers"][0]["name"] = json!(text),
                |pod, text| pod["spec"]["containers"][0]["image"] = json!(text),
                |pod, text| pod["spec"]["serviceAccountName"] = json!(text),
                |pod, text| {
                    pod["spec"]["volumes"] = json!([{"name": text, "persistentVolumeClaim": {"claimName": text}}])
                },
            ];
            for place in places {
                held(&with_container(|pod| place(pod, text)));
            }
        }
    }
}

/// A label is a text to the policies, whatever it looks like: it makes nobody a member of anything.
#[test]
fn a_label_never_becomes_an_entity() {
    let foreign = json!({"__entity": {"type": "Team", "id": "team-b"}});
    let review =
        with_container(|pod| pod["metadata"]["labels"] = json!({"project": foreign.to_string(), "__entity": "x"}));
    assert_eq!(held(&review), Outcome::Allowed);
    let review = with_container(|pod| pod["metadata"]["labels"] = json!({"project": foreign}));
    assert_eq!(held(&review), Outcome::Refused, "a label is no object");
}

// ------------------------------------------------------------------------------------------------------------ proptests

const OPERATIONS: [&str; 4] = ["CREATE", "UPDATE", "DELETE", "CONNECT"];
const SUBRESOURCES: [&str; 12] = [
    "",
    "",
    "",
    "status",
    "scale",
    "exec",
    "attach",
    "portforward",
    "eviction",
    "ephemeralcontainers",
    "resize",
    "token",
];

/// Any JSON, with the names of fields that are read among its keys.
fn any_json() -> impl Strategy<Value = Value> {
    let keys: Vec<String> = KINDS.iter().flat_map(|kind| keys(&kind.object())).collect();
    let key = prop_oneof![4 => prop::sample::select(keys), 1 => any::<String>()];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0..9_i64).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        prop::sample::select(vec!["1", "a", "nvidia.com/gpu", NAMESPACE, "team-a", "homes", "alice"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn keys(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => map.iter().flat_map(|(key, value)| [vec![key.clone()], keys(value)].concat()).collect(),
        Value::Array(list) => list.iter().flat_map(keys).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// An object of a kind, with anything grafted into some of its places; or anything at all.
fn any_object(kind: &'static Kind) -> impl Strategy<Value = Value> {
    let object = kind.object();
    let places = pointers(&object);
    let grafts = prop::collection::vec((prop::sample::select(places), any_json()), 0..4);
    let grafted = grafts.prop_map(move |grafts| {
        let mut object = object.clone();
        for (pointer, value) in grafts {
            // An earlier graft may have taken the place away.
            if let Some(place) = object.pointer_mut(&pointer) {
                *place = value;
            }
        }
        object
    });
    prop_oneof![8 => grafted, 1 => any_json(), 1 => Just(Value::Null)]
}

fn any_review() -> impl Strategy<Value = Value> {
    let kind = (0..KINDS.len()).prop_map(|index| &KINDS[index]);
    let caller = prop::sample::select(callers());
    let request = (kind, caller, prop::sample::select(&OPERATIONS[..]), prop::sample::select(&SUBRESOURCES[..]));
    request.prop_flat_map(|(kind, caller, operation, subresource)| {
        (any_object(kind), any_object(kind), any::<bool>()).prop_map(move |(object, old, dry_run)| {
            let mut review = envelope(&kind.object(), &caller, operation, subresource);
            review["request"]["object"] = object;
            review["request"]["oldObject"] = old;
            review["request"]["dryRun"] = json!(dry_run);
            review
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(body in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(hold(&body), Outcome::BadRequest);
    }

    #[test]
    fn any_json_at_all(body in any_json()) {
        held(&body);
    }

    #[test]
    fn any_request(request in any_json()) {
        held(&json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}));
    }

    #[test]
    fn any_objects_in_a_sound_envelope(review in any_review()) {
        held(&review);
    }
}
