//! What the gate adds. Only on CREATE; on UPDATE it puts its own keys back, because GitOps replaces them.
//!
//! Roots get metadata: the stamp, labels for billing, the team's queue. Pods get everything: the team's storage and the
//! submitter's home, POSIX ids, the team's service account, and a neutral `NVIDIA_VISIBLE_DEVICES` for containers that ask
//! no GPU (an image may set it to `all`, and would then see every GPU of the node). What is there already is respected.

use serde_json::{Value, json};

use crate::cluster::group_version;
use crate::facts::kinds::Kinds;
use crate::facts::{Container, PodTemplate};
use crate::json;
use crate::patch::PatchBuilder;
use crate::placed::Placed;
use crate::stamp::{self, Submitter, label_value};
use crate::team::{Person, Posix, Storage, Team};
use crate::vocabulary::{Class, VolumeKind};
use crate::world::is_completed;

/// Kueue's labels.
pub const QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";
pub const PRIORITY_CLASS: &str = "kueue.x-k8s.io/priority-class";
/// Without it Kueue does not look after a pod any more.
const MANAGED: &str = "kueue.x-k8s.io/managed";
/// Variables that the gate sets, and that policies therefore do not see in `env`.
pub const INJECTED_ENV: [&str; 4] = [NVIDIA_VISIBLE_DEVICES, "HOME", "USER", "LOGNAME"];
const NVIDIA_VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// The NVIDIA runtime gives no device for it (NVIDIA/k8s-device-plugin issue 87).
const NO_DEVICES: &str = "void";

/// A storage entry with its placeholders filled in for one submitter.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer<'a> {
    pub storage: &'a Storage,
    pub mount_path: String,
    pub sub_path: Option<String>,
    /// Whose home, if it is one.
    pub owner: Option<&'a str>,
}

/// What the team offers a pod of this person.
pub fn offers<'a>(team: &'a Team, person: Option<&'a Person>) -> Vec<Offer<'a>> {
    let home = person.and_then(|person| person.home.as_deref());
    let fill = |storage: &'a Storage| {
        let sub_path = match &storage.sub_path {
            Some(pattern) => Some(storage.fill(pattern, &team.name, home)?),
            None => None,
        };
        let mount_path = storage.fill(&storage.mount_path, &team.name, home)?;
        let owner = person.filter(|_| storage.is_home()).map(|person| person.name.as_str());
        Some(Offer { storage, mount_path, sub_path, owner })
    };
    team.spec.storage.iter().filter(|storage| storage.injects()).filter_map(fill).collect()
}

/// Whether POSIX ids let a pod have storage on which they keep people apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// The pod sets none: the person's are put in.
    Inject { uid: u32, gid: u32 },
    /// They are the person's already.
    Theirs,
    /// The person has none, or there is no person.
    Unknown,
    /// The pod sets others.
    Foreign,
}

/// Looks at what pod and containers set.
pub fn ids(template: &PodTemplate, person: Option<&Person>) -> Ids {
    let Some((uid, gid)) = person.and_then(|person| Some((person.uid?, person.gid?))) else { return Ids::Unknown };
    let completed = || template.containers.iter().filter(|container| is_completed(container.kind));
    let sets_none = |container: &Container| container.uid.is_none() && container.gid.is_none();
    if template.uid.is_none() && template.gid.is_none() && completed().all(sets_none) {
        return Ids::Inject { uid, gid };
    }
    let theirs = |container: &Container| container.uid == Some(uid.into()) && container.gid == Some(gid.into());
    if completed().all(theirs) { Ids::Theirs } else { Ids::Foreign }
}

/// Whether a storage may be given with these ids.
pub fn fits(storage: &Storage, ids: Ids) -> bool {
    match (storage.posix, ids) {
        (Posix::Off, _) | (_, Ids::Theirs) | (Posix::Inject, Ids::Inject { .. }) => true,
        (Posix::Inject | Posix::Require, Ids::Unknown | Ids::Foreign) | (Posix::Require, Ids::Inject { .. }) => false,
    }
}

/// Writes the stamp and the labels of billing into an object's own metadata.
pub fn stamp(builder: &mut PatchBuilder, submitter: &Submitter, team: &Team, class: Option<Class>, charges: bool) {
    set_annotation(builder, stamp::SUBMITTED_BY, &submitter.annotation());
    builder.remove(&["metadata", "annotations", stamp::PLACED]);
    set_label(builder, stamp::TEAM, &team.name);
    match class {
        Some(class) => set_label(builder, stamp::CLASS, class.id()),
        None => builder.remove(&["metadata", "labels", stamp::CLASS]),
    }
    match &submitter.person {
        Some(person) => set_label(builder, stamp::PERSON, &label_value(person)),
        None => builder.remove(&["metadata", "labels", stamp::PERSON]),
    }
    match &team.spec.cost_center {
        Some(center) if charges => set_label(builder, stamp::COST_CENTER, center),
        Some(_) | None => builder.remove(&["metadata", "labels", stamp::COST_CENTER]),
    }
    for (key, value) in &team.spec.labels {
        set_label(builder, key, value);
    }
}

/// Writes the stamp alone: in what a controller made, everything else is the controller's.
pub fn correct(builder: &mut PatchBuilder, submitter: &Submitter) {
    set_annotation(builder, stamp::SUBMITTED_BY, &submitter.annotation());
}

/// The old object, once another person has changed what runs: the stamp's person goes, and everything personal with it.
pub fn rewritten(old: &Value, submitter: &Submitter) -> Value {
    let mut builder = PatchBuilder::new(old.clone());
    set_annotation(&mut builder, stamp::SUBMITTED_BY, &submitter.annotation());
    builder.remove(&["metadata", "labels", stamp::PERSON]);
    builder.finish().0
}

/// The old object with what is to be noted on it.
pub fn placed(old: &Value, placed: &Placed) -> Value {
    let mut builder = PatchBuilder::new(old.clone());
    note_placement(&mut builder, placed);
    builder.finish().0
}

/// Where the queue has put the pods.
pub fn note_placement(builder: &mut PatchBuilder, placed: &Placed) {
    match placed.is_empty() {
        true => builder.remove(&["metadata", "annotations", stamp::PLACED]),
        false => set_annotation(builder, stamp::PLACED, &serde_json::to_string(placed).unwrap_or_default()),
    }
}

/// The team's queue, where the object names none; and the team's first priority class with it.
pub fn enqueue(builder: &mut PatchBuilder, queue: &str, priority: Option<&str>) {
    if label(builder.object(), QUEUE_NAME).is_none() {
        set_label(builder, QUEUE_NAME, queue);
    }
    if let (Some(priority), None) = (priority, label(builder.object(), PRIORITY_CLASS)) {
        set_label(builder, PRIORITY_CLASS, priority);
    }
}

/// UPDATE: the gate's own keys are as they were, whatever the new manifest says.
/// `by_part`: a part of the cluster updates it, and Kueue takes its own label away when it pleases.
pub fn put_back(builder: &mut PatchBuilder, old: &Value, team: &Team, by_part: bool) {
    for list in ["labels", "annotations"] {
        let before = json::object(old, &["metadata", list]);
        let ours = |key: &str| is_ours(key) || (list == "labels" && team.spec.labels.contains_key(key));
        for (key, value) in before.iter().filter(|(key, _)| ours(key)) {
            builder.set(&["metadata", list, key], value.clone());
        }
        let now = json::object(builder.object(), &["metadata", list]);
        let forged: Vec<String> =
            now.keys().filter(|key| is_ours(key) && !before.contains_key(*key)).cloned().collect();
        for key in forged {
            builder.remove(&["metadata", list, &key]);
        }
    }
    // A label that we gave on CREATE is not in the manifest that is applied again.
    let keys = if by_part { &[QUEUE_NAME, PRIORITY_CLASS][..] } else { &[QUEUE_NAME, PRIORITY_CLASS, MANAGED][..] };
    for key in keys.iter().copied() {
        if let (Some(value), None) = (label(old, key), label(builder.object(), key)) {
            set_label(builder, key, value);
        }
    }
}

fn is_ours(key: &str) -> bool {
    key.starts_with(stamp::PREFIX) && key != stamp::REASON
}

/// The service account that gives the pods their role; only in place of none or `default`. `template` is the way to what
/// holds the pod spec: nowhere further for a pod.
pub fn service_account(builder: &mut PatchBuilder, template: &[&str], name: &str) {
    let at = |key| [template, &["spec", key]].concat();
    let spec = |key| json::walk(builder.object(), &at(key)).and_then(Value::as_str).filter(|name| !name.is_empty());
    // The first is the name that counts, the second its deprecated alias.
    let named = spec("serviceAccountName").or(spec("serviceAccount"));
    if !matches!(named, None | Some("default")) || name == "default" {
        return;
    }
    builder.set(&at("serviceAccountName"), name.into());
    // The alias is kept equal: the API server fills it, and other webhooks read it.
    if json::walk(builder.object(), &at("serviceAccount")).is_some() {
        builder.set(&at("serviceAccount"), name.into());
    }
}

/// Mounts an offer in every container that has nothing at its path. Returns whether anything was mounted.
pub fn mount(builder: &mut PatchBuilder, offer: &Offer<'_>, template: &PodTemplate) -> bool {
    let lacking: Vec<&Container> =
        template.containers.iter().filter(|container| lacks(container, &offer.mount_path)).collect();
    if lacking.is_empty() {
        return false;
    }
    let volume = volume_for(builder, offer, template);
    for container in lacking {
        let mut mount = json!({"name": volume, "mountPath": offer.mount_path});
        if let Some(sub_path) = &offer.sub_path {
            mount["subPath"] = sub_path.as_str().into();
        }
        if offer.storage.read_only {
            mount["readOnly"] = true.into();
        }
        let path = tokens(&container.pointer);
        builder.append(&[path.as_slice(), &["volumeMounts"]].concat(), mount);
    }
    true
}

fn lacks(container: &Container, path: &str) -> bool {
    let same = |mounted: &str| mounted.trim_end_matches('/') == path.trim_end_matches('/');
    is_completed(container.kind) && !container.mounts.iter().any(|mount| same(&mount.path))
}

/// A volume of the pod that has the claim already, or ours beside the others.
fn volume_for(builder: &mut PatchBuilder, offer: &Offer<'_>, template: &PodTemplate) -> String {
    let claim = &offer.storage.claim;
    let usable = |volume: &&crate::facts::Volume| {
        volume.kind == VolumeKind::Claim
            && volume.source.as_ref() == Some(claim)
            && (!volume.read_only || offer.storage.read_only)
    };
    if let Some(volume) = template.volumes.iter().find(usable) {
        return volume.name.clone();
    }
    // Another entry of the same claim may have added it a moment ago.
    let volumes = json::list(builder.object(), &["spec", "volumes"]);
    let claims = |volume: &&Value| {
        json::text(volume, &["persistentVolumeClaim", "claimName"]) == Some(claim)
            && json::at(volume, &["persistentVolumeClaim", "readOnly"]).is_none()
    };
    if let Some(name) = volumes.iter().find(claims).and_then(|volume| json::text(volume, &["name"])) {
        return name.to_owned();
    }
    let taken = |name: &str| volumes.iter().any(|volume| json::text(volume, &["name"]) == Some(name));
    let name = std::iter::once(offer.storage.name.clone())
        .chain((2..).map(|count| format!("{}-{count}", offer.storage.name)))
        .find(|name| !taken(name))
        .unwrap_or_default();
    builder.append(&["spec", "volumes"], json!({"name": name, "persistentVolumeClaim": {"claimName": claim}}));
    name
}

/// The person's ids for the whole pod.
pub fn posix(builder: &mut PatchBuilder, person: &Person) {
    let (Some(uid), Some(gid)) = (person.uid, person.gid) else { return };
    builder.set(&["spec", "securityContext", "runAsUser"], uid.into());
    builder.set(&["spec", "securityContext", "runAsGroup"], gid.into());
    let given = json::at(builder.object(), &["spec", "securityContext", "supplementalGroups"]).is_some();
    if !given && !person.supplemental_groups.is_empty() {
        builder.set(&["spec", "securityContext", "supplementalGroups"], json!(person.supplemental_groups));
    }
}

/// What programs expect to go with a home.
pub fn home_variables(home: &str, path: &str) -> [(&'static str, String); 3] {
    [("HOME", path), ("USER", home), ("LOGNAME", home)].map(|(name, value)| (name, value.to_owned()))
}

/// Sets them in every container that does not say otherwise.
pub fn settle_in(builder: &mut PatchBuilder, template: &PodTemplate, variables: &[(&'static str, String)]) {
    for container in template.containers.iter().filter(|container| is_completed(container.kind)) {
        for (variable, value) in variables {
            add_env(builder, container, variable, value);
        }
    }
}

/// A container has all of them: the ids of the pod were put in before, when the gate was asked about it for the first time.
pub fn has_settled_in(object: &Value, template: &PodTemplate, variables: &[(&'static str, String)]) -> bool {
    let has = |container: &Container, (name, value): &(&str, String)| {
        let env = object.pointer(&container.pointer).map(|found| json::list(found, &["env"])).unwrap_or_default();
        env.iter()
            .any(|entry| json::text(entry, &["name"]) == Some(name) && json::text(entry, &["value"]) == Some(value))
    };
    let mut completed = template.containers.iter().filter(|container| is_completed(container.kind));
    completed.any(|container| variables.iter().all(|variable| has(container, variable)))
}

/// Hides the node's GPUs from containers that ask for none.
pub fn hide_gpus(builder: &mut PatchBuilder, template: &PodTemplate) {
    let asks_none = |container: &&Container| is_completed(container.kind) && !asks_nvidia(container);
    for container in template.containers.iter().filter(asks_none) {
        add_env(builder, container, NVIDIA_VISIBLE_DEVICES, NO_DEVICES);
    }
}

fn asks_nvidia(container: &Container) -> bool {
    container.amounts.iter().any(|(name, _)| name.as_str().starts_with("nvidia.com/"))
}

fn add_env(builder: &mut PatchBuilder, container: &Container, name: &str, value: &str) {
    if !container.env.contains(name) {
        let path = tokens(&container.pointer);
        builder.append(&[path.as_slice(), &["env"]].concat(), json!({"name": name, "value": value}));
    }
}

/// The queue of a pod that a controller makes: its root's, or the team's if nothing else would queue it.
pub fn queue_of_child<'a>(root: &'a Value, team: &'a Team, kinds: &Kinds) -> Option<&'a str> {
    let of_root = label(root, QUEUE_NAME);
    let (group, _) = group_version(json::text(root, &["apiVersion"]).unwrap_or_default());
    let kind = json::text(root, &["kind"]).unwrap_or_default();
    of_root.or_else(|| (!kinds.has_queue(group, kind)).then_some(team.spec.queue.as_deref()).flatten())
}

/// An empty label counts as none: a queue without a name is no queue.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    json::text(object, &["metadata", "labels", key]).filter(|value| !value.is_empty())
}

fn set_label(builder: &mut PatchBuilder, key: &str, value: &str) {
    builder.set(&["metadata", "labels", key], value.into());
}

fn set_annotation(builder: &mut PatchBuilder, key: &str, value: &str) {
    builder.set(&["metadata", "annotations", key], value.into());
}

/// `/spec/containers/0` as tokens; our own pointers hold no escapes.
fn tokens(pointer: &str) -> Vec<&str> {
    pointer.split('/').skip(1).collect()
}
