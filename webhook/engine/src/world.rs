//! The entities of one review: who, what and where, as `policies/schema.cedarschema` describes them. Built once and shared
//! by all questions of the review.
//!
//! `in` says where a thing is used, `teams` whose it is. What is made with the pod is its namespace's team's; what no team
//! file declares is nobody's.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use cedar_policy::{Entity, EntityUid, RestrictedExpression};

use crate::amounts::ResourceName;
use crate::attribution::Principal;
use crate::facts::{Container, Mount, PodTemplate, Volume, Workload};
use crate::policies::{EntityType, boolean, build_entity, entities, entity, long, long_set, string, string_set, uid};
use crate::stamp::{Submitter, SubmitterName};
use crate::team::{Storage, Team, Teams};
use crate::vocabulary::{Class, ContainerKind, DoorKind, VolumeKind};

/// Entities under construction.
#[derive(Debug)]
pub struct World<'a> {
    teams: &'a Teams,
    /// The team of the namespace.
    team: Option<&'a Arc<Team>>,
    namespace: Option<&'a str>,
    entities: Vec<Entity>,
    seen: HashSet<EntityUid>,
}

/// A workload with what is known of its root.
#[derive(Debug, Clone, Copy)]
pub struct WorkloadView<'a> {
    pub facts: &'a Workload,
    pub group: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
    /// Of the root.
    pub class: Class,
    pub owner: Option<&'a str>,
    pub labels: &'a [(String, String)],
    /// Tells the old object from the new one.
    pub version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    New,
    Old,
}

/// A mounted volume, with what the team files say of it.
#[derive(Debug, Clone, PartialEq)]
pub struct MountedVolume<'a> {
    pub volume: &'a Volume,
    /// `None` if nothing mounts it.
    pub mount: Option<&'a Mount>,
    pub declared: Declared,
}

/// What the team's file says of a claim as it is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Declared {
    /// The claim is the team's.
    pub ours: bool,
    /// Sub-path and access are as the file declares them.
    pub as_declared: bool,
    /// POSIX ids keep people apart on it.
    pub shared: bool,
    /// Whose home.
    pub owner: Option<String>,
}

type Attribute = (&'static str, RestrictedExpression);

impl<'a> World<'a> {
    pub fn new(teams: &'a Teams, team: Option<&'a Arc<Team>>, namespace: Option<&'a str>) -> Self {
        Self { teams, team, namespace, entities: Vec::new(), seen: HashSet::new() }
    }

    pub fn into_entities(self) -> Vec<Entity> {
        self.entities
    }

    /// Adds an entity unless it is there; the first description counts.
    fn add(&mut self, uid: EntityUid, attributes: Vec<Attribute>, parents: Vec<EntityUid>) -> EntityUid {
        self.add_tagged(uid, attributes, parents, &[])
    }

    fn add_tagged(
        &mut self,
        uid: EntityUid,
        attributes: Vec<Attribute>,
        parents: Vec<EntityUid>,
        tags: &[(String, String)],
    ) -> EntityUid {
        if self.seen.insert(uid.clone()) {
            let tags = tags.iter().map(|(key, value)| (key.clone(), string(value.as_str())));
            self.entities.push(build_entity(uid.clone(), attributes, parents, tags));
        }
        uid
    }

    fn own_teams(&mut self) -> RestrictedExpression {
        let team = self.team.map(|team| self.team_entity(team));
        entities(team)
    }

    fn team_set<'t>(&mut self, names: impl IntoIterator<Item = &'t str>) -> RestrictedExpression {
        let teams = self.teams;
        let uids: Vec<_> =
            names.into_iter().filter_map(|name| teams.named(name)).map(|team| self.team_entity(team)).collect();
        entities(uids)
    }

    pub fn team_entity(&mut self, team: &Team) -> EntityUid {
        self.add(
            uid(EntityType::Team, &team.name),
            vec![("level", entity(team.level)), ("quotaMode", entity(team.quota_mode()))],
            vec![],
        )
    }

    fn group(&mut self, name: &str) -> EntityUid {
        self.add(uid(EntityType::Group, name), vec![], vec![])
    }

    pub fn person(&mut self, name: &str) -> EntityUid {
        let row = self.teams.person(name);
        let gids = row.iter().flat_map(|row| row.gid.iter().chain(&row.supplemental_groups)).map(|gid| i64::from(*gid));
        let mut attributes = vec![("name", string(name)), ("gids", long_set(gids))];
        if let Some(id) = row.and_then(|row| row.uid) {
            attributes.push(("uid", long(i64::from(id))));
        }
        let groups: Vec<_> =
            self.teams.all_groups().filter(|group| group.people.iter().any(|member| member == name)).collect();
        let groups = groups.into_iter().map(|group| self.group(&group.name)).collect();
        self.add(uid(EntityType::Person, name), attributes, groups)
    }

    pub fn principal(&mut self, principal: &Principal) -> EntityUid {
        match principal {
            Principal::Submitter(submitter) => self.submitter(submitter),
            Principal::ServiceAccount { namespace, name } => self.service_account(namespace, name),
            Principal::Component { kind, name, by_name } => {
                let attributes =
                    vec![("kind", entity(*kind)), ("name", string(name.as_str())), ("byName", boolean(*by_name))];
                self.add(uid(EntityType::Component, name), attributes, vec![])
            }
            Principal::Stranger { name } => {
                self.add(uid(EntityType::Stranger, name), vec![("name", string(name.as_str()))], vec![])
            }
        }
    }

    fn submitter(&mut self, submitter: &Submitter) -> EntityUid {
        let (account, role, permission_set) = match &submitter.name {
            SubmitterName::PermissionSet { account, name, .. } => (account.as_str(), name.as_str(), Some(name)),
            SubmitterName::Role { account, name, .. } | SubmitterName::User { account, name, .. } => {
                (account.as_str(), name.as_str(), None)
            }
            SubmitterName::ServiceAccount(name) => ("", name.as_str(), None),
            SubmitterName::Team => ("", "", None),
        };
        let person = submitter.person.as_deref();
        let leads = person.map(|person| self.teams.led_by(person)).unwrap_or_default();
        let mut attributes =
            vec![("account", string(account)), ("role", string(role)), ("leads", self.team_set(leads))];
        if let Some(name) = permission_set {
            attributes.push(("permissionSet", string(name.as_str())));
        }
        let teams = self.teams;
        let mut parents: Vec<_> = teams.named(&submitter.team).map(|team| self.team_entity(team)).into_iter().collect();
        if let Some(person) = person {
            let person = self.person(person);
            attributes.push(("person", entity(person.clone())));
            parents.push(person);
        }
        parents.extend(
            teams.groups(&submitter.name, submitter.person.as_deref()).into_iter().map(|group| self.group(group)),
        );
        let id = submitter.annotation();
        self.add(uid(EntityType::IamPrincipal, &id), attributes, parents)
    }

    pub fn service_account(&mut self, namespace: &str, name: &str) -> EntityUid {
        let owner = self.teams.of_namespace(namespace).filter(|team| team.allows_service_account(name));
        let teams = self.team_set(owner.map(|team| team.name.as_str()));
        let attributes = vec![("teams", teams), ("namespace", string(namespace)), ("name", string(name))];
        self.add(uid(EntityType::ServiceAccount, &format!("{namespace}/{name}")), attributes, vec![])
    }

    /// The namespace of the request; cluster-scoped objects are in none.
    fn place(&mut self) -> Vec<EntityUid> {
        let Some(namespace) = self.namespace else { return vec![] };
        let teams = self.own_teams();
        let parents = self.team.map(|team| self.team_entity(team)).into_iter().collect();
        vec![self.add(uid(EntityType::Namespace, namespace), vec![("teams", teams)], parents)]
    }

    pub fn workload(&mut self, view: &WorkloadView<'_>) -> EntityUid {
        let WorkloadView { facts, group, kind, name, class, owner, labels, version } = *view;
        let id = format!("{}{}/{name}", if version == Version::Old { "old:" } else { "" }, kind.to_ascii_lowercase());
        let most = match &facts.demand.ceiling {
            crate::facts::Bound::AtMost(amounts) => amounts.accelerators(),
            crate::facts::Bound::Unbounded { .. } => u64::MAX,
        };
        let gates = facts.templates.iter().flat_map(|template| &template.scheduling_gates);
        let mut attributes = vec![
            ("teams", self.own_teams()),
            ("group", string(group)),
            ("kind", string(kind)),
            ("name", string(name)),
            ("namespace", string(self.namespace.unwrap_or_default())),
            ("class", entity(class)),
            ("pods", count(facts.demand.pods_ceiling.unwrap_or(u64::MAX))),
            ("accelerators", count(most)),
            ("suspended", boolean(facts.suspended)),
            ("unknownFields", string_set(facts.unknown_fields.iter().cloned())),
            ("controlled", boolean(facts.is_controlled)),
            ("queueKeys", string_set(facts.queue_keys.iter().cloned())),
            ("schedulingGates", string_set(gates.cloned())),
            ("homes", self.homes(facts)),
        ];
        if let Some(owner) = owner {
            attributes.push(("owner", entity(self.person(owner))));
        }
        if let Some(class) = facts.priority_classes.first() {
            attributes.push(("priorityClass", string(class.as_str())));
        }
        if let Some(queue) = facts.queues.first() {
            attributes.push(("queue", string(queue.as_str())));
        }
        let place = self.place();
        self.add_tagged(uid(EntityType::Workload, &id), attributes, place, labels)
    }

    /// People whose home directories the pods mount.
    fn homes(&mut self, facts: &Workload) -> RestrictedExpression {
        let owners: BTreeSet<String> = facts
            .templates
            .iter()
            .flat_map(|template| mounted_volumes(template).map(move |(volume, mount)| (template, volume, mount)))
            .filter_map(|(_, volume, mount)| self.declared(volume, mount, &|_| false).owner)
            .collect();
        let people: Vec<_> = owners.iter().map(|owner| self.person(owner)).collect();
        entities(people)
    }

    pub fn object(
        &mut self,
        group: &str,
        kind: &str,
        name: &str,
        subresource: Option<&str>,
        owner: Option<&str>,
        labels: &[(String, String)],
    ) -> EntityUid {
        let mut attributes =
            vec![("teams", self.own_teams()), ("group", string(group)), ("kind", string(kind)), ("name", string(name))];
        if let Some(namespace) = self.namespace {
            attributes.push(("namespace", string(namespace)));
        }
        if let Some(subresource) = subresource {
            attributes.push(("subresource", string(subresource)));
        }
        if let Some(owner) = owner {
            attributes.push(("owner", entity(self.person(owner))));
        }
        let place = self.place();
        let id = format!("{}.{group}/{name}", kind.to_ascii_lowercase());
        self.add_tagged(uid(EntityType::Object, &id), attributes, place, labels)
    }

    pub fn door(&mut self, kind: DoorKind, detail: &str) -> EntityUid {
        let attributes = vec![("teams", self.own_teams()), ("kind", entity(kind)), ("detail", string(detail))];
        let place = self.place();
        self.add(uid(EntityType::Door, &format!("{}:{detail}", kind.id())), attributes, place)
    }

    pub fn template(&mut self, workload: &EntityUid, template: &PodTemplate) -> EntityUid {
        let mut attributes = vec![
            ("teams", self.own_teams()),
            ("accelerators", count(template.per_pod.accelerators())),
            ("hostNetwork", boolean(template.host_network)),
            ("hostPID", boolean(template.host_pid)),
            ("hostIPC", boolean(template.host_ipc)),
            ("shareProcessNamespace", boolean(template.share_process_namespace)),
            ("ownNames", boolean(template.own_names)),
            ("breaks", entities(template.breaks.iter().copied())),
            ("scheduler", string(template.scheduler.as_str())),
            ("instanceFamilies", string_set(template.instance_families.iter().cloned())),
            ("anyInstance", boolean(template.any_instance)),
            ("nodeSelectors", string_set(template.node_selectors.iter().cloned())),
            ("tolerations", string_set(template.tolerations.iter().cloned())),
            ("gids", long_set(template.gids.iter().copied())),
            ("resourceClaims", boolean(template.resource_claims)),
            ("repelsOthers", boolean(template.repels_others)),
            ("keys", string_set(template.labels.keys().chain(template.annotations.keys()).cloned())),
            ("unknownFields", string_set(template.unknown_fields.iter().cloned())),
        ];
        if let Some(node) = &template.node_name {
            attributes.push(("nodeName", string(node.as_str())));
        }
        if let Some(class) = &template.runtime_class {
            attributes.push(("runtimeClass", string(class.as_str())));
        }
        self.add(uid(EntityType::PodTemplate, &template.pointer), attributes, vec![workload.clone()])
    }

    pub fn container(
        &mut self,
        workload: &EntityUid,
        template: &PodTemplate,
        container: &Container,
        shared_storage: bool,
    ) -> EntityUid {
        // The gate's own variables are not the user's; a neutral NVIDIA_VISIBLE_DEVICES is told by `seesEveryGpu`.
        let env = container.env.iter().filter(|name| !crate::mutation::INJECTED_ENV.contains(&name.as_str()));
        let mut attributes = vec![
            ("teams", self.own_teams()),
            ("name", string(container.name.as_str())),
            ("kind", entity(container.kind)),
            ("registry", string(container.image.registry.as_str())),
            ("repository", string(container.image.repository.as_str())),
            ("accelerators", count(container.amounts.accelerators())),
            ("seesEveryGpu", boolean(container.sees_every_gpu)),
            ("privileged", boolean(container.privileged)),
            ("allowPrivilegeEscalation", boolean(container.allow_privilege_escalation)),
            ("runAsNonRoot", boolean(container.run_as_non_root)),
            ("addedCapabilities", string_set(container.added_capabilities.iter().cloned())),
            ("breaks", entities(container.breaks.iter().copied())),
            ("sharedStorage", boolean(shared_storage)),
            ("env", string_set(env.cloned())),
            ("envFrom", boolean(container.env_from)),
            ("unknownFields", string_set(container.unknown_fields.iter().cloned())),
        ];
        let optional = [
            ("tag", container.image.tag.as_deref().map(string)),
            ("digest", container.image.digest.as_deref().map(string)),
            ("uid", container.uid.map(long)),
            ("gid", container.gid.map(long)),
        ];
        attributes.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
        // Both roles of an endpoint run the container that stands at one place, each with its own resources.
        let id = format!("{}:{}:{}", template.pointer, container.pointer, container.name);
        self.add(uid(EntityType::Container, &id), attributes, vec![workload.clone()])
    }

    pub fn volume(&mut self, workload: &EntityUid, mounted: &MountedVolume<'_>) -> EntityUid {
        let MountedVolume { volume, mount, declared } = mounted;
        let teams = match volume.kind {
            VolumeKind::Claim if !declared.ours => entities(Vec::<EntityUid>::new()),
            VolumeKind::Claim
            | VolumeKind::EmptyDir
            | VolumeKind::ConfigMap
            | VolumeKind::Secret
            | VolumeKind::DownwardApi
            | VolumeKind::Token
            | VolumeKind::Image
            | VolumeKind::Ephemeral
            | VolumeKind::HostPath
            | VolumeKind::Nfs
            | VolumeKind::Csi
            | VolumeKind::Other => self.own_teams(),
        };
        let sub_path = mount.and_then(|mount| mount.sub_path.as_deref());
        let mut attributes = vec![
            ("teams", teams),
            ("kind", entity(volume.kind)),
            ("breaks", entities(volume.breaks.iter().copied())),
            ("shared", boolean(declared.shared)),
            ("declared", boolean(declared.as_declared)),
            ("audiences", string_set(volume.audiences.iter().cloned())),
            ("subPathExpr", boolean(mount.is_some_and(|mount| mount.sub_path_expr))),
            ("mounted", boolean(mount.is_some())),
            ("readOnly", boolean(volume.read_only || mount.is_some_and(|mount| mount.read_only))),
            ("propagates", boolean(mount.is_some_and(|mount| mount.propagates))),
            ("unknownFields", string_set(volume.unknown_fields.iter().cloned())),
        ];
        if let Some(owner) = &declared.owner {
            attributes.push(("owner", entity(self.person(owner))));
        }
        let optional = [
            ("name", volume.source.as_deref()),
            ("path", volume.path.as_deref()),
            ("driver", volume.driver.as_deref()),
            ("storageClass", volume.storage_class.as_deref()),
            ("subPath", sub_path),
        ];
        attributes.extend(optional.into_iter().filter_map(|(name, value)| Some((name, string(value?)))));
        let way =
            mount.map(|mount| format!("{:?}", (sub_path, mount.read_only, mount.propagates, mount.sub_path_expr)));
        let id =
            format!("{}:{}:{}", volume.pointer, volume.source.as_deref().unwrap_or_default(), way.unwrap_or_default());
        self.add(uid(EntityType::Volume, &id), attributes, vec![workload.clone()])
    }

    /// What the team's file says of a volume as it is mounted. `made_with_it` knows the claims that come with the root.
    pub fn declared(&self, volume: &Volume, mount: Option<&Mount>, made_with_it: &dyn Fn(&str) -> bool) -> Declared {
        let (VolumeKind::Claim, Some(claim), Some(team)) = (volume.kind, volume.source.as_deref(), self.team) else {
            return Declared { ours: true, as_declared: true, shared: false, owner: None };
        };
        let entries: Vec<&Storage> = team.storage_of_claim(claim).collect();
        if entries.is_empty() {
            let ours = team.declares_claim(claim) || made_with_it(claim);
            return Declared { ours, as_declared: ours, shared: false, owner: None };
        }
        let Some(mount) = mount else {
            return Declared { ours: true, as_declared: true, shared: false, owner: None };
        };
        let read_only = volume.read_only || mount.read_only;
        let sub_path = mount.sub_path.as_deref();
        let people = || self.teams.iter().flat_map(|team| &team.spec.people);
        let matching = entries.iter().filter_map(|storage| {
            let allowed = read_only || !storage.read_only;
            let (owner, fits) = match (&storage.sub_path, sub_path) {
                (None, _) => (None, !mount.sub_path_expr),
                (Some(_), None) => (None, false),
                (Some(pattern), Some(path)) => {
                    let owner = storage.owner_of(&team.name, path, people());
                    let fits = owner.is_some() || storage.fill(pattern, &team.name, None).as_deref() == Some(path);
                    (owner, fits)
                }
            };
            (allowed && fits).then(|| (storage, owner.map(str::to_owned)))
        });
        // Of several entries that a mount fits, the one that says whose it is counts.
        match matching.max_by_key(|(storage, owner)| (owner.is_some(), storage.is_shared())) {
            Some((storage, owner)) => Declared { ours: true, as_declared: true, shared: storage.is_shared(), owner },
            // The whole of a claim, or another part of it: shared if any part of it is.
            None => Declared {
                ours: true,
                as_declared: false,
                shared: entries.iter().any(|storage| storage.is_shared()),
                owner: None,
            },
        }
    }

    pub fn role(&mut self, arn: &str) -> EntityUid {
        let parsed = crate::identity::Arn::parse(arn);
        let (account, name) =
            parsed.as_ref().map_or(("", arn), |parsed| (parsed.account.as_str(), parsed.resource_name()));
        let owners = self.teams.declaring(|team| team.spec.roles.iter().any(|role| role == arn));
        let attributes = vec![
            ("teams", self.team_set(owners)),
            ("arn", string(arn)),
            ("account", string(account)),
            ("name", string(name)),
        ];
        self.add(uid(EntityType::IamRole, arn), attributes, vec![])
    }

    pub fn bucket(&mut self, name: &str) -> EntityUid {
        let owners = self.teams.declaring(|team| team.spec.buckets.iter().any(|bucket| bucket == name));
        let attributes = vec![("teams", self.team_set(owners)), ("name", string(name))];
        self.add(uid(EntityType::Bucket, name), attributes, vec![])
    }

    pub fn file_system(&mut self, id: &str) -> EntityUid {
        let owners = self.teams.declaring(|team| team.spec.file_systems.iter().any(|system| system == id));
        let attributes = vec![("teams", self.team_set(owners)), ("name", string(id))];
        self.add(uid(EntityType::FileSystem, id), attributes, vec![])
    }

    /// Weights from outside are made with the pod: the namespace's team's, so that a policy decides about them.
    pub fn model(&mut self, hub: &str, name: &str) -> EntityUid {
        let attributes = vec![("teams", self.own_teams()), ("hub", string(hub)), ("name", string(name))];
        self.add(uid(EntityType::Model, &format!("{hub}/{name}")), attributes, vec![])
    }

    pub fn queue(&mut self, name: &str) -> EntityUid {
        // LocalQueues are namespaced: only the namespace's own team can mean this one.
        let owner = self.team.filter(|team| team.spec.queue.as_deref() == Some(name));
        let parents: Vec<_> = owner.map(|team| self.team_entity(team)).into_iter().collect();
        let attributes = vec![("teams", entities(parents.clone())), ("name", string(name))];
        self.add(uid(EntityType::Queue, name), attributes, parents)
    }

    pub fn priority_class(&mut self, name: &str) -> EntityUid {
        let owners = self.teams.declaring(|team| team.spec.priority_classes.iter().any(|class| class == name));
        let attributes = vec![("teams", self.team_set(owners)), ("name", string(name))];
        self.add(uid(EntityType::PriorityClass, name), attributes, vec![])
    }

    pub fn cost_center(&mut self, name: &str) -> EntityUid {
        let owners = self.teams.declaring(|team| team.spec.cost_center.as_deref() == Some(name));
        let attributes = vec![("teams", self.team_set(owners)), ("name", string(name))];
        self.add(uid(EntityType::CostCenter, name), attributes, vec![])
    }

    pub fn quota(&mut self, resource: &ResourceName) -> EntityUid {
        let parents: Vec<_> = self.team.map(|team| self.team_entity(team)).into_iter().collect();
        let attributes = vec![("teams", entities(parents.clone())), ("resource", string(resource.to_string()))];
        let team = self.team.map(|team| team.name.as_str()).unwrap_or_default();
        self.add(uid(EntityType::Quota, &format!("{team}/{resource}")), attributes, parents)
    }
}

/// Each volume with each way in which a container mounts it, and once if none does. Repeats are the caller's to drop.
pub fn mounted_volumes(template: &PodTemplate) -> impl Iterator<Item = (&Volume, Option<&Mount>)> {
    // By volume, once: looking through all mounts for each volume is slow enough to be an attack.
    let mut mounts: HashMap<&str, Vec<&Mount>> = HashMap::new();
    for mount in template.containers.iter().flat_map(|container| &container.mounts) {
        mounts.entry(mount.volume.as_str()).or_default().push(mount);
    }
    template.volumes.iter().flat_map(move |volume| {
        let of_volume = mounts.get(volume.name.as_str()).cloned().unwrap_or_default();
        let unmounted = of_volume.is_empty().then_some((volume, None));
        of_volume.into_iter().map(move |mount| (volume, Some(mount))).chain(unmounted)
    })
}

/// Whether a container mounts storage on which POSIX ids keep people apart.
pub fn mounts_shared_storage(world: &World<'_>, template: &PodTemplate, container: &Container) -> bool {
    container.mounts.iter().any(|mount| {
        let volume = template.volumes.iter().find(|volume| volume.name == mount.volume);
        volume.is_some_and(|volume| world.declared(volume, Some(mount), &|_| false).shared)
    })
}

/// Kinds of container that the gate completes. An ephemeral container is for debugging: nothing is put into it.
pub fn is_completed(kind: ContainerKind) -> bool {
    match kind {
        ContainerKind::Main | ContainerKind::Init | ContainerKind::Sidecar => true,
        ContainerKind::Ephemeral => false,
    }
}

/// A count as a Cedar Long.
fn count(amount: u64) -> RestrictedExpression {
    long(i64::try_from(amount).unwrap_or(i64::MAX))
}
