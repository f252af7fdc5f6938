//! Whose work is this? Every rule of DESIGN.md section 2, as one function from a review to an [`Attribution`].
//!
//! ```text
//! pod  <- ReplicaSet <- Deployment (stamped: alice)        the walk goes up controller references by UID
//!  |                                                        and stops at the first stamped object
//!  +-- made by kube-system/replicaset-controller: trusted, so the walk is allowed at all
//! ```
//!
//! Two principals come out: the *actor*, asked about the request itself, and the *user*, asked about what the workload
//! takes. They differ where a trusted controller acts for the person who submitted the root.

use std::sync::Arc;

use serde_json::Value;

use crate::changes::Changes;
use crate::cluster::{Cluster, Meta, OwnerReference, StoredObject};
use crate::facts::kinds::Kinds;
use crate::facts::{Facts, kind_of};
use crate::identity::{Caller, Component, IamCaller, IamName};
use crate::placed::Placed;
use crate::review::{Operation, Review};
use crate::snapshot::Snapshot;
use crate::stamp::{self, Submitter, SubmitterName};
use crate::team::Team;
use crate::vocabulary::{Change, ComponentKind, Origin};

/// Whom a question is asked about.
#[derive(Debug, Clone, PartialEq)]
pub enum Principal {
    Submitter(Submitter),
    ServiceAccount {
        namespace: String,
        name: String,
    },
    Component {
        kind: ComponentKind,
        name: String,
        /// Nothing but its username says that it is it.
        by_name: bool,
    },
    Stranger {
        name: String,
    },
}

/// Whose work an object is, and who is asking now.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribution {
    /// Asked about the request itself.
    pub actor: Principal,
    pub actor_origin: Origin,
    /// Asked about what the workload takes.
    pub user: Principal,
    pub user_origin: Origin,
    /// The person who submitted the root: absent for a shared role, a legacy root, a submitter who left.
    pub owner: Option<String>,
    /// What the object must carry; `None` where the gate writes no stamp.
    pub stamp: Option<Submitter>,
    /// What must stand in place of the stamp that a controller copied from an owner whose stamp is ignored.
    pub corrected: Option<Submitter>,
    pub root: Root,
    /// Owners on the way up, the nearest first, the root last. Empty for a root.
    pub chain: Vec<Arc<StoredObject>>,
    pub notes: Vec<Note>,
    /// Whose job it is to put work somewhere: nobody is asked where.
    pub places: bool,
    /// Where such a one has put the owners of what a controller makes.
    pub placed: Placed,
    /// A trusted controller changed nothing beyond what is its job: nobody is asked.
    pub unquestioned: bool,
}

/// The object at the top.
#[derive(Debug, Clone, PartialEq)]
pub enum Root {
    /// The object under review.
    Itself,
    /// Somebody else's, already in the cluster.
    Stored(Arc<StoredObject>),
}

/// Something that the record and the person should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Note {
    /// The root is older than the gate, or another team's: its stamp is ignored, it belongs to the team.
    Legacy,
    /// The submitter is no longer a member: the team goes on in their place.
    SubmitterLeft,
    /// Another person changed what runs: the stamp's person is none from now on.
    Rewritten,
}

/// Why nobody can be named. Each is a refusal.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AttributionError {
    #[error("the identity `{username}` is not believed: {why}")]
    Untrusted { username: String, why: String },
    #[error("{controller} made this {kind} with {count} controller references, not one")]
    NoController { controller: String, kind: String, count: usize },
    #[error("{controller} is not trusted to act for {owner_kind} `{owner}`")]
    NotItsOwner { controller: String, owner_kind: String, owner: String },
    /// One quorum GET may still find it; after that the answer is final.
    #[error("its owner {kind} `{name}` is gone", kind = .0.kind, name = .0.name)]
    OwnerGone(OwnerReference),
    #[error("{kind} `{name}` came past the gate, so nobody knows who submitted it")]
    Unattributed { kind: String, name: String },
    #[error("{name} is no longer a member of {team}, and a CronJob does not outlive that")]
    SubmitterLeft { name: String, team: String },
    #[error("the reserved key `{key}` stands in `{path}`")]
    ReservedKey { key: String, path: String },
    #[error("the stamp is not the one that the gate set")]
    ForeignStamp,
    #[error("`{key}` is changed along with the status")]
    ByStatus { key: String },
    #[error("this {kind} is made by a controller, and only its owner is changed by hand")]
    ControllerMade { kind: String },
    #[error("owner references nest deeper than {MAX_DEPTH}")]
    TooDeep,
}

/// RayCronJob -> RayJob -> Job -> Pod is four; twice that is a loop.
const MAX_DEPTH: usize = 8;

/// Which endpoint asks: `/mutate` writes the stamp that `/validate` then insists on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Mutate,
    Validate,
}

/// Names whose work it is. `team` is the namespace's; outside team namespaces nothing is stamped.
pub fn attribute(
    review: &Review,
    caller: &Caller,
    team: Option<&Arc<Team>>,
    phase: Phase,
    snapshot: &Snapshot,
) -> Result<Attribution, AttributionError> {
    let walk = Walk { snapshot, team };
    if let (Caller::Untrusted { username, why }, Some(_)) = (caller, team) {
        return Err(AttributionError::Untrusted { username: username.clone(), why: why.clone() });
    }
    if let Some(team) = team {
        refuse_metadata_by_status(review, team)?;
    }
    let (actor, origin) = walk.principal(caller);
    let asked = Asked { review, actor, origin, phase };
    match (team, caller, review.operation) {
        (None, ..) => Ok(asked.by_the_actor(None, Root::Itself)),
        (Some(_), Caller::Component(component), Operation::Create) => walk.child(&asked, component),
        (Some(_), Caller::Component(component), Operation::Update) => walk.maintained(&asked, component),
        (Some(team), _, Operation::Create) if is_main_resource(review) => walk.root(&asked, team),
        (Some(team), _, Operation::Update) if is_main_resource(review) => walk.edited(&asked, team),
        (Some(_), ..) => walk.other(&asked),
    }
}

/// `scale`, `exec` and other subresources hold other objects than the kind's own. A Namespace is where work is done, not
/// work, and a Binding is never stored: they carry no stamp.
pub(crate) fn is_main_resource(review: &Review) -> bool {
    review.subresource.is_none() && !["Namespace", "Binding"].contains(&review.kind.kind.as_str())
}

struct Asked<'a> {
    review: &'a Review,
    actor: Principal,
    origin: Origin,
    phase: Phase,
}

impl Asked<'_> {
    /// Whether a stamp may stand in what a controller made below `found`, and what must stand there in its place.
    ///
    /// Of a root that is legacy, a Deployment hands down the stamp that is ignored, and on something younger than the gate it
    /// would count: `/mutate` puts the one that counts in its place, and `/validate` sees no other. Were it refused, no pod of
    /// a workload from an earlier install would come back after its next rollout.
    fn copied(&self, carried: &str, found: &Found) -> Result<Option<Submitter>, AttributionError> {
        let owner = found.chain.first();
        let is_owners = owner.is_some_and(|owner| owner.meta.stamp.as_deref() == Some(carried));
        match self.phase {
            _ if repeats(carried, found) => Ok(None),
            Phase::Mutate if is_owners && found.notes.contains(&Note::Legacy) => Ok(Some(found.submitter.clone())),
            Phase::Mutate | Phase::Validate => Err(AttributionError::ForeignStamp),
        }
    }

    fn by_the_actor(&self, stamp: Option<Submitter>, root: Root) -> Attribution {
        let person = match (&stamp, &self.actor) {
            (Some(stamp), _) => stamp.person.clone(),
            (None, Principal::Submitter(submitter)) => submitter.person.clone(),
            (None, Principal::ServiceAccount { .. } | Principal::Component { .. } | Principal::Stranger { .. }) => None,
        };
        Attribution {
            actor: self.actor.clone(),
            actor_origin: self.origin,
            user: self.actor.clone(),
            user_origin: self.origin,
            owner: person,
            stamp,
            corrected: None,
            root,
            chain: Vec::new(),
            notes: Vec::new(),
            places: false,
            placed: Placed::default(),
            unquestioned: false,
        }
    }
}

struct Walk<'a> {
    snapshot: &'a Snapshot,
    team: Option<&'a Arc<Team>>,
}

/// What the walk found at the top.
struct Found {
    submitter: Submitter,
    root: Arc<StoredObject>,
    /// The way up, the nearest first, the root last.
    chain: Vec<Arc<StoredObject>>,
    notes: Vec<Note>,
}

impl Found {
    fn new(submitter: Submitter, root: &StoredObject, notes: Vec<Note>) -> Self {
        let root = Arc::new(root.clone());
        Self { submitter, chain: vec![Arc::clone(&root)], root, notes }
    }

    fn below(mut self, stored: &StoredObject) -> Self {
        self.chain.insert(0, Arc::new(stored.clone()));
        self
    }
}

impl Walk<'_> {
    fn cluster(&self) -> &Cluster {
        &self.snapshot.cluster
    }

    fn principal(&self, caller: &Caller) -> (Principal, Origin) {
        match caller {
            Caller::Iam(caller) => (self.iam(caller), Origin::Direct),
            Caller::PodToken { namespace, name, pod_uid, .. } => self.pod_token(namespace, name, pod_uid),
            Caller::ServiceAccount { namespace, name } => (self.service_account(namespace, name), Origin::Direct),
            Caller::Component(component) => {
                let (kind, name, by_name) = (component.kind, component.name.clone(), component.by_name());
                (Principal::Component { kind, name, by_name }, Origin::Controller)
            }
            Caller::Node { name } => {
                let kind = ComponentKind::Node;
                (Principal::Component { kind, name: name.clone(), by_name: true }, Origin::Controller)
            }
            Caller::Stranger { username } | Caller::Untrusted { username, .. } => {
                (Principal::Stranger { name: username.clone() }, Origin::Direct)
            }
        }
    }

    fn iam(&self, caller: &IamCaller) -> Principal {
        let Some(membership) = self.snapshot.teams.membership(caller) else {
            return Principal::Stranger { name: caller.arn.to_string() };
        };
        let (partition, account) = (caller.arn.partition.clone(), caller.arn.account.clone());
        let name = match &caller.name {
            IamName::PermissionSet(name) => SubmitterName::PermissionSet { partition, account, name: name.clone() },
            IamName::Role(name) => SubmitterName::Role { partition, account, name: name.clone() },
            IamName::User(name) => SubmitterName::User { partition, account, name: name.clone() },
        };
        Principal::Submitter(Submitter { team: membership.team.name.clone(), name, person: membership.person })
    }

    fn service_account(&self, namespace: &str, name: &str) -> Principal {
        match self.snapshot.teams.of_service_account(namespace, name) {
            Some(team) => Principal::Submitter(Submitter {
                team: team.name.clone(),
                name: SubmitterName::ServiceAccount(format!("{namespace}/{name}")),
                person: None,
            }),
            None => Principal::ServiceAccount { namespace: namespace.to_owned(), name: name.to_owned() },
        }
    }

    /// Code in a pod acts as whoever submitted the pod; a token that leads nowhere is a plain service account.
    fn pod_token(&self, namespace: &str, name: &str, pod_uid: &str) -> (Principal, Origin) {
        let listed = self.service_account(namespace, name);
        if matches!(listed, Principal::Submitter(_)) {
            return (listed, Origin::Direct);
        }
        let pod = self.cluster().of_uid(pod_uid).filter(|pod| pod.meta.namespace == namespace);
        let team = self.snapshot.teams.of_namespace(namespace);
        let walk = Walk { snapshot: self.snapshot, team };
        match (pod.and_then(|pod| walk.resolve(pod, 0).ok()), team) {
            (Some(found), Some(_)) => (Principal::Submitter(found.submitter), Origin::Pod),
            _ => (listed, Origin::Direct),
        }
    }

    /// A root: always stamped, whatever its owner references say.
    fn root(&self, asked: &Asked<'_>, team: &Team) -> Result<Attribution, AttributionError> {
        let Some(object) = &asked.review.object else { return Ok(asked.by_the_actor(None, Root::Itself)) };
        refuse_reserved_keys(object)?;
        same_note(asked.phase, &Value::Null, object)?;
        let stamp = match &asked.actor {
            Principal::Submitter(submitter) => submitter.clone(),
            // Whoever may create here without being in a team (RBAC and policy decide) leaves the work to the team.
            Principal::ServiceAccount { .. } | Principal::Component { .. } | Principal::Stranger { .. } => {
                Submitter::of_team(&team.name)
            }
        };
        insist(asked.phase, object, Some(&stamp.annotation()))?;
        Ok(asked.by_the_actor(Some(stamp), Root::Itself))
    }

    /// A person's UPDATE. The stamp names the person who wrote everything that will run.
    fn edited(&self, asked: &Asked<'_>, team: &Team) -> Result<Attribution, AttributionError> {
        let (Some(old), Some(new)) = (&asked.review.old_object, &asked.review.object) else {
            return Ok(self.touched(asked));
        };
        let meta = self.meta(asked.review, old);
        let changes = Changes::between(old, new);
        // Ray's autoscaler, which runs in the head's pod, scales the cluster that a RayJob made.
        let scales_itself = asked.origin == Origin::Pod && only_size(&changes);
        if self.made_by_a_controller(&meta) && !only_metadata(&changes) && !scales_itself {
            return Err(AttributionError::ControllerMade { kind: meta.kind });
        }
        refuse_reserved_keys(new)?;
        same_note(asked.phase, old, new)?;
        let mut touched = self.touched(asked);
        let ours = meta.stamp.as_deref().filter(|_| !is_older(&meta, team)).and_then(Submitter::parse);
        let Some(before) = ours.filter(|stamp| stamp.team == team.name) else {
            // Not a stamp of ours: it is worth nothing, and stays as it is.
            insist(asked.phase, new, meta.stamp.as_deref())?;
            return Ok(touched);
        };
        let same_person = matches!(&asked.actor, Principal::Submitter(editor)
            if editor.team == before.team && editor.person == before.person);
        let stamp = match changes.rewrites && before.person.is_some() && !same_person {
            true => {
                touched.notes.push(Note::Rewritten);
                Submitter { person: None, ..before }
            }
            false => before,
        };
        insist(asked.phase, new, Some(&stamp.annotation()))?;
        // What is new must be fit for whom the stamp names from now on.
        if touched.notes.contains(&Note::Rewritten) {
            touched.user = without_person(touched.user);
        }
        touched.stamp = Some(stamp);
        Ok(touched)
    }

    /// A person's or pod's request that is neither CREATE nor UPDATE of an object itself.
    fn other(&self, asked: &Asked<'_>) -> Result<Attribution, AttributionError> {
        let target = self.target(asked.review);
        match (asked.review.subresource.as_deref(), target) {
            (Some("scale"), Some(target)) if self.made_by_a_controller(&target.meta) => {
                Err(AttributionError::ControllerMade { kind: target.meta.kind.clone() })
            }
            _ => Ok(self.touched(asked)),
        }
    }

    /// Subresources, CONNECT and DELETE: the actor is asked, about work that has its owner already.
    fn touched(&self, asked: &Asked<'_>) -> Attribution {
        let target = self.target(asked.review);
        let found = target.as_ref().and_then(|target| self.resolve(target, 0).ok());
        let root = target.map_or(Root::Itself, Root::Stored);
        match found {
            Some(Found { submitter, root, chain, notes }) => {
                Attribution { owner: submitter.person, chain, notes, ..asked.by_the_actor(None, Root::Stored(root)) }
            }
            // Nobody is known: the team owns it.
            None => Attribution { owner: None, ..asked.by_the_actor(None, root) },
        }
    }

    /// The object that a request is about, as it is in the cluster.
    fn target(&self, review: &Review) -> Option<Arc<StoredObject>> {
        if let (Some(old), true) = (&review.old_object, is_main_resource(review) || is_pod(review)) {
            return Some(Arc::new(StoredObject::new(self.meta(review, old), old.clone())));
        }
        stored_target(review, self.cluster()).cloned()
    }

    fn meta(&self, review: &Review, object: &Value) -> Meta {
        Meta::read(object, review.namespace.as_deref())
    }

    /// A child that a trusted controller makes for somebody's root.
    fn child(&self, asked: &Asked<'_>, component: &Component) -> Result<Attribution, AttributionError> {
        let Some(object) = asked.review.object.as_ref().filter(|_| is_main_resource(asked.review)) else {
            return Ok(self.touched(asked));
        };
        let meta = self.meta(asked.review, object);
        let Some(owner) = meta.controller() else {
            let count = meta.owners.iter().filter(|owner| owner.controller).count();
            return match runs_pods(&self.snapshot.config.kinds, asked.review, object) || count > 1 {
                true => {
                    Err(AttributionError::NoController { controller: component.name.clone(), kind: meta.kind, count })
                }
                false => its_own(asked, &meta),
            };
        };
        if !component.entry.acts_for(&owner.group, &owner.kind) {
            return match runs_pods(&self.snapshot.config.kinds, asked.review, object) {
                true => Err(AttributionError::NotItsOwner {
                    controller: component.name.clone(),
                    owner_kind: owner.kind.clone(),
                    owner: owner.name.clone(),
                }),
                // Kueue keeps a record for each job, and owns nothing by it.
                false => its_own(asked, &meta),
            };
        }
        let found = self.resolve(&*self.owner(owner, &meta.namespace)?, 0)?;
        if found.notes.contains(&Note::SubmitterLeft) && owner.kind.ends_with("CronJob") {
            return Err(self.submitter_left(&found.root));
        }
        self.as_the_submitter(asked, object, meta, found)
    }

    fn as_the_submitter(
        &self,
        asked: &Asked<'_>,
        object: &Value,
        meta: Meta,
        found: Found,
    ) -> Result<Attribution, AttributionError> {
        let is_pod = meta.kind == "Pod";
        let corrected = match (meta.stamp.as_deref(), is_pod) {
            (Some(carried), false) => asked.copied(carried, &found)?,
            (None, false) => None,
            // A pod is given its stamp.
            (_, true) => {
                insist(asked.phase, object, Some(&found.submitter.annotation()))?;
                None
            }
        };
        let Found { submitter, root, chain, notes } = found;
        Ok(Attribution {
            actor: Principal::Submitter(submitter.clone()),
            actor_origin: Origin::Controller,
            user: Principal::Submitter(submitter.clone()),
            user_origin: Origin::Controller,
            owner: submitter.person.clone(),
            stamp: is_pod.then_some(submitter),
            corrected,
            root: Root::Stored(root),
            placed: match notes.contains(&Note::Legacy) {
                // What is older than the gate may have been written by anybody.
                true => Placed::default(),
                false => Placed::on_the_way(chain.iter().map(AsRef::as_ref)),
            },
            chain,
            notes,
            places: false,
            unquestioned: false,
        })
    }

    /// A trusted controller keeps something going: asked as itself, and as the submitter for what it adds.
    fn maintained(&self, asked: &Asked<'_>, component: &Component) -> Result<Attribution, AttributionError> {
        let mut attribution = self.touched(asked);
        attribution.places = component.entry.may_add.contains(&Change::Placement);
        let target = self.target(asked.review);
        if let Some(found) = target.and_then(|target| self.resolve(&target, 0).ok()) {
            attribution.user = Principal::Submitter(found.submitter);
        } else if let Some(team) = self.team {
            attribution.user = Principal::Submitter(Submitter::of_team(&team.name));
        }
        let (Some(old), Some(new), true) =
            (&asked.review.old_object, &asked.review.object, is_main_resource(asked.review))
        else {
            return Ok(attribution);
        };
        let before = self.meta(asked.review, old).stamp;
        if before != self.meta(asked.review, new).stamp {
            match (self.handed_down(asked, new), asked.phase) {
                (Ok(corrected), _) => attribution.corrected = corrected,
                // Refused where it counts.
                (Err(_), Phase::Mutate) => {}
                (Err(error), Phase::Validate) => return Err(error),
            }
        }
        let mut changes = Changes::between(old, new);
        changes.set.retain(|change| !component.entry.may_add.contains(change));
        attribution.unquestioned = changes.is_bookkeeping();
        Ok(attribution)
    }

    /// What copies annotations down (operators of Spaces, Deployments) may copy the stamp as it is now.
    fn handed_down(&self, asked: &Asked<'_>, new: &Value) -> Result<Option<Submitter>, AttributionError> {
        let meta = Meta::read(new, None);
        let owner = meta.controller().and_then(|owner| self.cluster().of_uid(&owner.uid));
        match (meta.stamp, owner.and_then(|owner| self.resolve(owner, 0).ok())) {
            (Some(stamp), Some(found)) => asked.copied(&stamp, &found),
            _ => Err(AttributionError::ForeignStamp),
        }
    }

    fn owner(&self, owner: &OwnerReference, namespace: &str) -> Result<Arc<StoredObject>, AttributionError> {
        self.cluster()
            .of_uid(&owner.uid)
            .filter(|stored| {
                stored.meta.namespace == namespace
                    && stored.meta.group == owner.group
                    && stored.meta.kind.eq_ignore_ascii_case(&owner.kind)
            })
            .cloned()
            .ok_or_else(|| AttributionError::OwnerGone(owner.clone()))
    }

    /// Goes up to the first stamped object; and on from a copy of its owner's stamp, which is what a Deployment hands down to
    /// its ReplicaSets, and the operator of Spaces to Deployments: quota and claims are those of the one at the top.
    fn resolve(&self, stored: &StoredObject, depth: usize) -> Result<Found, AttributionError> {
        let meta = &stored.meta;
        let Some(team) = self.team else { return Err(unattributed(meta)) };
        if depth > MAX_DEPTH {
            return Err(AttributionError::TooDeep);
        }
        let older = is_older(meta, team);
        if let Some(stamp) = meta.stamp.as_deref().filter(|_| !older) {
            if let Some(original) = self.original(meta, stamp) {
                return Ok(self.resolve(&original, depth + 1)?.below(stored));
            }
            if let Some(found) = self.beyond_a_pod(meta, stamp, depth) {
                return Ok(found.below(stored));
            }
            return Ok(match Submitter::parse(stamp).filter(|stamp| stamp.team == team.name) {
                Some(stamp) => self.as_of_now(stamp, stored, team),
                None => legacy(stored, team),
            });
        }
        match meta.controller() {
            Some(owner) => Ok(self.resolve(&*self.owner(owner, &meta.namespace)?, depth + 1)?.below(stored)),
            // Older than the gate, or orphaned away from its owner: the team's.
            None if older || meta.made_by_controller_manager => Ok(legacy(stored, team)),
            None => Err(unattributed(meta)),
        }
    }

    /// Not a root: it has an owner and no stamp, or a copy of the owner's. A pod has its own, and a Job that somebody made
    /// from their CronJob is theirs.
    fn made_by_a_controller(&self, meta: &Meta) -> bool {
        let copied =
            |stamp: &str| meta.kind != "Pod" && meta.made_by_controller_manager && self.original(meta, stamp).is_some();
        meta.has_controller() && meta.stamp.as_deref().is_none_or(copied)
    }

    /// The owner that carries the same stamp; or, of one whose stamp is ignored, the team's, as the gate corrected the copy.
    /// An owner that carries another was made by somebody else: what hangs below it is no part of it, whatever it says.
    fn original(&self, meta: &Meta, stamp: &str) -> Option<Arc<StoredObject>> {
        let owner = self.owner(meta.controller()?, &meta.namespace).ok()?;
        let (team, of_owner) = (self.team?, owner.meta.stamp.as_deref()?);
        let corrected = || stamp == Submitter::of_team(&team.name).annotation() && is_ignored(&owner.meta, team);
        (of_owner == stamp || corrected()).then_some(owner)
    }

    /// A pod that owns something (a LeaderWorkerSet's leader owns its workers) has its stamp from the root that it was made
    /// for: what hangs below it is charged there. A root of another submitter is not its own, whatever the pod says.
    fn beyond_a_pod(&self, meta: &Meta, stamp: &str, depth: usize) -> Option<Found> {
        let owner = meta.controller().filter(|_| meta.kind == "Pod" && depth > 0)?;
        let found = self.resolve(&*self.owner(owner, &meta.namespace).ok()?, depth + 1).ok()?;
        let is_of_the_root = found.submitter.annotation() == stamp || found.root.meta.stamp.as_deref() == Some(stamp);
        is_of_the_root.then_some(found)
    }

    /// Time passes: membership is looked up afresh for every child.
    fn as_of_now(&self, stamp: Submitter, stored: &StoredObject, team: &Team) -> Found {
        match stamp.still_member(&self.snapshot.teams) {
            Some(submitter) => Found::new(submitter, stored, Vec::new()),
            None => Found::new(Submitter::of_team(&team.name), stored, vec![Note::SubmitterLeft]),
        }
    }

    fn submitter_left(&self, root: &StoredObject) -> AttributionError {
        let stamp = root.meta.stamp.as_deref().and_then(Submitter::parse);
        let team = self.team.map(|team| team.name.clone()).unwrap_or_default();
        let name = stamp.map_or_else(|| "the submitter".to_owned(), |stamp| stamp.display().to_owned());
        AttributionError::SubmitterLeft { name, team }
    }
}

/// The stored object that a subresource request is about.
pub fn stored_target<'a>(review: &Review, cluster: &'a Cluster) -> Option<&'a Arc<StoredObject>> {
    let namespace = review.namespace.as_deref()?;
    let kind = kind_of(&review.resource.group, &review.resource.resource);
    let name = review.name.as_deref()?;
    // Proxies are asked for as `[scheme:]name[:port]`.
    let name = match (review.subresource.as_deref(), name.split(':').collect::<Vec<_>>().as_slice()) {
        (Some("proxy"), ["http" | "https", name] | [name, _] | [_, name, _]) => name,
        _ => name,
    };
    cluster.named(&review.resource.group, kind, namespace, name)
}

fn is_pod(review: &Review) -> bool {
    review.kind.group.is_empty() && review.kind.kind == "Pod"
}

/// Older than the gate's rule over the namespace.
fn is_older(meta: &Meta, team: &Team) -> bool {
    matches!((meta.created, team.governed_since(&meta.namespace)), (Some(created), Some(since)) if created < since)
}

/// Its stamp says nothing here.
fn is_ignored(meta: &Meta, team: &Team) -> bool {
    let names_the_team = |stamp: &str| Submitter::parse(stamp).is_some_and(|stamp| stamp.team == team.name);
    is_older(meta, team) || !meta.stamp.as_deref().is_some_and(names_the_team)
}

/// What cannot be read is taken for a workload: it must have an owner.
fn runs_pods(kinds: &Kinds, review: &Review, object: &Value) -> bool {
    match crate::facts::extract(kinds, &review.kind_ref(), object) {
        Ok(Facts::Workload(_)) | Err(_) => true,
        Ok(Facts::Object(_)) => false,
    }
}

fn legacy(stored: &StoredObject, team: &Team) -> Found {
    Found::new(Submitter::of_team(&team.name), stored, vec![Note::Legacy])
}

fn unattributed(meta: &Meta) -> AttributionError {
    AttributionError::Unattributed { kind: meta.kind.clone(), name: meta.name.clone() }
}

/// What runs nothing, and that a part of the cluster makes in its own name. A stamp in it would make a root of it.
fn its_own(asked: &Asked<'_>, meta: &Meta) -> Result<Attribution, AttributionError> {
    match meta.stamp {
        Some(_) => Err(AttributionError::ForeignStamp),
        None => Ok(asked.by_the_actor(None, Root::Itself)),
    }
}

/// The stamp that counts; or the root's own, which counts as the team's since its submitter left. A legacy root's never
/// does: on something younger, it would. But one that names another team counts nowhere, as an original or copied: so
/// comes down what an administrator made in a team's namespace.
fn repeats(carried: &str, Found { submitter, root, chain: _, notes }: &Found) -> bool {
    let left = notes.contains(&Note::SubmitterLeft);
    let names_another_team = Submitter::parse(carried).is_some_and(|stamp| stamp.team != submitter.team);
    let copied = root.meta.stamp.as_deref() == Some(carried);
    carried == submitter.annotation() || (copied && (left || names_another_team))
}

fn without_person(principal: Principal) -> Principal {
    match principal {
        Principal::Submitter(submitter) => Principal::Submitter(Submitter { person: None, ..submitter }),
        other @ (Principal::ServiceAccount { .. } | Principal::Component { .. } | Principal::Stranger { .. }) => other,
    }
}

/// `/validate` sees the final object: the stamp is there, and it is ours.
fn insist(phase: Phase, object: &Value, expected: Option<&str>) -> Result<(), AttributionError> {
    let carried = crate::json::text(object, &["metadata", "annotations", stamp::SUBMITTED_BY]);
    match phase {
        Phase::Mutate => Ok(()),
        Phase::Validate if carried == expected => Ok(()),
        Phase::Validate => Err(AttributionError::ForeignStamp),
    }
}

/// Nor does anybody but the gate say where the queue has put something.
fn same_note(phase: Phase, old: &Value, new: &Value) -> Result<(), AttributionError> {
    let note = |object| crate::json::text(object, &["metadata", "annotations", stamp::PLACED]);
    match phase {
        // Without a note everything is asked about.
        Phase::Validate if note(new).is_some() && note(old) != note(new) => Err(AttributionError::ForeignStamp),
        Phase::Mutate | Phase::Validate => Ok(()),
    }
}

/// Only metadata may be edited on what a controller made. A priority may stand in a template as well.
fn only_metadata(changes: &Changes) -> bool {
    changes
        .set
        .iter()
        .all(|change| matches!(change, Change::Labels | Change::Annotations | Change::Finalizers | Change::Queue))
}

fn only_size(changes: &Changes) -> bool {
    changes.set.iter().all(|change| *change == Change::Replicas)
}

/// Of Kubernetes' own kinds, what is written as status may change metadata as well. Nobody who writes a status means to: a
/// stamp or an owner that came this way would be somebody else's.
fn refuse_metadata_by_status(review: &Review, team: &Team) -> Result<(), AttributionError> {
    let (Some("status"), Some(old), Some(new)) = (review.subresource.as_deref(), &review.old_object, &review.object)
    else {
        return Ok(());
    };
    let prefixed = |key: &String| GOVERNED_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
    let governed = |key: &&String| prefixed(key) || team.spec.labels.contains_key(*key);
    for list in ["labels", "annotations"] {
        let (old, new) = (crate::json::object(old, &["metadata", list]), crate::json::object(new, &["metadata", list]));
        let changed = old.keys().chain(new.keys()).filter(governed).find(|key| old.get(*key) != new.get(*key));
        if let Some(key) = changed {
            return Err(AttributionError::ByStatus { key: key.clone() });
        }
    }
    let owners = |object| crate::json::list(object, &["metadata", "ownerReferences"]);
    match owners(old) == owners(new) {
        true => Ok(()),
        false => Err(AttributionError::ByStatus { key: "ownerReferences".to_owned() }),
    }
}

/// Prefixes of labels and annotations that decide something: ours, the queue's, the role's.
pub const GOVERNED_PREFIXES: [&str; 3] = [stamp::PREFIX, "kueue.x-k8s.io/", "eks.amazonaws.com/"];

/// The stamp's keys belong into the root's own metadata, which the gate overwrites; anywhere below they would reach pods.
fn refuse_reserved_keys(object: &Value) -> Result<(), AttributionError> {
    for list in ["labels", "annotations"] {
        let known = [
            stamp::SUBMITTED_BY,
            stamp::REASON,
            stamp::PLACED,
            stamp::TEAM,
            stamp::PERSON,
            stamp::COST_CENTER,
            stamp::CLASS,
        ];
        let unknown = crate::json::object(object, &["metadata", list])
            .keys()
            .find(|key| key.starts_with(stamp::PREFIX) && !known.contains(&key.as_str()));
        if let Some(key) = unknown {
            return Err(AttributionError::ReservedKey { key: key.clone(), path: format!("/metadata/{list}") });
        }
    }
    object
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| *key != "metadata")
        .try_for_each(|(key, value)| reserved_below(value, &format!("/{key}")))
}

fn reserved_below(value: &Value, path: &str) -> Result<(), AttributionError> {
    match value {
        Value::Object(map) => map.iter().try_for_each(|(key, value)| {
            let reserved = value.as_object().filter(|_| key == "labels" || key == "annotations");
            match reserved.and_then(|map| map.keys().find(|key| key.starts_with(stamp::PREFIX))) {
                Some(found) => Err(AttributionError::ReservedKey { key: found.clone(), path: format!("{path}/{key}") }),
                None => reserved_below(value, &format!("{path}/{key}")),
            }
        }),
        Value::Array(list) => {
            list.iter().enumerate().try_for_each(|(index, value)| reserved_below(value, &format!("{path}/{index}")))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}
