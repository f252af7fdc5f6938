//! Reads a pod template: the one shape that every kind shares.
//!
//! A field that this version does not know is reported only where it may change who a pod is, where it runs, what it
//! mounts or what it holds: in security contexts, resources, resource claims, volume sources and mounts. A new field
//! elsewhere in a pod or container (a new kind of probe, say) is no reason to refuse work the day after an upgrade of
//! the cluster.

use std::collections::{BTreeMap, BTreeSet};

use super::json::Node;
use super::placement::Placement;
use super::pod_security::{self, Absence, Pod};
use super::{Container, FactsError, Image, Mount, PodTemplate, demand, volume};
use crate::amounts::{Amounts, shown};
use crate::vocabulary::{ContainerKind, Control};

const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// Variables by which container runtimes hand out devices that nobody asked the scheduler for. `CUDA_VISIBLE_DEVICES`
/// and `NEURON_RT_VISIBLE_CORES` are not among them: they only narrow what a process sees of what the container has.
const DEVICE_VARIABLES: &[&str] = &[
    NVIDIA_VISIBLE_DEVICES,
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "AWS_NEURON_VISIBLE_DEVICES",
    "AMD_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",
];

const NVIDIA_VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Values of those variables that hand out nothing. The gate itself writes `void`.
const NO_DEVICES: &[&str] = &["", "void", "none"];

/// Where NVIDIA's runtime looks for mounts that stand for devices, where the variable is not accepted.
const DEVICE_MOUNTS: &str = "/var/run/nvidia-container-devices";

const SECURITY_CONTEXT_FIELDS: &[&str] = &[
    "allowPrivilegeEscalation",
    "appArmorProfile",
    "capabilities",
    "privileged",
    "procMount",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
    "windowsOptions",
];

const POD_SECURITY_CONTEXT_FIELDS: &[&str] = &[
    "appArmorProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seLinuxChangePolicy",
    "seLinuxOptions",
    "seccompProfile",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "sysctls",
    "windowsOptions",
];

const RESOURCES_FIELDS: &[&str] = &["claims", "limits", "requests"];
const RESOURCE_CLAIM_FIELDS: &[&str] = &["name", "resourceClaimName", "resourceClaimTemplateName"];

/// Reads what holds `metadata` and `spec`: a Pod, or the template of a job kind.
pub(super) fn template(holder: &Node<'_, '_>) -> Result<PodTemplate, FactsError> {
    let metadata = holder.object("metadata")?;
    let spec = holder.object("spec")?;
    let mut template = blank(holder.pointer());
    template.labels = metadata.string_map("labels")?;
    template.annotations = metadata.string_map("annotations")?;
    read_spec(&spec, &mut template)?;
    Ok(template)
}

/// A template in which nothing is set.
pub(super) fn blank(pointer: String) -> PodTemplate {
    PodTemplate {
        pointer,
        synthetic: false,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        per_pod: Amounts::new(),
        service_account: None,
        priority_class: None,
        containers: Vec::new(),
        volumes: Vec::new(),
        host_network: false,
        host_pid: false,
        host_ipc: false,
        share_process_namespace: false,
        own_names: false,
        breaks: BTreeSet::new(),
        node_name: None,
        scheduler: DEFAULT_SCHEDULER.to_owned(),
        runtime_class: None,
        instance_families: BTreeSet::new(),
        any_instance: true,
        node_selectors: BTreeSet::new(),
        tolerations: BTreeSet::new(),
        scheduling_gates: BTreeSet::new(),
        uid: None,
        gid: None,
        gids: BTreeSet::new(),
        resource_claims: false,
        repels_others: false,
        unknown_fields: BTreeSet::new(),
    }
}

/// Fills a template from a pod spec.
pub(super) fn read_spec(spec: &Node<'_, '_>, template: &mut PodTemplate) -> Result<(), FactsError> {
    read_spec_where(Absence::Breaks, spec, template)
}

/// A part of a pod spec that is laid over another: what it leaves out says nothing.
pub(super) fn fragment(spec: &Node<'_, '_>) -> Result<PodTemplate, FactsError> {
    let mut template = PodTemplate { synthetic: true, ..blank(spec.pointer()) };
    read_spec_where(Absence::SaysNothing, spec, &mut template)?;
    Ok(template)
}

fn read_spec_where(absence: Absence, spec: &Node<'_, '_>, template: &mut PodTemplate) -> Result<(), FactsError> {
    let security = spec.object("securityContext")?;
    let pod = Pod::read(spec, &security, absence)?;
    read_containers(spec, &pod, template)?;
    template.volumes = volume::read_all(spec)?;
    read_host(spec, template)?;
    read_identity(&security, &pod, template)?;
    Placement::read(spec)?.write_to(template);
    // The first is the name that counts, the second its deprecated alias.
    template.service_account = spec.name("serviceAccountName")?.or(spec.name("serviceAccount")?);
    template.priority_class = spec.name("priorityClassName")?;
    if let Some(scheduler) = spec.name("schedulerName")? {
        template.scheduler = scheduler;
    }
    template.node_name = spec.name("nodeName")?;
    template.runtime_class = spec.name("runtimeClassName")?;
    for gate in spec.objects("schedulingGates")? {
        template.scheduling_gates.extend(gate?.name("name")?);
    }
    read_resources(spec, template)
}

/// Reads the three lists of containers, whose names are one space.
fn read_containers(spec: &Node<'_, '_>, pod: &Pod, template: &mut PodTemplate) -> Result<(), FactsError> {
    for key in ["containers", "initContainers", "ephemeralContainers"] {
        for node in spec.objects(key)? {
            let node = node?;
            let container = read_container(&node, kind(key, &node)?, pod, template)?;
            template.containers.push(container);
        }
    }
    refuse_repeated_names(&template.containers)
}

fn refuse_repeated_names(containers: &[Container]) -> Result<(), FactsError> {
    let mut names = BTreeSet::new();
    match containers.iter().find(|container| !names.insert(container.name.as_str())) {
        None => Ok(()),
        Some(Container { pointer, name, .. }) => Err(FactsError {
            pointer: format!("{pointer}/name"),
            problem: format!("repeats the container name {}", shown(name)),
        }),
    }
}

fn kind(list: &str, node: &Node<'_, '_>) -> Result<ContainerKind, FactsError> {
    Ok(match list {
        "containers" => ContainerKind::Main,
        "initContainers" if node.string("restartPolicy")? == Some("Always") => ContainerKind::Sidecar,
        "initContainers" => ContainerKind::Init,
        _ => ContainerKind::Ephemeral,
    })
}

/// Init containers of a kind that has no pod spec.
pub(super) fn read_init_containers(
    holder: &Node<'_, '_>,
    pod: &Pod,
    template: &mut PodTemplate,
) -> Result<(), FactsError> {
    for node in holder.objects("initContainers")? {
        let node = node?;
        let container = read_container(&node, kind("initContainers", &node)?, pod, template)?;
        template.containers.push(container);
    }
    refuse_repeated_names(&template.containers)
}

fn read_container(
    node: &Node<'_, '_>,
    kind: ContainerKind,
    pod: &Pod,
    template: &mut PodTemplate,
) -> Result<Container, FactsError> {
    let parts = Parts {
        node,
        name: node.string("name")?.unwrap_or_default(),
        security: &node.object("securityContext")?,
        resources: &node.object("resources")?,
        probes: node,
        env: "env",
    };
    container(&parts, kind, pod, template)
}

/// Where the parts of a container stand: a pod spec keeps them in one object, other kinds do not.
pub(super) struct Parts<'n> {
    pub(super) node: &'n Node<'n, 'n>,
    pub(super) name: &'n str,
    pub(super) security: &'n Node<'n, 'n>,
    pub(super) resources: &'n Node<'n, 'n>,
    pub(super) probes: &'n Node<'n, 'n>,
    /// The list of variables.
    pub(super) env: &'n str,
}

/// Reads a container. What it claims by DRA is noted on its template.
pub(super) fn container(
    parts: &Parts<'_>,
    kind: ContainerKind,
    pod: &Pod,
    template: &mut PodTemplate,
) -> Result<Container, FactsError> {
    let Parts { node, name, security, resources, probes, env } = parts;
    let mut unknown_fields = BTreeSet::new();
    security.note_unknown(SECURITY_CONTEXT_FIELDS, &mut unknown_fields);
    resources.note_unknown(RESOURCES_FIELDS, &mut unknown_fields);
    template.resource_claims |= !resources.list("claims")?.is_empty();
    let mounts = volume::mounts(node, &mut unknown_fields)?;
    let (env, device_variable) = read_env(node, env)?;
    // The gate hides GPUs from every other kind of container; into this one its image may bring the variable.
    let shown_by_its_image = kind == ContainerKind::Ephemeral && !env.contains(NVIDIA_VISIBLE_DEVICES);
    let added = security.object("capabilities")?.strings("add")?;
    Ok(Container {
        pointer: node.pointer(),
        name: (*name).to_owned(),
        kind,
        image: Image::parse(node.string("image")?.unwrap_or_default()),
        amounts: demand::counted(resources)?,
        sees_every_gpu: device_variable || shown_by_its_image || mounts.iter().any(stands_for_device),
        privileged: security.flag("privileged")?,
        allow_privilege_escalation: security.boolean("allowPrivilegeEscalation")?.unwrap_or(true),
        run_as_non_root: security.boolean("runAsNonRoot")?.or(pod.run_as_non_root).unwrap_or(false),
        added_capabilities: added.into_iter().map(str::to_owned).collect(),
        breaks: pod.container_breaks(node, security, probes)?,
        uid: security.integer("runAsUser")?.or(pod.uid),
        gid: security.integer("runAsGroup")?.or(pod.gid),
        mounts,
        env,
        env_from: !node.list("envFrom")?.is_empty(),
        unknown_fields,
    })
}

/// The names of variables, and whether one of them hands out devices. A value that is taken from elsewhere may be any.
fn read_env(node: &Node<'_, '_>, key: &str) -> Result<(BTreeSet<String>, bool), FactsError> {
    let mut names = BTreeSet::new();
    let mut hands_out = false;
    for variable in node.objects(key)? {
        let variable = variable?;
        let name = variable.string("name")?.unwrap_or_default();
        if DEVICE_VARIABLES.contains(&name) {
            let value = variable.string("value")?.unwrap_or_default();
            hands_out |= variable.has("valueFrom") || !NO_DEVICES.contains(&value);
        }
        names.insert(name.to_owned());
    }
    Ok((names, hands_out))
}

fn stands_for_device(mount: &Mount) -> bool {
    mount.path.starts_with(DEVICE_MOUNTS)
}

fn read_host(spec: &Node<'_, '_>, template: &mut PodTemplate) -> Result<(), FactsError> {
    template.host_network = spec.flag("hostNetwork")?;
    template.host_pid = spec.flag("hostPID")?;
    template.host_ipc = spec.flag("hostIPC")?;
    template.share_process_namespace = spec.flag("shareProcessNamespace")?;
    template.own_names = has_own_names(spec)?;
    if template.host_network || template.host_pid || template.host_ipc {
        template.breaks.insert(Control::HostNamespaces);
    }
    Ok(())
}

fn has_own_names(spec: &Node<'_, '_>) -> Result<bool, FactsError> {
    let of_cluster =
        matches!(spec.name("dnsPolicy")?.as_deref(), None | Some("ClusterFirst" | "ClusterFirstWithHostNet"));
    let configured = spec.object("dnsConfig")?.fields().next().is_some();
    Ok(!of_cluster || configured || spec.objects("hostAliases")?.next().is_some())
}

/// User, groups and the controls of the pod's security context.
pub(super) fn read_identity(security: &Node<'_, '_>, pod: &Pod, template: &mut PodTemplate) -> Result<(), FactsError> {
    security.note_unknown(POD_SECURITY_CONTEXT_FIELDS, &mut template.unknown_fields);
    template.breaks.append(&mut pod.breaks(security)?);
    if pod_security::apparmor_annotations_break(template.annotations.iter()) {
        template.breaks.insert(Control::AppArmor);
    }
    template.uid = pod.uid;
    template.gid = pod.gid;
    template.gids.extend(security.integer("fsGroup")?);
    template.gids.extend(security.integers("supplementalGroups")?);
    Ok(())
}

/// What one pod asks for, and what it claims by DRA.
fn read_resources(spec: &Node<'_, '_>, template: &mut PodTemplate) -> Result<(), FactsError> {
    let pod_level = spec.object("resources")?;
    pod_level.note_unknown(RESOURCES_FIELDS, &mut template.unknown_fields);
    for claim in spec.objects("resourceClaims")? {
        template.resource_claims = true;
        claim?.note_unknown(RESOURCE_CLAIM_FIELDS, &mut template.unknown_fields);
    }
    template.resource_claims |= !pod_level.list("claims")?.is_empty();
    let overhead = demand::counted_map(spec, "overhead")?;
    template.per_pod = demand::per_pod(&template.containers, &demand::counted(&pod_level)?, &overhead);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of_spec(spec: &Value) -> Result<PodTemplate, FactsError> {
        template(&Node::root(&json!({"spec": spec}))?)
    }

    fn of_container(container: Value) -> Container {
        of_spec(&json!({"containers": [container]})).expect("a pod").containers.remove(0)
    }

    #[test]
    fn nothing_set_is_kubernetes_default() -> Result<(), FactsError> {
        let template = of_spec(&json!({"containers": null, "volumes": null, "tolerations": null}))?;
        assert_eq!(template, blank(String::new()));
        Ok(())
    }

    #[test]
    fn devices_by_variable_or_mount() {
        let variable = |name: &str, value: &str| json!({"name": "a", "env": [{"name": name, "value": value}]});
        let table = [
            (variable("NVIDIA_VISIBLE_DEVICES", "all"), true),
            (variable("NVIDIA_VISIBLE_DEVICES", "0"), true),
            (variable("NVIDIA_VISIBLE_DEVICES", "GPU-8932f937"), true),
            (variable("NVIDIA_VISIBLE_DEVICES", "$(OTHER)"), true),
            (variable("NVIDIA_VISIBLE_DEVICES", "void"), false),
            (variable("NVIDIA_VISIBLE_DEVICES", "none"), false),
            (variable("NVIDIA_VISIBLE_DEVICES", ""), false),
            (variable("NVIDIA_MIG_CONFIG_DEVICES", "all"), true),
            (variable("AWS_NEURON_VISIBLE_DEVICES", "ALL"), true),
            (variable("CUDA_VISIBLE_DEVICES", "0"), false),
            (variable("NVIDIA_DRIVER_CAPABILITIES", "all"), false),
            (json!({"name": "a", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {}}]}), true),
            (json!({"name": "a", "volumeMounts": [{"name": "v", "mountPath": format!("{DEVICE_MOUNTS}/all")}]}), true),
        ];
        for (container, expected) in table {
            assert_eq!(of_container(container.clone()).sees_every_gpu, expected, "{container}");
        }
    }

    #[test]
    fn what_runs_already_gets_a_container_that_hides_the_gpus_itself() {
        let debugger = |env: Value| {
            let spec = json!({"ephemeralContainers": [{"name": "a", "env": env}]});
            of_spec(&spec).expect("a pod").containers[0].sees_every_gpu
        };
        assert!(debugger(json!([])));
        assert!(debugger(json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])));
        assert!(!debugger(json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])));
    }

    #[test]
    fn ids_in_force() {
        let spec = json!({
            "securityContext": {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4, 5]},
            "containers": [{"name": "a"}, {"name": "b", "securityContext": {"runAsUser": 6}}],
        });
        let template = of_spec(&spec).expect("a pod");
        let ids: Vec<_> = template.containers.iter().map(|container| (container.uid, container.gid)).collect();
        assert_eq!(ids, [(Some(1), Some(2)), (Some(6), Some(2))]);
        assert_eq!(template.gids, BTreeSet::from([3, 4, 5]));
    }

    #[test]
    fn new_fields_are_noted_where_they_matter() {
        let spec = json!({
            "newPodField": {"mode": "new"},
            "securityContext": {"newer": 1},
            "resources": {"newer": 1},
            "resourceClaims": [{"name": "gpu", "newer": 1}],
            "containers": [{
                "name": "a",
                "newContainerField": {"nested": [1]},
                "securityContext": {"newer": 1},
                "resources": {"newer": 1, "claims": [{"name": "gpu"}]},
                "volumeMounts": [{"name": "v", "mountPath": "/v", "newer": 1}],
            }],
            "volumes": [{"name": "v", "newer": {}}],
        });
        let template = of_spec(&spec).expect("a pod");
        let owned = |pointers: &[&str]| pointers.iter().map(|pointer| (*pointer).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(
            template.unknown_fields,
            owned(&["/spec/securityContext/newer", "/spec/resources/newer", "/spec/resourceClaims/0/newer"])
        );
        assert_eq!(
            template.containers[0].unknown_fields,
            owned(&[
                "/spec/containers/0/securityContext/newer",
                "/spec/containers/0/resources/newer",
                "/spec/containers/0/volumeMounts/0/newer",
            ])
        );
        assert_eq!(template.volumes[0].unknown_fields, owned(&["/spec/volumes/0/newer"]));
        assert!(template.resource_claims);
    }

    #[test]
    fn container_names_are_one_space() {
        let spec = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "a"}]});
        let error = of_spec(&spec).expect_err("two of a name");
        assert_eq!(error.to_string(), "`/spec/initContainers/0/name` repeats the container name `a`");
    }

    #[test]
    fn wrong_types_are_named_with_their_place() {
        let table = [
            (json!({"hostNetwork": "yes"}), "`/spec/hostNetwork` must be true or false"),
            (json!({"containers": {}}), "`/spec/containers` must be a list"),
            (json!({"containers": [1]}), "`/spec/containers/0` must be an object"),
            (json!({"containers": [{"name": 1}]}), "`/spec/containers/0/name` must be a string"),
            (
                json!({"securityContext": {"supplementalGroups": ["a"]}}),
                "`/spec/securityContext/supplementalGroups/0` must be a whole number",
            ),
            (json!({"nodeSelector": {"a/b": 1}}), "`/spec/nodeSelector/a~1b` must be a string"),
        ];
        for (spec, message) in table {
            assert_eq!(of_spec(&spec).expect_err("wrong type").to_string(), message);
        }
    }
}
