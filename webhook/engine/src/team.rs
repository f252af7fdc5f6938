//! Teams as a platform engineer declares them. One YAML shape, read from files offline and served as a CRD in a cluster.
//!
//! Two types: [`TeamFile`] is what was typed; [`Teams`] is what it means, indexed and free of overlap. A namespace, a
//! role or a claim that two files declare would let one team reach another, so it is refused with both places named; in
//! a cluster, where nobody waits for the refusal, [`served`] settles it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amounts::ResourceName;
use crate::identity::{Arn, IamCaller, IamName};
use crate::stamp::SubmitterName;
use crate::vocabulary::Level;
pub use crate::vocabulary::QuotaMode;

pub mod served;

/// `apiVersion` of a team file.
pub const API_VERSION: &str = "cedargate.dev/v1alpha1";

/// What was typed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TeamFile {
    pub api_version: String,
    pub kind: String,
    pub metadata: TeamMetadata,
    pub spec: TeamSpec,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TeamMetadata {
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TeamSpec {
    /// Namespaces whose every pod is the team's. Empty for a team that only names platform people.
    pub namespaces: Vec<String>,
    /// When both webhook configurations held the namespaces (RFC 3339). Roots older than this are legacy. In a cluster the
    /// gate finds this out itself, for each namespace, and says it in `status`; what is written here counts only offline.
    pub governed_since: Option<jiff::Timestamp>,
    /// Pod Security level. Default: baseline.
    #[schemars(extend("enum" = ["baseline", "restricted"]), with = "Option<String>")]
    pub level: Option<Level>,
    pub members: Vec<Member>,
    /// The people table: POSIX ids, home and groups of those who need them.
    pub people: Vec<Person>,
    /// Groups that policies name, each with people and whole permission sets or roles.
    pub groups: Vec<Group>,
    /// Names of people who lead the team.
    pub leads: Vec<String>,
    pub storage: Vec<Storage>,
    /// Claims that pods of the team may mount whole, beside `storage`; `*` stands for any characters.
    pub claims: Vec<String>,
    /// ServiceAccounts of pods; the first is given to pods that name none. Default: `default`, which has no role.
    pub service_accounts: Vec<String>,
    /// Role ARNs that objects of the team may name.
    pub roles: Vec<String>,
    pub buckets: Vec<String>,
    pub file_systems: Vec<String>,
    pub quota: Option<Quota>,
    /// LocalQueue of every workload.
    pub queue: Option<String>,
    /// WorkloadPriorityClasses and PriorityClasses the team may name; the first is given where none is named.
    pub priority_classes: Vec<String>,
    pub cost_center: Option<String>,
    /// Cost-allocation labels of every root and pod.
    pub labels: BTreeMap<String, String>,
}

/// Who belongs to the team: exactly one of `permissionSet`, `role`, `user`, `serviceAccount`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Member {
    /// IAM Identity Center permission set, without `AWSReservedSSO_` and suffix.
    pub permission_set: Option<String>,
    /// IAM role name; a path is ignored, since STS never carries it.
    pub role: Option<String>,
    /// IAM user with its path, as in its ARN.
    pub user: Option<String>,
    /// `namespace/name`: team rights, person none.
    pub service_account: Option<String>,
    /// Twelve digits. Default: any account that the configuration pins.
    pub account: Option<String>,
    /// Default: any partition that the configuration pins.
    pub partition: Option<String>,
    /// `AROA...` or `AIDA...`, to pin one incarnation of the role.
    pub principal_id: Option<String>,
    /// Where the person's name comes from. Default: `sessionName` for a permission set, else `none`.
    pub person_from: Option<PersonFrom>,
    /// For `personFrom: fixed`.
    pub person: Option<String>,
    /// The username template of the access entry, where it is not the default.
    pub username: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PersonFrom {
    /// The raw session name. Only where the session name is not the caller's choice.
    SessionName,
    /// The role's name.
    RoleName,
    /// `person` of the member.
    Fixed,
    /// Team-level rights only.
    None,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Person {
    /// As the session or the member gives it, with `@`.
    pub name: String,
    /// `{home}` in storage; also USER and LOGNAME. Default: the person gets no home.
    pub home: Option<String>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub supplemental_groups: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Group {
    pub name: String,
    pub people: Vec<String>,
    pub permission_sets: Vec<String>,
    pub roles: Vec<String>,
    /// `namespace/name` of service accounts that a team lists as members.
    pub service_accounts: Vec<String>,
}

/// A directory that pods of the team get. With `{home}` in `subPath` or `mountPath` it is the submitter's own.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Storage {
    /// Volume name within the pod.
    pub name: String,
    /// PersistentVolumeClaim in the team's namespaces.
    pub claim: String,
    pub mount_path: String,
    /// Within the claim; `{team}` and `{home}` are filled in.
    pub sub_path: Option<String>,
    pub read_only: bool,
    pub posix: Posix,
    /// Give it to every pod. Off: pods may mount it themselves at the declared path.
    pub inject: Option<bool>,
}

/// Whether POSIX ids keep people apart on a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Posix {
    /// Ids are set where the pod sets none.
    Inject,
    /// Ids must be the person's, and are not set.
    Require,
    /// Ids do not matter: the directory is one identity's.
    #[default]
    Off,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Quota {
    /// `ledger`: the gate counts, exactly. `kueue`: task governance counts; the gate pins queue and priority, and refuses what
    /// the queue could never give.
    #[schemars(extend("enum" = ["ledger", "kueue"]), with = "String")]
    pub mode: QuotaMode,
    /// By extended resource, in units. A resource that is counted and not listed has limit 0; in `kueue` mode, what the queue
    /// has.
    #[schemars(with = "BTreeMap<String, u64>")]
    pub limit: BTreeMap<ResourceName, u64>,
    /// Limit plus what may be borrowed. Default: the limit.
    #[schemars(with = "BTreeMap<String, u64>")]
    pub ceiling: BTreeMap<ResourceName, u64>,
}

#[expect(clippy::derivable_impls, reason = "the list is declared with the others that policies name")]
impl Default for QuotaMode {
    fn default() -> Self {
        Self::Ledger
    }
}

/// A problem in team files; the sentence names the file or team and the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}")]
pub struct TeamError {
    pub at: String,
    pub problem: String,
}

/// What the team files mean.
#[derive(Debug, Clone, Default)]
pub struct Teams {
    teams: BTreeMap<String, Arc<Team>>,
    by_namespace: BTreeMap<String, Arc<Team>>,
    revision: String,
}

/// One team.
#[derive(Debug, Clone, PartialEq)]
pub struct Team {
    pub name: String,
    pub level: Level,
    pub spec: TeamSpec,
    /// By namespace, what the cluster knows better than `spec.governedSince`.
    pub governed: BTreeMap<String, jiff::Timestamp>,
    /// The Team object is gone, and pods of it are left.
    pub vanished: bool,
    pub revision: ObjectRevision,
}

/// Which reading of an object this is; empty for a file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ObjectRevision {
    pub uid: String,
    /// `metadata.generation`: grows with every change of what is declared.
    pub generation: i64,
}

/// A person as a member of a team.
#[derive(Debug, Clone)]
pub struct Membership {
    pub team: Arc<Team>,
    pub person: Option<String>,
}

impl Teams {
    /// Reads YAML documents, each file `(path, text)`. Every problem is reported, not the first alone.
    pub fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Vec<TeamError>> {
        let mut errors = Vec::new();
        let mut teams = Vec::new();
        for (path, text) in files {
            match serde_saphyr::from_multiple::<TeamFile>(text) {
                Ok(documents) => teams.extend(documents.into_iter().map(|document| (path.to_owned(), document))),
                Err(error) => errors.push(TeamError { at: path.to_owned(), problem: error.to_string() }),
            }
        }
        match Self::build(teams) {
            Ok(teams) if errors.is_empty() => Ok(teams),
            Ok(_) => Err(errors),
            Err(more) => Err(errors.into_iter().chain(more).collect()),
        }
    }

    fn build(files: Vec<(String, TeamFile)>) -> Result<Self, Vec<TeamError>> {
        let revision = digest(&files);
        let mut errors = Vec::new();
        let mut claimed = Claimed::default();
        let mut teams = Self { revision, ..Self::default() };
        for (path, file) in files {
            let at = format!("{path} (team {})", file.metadata.name);
            errors.extend(check(&at, &file));
            errors.extend(claimed.claim(&at, &file));
            teams.insert(file);
        }
        if errors.is_empty() { Ok(teams) } else { Err(errors) }
    }

    fn insert(&mut self, file: TeamFile) {
        let TeamFile { api_version: _, kind: _, metadata: TeamMetadata { name }, spec } = file;
        let level = spec.level.unwrap_or(Level::Baseline);
        let (governed, revision) = (BTreeMap::new(), ObjectRevision::default());
        self.insert_team(Team { name, level, spec, governed, vanished: false, revision });
    }

    fn insert_team(&mut self, team: Team) {
        let team = Arc::new(team);
        for namespace in &team.spec.namespaces {
            self.by_namespace.insert(namespace.clone(), Arc::clone(&team));
        }
        self.teams.insert(team.name.clone(), team);
    }

    /// Digest over what the files say, in the order of their names.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Team>> {
        self.teams.values()
    }

    pub fn named(&self, name: &str) -> Option<&Arc<Team>> {
        self.teams.get(name)
    }

    /// The team that a namespace belongs to.
    pub fn of_namespace(&self, namespace: &str) -> Option<&Arc<Team>> {
        self.by_namespace.get(namespace)
    }

    /// The team of an IAM caller, and the person if the member entry says where the name comes from.
    pub fn membership(&self, caller: &IamCaller) -> Option<Membership> {
        self.teams.values().find_map(|team| {
            let member = team.spec.members.iter().find(|member| member.matches(caller))?;
            Some(Membership { team: Arc::clone(team), person: member.person_of(caller) })
        })
    }

    /// The team that lists a service account as a member.
    pub fn of_service_account(&self, namespace: &str, name: &str) -> Option<&Arc<Team>> {
        let id = format!("{namespace}/{name}");
        self.teams
            .values()
            .find(|team| team.spec.members.iter().any(|member| member.service_account.as_deref() == Some(&id)))
    }

    /// Username templates beside the defaults, of the members that match this caller.
    pub fn usernames<'a>(&'a self, caller: &'a IamCaller) -> impl Iterator<Item = &'a str> {
        self.teams
            .values()
            .flat_map(|team| &team.spec.members)
            .filter(|member| member.matches(caller))
            .filter_map(|member| member.username.as_deref())
    }

    /// The people table's row; one person has one row in the cluster, in whichever team.
    pub fn person(&self, name: &str) -> Option<&Person> {
        self.teams.values().flat_map(|team| &team.spec.people).find(|person| person.name == name)
    }

    /// Groups of a person and of the permission set or role they came with.
    pub fn groups(&self, name: &SubmitterName, person: Option<&str>) -> BTreeSet<&str> {
        let holds = |group: &&Group| {
            person.is_some_and(|person| group.people.iter().any(|name| name == person))
                || match name {
                    SubmitterName::PermissionSet { name, .. } => group.permission_sets.contains(name),
                    SubmitterName::Role { name: role, .. } => {
                        group.roles.iter().any(|name| name.eq_ignore_ascii_case(role))
                    }
                    SubmitterName::ServiceAccount(name) => group.service_accounts.contains(name),
                    SubmitterName::User { .. } | SubmitterName::Team => false,
                }
        };
        self.all_groups().filter(holds).map(|group| group.name.as_str()).collect()
    }

    /// Every group that a team file declares.
    pub fn all_groups(&self) -> impl Iterator<Item = &Group> {
        self.teams.values().flat_map(|team| &team.spec.groups)
    }

    /// Teams that a person leads.
    pub fn led_by(&self, person: &str) -> BTreeSet<&str> {
        let leads = |team: &&Arc<Team>| team.spec.leads.iter().any(|lead| lead == person);
        self.teams.values().filter(leads).map(|team| team.name.as_str()).collect()
    }

    /// Teams whose files declare something: whoever `declares` answers true for.
    pub fn declaring(&self, declares: impl Fn(&Team) -> bool) -> BTreeSet<&str> {
        self.teams.values().filter(|team| declares(team)).map(|team| team.name.as_str()).collect()
    }
}

impl Team {
    /// From when on the gate has seen what is created in a namespace of the team. `None`: always.
    pub fn governed_since(&self, namespace: &str) -> Option<jiff::Timestamp> {
        self.governed.get(namespace).copied().or(self.spec.governed_since)
    }

    /// What pods get that name no service account.
    pub fn default_service_account(&self) -> &str {
        self.spec.service_accounts.first().map_or("default", String::as_str)
    }

    pub fn allows_service_account(&self, name: &str) -> bool {
        match self.spec.service_accounts.as_slice() {
            [] => name == "default",
            names => names.iter().any(|allowed| allowed == name),
        }
    }

    /// The storage entry that a claim belongs to.
    pub fn storage_of_claim<'a>(&'a self, claim: &'a str) -> impl Iterator<Item = &'a Storage> {
        self.spec.storage.iter().filter(move |storage| storage.claim == claim)
    }

    /// Whether a claim is the team's at all.
    pub fn declares_claim(&self, claim: &str) -> bool {
        self.storage_of_claim(claim).next().is_some()
            || self.spec.claims.iter().any(|pattern| matches_pattern(pattern, claim))
    }

    /// Whether the gate has seen what is created in some namespace of it: then it may have let something in.
    pub fn is_governed(&self) -> bool {
        self.governed.values().any(|since| *since < jiff::Timestamp::MAX)
    }

    /// The declared limit and ceiling of a resource, both 0 where none is declared.
    pub fn limits(&self, resource: &ResourceName) -> Limits {
        let quota = self.spec.quota.as_ref();
        let limit = quota.and_then(|quota| quota.limit.get(resource)).copied().unwrap_or(0);
        let ceiling = quota.and_then(|quota| quota.ceiling.get(resource)).copied().unwrap_or(limit);
        Limits { limit, ceiling }
    }

    /// What the Team declares as the most that it may hold; `None` leaves it to the queue.
    pub fn declared(&self, resource: &ResourceName) -> Option<Limits> {
        self.lists(resource).then(|| self.limits(resource))
    }

    pub fn quota_mode(&self) -> QuotaMode {
        self.spec.quota.as_ref().map_or(QuotaMode::Ledger, |quota| quota.mode)
    }

    /// A listed resource counts although it is no accelerator (EFA).
    pub fn lists(&self, resource: &ResourceName) -> bool {
        self.spec.quota.as_ref().is_some_and(|quota| quota.limit.contains_key(resource))
    }
}

/// In units of the resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub limit: u64,
    /// Limit plus what may be borrowed; the ledger holds it whatever policies say.
    pub ceiling: u64,
}

impl Storage {
    /// Whether it is a person's own.
    pub fn is_home(&self) -> bool {
        self.mount_path.contains("{home}") || self.sub_path.as_deref().is_some_and(|path| path.contains("{home}"))
    }

    /// POSIX ids keep people apart on it.
    pub fn is_shared(&self) -> bool {
        match self.posix {
            Posix::Inject | Posix::Require => true,
            Posix::Off => false,
        }
    }

    pub fn injects(&self) -> bool {
        self.inject.unwrap_or(true)
    }

    /// The path with placeholders filled in; `None` if it needs a home and there is none.
    pub fn fill(&self, pattern: &str, team: &str, home: Option<&str>) -> Option<String> {
        let filled = pattern.replace("{team}", team);
        match home {
            Some(home) => Some(filled.replace("{home}", home)),
            None if filled.contains("{home}") => None,
            None => Some(filled),
        }
    }

    /// Whose home a sub-path of this entry is, given everybody's.
    pub fn owner_of<'a>(
        &self,
        team: &str,
        sub_path: &str,
        people: impl Iterator<Item = &'a Person>,
    ) -> Option<&'a str> {
        let pattern = self.sub_path.as_deref()?;
        people.into_iter().find_map(|person| {
            let filled = self.fill(pattern, team, person.home.as_deref())?;
            (pattern.contains("{home}") && filled == sub_path).then_some(person.name.as_str())
        })
    }
}

impl Member {
    fn matches(&self, caller: &IamCaller) -> bool {
        let Arn { partition, account, .. } = &caller.arn;
        let pinned = |pin: &Option<String>, value: &str| pin.as_deref().is_none_or(|pin| pin == value);
        let named = match &caller.name {
            IamName::PermissionSet(name) => self.permission_set.as_deref() == Some(name),
            // IAM role names are unique without regard to case, and a configured path never reaches us.
            IamName::Role(name) => {
                self.role.as_deref().is_some_and(|role| last_segment(role).eq_ignore_ascii_case(name))
            }
            IamName::User(path) => self.user.as_deref().is_some_and(|user| user.trim_start_matches('/') == path),
        };
        named
            && pinned(&self.account, account)
            && pinned(&self.partition, partition)
            && pinned(&self.principal_id, &caller.principal_id)
    }

    fn person_of(&self, caller: &IamCaller) -> Option<String> {
        let default = match caller.name {
            IamName::PermissionSet(_) => PersonFrom::SessionName,
            IamName::Role(_) | IamName::User(_) => PersonFrom::None,
        };
        match self.person_from.unwrap_or(default) {
            PersonFrom::SessionName => caller.session.clone(),
            PersonFrom::RoleName => Some(caller.name.text().to_owned()),
            PersonFrom::Fixed => self.person.clone(),
            PersonFrom::None => None,
        }
    }
}

impl Member {
    fn name(&self) -> &str {
        let Self { permission_set, role, user, service_account, .. } = self;
        [permission_set, role, user, service_account].into_iter().flatten().next().map_or("", String::as_str)
    }

    fn overlaps(&self, other: &Self) -> bool {
        let open = |a: &Option<String>, b: &Option<String>| a.is_none() || b.is_none() || a == b;
        let role = |member: &Self| member.role.as_deref().map(|role| last_segment(role).to_ascii_lowercase());
        let user = |member: &Self| member.user.as_deref().map(|user| user.trim_start_matches('/').to_owned());
        let same = |a: Option<String>, b: Option<String>| a.is_some() && a == b;
        (same(self.permission_set.clone(), other.permission_set.clone())
            || same(role(self), role(other))
            || same(user(self), user(other))
            || same(self.service_account.clone(), other.service_account.clone()))
            && open(&self.account, &other.account)
            && open(&self.partition, &other.partition)
            && open(&self.principal_id, &other.principal_id)
    }
}

fn last_segment(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `*` stands for any characters.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).filter(|&at| rest.is_char_boundary(at)).any(|at| matches_pattern(tail, &rest[at..]))
        }),
    }
}

/// Who declared what, so that the second who does is told about the first.
#[derive(Default)]
struct Claimed {
    things: BTreeMap<(&'static str, String), String>,
    members: Vec<(String, Member)>,
}

impl Claimed {
    fn claim(&mut self, at: &str, file: &TeamFile) -> Vec<TeamError> {
        let spec = &file.spec;
        let things = std::iter::once(("team", file.metadata.name.clone()))
            .chain(spec.namespaces.iter().map(|name| ("namespace", name.clone())))
            .chain(spec.people.iter().map(|person| ("person", person.name.clone())))
            .chain(spec.people.iter().filter_map(|person| Some(("uid", person.uid?.to_string()))))
            .chain(spec.people.iter().filter_map(|person| Some(("home", person.home.clone()?))))
            .chain(spec.groups.iter().map(|group| ("group", group.name.clone())));
        let mut problems: Vec<TeamError> = things.filter_map(|(kind, name)| self.take(at, kind, name)).collect();
        problems.extend(spec.members.iter().filter_map(|member| self.take_member(at, member)));
        problems
    }

    fn holds(&self, kind: &'static str, name: &str) -> bool {
        self.things.contains_key(&(kind, name.to_owned()))
    }

    fn take(&mut self, at: &str, kind: &'static str, name: String) -> Option<TeamError> {
        match self.things.get(&(kind, name.clone())) {
            Some(first) => Some(claimed_twice(at, kind, &name, first)),
            None => {
                self.things.insert((kind, name), at.to_owned());
                None
            }
        }
    }

    /// Entries of two teams overlap where one caller could match both: a pin that one leaves open matches any.
    fn take_member(&mut self, at: &str, member: &Member) -> Option<TeamError> {
        let first = self.members.iter().find(|(first, other)| first != at && other.overlaps(member));
        match first {
            Some((first, _)) => Some(claimed_twice(at, "member", member.name(), first)),
            None => {
                self.members.push((at.to_owned(), member.clone()));
                None
            }
        }
    }
}

fn claimed_twice(at: &str, kind: &str, name: &str, first: &str) -> TeamError {
    TeamError { at: at.to_owned(), problem: format!("{kind} `{name}` is declared in {first} already") }
}

fn check(at: &str, file: &TeamFile) -> Vec<TeamError> {
    let TeamFile { api_version, kind, metadata, spec } = file;
    let mut problems = Vec::new();
    if api_version != API_VERSION || kind != "Team" {
        problems.push(format!("must be `{API_VERSION}` `Team`, not `{api_version}` `{kind}`"));
    }
    if !is_label_value(&metadata.name) {
        problems.push(format!("metadata.name `{}` must be a label value, since it becomes one", metadata.name));
    }
    problems.extend(spec.members.iter().filter_map(check_member));
    problems.extend(spec.storage.iter().flat_map(check_storage));
    problems.extend(spec.people.iter().flat_map(check_person));
    let labels = spec.labels.iter().filter(|(_, value)| !is_label_value(value));
    problems.extend(labels.map(|(key, value)| format!("labels: `{key}: {value}` is no label value")));
    problems.extend(
        spec.cost_center
            .iter()
            .filter(|value| !is_label_value(value))
            .map(|value| format!("costCenter: `{value}` is no label value")),
    );
    if let Some(quota) = &spec.quota {
        problems.extend(check_quota(quota));
    }
    problems.into_iter().map(|problem| TeamError { at: at.to_owned(), problem }).collect()
}

fn check_member(member: &Member) -> Option<String> {
    let Member { permission_set, role, user, service_account, .. } = member;
    let named = [permission_set, role, user, service_account].iter().filter(|name| name.is_some()).count();
    if named != 1 {
        return Some("members: each names exactly one of permissionSet, role, user, serviceAccount".to_owned());
    }
    // The account within it would go unread, and a role of that name in another account would be let in.
    if let Some(arn) = [role, user].into_iter().flatten().find(|name| name.contains(':')) {
        return Some(format!(
            "members: `{arn}` must be a name, not an ARN; `account` and `partition` pin where it lives"
        ));
    }
    match (member.person_from, &member.person) {
        (Some(PersonFrom::Fixed), None) => Some("members: `personFrom: fixed` needs `person`".to_owned()),
        (Some(PersonFrom::SessionName | PersonFrom::RoleName | PersonFrom::None) | None, Some(person)) => {
            Some(format!("members: `person: {person}` needs `personFrom: fixed`"))
        }
        (Some(PersonFrom::Fixed), Some(_)) | (_, None) => None,
    }
}

fn check_storage(storage: &Storage) -> Vec<String> {
    let mut problems = Vec::new();
    let name = &storage.name;
    if name.is_empty() || storage.claim.is_empty() {
        problems.push("storage: each entry has a name and a claim".to_owned());
    }
    if !storage.mount_path.starts_with('/') || climbs(&storage.mount_path) {
        problems.push(format!("storage `{name}`: mountPath must be absolute and without `..`"));
    }
    if storage.sub_path.as_deref().is_some_and(|path| path.starts_with('/') || path.is_empty() || climbs(path)) {
        problems.push(format!("storage `{name}`: subPath must be relative and without `..`"));
    }
    problems
}

fn check_person(person: &Person) -> Vec<String> {
    let mut problems = Vec::new();
    let name = &person.name;
    if name.is_empty() {
        problems.push("people: each has a name".to_owned());
    }
    // A home is one directory name: `..` or `a/b` would leave the directory of homes.
    let plain = |home: &String| !home.is_empty() && !home.contains('/') && home != "." && home != "..";
    if person.home.as_ref().is_some_and(|home| !plain(home)) {
        problems.push(format!("people `{name}`: home must be one directory name"));
    }
    if person.uid == Some(0) || person.gid == Some(0) {
        problems.push(format!("people `{name}`: uid and gid 0 are root's"));
    }
    problems
}

fn check_quota(quota: &Quota) -> Vec<String> {
    let below = |(resource, ceiling): (&ResourceName, &u64)| {
        let limit = quota.limit.get(resource).copied().unwrap_or(0);
        (*ceiling < limit).then(|| format!("quota: ceiling of `{resource}` is {ceiling}, below its limit {limit}"))
    };
    quota.ceiling.iter().filter_map(below).collect()
}

fn climbs(path: &str) -> bool {
    path.split('/').any(|segment| segment == "..")
}

/// The Kubernetes rule for label values: at most 63 of `[A-Za-z0-9._-]`, alphanumeric at both ends, or empty.
pub fn is_label_value(value: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= 63 && value.chars().all(inner) && ends(value.chars().next()) && ends(value.chars().last())
}

fn digest(files: &[(String, TeamFile)]) -> String {
    let mut sorted: Vec<_> = files.iter().map(|(_, file)| file).collect();
    sorted.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    // Struct fields and BTreeMaps: the text is canonical.
    crate::digest(serde_json::to_string(&sorted).unwrap_or_default().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(name: &str, spec: &str) -> String {
        format!("apiVersion: cedargate.dev/v1alpha1\nkind: Team\nmetadata: {{name: {name}}}\nspec: {spec}\n")
    }

    fn problems(first: &str, second: &str) -> Vec<String> {
        let (first, second) = (team("one", first), team("two", second));
        match Teams::parse([("1.yaml", first.as_str()), ("2.yaml", second.as_str())]) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn overlap_names_both_places() {
        let overlaps = [
            ("{namespaces: [a]}", "{namespaces: [b, a]}", "namespace `a`"),
            ("{members: [{permissionSet: X}]}", "{members: [{permissionSet: X}]}", "member `X`"),
            ("{members: [{role: path/R}]}", "{members: [{role: r}]}", "member `r`"),
            // A pin that one entry leaves open matches any.
            ("{members: [{role: R}]}", "{members: [{role: R, account: \"111122223333\"}]}", "member `R`"),
            ("{members: [{user: /ml/e}]}", "{members: [{user: ml/e, partition: aws}]}", "member `ml/e`"),
            ("{members: [{serviceAccount: ci/d}]}", "{members: [{serviceAccount: ci/d}]}", "member `ci/d`"),
            ("{people: [{name: a}]}", "{people: [{name: a}]}", "person `a`"),
            ("{people: [{name: a, uid: 7}]}", "{people: [{name: b, uid: 7}]}", "uid `7`"),
            ("{people: [{name: a, home: h}]}", "{people: [{name: b, home: h}]}", "home `h`"),
            ("{groups: [{name: g}]}", "{groups: [{name: g}]}", "group `g`"),
        ];
        for (first, second, what) in overlaps {
            let expected = format!("2.yaml (team two): {what} is declared in 1.yaml (team one) already");
            assert_eq!(problems(first, second), [expected]);
        }
        let apart = "{members: [{role: R, account: \"444455556666\"}]}";
        assert_eq!(problems("{members: [{role: R, account: \"111122223333\"}]}", apart), Vec::<String>::new());
    }

    #[test]
    fn bad_files_say_where_and_what() {
        let files = [
            "{namespace: [a]}",
            "{members: [{}]}",
            "{members: [{role: a, user: b}]}",
            "{members: [{role: a, personFrom: fixed}]}",
            "{members: [{role: a, person: p}]}",
            "{storage: [{name: s, claim: c, mountPath: fsx}]}",
            "{storage: [{name: s, claim: c, mountPath: /fsx, subPath: ../b}]}",
            "{people: [{name: a, home: ../b}]}",
            "{people: [{name: a, uid: 0}]}",
            "{quota: {limit: {nvidia.com/gpu: 8}, ceiling: {nvidia.com/gpu: 4}}}",
            "{labels: {team: \"a b\"}}",
            "{costCenter: \"a/b\"}",
        ];
        for file in files {
            let found = problems(file, "{}");
            assert!(found.len() == 1 && found[0].starts_with("1.yaml"), "{file}: {found:?}");
        }
    }
}
