//! Two teams with one of everything, `a` and `b`, in debug builds held against the schema.

use cedar_policy::{Context, Entities, Entity, EntityUid, RestrictedExpression};
use jiff::Timestamp;

use super::super::EntityType::{
    Bucket, Component, Container, CostCenter, Door, FileSystem, Group, IamPrincipal, IamRole, Model, Namespace, Object,
    Person, PodTemplate, PriorityClass, Queue, Quota, ServiceAccount, Stranger, Team, Volume, Workload,
};
use super::super::*;
use crate::vocabulary::{
    Action, Change, Class, ComponentKind, ContainerKind, Control, DoorKind, Level, Origin, QuotaMode, VolumeKind,
    Weekday,
};

type Attributes = Vec<(&'static str, RestrictedExpression)>;

pub(super) const TEAMS: [&str; 2] = ["a", "b"];

/// Every resource type that a question may be about.
pub(super) const RESOURCES: [EntityType; 15] = [
    Workload,
    Object,
    Door,
    PodTemplate,
    Container,
    Volume,
    ServiceAccount,
    IamRole,
    Bucket,
    FileSystem,
    Model,
    Quota,
    Queue,
    PriorityClass,
    CostCenter,
];

/// Facts that a test changes, laid over the plain ones.
pub(super) type Changes = Vec<(EntityUid, &'static str, RestrictedExpression)>;

pub(super) fn plain(policies: &Policies) -> Entities {
    with(policies, Vec::new())
}

pub(super) fn with(policies: &Policies, changes: Changes) -> Entities {
    policies.entities_from(build(changes)).expect("the world conforms to the schema")
}

pub(super) fn build(changes: Changes) -> Vec<Entity> {
    let mut parts: Vec<(EntityUid, Attributes, Vec<EntityUid>)> = people();
    for team in TEAMS {
        parts.extend(things(team));
    }
    for (target, name, value) in changes {
        let (_, attributes, _) = parts.iter_mut().find(|(uid, ..)| *uid == target).expect("a change of what is there");
        attributes.retain(|(other, _)| *other != name);
        attributes.push((name, value));
    }
    parts.into_iter().map(|(uid, attributes, parents)| build_entity(uid, attributes, parents, [])).collect()
}

fn people() -> Vec<(EntityUid, Attributes, Vec<EntityUid>)> {
    let mut all = vec![
        (uid(Group, "contractors"), vec![], vec![]),
        (uid(Group, "platform-admins"), vec![], vec![]),
        (
            uid(Component, "queue"),
            vec![("kind", entity(ComponentKind::Queue)), ("name", string("kueue")), ("byName", boolean(false))],
            vec![],
        ),
        (uid(Stranger, "eve"), vec![("name", string("eve"))], vec![]),
        (
            uid(IamPrincipal, "admin"),
            vec![("account", string("1")), ("role", string("Admin")), ("leads", entities::<EntityUid>([]))],
            vec![uid(Group, "platform-admins")],
        ),
    ];
    // `a` and `b` stand for the one person of each team.
    for name in TEAMS {
        let person = uid(Person, name);
        all.push((
            person.clone(),
            vec![("name", string(name)), ("uid", long(1001)), ("gids", long_set([2001]))],
            vec![],
        ));
        all.push((
            uid(IamPrincipal, name),
            vec![
                ("account", string("1")),
                ("role", string("Scientist")),
                ("person", entity(person.clone())),
                ("leads", entities::<EntityUid>([])),
            ],
            vec![uid(Team, name), person],
        ));
    }
    all
}

fn things(team: &str) -> Vec<(EntityUid, Attributes, Vec<EntityUid>)> {
    let team_uid = uid(Team, team);
    let teams = || ("teams", entities([team_uid.clone()]));
    let named = || vec![teams(), ("name", string(team))];
    let namespace = uid(Namespace, team);
    let workload = uid(Workload, team);
    let none = || string_set::<String>([]);
    let in_workload = || vec![workload.clone()];
    vec![
        (team_uid.clone(), vec![("level", entity(Level::Baseline)), ("quotaMode", entity(QuotaMode::Ledger))], vec![]),
        (namespace.clone(), vec![teams()], vec![team_uid.clone()]),
        (
            workload.clone(),
            vec![
                teams(),
                ("owner", entity(uid(Person, team))),
                ("group", string("")),
                ("kind", string("Pod")),
                ("name", string("w")),
                ("namespace", string(team)),
                ("class", entity(Class::Training)),
                ("pods", long(1)),
                ("accelerators", long(8)),
                ("suspended", boolean(false)),
                ("controlled", boolean(false)),
                ("queueKeys", none()),
                ("schedulingGates", none()),
                ("homes", entities(Vec::<EntityUid>::new())),
                ("unknownFields", none()),
            ],
            vec![namespace.clone()],
        ),
        (
            uid(Object, team),
            vec![teams(), ("group", string("")), ("kind", string("ConfigMap")), ("name", string("o"))],
            vec![namespace.clone()],
        ),
        (
            uid(Door, team),
            vec![teams(), ("kind", entity(DoorKind::QueueAdmission)), ("detail", string(""))],
            vec![namespace],
        ),
        (
            uid(PodTemplate, team),
            vec![
                teams(),
                ("accelerators", long(8)),
                ("hostNetwork", boolean(false)),
                ("hostPID", boolean(false)),
                ("hostIPC", boolean(false)),
                ("shareProcessNamespace", boolean(false)),
                ("ownNames", boolean(false)),
                ("breaks", entities::<Control>([])),
                ("scheduler", string("default-scheduler")),
                ("instanceFamilies", string_set(["p5"])),
                ("anyInstance", boolean(false)),
                ("nodeSelectors", string_set(["node.kubernetes.io/instance-type"])),
                ("tolerations", none()),
                ("gids", long_set([])),
                ("resourceClaims", boolean(false)),
                ("repelsOthers", boolean(false)),
                ("keys", none()),
                ("unknownFields", none()),
            ],
            in_workload(),
        ),
        (
            uid(Container, team),
            vec![
                teams(),
                ("name", string("main")),
                ("kind", entity(ContainerKind::Main)),
                ("registry", string("763104351884.dkr.ecr.us-west-2.amazonaws.com")),
                ("repository", string("pytorch-training")),
                ("accelerators", long(8)),
                ("seesEveryGpu", boolean(false)),
                ("privileged", boolean(false)),
                ("allowPrivilegeEscalation", boolean(true)),
                ("runAsNonRoot", boolean(false)),
                ("addedCapabilities", none()),
                ("breaks", entities::<Control>([])),
                ("sharedStorage", boolean(false)),
                ("env", none()),
                ("envFrom", boolean(false)),
                ("unknownFields", none()),
            ],
            in_workload(),
        ),
        (
            uid(Volume, team),
            vec![
                teams(),
                ("kind", entity(VolumeKind::Claim)),
                ("breaks", entities::<Control>([])),
                ("name", string("fsx")),
                ("shared", boolean(true)),
                ("declared", boolean(true)),
                ("audiences", none()),
                ("subPathExpr", boolean(false)),
                ("mounted", boolean(true)),
                ("readOnly", boolean(false)),
                ("propagates", boolean(false)),
                ("unknownFields", none()),
            ],
            in_workload(),
        ),
        (uid(ServiceAccount, team), vec![teams(), ("namespace", string(team)), ("name", string("sa"))], vec![]),
        (
            uid(IamRole, team),
            vec![teams(), ("arn", string("arn")), ("account", string("1")), ("name", string("role"))],
            vec![],
        ),
        (uid(Bucket, team), named(), vec![]),
        (uid(FileSystem, team), named(), vec![]),
        (uid(Model, team), vec![teams(), ("hub", string("huggingface")), ("name", string("m"))], vec![]),
        (uid(Quota, team), vec![teams(), ("resource", string("nvidia.com/gpu"))], vec![team_uid.clone()]),
        (uid(Queue, team), named(), vec![team_uid.clone()]),
        (uid(PriorityClass, team), named(), vec![]),
        (uid(CostCenter, team), named(), vec![]),
    ]
}

/// Facts of the context that a test changes.
pub(super) type ContextChanges = Vec<(&'static str, RestrictedExpression)>;

/// What every context has, with what this action has beside it, in the namespace of `team`.
pub(super) fn context_for(action: Action, team: &str, changes: ContextChanges) -> Context {
    let time: Timestamp = "2026-11-30T10:00:00Z".parse().expect("a time");
    let mut pairs = vec![
        ("team", entity(uid(Team, team))),
        ("origin", entity(Origin::Direct)),
        ("dryRun", boolean(false)),
        ("changed", entities::<Change>([])),
        ("now", datetime(time)),
        ("hour", long(10)),
        ("weekday", entity(Weekday::Monday)),
    ];
    pairs.extend(facts_of(action, team));
    pairs.retain(|(name, _)| !changes.iter().any(|(other, _)| name == other));
    pairs.extend(changes);
    context(pairs)
}

fn facts_of(action: Action, team: &str) -> Attributes {
    let workload = || ("workload", entity(uid(Workload, team)));
    match action {
        Action::Schedule
        | Action::Run
        | Action::Mount
        | Action::Assume
        | Action::Read
        | Action::Write
        | Action::Enqueue
        | Action::Charge => vec![workload()],
        Action::Consume => vec![
            workload(),
            ("requested", long(8)),
            ("used", long(0)),
            ("after", long(8)),
            ("limit", long(16)),
            ("ceiling", long(32)),
            ("percentAfter", long(50)),
            ("classAfter", long(8)),
        ],
        Action::Exempt => vec![("policy", string("volume-kinds"))],
        Action::Create
        | Action::Update
        | Action::Scale
        | Action::Resize
        | Action::Resume
        | Action::Exec
        | Action::Attach
        | Action::PortForward
        | Action::Proxy
        | Action::Debug
        | Action::Delete
        | Action::Evict
        | Action::Open => vec![],
    }
}

/// A question of team `a`'s person about their team's one thing of this type.
pub(super) fn question(action: Action, resource: EntityType) -> Question {
    Question {
        principal: uid(IamPrincipal, "a"),
        action,
        resource: uid(resource, "a"),
        context: context_for(action, "a", vec![]),
    }
}
