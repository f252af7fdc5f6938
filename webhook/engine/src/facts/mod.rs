//! Takes an object apart into the facts that questions are asked about: one module per kind or a kind's configuration, one shared reading of pod
//! specs, one shared demand function. Nothing here knows a team, a policy or a cluster.
//!
//! ```text
//! extract --> pod, job, apps, kinds (configured)  --> pod_spec --> pod_security, volume, placement, image, demand
//!         --> endpoint, workspace (no pod spec)   --> the parts of the same
//!         --> fallback: templates of other kinds, else doors
//! ```

mod apps;
mod demand;
mod doors;
mod endpoint;
mod fallback;
mod image;
pub mod instance;
mod job;
mod json;
pub mod kinds;
#[cfg(test)]
mod laws;
mod placement;
mod pod;
mod pod_security;
mod pod_spec;
mod scaler;
#[cfg(test)]
mod tables;
mod volume;
mod workload;
mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use crate::amounts::Amounts;
use crate::cluster::{StoredObject, is_finished};
use crate::vocabulary::{Class, ContainerKind, Control, DoorKind, VolumeKind};

use self::json::Node;
use self::kinds::Kinds;

/// What is under review: group, kind and plural of the object itself, as the review's `requestKind` and
/// `requestResource` name them. The version is left out: all served versions of a kind are read alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindRef<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    /// The plural; empty where nobody knows it (a manifest that is checked offline).
    pub resource: &'a str,
}

impl KindRef<'_> {
    /// The plural decides, because AWS spells the same kind in two ways. The kind is compared without case, for want of a
    /// plural; and to see that a subresource (a `Scale` of `deployments`) is not taken for its parent.
    fn is(&self, group: &str, plural: &str, kind: &str) -> bool {
        self.group == group
            && (self.kind.eq_ignore_ascii_case(kind) || (self.has_plural(plural) && !self.is_subresource_body()))
    }

    fn has_plural(&self, plural: &str) -> bool {
        !plural.is_empty() && self.resource == plural
    }

    /// Objects that are sent to a subresource and stand under the plural of its parent.
    fn is_subresource_body(&self) -> bool {
        self.kind.ends_with("Options") || ["Scale", "Eviction", "Binding", "TokenRequest"].contains(&self.kind)
    }
}

/// Why facts cannot be had. The object is to be refused: what cannot be read cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactsError {
    /// JSON pointer of the field.
    pub pointer: String,
    /// What is wrong there, to follow the field's name in a sentence.
    pub problem: String,
}

impl fmt::Display for FactsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pointer, problem } = self;
        match pointer.as_str() {
            "" => write!(formatter, "the object {problem}"),
            pointer => write!(formatter, "`{pointer}` {problem}"),
        }
    }
}

impl std::error::Error for FactsError {}

/// Reads what an object asks for. An error names the field and what is wrong with it.
pub fn extract(kinds: &Kinds, kind: &KindRef<'_>, object: &Value) -> Result<Facts, FactsError> {
    let node = Node::root(object)?;
    if let Some((.., read)) = READERS.iter().find(|(group, plural, name, _)| kind.is(group, plural, name)) {
        return read(&node).map(Facts::Workload);
    }
    match kinds.find(kind) {
        Some(kind) => kinds::read(kind, object, &node).map(Facts::Workload),
        None => fallback::read(kind, &node),
    }
}

/// What a stored object needs of the quota now; nothing once it has finished, or where it cannot be read.
pub(crate) fn stored_demand(kinds: &Kinds, stored: &StoredObject) -> Amounts {
    if is_finished(&stored.object) {
        return Amounts::new();
    }
    let Ok(Facts::Workload(workload)) = extract(kinds, &stored_kind(stored), &stored.object) else {
        return Amounts::new();
    };
    match (stored.meta.kind.as_str(), workload.templates.as_slice()) {
        ("Pod", [pod, ..]) => pod.per_pod.clone(),
        ("Job", [template, ..]) => {
            workload.demand.floor.min(&template.per_pod.saturating_scale(job::left_to_run(&stored.object)))
        }
        _ => workload.demand.floor,
    }
}

pub(crate) fn class_of(kinds: &Kinds, stored: &StoredObject) -> Class {
    match extract(kinds, &stored_kind(stored), &stored.object) {
        Ok(Facts::Workload(workload)) => workload.class,
        Ok(Facts::Object(_)) | Err(_) => Class::Other,
    }
}

fn stored_kind(stored: &StoredObject) -> KindRef<'_> {
    KindRef { group: &stored.meta.group, kind: &stored.meta.kind, resource: "" }
}

type Reader = fn(&Node<'_, '_>) -> Result<Workload, FactsError>;

/// Group, plural and kind of what runs pods and has a reader of its own.
const READERS: &[(&str, &str, &str, Reader)] = &[
    ("", "pods", "Pod", pod::read),
    ("batch", "jobs", "Job", job::read),
    ("apps", "replicasets", "ReplicaSet", apps::replica_set),
    ("apps", "deployments", "Deployment", apps::deployment),
    ("apps", "statefulsets", "StatefulSet", apps::stateful_set),
    ("apps", "daemonsets", "DaemonSet", apps::daemon_set),
    ("", "replicationcontrollers", "ReplicationController", apps::replica_set),
    ("batch", "cronjobs", "CronJob", job::cron_job),
    ("inference.sagemaker.aws.amazon.com", "inferenceendpointconfigs", "InferenceEndpointConfig", endpoint::inference),
    ("inference.sagemaker.aws.amazon.com", "jumpstartmodels", "JumpStartModel", endpoint::jump_start),
    ("inference.sagemaker.aws.amazon.com", "inferencegatewayconfigs", "InferenceGatewayConfig", endpoint::gateway),
    ("workspace.jupyter.org", "workspaces", "Workspace", workspace::read),
];

/// The kind behind a plural, which is all that a request for a subresource says of it. Of a kind that nobody reads the name is
/// made from a regular plural, and has no capitals.
pub fn kind_of<'a>(group: &str, plural: &'a str) -> &'a str {
    let known = READERS.iter().find(|(of_group, known, ..)| *of_group == group && *known == plural);
    known.map_or_else(|| plural.strip_suffix('s').unwrap_or(plural), |(_, _, kind, _)| *kind)
}

pub(crate) use doors::of_metadata as doors_of_metadata;

/// What an object asks for.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one for each review, made once and never kept in a collection")]
pub enum Facts {
    /// Something that runs pods, now or through a controller.
    Workload(Workload),
    /// Any other object: what matters is whether it opens a way past the gate.
    Object(Object),
}

/// An object that is no workload.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Object {
    /// Ways past the gate, with what exactly (a label key, a role ARN, a rule).
    pub doors: BTreeSet<(DoorKind, String)>,
    /// What it lets grow, if it is there for that.
    pub scales: Option<Scales>,
}

/// The target of an autoscaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scales {
    pub group: String,
    pub kind: String,
    pub name: String,
    /// The most replicas that it may set.
    pub most: u64,
}

/// An object that runs pods.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// What this kind is for. The class that policies see is that of the root.
    pub class: Class,
    /// Every pod template, in the order of the object. A Pod has one, itself.
    pub templates: Vec<PodTemplate>,
    /// Accelerators and pods.
    pub demand: Demand,
    /// All its pods are one pod set to Kueue, which gives them one kind of node: a Job's.
    pub is_one_pod_set: bool,
    /// Nothing runs until it is resumed (`spec.suspend`, `desiredStatus: Stopped`).
    pub suspended: bool,
    /// LocalQueues named by label, on the object or in a template.
    pub queues: BTreeSet<String>,
    /// Priority classes named by label or by `priorityClassName`, on the object or in a template.
    pub priority_classes: BTreeSet<String>,
    /// Keys of Kueue's, of labels and annotations, on the object or in a template. Some of them lead past the queue.
    pub queue_keys: BTreeSet<String>,
    /// It says of itself that something controls it. Kueue believes that, and lets the child of what it has admitted run.
    pub is_controlled: bool,
    /// ServiceAccount named outside a pod template (Workspace, endpoint kinds). Their synthetic templates name it too.
    pub service_account: Option<String>,
    /// IAM role ARNs that the object names.
    pub roles: BTreeSet<String>,
    /// Storage outside the pods that endpoint kinds name.
    pub storage: BTreeSet<StorageUse>,
    /// Ways past the gate that come with it.
    pub doors: BTreeSet<(DoorKind, String)>,
    /// Claims that come with the object: names of a StatefulSet's `volumeClaimTemplates`, the home claim of a Space.
    pub claim_templates: BTreeSet<String>,
    /// Fields that this version does not know, in a place that matters, outside the templates; JSON pointers.
    pub unknown_fields: BTreeSet<String>,
}

impl Workload {
    /// What nothing is known of: it asks for nothing and has one pod.
    pub fn unknown() -> Self {
        Self {
            class: Class::Other,
            templates: Vec::new(),
            demand: Demand {
                floor: Amounts::new(),
                ceiling: Bound::AtMost(Amounts::new()),
                pods: 1,
                pods_ceiling: Some(1),
                reserves: false,
                estimated: false,
                surge: Amounts::new(),
                surge_hint: String::new(),
            },
            is_one_pod_set: false,
            suspended: false,
            queues: BTreeSet::new(),
            priority_classes: BTreeSet::new(),
            queue_keys: BTreeSet::new(),
            is_controlled: false,
            service_account: None,
            roles: BTreeSet::new(),
            storage: BTreeSet::new(),
            doors: BTreeSet::new(),
            claim_templates: BTreeSet::new(),
            unknown_fields: BTreeSet::new(),
        }
    }
}

/// Storage that an endpoint kind names directly.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageUse {
    /// An S3 bucket.
    Bucket { name: String, write: bool },
    /// An FSx file system id.
    FileSystem { id: String },
    /// Weights from outside AWS, as a Hugging Face model.
    Model { hub: String, name: String },
}

/// What a workload asks of the quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// What runs now; zero while suspended.
    pub floor: Amounts,
    /// The most that this object may ever hold without another admission.
    pub ceiling: Bound,
    /// Pods now.
    pub pods: u64,
    /// Pods at most; `None` is unbounded.
    pub pods_ceiling: Option<u64>,
    /// The topmost object with a fixed size reserves. CronJobs and their like reserve nothing: each Job does.
    pub reserves: bool,
    /// Worked out from an instance type or the like, to be replaced by what the pods really ask.
    pub estimated: bool,
    /// What a rolling update may hold beside the ceiling (Deployment `maxSurge`).
    pub surge: Amounts,
    /// What to set so that it holds nothing beside it.
    pub surge_hint: String,
}

/// An upper bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// At most this much.
    AtMost(Amounts),
    /// No bound is set, or nobody knows one; the hint says what to set, with the field's path.
    Unbounded { problem: String, hint: String },
}

/// One pod template, or a Pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodTemplate {
    /// JSON pointer of what holds `metadata` and `spec`: `""` for a Pod, `/spec/template` for a Job.
    pub pointer: String,
    /// A synthetic template (endpoint kinds, Workspace) has no pod spec in the object.
    pub synthetic: bool,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Extended resources of one pod, by the rule of Kubernetes' own pod requests.
    pub per_pod: Amounts,
    pub service_account: Option<String>,
    /// `priorityClassName`.
    pub priority_class: Option<String>,
    pub containers: Vec<Container>,
    pub volumes: Vec<Volume>,
    pub host_network: bool,
    pub host_pid: bool,
    pub host_ipc: bool,
    pub share_process_namespace: bool,
    /// Names resolve otherwise than the cluster says.
    pub own_names: bool,
    /// Pod-level controls only; containers and volumes carry their own.
    pub breaks: BTreeSet<Control>,
    pub node_name: Option<String>,
    /// `default-scheduler` where absent.
    pub scheduler: String,
    pub runtime_class: Option<String>,
    /// `p5`, `g6e` ...: all families that node selector and required affinity leave open.
    pub instance_families: BTreeSet<String>,
    /// Nothing pins the instance type.
    pub any_instance: bool,
    /// Label keys of node selector and node affinity.
    pub node_selectors: BTreeSet<String>,
    /// Taint keys; `*` tolerates everything.
    pub tolerations: BTreeSet<String>,
    /// What holds its pods back from the scheduler: Kueue's `kueue.x-k8s.io/admission`.
    pub scheduling_gates: BTreeSet<String>,
    /// `runAsUser`, `runAsGroup` of the pod's security context.
    pub uid: Option<i64>,
    pub gid: Option<i64>,
    /// fsGroup and supplementalGroups.
    pub gids: BTreeSet<i64>,
    /// Pod-level DRA claims, or a container that uses one.
    pub resource_claims: bool,
    /// Required anti-affinity to pods of other namespaces.
    pub repels_others: bool,
    pub unknown_fields: BTreeSet<String>,
}

/// A container of any of the three lists.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// JSON pointer of the container itself.
    pub pointer: String,
    pub name: String,
    pub kind: ContainerKind,
    /// Empty where a synthetic template names none (a JumpStart model, a Space that leaves it to its template): only the
    /// pod shows it.
    pub image: Image,
    /// Counted resources this container asks (see `amounts::is_counted`), whole, in units.
    pub amounts: Amounts,
    /// Sets NVIDIA_VISIBLE_DEVICES or its like to a value that hands out devices, or mounts what stands for one.
    pub sees_every_gpu: bool,
    pub privileged: bool,
    /// Kubernetes' default is true.
    pub allow_privilege_escalation: bool,
    pub run_as_non_root: bool,
    pub added_capabilities: BTreeSet<String>,
    pub breaks: BTreeSet<Control>,
    /// In force: the container's own, else the pod's.
    pub uid: Option<i64>,
    pub gid: Option<i64>,
    pub mounts: Vec<Mount>,
    /// Names set in `env`.
    pub env: BTreeSet<String>,
    pub env_from: bool,
    pub unknown_fields: BTreeSet<String>,
}

/// An image reference taken apart, Docker Hub's short names written out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    pub registry: String,
    pub repository: String,
    pub tag: Option<String>,
    pub digest: Option<String>,
}

/// A volume of a pod. A projected volume gives several of one name: one for each Secret in it and one for the rest.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// JSON pointer of the volume.
    pub pointer: String,
    /// Name within the pod.
    pub name: String,
    pub kind: VolumeKind,
    /// Name of the claim, ConfigMap or Secret; the reference of an image; what an ephemeral claim binds to by name.
    pub source: Option<String>,
    /// hostPath, cleaned of `.`, `..` and `//`.
    pub path: Option<String>,
    pub driver: Option<String>,
    pub storage_class: Option<String>,
    /// Whom projected tokens are for; empty for the API server's own and for what EKS injects.
    pub audiences: BTreeSet<String>,
    /// `readOnly` of the volume source itself.
    pub read_only: bool,
    pub breaks: BTreeSet<Control>,
    pub unknown_fields: BTreeSet<String>,
}

/// A volumeMount (or a volumeDevice, which has no path within the volume).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mount {
    /// The volume's name within the pod.
    pub volume: String,
    pub path: String,
    pub sub_path: Option<String>,
    pub sub_path_expr: bool,
    pub read_only: bool,
    pub propagates: bool,
}
