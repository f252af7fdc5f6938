//! Asks everything about the final object, and about subresources, whose objects are of another kind.

use serde_json::Value;

use super::Evaluation;
use super::reserve::can_ever_fit;
use super::step::{Judging, Step, labels, labels_or_none, object_of, stored_kind, workload_of};
use super::words::malformed;
use crate::attribution::{AttributionError, person_behind, stored_target};
use crate::changes::Changes;
use crate::facts::{Facts, Object, Scales, Workload, doors_of_metadata, extract};
use crate::json;
use crate::judge::judge;
use crate::patch::PatchBuilder;
use crate::questions::{Questions, all_doors, changed_doors, update_action};
use crate::review::Operation;
use crate::stamp;
use crate::verdict::{ReasonCode, Refusal};
use crate::vocabulary::{Action, DoorKind, Origin};
use crate::world::{Version, WorkloadView, World};

impl Step<'_> {
    /// Asks everything about the final object.
    pub(super) fn judge(&self, evaluation: &mut Evaluation, object: Option<&Value>) -> Judging {
        let request = self.request();
        let changes = match (&self.review.old_object, object) {
            (Some(old), Some(new)) if self.whole_objects() => Changes::between(old, new),
            _ => Changes::default(),
        };
        let updates = self.review.operation == Operation::Update && self.whole_objects();
        if updates && self.attribution.unquestioned && changes.is_bookkeeping() {
            // Clean-up must not hang on whether an old object can still be read.
            return Ok(());
        }
        let before = match &self.review.old_object {
            Some(old) if self.whole_objects() => Some(self.facts_of_old(old)),
            Some(_) | None => None,
        };
        let after = match object {
            Some(object) if self.whole_objects() => match self.facts(object) {
                Ok(facts) => Some(facts),
                // A finalizer comes off what cannot be read, too.
                Err(_) if updates && changes.is_bookkeeping() => Some(Facts::Object(Default::default())),
                Err(refusal) => return Err(refusal),
            },
            Some(_) | None => None,
        };
        let subject = after.as_ref().or(before.as_ref().and_then(Option::as_ref));
        let old = before.as_ref().and_then(Option::as_ref);
        match subject {
            Some(Facts::Workload(workload)) => {
                let old = old.and_then(workload_of);
                let action = self.action(request, &changes, old, workload);
                self.judge_workload(evaluation, action, &changes, workload, old, object)
            }
            Some(Facts::Object(_facts)) => {
                let old = old.and_then(object_of);
                let new = after.as_ref().and_then(object_of);
                let action = action_of_object(request);
                let scales = |object: &Object| object.scales.clone();
                if let Some(scales) = new.and_then(scales).filter(|new| old.and_then(scales).as_ref() != Some(new)) {
                    self.judge_scales(evaluation, &scales)?;
                }
                let doors = match self.review.operation {
                    // What stands behind a door may change without its name: subjects of a binding, the queue of a queue.
                    Operation::Update if !changes.is_bookkeeping() => all_doors(old, new),
                    Operation::Create | Operation::Update => changed_doors(old, new),
                    Operation::Delete | Operation::Connect => Vec::new(),
                };
                self.judge_object(evaluation, action, &changes, doors)
            }
            None => self.judge_subresource(evaluation, request, object),
        }
    }

    /// What kind of request this is.
    pub(super) fn request(&self) -> Request {
        let subresource = self.review.subresource.as_deref().unwrap_or_default();
        let resource = self.review.resource.resource.as_str();
        match (self.review.operation, resource, subresource) {
            (Operation::Create, _, "") => Request::Plain(Action::Create),
            (Operation::Update, _, "") => Request::Plain(Action::Update),
            (Operation::Delete, _, _) => Request::Plain(Action::Delete),
            (Operation::Update, "pods", "ephemeralcontainers") => Request::Plain(Action::Debug),
            (Operation::Update, "pods", "resize") => Request::Plain(Action::Resize),
            (Operation::Update, _, "scale") => Request::Scale,
            (Operation::Connect, _, "exec") => Request::Access(Action::Exec),
            (Operation::Connect, _, "attach") => Request::Access(Action::Attach),
            (Operation::Connect, _, "portforward") => Request::Access(Action::PortForward),
            (Operation::Connect, _, _) => Request::Access(Action::Proxy),
            (Operation::Create, "pods", "eviction") => Request::Access(Action::Evict),
            (Operation::Create, "serviceaccounts", "token") => Request::Door(DoorKind::TokenRequest),
            (Operation::Create, "pods" | "bindings", "binding") => Request::Door(DoorKind::PodBinding),
            (_, "workloads", "status") => Request::Door(DoorKind::QueueAdmission),
            (Operation::Create | Operation::Update, _, _) => Request::Other,
        }
    }

    /// The object is of the kind itself, so that facts can be read from it.
    pub(super) fn whole_objects(&self) -> bool {
        match self.review.subresource.as_deref() {
            None | Some("ephemeralcontainers" | "resize") => self.review.operation != Operation::Connect,
            // Labels of a Namespace can be changed this way as well.
            Some("status" | "finalize") => self.review.kind.kind == "Namespace",
            Some(_) => false,
        }
    }

    pub(super) fn action(&self, request: Request, changes: &Changes, old: Option<&Workload>, new: &Workload) -> Action {
        match request {
            Request::Plain(Action::Update) => {
                update_action(changes, old.is_some_and(|old| old.suspended) && !new.suspended)
            }
            Request::Plain(action) | Request::Access(action) => action,
            Request::Scale | Request::Door(_) | Request::Other => Action::Update,
        }
    }

    pub(super) fn judge_workload(
        &self,
        evaluation: &mut Evaluation,
        action: Action,
        changes: &Changes,
        facts: &Workload,
        old: Option<&Workload>,
        object: Option<&Value>,
    ) -> Judging {
        let subject = object.or(self.review.old_object.as_ref());
        let labels = labels(subject)?;
        let old_labels = labels_or_none(self.review.old_object.as_ref());
        let mut world = self.world();
        let workload = self.workload(&mut world, facts, &labels, Version::New);
        let old_workload = old.map(|old| self.workload(&mut world, old, &old_labels, Version::Old));
        let base = self.base(Some(changes), old_workload);
        let mut questions = Questions::new(&mut world, self.attribution, base);
        if !self.attribution.unquestioned {
            questions.request(action, workload.clone(), self.request_subject(), self.who_may());
            questions.doors(self.doors_of_metadata());
            if matches!(self.review.operation, Operation::Create | Operation::Update) {
                questions
                    .doors(facts.doors.iter().filter(|door| old.is_none_or(|old| !old.doors.contains(*door))).cloned());
            }
            if action != Action::Delete {
                let root_claims = self.root_claims(facts);
                questions.uses(&workload, facts, old, &root_claims, &self.names());
                self.ask_to_charge(&mut questions, &workload, &labels, &old_labels);
            }
        }
        self.decide(evaluation, questions.into_asked(), world)?;
        evaluation.workload = Some(facts.clone());
        if action != Action::Delete && action != Action::Debug {
            self.reserve(evaluation, facts, old)?;
        }
        Ok(())
    }

    /// What is new of it. Controllers keep their books there, and outside team namespaces that is nobody else's business.
    fn doors_of_metadata(&self) -> Vec<(DoorKind, String)> {
        let (Some(object), None) = (&self.review.object, &self.review.subresource) else { return Vec::new() };
        if self.team.is_none() || self.attribution.actor_origin == Origin::Controller {
            return Vec::new();
        }
        let before = self.review.old_object.as_ref().map(doors_of_metadata).unwrap_or_default();
        doors_of_metadata(object).difference(&before).cloned().collect()
    }

    pub(super) fn ask_to_charge(
        &self,
        questions: &mut Questions<'_, '_>,
        workload: &cedar_policy::EntityUid,
        labels: &[(String, String)],
        old: &[(String, String)],
    ) {
        let center = |labels: &[(String, String)]| {
            labels.iter().find(|(key, _)| key == stamp::COST_CENTER).map(|(_, value)| value.clone())
        };
        match center(labels) {
            Some(value) if center(old).as_ref() != Some(&value) => questions.charge(workload, &value, &self.names()),
            Some(_) | None => {}
        }
    }

    pub(super) fn judge_object(
        &self,
        evaluation: &mut Evaluation,
        action: Action,
        changes: &Changes,
        doors: Vec<(DoorKind, String)>,
    ) -> Judging {
        if self.attribution.unquestioned && doors.is_empty() {
            return Ok(());
        }
        let labels = labels(self.review.subject())?;
        let mut world = self.world();
        let object = self.object(&mut world, &labels);
        let mut questions = Questions::new(&mut world, self.attribution, self.base(Some(changes), None));
        questions.request(action, object, self.request_subject(), self.who_may());
        questions.doors(doors.into_iter().chain(self.doors_of_metadata()));
        self.decide(evaluation, questions.into_asked(), world)
    }

    /// Subresources whose object is not the kind's own: `Scale`, `PodExecOptions`, `Eviction`, `TokenRequest` ...
    pub(super) fn judge_subresource(
        &self,
        evaluation: &mut Evaluation,
        request: Request,
        object: Option<&Value>,
    ) -> Judging {
        match request {
            Request::Scale => self.judge_scale(evaluation, object),
            Request::Access(action) => self.judge_access(evaluation, action),
            Request::Door(door) => {
                let name = self.review.display_name();
                self.judge_object(evaluation, Action::Update, &Changes::default(), vec![(door, name)])
            }
            // DELETE without oldObject (old API servers): decided on name and namespace.
            Request::Plain(action) => self.judge_object(evaluation, action, &Changes::default(), Vec::new()),
            Request::Other => self.judge_object(evaluation, Action::Update, &Changes::default(), Vec::new()),
        }
    }

    /// Exec and its like carry options without labels: the pod is looked up.
    pub(super) fn judge_access(&self, evaluation: &mut Evaluation, action: Action) -> Judging {
        let target = stored_target(self.review, &self.snapshot.cluster);
        let facts =
            match target.map(|target| extract(&self.snapshot.config.kinds, &stored_kind(target), &target.object)) {
                Some(Ok(Facts::Workload(facts))) => facts,
                // In a team namespace nobody reaches a pod of which nobody knows whose it is and what it mounts; a Service may
                // lead to any of them.
                Some(_) | None if self.team.is_some() && action != Action::Evict => return Err(self.unknown_target()),
                Some(_) | None => Workload::unknown(),
            };
        let labels = labels(target.map(|target| &target.object))?;
        let mut world = self.world();
        let workload = self.workload(&mut world, &facts, &labels, Version::New);
        let mut questions = Questions::new(&mut world, self.attribution, self.base(None, None));
        questions.request(action, workload, self.request_subject(), self.who_may());
        self.decide(evaluation, questions.into_asked(), world)
    }

    /// A Scale has no template: what a pod asks comes from the object that is scaled.
    pub(super) fn judge_scale(&self, evaluation: &mut Evaluation, object: Option<&Value>) -> Judging {
        let replicas =
            object.and_then(|scale| json::at(scale, &["spec", "replicas"])).cloned().unwrap_or(Value::from(0));
        let Some(target) = stored_target(self.review, &self.snapshot.cluster) else {
            return match &self.team {
                Some(_) => Err(self.unknown_target()),
                None => self.judge_object(evaluation, Action::Scale, &Changes::default(), Vec::new()),
            };
        };
        let resource = &self.review.resource;
        let field = self.snapshot.config.kinds.scaled_field(&resource.group, &resource.resource);
        let scaled = with_replicas(&target.object, &field, replicas);
        let kind = stored_kind(target);
        let read = |object: &Value| match extract(&self.snapshot.config.kinds, &kind, object) {
            Ok(Facts::Workload(facts)) => Ok(facts),
            Ok(Facts::Object(_)) => Err(self.unknown_target()),
            Err(error) => Err(malformed(&error.to_string())),
        };
        let (old, new) = (read(&target.object)?, read(&scaled)?);
        let labels = labels(Some(&target.object))?;
        let changes = Changes::between(&target.object, &scaled);
        let mut world = self.world();
        let workload = self.workload(&mut world, &new, &labels, Version::New);
        let old_workload = self.workload(&mut world, &old, &labels, Version::Old);
        let base = self.base(Some(&changes), Some(old_workload));
        let mut questions = Questions::new(&mut world, self.attribution, base);
        questions.request(Action::Scale, workload, self.request_subject(), self.who_may());
        self.decide(evaluation, questions.into_asked(), world)?;
        self.reserve_scale(evaluation, target, &new, &old)?;
        evaluation.workload = Some(new);
        Ok(())
    }

    /// Whoever writes an autoscaler scales its target: asked as that, and refused if it may ask for more than the target can
    /// ever hold. Without a target nothing is known; each of its steps is judged when it takes it.
    fn judge_scales(&self, evaluation: &mut Evaluation, scales: &Scales) -> Judging {
        let kinds = &self.snapshot.config.kinds;
        let Scales { group, kind, name, most } = scales;
        let namespace = self.review.namespace.as_deref().unwrap_or_default();
        let target = self.snapshot.cluster.named(group, kind, namespace, name);
        let (Some(target), Some(team)) = (target, &self.team) else { return Ok(()) };
        let grown = with_replicas(&target.object, &kinds.scaled_field_of(group, kind), Value::from(*most));
        let Ok(Facts::Workload(facts)) = extract(kinds, &stored_kind(target), &grown) else { return Ok(()) };
        let owner = match person_behind(target, team, self.snapshot) {
            Ok(person) => person,
            Err(AttributionError::OwnerGone(owner)) => {
                // Should it be there after all, all this is asked again.
                evaluation.missing_owner = Some(owner);
                None
            }
            Err(_) => None,
        };
        let labels = labels_or_none(Some(&target.object));
        let mut world = self.world();
        let workload = world.workload(&WorkloadView {
            facts: &facts,
            group,
            kind,
            name,
            class: facts.class,
            owner: owner.as_deref(),
            labels: &labels,
            version: Version::New,
        });
        let mut questions = Questions::new(&mut world, self.attribution, self.base(None, None));
        let whose = owner.map(|owner| format!("it is {owner}'s; ask them, or a lead of the team"));
        questions.request(Action::Scale, workload, format!("{kind} `{name}`, which it scales"), whose);
        self.decide(evaluation, questions.into_asked(), world)?;
        can_ever_fit(&facts, team)
    }

    pub(super) fn decide(
        &self,
        evaluation: &mut Evaluation,
        asked: Vec<crate::questions::Asked>,
        world: World<'_>,
    ) -> Judging {
        let policies = &self.snapshot.policies;
        let entities = policies.entities_from(world.into_entities()).map_err(|fault| Refusal {
            reason: ReasonCode::PolicyFault,
            message: format!("the questions could not be asked ({fault})"),
            hint: None,
            policy: None,
        })?;
        evaluation.judged.extend(asked.into_iter().map(|asked| judge(asked, policies, &entities)));
        Ok(())
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    Plain(Action),
    Scale,
    Access(Action),
    Door(DoorKind),
    Other,
}

fn action_of_object(request: Request) -> Action {
    match request {
        Request::Plain(action) | Request::Access(action) => action,
        Request::Scale => Action::Scale,
        Request::Door(_) | Request::Other => Action::Update,
    }
}

/// The scaled object: each kind's `scale` subresource names one field (CRD `specReplicasPath`).
pub(super) fn with_replicas(object: &Value, field: &[String], replicas: Value) -> Value {
    let mut builder = PatchBuilder::new(object.clone());
    let field: Vec<&str> = field.iter().map(String::as_str).collect();
    builder.set(&field, replicas);
    builder.finish().0
}
