//! Takes a request apart into questions: one for each different thing that it takes. The answer to the request is the
//! conjunction, so nothing that matters may be left out here.

use std::collections::{HashMap, HashSet};

use cedar_policy::{Context, EntityUid, RestrictedExpression};

use crate::attribution::Attribution;
use crate::changes::Changes;
use crate::facts::{Container, Object, PodTemplate, StorageUse, Workload};
use crate::placed::Placed;
use crate::policies::{Question, boolean, context, datetime, entities, entity, long, string};
use crate::quota::Usage;
use crate::team::Limits;
use crate::vocabulary::{Action, Change, DoorKind, Origin, VolumeKind, Weekday};
use crate::world::{Declared, MountedVolume, World, mounted_volumes, mounts_shared_storage};

/// A question with the words for it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub question: Question,
    /// What it is about, for a person: "container `main`".
    pub subject: String,
    /// What would do instead: "team-a may mount `fsx-claim`".
    pub alternatives: Option<String>,
    base: Base,
    workload: Option<EntityUid>,
}

/// The facts of the request that every context carries.
#[derive(Debug, Clone)]
pub struct Base {
    pub team: Option<EntityUid>,
    pub dry_run: bool,
    pub changed: Vec<Change>,
    pub now: Clock,
    pub reason: Option<String>,
    pub old: Option<EntityUid>,
    pub origin: Origin,
}

/// The time of the review, worked out once: a Cedar datetime costs more than the rest of a context.
#[derive(Debug, Clone)]
pub struct Clock {
    now: RestrictedExpression,
    hour: i64,
    weekday: Weekday,
}

impl Clock {
    pub fn at(now: jiff::Timestamp, zone: jiff::tz::TimeZone) -> Self {
        let local = now.to_zoned(zone);
        let weekday = match local.weekday() {
            jiff::civil::Weekday::Monday => Weekday::Monday,
            jiff::civil::Weekday::Tuesday => Weekday::Tuesday,
            jiff::civil::Weekday::Wednesday => Weekday::Wednesday,
            jiff::civil::Weekday::Thursday => Weekday::Thursday,
            jiff::civil::Weekday::Friday => Weekday::Friday,
            jiff::civil::Weekday::Saturday => Weekday::Saturday,
            jiff::civil::Weekday::Sunday => Weekday::Sunday,
        };
        Self { now: datetime(now), hour: i64::from(local.hour()), weekday }
    }
}

impl Base {
    fn pairs(&self) -> Vec<(&'static str, RestrictedExpression)> {
        let mut pairs = vec![
            ("origin", entity(self.origin)),
            ("dryRun", boolean(self.dry_run)),
            ("changed", entities(self.changed.iter().copied())),
            ("now", self.now.now.clone()),
            ("hour", long(self.now.hour)),
            ("weekday", entity(self.now.weekday)),
        ];
        let optional = [
            ("team", self.team.clone().map(entity)),
            ("reason", self.reason.as_deref().map(string)),
            ("old", self.old.clone().map(entity)),
        ];
        pairs.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
        pairs
    }
}

impl Asked {
    /// "May this forbid be set aside here?", about the same thing.
    pub fn exemption(&self, policy: &str) -> Question {
        let mut pairs = self.base.pairs();
        pairs.push(("policy", string(policy)));
        if let Some(workload) = &self.workload {
            pairs.push(("workload", entity(workload.clone())));
        }
        Question {
            principal: self.question.principal.clone(),
            action: Action::Exempt,
            resource: self.question.resource.clone(),
            context: context(pairs),
        }
    }
}

const PAST_THE_GATE: &str = "it would give access past the gate: ask the platform team to do it";

/// Collects the questions of one request.
#[derive(Debug)]
pub struct Questions<'a, 'w> {
    pub world: &'w mut World<'a>,
    actor: EntityUid,
    user: EntityUid,
    request: Base,
    usage: Base,
    asked: Vec<Asked>,
    places: bool,
    placed: Placed,
}

impl<'a, 'w> Questions<'a, 'w> {
    pub fn new(world: &'w mut World<'a>, attribution: &Attribution, base: Base) -> Self {
        let actor = world.principal(&attribution.actor);
        let user = world.principal(&attribution.user);
        let usage = Base { origin: attribution.user_origin, ..base.clone() };
        Self {
            world,
            actor,
            user,
            request: Base { origin: attribution.actor_origin, ..base },
            usage,
            asked: Vec::new(),
            places: attribution.places,
            placed: attribution.placed.clone(),
        }
    }

    pub fn into_asked(self) -> Vec<Asked> {
        self.asked
    }

    /// The request itself, asked as the actor.
    pub fn request(&mut self, action: Action, resource: EntityUid, subject: String, alternatives: Option<String>) {
        let context = context(self.request.pairs());
        self.push(self.actor.clone(), action, resource, context, subject, alternatives, self.request.clone(), None);
    }

    /// Each way past the gate that an object gives, asked as the actor.
    pub fn doors(&mut self, doors: impl IntoIterator<Item = (DoorKind, String)>) {
        for (kind, detail) in doors {
            let door = self.world.door(kind, &detail);
            self.request(Action::Open, door, format!("{} `{detail}`", kind.id()), Some(PAST_THE_GATE.to_owned()));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a question, put together in this one place")]
    fn push(
        &mut self,
        principal: EntityUid,
        action: Action,
        resource: EntityUid,
        context: Context,
        subject: String,
        alternatives: Option<String>,
        base: Base,
        workload: Option<EntityUid>,
    ) {
        let question = Question { principal, action, resource, context };
        self.asked.push(Asked { question, subject, alternatives, base, workload });
    }

    fn take(
        &mut self,
        action: Action,
        resource: EntityUid,
        workload: &EntityUid,
        subject: String,
        alternatives: Option<String>,
    ) {
        let mut pairs = self.usage.pairs();
        pairs.push(("workload", entity(workload.clone())));
        let context = context(pairs);
        let user = self.user.clone();
        self.push(user, action, resource, context, subject, alternatives, self.usage.clone(), Some(workload.clone()));
    }

    /// Everything that a workload takes and `old` did not take already.
    pub fn uses(
        &mut self,
        workload: &EntityUid,
        facts: &Workload,
        old: Option<&Workload>,
        made_with_it: &dyn Fn(&str) -> bool,
        names: &Names<'_>,
    ) {
        let is_pod = names.kind == "Pod";
        for template in &facts.templates {
            let before = old.and_then(|old| old.templates.iter().find(|old| old.pointer == template.pointer));
            self.template(workload, template, before);
            self.containers(workload, template, before);
            self.volumes(workload, template, before, made_with_it, names);
        }
        self.identities(workload, facts, old, is_pod, names);
        self.storage(workload, facts, old, names);
        for queue in facts.queues.iter().filter(|queue| old.is_none_or(|old| !old.queues.contains(*queue))) {
            let resource = self.world.queue(queue);
            self.take(Action::Enqueue, resource, workload, format!("queue `{queue}`"), names.queue());
        }
        for class in &facts.priority_classes {
            if old.is_none_or(|old| !old.priority_classes.contains(class)) {
                let resource = self.world.priority_class(class);
                let subject = format!("priority class `{class}`");
                self.take(Action::Enqueue, resource, workload, subject, names.priority_classes());
            }
        }
    }

    fn template(&mut self, workload: &EntityUid, new: &PodTemplate, old: Option<&PodTemplate>) {
        if old.is_some_and(|old| same_placement(old, new, self.places)) {
            return;
        }
        let resource = self.world.template(workload, &self.placed.left_out(new));
        let subject = match new.pointer.as_str() {
            "" => "the pod".to_owned(),
            pointer => format!("the pod template `{pointer}`"),
        };
        self.take(Action::Schedule, resource, workload, subject, None);
    }

    fn containers(&mut self, workload: &EntityUid, new: &PodTemplate, old: Option<&PodTemplate>) {
        for container in &new.containers {
            let shared = mounts_shared_storage(self.world, new, container);
            let unchanged = |before: &PodTemplate| {
                let same = |old: &&Container| old.name == container.name && same_container(old, container);
                let same = before.containers.iter().find(same);
                same.is_some_and(|old| mounts_shared_storage(self.world, before, old) == shared)
            };
            if old.is_some_and(unchanged) {
                continue;
            }
            let resource = self.world.container(workload, new, container, shared);
            self.take(Action::Run, resource, workload, format!("container `{}`", container.name), None);
        }
    }

    fn volumes(
        &mut self,
        workload: &EntityUid,
        new: &PodTemplate,
        old: Option<&PodTemplate>,
        made_with_it: &dyn Fn(&str) -> bool,
        names: &Names<'_>,
    ) {
        let mut before: HashMap<&str, Vec<_>> = HashMap::new();
        for (volume, mount) in old.into_iter().flat_map(mounted_volumes) {
            before.entry(volume.name.as_str()).or_default().push((volume, mount));
        }
        let mut seen = HashSet::new();
        for (volume, mount) in mounted_volumes(new) {
            let way =
                mount.map(|mount| (mount.sub_path.as_deref(), mount.read_only, mount.propagates, mount.sub_path_expr));
            let same = |(other, other_mount): &(&crate::facts::Volume, Option<&crate::facts::Mount>)| {
                same_volume(other, volume)
                    && other_mount.map(|mount| {
                        (mount.sub_path.as_deref(), mount.read_only, mount.propagates, mount.sub_path_expr)
                    }) == way
            };
            // A projected volume is several of one name: its token, and each of its Secrets.
            let asked = (volume.name.as_str(), volume.kind, volume.source.as_deref(), way);
            let was_so = before.get(volume.name.as_str()).is_some_and(|before| before.iter().any(same));
            if was_so || !seen.insert(asked) {
                continue;
            }
            let declared = self.world.declared(volume, mount, made_with_it);
            let subject = volume_subject(volume, mount.and_then(|mount| mount.sub_path.as_deref()), &declared);
            let alternatives = (volume.kind == VolumeKind::Claim).then(|| names.claims()).flatten();
            let resource = self.world.volume(workload, &MountedVolume { volume, mount, declared });
            self.take(Action::Mount, resource, workload, subject, alternatives);
        }
    }

    fn identities(
        &mut self,
        workload: &EntityUid,
        facts: &Workload,
        old: Option<&Workload>,
        is_pod: bool,
        names: &Names<'_>,
    ) {
        let accounts = |facts: &Workload| {
            let mut accounts: Vec<String> = facts.service_account.iter().cloned().collect();
            for template in &facts.templates {
                match (&template.service_account, is_pod) {
                    (Some(name), _) => accounts.push(name.clone()),
                    // A template that names none leaves it to its pods, which are given the team's.
                    (None, true) => accounts.push("default".to_owned()),
                    (None, false) => {}
                }
            }
            // `default` in a template is what the pods are given in place of nothing.
            accounts.retain(|name| is_pod || name != "default");
            accounts.sort();
            accounts.dedup();
            accounts
        };
        let before = old.map(accounts).unwrap_or_default();
        for account in accounts(facts).iter().filter(|account| !before.contains(account)) {
            let resource = self.world.service_account(names.namespace, account);
            let subject = format!("service account `{account}`");
            self.take(Action::Assume, resource, workload, subject, names.service_accounts());
        }
        for role in facts.roles.iter().filter(|role| old.is_none_or(|old| !old.roles.contains(*role))) {
            let resource = self.world.role(role);
            self.take(Action::Assume, resource, workload, format!("role `{role}`"), names.roles());
        }
    }

    fn storage(&mut self, workload: &EntityUid, facts: &Workload, old: Option<&Workload>, names: &Names<'_>) {
        for used in facts.storage.iter().filter(|used| old.is_none_or(|old| !old.storage.contains(*used))) {
            let (action, resource, subject, alternatives) = match used {
                StorageUse::Bucket { name, write } => {
                    let action = if *write { Action::Write } else { Action::Read };
                    (action, self.world.bucket(name), format!("bucket `{name}`"), names.buckets())
                }
                StorageUse::FileSystem { id } => {
                    (Action::Read, self.world.file_system(id), format!("file system `{id}`"), names.file_systems())
                }
                StorageUse::Model { hub, name } => {
                    (Action::Read, self.world.model(hub, name), format!("model `{name}` of {hub}"), None)
                }
            };
            self.take(action, resource, workload, subject, alternatives);
        }
    }

    /// Whom the workload is billed to.
    pub fn charge(&mut self, workload: &EntityUid, cost_center: &str, names: &Names<'_>) {
        let resource = self.world.cost_center(cost_center);
        self.take(Action::Charge, resource, workload, format!("cost center `{cost_center}`"), names.cost_center());
    }

    /// A claim that the gate would mount: asked before it is given.
    pub fn offer_volume(&mut self, workload: &EntityUid, mounted: &MountedVolume<'_>) {
        let resource = self.world.volume(workload, mounted);
        let subject = volume_subject(mounted.volume, None, &mounted.declared);
        self.take(Action::Mount, resource, workload, subject, None);
    }

    /// The service account that the gate would give.
    pub fn offer_service_account(&mut self, workload: &EntityUid, namespace: &str, name: &str) {
        let resource = self.world.service_account(namespace, name);
        self.take(Action::Assume, resource, workload, format!("service account `{name}`"), None);
    }

    /// The queue that the gate would give.
    pub fn offer_queue(&mut self, workload: &EntityUid, queue: &str) {
        let resource = self.world.queue(queue);
        self.take(Action::Enqueue, resource, workload, format!("queue `{queue}`"), None);
    }

    /// Accelerators, with the sums ready made.
    pub fn consume(&mut self, workload: &EntityUid, usage: &Usage, limits: Limits) {
        let clamp = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
        let mut pairs = self.usage.pairs();
        pairs.extend([
            ("workload", entity(workload.clone())),
            ("requested", long(clamp(usage.after.saturating_sub(usage.used)))),
            ("used", long(clamp(usage.used))),
            ("after", long(clamp(usage.after))),
            ("limit", long(clamp(limits.limit))),
            ("ceiling", long(clamp(limits.ceiling))),
            ("percentAfter", long(clamp(percent(usage.after, limits.limit)))),
            ("classAfter", long(clamp(usage.class_after))),
        ]);
        let optional = [("personAfter", usage.person_after), ("personClassAfter", usage.person_class_after)];
        pairs.extend(optional.into_iter().filter_map(|(name, amount)| Some((name, long(clamp(amount?))))));
        let resource = self.world.quota(&usage.resource);
        let context = context(pairs);
        let subject = format!("{} {}", usage.after.saturating_sub(usage.used), usage.resource);
        let user = self.user.clone();
        self.push(user, Action::Consume, resource, context, subject, None, self.usage.clone(), Some(workload.clone()));
    }
}

/// Rounded up, so that 80 is never more than four fifths; of nothing, anything is above every share.
fn percent(amount: u64, whole: u64) -> u64 {
    match whole {
        0 => u64::MAX,
        whole => u64::try_from((u128::from(amount) * 100).div_ceil(u128::from(whole))).unwrap_or(u64::MAX),
    }
}

/// Names of the request, and what the team may use, for messages.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    pub kind: &'a str,
    pub namespace: &'a str,
    pub team: Option<&'a crate::team::Team>,
}

impl Names<'_> {
    fn may(&self, verb: &str, things: impl Iterator<Item = String>) -> Option<String> {
        let team = self.team?;
        let things: Vec<String> = things.map(|thing| format!("`{thing}`")).collect();
        Some(match things.is_empty() {
            true => format!("{} declares none", team.name),
            false => format!("{} may {verb} {}", team.name, things.join(", ")),
        })
    }

    fn claims(&self) -> Option<String> {
        let claims = |storage: &crate::team::Storage| match &storage.sub_path {
            Some(path) => format!("{} (subPath {path})", storage.claim),
            None => storage.claim.clone(),
        };
        let spec = &self.team?.spec;
        self.may("mount", spec.storage.iter().map(claims).chain(spec.claims.iter().cloned()))
    }

    fn service_accounts(&self) -> Option<String> {
        let names = &self.team?.spec.service_accounts;
        let default = names.is_empty().then(|| "default".to_owned());
        self.may("use", names.iter().cloned().chain(default))
    }

    fn roles(&self) -> Option<String> {
        self.may("use", self.team?.spec.roles.iter().cloned())
    }

    fn buckets(&self) -> Option<String> {
        self.may("use", self.team?.spec.buckets.iter().cloned())
    }

    fn file_systems(&self) -> Option<String> {
        self.may("use", self.team?.spec.file_systems.iter().cloned())
    }

    fn queue(&self) -> Option<String> {
        self.may("use", self.team?.spec.queue.iter().cloned())
    }

    fn priority_classes(&self) -> Option<String> {
        self.may("use", self.team?.spec.priority_classes.iter().cloned())
    }

    fn cost_center(&self) -> Option<String> {
        self.may("charge", self.team?.spec.cost_center.iter().cloned())
    }
}

/// The action that an UPDATE is: what changes the size alone has its own name.
pub fn update_action(changes: &Changes, resumes: bool) -> Action {
    let only = |change: Change| !changes.set.is_empty() && changes.set.iter().all(|set| *set == change);
    if only(Change::Suspend) && resumes {
        return Action::Resume;
    }
    if only(Change::Replicas) { Action::Scale } else { Action::Update }
}

fn volume_subject(volume: &crate::facts::Volume, sub_path: Option<&str>, declared: &Declared) -> String {
    let source = match (&volume.source, &volume.path) {
        (Some(source), _) => format!(" `{source}`"),
        (None, Some(path)) => format!(" `{path}`"),
        (None, None) => String::new(),
    };
    let part = match (sub_path, volume.kind) {
        (Some(path), _) => format!(", subPath `{path}`"),
        (None, VolumeKind::Claim) if declared.ours && !declared.as_declared => ", without subPath".to_owned(),
        (None, _) => String::new(),
    };
    format!("volume `{}` ({}{source}{part})", volume.name, volume.kind.id())
}

/// Equal but for where it stands, its containers and its volumes, which are asked about on their own; and, if whoever
/// asks `places`, but for nodes.
fn same_placement(old: &PodTemplate, new: &PodTemplate, places: bool) -> bool {
    let bare = |template: &PodTemplate| PodTemplate {
        pointer: String::new(),
        containers: Vec::new(),
        volumes: Vec::new(),
        labels: Default::default(),
        annotations: Default::default(),
        scheduling_gates: Default::default(),
        service_account: None,
        ..template.clone()
    };
    let anywhere = |template: PodTemplate| PodTemplate {
        instance_families: Default::default(),
        any_instance: true,
        node_selectors: Default::default(),
        tolerations: Default::default(),
        ..template
    };
    match places {
        true => anywhere(bare(old)) == anywhere(bare(new)),
        false => bare(old) == bare(new),
    }
}

fn same_container(old: &Container, new: &Container) -> bool {
    let bare = |container: &Container| Container { pointer: String::new(), ..container.clone() };
    bare(old) == bare(new)
}

fn same_volume(old: &crate::facts::Volume, new: &crate::facts::Volume) -> bool {
    let bare = |volume: &crate::facts::Volume| crate::facts::Volume { pointer: String::new(), ..volume.clone() };
    bare(old) == bare(new)
}

/// Every door that the object is or was.
pub fn all_doors(old: Option<&Object>, new: Option<&Object>) -> Vec<(DoorKind, String)> {
    let doors = |object: Option<&Object>| object.map(|object| object.doors.clone()).unwrap_or_default();
    doors(old).union(&doors(new)).cloned().collect()
}

/// Whoever may open a door that a removed label or annotation stood for: both directions count.
pub fn changed_doors(old: Option<&Object>, new: Option<&Object>) -> Vec<(DoorKind, String)> {
    let doors = |object: Option<&Object>| object.map(|object| object.doors.clone()).unwrap_or_default();
    doors(old).symmetric_difference(&doors(new)).cloned().collect()
}
