//! What every step of a review shares: its inputs, and the entities and words made of them.

use std::sync::Arc;

use serde_json::Value;

use super::words::malformed;
use crate::attribution::{Attribution, Principal, Root};
use crate::changes::Changes;
use crate::cluster::{Meta, StoredObject};
use crate::facts::{Facts, KindRef, Workload, extract, kind_of};
use crate::json;
use crate::mutation::{self};
use crate::questions::{Base, Clock, Names};
use crate::review::{GroupVersionResource, Operation, Review};
use crate::snapshot::Snapshot;
use crate::stamp::{self};
use crate::team::Team;
use crate::verdict::{ReasonCode, Refusal};
use crate::vocabulary::{Class, Origin};
use crate::world::{Version, WorkloadView, World};

/// The inputs of the steps.
pub(super) struct Step<'a> {
    pub(super) review: &'a Review,
    pub(super) snapshot: &'a Snapshot,
    pub(super) team: Option<Arc<Team>>,
    pub(super) attribution: &'a Attribution,
    pub(super) now: jiff::Timestamp,
}

pub(super) type Judging = Result<(), Refusal>;
impl Step<'_> {
    pub(super) fn facts(&self, object: &Value) -> Result<Facts, Refusal> {
        match extract(&self.snapshot.config.kinds, &self.review.kind_ref(), object) {
            Ok(Facts::Workload(workload)) if things(&workload) > MAX_THINGS => Err(malformed(&format!(
                "it has more than {MAX_THINGS} containers, volumes and mounts, which is more than can be judged in time"
            ))),
            Ok(facts) => Ok(facts),
            // Outside team namespaces nothing is taken from a team by what cannot be read.
            Err(_) if self.team.is_none() => Ok(Facts::Object(crate::facts::Object::default())),
            Err(error) => Err(malformed(&error.to_string())),
        }
    }

    /// An old object that cannot be read counts as nothing: then everything is new, and asked about.
    pub(super) fn facts_of_old(&self, old: &Value) -> Option<Facts> {
        extract(&self.snapshot.config.kinds, &self.review.kind_ref(), old).ok()
    }

    pub(super) fn is_pod(&self) -> bool {
        self.review.kind.group.is_empty() && self.review.kind.kind == "Pod"
    }

    pub(super) fn meta(&self, object: Option<&Value>) -> Meta {
        object.map(|object| Meta::read(object, self.review.namespace.as_deref())).unwrap_or_default()
    }

    pub(super) fn world(&self) -> World<'_> {
        World::new(&self.snapshot.teams, self.team.as_ref(), self.review.namespace.as_deref())
    }

    pub(super) fn names(&self) -> Names<'_> {
        Names {
            kind: &self.review.kind.kind,
            namespace: self.review.namespace.as_deref().unwrap_or_default(),
            team: self.team.as_deref(),
        }
    }

    pub(super) fn base(&self, changes: Option<&Changes>, old: Option<cedar_policy::EntityUid>) -> Base {
        let root = match &self.attribution.root {
            Root::Itself => self.review.subject(),
            Root::Stored(root) => Some(&root.object),
        };
        let reason = root.and_then(|root| json::text(root, &["metadata", "annotations", stamp::REASON]));
        Base {
            team: self.team.as_ref().map(|team| crate::policies::uid(crate::policies::EntityType::Team, &team.name)),
            dry_run: self.review.dry_run,
            changed: changes.map(|changes| changes.set.iter().copied().collect()).unwrap_or_default(),
            now: Clock::at(self.now, self.snapshot.config.zone()),
            reason: reason.map(str::to_owned),
            old,
            origin: Origin::Direct,
        }
    }

    /// The class of the root: the same for an endpoint, its Deployment and its pods.
    pub(super) fn class(&self, facts: &Workload) -> Class {
        let Root::Stored(root) = &self.attribution.root else { return facts.class };
        // A stamped pod ends the walk, and carries the class of its root.
        if let (Some(class), Some(_)) = (mutation::label(&root.object, stamp::CLASS), &root.meta.stamp) {
            return Class::of_id(class).unwrap_or(Class::Other);
        }
        match extract(&self.snapshot.config.kinds, &stored_kind(root), &root.object) {
            Ok(Facts::Workload(root)) => root.class,
            Ok(Facts::Object(_)) | Err(_) => Class::Other,
        }
    }

    pub(super) fn workload(
        &self,
        world: &mut World<'_>,
        facts: &Workload,
        labels: &[(String, String)],
        version: Version,
    ) -> cedar_policy::EntityUid {
        let name = self.review.display_name();
        let kind = match self.review.kind.kind.as_str() {
            "Scale"
            | "PodExecOptions"
            | "PodAttachOptions"
            | "PodPortForwardOptions"
            | "PodProxyOptions"
            | "Eviction" => self.target_kind(),
            kind => kind,
        };
        world.workload(&WorkloadView {
            facts,
            group: &self.review.resource.group,
            kind,
            name: &name,
            class: self.class(facts),
            owner: self.attribution.owner.as_deref(),
            labels,
            version,
        })
    }

    /// Of what a subresource belongs to.
    fn target_kind(&self) -> &str {
        let GroupVersionResource { group, resource, .. } = &self.review.resource;
        kind_of(group, resource)
    }

    pub(super) fn object(&self, world: &mut World<'_>, labels: &[(String, String)]) -> cedar_policy::EntityUid {
        let Review { kind, subresource, .. } = self.review;
        let owner = self.attribution.owner.as_deref().filter(|_| self.review.operation != Operation::Create);
        let name = self.review.display_name();
        world.object(&kind.group, &kind.kind, &name, subresource.as_deref(), owner, labels)
    }

    /// Claims that come with the root: a StatefulSet's own, and the home that a Space makes.
    pub(super) fn root_claims<'f>(&'f self, facts: &'f Workload) -> impl Fn(&str) -> bool + 'f {
        let (group, kind, name) = match &self.attribution.root {
            Root::Itself => (self.review.kind.group.clone(), self.review.kind.kind.clone(), self.review.display_name()),
            Root::Stored(root) => (root.meta.group.clone(), root.meta.kind.clone(), root.meta.name.clone()),
        };
        // A kind may make StatefulSets of its own, whose names have an ordinal already.
        let makes_sets = self.snapshot.config.kinds.named(&group, &kind).is_some();
        let templates: Vec<String> = match &self.attribution.root {
            Root::Itself => facts.claim_templates.iter().cloned().collect(),
            Root::Stored(root) => match extract(&self.snapshot.config.kinds, &stored_kind(root), &root.object) {
                Ok(Facts::Workload(root)) => root.claim_templates.into_iter().collect(),
                Ok(Facts::Object(_)) | Err(_) => Vec::new(),
            },
        };
        move |claim: &str| {
            // A template's own name is no claim: a pod that names it means somebody else's.
            let of_set = |template: &String| {
                let is_ordinal = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
                claim.strip_prefix(&format!("{template}-{name}-")).is_some_and(|rest| {
                    is_ordinal(rest)
                        || (makes_sets
                            && rest.split_once('-').is_some_and(|(set, pod)| is_ordinal(set) && is_ordinal(pod)))
                })
            };
            (kind == "Workspace" && claim == format!("workspace-{name}-pvc"))
                || templates.iter().any(of_set)
                || self.made_for_the_root(claim)
        }
    }

    /// A claim that an operator made for the root (an endpoint's, for its model). A person's own claim carries a stamp.
    fn made_for_the_root(&self, claim: &str) -> bool {
        let Root::Stored(root) = &self.attribution.root else { return false };
        let namespace = self.review.namespace.as_deref().unwrap_or_default();
        let stored = self.snapshot.cluster.named("", "PersistentVolumeClaim", namespace, claim);
        stored.is_some_and(|stored| {
            let owned = stored.meta.controller().is_some_and(|owner| owner.uid == root.meta.uid);
            owned && stored.meta.stamp.is_none()
        })
    }

    pub(super) fn request_subject(&self) -> String {
        let Review { kind, subresource, namespace, .. } = self.review;
        let what = match subresource {
            Some(subresource) => format!("{}/{subresource}", self.review.resource.resource),
            None => kind.kind.clone(),
        };
        let place = namespace.as_deref().map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
        format!("{what} `{}`{place}", self.review.display_name())
    }

    /// Who could have asked this, for somebody who could not.
    pub(super) fn who_may(&self) -> Option<String> {
        let team = self.team.as_ref()?;
        let Principal::Submitter(actor) = &self.attribution.actor else {
            return Some(format!(
                "only members of {} work here, and this identity is in no team; ask the platform team",
                team.name
            ));
        };
        if actor.team != team.name {
            let own = self.snapshot.teams.named(&actor.team).map(|team| team.spec.namespaces.join(", "))?;
            return Some(format!("only members of {} work here; {} works in {own}", team.name, actor.team));
        }
        let owner = self.attribution.owner.as_ref().filter(|owner| Some(*owner) != actor.person.as_ref())?;
        Some(format!("it is {owner}'s; ask them, or a lead of the team"))
    }

    pub(super) fn unknown_target(&self) -> Refusal {
        Refusal {
            reason: ReasonCode::UnknownTarget,
            message: format!(
                "the {} `{}` cannot be read, so nobody can tell what this would take",
                self.target_kind(),
                self.review.display_name()
            ),
            hint: Some("try again in a moment, or change the object itself".to_owned()),
            policy: None,
        }
    }
}

/// Each is a question of some tens of microseconds, and one review must not keep all others waiting. Kubernetes sets no
/// bound; the largest published manifest has some dozens.
const MAX_THINGS: usize = 2048;

fn things(workload: &Workload) -> usize {
    let of_template = |template: &crate::facts::PodTemplate| {
        let mounts: usize = template.containers.iter().map(|container| container.mounts.len()).sum();
        template.containers.len() + template.volumes.len() + mounts
    };
    workload.templates.iter().map(of_template).sum()
}

pub(super) fn workload_of(facts: &Facts) -> Option<&Workload> {
    match facts {
        Facts::Workload(workload) => Some(workload),
        Facts::Object(_) => None,
    }
}

pub(super) fn object_of(facts: &Facts) -> Option<&crate::facts::Object> {
    match facts {
        Facts::Object(object) => Some(object),
        Facts::Workload(_) => None,
    }
}

pub(super) fn stored_kind(stored: &StoredObject) -> KindRef<'_> {
    KindRef { group: &stored.meta.group, kind: &stored.meta.kind, resource: "" }
}

pub(super) fn labels(object: Option<&Value>) -> Result<Vec<(String, String)>, Refusal> {
    let Some(object) = object else { return Ok(Vec::new()) };
    json::strings(object, &["metadata", "labels"]).map_err(|error| malformed(&error.to_string()))
}

pub(super) fn labels_or_none(object: Option<&Value>) -> Vec<(String, String)> {
    labels(object).unwrap_or_default()
}
