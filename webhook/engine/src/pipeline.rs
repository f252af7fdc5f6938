//! The pipeline on one screen, and its steps below.
//!
//! [`evaluate`] does everything that does not depend on the ledger. [`Evaluation::consume`] asks for accelerators with one
//! copy of the ledger; the caller repeats it with a fresh copy when it lost the race. [`Evaluation::conclude`] makes the
//! answer and its record.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use crate::amounts::{Amounts, ResourceName, is_accelerator};
use crate::attribution::{
    Attribution, AttributionError, Note, Phase, Principal, Root, attribute, stored_target,
};
use crate::changes::Changes;
use crate::cluster::{Meta, OwnerReference, StoredObject};
use crate::facts::{Bound, Facts, KindRef, Workload, extract};
use crate::identity::{Caller, identify};
use crate::json;
use crate::judge::{Judged, judge};
use crate::mutation::{self, Ids, Offer};
use crate::patch::{Operation as PatchOperation, PatchBuilder};
use crate::questions::{Base, Clock, Names, Questions, changed_doors, update_action};
use crate::quota::{Adds, Entry, Ledger, Reservation, Usage};
use crate::record::{Line, QuotaLine, Record, Revisions, Who};
use crate::review::{Operation, Review};
use crate::snapshot::Snapshot;
use crate::stamp::{self, Submitter};
use crate::team::{Person, QuotaMode, Team};
use crate::verdict::{Answer, ReasonCode, Refusal, Verdict};
use crate::vocabulary::{Action, Class, DoorKind, Origin, VolumeKind};
use crate::world::{Declared, MountedVolume, Version, WorkloadView, World};

/// What is known after everything but the ledger.
#[derive(Debug, Clone)]
pub struct Evaluation {
    pub phase: Phase,
    pub now: jiff::Timestamp,
    pub caller: Caller,
    pub team: Option<Arc<Team>>,
    pub attribution: Option<Attribution>,
    pub workload: Option<Workload>,
    pub judged: Vec<Judged>,
    pub refusals: Vec<Refusal>,
    pub warnings: Vec<String>,
    pub patch: Vec<PatchOperation>,
    /// The object as the patch leaves it.
    pub patched: Option<Value>,
    /// What `/validate` must hold before it may allow.
    pub reservation: Option<Reservation>,
    /// An owner that one quorum GET may still find; then the evaluation is worth repeating.
    pub missing_owner: Option<OwnerReference>,
    revisions: Revisions,
}

/// One try at the ledger.
#[derive(Debug, Clone)]
pub struct Consumption {
    pub judged: Vec<Judged>,
    pub refusals: Vec<Refusal>,
    pub usage: Vec<QuotaLine>,
    /// The ledger with the reservation in it: what must be written before the answer is allow.
    pub ledger: Ledger,
}

/// Judges a review without the ledger.
pub fn evaluate(review: &Review, phase: Phase, snapshot: &Snapshot, now: jiff::Timestamp) -> Evaluation {
    let caller = identify(&review.user, &snapshot.config, &snapshot.teams);
    let team = review.namespace.as_deref().and_then(|namespace| snapshot.teams.of_namespace(namespace)).cloned();
    let mut evaluation = Evaluation::new(phase, now, caller, team, snapshot);
    let attribution = match attribute(review, &evaluation.caller, evaluation.team.as_ref(), phase, snapshot) {
        Ok(attribution) => attribution,
        Err(error) => return evaluation.refused_for(error),
    };
    let step = Step { review, snapshot, team: evaluation.team.clone(), attribution: &attribution, now };
    let judged = match phase {
        Phase::Mutate => step.mutate(&mut evaluation).and_then(|object| step.judge(&mut evaluation, object.as_ref())),
        Phase::Validate => step.judge(&mut evaluation, review.object.as_ref()),
    };
    evaluation.refusals.extend(judged.err());
    evaluation.refuse_what_was_judged();
    evaluation.attribution = Some(attribution);
    evaluation
}

impl Evaluation {
    fn new(phase: Phase, now: jiff::Timestamp, caller: Caller, team: Option<Arc<Team>>, snapshot: &Snapshot) -> Self {
        Self {
            phase,
            now,
            caller,
            team,
            attribution: None,
            workload: None,
            judged: Vec::new(),
            refusals: Vec::new(),
            warnings: Vec::new(),
            patch: Vec::new(),
            patched: None,
            reservation: None,
            missing_owner: None,
            revisions: revisions(snapshot),
        }
    }

    fn refused_for(mut self, error: AttributionError) -> Self {
        if let AttributionError::OwnerGone(owner) = &error {
            self.missing_owner = Some(owner.clone());
        }
        self.refusals.push(refusal_of(&error));
        self
    }

    fn refuse_what_was_judged(&mut self) {
        // Templates that repeat each other take the same thing: it is said once.
        let (mut refused, mut warned) = (HashSet::new(), HashSet::new());
        let refusals = self.judged.iter().flat_map(Judged::refusals).filter(|refusal| refused.insert(refusal.clone()));
        let warnings = self.judged.iter().flat_map(Judged::warnings).filter(|warning| warned.insert(warning.clone()));
        self.refusals.extend(refusals);
        self.warnings.extend(warnings);
    }

    pub fn is_refused(&self) -> bool {
        !self.refusals.is_empty()
    }

    /// Asks for the accelerators with this copy of the ledger.
    pub fn consume(&self, review: &Review, snapshot: &Snapshot, ledger: &Ledger) -> Consumption {
        let (Some(reservation), Some(team), Some(attribution)) = (&self.reservation, &self.team, &self.attribution) else {
            return Consumption { judged: Vec::new(), refusals: Vec::new(), usage: Vec::new(), ledger: ledger.clone() };
        };
        let after = ledger.with(reservation);
        let counts = |resource: &ResourceName| is_accelerator(resource.as_str()) || team.lists(resource);
        let usages = ledger.growth(&after, reservation, counts);
        let step = Step { review, snapshot, team: self.team.clone(), attribution, now: self.now };
        let judged = match &self.workload {
            Some(workload) => step.ask_for(workload, &usages, team),
            None => Vec::new(),
        };
        let mut refusals: Vec<Refusal> =
            usages.iter().filter(|usage| usage.after > team.limits(&usage.resource).ceiling).map(|usage| over_ceiling(usage, team)).collect();
        // The ceiling's sentence says more than the policy's; a policy that is tighter than it speaks for itself.
        if refusals.is_empty() {
            refusals = judged.iter().flat_map(Judged::refusals).collect();
        }
        for refusal in &mut refusals {
            refusal.message.push_str(&held(&usages, team, ledger));
        }
        let usage = usages.into_iter().map(|usage| quota_line(usage, team)).collect();
        Consumption { judged, refusals, usage, ledger: after }
    }

    /// The answer and its record. `consumption` is the last try at the ledger, if there was one.
    pub fn conclude(self, review: &Review, consumption: Option<Consumption>) -> (Answer, Record) {
        let (judged, refused, usage) = match consumption {
            Some(Consumption { judged, refusals, usage, .. }) => (judged, refusals, usage),
            None => Default::default(),
        };
        let mut refusals = self.refusals.clone();
        refusals.extend(refused);
        let verdict = if refusals.is_empty() { Verdict::Allow } else { Verdict::Deny { refusals } };
        self.answer(review, verdict, &judged, usage)
    }

    /// The answer when the ledger could not be written in time: never an allow.
    pub fn retry_later(self, review: &Review, reason: ReasonCode, message: &str) -> (Answer, Record) {
        // A controller's client would sleep in a worker that serves the whole cluster.
        let retry_after_seconds = match &self.caller {
            Caller::Component(_) | Caller::Node { .. } => None,
            Caller::Iam(_)
            | Caller::PodToken { .. }
            | Caller::ServiceAccount { .. }
            | Caller::Stranger { .. }
            | Caller::Untrusted { .. } => Some(1),
        };
        let verdict = Verdict::RetryLater { reason, message: message.to_owned(), retry_after_seconds };
        self.answer(review, verdict, &[], Vec::new())
    }

    fn answer(
        self,
        review: &Review,
        verdict: Verdict,
        consumed: &[Judged],
        quota: Vec<QuotaLine>,
    ) -> (Answer, Record) {
        let mut warnings = self.warnings.clone();
        warnings.extend(consumed.iter().flat_map(Judged::warnings));
        let who = self.who(review);
        let allowed = verdict == Verdict::Allow;
        let questions: Vec<Line> = self.judged.iter().chain(consumed).map(Line::of).collect();
        let answer = Answer {
            uid: review.uid.clone(),
            headline: headline(review, &who),
            verdict: verdict.clone(),
            warnings: warnings.clone(),
            patch: if allowed { self.patch.clone() } else { Vec::new() },
            audit: audit(&who, &verdict, &questions, &self.revisions),
        };
        let record = Record {
            endpoint: match self.phase {
                Phase::Mutate => "mutate",
                Phase::Validate => "validate",
            },
            who,
            questions,
            notes: self.attribution.as_ref().map(|attribution| attribution.notes.clone()).unwrap_or_default(),
            injected: answer.patch.iter().map(|operation| operation.path().to_owned()).collect(),
            quota,
            warnings,
            ..Record::unjudged(Some(review), &review.uid, "", verdict, answer.message(), self.now, self.revisions.clone())
        };
        (answer, record)
    }

    fn who(&self, review: &Review) -> Who {
        let (name, session, established) = match &self.caller {
            Caller::Iam(caller) => (caller.arn.to_string(), caller.session.clone(), "iam"),
            Caller::PodToken { .. } => (review.user.username.clone(), None, "pod-token"),
            Caller::ServiceAccount { .. } => (review.user.username.clone(), None, "service-account"),
            Caller::Component(component) => (component.name.clone(), None, "component"),
            Caller::Node { name } => (name.clone(), None, "node"),
            Caller::Stranger { username } => (username.clone(), None, "stranger"),
            Caller::Untrusted { username, .. } => (username.clone(), None, "untrusted"),
        };
        let submitter = match self.attribution.as_ref().map(|attribution| &attribution.user) {
            Some(Principal::Submitter(submitter)) => Some(submitter),
            Some(Principal::ServiceAccount { .. } | Principal::Component { .. } | Principal::Stranger { .. }) | None => None,
        };
        let origin = self.attribution.as_ref().map(|attribution| attribution.user_origin);
        let walked = origin == Some(Origin::Controller) && submitter.is_some();
        Who {
            name,
            session,
            person: submitter.and_then(|submitter| submitter.person.clone()),
            team: submitter.map(|submitter| submitter.team.clone()),
            namespace_team: self.team.as_ref().map(|team| team.name.clone()),
            established: if walked { "owner-walk" } else { established },
            origin,
        }
    }
}

/// The inputs of the steps.
struct Step<'a> {
    review: &'a Review,
    snapshot: &'a Snapshot,
    team: Option<Arc<Team>>,
    attribution: &'a Attribution,
    now: jiff::Timestamp,
}

type Judging = Result<(), Refusal>;

impl Step<'_> {
    // ------------------------------------------------------------------------------------------------ mutate

    /// Patches, and returns the object as the patch leaves it.
    fn mutate(&self, evaluation: &mut Evaluation) -> Result<Option<Value>, Refusal> {
        let (Some(object), Some(team), None) = (&self.review.object, &self.team, &self.review.subresource) else {
            return Ok(self.review.object.clone());
        };
        has_metadata(object)?;
        let mut builder = PatchBuilder::new(object.clone());
        match self.review.operation {
            Operation::Create => self.complete(evaluation, &mut builder, object, team)?,
            Operation::Update if !self.is_between() => self.put_back(evaluation, &mut builder, team),
            Operation::Update => {}
            Operation::Delete | Operation::Connect => {}
        }
        let (patched, operations) = builder.finish();
        evaluation.patch = operations;
        evaluation.patched = Some(patched.clone());
        Ok(Some(patched))
    }

    /// An operator's own object between a root and its pods: it compares and rewrites for ever, so it is left alone.
    fn is_between(&self) -> bool {
        let has_owner = self.review.old_object.as_ref().is_some_and(|old| self.meta(Some(old)).has_controller());
        let by_operator = matches!(self.attribution.actor, Principal::Component { .. });
        by_operator && has_owner && !self.is_pod()
    }

    fn put_back(&self, evaluation: &mut Evaluation, builder: &mut PatchBuilder, team: &Team) {
        if let Some(old) = &self.review.old_object {
            mutation::put_back(builder, old, team);
        }
        if self.attribution.notes.contains(&Note::Rewritten) {
            if let Some(stamp) = &self.attribution.stamp {
                mutation::rewritten(builder, stamp);
            }
            evaluation.warnings.push(
                "You changed what another person's workload runs: from now on it is the team's, and runs without their home \
                 and ids"
                    .to_owned(),
            );
        }
    }

    fn complete(
        &self,
        evaluation: &mut Evaluation,
        builder: &mut PatchBuilder,
        object: &Value,
        team: &Arc<Team>,
    ) -> Judging {
        let facts = self.facts(object)?;
        let Some(stamp) = &self.attribution.stamp else {
            self.label_intermediate(builder, &facts, team);
            return Ok(());
        };
        let Facts::Workload(facts) = &facts else {
            mutation::stamp(builder, stamp, team, None, false);
            return Ok(());
        };
        let given = self.given(facts, team, stamp);
        mutation::stamp(builder, stamp, team, Some(self.class(facts)), given.charges);
        self.queue(builder, team, given.queues);
        if self.is_pod() {
            self.complete_pod(evaluation, builder, facts, team, stamp, &given);
        }
        Ok(())
    }

    /// Task governance refuses these without a queue, whoever made them: metadata only, and only in `kueue` mode.
    fn label_intermediate(&self, builder: &mut PatchBuilder, facts: &Facts, team: &Team) {
        let kinds = ["Deployment", "StatefulSet", "Job"];
        let by_controller = self.attribution.user_origin == Origin::Controller && matches!(self.attribution.root, Root::Stored(_));
        let queued = matches!(facts, Facts::Workload(_)) && kinds.contains(&self.review.kind.kind.as_str());
        if let (true, true, QuotaMode::Kueue, Some(queue)) =
            (by_controller, queued, team.quota_mode(), &team.spec.queue)
        {
            mutation::enqueue(builder, queue, team.spec.priority_classes.first().map(String::as_str));
        }
    }

    fn queue(&self, builder: &mut PatchBuilder, team: &Team, permitted: bool) {
        let queue = match &self.attribution.root {
            Root::Itself => team.spec.queue.as_deref(),
            Root::Stored(root) => mutation::queue_of_child(&root.object, team),
        };
        if let (Some(queue), true) = (queue, permitted) {
            mutation::enqueue(builder, queue, team.spec.priority_classes.first().map(String::as_str));
        }
    }

    fn complete_pod(
        &self,
        evaluation: &mut Evaluation,
        builder: &mut PatchBuilder,
        facts: &Workload,
        team: &Team,
        stamp: &Submitter,
        given: &Given<'_>,
    ) {
        let Some(template) = facts.templates.first() else { return };
        let person = self.person_of(stamp);
        // The images of Spaces run as one fixed user, whoever starts them: ids that were put in would break them, and
        // storage on which ids keep people apart is therefore left out.
        let ids = match self.class(facts) {
            Class::Space => Ids::Unknown,
            Class::Training | Class::Endpoint | Class::Ray | Class::Batch | Class::Service | Class::Pod | Class::Other => {
                mutation::ids(template, person)
            }
        };
        let (fitting, left_out): (Vec<_>, Vec<_>) =
            given.offers.iter().partition(|offer| mutation::fits(offer.storage, ids));
        if let (false, Ids::Foreign) = (left_out.is_empty(), ids) {
            let names: Vec<&str> = left_out.iter().map(|offer| offer.mount_path.as_str()).collect();
            evaluation.warnings.push(format!(
                "{} is not mounted, because the pod sets user or group ids other than yours; remove runAsUser and runAsGroup",
                names.join(", ")
            ));
        }
        for offer in &fitting {
            mutation::mount(builder, offer, template);
        }
        let shared = fitting.iter().any(|offer| offer.storage.is_shared());
        let home = fitting.iter().find(|offer| offer.owner.is_some()).map(|offer| offer.mount_path.as_str());
        if let (Ids::Inject { .. }, true, Some(person)) = (ids, shared, person) {
            mutation::posix(builder, template, person, home);
        }
        if given.assumes {
            mutation::service_account(builder, team.default_service_account());
        }
        mutation::hide_gpus(builder, template);
    }

    fn person_of(&self, stamp: &Submitter) -> Option<&Person> {
        stamp.person.as_deref().and_then(|person| self.snapshot.teams.person(person))
    }

    /// Asks for what the team offers before it is given.
    fn given<'t>(&'t self, facts: &Workload, team: &'t Arc<Team>, stamp: &Submitter) -> Given<'t> {
        let offers = if self.is_pod() { mutation::offers(team, self.person_of(stamp)) } else { Vec::new() };
        let mut world = self.world();
        let labels = Vec::new();
        let workload = self.workload(&mut world, facts, &labels, Version::New);
        let mut questions = Questions::new(&mut world, self.attribution, self.base(None, None));
        let volumes: Vec<_> = offers.iter().map(offered_volume).collect();
        for (offer, (volume, mount)) in offers.iter().zip(&volumes) {
            let owner = offer.owner.map(str::to_owned);
            let declared = Declared { ours: true, as_declared: true, shared: offer.storage.is_shared(), owner };
            questions.offer_volume(&workload, &MountedVolume { volume, mount: Some(mount), declared });
        }
        let namespace = self.review.namespace.as_deref().unwrap_or_default();
        questions.offer_service_account(&workload, namespace, team.default_service_account());
        let names = self.names();
        if let Some(queue) = &team.spec.queue {
            questions.offer_queue(&workload, queue);
        }
        if let Some(center) = &team.spec.cost_center {
            questions.charge(&workload, center, &names);
        }
        let asked = questions.into_asked();
        let Ok(entities) = self.snapshot.policies.entities_from(world.into_entities()) else { return Given::default() };
        let mut allowed = asked
            .into_iter()
            .map(|asked| (asked.question.action, judge(asked, &self.snapshot.policies, &entities).is_allowed()))
            .collect::<Vec<_>>()
            .into_iter();
        let offers = offers.into_iter().filter(|_| allowed.next().is_some_and(|(_, allowed)| allowed)).collect();
        let rest: Vec<_> = allowed.collect();
        let may = |action: Action| rest.iter().any(|(asked, allowed)| *asked == action && *allowed);
        Given { offers, assumes: may(Action::Assume), queues: may(Action::Enqueue), charges: may(Action::Charge) }
    }

    // ------------------------------------------------------------------------------------------------ judge

    /// Asks everything about the final object.
    fn judge(&self, evaluation: &mut Evaluation, object: Option<&Value>) -> Judging {
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
            Some(Facts::Object(facts)) => {
                let old = old.and_then(object_of);
                let new = after.as_ref().and_then(object_of);
                let action = self.action_of_object(request, &changes);
                let doors = match self.review.operation {
                    Operation::Create | Operation::Update => changed_doors(old, new),
                    Operation::Delete | Operation::Connect => Vec::new(),
                };
                let _ = facts;
                self.judge_object(evaluation, action, &changes, doors)
            }
            None => self.judge_subresource(evaluation, request, object),
        }
    }

    /// What kind of request this is.
    fn request(&self) -> Request {
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
    fn whole_objects(&self) -> bool {
        match self.review.subresource.as_deref() {
            None | Some("ephemeralcontainers" | "resize") => self.review.operation != Operation::Connect,
            Some(_) => false,
        }
    }

    fn action(&self, request: Request, changes: &Changes, old: Option<&Workload>, new: &Workload) -> Action {
        match request {
            Request::Plain(Action::Update) => {
                update_action(changes, old.is_some_and(|old| old.suspended) && !new.suspended)
            }
            Request::Plain(action) | Request::Access(action) => action,
            Request::Scale | Request::Door(_) | Request::Other => Action::Update,
        }
    }

    fn action_of_object(&self, request: Request, _: &Changes) -> Action {
        match request {
            Request::Plain(action) | Request::Access(action) => action,
            Request::Scale => Action::Scale,
            Request::Door(_) | Request::Other => Action::Update,
        }
    }

    fn judge_workload(
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

    fn ask_to_charge(
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

    fn judge_object(
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
        questions.doors(doors);
        self.decide(evaluation, questions.into_asked(), world)
    }

    /// Subresources whose object is not the kind's own: `Scale`, `PodExecOptions`, `Eviction`, `TokenRequest` ...
    fn judge_subresource(&self, evaluation: &mut Evaluation, request: Request, object: Option<&Value>) -> Judging {
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
    fn judge_access(&self, evaluation: &mut Evaluation, action: Action) -> Judging {
        let target = stored_target(self.review, &self.snapshot.cluster);
        let facts = match target.map(|target| extract(&stored_kind(target), &target.object)) {
            Some(Ok(Facts::Workload(facts))) => facts,
            // In a team namespace nobody enters a pod of which nobody knows what it mounts.
            Some(_) | None if self.team.is_some() && self.review.resource.resource == "pods" && action != Action::Evict => {
                return Err(self.unknown_target());
            }
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
    fn judge_scale(&self, evaluation: &mut Evaluation, object: Option<&Value>) -> Judging {
        let replicas = object.and_then(|scale| json::at(scale, &["spec", "replicas"])).cloned().unwrap_or(Value::from(0));
        let Some(target) = stored_target(self.review, &self.snapshot.cluster) else {
            return match &self.team {
                Some(_) => Err(self.unknown_target()),
                None => self.judge_object(evaluation, Action::Scale, &Changes::default(), Vec::new()),
            };
        };
        let scaled = with_replicas(&target.object, &self.review.resource.resource, replicas);
        let kind = stored_kind(target);
        let read = |object: &Value| match extract(&kind, object) {
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

    fn decide(&self, evaluation: &mut Evaluation, asked: Vec<crate::questions::Asked>, world: World<'_>) -> Judging {
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

    // ----------------------------------------------------------------------------------------------- reserve

    /// What this request must hold; and whether what it may grow to can ever fit.
    fn reserve(&self, evaluation: &mut Evaluation, facts: &Workload, old: Option<&Workload>) -> Judging {
        let Some(team) = self.team.clone() else { return Ok(()) };
        let is_new = |new: &Amounts, old: Option<&Amounts>| old.is_none_or(|old| !new.fits_within(old));
        let old_ceiling = old.map(|old| &old.demand.ceiling);
        if old_ceiling != Some(&facts.demand.ceiling) {
            can_ever_fit(facts, &team)?;
        }
        if team.quota_mode() == QuotaMode::Kueue {
            return Ok(());
        }
        if let Some(warning) = surge_warning(facts, &team).filter(|_| old.is_none()) {
            evaluation.warnings.push(warning);
        }
        let holder = self.holder();
        let object = evaluation.patched.as_ref().or(self.review.object.as_ref());
        let uid = self.uid_of(object);
        evaluation.reservation = match (self.is_pod(), holder) {
            (true, holder) => {
                let amounts = facts.templates.first().map(|template| counted(&template.per_pod, &team)).unwrap_or_default();
                let (root, entry) = match holder {
                    Some(root) => (root.meta.uid.clone(), self.entry_of(&root.meta, facts)),
                    None => (uid.clone(), self.entry_of(&self.meta(object), facts)),
                };
                let grows = !amounts.is_empty() && old.is_none_or(|old| old.templates.first().map(|t| counted(&t.per_pod, &team)) != Some(amounts.clone()));
                grows.then_some(Reservation { root, entry, adds: Adds::Pod { uid, amounts } })
            }
            // What is made on the way from a root to its pods holds nothing: the root does.
            (false, Some(_)) => None,
            (false, None) => {
                let floor = counted(&facts.demand.floor, &team);
                let grows = facts.demand.reserves
                    && !floor.is_empty()
                    && is_new(&floor, old.map(|old| counted(&old.demand.floor, &team)).as_ref());
                let entry = Entry { estimated: facts.demand.estimated, ..self.entry_of(&self.meta(object), facts) };
                grows.then_some(Reservation { root: uid, entry, adds: Adds::Floor(floor) })
            }
        };
        Ok(())
    }

    fn reserve_scale(&self, evaluation: &mut Evaluation, target: &StoredObject, new: &Workload, old: &Workload) -> Judging {
        let Some(team) = &self.team else { return Ok(()) };
        if old.demand.ceiling != new.demand.ceiling {
            can_ever_fit(new, team)?;
        }
        let floor = counted(&new.demand.floor, team);
        let grows = !floor.fits_within(&counted(&old.demand.floor, team));
        // An owner above reserves already.
        let is_holder = self.attribution.chain.iter().skip(1).all(|owner| !reserves(&owner.meta.kind));
        if grows && is_holder && team.quota_mode() == QuotaMode::Ledger {
            let entry = Entry { estimated: new.demand.estimated, ..self.entry_of(&target.meta, new) };
            evaluation.reservation = Some(Reservation { root: target.meta.uid.clone(), entry, adds: Adds::Floor(floor) });
        }
        Ok(())
    }

    /// The owner that reserves: the topmost with a fixed size. `None` if it is the object itself.
    fn holder(&self) -> Option<Arc<StoredObject>> {
        if self.attribution.root == Root::Itself {
            return None;
        }
        let own = self.meta(self.review.object.as_ref());
        let itself = |owner: &Meta| owner.kind == own.kind && owner.name == own.name && owner.group == own.group;
        let owners = self.attribution.chain.iter().filter(|owner| !itself(&owner.meta));
        owners.rev().find(|owner| reserves(&owner.meta.kind)).cloned()
    }

    fn entry_of(&self, meta: &Meta, facts: &Workload) -> Entry {
        Entry {
            kind: meta.kind.clone(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            class: self.class(facts),
            person: self.attribution.owner.clone(),
            floor: Amounts::default(),
            estimated: false,
            pods: BTreeMap::new(),
        }
    }

    /// Filled in before validation; where it is not, the request's own uid tells one review from another.
    fn uid_of(&self, object: Option<&Value>) -> String {
        let uid = object.and_then(|object| json::text(object, &["metadata", "uid"])).filter(|uid| !uid.is_empty());
        uid.unwrap_or(&self.review.uid).to_owned()
    }

    /// The `consume` questions, with sums from one copy of the ledger.
    fn ask_for(&self, facts: &Workload, usages: &[Usage], team: &Team) -> Vec<Judged> {
        let labels = labels_or_none(self.review.object.as_ref());
        let mut world = self.world();
        let workload = self.workload(&mut world, facts, &labels, Version::New);
        let mut questions = Questions::new(&mut world, self.attribution, self.base(None, None));
        for usage in usages {
            questions.consume(&workload, usage, team.limits(&usage.resource));
        }
        let asked = questions.into_asked();
        let policies = &self.snapshot.policies;
        match policies.entities_from(world.into_entities()) {
            Ok(entities) => asked.into_iter().map(|asked| judge(asked, policies, &entities)).collect(),
            // Asked over nothing, each answers with a fault.
            Err(_) => asked.into_iter().map(|asked| judge(asked, policies, &cedar_policy::Entities::empty())).collect(),
        }
    }

    // ------------------------------------------------------------------------------------------------ parts

    fn facts(&self, object: &Value) -> Result<Facts, Refusal> {
        match extract(&self.review.kind_ref(), object) {
            Ok(facts) => Ok(facts),
            // Outside team namespaces nothing is taken from a team by what cannot be read.
            Err(_) if self.team.is_none() => Ok(Facts::Object(crate::facts::Object::default())),
            Err(error) => Err(malformed(&error.to_string())),
        }
    }

    /// An old object that cannot be read counts as nothing: then everything is new, and asked about.
    fn facts_of_old(&self, old: &Value) -> Option<Facts> {
        extract(&self.review.kind_ref(), old).ok()
    }

    fn is_pod(&self) -> bool {
        self.review.kind.group.is_empty() && self.review.kind.kind == "Pod"
    }

    fn meta(&self, object: Option<&Value>) -> Meta {
        object.map(|object| Meta::read(object, self.review.namespace.as_deref())).unwrap_or_default()
    }

    fn world(&self) -> World<'_> {
        World::new(&self.snapshot.teams, self.team.as_ref(), self.review.namespace.as_deref())
    }

    fn names(&self) -> Names<'_> {
        Names {
            kind: &self.review.kind.kind,
            namespace: self.review.namespace.as_deref().unwrap_or_default(),
            team: self.team.as_deref(),
        }
    }

    fn base(&self, changes: Option<&Changes>, old: Option<cedar_policy::EntityUid>) -> Base {
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
    fn class(&self, facts: &Workload) -> Class {
        let Root::Stored(root) = &self.attribution.root else { return facts.class };
        // A stamped pod ends the walk, and carries the class of its root.
        if let (Some(class), Some(_)) = (mutation::label(&root.object, stamp::CLASS), &root.meta.stamp) {
            return Class::of_id(class).unwrap_or(Class::Other);
        }
        match extract(&stored_kind(root), &root.object) {
            Ok(Facts::Workload(root)) => root.class,
            Ok(Facts::Object(_)) | Err(_) => Class::Other,
        }
    }

    fn workload(
        &self,
        world: &mut World<'_>,
        facts: &Workload,
        labels: &[(String, String)],
        version: Version,
    ) -> cedar_policy::EntityUid {
        let name = self.review.display_name();
        let kind = match self.review.kind.kind.as_str() {
            "Scale" | "PodExecOptions" | "PodAttachOptions" | "PodPortForwardOptions" | "PodProxyOptions" | "Eviction" => {
                target_kind(&self.review.resource.resource)
            }
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

    fn object(&self, world: &mut World<'_>, labels: &[(String, String)]) -> cedar_policy::EntityUid {
        let Review { kind, subresource, .. } = self.review;
        let owner = self.attribution.owner.as_deref().filter(|_| self.review.operation != Operation::Create);
        let name = self.review.display_name();
        world.object(&kind.group, &kind.kind, &name, subresource.as_deref(), owner, labels)
    }

    /// Claims that come with the root: a StatefulSet's own, and the home that a Space makes.
    fn root_claims<'f>(&'f self, facts: &'f Workload) -> impl Fn(&str) -> bool + 'f {
        let (kind, name) = match &self.attribution.root {
            Root::Itself => (self.review.kind.kind.clone(), self.review.display_name()),
            Root::Stored(root) => (root.meta.kind.clone(), root.meta.name.clone()),
        };
        let templates: Vec<String> = match &self.attribution.root {
            Root::Itself => facts.claim_templates.iter().cloned().collect(),
            Root::Stored(root) => match extract(&stored_kind(root), &root.object) {
                Ok(Facts::Workload(root)) => root.claim_templates.into_iter().collect(),
                Ok(Facts::Object(_)) | Err(_) => Vec::new(),
            },
        };
        move |claim: &str| {
            let of_set = |template: &String| {
                claim == template
                    || claim
                        .strip_prefix(&format!("{template}-{name}-"))
                        .is_some_and(|ordinal| !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit()))
            };
            (kind == "Workspace" && claim == format!("workspace-{name}-pvc")) || templates.iter().any(of_set)
        }
    }

    fn request_subject(&self) -> String {
        let Review { kind, subresource, namespace, .. } = self.review;
        let what = match subresource {
            Some(subresource) => format!("{}/{subresource}", self.review.resource.resource),
            None => kind.kind.clone(),
        };
        let place = namespace.as_deref().map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
        format!("{what} `{}`{place}", self.review.display_name())
    }

    /// Who could have asked this, for somebody who could not.
    fn who_may(&self) -> Option<String> {
        let team = self.team.as_ref()?;
        let Principal::Submitter(actor) = &self.attribution.actor else {
            return Some(format!("only members of {} work here, and this identity is in no team; ask the platform team", team.name));
        };
        if actor.team != team.name {
            let own = self.snapshot.teams.named(&actor.team).map(|team| team.spec.namespaces.join(", "))?;
            return Some(format!("only members of {} work here; {} works in {own}", team.name, actor.team));
        }
        let owner = self.attribution.owner.as_ref().filter(|owner| Some(*owner) != actor.person.as_ref())?;
        Some(format!("it is {owner}'s; ask them, or a lead of the team"))
    }

    fn unknown_target(&self) -> Refusal {
        let Review { resource, .. } = self.review;
        Refusal {
            reason: ReasonCode::UnknownTarget,
            message: format!("the {} `{}` cannot be read, so nobody can tell what this would take", target_kind(&resource.resource), self.review.display_name()),
            hint: Some("try again in a moment, or change the object itself".to_owned()),
            policy: None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Request {
    Plain(Action),
    Scale,
    Access(Action),
    Door(DoorKind),
    Other,
}

/// What the policies let the gate give.
#[derive(Debug, Default)]
struct Given<'a> {
    offers: Vec<Offer<'a>>,
    assumes: bool,
    queues: bool,
    charges: bool,
}

fn offered_volume(offer: &Offer<'_>) -> (crate::facts::Volume, crate::facts::Mount) {
    let name = offer.storage.name.clone();
    let volume = crate::facts::Volume {
        pointer: "offer".to_owned(),
        name: name.clone(),
        kind: VolumeKind::Claim,
        source: Some(offer.storage.claim.clone()),
        path: None,
        driver: None,
        storage_class: None,
        read_only: false,
        breaks: Default::default(),
        unknown_fields: Default::default(),
    };
    let mount = crate::facts::Mount {
        volume: name,
        path: offer.mount_path.clone(),
        sub_path: offer.sub_path.clone(),
        sub_path_expr: false,
        read_only: offer.storage.read_only,
        propagates: false,
    };
    (volume, mount)
}

fn workload_of(facts: &Facts) -> Option<&Workload> {
    match facts {
        Facts::Workload(workload) => Some(workload),
        Facts::Object(_) => None,
    }
}

fn object_of(facts: &Facts) -> Option<&crate::facts::Object> {
    match facts {
        Facts::Object(object) => Some(object),
        Facts::Workload(_) => None,
    }
}

fn stored_kind(stored: &StoredObject) -> KindRef<'_> {
    KindRef { group: &stored.meta.group, kind: &stored.meta.kind, resource: "" }
}

/// CronJobs and their like reserve nothing: each Job does. Parents that only group others do not run pods.
fn reserves(kind: &str) -> bool {
    !kind.ends_with("CronJob")
}

fn target_kind(plural: &str) -> &str {
    match plural {
        "pods" => "Pod",
        "deployments" => "Deployment",
        "statefulsets" => "StatefulSet",
        "replicasets" => "ReplicaSet",
        "pytorchjobs" => "PyTorchJob",
        "inferenceendpointconfigs" => "InferenceEndpointConfig",
        "jumpstartmodels" => "JumpStartModel",
        other => other,
    }
}

/// The scaled object: each kind's `scale` subresource names one field (CRD `specReplicasPath`).
fn with_replicas(object: &Value, plural: &str, replicas: Value) -> Value {
    let mut builder = PatchBuilder::new(object.clone());
    match plural {
        "pytorchjobs" => builder.set(&["spec", "pytorchReplicaSpecs", "Worker", "replicas"], replicas),
        _ => builder.set(&["spec", "replicas"], replicas),
    }
    builder.finish().0
}

/// Of what is asked, what the ledger counts: every accelerator, and whatever else the team's quota lists.
fn counted(amounts: &Amounts, team: &Team) -> Amounts {
    let mut counted = Amounts::default();
    for (resource, amount) in amounts.iter().filter(|(name, _)| is_accelerator(name.as_str()) || team.lists(name)) {
        counted.set(resource.clone(), amount);
    }
    counted
}

fn can_ever_fit(facts: &Workload, team: &Team) -> Judging {
    let refuse = |message: String, hint: String| {
        Err(Refusal { reason: ReasonCode::CannotFit, message, hint: Some(hint), policy: None })
    };
    match &facts.demand.ceiling {
        Bound::Unbounded { hint } => refuse("it may grow without bound".to_owned(), hint.clone()),
        Bound::AtMost(most) => {
            let over = counted(most, team);
            let over = over.iter().find(|(resource, amount)| *amount > team.limits(resource).ceiling);
            let Some((resource, amount)) = over else { return Ok(()) };
            let ceiling = team.limits(resource).ceiling;
            let floor = facts.demand.floor.get(resource.as_str());
            let how = match floor < amount {
                true => format!("it starts with {floor} and may grow to {amount} {resource}"),
                false => format!("it asks for {amount} {resource}"),
            };
            let hint = match floor < amount {
                true => "lower its maximum (maxReplicas, maxReplicaCount), which is what counts here",
                false => "ask for fewer",
            };
            refuse(format!("{how}, and {} may never hold more than {ceiling}", team.name), hint.to_owned())
        }
    }
}

fn surge_warning(facts: &Workload, team: &Team) -> Option<String> {
    let Bound::AtMost(most) = &facts.demand.ceiling else { return None };
    let surging = counted(&most.saturating_add(&facts.demand.surge), team);
    let surge = counted(&facts.demand.surge, team);
    let (resource, amount) = surging
        .iter()
        .find(|(resource, amount)| surge.get(resource.as_str()) > 0 && *amount > team.limits(resource).ceiling)?;
    Some(format!(
        "a rolling update would need {amount} {resource} and {} may hold {}: set maxSurge: 0, or strategy Recreate",
        team.name,
        team.limits(resource).ceiling
    ))
}

fn over_ceiling(usage: &Usage, team: &Team) -> Refusal {
    let Usage { resource, used, after, .. } = usage;
    let limits = team.limits(resource);
    let requested = after.saturating_sub(*used);
    let borrowed = if limits.ceiling > limits.limit { format!(" (limit {}, the rest borrowed)", limits.limit) } else { String::new() };
    Refusal {
        reason: ReasonCode::Quota,
        message: format!(
            "{requested} {resource}: {} uses {used} and may hold {}{borrowed}, so {} are left",
            team.name,
            limits.ceiling,
            limits.ceiling.saturating_sub(*used)
        ),
        hint: Some("wait for a job to end, or ask for fewer".to_owned()),
        policy: None,
    }
}

/// Who holds it: used, limit and the three largest holders, for each resource that was asked.
fn held(usages: &[Usage], team: &Team, ledger: &Ledger) -> String {
    let describe = |usage: &Usage| {
        let resource = &usage.resource;
        let holders: Vec<String> = ledger
            .holders(resource)
            .into_iter()
            .take(3)
            .map(|(entry, amount)| {
                let person = entry.person.as_deref().map(|person| format!(" of {person}")).unwrap_or_default();
                format!("{} `{}`{person} {amount}", entry.kind, entry.name)
            })
            .collect();
        let limit = team.limits(resource).limit;
        let holders = if holders.is_empty() { String::new() } else { format!("; held by {}", holders.join(", ")) };
        format!(" ({resource}: {} used, {} asked, limit {limit}{holders})", usage.used, usage.after.saturating_sub(usage.used))
    };
    usages.iter().map(describe).collect()
}

fn quota_line(usage: Usage, team: &Team) -> QuotaLine {
    let limits = team.limits(&usage.resource);
    QuotaLine {
        requested: usage.after.saturating_sub(usage.used),
        limit: limits.limit,
        ceiling: limits.ceiling,
        usage,
    }
}

/// Metadata as the stamp is written into it: an object, and in it maps of strings.
fn has_metadata(object: &Value) -> Judging {
    if json::at(object, &["metadata"]).is_some_and(|metadata| !metadata.is_object()) {
        return Err(malformed("`metadata` must be an object"));
    }
    ["labels", "annotations"].into_iter().try_for_each(|map| match json::strings(object, &["metadata", map]) {
        Ok(_) => Ok(()),
        Err(error) => Err(malformed(&error.to_string())),
    })
}

fn labels(object: Option<&Value>) -> Result<Vec<(String, String)>, Refusal> {
    let Some(object) = object else { return Ok(Vec::new()) };
    json::strings(object, &["metadata", "labels"]).map_err(|error| malformed(&error.to_string()))
}

fn labels_or_none(object: Option<&Value>) -> Vec<(String, String)> {
    labels(object).unwrap_or_default()
}

fn malformed(problem: &str) -> Refusal {
    Refusal { reason: ReasonCode::Malformed, message: problem.to_owned(), hint: None, policy: None }
}

fn refusal_of(error: &AttributionError) -> Refusal {
    let (reason, hint) = match error {
        AttributionError::Untrusted { .. } => (
            ReasonCode::UntrustedIdentity,
            "log in again through IAM Identity Center; if it stays, the access entry's username template differs from the configuration",
        ),
        AttributionError::NoController { .. } | AttributionError::NotItsOwner { .. } => {
            (ReasonCode::Unattributed, "the platform team lists what each controller may own")
        }
        AttributionError::OwnerGone(_) => (ReasonCode::Unattributed, "its owner was deleted; nothing needs to be done"),
        AttributionError::Unattributed { .. } => {
            (ReasonCode::Unattributed, "apply it again, so that the gate sees who submits it")
        }
        AttributionError::SubmitterLeft { .. } => (ReasonCode::Unattributed, "a member of the team applies it again"),
        AttributionError::ReservedKey { .. } => (ReasonCode::Stamp, "remove it: the gate sets these keys itself"),
        AttributionError::ForeignStamp => (ReasonCode::Stamp, "apply it again without the cedargate.dev annotations and labels"),
        AttributionError::ControllerMade { .. } => (ReasonCode::ControllerMade, "change the object that owns it"),
        AttributionError::TooDeep => (ReasonCode::Unattributed, "the chain of owners is a loop or too long"),
    };
    Refusal { reason, message: error.to_string(), hint: Some(hint.to_owned()), policy: None }
}

fn headline(review: &Review, who: &Who) -> String {
    let name = who.person.as_deref().or(who.session.as_deref()).unwrap_or(&who.name);
    let team = match &who.team {
        Some(team) => format!(" of {team}"),
        None => " of no team".to_owned(),
    };
    let what = match &review.subresource {
        Some(subresource) => format!("{}/{subresource}", review.resource.resource),
        None => review.kind.kind.clone(),
    };
    let place = match (&review.namespace, &who.namespace_team) {
        (Some(namespace), Some(owner)) if who.team.as_ref() != Some(owner) => format!(" in {namespace} (team {owner})"),
        (Some(namespace), Some(_) | None) => format!(" in {namespace}"),
        (None, _) => String::new(),
    };
    let operation = review.operation.to_string().to_ascii_lowercase();
    format!("{name}{team} may not {operation} {what} `{}`{place}", review.display_name())
}

/// The essentials, so that the API server's own audit log carries them. Keys are names within the webhook.
fn audit(who: &Who, verdict: &Verdict, questions: &[Line], revisions: &Revisions) -> BTreeMap<String, String> {
    let mut audit = BTreeMap::from([
        ("verdict".to_owned(), match verdict {
            Verdict::Allow => "allow",
            Verdict::Deny { .. } => "deny",
            Verdict::RetryLater { .. } => "retry-later",
        }.to_owned()),
        ("principal".to_owned(), who.name.clone()),
        ("policies-revision".to_owned(), revisions.policies.clone()),
    ]);
    let optional = [("person", &who.person), ("team", &who.team)];
    audit.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?))));
    let mut refusing: Vec<&str> =
        questions.iter().filter(|line| !line.allowed).flat_map(|line| line.policies.iter().map(String::as_str)).collect();
    refusing.sort_unstable();
    refusing.dedup();
    if !refusing.is_empty() {
        audit.insert("policies".to_owned(), refusing.join(","));
    }
    let mut reasons: Vec<&str> = match verdict {
        Verdict::Allow => Vec::new(),
        Verdict::Deny { refusals } => refusals.iter().map(|refusal| refusal.reason.id()).collect(),
        Verdict::RetryLater { reason, .. } => vec![reason.id()],
    };
    reasons.sort_unstable();
    reasons.dedup();
    if !reasons.is_empty() {
        audit.insert("reasons".to_owned(), reasons.join(","));
    }
    audit
}

/// Digests of what the snapshot holds.
pub fn revisions(snapshot: &Snapshot) -> Revisions {
    Revisions {
        policies: snapshot.policies.revision().to_owned(),
        teams: snapshot.teams.revision().to_owned(),
        schema: snapshot.policies.schema_revision().to_owned(),
    }
}
