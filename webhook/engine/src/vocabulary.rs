//! The closed lists that policies may name. Each is an `enum` entity type in `policies/schema.cedarschema`; a test holds
//! the two together, because a misspelt id there would match nothing and be silent.

/// Declares an enum whose variants are the members of a Cedar `enum` entity type.
macro_rules! closed_list {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $id:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $id)] $variant),+ }

        impl $name {
            /// The Cedar entity type.
            pub const TYPE: &'static str = stringify!($name);
            /// Every member, in the order of the schema.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// The id that policies write.
            pub const fn id(self) -> &'static str {
                match self { $(Self::$variant => $id),+ }
            }

            /// The member with this id.
            pub fn of_id(id: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|member| member.id() == id)
            }
        }
    };
}

closed_list! {
    /// What the root of a workload is for.
    Class {
        Training = "training", Endpoint = "endpoint", Space = "space", Ray = "ray", Batch = "batch",
        Service = "service", Pod = "pod", Other = "other",
    }
}
closed_list! {
    /// How the request came.
    Origin { Direct = "direct", Controller = "controller", Pod = "pod" }
}
closed_list! {
    /// The Pod Security level that a team is held to.
    Level { Baseline = "baseline", Restricted = "restricted" }
}
closed_list! {
    /// Who counts what a team holds: the gate, exactly, by compare-and-swap; or task governance, and the gate pins queue and
    /// priority.
    QuotaMode { Ledger = "ledger", Kueue = "kueue" }
}
closed_list! {
    /// Kinds of volume source; `Other` is every kind that this version does not know.
    VolumeKind {
        Claim = "claim", EmptyDir = "emptyDir", ConfigMap = "configMap", Secret = "secret",
        DownwardApi = "downwardAPI", Token = "token", Image = "image", Ephemeral = "ephemeral",
        HostPath = "hostPath", Nfs = "nfs", Csi = "csi", Other = "other",
    }
}
closed_list! {
    /// The list of a pod that a container stands in; a sidecar is an init container with `restartPolicy: Always`.
    ContainerKind { Main = "main", Init = "init", Sidecar = "sidecar", Ephemeral = "ephemeral" }
}
closed_list! {
    /// Pod Security controls, named as in the Kubernetes standard. The first twelve are of level baseline.
    Control {
        Privileged = "privileged", HostNamespaces = "hostNamespaces", HostPorts = "hostPorts",
        HostPathVolumes = "hostPathVolumes", HostProbes = "hostProbes", Capabilities = "capabilities",
        ProcMount = "procMount", Seccomp = "seccomp", SeLinux = "seLinux", AppArmor = "appArmor",
        Sysctls = "sysctls", WindowsHostProcess = "windowsHostProcess",
        AllowPrivilegeEscalation = "allowPrivilegeEscalation", RunAsNonRoot = "runAsNonRoot",
        RunAsUser = "runAsUser", VolumeTypes = "volumeTypes",
        CapabilitiesNotDropped = "capabilitiesNotDropped", SeccompUnset = "seccompUnset",
    }
}
closed_list! {
    /// What an UPDATE changed, beside status.
    Change {
        Image = "image", Command = "command", Env = "env", Resources = "resources", Replicas = "replicas",
        Placement = "placement", Identity = "identity", Storage = "storage", Queue = "queue",
        Priority = "priority", Suspend = "suspend", Labels = "labels", Annotations = "annotations",
        Finalizers = "finalizers", Owners = "owners", Other = "other",
    }
}
closed_list! {
    /// Ways by which an object that is no workload gives access past the gate.
    DoorKind {
        ServiceAccountToken = "service-account-token", TokenRequest = "token-request",
        RoleAnnotation = "role-annotation", GrantImpersonate = "grant-impersonate",
        GrantEscalate = "grant-escalate", GrantBind = "grant-bind", GrantSecrets = "grant-secrets",
        GrantNodesProxy = "grant-nodes-proxy", VolumeRebinding = "volume-rebinding",
        HostPathVolume = "host-path-volume", ExternalAddress = "external-address",
        QueueAdmission = "queue-admission", QueueConfiguration = "queue-configuration",
        PriorityBoost = "priority-boost", PodBinding = "pod-binding", NamespaceLabels = "namespace-labels",
        GateConfiguration = "gate-configuration", SharedTemplate = "shared-template",
        AccessStrategy = "access-strategy", DnsZone = "dns-zone", Certificate = "certificate",
        CacheServer = "cache-server", OpenGateway = "open-gateway",
        GrantAccess = "grant-access", GrantTokens = "grant-tokens", StorageClass = "storage-class",
        NetworkPolicy = "network-policy", ControllerRevision = "controller-revision", Finalizer = "finalizer",
        BlockOwnerDeletion = "block-owner-deletion",
    }
}
closed_list! {
    /// What a trusted part of the cluster is.
    ComponentKind {
        Node = "node", GarbageCollector = "garbage-collector", KubernetesController = "kubernetes-controller",
        Operator = "operator", Queue = "queue", Autoscaler = "autoscaler", Hyperpod = "hyperpod",
    }
}
closed_list! {
    /// Days, in the site's time zone.
    Weekday {
        Monday = "monday", Tuesday = "tuesday", Wednesday = "wednesday", Thursday = "thursday",
        Friday = "friday", Saturday = "saturday", Sunday = "sunday",
    }
}
closed_list! {
    /// The questions. Ids are Cedar action ids, so the type is `Action`, which is no enum entity type.
    Action {
        Create = "create", Update = "update", Scale = "scale", Resize = "resize", Resume = "resume",
        Exec = "exec", Attach = "attach", PortForward = "portForward", Proxy = "proxy", Debug = "debug",
        Delete = "delete", Evict = "evict", Open = "open", Schedule = "schedule", Run = "run", Mount = "mount",
        Assume = "assume", Read = "read", Write = "write", Enqueue = "enqueue", Charge = "charge",
        Consume = "consume", Exempt = "exempt",
    }
}
