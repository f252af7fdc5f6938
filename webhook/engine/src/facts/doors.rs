//! Ways past the gate: objects that run nothing and yet give somebody an identity, a right, a volume, an address or a
//! place in a queue. Each is a question of its own, so none passes because an object of its kind may be created.
//!
//! All labels of a Namespace are doors, because only the site knows which of them select webhooks or bind a team; policies
//! look at the detail. What an update takes away is seen by comparing with the doors of the old object.

use std::collections::BTreeSet;

use serde_json::Value;

use super::json::Node;
use super::{FactsError, KindRef};
use crate::json;
use crate::vocabulary::DoorKind;

type Doors = BTreeSet<(DoorKind, String)>;
type Reader = fn(&Node<'_, '_>, &mut Doors) -> Result<(), FactsError>;

/// Group, plural and kind of what may open a door, and how it is read.
const READERS: &[(&str, &str, &str, Reader)] = &[
    ("", "secrets", "Secret", secret),
    ("", "serviceaccounts", "ServiceAccount", service_account),
    ("authentication.k8s.io", "", "TokenRequest", token_request),
    ("rbac.authorization.k8s.io", "roles", "Role", role),
    ("rbac.authorization.k8s.io", "clusterroles", "ClusterRole", role),
    ("rbac.authorization.k8s.io", "rolebindings", "RoleBinding", role_binding),
    ("rbac.authorization.k8s.io", "clusterrolebindings", "ClusterRoleBinding", role_binding),
    ("", "persistentvolumes", "PersistentVolume", persistent_volume),
    ("", "persistentvolumeclaims", "PersistentVolumeClaim", claim),
    ("", "services", "Service", service),
    ("networking.k8s.io", "ingresses", "Ingress", ingress),
    ("networking.k8s.io", "networkpolicies", "NetworkPolicy", network_policy),
    ("apps", "controllerrevisions", "ControllerRevision", controller_revision),
    ("", "namespaces", "Namespace", namespace),
    ("", "bindings", "Binding", binding),
    ("kueue.x-k8s.io", "workloads", "Workload", queue_workload),
    ("workspace.jupyter.org", "workspacetemplates", "WorkspaceTemplate", shared_template),
    ("workspace.jupyter.org", "workspaceaccessstrategies", "WorkspaceAccessStrategy", access_strategy),
    ("workspace.jupyter.org", "workspaceintegrationtemplates", "WorkspaceIntegrationTemplate", integration_template),
    ("inference.sagemaker.aws.amazon.com", "modelimagecaches", "ModelImageCache", cache_of_nodes),
    ("inference.sagemaker.aws.amazon.com", "modelweightscacheconfigs", "ModelWeightsCacheConfig", cache_of_nodes),
    ("trainer.kubeflow.org", "trainingruntimes", "TrainingRuntime", shared_template),
    ("trainer.kubeflow.org", "clustertrainingruntimes", "ClusterTrainingRuntime", shared_template),
];

/// Groups of which every object is a door.
const GROUPS: &[(&str, DoorKind)] = &[
    ("kueue.x-k8s.io", DoorKind::QueueConfiguration),
    ("admissionregistration.k8s.io", DoorKind::GateConfiguration),
    ("cedargate.dev", DoorKind::GateConfiguration),
];

pub(super) fn read(kind: &KindRef<'_>, object: &Node<'_, '_>) -> Result<Doors, FactsError> {
    let mut doors = Doors::new();
    if let Some((.., read)) = READERS.iter().find(|(group, plural, name, _)| kind.is(group, plural, name)) {
        read(object, &mut doors)?;
    } else if let Some((_, door)) = GROUPS.iter().find(|(group, _)| kind.group == *group) {
        let name = object.object("metadata")?.string("name")?.unwrap_or_default();
        doors.insert((*door, format!("{} {name}", kind.kind)));
    } else if kind.group == "inference.sagemaker.aws.amazon.com" {
        // An operator with wide rights acts on these; a role in a kind that nobody reads is not the team's to choose.
        let mut found = BTreeSet::new();
        let spec = object.object("spec")?;
        tags(&spec, &mut doors)?;
        spec.fields().for_each(|(_, value)| roles(value, &mut found));
        doors.extend(found.into_iter().map(|role| (DoorKind::RoleAnnotation, role)));
    }
    match doors.len() <= MAX_DOORS {
        true => Ok(doors),
        false => Err(object.error("", format!("opens more than {MAX_DOORS} ways past the gate"))),
    }
}

/// Each is a question; a role that the field has seen has some dozens of rules.
const MAX_DOORS: usize = 1024;

/// Role ARNs, wherever they stand.
pub(super) fn roles(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if text.starts_with("arn:") && text.contains(":role/") => {
            found.insert(text.clone());
        }
        Value::Object(map) => map.values().for_each(|value| roles(value, found)),
        Value::Array(list) => list.iter().for_each(|value| roles(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Tags of what an endpoint is in AWS: by these costs are allocated, and rights given.
pub(super) fn tags(spec: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    for tag in spec.objects("tags")? {
        let tag = tag?;
        let text = |key| Ok(tag.string(key)?.unwrap_or_default());
        doors.insert((DoorKind::ResourceTag, format!("{}={}", text("name")?, text("value")?)));
    }
    Ok(())
}

fn secret(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    if object.string("type")? == Some("kubernetes.io/service-account-token") {
        let annotations = object.object("metadata")?.string_map("annotations")?;
        let name = annotations.get("kubernetes.io/service-account.name").cloned().unwrap_or_default();
        doors.insert((DoorKind::ServiceAccountToken, name));
    }
    Ok(())
}

fn service_account(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    for (key, value) in object.object("metadata")?.string_map("annotations")? {
        if key.starts_with("eks.amazonaws.com/") {
            doors.insert((DoorKind::RoleAnnotation, format!("{key}={value}")));
        }
    }
    Ok(())
}

fn token_request(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let audiences = object.object("spec")?.strings("audiences")?;
    doors.insert((DoorKind::TokenRequest, audiences.join(",")));
    Ok(())
}

fn role(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    for rule in object.objects("rules")? {
        let rule = Rule::read(&rule?)?;
        let grants = [
            (rule.impersonates(), DoorKind::GrantImpersonate),
            (rule.grants_on_roles("escalate"), DoorKind::GrantEscalate),
            (rule.grants_on_roles("bind"), DoorKind::GrantBind),
            (rule.reads_secrets_widely(), DoorKind::GrantSecrets),
            (rule.reaches_nodes(), DoorKind::GrantNodesProxy),
            (rule.enters_pods(), DoorKind::GrantAccess),
            (rule.mints_tokens(), DoorKind::GrantTokens),
        ];
        let granted = grants.into_iter().filter(|(grants, _)| *grants);
        doors.extend(granted.map(|(_, door)| (door, rule.to_string())));
    }
    Ok(())
}

/// A rule of a role.
struct Rule<'j> {
    verbs: Vec<&'j str>,
    groups: Vec<&'j str>,
    resources: Vec<&'j str>,
    named: bool,
}

impl<'j> Rule<'j> {
    fn read(rule: &Node<'j, '_>) -> Result<Self, FactsError> {
        Ok(Self {
            verbs: rule.strings("verbs")?,
            groups: rule.strings("apiGroups")?,
            resources: rule.strings("resources")?,
            named: !rule.list("resourceNames")?.is_empty(),
        })
    }

    fn grants(&self, verb: &str) -> bool {
        self.verbs.iter().any(|granted| *granted == verb || *granted == "*")
    }

    fn touches(&self, group: &str, resource: &str) -> bool {
        self.groups.iter().any(|granted| *granted == group || *granted == "*")
            && self.resources.iter().any(|granted| *granted == resource || *granted == "*")
    }

    /// Constrained impersonation has verbs of its own, all of which start alike.
    fn impersonates(&self) -> bool {
        let of_any_kind = self.verbs.iter().any(|verb| verb.starts_with("impersonate"));
        let by_wildcard = ["users", "groups", "serviceaccounts"].iter().any(|resource| self.touches("", resource))
            || self.groups.contains(&"authentication.k8s.io");
        of_any_kind || (self.verbs.contains(&"*") && by_wildcard)
    }

    fn grants_on_roles(&self, verb: &str) -> bool {
        let on_roles = ["roles", "clusterroles"].iter().any(|role| self.touches("rbac.authorization.k8s.io", role));
        self.grants(verb) && on_roles
    }

    fn reads_secrets_widely(&self) -> bool {
        let reads = ["get", "list", "watch"].iter().any(|verb| self.grants(verb));
        reads && !self.named && self.touches("", "secrets")
    }

    /// The kubelet's API behind it starts processes in any pod of the node.
    fn reaches_nodes(&self) -> bool {
        self.touches_below("nodes", "proxy")
    }

    fn enters_pods(&self) -> bool {
        ["exec", "attach", "portforward", "proxy", "ephemeralcontainers"]
            .iter()
            .any(|way| self.touches_below("pods", way))
    }

    fn mints_tokens(&self) -> bool {
        self.grants("create") && self.touches_below("serviceaccounts", "token")
    }

    fn touches_below(&self, resource: &str, subresource: &str) -> bool {
        let spelt = [
            format!("{resource}/{subresource}"),
            format!("{resource}/*"),
            format!("*/{subresource}"),
            "*/*".to_owned(),
        ];
        spelt.iter().any(|spelt| self.touches("", spelt))
    }
}

impl std::fmt::Display for Rule<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} on {}", self.verbs.join(","), self.resources.join(","))
    }
}

fn role_binding(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let role = object.object("roleRef")?;
    let text = |key| Ok(role.string(key)?.unwrap_or_default());
    doors.insert((DoorKind::GrantBind, format!("{} {}", text("kind")?, text("name")?)));
    Ok(())
}

fn persistent_volume(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let spec = object.object("spec")?;
    for source in ["hostPath", "local"] {
        let path = spec.object(source)?.string("path")?;
        doors.extend(path.map(|path| (DoorKind::HostPathVolume, path.to_owned())));
    }
    Ok(())
}

/// A claim that names its volume takes one that is there, another team's perhaps.
fn claim(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let spec = object.object("spec")?;
    let sources = [
        spec.name("volumeName")?,
        spec.object("dataSource")?.name("name")?,
        spec.object("dataSourceRef")?.name("name")?,
    ];
    doors.extend(sources.into_iter().flatten().map(|name| (DoorKind::VolumeRebinding, name)));
    doors.extend(spec.name("storageClassName")?.map(|class| (DoorKind::StorageClass, class)));
    // Without a class, a selector takes whatever volume of anybody's it fits.
    if spec.value("selector").is_some() {
        doors.insert((DoorKind::VolumeRebinding, "by selector".to_owned()));
    }
    Ok(())
}

fn service(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let spec = object.object("spec")?;
    let addresses = spec.strings("externalIPs")?.into_iter().map(str::to_owned);
    let opened = match spec.string("type")?.unwrap_or_default() {
        "" | "ClusterIP" => None,
        "ExternalName" => Some(format!("ExternalName {}", spec.string("externalName")?.unwrap_or_default())),
        other => Some(other.to_owned()),
    };
    doors.extend(addresses.chain(opened).map(|address| (DoorKind::ExternalAddress, address)));
    Ok(())
}

fn ingress(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let name = object.object("metadata")?.string("name")?.unwrap_or_default();
    doors.insert((DoorKind::ExternalAddress, format!("Ingress {name}")));
    Ok(())
}

/// Policies add up: one more allows what another was meant to keep closed.
fn network_policy(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let name = object.object("metadata")?.string("name")?.unwrap_or_default();
    doors.insert((DoorKind::NetworkPolicy, name.to_owned()));
    Ok(())
}

/// What a StatefulSet or DaemonSet makes pods from until all are of its newest template.
fn controller_revision(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let name = object.object("metadata")?.string("name")?.unwrap_or_default();
    doors.insert((DoorKind::ControllerRevision, name.to_owned()));
    Ok(())
}

/// What somebody writes into metadata to keep this object, or its owner, from going.
pub(crate) fn of_metadata(object: &Value) -> BTreeSet<(DoorKind, String)> {
    let finalizers = json::list(object, &["metadata", "finalizers"]).iter().filter_map(Value::as_str);
    let finalizers = finalizers.map(|finalizer| (DoorKind::Finalizer, finalizer.to_owned()));
    let owners = json::list(object, &["metadata", "ownerReferences"]).iter();
    let blocking = owners.filter(|owner| owner["blockOwnerDeletion"] == true);
    let text = |owner: &Value, key: &str| json::text(owner, &[key]).unwrap_or_default().to_owned();
    let blocked = blocking
        .map(|owner| (DoorKind::BlockOwnerDeletion, format!("{}/{}", text(owner, "kind"), text(owner, "name"))));
    finalizers.chain(blocked).collect()
}

fn namespace(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    for (key, value) in object.object("metadata")?.string_map("labels")? {
        // Kubernetes keeps this one equal to the name.
        if key != "kubernetes.io/metadata.name" {
            doors.insert((DoorKind::NamespaceLabels, format!("{key}={value}")));
        }
    }
    Ok(())
}

fn binding(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let node = object.object("target")?.string("name")?.unwrap_or_default();
    doors.insert((DoorKind::PodBinding, node.to_owned()));
    Ok(())
}

/// Who writes Kueue's record of a workload can admit it.
fn queue_workload(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let metadata = object.object("metadata")?;
    doors.insert((DoorKind::QueueAdmission, metadata.string("name")?.unwrap_or_default().to_owned()));
    let boost = metadata.object("annotations")?.string("kueue.x-k8s.io/priority-boost")?;
    doors.extend(boost.map(|boost| (DoorKind::PriorityBoost, boost.to_owned())));
    Ok(())
}

/// What other people's work is made from: an image, a command, a security context that then run in their name.
fn shared_template(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let name = object.object("metadata")?.string("name")?.unwrap_or_default();
    doors.insert((DoorKind::SharedTemplate, name.to_owned()));
    Ok(())
}

/// Whoever opens a Space by such a strategy gets its containers and volumes into the pod, and the operator makes whatever
/// objects it holds as templates, with its own wide rights.
fn access_strategy(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let spec = object.object("spec")?;
    let mut add = |detail: String| doors.insert((DoorKind::AccessStrategy, detail));
    for resource in spec.objects("accessResourceTemplates")? {
        let resource = resource?;
        let text = |key| Ok(resource.string(key)?.unwrap_or_default());
        add(format!("resource {} {}", text("apiVersion")?, text("kind")?));
    }
    let modifications = spec.object("deploymentModifications")?;
    let pod = modifications.object("podModifications")?;
    for (list, what) in
        [("additionalContainers", "container"), ("initContainers", "init container"), ("volumes", "volume")]
    {
        for item in pod.objects(list)? {
            add(format!("{what} {}", item?.string("name")?.unwrap_or_default()));
        }
    }
    let primary = pod.object("primaryContainerModifications")?;
    for (list, key, what) in [("volumeMounts", "mountPath", "mount"), ("mergeEnv", "name", "variable")] {
        for item in primary.objects(list)? {
            add(format!("{what} {}", item?.string(key)?.unwrap_or_default()));
        }
    }
    add(object.object("metadata")?.string("name")?.unwrap_or_default().to_owned());
    Ok(())
}

/// Puts the same into the Spaces that ask for it. Beside that the operator reads an object for it, and starts a command in
/// those Spaces again and again.
fn integration_template(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    access_strategy(object, doors)?;
    let spec = object.object("spec")?;
    let mut add = |detail: String| doors.insert((DoorKind::AccessStrategy, detail));
    for read in spec.objects("resourceRefs")? {
        let read = read?;
        let text = |key| Ok(read.string(key)?.unwrap_or_default());
        add(format!("reads {} {}", text("apiVersion")?, text("kind")?));
    }
    if spec.object("statusProbe")?.exists() {
        add("probe".to_owned());
    }
    if spec.flag("shareProcessNamespace")? {
        add("shared processes".to_owned());
    }
    Ok(())
}

/// What nodes fetch beforehand, with rights of their own and for whoever comes. The definitions are not public: all that is
/// known is that such an object is there.
fn cache_of_nodes(object: &Node<'_, '_>, doors: &mut Doors) -> Result<(), FactsError> {
    let name = object.object("metadata")?.string("name")?.unwrap_or_default();
    doors.insert((DoorKind::CacheServer, format!("of nodes {name}")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::kinds::Kinds;
    use super::super::{Facts, Object, extract};
    use super::*;

    fn doors(group: &str, kind: &str, object: Value) -> Vec<(DoorKind, String)> {
        let kind = KindRef { group, kind, resource: "" };
        match extract(Kinds::defaults(), &kind, &object).expect("facts") {
            Facts::Object(Object { doors, .. }) => doors.into_iter().collect(),
            Facts::Workload(_) => unreachable!("runs nothing"),
        }
    }

    #[test]
    fn a_kind_without_a_plural_is_told_by_its_name() {
        assert!(doors("authentication.k8s.io", "TokenReview", json!({})).is_empty());
    }

    #[test]
    fn what_keeps_things_from_going() {
        let object = json!({"metadata": {
            "finalizers": ["mine/keep"],
            "ownerReferences": [
                {"kind": "Job", "name": "a", "controller": true, "blockOwnerDeletion": true},
                {"kind": "Job", "name": "b"},
            ],
        }});
        let expected = [(DoorKind::Finalizer, "mine/keep"), (DoorKind::BlockOwnerDeletion, "Job/a")];
        assert_eq!(of_metadata(&object), expected.map(|(door, detail)| (door, detail.to_owned())).into());
        assert!(of_metadata(&json!({"metadata": {"finalizers": null}})).is_empty());
    }

    #[test]
    fn each_door() {
        let rbac = "rbac.authorization.k8s.io";
        let rule = |verbs: &[&str], group: &str, resources: &[&str]| json!({"rules": [{"verbs": verbs, "apiGroups": [group], "resources": resources}]});
        type Case<'a> = (&'a str, &'a str, Value, &'a [(DoorKind, &'a str)]);
        let table: &[Case<'_>] = &[
            ("", "Secret", json!({"type": "Opaque"}), &[]),
            (
                "",
                "Secret",
                json!({
                    "type": "kubernetes.io/service-account-token",
                    "metadata": {"annotations": {"kubernetes.io/service-account.name": "sa"}},
                }),
                &[(DoorKind::ServiceAccountToken, "sa")],
            ),
            (
                "",
                "ServiceAccount",
                json!({"metadata": {"annotations": {"a": "b", "eks.amazonaws.com/role-arn": "arn"}}}),
                &[(DoorKind::RoleAnnotation, "eks.amazonaws.com/role-arn=arn")],
            ),
            (
                "authentication.k8s.io",
                "TokenRequest",
                json!({"spec": {"audiences": ["a"]}}),
                &[(DoorKind::TokenRequest, "a")],
            ),
            (rbac, "Role", rule(&["get", "create"], "", &["pods"]), &[]),
            (
                rbac,
                "Role",
                rule(&["impersonate"], "", &["users"]),
                &[(DoorKind::GrantImpersonate, "impersonate on users")],
            ),
            (
                rbac,
                "Role",
                rule(&["impersonate-on:user-info:list"], "", &["pods"]),
                &[(DoorKind::GrantImpersonate, "impersonate-on:user-info:list on pods")],
            ),
            (
                rbac,
                "Role",
                rule(&["*"], "", &["serviceaccounts"]),
                &[(DoorKind::GrantImpersonate, "* on serviceaccounts")],
            ),
            (rbac, "Role", rule(&["escalate"], rbac, &["roles"]), &[(DoorKind::GrantEscalate, "escalate on roles")]),
            (rbac, "Role", rule(&["bind"], rbac, &["clusterroles"]), &[(DoorKind::GrantBind, "bind on clusterroles")]),
            (rbac, "Role", rule(&["list"], "", &["secrets"]), &[(DoorKind::GrantSecrets, "list on secrets")]),
            (rbac, "Role", rule(&["create"], "", &["secrets"]), &[]),
            (
                rbac,
                "ClusterRole",
                rule(&["get"], "", &["nodes/proxy"]),
                &[(DoorKind::GrantNodesProxy, "get on nodes/proxy")],
            ),
            (
                rbac,
                "ClusterRole",
                rule(&["*"], "*", &["*"]),
                &[
                    (DoorKind::GrantImpersonate, "* on *"),
                    (DoorKind::GrantEscalate, "* on *"),
                    (DoorKind::GrantBind, "* on *"),
                    (DoorKind::GrantSecrets, "* on *"),
                    (DoorKind::GrantNodesProxy, "* on *"),
                    (DoorKind::GrantAccess, "* on *"),
                    (DoorKind::GrantTokens, "* on *"),
                ],
            ),
            (
                rbac,
                "Role",
                rule(&["get"], "", &["pods/exec", "pods/log"]),
                &[(DoorKind::GrantAccess, "get on pods/exec,pods/log")],
            ),
            (
                rbac,
                "Role",
                rule(&["create"], "", &["serviceaccounts/*"]),
                &[(DoorKind::GrantTokens, "create on serviceaccounts/*")],
            ),
            (
                rbac,
                "RoleBinding",
                json!({"roleRef": {"kind": "ClusterRole", "name": "admin"}}),
                &[(DoorKind::GrantBind, "ClusterRole admin")],
            ),
            ("", "PersistentVolume", json!({"spec": {"hostPath": {"path": "/"}}}), &[(DoorKind::HostPathVolume, "/")]),
            ("", "PersistentVolume", json!({"spec": {"csi": {"driver": "fsx.csi.aws.com"}}}), &[]),
            ("", "PersistentVolumeClaim", json!({"spec": {"volumeName": "pv"}}), &[(DoorKind::VolumeRebinding, "pv")]),
            ("", "PersistentVolumeClaim", json!({"spec": {"storageClassName": ""}}), &[]),
            (
                "",
                "PersistentVolumeClaim",
                json!({"spec": {"storageClassName": "gp3"}}),
                &[(DoorKind::StorageClass, "gp3")],
            ),
            ("", "Service", json!({"spec": {"externalIPs": ["10.0.0.1"]}}), &[(DoorKind::ExternalAddress, "10.0.0.1")]),
            ("", "Service", json!({"spec": {"type": "ClusterIP"}}), &[]),
            ("", "Service", json!({"spec": {"type": "LoadBalancer"}}), &[(DoorKind::ExternalAddress, "LoadBalancer")]),
            (
                "",
                "Service",
                json!({"spec": {"type": "ExternalName", "externalName": "a.b"}}),
                &[(DoorKind::ExternalAddress, "ExternalName a.b")],
            ),
            (
                "networking.k8s.io",
                "Ingress",
                json!({"metadata": {"name": "i"}}),
                &[(DoorKind::ExternalAddress, "Ingress i")],
            ),
            (
                "networking.k8s.io",
                "NetworkPolicy",
                json!({"metadata": {"name": "n"}}),
                &[(DoorKind::NetworkPolicy, "n")],
            ),
            (
                "apps",
                "ControllerRevision",
                json!({"metadata": {"name": "r"}, "data": {"spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}}}),
                &[(DoorKind::ControllerRevision, "r")],
            ),
            (
                "",
                "Namespace",
                json!({"metadata": {"labels": {"kubernetes.io/metadata.name": "a", "team": "b"}}}),
                &[(DoorKind::NamespaceLabels, "team=b")],
            ),
            ("", "Binding", json!({"target": {"name": "node"}}), &[(DoorKind::PodBinding, "node")]),
            (
                "kueue.x-k8s.io",
                "Workload",
                json!({"metadata": {"name": "w", "annotations": {"kueue.x-k8s.io/priority-boost": "9"}}}),
                &[(DoorKind::QueueAdmission, "w"), (DoorKind::PriorityBoost, "9")],
            ),
            (
                "kueue.x-k8s.io",
                "ClusterQueue",
                json!({"metadata": {"name": "q"}}),
                &[(DoorKind::QueueConfiguration, "ClusterQueue q")],
            ),
            ("cedargate.dev", "Team", json!({"metadata": {"name": "a"}}), &[(DoorKind::GateConfiguration, "Team a")]),
            ("", "ConfigMap", json!({"data": {"a": "b"}}), &[]),
            (
                "workspace.jupyter.org",
                "WorkspaceTemplate",
                json!({"metadata": {"name": "t"}, "spec": {"defaultImage": "a"}}),
                &[(DoorKind::SharedTemplate, "t")],
            ),
            (
                "workspace.jupyter.org",
                "WorkspaceIntegrationTemplate",
                json!({"metadata": {"name": "ray"}, "spec": {
                    "resourceRefs": [{"name": "r", "apiVersion": "ray.io/v1", "kind": "RayCluster"}],
                    "shareProcessNamespace": true,
                    "deploymentModifications": {"podModifications": {"additionalContainers": [{"name": "side"}]}},
                    "statusProbe": {"exec": {"command": ["true"]}},
                }}),
                &[
                    (DoorKind::AccessStrategy, "ray"),
                    (DoorKind::AccessStrategy, "container side"),
                    (DoorKind::AccessStrategy, "reads ray.io/v1 RayCluster"),
                    (DoorKind::AccessStrategy, "shared processes"),
                    (DoorKind::AccessStrategy, "probe"),
                ],
            ),
            (
                "inference.sagemaker.aws.amazon.com",
                "ModelImageCache",
                json!({"metadata": {"name": "c"}, "spec": {}}),
                &[(DoorKind::CacheServer, "of nodes c")],
            ),
            (
                "trainer.kubeflow.org",
                "TrainingRuntime",
                json!({"metadata": {"name": "r"}, "spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}}),
                &[(DoorKind::SharedTemplate, "r")],
            ),
            (
                "workspace.jupyter.org",
                "WorkspaceAccessStrategy",
                json!({"metadata": {"name": "s"}, "spec": {
                    "accessResourceTemplates": [{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"}],
                    "deploymentModifications": {"podModifications": {
                        "additionalContainers": [{"name": "side"}],
                        "initContainers": [{"name": "first"}],
                        "volumes": [{"name": "v"}],
                        "primaryContainerModifications": {
                            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                            "mergeEnv": [{"name": "A", "valueTemplate": "b"}],
                        },
                    }},
                }}),
                &[
                    (DoorKind::AccessStrategy, "s"),
                    (DoorKind::AccessStrategy, "resource rbac.authorization.k8s.io/v1 RoleBinding"),
                    (DoorKind::AccessStrategy, "container side"),
                    (DoorKind::AccessStrategy, "init container first"),
                    (DoorKind::AccessStrategy, "volume v"),
                    (DoorKind::AccessStrategy, "mount /v"),
                    (DoorKind::AccessStrategy, "variable A"),
                ],
            ),
        ];
        for (group, kind, object, expected) in table {
            let expected: BTreeSet<_> = expected.iter().map(|(door, detail)| (*door, (*detail).to_owned())).collect();
            let found: BTreeSet<_> = doors(group, kind, object.clone()).into_iter().collect();
            assert_eq!(found, expected, "{kind} {object}");
        }
    }
}
