//! `/mutate`: completes what is created, and puts back what an update took.

use std::sync::Arc;

use serde_json::Value;

use super::Evaluation;
use super::step::{Judging, Step, workload_of};
use super::words::malformed;
use crate::attribution::{Note, Principal, Root, is_main_resource};
use crate::changes::Changes;
use crate::facts::kinds::Kind;
use crate::facts::{Facts, PodTemplate, Workload};
use crate::json;
use crate::judge::judge;
use crate::mutation::{self, Ids, Offer};
use crate::patch::PatchBuilder;
use crate::placed::Placed;
use crate::questions::Questions;
use crate::review::Operation;
use crate::stamp::Submitter;
use crate::team::{Person, QuotaMode, Team};
use crate::verdict::Refusal;
use crate::vocabulary::{Action, Change, Class, Origin, VolumeKind};
use crate::world::{Declared, MountedVolume, Version};

impl Step<'_> {
    /// Patches, and returns the object as the patch leaves it.
    pub(super) fn mutate(&self, evaluation: &mut Evaluation) -> Result<Option<Value>, Refusal> {
        let (Some(object), Some(team), true) = (&self.review.object, &self.team, is_main_resource(self.review)) else {
            return Ok(self.review.object.clone());
        };
        has_metadata(object)?;
        let mut builder = PatchBuilder::new(object.clone());
        match self.review.operation {
            Operation::Create => self.complete(evaluation, &mut builder, object, team)?,
            Operation::Update => self.keep(&mut builder, object, team),
            Operation::Delete | Operation::Connect => {}
        }
        let (patched, operations) = builder.finish();
        evaluation.patch = operations;
        evaluation.patched = Some(patched.clone());
        Ok(Some(patched))
    }

    /// An operator's own object between a root and its pods: it compares and rewrites for ever, so it is left alone.
    pub(super) fn is_between(&self) -> bool {
        let has_owner = self.review.old_object.as_ref().is_some_and(|old| self.meta(Some(old)).has_controller());
        let by_operator = matches!(self.attribution.actor, Principal::Component { .. });
        by_operator && has_owner && !self.is_pod()
    }

    /// An UPDATE: what is the gate's stays as it was, and the queue's placement is noted.
    fn keep(&self, builder: &mut PatchBuilder, object: &Value, team: &Team) {
        let Some(old) = &self.review.old_object else { return };
        let placed = self.placed_by(old, object);
        if self.is_between() {
            self.correct(builder);
            if let Some(placed) = placed {
                mutation::note_placement(builder, &placed);
            }
            return;
        }
        let mut old = old.clone();
        if let (Some(stamp), true) = (&self.attribution.stamp, self.attribution.notes.contains(&Note::Rewritten)) {
            old = mutation::rewritten(&old, stamp);
        }
        if let Some(placed) = placed {
            old = mutation::placed(&old, &placed);
        }
        let by_part = matches!(self.attribution.actor, Principal::Component { .. });
        mutation::put_back(builder, &old, team, by_part);
    }

    /// The note of where the queue has put it, where that changes: what it adds to where pods may land, so that those pods are not taken for the submitter's wish. A queue
    /// compares templates and never the metadata of the object, so that it may be noted on what stands in between, too.
    fn placed_by(&self, old: &Value, object: &Value) -> Option<Placed> {
        if self.is_pod() {
            return None;
        }
        if !self.attribution.places {
            // Whoever moves it goes on from where the queue has put it: from then on it is their wish, values included.
            let moved = || Changes::between(old, object).set.contains(&Change::Placement);
            return (!Placed::of(old).is_empty() && moved()).then(Placed::default);
        }
        let Ok(Facts::Workload(new)) = self.facts(object) else { return None };
        let before = self.facts_of_old(old);
        let before = before.as_ref().and_then(workload_of).cloned().unwrap_or_else(Workload::unknown);
        Some(Placed::after(Placed::of(old), &before, &new))
    }

    pub(super) fn complete(
        &self,
        evaluation: &mut Evaluation,
        builder: &mut PatchBuilder,
        object: &Value,
        team: &Arc<Team>,
    ) -> Judging {
        let facts = self.facts(object)?;
        let Some(stamp) = &self.attribution.stamp else {
            self.correct(builder);
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
        if given.assumes && self.attribution.root == Root::Itself {
            self.complete_templates(builder, team);
        }
        if self.is_pod() {
            self.complete_pod(evaluation, builder, facts, team, stamp, &given);
        }
        Ok(())
    }

    /// In place of a copied stamp that is ignored where it came from. Whoever copied it writes it again at times, without end
    /// but to no effect: what the API server stores stays as it is, so nobody hears of a change.
    fn correct(&self, builder: &mut PatchBuilder) {
        if let Some(stamp) = &self.attribution.corrected {
            mutation::correct(builder, stamp);
        }
    }

    /// Task governance refuses these without a queue, whoever made them: metadata only, and only in `kueue` mode.
    pub(super) fn label_intermediate(&self, builder: &mut PatchBuilder, facts: &Facts, team: &Team) {
        let kinds = ["Deployment", "StatefulSet", "Job"];
        let by_controller =
            self.attribution.user_origin == Origin::Controller && matches!(self.attribution.root, Root::Stored(_));
        let queued = matches!(facts, Facts::Workload(_)) && kinds.contains(&self.review.kind.kind.as_str());
        if let (true, true, QuotaMode::Kueue, Some(queue)) =
            (by_controller, queued, team.quota_mode(), &team.spec.queue)
        {
            mutation::enqueue(builder, queue, team.spec.priority_classes.first().map(String::as_str));
        }
    }

    /// What an operator must find in the root already, because it hands out rights by it.
    fn complete_templates(&self, builder: &mut PatchBuilder, team: &Team) {
        let kind = self.snapshot.config.kinds.named(&self.review.kind.group, &self.review.kind.kind);
        for template in kind.into_iter().flat_map(Kind::service_accounts) {
            let template: Vec<&str> = template.iter().map(String::as_str).collect();
            if json::walk(builder.object(), &template).is_some() {
                mutation::service_account(builder, &template, team.default_service_account());
            }
        }
    }

    pub(super) fn queue(&self, builder: &mut PatchBuilder, team: &Team, permitted: bool) {
        let kinds = &self.snapshot.config.kinds;
        let queue = match &self.attribution.root {
            Root::Itself if !kinds.labels_queue(&self.review.kind.group, &self.review.kind.kind) => None,
            Root::Itself => team.spec.queue.as_deref(),
            Root::Stored(root) => mutation::queue_of_child(&root.object, team, kinds),
        };
        if let (Some(queue), true) = (queue, permitted) {
            mutation::enqueue(builder, queue, team.spec.priority_classes.first().map(String::as_str));
        }
    }

    pub(super) fn complete_pod(
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
            Class::Training
            | Class::Endpoint
            | Class::Ray
            | Class::Batch
            | Class::Service
            | Class::Pod
            | Class::Other => mutation::ids(template, person),
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
        if let (true, Some(person)) = (shared, person) {
            let home = fitting.iter().find(|offer| offer.owner.is_some()).map(|offer| offer.mount_path.as_str());
            live_as(builder, template, ids, person, home);
        }
        if given.assumes {
            mutation::service_account(builder, &[], team.default_service_account());
        }
        mutation::hide_gpus(builder, template);
    }

    pub(super) fn person_of(&self, stamp: &Submitter) -> Option<&Person> {
        stamp.person.as_deref().and_then(|person| self.snapshot.teams.person(person))
    }

    /// Asks for what the team offers before it is given.
    pub(super) fn given<'t>(&'t self, facts: &Workload, team: &'t Arc<Team>, stamp: &Submitter) -> Given<'t> {
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
}

/// The person's ids, and the variables that go with a home. A container that another webhook added after the ids were put in
/// gets the variables as the first ones did; where somebody set the ids by hand, the rest is theirs as well.
fn live_as(builder: &mut PatchBuilder, template: &PodTemplate, ids: Ids, person: &Person, home_path: Option<&str>) {
    let home = person.home.as_deref().zip(home_path);
    let variables = home.map(|(name, path)| mutation::home_variables(name, path));
    let settles_in = match (ids, &variables) {
        (Ids::Inject { .. }, _) => {
            mutation::posix(builder, person);
            true
        }
        (Ids::Theirs, Some(variables)) => mutation::has_settled_in(builder.object(), template, variables),
        (Ids::Theirs | Ids::Unknown | Ids::Foreign, _) => false,
    };
    if let (true, Some(variables)) = (settles_in, variables) {
        mutation::settle_in(builder, template, &variables);
    }
}

/// What the policies let the gate give.
#[derive(Debug, Default)]
pub(super) struct Given<'a> {
    offers: Vec<Offer<'a>>,
    assumes: bool,
    queues: bool,
    charges: bool,
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

pub(super) fn offered_volume(offer: &Offer<'_>) -> (crate::facts::Volume, crate::facts::Mount) {
    let name = offer.storage.name.clone();
    let volume = crate::facts::Volume {
        pointer: "offer".to_owned(),
        name: name.clone(),
        kind: VolumeKind::Claim,
        source: Some(offer.storage.claim.clone()),
        path: None,
        driver: None,
        storage_class: None,
        audiences: Default::default(),
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
