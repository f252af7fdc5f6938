//! The endpoint kinds of the HyperPod inference operator, v1 and v1alpha1, and its gateway.
//!
//! They have no pod template: the operator writes the Deployment. What they say about the pods to come becomes a
//! synthetic template; what they leave out says nothing, and the pods are judged in their turn.

use std::collections::BTreeSet;

use super::demand::{self, Count, Group};
use super::json::Node;
use super::placement::Placement;
use super::pod_security::{Absence, Pod};
use super::pod_spec::{self, Parts};
use super::workload::workload;
use super::{Bound, Demand, FactsError, PodTemplate, StorageUse, Workload, doors, instance, volume};
use crate::amounts::{Amounts, ResourceName, shown};
use crate::vocabulary::{Class, ContainerKind, DoorKind};

const KUBERNETES_FIELDS: &[&str] = &["initContainers", "schedulerName", "serviceAccountName", "volumes"];

pub(super) fn inference(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let spec = object.object("spec")?;
    let (templates, counts): (Vec<_>, Vec<_>) = roles(&spec)?.into_iter().unzip();
    let groups = demand::groups(&templates, counts);
    let demand = Demand { estimated: true, ..demand::bounded(&groups, false) };
    let mut endpoint = workload(object, Class::Endpoint, templates, demand)?;
    let kubernetes = spec.object("kubernetes")?;
    kubernetes.note_unknown(KUBERNETES_FIELDS, &mut endpoint.unknown_fields);
    endpoint.service_account = kubernetes.name("serviceAccountName")?;
    endpoint.storage = model_source(&spec.object("modelSourceConfig")?)?;
    written_buckets(&spec, &mut endpoint.storage)?;
    endpoint.doors = beside_the_pods(object, &spec)?;
    Ok(endpoint)
}

pub(super) fn jump_start(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let spec = object.object("spec")?;
    let server = spec.object("server")?;
    let count = scaled(spec.count("replicas")?, &spec.object("autoScalingSpec")?)?;
    let instance_type = server.string("instanceType")?;
    let per_pod = per_jump_start_pod(&server, instance_type)?;

    let mut template = jump_start_template(&spec)?;
    let mut placement = Placement::default();
    placement.pin(instance_type.into_iter());
    placement.write_to(&mut template);
    template.per_pod = per_pod.clone().unwrap_or_default();

    let demand = Demand { estimated: true, ..demand::bounded(&[Group { per_pod: &template.per_pod, count }], false) };
    let demand = match (per_pod, instance_type) {
        (None, Some(instance_type)) => Demand { ceiling: unknown_instance(instance_type), ..demand },
        (Some(_) | None, _) => demand,
    };
    let mut endpoint = workload(object, Class::Endpoint, vec![template], demand)?;
    endpoint.roles.extend(spec.object("model")?.name("gatedModelDownloadRole")?);
    endpoint.roles.extend(server.name("executionRole")?);
    written_buckets(&spec, &mut endpoint.storage)?;
    endpoint.storage.extend(model_of_a_hub(&spec.object("model")?)?);
    endpoint.doors = beside_the_pods(object, &spec)?;
    Ok(endpoint)
}

/// The routers of the inference gateway: how many the operator runs is nowhere said, and they need no accelerator.
pub(super) fn gateway(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let spec = object.object("spec")?;
    let defaults = spec.object("podDefaults")?;
    let nothing = Node::nothing();
    let pod = Pod::read(&nothing, &nothing, Absence::SaysNothing)?;
    let mut template = PodTemplate { synthetic: true, ..pod_spec::blank(defaults.pointer()) };
    let resources = defaults.object("resources")?;
    let parts = Parts {
        node: &defaults,
        name: "router",
        security: &nothing,
        resources: &resources,
        probes: &nothing,
        env: "env",
    };
    let container = pod_spec::container(&parts, ContainerKind::Main, &pod, &mut template)?;
    template.containers.push(container);
    template.per_pod = demand::per_pod(&template.containers, &Amounts::new(), &Amounts::new());
    let problem = "nothing says how many routers a gateway runs".to_owned();
    let hint = "leave accelerators out of `/spec/podDefaults/resources`: routers need none".to_owned();
    let group = Group { per_pod: &template.per_pod, count: Count::fixed(1) };
    let demand = Demand { estimated: true, ..demand::unbounded(&[group], problem, hint) };
    let mut gateway = workload(object, Class::Endpoint, vec![template], demand)?;
    spec.fields().for_each(|(_, value)| doors::roles(value, &mut gateway.roles));
    if !spec.object("auth")?.has("jwt") {
        let name = object.object("metadata")?.string("name")?.unwrap_or_default();
        gateway.doors.insert((DoorKind::OpenGateway, name.to_owned()));
    }
    Ok(gateway)
}

/// The pods of an InferenceEndpointConfig: its workers, or, with prefill and decode apart, one group for each.
fn roles(spec: &Node<'_, '_>) -> Result<Vec<(PodTemplate, Count)>, FactsError> {
    let worker = spec.object("worker")?;
    let split = spec.object("pdSpec")?;
    if !split.exists() {
        let count = scaled(spec.count("replicas")?, &spec.object("autoScalingSpec")?)?;
        return Ok(vec![(inference_template(spec, spec, &worker)?, count)]);
    }
    let scaling = split.object("autoScalingSpec")?;
    let mut roles = Vec::new();
    for (role, scaling_of_role) in [("prefillSpec", "prefillAutoScaling"), ("decodingSpec", "decodingAutoScaling")] {
        let role = split.object(role)?;
        let count = scaled(role.count("replicas")?, &scaling.object(scaling_of_role)?)?;
        roles.push((inference_template(spec, &role, &role)?, count));
    }
    Ok(roles)
}

/// `role` holds the node selector of the pods, `sized` their resources.
fn inference_template(
    spec: &Node<'_, '_>,
    role: &Node<'_, '_>,
    sized: &Node<'_, '_>,
) -> Result<PodTemplate, FactsError> {
    let worker = spec.object("worker")?;
    let kubernetes = spec.object("kubernetes")?;
    let nothing = Node::nothing(); // no security context can be given
    let pod = Pod::read(&nothing, &nothing, Absence::SaysNothing)?;
    let mut template = PodTemplate { synthetic: true, ..pod_spec::blank(role.pointer()) };
    template.volumes = volume::read_all(&kubernetes)?;

    // A role without resources of its own has those of the worker.
    let sized = if sized.has("resources") { sized } else { &worker };
    let parts = Parts {
        node: &worker,
        name: "worker",
        security: &nothing,
        resources: &sized.object("resources")?,
        probes: &worker.object("probes")?,
        env: "environmentVariables",
    };
    let mut container = pod_spec::container(&parts, ContainerKind::Main, &pod, &mut template)?;
    let mount = volume::read_mount(&worker.object("modelVolumeMount")?)?;
    // Otherwise the operator makes the volume, from `modelSourceConfig`.
    if template.volumes.iter().any(|volume| volume.name == mount.volume) {
        container.mounts.push(mount);
    }
    template.containers.push(container);
    pod_spec::read_init_containers(&kubernetes, &pod, &mut template)?;
    template.per_pod = demand::per_pod(&template.containers, &Amounts::new(), &Amounts::new());

    template.service_account = kubernetes.name("serviceAccountName")?;
    if let Some(scheduler) = kubernetes.name("schedulerName")? {
        template.scheduler = scheduler;
    }
    inference_placement(spec, role)?.write_to(&mut template);
    Ok(template)
}

fn inference_placement(spec: &Node<'_, '_>, role: &Node<'_, '_>) -> Result<Placement, FactsError> {
    let mut placement = Placement::default();
    let listed = spec.strings("instanceTypes")?;
    placement.pin(spec.string("instanceType")?.into_iter().chain(listed));
    placement.narrow_by_affinity(spec)?;
    placement.select(role)?;
    Ok(placement)
}

/// The operator defaults the maximum to five as soon as there is an `autoScalingSpec`.
fn scaled(replicas: Option<u64>, scaling: &Node<'_, '_>) -> Result<Count, FactsError> {
    let replicas = replicas.unwrap_or(1);
    if !scaling.exists() {
        return Ok(Count::fixed(replicas));
    }
    let now = replicas.max(scaling.count("minReplicaCount")?.unwrap_or(1));
    Ok(Count { now, most: now.max(scaling.count("maxReplicaCount")?.unwrap_or(5)) })
}

fn jump_start_template(spec: &Node<'_, '_>) -> Result<PodTemplate, FactsError> {
    let nothing = Node::nothing();
    let pod = Pod::read(&nothing, &nothing, Absence::SaysNothing)?;
    let mut template = PodTemplate { synthetic: true, ..pod_spec::blank(spec.pointer()) };
    let parts = Parts {
        node: spec,
        name: "server",
        security: &nothing,
        resources: &nothing,
        probes: &nothing,
        env: "environmentVariables",
    };
    let container = pod_spec::container(&parts, ContainerKind::Main, &pod, &mut template)?;
    template.containers.push(container);
    Ok(template)
}

/// A JumpStartModel does not say how many GPUs its pod takes: one slice if it names a MIG profile, else all of the
/// instance. `None` if nobody knows how many those are.
fn per_jump_start_pod(server: &Node<'_, '_>, instance_type: Option<&str>) -> Result<Option<Amounts>, FactsError> {
    if let Some(partition) = server.name("acceleratorPartitionType")? {
        let Some(profile) = partition.strip_prefix("mig-").filter(|profile| !profile.is_empty()) else {
            let problem = format_args!("is {} but must be a MIG profile, such as `mig-1g.5gb`", shown(&partition));
            return Err(server.error("acceleratorPartitionType", problem));
        };
        return Ok(Some(Amounts::of(ResourceName::new(format!("nvidia.com/mig-{profile}")), 1)));
    }
    Ok(instance_type.map_or(Some(Amounts::new()), instance::accelerators))
}

fn unknown_instance(instance_type: &str) -> Bound {
    let problem = format!("this version does not know how many accelerators {} has", shown(instance_type));
    let hint = "choose another `/spec/server/instanceType`, or ask the platform team to update the gate".to_owned();
    Bound::Unbounded { problem, hint }
}

/// Without a name it is SageMaker's own hub.
fn model_of_a_hub(model: &Node<'_, '_>) -> Result<Option<StorageUse>, FactsError> {
    let hub = model.name("modelHubName")?.unwrap_or_else(|| "SageMakerPublicHub".to_owned());
    Ok(model.name("modelId")?.map(|name| StorageUse::Model { hub, name }))
}

/// What the operator does for an endpoint beside its pods, with its own rights in AWS; and a cache elsewhere, which sees
/// what people ask the model.
fn beside_the_pods(object: &Node<'_, '_>, spec: &Node<'_, '_>) -> Result<BTreeSet<(DoorKind, String)>, FactsError> {
    let zone = spec.object("dnsConfig")?.name("hostedZoneId")?;
    let certificate = spec.object("tlsConfig")?.object("customCertificateConfig")?.name("acmArn")?;
    let namespace = object.object("metadata")?.name("namespace")?;
    let cache = spec.object("kvCacheSpec")?.object("l2CacheSpec")?.name("l2CacheLocalUrl")?;
    let cache = cache.filter(|url| !is_in_namespace(url, namespace.as_deref()));
    let doors = [(DoorKind::DnsZone, zone), (DoorKind::Certificate, certificate), (DoorKind::CacheServer, cache)];
    Ok(doors.into_iter().filter_map(|(door, detail)| Some((door, detail?))).collect())
}

/// `redis://cache:6379` and `redis://cache.<namespace>.svc...` are Services of the same namespace.
fn is_in_namespace(url: &str, namespace: Option<&str>) -> bool {
    let Some((_, authority)) = url.split_once("://") else { return false };
    let host = authority.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let host = host.split(':').next().unwrap_or_default();
    match host.split('.').collect::<Vec<_>>().as_slice() {
        [service] => !service.is_empty() && *service != "localhost",
        [_, place] | [_, place, "svc"] | [_, place, "svc", "cluster", "local"] => Some(*place) == namespace,
        _ => false,
    }
}

fn model_source(source: &Node<'_, '_>) -> Result<BTreeSet<StorageUse>, FactsError> {
    let mut storage = BTreeSet::new();
    let bucket = source.object("s3Storage")?.name("bucketName")?;
    storage.extend(bucket.map(|name| StorageUse::Bucket { name, write: false }));
    let file_system = source.object("fsxStorage")?.name("fileSystemId")?;
    // The operator mounts what `dnsName` says, whatever the id is.
    let host = source.object("fsxStorage")?.name("dnsName")?;
    let named_by_host = host.as_deref().and_then(|host| host.split('.').next()).map(str::to_owned);
    storage.extend(file_system.into_iter().chain(named_by_host).map(|id| StorageUse::FileSystem { id }));
    let model = source.object("huggingFaceModel")?.name("modelId")?;
    storage.extend(model.map(|name| StorageUse::Model { hub: "huggingface".to_owned(), name }));
    Ok(storage)
}

/// Buckets that the operator writes captured data and certificates to.
fn written_buckets(spec: &Node<'_, '_>, storage: &mut BTreeSet<StorageUse>) -> Result<(), FactsError> {
    for (holder, key) in [("dataCapture", "s3Uri"), ("tlsConfig", "tlsCertificateOutputS3Uri")] {
        let uri = spec.object(holder)?.name(key)?;
        storage.extend(uri.map(|uri| StorageUse::Bucket { name: bucket_of(&uri).to_owned(), write: true }));
    }
    Ok(())
}

/// What is no S3 URI keeps its text: a bucket that no team has.
fn bucket_of(uri: &str) -> &str {
    let path = uri.strip_prefix("s3://").unwrap_or(uri);
    path.split_once('/').map_or(path, |(bucket, _)| bucket)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gpus(workload: &Workload) -> (u64, Option<u64>) {
        let ceiling = match &workload.demand.ceiling {
            Bound::AtMost(ceiling) => Some(ceiling.accelerators()),
            Bound::Unbounded { .. } => None,
        };
        (workload.demand.floor.accelerators(), ceiling)
    }

    fn read(reader: fn(&Node<'_, '_>) -> Result<Workload, FactsError>, spec: Value) -> Workload {
        let object = json!({"metadata": {"name": "chat"}, "spec": spec});
        reader(&Node::root(&object).expect("an object")).expect("an endpoint")
    }

    fn worker(gpus: u64) -> Value {
        json!({
            "image": "vllm/vllm-openai:v1",
            "resources": {"limits": {"nvidia.com/gpu": gpus}},
            "modelVolumeMount": {"name": "model-weights", "mountPath": "/opt/ml/model"},
            "environmentVariables": [{"name": "A", "value": "1"}],
        })
    }

    #[test]
    fn autoscaling_counts_its_maximum() {
        for (replicas, scaling, expected) in [
            (json!(null), json!(null), (2, 2)),
            (json!(3), json!(null), (6, 6)),
            (json!(1), json!({"minReplicaCount": 1, "maxReplicaCount": 4}), (2, 8)),
            (json!(1), json!({}), (2, 10)),
            (json!(7), json!({}), (14, 14)),
            (json!(0), json!({"minReplicaCount": 2}), (4, 10)),
        ] {
            let spec = json!({"replicas": replicas, "autoScalingSpec": scaling, "worker": worker(2)});
            let endpoint = read(inference, spec.clone());
            assert_eq!(gpus(&endpoint), (expected.0, Some(expected.1)), "{spec}");
            assert!(endpoint.demand.estimated);
        }
    }

    #[test]
    fn prefill_and_decode_are_counted_instead_of_the_worker() {
        let endpoint = read(
            inference,
            json!({
                "replicas": 9,
                "worker": worker(1),
                "pdSpec": {
                    "prefillSpec": {"replicas": 2, "resources": {"limits": {"nvidia.com/gpu": 4}}},
                    "decodingSpec": {"nodeSelector": {"node.kubernetes.io/instance-type": "ml.p5.48xlarge"}},
                    "autoScalingSpec": {"decodingAutoScaling": {"maxReplicaCount": 3}},
                },
            }),
        );
        assert_eq!(gpus(&endpoint), (2 * 4 + 1, Some(2 * 4 + 3)));
        let pointers: Vec<_> = endpoint.templates.iter().map(|template| template.pointer.as_str()).collect();
        assert_eq!(pointers, ["/spec/pdSpec/prefillSpec", "/spec/pdSpec/decodingSpec"]);
        assert_eq!(endpoint.templates[1].instance_families, ["p5".to_owned()].into());
    }

    #[test]
    fn what_an_endpoint_takes() {
        let endpoint = read(
            inference,
            json!({
                "instanceTypes": ["ml.g5.12xlarge", "ml.g6e.12xlarge"],
                "worker": worker(1),
                "kubernetes": {
                    "serviceAccountName": "reader",
                    "schedulerName": "mine",
                    "volumes": [{"name": "model-weights", "hostPath": {"path": "/mnt"}}],
                    "initContainers": [{"name": "fetch", "resources": {"limits": {"nvidia.com/gpu": 3}}}],
                    "tomorrow": 1,
                },
                "modelSourceConfig": {
                    "s3Storage": {"bucketName": "models"},
                    "fsxStorage": {"fileSystemId": "fs-1"},
                    "huggingFaceModel": {"modelId": "a/b"},
                },
                "dataCapture": {"s3Uri": "s3://captured/x/y"},
                "tlsConfig": {"tlsCertificateOutputS3Uri": "s3://certs"},
            }),
        );
        let template = &endpoint.templates[0];
        assert!(template.synthetic);
        assert_eq!(template.instance_families, ["g5", "g6e"].map(str::to_owned).into());
        assert_eq!((template.scheduler.as_str(), template.service_account.as_deref()), ("mine", Some("reader")));
        assert_eq!(endpoint.service_account.as_deref(), Some("reader"));
        assert_eq!(template.per_pod.accelerators(), 3);
        assert_eq!(template.containers[0].mounts[0].volume, "model-weights");
        assert!(template.containers[0].env.contains("A"));
        assert!(template.containers[0].breaks.is_empty(), "absent settings say nothing");
        assert_eq!(endpoint.unknown_fields, ["/spec/kubernetes/tomorrow".to_owned()].into());
        let bucket = |name: &str, write| StorageUse::Bucket { name: name.to_owned(), write };
        let expected = [
            bucket("models", false),
            bucket("captured", true),
            bucket("certs", true),
            StorageUse::FileSystem { id: "fs-1".to_owned() },
            StorageUse::Model { hub: "huggingface".to_owned(), name: "a/b".to_owned() },
        ];
        assert_eq!(endpoint.storage, expected.into());
    }

    #[test]
    fn what_the_operator_does_beside_the_pods() {
        let spec = json!({
            "dnsConfig": {"hostedZoneId": "Z123"},
            "tlsConfig": {"customCertificateConfig": {"acmArn": "arn:aws:acm:us-east-1:1:certificate/a"}},
            "kvCacheSpec": {"l2CacheSpec": {"l2CacheLocalUrl": "redis://redis.other.svc.cluster.local:6379"}},
            "model": {"modelId": "m", "modelHubName": "ours"},
        });
        let expected = [
            (DoorKind::DnsZone, "Z123"),
            (DoorKind::Certificate, "arn:aws:acm:us-east-1:1:certificate/a"),
            (DoorKind::CacheServer, "redis://redis.other.svc.cluster.local:6379"),
        ];
        let expected: BTreeSet<_> = expected.iter().map(|(door, detail)| (*door, (*detail).to_owned())).collect();
        assert_eq!(read(inference, spec.clone()).doors, expected);
        let model = read(jump_start, spec);
        assert_eq!(model.doors, expected);
        assert_eq!(model.storage, [StorageUse::Model { hub: "ours".to_owned(), name: "m".to_owned() }].into());
    }

    #[test]
    fn caches_of_the_same_namespace() {
        for (url, expected) in [
            ("redis://redis:6379", true),
            ("redis://redis.team-a:6379", true),
            ("redis://user:word@redis.team-a.svc.cluster.local:6379/0", true),
            ("redis://redis.team-b.svc.cluster.local:6379", false),
            ("redis://redis.team-a.example.com", false),
            ("redis://10.0.0.1", false),
            ("redis:6379", false),
            ("redis://redis.team-b@redis.team-b/redis.team-a", false),
        ] {
            assert_eq!(is_in_namespace(url, Some("team-a")), expected, "{url}");
        }
        assert!(!is_in_namespace("redis://redis.team-a.svc", None));
    }

    #[test]
    fn a_gateway_says_who_may_enter() {
        let open = read(gateway, json!({"podDefaults": {"resources": {"limits": {"cpu": 1}}}}));
        assert_eq!(open.doors, [(DoorKind::OpenGateway, "chat".to_owned())].into());
        assert_eq!(gpus(&open), (0, Some(0)));
        let closed = read(gateway, json!({"auth": {"jwt": {"issuer": "a"}}}));
        assert!(closed.doors.is_empty());
        let greedy = read(gateway, json!({"podDefaults": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}));
        assert_eq!(gpus(&greedy), (1, None));
    }

    #[test]
    fn jump_start_is_estimated_from_its_instance() {
        for (server, expected) in [
            (json!({"instanceType": "ml.g5.8xlarge"}), (1, Some(4))),
            (json!({"instanceType": "ml.p5.48xlarge"}), (8, Some(32))),
            (json!({"instanceType": "ml.p5.48xlarge", "acceleratorPartitionType": "mig-1g.10gb"}), (1, Some(4))),
            (json!({"instanceType": "ml.trn2.48xlarge"}), (16, Some(64))),
            (json!({"instanceType": "ml.m5.large"}), (0, Some(0))),
            (json!({"instanceType": "ml.p9.48xlarge"}), (0, None)),
        ] {
            let scaling = json!({"maxReplicaCount": 4});
            let endpoint = read(jump_start, json!({"server": server, "autoScalingSpec": scaling}));
            assert_eq!(gpus(&endpoint), expected, "{server}");
            assert!(endpoint.demand.estimated);
        }
    }

    #[test]
    fn roles_of_jump_start() {
        let role = |name: &str| format!("arn:aws:iam::111122223333:role/{name}");
        let endpoint = read(
            jump_start,
            json!({"model": {"gatedModelDownloadRole": role("gated")}, "server": {"executionRole": role("run")}}),
        );
        assert_eq!(endpoint.roles, [role("gated"), role("run")].into());
    }
}
