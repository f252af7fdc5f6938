//! What must hold whatever the object: no JSON makes `extract` panic, a template asks for what its pods ask, and the
//! manifests that public repositories publish are counted as a person would count them.

use std::fs;
use std::path::Path;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use super::kinds::Kinds;
use super::{Bound, Facts, KindRef, READERS, Workload, extract};
use crate::amounts::{Amounts, MAX};

fn workload(group: &str, kind: &str, object: &Value) -> Workload {
    let kind = KindRef { group, kind, resource: "" };
    match extract(Kinds::defaults(), &kind, object).unwrap_or_else(|error| unreachable!("{kind:?}: {error}")) {
        Facts::Workload(workload) => workload,
        Facts::Object(object) => unreachable!("{kind:?} runs pods: {object:?}"),
    }
}

fn at_most(workload: &Workload) -> Option<Amounts> {
    match &workload.demand.ceiling {
        Bound::AtMost(amounts) => Some(amounts.clone()),
        Bound::Unbounded { .. } => None,
    }
}

// -------------------------------------------------------------------------------------------------- arbitrary JSON

/// Names of fields that are read somewhere, so that arbitrary objects get past the first level.
#[rustfmt::skip]
const KEYS: &[&str] = &[
    "metadata", "labels", "annotations", "name", "spec", "template", "jobTemplate", "containers", "initContainers",
    "ephemeralContainers", "resources", "limits", "requests", "claims", "nvidia.com/gpu", "aws.amazon.com/neuron",
    "overhead", "restartPolicy", "securityContext", "capabilities", "add", "drop", "privileged", "runAsUser",
    "runAsNonRoot", "seccompProfile", "seLinuxOptions", "appArmorProfile", "windowsOptions", "type", "volumes",
    "hostPath", "path", "projected", "sources", "secret", "ephemeral", "persistentVolumeClaim", "volumeMounts",
    "volumeDevices", "mountPath", "env", "value", "valueFrom", "envFrom", "image", "ports", "hostPort",
    "livenessProbe", "httpGet", "host", "lifecycle", "postStart", "nodeSelector", "affinity", "nodeAffinity",
    "tolerations", "key", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "matchExpressions",
    "operator", "values", "node.kubernetes.io/instance-type", "hostNetwork", "hostUsers", "os", "resourceClaims",
    "parallelism", "completions", "suspend", "replicas", "strategy", "rollingUpdate", "maxSurge",
    "volumeClaimTemplates", "pytorchReplicaSpecs", "Worker", "elasticPolicy", "maxReplicas", "runPolicy",
    "replicaSpecs", "spares", "replicaDiscreteValues", "worker", "kubernetes", "pdSpec", "prefillSpec",
    "autoScalingSpec", "maxReplicaCount", "modelSourceConfig", "s3Storage", "bucketName", "dataCapture", "s3Uri",
    "instanceType", "instanceTypes", "server", "acceleratorPartitionType", "model", "storage", "desiredStatus",
    "podSecurityContext", "sysctls", "data", "rules", "verbs", "roleRef", "externalIPs", "target", "headGroupSpec",
    "workerGroupSpecs", "rayClusterSpec", "rayClusterConfig", "submitterPodTemplate", "enableInTreeAutoscaling",
    "minReplicas", "numOfHosts", "replicatedJobs", "leaderWorkerTemplate", "leaderTemplate", "workerTemplate", "size",
    "mpiReplicaSpecs", "trainer", "numNodes", "resourcesPerNode", "podTemplateOverrides", "jobTargetRef",
];

const TEXTS: &[&str] =
    &["", "1", "1e0", "0.5", "-1", "9Ei", "25%", "Always", "In", "ml.p5.48xlarge", "s3://a/b", "void"];

fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        select(TEXTS).prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(7, 96, 6, |inner| {
        let key = prop_oneof![9 => select(KEYS).prop_map(str::to_owned), 1 => ".{0,4}"];
        let object = btree_map(key, inner.clone(), 0..8);
        prop_oneof![
            1 => vec(inner, 0..4).prop_map(Value::from),
            3 => object.prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// A pod spec that is right, and then has one field put anywhere.
fn spoiled_pod_spec() -> impl Strategy<Value = Value> {
    (pod_spec(), select(KEYS), arbitrary_json(), 0..3_usize).prop_map(|(mut spec, key, value, place)| {
        match place {
            0 => spec[key] = value,
            1 => spec["containers"][0][key] = value,
            _ => spec["volumes"] = json!([{"name": "v", key: value}]),
        }
        spec
    })
}

/// Each kind's way to a pod spec.
fn wrapped(spec: &Value) -> Vec<(&'static str, &'static str, Value)> {
    let template = json!({"spec": spec});
    vec![
        ("", "Pod", json!({"spec": spec})),
        ("batch", "Job", json!({"spec": {"template": template}})),
        ("batch", "CronJob", json!({"spec": {"jobTemplate": {"spec": {"template": template}}}})),
        ("apps", "Deployment", json!({"spec": {"template": template}})),
        ("kubeflow.org", "PyTorchJob", json!({"spec": {"pytorchReplicaSpecs": {"Worker": {"template": template}}}})),
        ("sagemaker.amazonaws.com", "HyperPodPyTorchJob", json!({"spec": {"replicaSpecs": [{"template": template}]}})),
        ("ray.io", "RayCluster", json!({"spec": {"headGroupSpec": {"template": template}}})),
        ("ray.io", "RayCronJob", json!({"spec": {"jobTemplate": {"submitterPodTemplate": template}}})),
        (
            "jobset.x-k8s.io",
            "JobSet",
            json!({"spec": {"replicatedJobs": [{"template": {"spec": {"template": template}}}]}}),
        ),
        ("trainer.kubeflow.org", "TrainJob", json!({"spec": {"podTemplateOverrides": [{"spec": spec}]}})),
        ("example.org", "Widget", json!({"spec": {"template": template}})),
    ]
}

/// Kinds without a reader that open doors, or run pods.
const OTHERS: &[(&str, &str)] = &[
    ("", "Secret"),
    ("", "ServiceAccount"),
    ("", "PersistentVolume"),
    ("", "PersistentVolumeClaim"),
    ("", "Service"),
    ("", "Namespace"),
    ("", "Binding"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "RoleBinding"),
    ("authentication.k8s.io", "TokenRequest"),
    ("kueue.x-k8s.io", "Workload"),
    ("kueue.x-k8s.io", "ClusterQueue"),
    ("example.org", "Widget"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_json_makes_extract_panic(body in arbitrary_json(), spec in arbitrary_json()) {
        let configured = Kinds::defaults().iter().map(|kind| (kind.group.as_str(), kind.kind.as_str()));
        let read = READERS.iter().map(|(group, _, kind, _)| (*group, *kind)).chain(configured);
        for (group, kind) in read.chain(OTHERS.iter().copied()) {
            let kind = KindRef { group, kind, resource: "" };
            for object in [&body, &json!({"spec": body}), &json!({"metadata": spec, "spec": body})] {
                if let Err(error) = extract(Kinds::defaults(), &kind, object) {
                    prop_assert!(!error.to_string().ends_with('.'), "{}", error);
                }
            }
        }
    }

    #[test]
    fn no_field_of_a_pod_makes_extract_panic(spec in spoiled_pod_spec()) {
        for (group, kind, object) in wrapped(&spec) {
            let _ = extract(Kinds::defaults(), &KindRef { group, kind, resource: "" }, &object);
        }
    }

    // ---------------------------------------------------------------------------------------- templates and pods

    #[test]
    fn a_template_asks_for_what_its_pods_ask(spec in pod_spec(), count in 0_u64..50, more in 0_u64..50) {
        let pod = at_most(&workload("", "Pod", &json!({"spec": spec}))).expect("one pod");
        for Sized { group, kind, body, now, most } in sized(&json!({"spec": spec}), count, more) {
            let workload = workload(group, kind, &json!({"spec": body}));
            prop_assert_eq!(&workload.demand.floor, &sum(&pod, now), "{}", kind);
            prop_assert_eq!(at_most(&workload), Some(sum(&pod, most)), "{}", kind);
            prop_assert_eq!(workload.demand.pods, now, "{}", kind);
        }
    }

    #[test]
    fn what_stands_between_asks_for_what_its_root_does(spec in pod_spec(), count in 0_u64..50, more in 0_u64..50) {
        let cluster = ray_cluster(&json!({"spec": spec}), count, more);
        let below = workload("ray.io", "RayCluster", &json!({"spec": cluster}));
        for (kind, field) in [("RayJob", "rayClusterSpec"), ("RayService", "rayClusterConfig")] {
            let root = workload("ray.io", kind, &json!({"spec": {field: cluster}}));
            prop_assert_eq!(&root.demand.floor, &below.demand.floor, "{}", kind);
            prop_assert_eq!(&root.demand.ceiling, &below.demand.ceiling, "{}", kind);
        }
    }

    #[test]
    fn absurd_counts_stick_at_the_top(spec in pod_spec(), count in (i64::MAX as u64 - 9)..=MAX) {
        let pod = at_most(&workload("", "Pod", &json!({"spec": spec}))).expect("one pod");
        let body = json!({"spec": {"template": {"spec": spec}, "replicas": count}});
        let deployment = workload("apps", "Deployment", &body);
        for (name, amount) in pod.iter() {
            prop_assert!(deployment.demand.floor.get(name.as_str()) >= MAX - 9);
            prop_assert!(amount <= MAX);
        }
    }
}

/// An object of a kind, and how many pods its controllers make of its templates: now, and at most.
struct Sized {
    group: &'static str,
    kind: &'static str,
    body: Value,
    now: u64,
    most: u64,
}

/// Every kind with a number of replicas, `count` now. What can grow may grow to `more`. Written from each project's own
/// documentation, not from the configuration.
fn sized(template: &Value, count: u64, more: u64) -> Vec<Sized> {
    let most = count.max(more);
    let fixed = |group, kind, body| Sized { group, kind, body, now: count, most: count };
    let elastic = json!({"maxReplicas": more});
    let worker = json!({"Worker": {"template": template, "replicas": count}});
    let launched = json!({"Launcher": {"template": template}, "Worker": {"template": template, "replicas": count}});
    let spares = json!({"template": template, "replicas": count, "maxReplicas": more, "spares": 3});
    let job = json!({"template": template, "parallelism": 2, "completions": 9});
    let jobs = json!([{"replicas": count, "template": {"spec": job}}, {"template": {"spec": {"template": template}}}]);
    let cluster = ray_cluster(template, count, more);
    let submitted = json!({"rayClusterSpec": cluster, "submitterPodTemplate": template});
    let groups = |templates: Value| json!({"replicas": count, "leaderWorkerTemplate": templates});
    let alone = groups(json!({"size": 3, "workerTemplate": template}));
    let led = groups(json!({"size": 3, "workerTemplate": template, "leaderTemplate": template}));
    let scaled = json!({"minReplicaCount": count, "maxReplicaCount": more, "jobTargetRef": {"template": template}});
    let kubeflow = "kubeflow.org";
    vec![
        fixed("batch", "Job", json!({"template": template, "parallelism": count})),
        fixed("apps", "Deployment", json!({"template": template, "replicas": count})),
        fixed("apps", "StatefulSet", json!({"template": template, "replicas": count})),
        Sized {
            most,
            ..fixed(kubeflow, "PyTorchJob", json!({"pytorchReplicaSpecs": worker, "elasticPolicy": elastic}))
        },
        Sized { most, ..fixed(kubeflow, "PaddleJob", json!({"paddleReplicaSpecs": worker, "elasticPolicy": elastic})) },
        fixed(kubeflow, "TFJob", json!({"tfReplicaSpecs": worker})),
        fixed(kubeflow, "XGBoostJob", json!({"xgbReplicaSpecs": worker})),
        fixed(kubeflow, "JAXJob", json!({"jaxReplicaSpecs": worker})),
        fixed(kubeflow, "MXJob", json!({"mxReplicaSpecs": worker})),
        Sized { now: 1 + count, most: 1 + count, ..fixed(kubeflow, "MPIJob", json!({"mpiReplicaSpecs": launched})) },
        Sized {
            now: count + 3,
            most: most + 3,
            ..fixed("sagemaker.amazonaws.com", "HyperPodPyTorchJob", json!({"replicaSpecs": [spares]}))
        },
        Sized { now: 1 + 2 * count, most: 1 + 2 * most, ..fixed("ray.io", "RayCluster", cluster.clone()) },
        Sized { now: 2 + 2 * count, most: 2 + 2 * most, ..fixed("ray.io", "RayJob", submitted.clone()) },
        Sized {
            now: 1 + 2 * count,
            most: 1 + 2 * most,
            ..fixed("ray.io", "RayService", json!({"rayClusterConfig": cluster}))
        },
        Sized { now: 0, most: 2 + 2 * most, ..fixed("ray.io", "RayCronJob", json!({"jobTemplate": submitted})) },
        Sized {
            now: 2 * count + 1,
            most: 2 * count + 1,
            ..fixed("jobset.x-k8s.io", "JobSet", json!({"replicatedJobs": jobs}))
        },
        Sized { now: 3 * count, most: 3 * count, ..fixed("leaderworkerset.x-k8s.io", "LeaderWorkerSet", alone) },
        Sized { now: 3 * count, most: 3 * count, ..fixed("leaderworkerset.x-k8s.io", "LeaderWorkerSet", led) },
        Sized { most, ..fixed("keda.sh", "ScaledJob", scaled) },
    ]
}

/// A head, and workers of two hosts each.
fn ray_cluster(template: &Value, count: u64, more: u64) -> Value {
    let workers = json!({
        "template": template, "replicas": count, "minReplicas": 0, "maxReplicas": count.max(more), "numOfHosts": 2,
    });
    json!({
        "headGroupSpec": {"template": template}, "workerGroupSpecs": [workers], "enableInTreeAutoscaling": true,
    })
}

/// Every configured kind is in the law above.
#[test]
fn every_configured_kind_is_counted() {
    let template = json!({"spec": {}});
    let counted: Vec<_> = sized(&template, 1, 1).iter().map(|sized| sized.kind).collect();
    for kind in Kinds::defaults().iter().filter(|kind| kind.kind != "TrainJob") {
        assert!(counted.contains(&kind.kind.as_str()), "{}", kind.kind);
    }
}

/// Added up one by one, as the ledger would see the pods.
fn sum(pod: &Amounts, count: u64) -> Amounts {
    (0..count).fold(Amounts::new(), |sum, _| sum.saturating_add(pod))
}

/// Pod specs with resources in many spellings.
fn pod_spec() -> impl Strategy<Value = Value> {
    let amount =
        (0_u64..9, select(&["plain", "text", "milli", "exponent"][..])).prop_map(|(amount, spelling)| match spelling {
            "plain" => json!(amount),
            "text" => json!(format!("{amount}.0")),
            "milli" => json!(format!("{amount}000m")),
            _ => json!(format!("{amount}e0")),
        });
    let name = select(&["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "vpc.amazonaws.com/efa", "cpu"][..]);
    let resources = btree_map(name.prop_map(str::to_owned), amount, 0..3);
    let container = (resources.clone(), resources, any::<bool>()).prop_map(|(requests, limits, sidecar)| {
        json!({
            "resources": {"requests": requests, "limits": limits},
            "restartPolicy": if sidecar { "Always" } else { "Never" },
        })
    });
    (vec(container.clone(), 1..4), vec(container, 0..4))
        .prop_map(|(main, init)| json!({"containers": named("main", main), "initContainers": named("init", init)}))
}

fn named(prefix: &str, containers: Vec<Value>) -> Vec<Value> {
    let name = |(index, mut container): (usize, Value)| {
        container["name"] = json!(format!("{prefix}-{index}"));
        container
    };
    containers.into_iter().enumerate().map(name).collect()
}

// ------------------------------------------------------------------------------------------- published manifests

/// What the templates leave open; in order, so that a name goes before its own beginning.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("$ACCEL_INSTANCE_COUNT", "4"),
    ("${ACCEL_INSTANCE_TYPE}", "ml.g5.8xlarge"),
    ("$GPU_PER_NODE", "1"),
    ("$EFA_PER_NODE", "1"),
    ("${EFA_PER_NODE}", "8"),
    ("${NEURON_PER_NODE}", "16"),
    ("$NUM_NODES", "2"),
    ("$NUM_GPU_PER_NODE", "8"),
    ("$NUM_EFA_PER_NODE", "32"),
    ("${HEAD_CPU}", "1"),
    ("${HEAD_MEMORY}", "1Gi"),
    ("${WORKER_CPU}", "1"),
    ("${WORKER_MEMORY}", "1Gi"),
    ("${FSX_CAPACITY_GIB}", "1200"),
    ("${WS_USER}", "alice"),
];

/// File, kind, then accelerators at first and at most (`None`: no bound). Objects that run nothing are left out.
const MANIFESTS: &[(&str, &str, u64, Option<u64>)] = &[
    ("ado-hyperpodpytorchjob-1b.tmpl.yaml", "HyperPodPyTorchJob", 4, Some(4)),
    ("ado-jumpstartmodel-queue-labels.yaml", "JumpStartModel", 1, Some(4)),
    ("adt-hyperpodpytorchjob-elastic-g6e.yaml", "HyperPodPyTorchJob", 16, Some(16)),
    ("adt-mpijob-nccl-tests.yaml", "MPIJob", 16, Some(16)),
    ("adt-pod-fsx-storage-manager.yaml", "Pod", 0, Some(0)),
    ("adt-pytorchjob-8node-efa-vjepa2.yaml", "PyTorchJob", 64, Some(64)),
    ("adt-pytorchjob-neuron-peft.tmpl.yaml", "Deployment", 0, Some(0)),
    ("adt-pytorchjob-neuron-peft.tmpl.yaml", "PyTorchJob", 16, Some(16 * 64)),
    ("adt-raycluster-verl.tmpl.yaml", "RayCluster", 16, Some(16)),
    ("adt-taskgov-pytorchjob-team-a.yaml", "Deployment", 0, Some(0)),
    ("adt-taskgov-pytorchjob-team-a.yaml", "PyTorchJob", 3, Some(36)),
    ("adt-taskgov-pytorchjob-team-b-prio.yaml", "Deployment", 0, Some(0)),
    ("adt-taskgov-pytorchjob-team-b-prio.yaml", "PyTorchJob", 2, Some(36)),
    ("hpcli-inferenceendpointconfig-kvcache.yaml", "InferenceEndpointConfig", 1, Some(1)),
    ("hpct-hyperpodpytorchjob-checkpointless-p5.yaml", "HyperPodPyTorchJob", 128, Some(128)),
    ("jk8s-workspace-additional-volumes.yaml", "Workspace", 0, Some(0)),
    ("jk8s-workspace-serviceaccount.yaml", "Workspace", 0, Some(0)),
    ("jk8saws-workspace-hyperpod-private.tmpl.yaml", "Workspace", 0, Some(0)),
    ("jobset-pytorch-resnet.yaml", "JobSet", 0, Some(0)),
    ("kuberay-rayjob-kueue.yaml", "RayJob", 0, Some(0)),
    ("kueue-job-queued.yaml", "Job", 0, Some(0)),
    ("kueue-statefulset-queued.yaml", "StatefulSet", 0, Some(0)),
    ("lws-vllm-gpu.yaml", "LeaderWorkerSet", 32, Some(32)),
    ("s3csi-pod-level-identity.yaml", "Pod", 0, Some(0)),
    ("s3csi-pod-level-identity.yaml", "Pod", 0, Some(0)),
    ("sghe-deployment-vllm-hostpath.yaml", "Deployment", 1, Some(1)),
    ("sghe-inferenceendpointconfig-fsx.yaml", "InferenceEndpointConfig", 1, Some(1)),
    ("sghe-inferenceendpointconfig-huggingface-v1.yaml", "InferenceEndpointConfig", 8, Some(8)),
    ("sghe-rayservice-llama8b.yaml", "RayService", 2, Some(2)),
];

#[test]
fn published_manifests_are_counted() {
    let mut found = Vec::new();
    for (file, object) in manifests() {
        let (group, kind) = group_and_kind(&object);
        let facts = extract(Kinds::defaults(), &KindRef { group: &group, kind: &kind, resource: "" }, &object);
        let facts = facts.unwrap_or_else(|error| unreachable!("{file}: {kind}: {error}"));
        if let Facts::Workload(workload) = facts {
            let most = at_most(&workload).map(|amounts| amounts.accelerators());
            found.push((file, kind, workload.demand.floor.accelerators(), most));
            assert_eq!(unknown_fields(&workload), Vec::<String>::new(), "{:?}", found.last());
        }
    }
    let expected: Vec<_> =
        MANIFESTS.iter().map(|(file, kind, now, most)| ((*file).to_owned(), (*kind).to_owned(), *now, *most)).collect();
    assert_eq!(found, expected);
}

/// Every document of every file, in order of the names.
fn manifests() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/manifests");
    let files = fs::read_dir(folder).expect("manifests").map(|entry| entry.expect("file").path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect();
    files.sort();
    let mut documents = Vec::new();
    for path in files {
        let mut text = fs::read_to_string(&path).expect("text");
        for (placeholder, value) in PLACEHOLDERS {
            text = text.replace(placeholder, value);
        }
        let name = path.file_name().and_then(|name| name.to_str()).expect("name").to_owned();
        let values: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap_or_else(|e| unreachable!("{name}: {e}"));
        documents.extend(values.into_iter().filter(|value| !value.is_null()).map(|value| (name.clone(), value)));
    }
    documents
}

fn group_and_kind(object: &Value) -> (String, String) {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
    (group.to_owned(), text("kind").to_owned())
}

fn unknown_fields(workload: &Workload) -> Vec<String> {
    let of_templates = workload.templates.iter().flat_map(|template| {
        let of_containers = template.containers.iter().flat_map(|container| &container.unknown_fields);
        let of_volumes = template.volumes.iter().flat_map(|volume| &volume.unknown_fields);
        template.unknown_fields.iter().chain(of_containers).chain(of_volumes)
    });
    workload.unknown_fields.iter().chain(of_templates).cloned().collect()
}

/// One, two, two of one and two GPUs in four spellings, as a custom resource may carry them.
#[test]
fn spellings_of_one_job_are_added_up() {
    let replica = |name: &str, replicas: u64, gpus: Value| {
        let resources = json!({"limits": {"nvidia.com/gpu": gpus}, "requests": {"nvidia.com/gpu": gpus}});
        let containers = json!([{"name": "pytorch", "resources": resources}]);
        json!({"name": name, "replicas": replicas, "template": {"spec": {"containers": containers}}})
    };
    let replicas = [
        replica("a", 1, json!("1e0")),
        replica("b", 1, json!(2)),
        replica("c", 2, json!("1.0")),
        replica("d", 1, json!("2000m")),
    ];
    let job = json!({"spec": {"nprocPerNode": "1", "replicaSpecs": replicas}});
    let job = workload("sagemaker.amazonaws.com", "HyperPodPyTorchJob", &job);
    assert_eq!(job.demand.floor.accelerators(), 7);
    assert_eq!(at_most(&job), Some(job.demand.floor));
}

#[test]
fn a_subresource_is_not_taken_for_its_parent() {
    let scale = json!({"kind": "Scale", "spec": {"replicas": 12}});
    for (group, kind, resource) in [
        ("apps", "Scale", "deployments"),
        ("autoscaling", "Scale", "deployments"),
        ("", "PodExecOptions", "pods"),
        ("", "Eviction", "pods"),
    ] {
        let facts = extract(Kinds::defaults(), &KindRef { group, kind, resource }, &scale).expect("facts");
        assert!(matches!(facts, Facts::Object(_)), "{kind}");
    }
}

#[test]
fn the_plural_decides_and_kinds_have_no_case() {
    let object = json!({"spec": {"replicaSpecs": []}});
    for (kind, resource) in
        [("HyperPodPyTorchJob", "hyperpodpytorchjobs"), ("HyperPodPytorchJob", ""), ("Renamed", "hyperpodpytorchjobs")]
    {
        let facts = extract(Kinds::defaults(), &KindRef { group: "sagemaker.amazonaws.com", kind, resource }, &object)
            .expect("facts");
        assert!(matches!(facts, Facts::Workload(_)), "{kind}");
    }
}

#[test]
fn what_is_no_object_is_refused() {
    let kind = KindRef { group: "", kind: "Pod", resource: "pods" };
    let error = extract(Kinds::defaults(), &kind, &json!([Map::new()])).expect_err("a list");
    assert_eq!(error.to_string(), "the object must be an object");
}
