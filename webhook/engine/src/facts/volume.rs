//! Volumes of a pod, by what they bring in.

use std::collections::BTreeSet;

use super::json::Node;
use super::{FactsError, Mount, Volume};
use crate::amounts::shown;
use crate::vocabulary::{Control, VolumeKind};

/// Sources that become a kind of their own, with the fields that Kubernetes 1.37 knows.
const SOURCES: &[(&str, VolumeKind, &[&str])] = &[
    ("persistentVolumeClaim", VolumeKind::Claim, &["claimName", "readOnly"]),
    ("emptyDir", VolumeKind::EmptyDir, &["medium", "mode", "sizeLimit"]),
    ("configMap", VolumeKind::ConfigMap, &["defaultMode", "defaultUser", "items", "name", "optional"]),
    ("secret", VolumeKind::Secret, &["defaultMode", "defaultUser", "items", "optional", "secretName"]),
    ("downwardAPI", VolumeKind::DownwardApi, &["defaultMode", "defaultUser", "items"]),
    ("image", VolumeKind::Image, &["pullPolicy", "reference"]),
    ("ephemeral", VolumeKind::Ephemeral, &["volumeClaimTemplate"]),
    ("hostPath", VolumeKind::HostPath, &["path", "type"]),
    ("nfs", VolumeKind::Nfs, &["path", "readOnly", "server"]),
    ("csi", VolumeKind::Csi, &["driver", "fsType", "nodePublishSecretRef", "readOnly", "volumeAttributes"]),
];

/// Sources that Kubernetes knows and this vocabulary does not tell apart. No team needs one: drivers took their place.
const OTHER_SOURCES: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "iscsi",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

const MOUNT_FIELDS: &[&str] = &[
    "bindMountOptions",
    "mountPath",
    "mountPropagation",
    "name",
    "readOnly",
    "recursiveReadOnly",
    "subPath",
    "subPathExpr",
];

/// The volumes of a pod spec, or of `kubernetes.volumes` of an endpoint. A projected volume gives a fact for each Secret
/// in it and one for the rest, all of one name: each is taken, and each may be refused.
pub(super) fn read_all(holder: &Node<'_, '_>) -> Result<Vec<Volume>, FactsError> {
    let mut volumes = Vec::new();
    let mut names = BTreeSet::new();
    for node in holder.objects("volumes")? {
        let node = node?;
        let name = node.string("name")?.unwrap_or_default();
        refuse_repeated_name(&node, name, &mut names)?;
        read(&node, name, &mut volumes)?;
    }
    Ok(volumes)
}

/// The volumes of a Workspace, which are claims and stand in the pod under these names.
pub(super) fn read_claims(spec: &Node<'_, '_>) -> Result<Vec<(Volume, Mount)>, FactsError> {
    let mut claims = Vec::new();
    let mut names = BTreeSet::new();
    for node in spec.objects("volumes")? {
        let node = node?;
        let name = node.string("name")?.unwrap_or_default();
        refuse_repeated_name(&node, name, &mut names)?;
        let claim = node.name("persistentVolumeClaimName")?;
        claims.push((Volume { source: claim, ..blank(&node, name, VolumeKind::Claim) }, read_mount(&node)?));
    }
    Ok(claims)
}

fn refuse_repeated_name<'j>(
    node: &Node<'j, '_>,
    name: &'j str,
    names: &mut BTreeSet<&'j str>,
) -> Result<(), FactsError> {
    if names.insert(name) {
        return Ok(());
    }
    Err(node.error("name", format_args!("repeats the volume name {}", shown(name))))
}

fn read(node: &Node<'_, '_>, name: &str, volumes: &mut Vec<Volume>) -> Result<(), FactsError> {
    let mut sources = node.fields().map(|(key, _)| key).filter(|key| *key != "name");
    let Some(key) = sources.next() else {
        volumes.push(blank(node, name, VolumeKind::EmptyDir)); // Kubernetes' default
        return Ok(());
    };
    if let Some(second) = sources.next() {
        return Err(node.error(second, format_args!("stands beside {}: a volume has one source", shown(key))));
    }
    if key == "projected" {
        return projected(node, name, volumes);
    }
    volumes.push(match SOURCES.iter().find(|(source, ..)| *source == key) {
        Some((_, kind, known)) => of_kind(node, name, *kind, &node.object(key)?, known)?,
        None => of_other_kind(node, name, key)?,
    });
    Ok(())
}

fn of_kind(
    node: &Node<'_, '_>,
    name: &str,
    kind: VolumeKind,
    source: &Node<'_, '_>,
    known: &[&str],
) -> Result<Volume, FactsError> {
    let mut volume = blank(node, name, kind);
    source.note_unknown(known, &mut volume.unknown_fields);
    match kind {
        VolumeKind::Claim => {
            volume.source = source.name("claimName")?;
            volume.read_only = source.flag("readOnly")?;
        }
        VolumeKind::ConfigMap => volume.source = source.name("name")?,
        VolumeKind::Secret => volume.source = source.name("secretName")?,
        VolumeKind::Image => volume.source = source.name("reference")?,
        VolumeKind::HostPath => volume.path = source.string("path")?.map(cleaned),
        VolumeKind::Nfs => volume.read_only = source.flag("readOnly")?,
        VolumeKind::Csi => {
            volume.driver = source.name("driver")?;
            volume.read_only = source.flag("readOnly")?;
        }
        VolumeKind::Ephemeral => {
            let template = source.object("volumeClaimTemplate")?;
            let spec = template.object("spec")?;
            volume.storage_class = spec.name("storageClassName")?;
            // A claim made with the pod, but for a volume that is there already.
            volume.source = spec.name("volumeName")?;
        }
        VolumeKind::EmptyDir | VolumeKind::DownwardApi | VolumeKind::Token | VolumeKind::Other => {}
    }
    volume.breaks = breaks(kind);
    Ok(volume)
}

fn of_other_kind(node: &Node<'_, '_>, name: &str, key: &str) -> Result<Volume, FactsError> {
    let mut volume = blank(node, name, VolumeKind::Other);
    if key == "flexVolume" {
        volume.driver = node.object(key)?.name("driver")?;
    } else if !OTHER_SOURCES.contains(&key) {
        node.note_unknown(&["name"], &mut volume.unknown_fields);
    }
    volume.breaks = breaks(VolumeKind::Other);
    Ok(volume)
}

/// The rest of a projected volume is of the strongest kind in it: a token outweighs a ConfigMap.
fn projected(node: &Node<'_, '_>, name: &str, volumes: &mut Vec<Volume>) -> Result<(), FactsError> {
    let projected = node.object("projected")?;
    let mut rest = blank(node, name, VolumeKind::DownwardApi);
    projected.note_unknown(&["defaultMode", "defaultUser", "sources"], &mut rest.unknown_fields);
    let (mut token, mut config_map, mut only_secrets) = (false, false, true);
    for source in projected.objects("sources")? {
        let source = source?;
        for (key, _) in source.fields() {
            only_secrets &= key == "secret";
            match key {
                "secret" => {
                    let secret = source.object(key)?.name("name")?;
                    volumes.push(Volume { source: secret, ..blank(node, name, VolumeKind::Secret) });
                }
                "serviceAccountToken" => {
                    token = true;
                    rest.audiences.extend(audience(name, &source.object(key)?)?);
                }
                "podCertificate" => token = true,
                "configMap" | "clusterTrustBundle" => config_map = true,
                "downwardAPI" => {}
                _ => {
                    rest.kind = VolumeKind::Other;
                    source.note_unknown(&[], &mut rest.unknown_fields);
                }
            }
        }
    }
    if rest.kind == VolumeKind::Other {
        rest.breaks = breaks(VolumeKind::Other);
    } else if token {
        rest.kind = VolumeKind::Token;
    } else if config_map {
        rest.kind = VolumeKind::ConfigMap;
    }
    let nothing_but_secrets = only_secrets && rest.unknown_fields.is_empty() && volumes.iter().any(|v| v.name == name);
    if !nothing_but_secrets {
        volumes.push(rest);
    }
    Ok(())
}

/// Volume, audience and file of the tokens that EKS's pod-identity webhook projects.
const INJECTED_TOKENS: [(&str, &str, &str); 2] = [
    ("aws-iam-token", "sts.amazonaws.com", "token"),
    ("eks-pod-identity-token", "pods.eks.amazonaws.com", "eks-pod-identity-token"),
];

/// Whom a token is for. One that somebody wrote exactly as EKS does gives nothing that EKS would not give.
fn audience(volume: &str, source: &Node<'_, '_>) -> Result<Option<String>, FactsError> {
    let audience = source.name("audience")?;
    let path = source.string("path")?.unwrap_or_default();
    let injected = |audience: &String| INJECTED_TOKENS.contains(&(volume, audience.as_str(), path));
    Ok(audience.filter(|audience| !injected(audience)))
}

fn breaks(kind: VolumeKind) -> BTreeSet<Control> {
    match kind {
        VolumeKind::HostPath => BTreeSet::from([Control::HostPathVolumes, Control::VolumeTypes]),
        VolumeKind::Nfs | VolumeKind::Image | VolumeKind::Other => BTreeSet::from([Control::VolumeTypes]),
        VolumeKind::Claim
        | VolumeKind::EmptyDir
        | VolumeKind::ConfigMap
        | VolumeKind::Secret
        | VolumeKind::DownwardApi
        | VolumeKind::Token
        | VolumeKind::Ephemeral
        | VolumeKind::Csi => BTreeSet::new(),
    }
}

fn blank(node: &Node<'_, '_>, name: &str, kind: VolumeKind) -> Volume {
    Volume {
        pointer: node.pointer(),
        name: name.to_owned(),
        kind,
        source: None,
        path: None,
        driver: None,
        storage_class: None,
        audiences: BTreeSet::new(),
        read_only: false,
        breaks: BTreeSet::new(),
        unknown_fields: BTreeSet::new(),
    }
}

/// A path without `.`, `..` and `//`, so that one place has one spelling.
fn cleaned(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// The mounts and devices of a container.
pub(super) fn mounts(container: &Node<'_, '_>, unknown: &mut BTreeSet<String>) -> Result<Vec<Mount>, FactsError> {
    let mut mounts = Vec::new();
    for mount in container.objects("volumeMounts")? {
        let mount = mount?;
        mount.note_unknown(MOUNT_FIELDS, unknown);
        mounts.push(read_mount(&mount)?);
    }
    for device in container.objects("volumeDevices")? {
        let device = device?;
        device.note_unknown(&["devicePath", "name"], unknown);
        mounts.push(Mount { path: text(&device, "devicePath")?, ..read_mount(&device)? });
    }
    Ok(mounts)
}

/// One mount; an endpoint's `modelVolumeMount` reads the same.
pub(super) fn read_mount(mount: &Node<'_, '_>) -> Result<Mount, FactsError> {
    Ok(Mount {
        volume: text(mount, "name")?,
        path: text(mount, "mountPath")?,
        sub_path: mount.name("subPath")?,
        sub_path_expr: mount.name("subPathExpr")?.is_some(),
        read_only: mount.flag("readOnly")?,
        // HostToContainer counts too: mounts that others make on the node appear in the container.
        propagates: !matches!(mount.string("mountPropagation")?, None | Some("" | "None")),
    })
}

fn text(node: &Node<'_, '_>, key: &str) -> Result<String, FactsError> {
    Ok(node.string(key)?.unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volumes(list: Value) -> Result<Vec<Volume>, FactsError> {
        let holder = json!({"volumes": list});
        read_all(&Node::root(&holder)?)
    }

    fn kinds(volume: Value) -> Vec<(VolumeKind, Option<String>)> {
        let volumes = volumes(json!([volume])).expect("a volume");
        volumes.into_iter().map(|volume| (volume.kind, volume.source)).collect()
    }

    #[test]
    fn kinds_and_sources() {
        let some = |name: &str| Some(name.to_owned());
        let table = [
            (json!({"name": "v"}), vec![(VolumeKind::EmptyDir, None)]),
            (json!({"name": "v", "hostPath": null}), vec![(VolumeKind::EmptyDir, None)]),
            (json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}), vec![(VolumeKind::Claim, some("c"))]),
            (json!({"name": "v", "secret": {"secretName": "s"}}), vec![(VolumeKind::Secret, some("s"))]),
            (json!({"name": "v", "image": {"reference": "a/b"}}), vec![(VolumeKind::Image, some("a/b"))]),
            (json!({"name": "v", "nfs": {"server": "s", "path": "/"}}), vec![(VolumeKind::Nfs, None)]),
            (json!({"name": "v", "cephfs": {}}), vec![(VolumeKind::Other, None)]),
            (json!({"name": "v", "tomorrow": {}}), vec![(VolumeKind::Other, None)]),
            (
                json!({"name": "v", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt"}},
                    {"downwardAPI": {}},
                ]}}),
                vec![(VolumeKind::Token, None)],
            ),
            (
                json!({"name": "v", "projected": {"sources": [{"secret": {"name": "a"}}, {"secret": {"name": "b"}}]}}),
                vec![(VolumeKind::Secret, some("a")), (VolumeKind::Secret, some("b"))],
            ),
            (
                json!({"name": "v", "projected": {"sources": [{"secret": {"name": "a"}}, {"configMap": {"name": "b"}}]}}),
                vec![(VolumeKind::Secret, some("a")), (VolumeKind::ConfigMap, None)],
            ),
            (json!({"name": "v", "projected": {"sources": null}}), vec![(VolumeKind::DownwardApi, None)]),
            (json!({"name": "v", "projected": {"sources": [{"tomorrow": {}}]}}), vec![(VolumeKind::Other, None)]),
        ];
        for (volume, expected) in table {
            assert_eq!(kinds(volume.clone()), expected, "{volume}");
        }
    }

    #[test]
    fn tokens_for_others_than_the_api_server() {
        let token = |name: &str, audience: &str, path: &str| {
            let source = json!({"serviceAccountToken": {"audience": audience, "path": path}});
            let volumes = volumes(json!([{"name": name, "projected": {"sources": [source]}}])).expect("a volume");
            volumes[0].audiences.iter().cloned().collect::<Vec<_>>()
        };
        assert!(token("aws-iam-token", "sts.amazonaws.com", "token").is_empty());
        assert!(token("eks-pod-identity-token", "pods.eks.amazonaws.com", "eks-pod-identity-token").is_empty());
        assert!(token("kube-api-access", "", "token").is_empty());
        assert_eq!(token("mine", "sts.amazonaws.com", "token"), ["sts.amazonaws.com"]);
        assert_eq!(token("aws-iam-token", "vault", "token"), ["vault"]);
    }

    #[test]
    fn host_paths_have_one_spelling() {
        for (path, expected) in [("/a/./b//c/", "/a/b/c"), ("/a/../../etc", "/etc"), ("", "/"), ("x", "/x")] {
            assert_eq!(cleaned(path), expected, "{path}");
        }
    }

    #[test]
    fn what_is_new_in_a_source_is_noted() -> Result<(), FactsError> {
        for (volume, pointer) in [
            (json!({"name": "v", "tomorrow": {}}), "/volumes/0/tomorrow"),
            (json!({"name": "v", "hostPath": {"path": "/a", "tomorrow": 1}}), "/volumes/0/hostPath/tomorrow"),
            (json!({"name": "v", "projected": {"tomorrow": 1}}), "/volumes/0/projected/tomorrow"),
            (
                json!({"name": "v", "projected": {"sources": [{"tomorrow": 1}]}}),
                "/volumes/0/projected/sources/0/tomorrow",
            ),
        ] {
            let read = volumes(json!([volume]))?;
            assert_eq!(read[0].unknown_fields, BTreeSet::from([pointer.to_owned()]), "{volume}");
        }
        Ok(())
    }

    #[test]
    fn names_and_sources_are_single() {
        let twice = volumes(json!([{"name": "v"}, {"name": "v"}])).expect_err("two of a name");
        assert_eq!(twice.to_string(), "`/volumes/1/name` repeats the volume name `v`");
        let two = volumes(json!([{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}])).expect_err("two sources");
        assert_eq!(two.to_string(), "`/volumes/0/hostPath` stands beside `emptyDir`: a volume has one source");
    }
}
