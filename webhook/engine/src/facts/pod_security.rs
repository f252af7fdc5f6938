//! The Pod Security Standards: which control does a pod, a container or a volume break?
//!
//! As Kubernetes 1.37 judges them, level baseline and restricted together: `vocabulary::Control` says which control is of
//! which level. A pod in its own user namespace (`hostUsers: false`) is relieved of what root inside it cannot abuse.

use std::collections::BTreeSet;

use super::FactsError;
use super::json::Node;
use crate::vocabulary::Control;

/// What containers may add at level baseline.
const BASELINE_CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

const SAFE_SELINUX_TYPES: &[&str] = &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// Before the field there was an annotation for each container, which the kubelet still reads.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Is a setting that is absent a break? In a pod spec it is, where the level asks for it. In a kind whose operator writes
/// the pod spec it says nothing: the pod will be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    Breaks,
    SaysNothing,
}

/// What containers take over from their pod.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) uid: Option<i64>,
    pub(super) gid: Option<i64>,
    pub(super) run_as_non_root: Option<bool>,
    seccomp_confined: bool,
    own_user_namespace: bool,
    windows: bool,
    absence: Absence,
}

impl Pod {
    /// `security` is the pod's security context, which a Workspace keeps under another name.
    pub(super) fn read(spec: &Node<'_, '_>, security: &Node<'_, '_>, absence: Absence) -> Result<Self, FactsError> {
        Ok(Self {
            uid: security.integer("runAsUser")?,
            gid: security.integer("runAsGroup")?,
            run_as_non_root: security.boolean("runAsNonRoot")?,
            seccomp_confined: seccomp(security)? == Seccomp::Confined,
            own_user_namespace: spec.boolean("hostUsers")? == Some(false),
            windows: spec.object("os")?.string("name")? == Some("windows"),
            absence,
        })
    }

    /// What the pod itself breaks, beside its host namespaces.
    pub(super) fn breaks(&self, security: &Node<'_, '_>) -> Result<BTreeSet<Control>, FactsError> {
        let mut breaks = either(security)?;
        for sysctl in security.objects("sysctls")? {
            let name = sysctl?.string("name")?.unwrap_or_default();
            note(&mut breaks, Control::Sysctls, !SAFE_SYSCTLS.contains(&name));
        }
        note(&mut breaks, Control::RunAsNonRoot, self.run_as_non_root == Some(false) && !self.own_user_namespace);
        note(&mut breaks, Control::RunAsUser, self.uid == Some(0) && !self.own_user_namespace);
        Ok(breaks)
    }

    /// What a container breaks. `probes` holds its probes, which an endpoint keeps apart.
    pub(super) fn container_breaks(
        &self,
        container: &Node<'_, '_>,
        security: &Node<'_, '_>,
        probes: &Node<'_, '_>,
    ) -> Result<BTreeSet<Control>, FactsError> {
        let absent_breaks = self.absence == Absence::Breaks;
        let mut breaks = either(security)?;
        note(&mut breaks, Control::Privileged, security.flag("privileged")?);
        note(&mut breaks, Control::HostPorts, has_host_port(container)?);
        note(&mut breaks, Control::HostProbes, probes_another_host(probes)? || probes_another_host(container)?);
        note(&mut breaks, Control::ProcMount, !self.own_user_namespace && unmasks_proc(security)?);
        capabilities(security, absent_breaks && !self.windows, &mut breaks)?;
        if !self.own_user_namespace {
            let run_as_non_root = security.boolean("runAsNonRoot")?;
            let in_force = run_as_non_root.or(self.run_as_non_root).unwrap_or(!absent_breaks);
            note(&mut breaks, Control::RunAsNonRoot, !in_force);
            note(&mut breaks, Control::RunAsUser, security.integer("runAsUser")? == Some(0));
        }
        if !self.windows {
            let escalation = security.boolean("allowPrivilegeEscalation")?.unwrap_or(absent_breaks);
            note(&mut breaks, Control::AllowPrivilegeEscalation, escalation);
            let confined = match seccomp(security)? {
                Seccomp::Confined => true,
                Seccomp::Unconfined => false,
                Seccomp::Unset => self.seccomp_confined || !absent_breaks,
            };
            note(&mut breaks, Control::SeccompUnset, !confined);
        }
        Ok(breaks)
    }
}

/// The old annotations, which stand on the pod.
pub(super) fn apparmor_annotations_break<'a>(annotations: impl Iterator<Item = (&'a String, &'a String)>) -> bool {
    annotations
        .filter(|(key, _)| key.starts_with(APPARMOR_ANNOTATION))
        .any(|(_, profile)| !(profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/")))
}

/// Controls that pod and container have in common.
fn either(security: &Node<'_, '_>) -> Result<BTreeSet<Control>, FactsError> {
    let mut breaks = BTreeSet::new();
    note(&mut breaks, Control::Seccomp, seccomp(security)? == Seccomp::Unconfined);
    note(&mut breaks, Control::SeLinux, selinux_breaks(security)?);
    let apparmor = security.object("appArmorProfile")?.string("type")?;
    note(&mut breaks, Control::AppArmor, !matches!(apparmor, None | Some("RuntimeDefault" | "Localhost")));
    let host_process = security.object("windowsOptions")?.flag("hostProcess")?;
    note(&mut breaks, Control::WindowsHostProcess, host_process);
    Ok(breaks)
}

fn note(breaks: &mut BTreeSet<Control>, control: Control, broken: bool) {
    if broken {
        breaks.insert(control);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Seccomp {
    Unset,
    Confined,
    Unconfined,
}

fn seccomp(security: &Node<'_, '_>) -> Result<Seccomp, FactsError> {
    Ok(match security.object("seccompProfile")?.string("type")? {
        None => Seccomp::Unset,
        Some("RuntimeDefault" | "Localhost") => Seccomp::Confined,
        Some(_) => Seccomp::Unconfined,
    })
}

fn selinux_breaks(security: &Node<'_, '_>) -> Result<bool, FactsError> {
    let options = security.object("seLinuxOptions")?;
    let text = |key| Ok(options.string(key)?.unwrap_or_default());
    Ok(!SAFE_SELINUX_TYPES.contains(&text("type")?) || !text("user")?.is_empty() || !text("role")?.is_empty())
}

fn capabilities(security: &Node<'_, '_>, must_drop: bool, breaks: &mut BTreeSet<Control>) -> Result<(), FactsError> {
    let capabilities = security.object("capabilities")?;
    let added = capabilities.strings("add")?;
    let drops_all = capabilities.strings("drop")?.contains(&"ALL");
    note(breaks, Control::Capabilities, added.iter().any(|name| !BASELINE_CAPABILITIES.contains(name)));
    let adds_more_than_restricted = added.iter().any(|name| *name != "NET_BIND_SERVICE");
    note(breaks, Control::CapabilitiesNotDropped, (must_drop && !drops_all) || adds_more_than_restricted);
    Ok(())
}

fn unmasks_proc(security: &Node<'_, '_>) -> Result<bool, FactsError> {
    Ok(!matches!(security.string("procMount")?, None | Some("Default")))
}

fn has_host_port(container: &Node<'_, '_>) -> Result<bool, FactsError> {
    for port in container.objects("ports")? {
        if !matches!(port?.integer("hostPort")?, None | Some(0)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A probe or hook with a host makes the kubelet call wherever the pod's author likes.
fn probes_another_host(holder: &Node<'_, '_>) -> Result<bool, FactsError> {
    let lifecycle = holder.object("lifecycle")?;
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|key| (holder, key));
    let hooks = ["postStart", "preStop"].map(|key| (&lifecycle, key));
    for (holder, key) in probes.into_iter().chain(hooks) {
        let handler = holder.object(key)?;
        for action in ["httpGet", "tcpSocket"] {
            if handler.object(action)?.name("host")?.is_some() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use serde_json::Value;

    use super::super::kinds::Kinds;
    use super::super::{Facts, KindRef, extract};
    use super::*;

    const BASELINE: usize = 12;

    fn breaks_of(pod: &Value) -> BTreeSet<Control> {
        let kind = KindRef { group: "", kind: "Pod", resource: "pods" };
        let facts = extract(Kinds::defaults(), &kind, pod).expect("a valid pod");
        let Facts::Workload(workload) = facts else { unreachable!("a pod is a workload") };
        let template = &workload.templates[0];
        let containers = template.containers.iter().flat_map(|container| &container.breaks);
        let volumes = template.volumes.iter().flat_map(|volume| &volume.breaks);
        template.breaks.iter().chain(containers).chain(volumes).copied().collect()
    }

    /// The control that the name of a failing file is about.
    fn control_of(name: &str) -> Control {
        match name.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "allowprivilegeescalation" => Control::AllowPrivilegeEscalation,
            "apparmorprofile" => Control::AppArmor,
            "capabilities_baseline" => Control::Capabilities,
            "capabilities_restricted" => Control::CapabilitiesNotDropped,
            "hostnamespaces" => Control::HostNamespaces,
            "hostpathvolumes" => Control::HostPathVolumes,
            "hostports" => Control::HostPorts,
            "hostprobesandhostlifecycle" => Control::HostProbes,
            "privileged" => Control::Privileged,
            "procmount" => Control::ProcMount,
            "restrictedvolumes" => Control::VolumeTypes,
            "runasnonroot" => Control::RunAsNonRoot,
            "runasuser" => Control::RunAsUser,
            "seccompprofile_baseline" => Control::Seccomp,
            "seccompprofile_restricted" => Control::SeccompUnset,
            "selinuxoptions" => Control::SeLinux,
            "sysctls" => Control::Sysctls,
            "windowshostprocess" => Control::WindowsHostProcess,
            other => unreachable!("no control for {other}"),
        }
    }

    #[test]
    fn every_upstream_fixture() {
        let (baseline, _) = Control::ALL.split_at(BASELINE);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/pod-security");
        let mut seen = 0;
        for level in ["baseline", "restricted"] {
            for outcome in ["pass", "fail"] {
                for entry in fs::read_dir(root.join(level).join(outcome)).expect("fixtures") {
                    let path = entry.expect("fixture").path();
                    let pod = serde_saphyr::from_str(&fs::read_to_string(&path).expect("text")).expect("yaml");
                    let breaks: BTreeSet<_> = match level {
                        "baseline" => breaks_of(&pod).into_iter().filter(|c| baseline.contains(c)).collect(),
                        _ => breaks_of(&pod),
                    };
                    let name = path.file_stem().and_then(|name| name.to_str()).expect("name");
                    match outcome {
                        "pass" => assert!(breaks.is_empty(), "{level}/pass/{name}: {breaks:?}"),
                        _ => assert!(breaks.contains(&control_of(name)), "{level}/fail/{name}: {breaks:?}"),
                    }
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, 98, "fixtures");
    }
}
