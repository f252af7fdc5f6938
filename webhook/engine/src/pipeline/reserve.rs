//! What a request must hold of the quota, and whether what it may grow to can ever fit.

use std::sync::Arc;

use serde_json::Value;

use super::Evaluation;
use super::step::{Judging, Step, labels_or_none};
use super::words::as_it_asks;
use crate::amounts::{Amounts, ResourceName, is_accelerator};
use crate::attribution::Root;
use crate::cluster::{Meta, StoredObject};
use crate::facts::{Bound, Workload};
use crate::json;
use crate::judge::{Judged, judge};
use crate::questions::Questions;
use crate::quota::{Adds, Entry, HeldPod, Reservation, Usage};
use crate::team::{Limits, QuotaMode, Team};
use crate::verdict::{ReasonCode, Refusal};
use crate::world::Version;

impl Step<'_> {
    /// What this request must hold; and whether what it may grow to can ever fit.
    pub(super) fn reserve(&self, evaluation: &mut Evaluation, facts: &Workload, old: Option<&Workload>) -> Judging {
        let Some(team) = self.team.clone() else { return Ok(()) };
        let is_new = |new: &Amounts, old: Option<&Amounts>| old.is_none_or(|old| !new.fits_within(old));
        let old_ceiling = old.map(|old| &old.demand.ceiling);
        let is_another = old_ceiling != Some(&facts.demand.ceiling);
        match team.quota_mode() {
            QuotaMode::Kueue if is_another => return self.ask_the_queue(evaluation, facts, old, &team),
            QuotaMode::Kueue => return Ok(()),
            QuotaMode::Ledger if is_another => can_ever_fit(facts, &team)?,
            QuotaMode::Ledger => {}
        }
        if let Some(warning) = surge_warning(facts, &team).filter(|_| old.is_none()) {
            evaluation.warnings.push(warning);
        }
        let holder = self.holder();
        let object = evaluation.patched.as_ref().or(self.review.object.as_ref());
        let uid = self.uid_of(object);
        evaluation.reservation = match (self.is_pod(), holder) {
            (true, holder) => {
                let amounts =
                    facts.templates.first().map(|template| counted(&template.per_pod, &team)).unwrap_or_default();
                let (root, entry) = match holder {
                    Some(root) => (root.meta.uid.clone(), self.entry_of(&root.meta, facts)),
                    None => (uid.clone(), self.entry_of(&self.meta(object), facts)),
                };
                let grows = !amounts.is_empty()
                    && old.is_none_or(|old| {
                        old.templates.first().map(|t| counted(&t.per_pod, &team)) != Some(amounts.clone())
                    });
                let name = self.review.display_name();
                grows.then_some(Reservation { root, entry, adds: Adds::Pod { uid, pod: HeldPod { name, amounts } } })
            }
            // What is made on the way from a root to its pods holds nothing: the root does.
            (false, Some(_)) => None,
            (false, None) => {
                let floor = counted(&facts.demand.floor, &team);
                let grows = facts.demand.reserves
                    && !floor.is_empty()
                    && is_new(&floor, old.map(|old| counted(&old.demand.floor, &team)).as_ref());
                let entry = Entry { estimated: facts.demand.estimated, ..self.entry_of(&self.meta(object), facts) };
                let generation = self.meta(object).generation;
                grows.then_some(Reservation { root: uid, entry, adds: Adds::Floor { amounts: floor, generation } })
            }
        };
        Ok(())
    }

    pub(super) fn reserve_scale(
        &self,
        evaluation: &mut Evaluation,
        target: &StoredObject,
        new: &Workload,
        old: &Workload,
    ) -> Judging {
        let Some(team) = &self.team else { return Ok(()) };
        if old.demand.ceiling != new.demand.ceiling {
            match team.quota_mode() {
                QuotaMode::Ledger => can_ever_fit(new, team)?,
                QuotaMode::Kueue => self.ask_the_queue(evaluation, new, Some(old), team)?,
            }
        }
        let floor = counted(&new.demand.floor, team);
        let grows = !floor.fits_within(&counted(&old.demand.floor, team));
        // An owner above reserves already.
        let is_holder = self.attribution.chain.iter().skip(1).all(|owner| !self.reserves(&owner.meta));
        if grows && is_holder && team.quota_mode() == QuotaMode::Ledger {
            let entry = Entry { estimated: new.demand.estimated, ..self.entry_of(&target.meta, new) };
            // A `Scale` does not say which generation its object will be of.
            let adds = Adds::Floor { amounts: floor, generation: None };
            evaluation.reservation = Some(Reservation { root: target.meta.uid.clone(), entry, adds });
        }
        Ok(())
    }

    /// The owner that reserves: the topmost with a fixed size. `None` if it is the object itself.
    pub(super) fn holder(&self) -> Option<Arc<StoredObject>> {
        if self.attribution.root == Root::Itself {
            return None;
        }
        let own = self.meta(self.review.object.as_ref());
        let itself = |owner: &Meta| owner.kind == own.kind && owner.name == own.name && owner.group == own.group;
        let owners = self.attribution.chain.iter().filter(|owner| !itself(&owner.meta));
        owners.rev().find(|owner| self.reserves(&owner.meta)).cloned()
    }

    /// CronJobs and their like reserve nothing: each Job does.
    fn reserves(&self, owner: &Meta) -> bool {
        self.snapshot.config.kinds.reserves(&owner.group, &owner.kind)
    }

    pub(super) fn entry_of(&self, meta: &Meta, facts: &Workload) -> Entry {
        Entry {
            group: meta.group.clone(),
            person: self.attribution.owner.clone(),
            ..Entry::new(&meta.kind, &meta.namespace, &meta.name, self.class(facts))
        }
    }

    /// Filled in before validation; where it is not, the request's own uid tells one review from another.
    pub(super) fn uid_of(&self, object: Option<&Value>) -> String {
        let uid = object.and_then(|object| json::text(object, &["metadata", "uid"])).filter(|uid| !uid.is_empty());
        uid.unwrap_or(&self.review.uid).to_owned()
    }

    /// The `consume` questions, with sums from one copy of the ledger.
    pub(super) fn ask_for(
        &self,
        facts: &Workload,
        usages: &[Usage],
        limits: &dyn Fn(&ResourceName) -> Limits,
    ) -> Vec<Judged> {
        let labels = labels_or_none(self.review.object.as_ref());
        let mut world = self.world();
        let workload = self.workload(&mut world, facts, &labels, Version::New);
        let mut questions = Questions::new(&mut world, self.attribution, self.base(None, None));
        for usage in usages {
            questions.consume(&workload, usage, limits(&usage.resource));
        }
        let asked = questions.into_asked();
        let policies = &self.snapshot.policies;
        match policies.entities_from(world.into_entities()) {
            Ok(entities) => asked.into_iter().map(|asked| judge(asked, policies, &entities)).collect(),
            // Asked over nothing, each answers with a fault.
            Err(_) => asked.into_iter().map(|asked| judge(asked, policies, &cedar_policy::Entities::empty())).collect(),
        }
    }
}

/// Of what is asked, what the ledger counts: every accelerator, and whatever else the team's quota lists.
pub(crate) fn counted(amounts: &Amounts, team: &Team) -> Amounts {
    let mut counted = Amounts::default();
    for (resource, amount) in amounts.iter().filter(|(name, _)| is_accelerator(name.as_str()) || team.lists(name)) {
        counted.set(resource.clone(), amount);
    }
    counted
}

pub(super) fn can_ever_fit(facts: &Workload, team: &Team) -> Judging {
    match &facts.demand.ceiling {
        Bound::Unbounded { problem, hint } => Err(cannot_fit(problem.clone(), hint)),
        Bound::AtMost(most) => {
            let over = counted(most, team);
            let over = over.iter().find(|(resource, amount)| *amount > team.limits(resource).ceiling);
            let Some((resource, amount)) = over else { return Ok(()) };
            let ceiling = team.limits(resource).ceiling;
            let (how, hint) = as_it_asks(facts, resource, amount);
            Err(cannot_fit(format!("{how}, and {} may never hold more than {ceiling}", team.name), hint))
        }
    }
}

pub(super) fn cannot_fit(message: String, hint: &str) -> Refusal {
    Refusal { reason: ReasonCode::CannotFit, message, hint: Some(hint.to_owned()), policy: None }
}

pub(super) fn surge_warning(facts: &Workload, team: &Team) -> Option<String> {
    let Bound::AtMost(most) = &facts.demand.ceiling else { return None };
    let surging = counted(&most.saturating_add(&facts.demand.surge), team);
    let surge = counted(&facts.demand.surge, team);
    let (resource, amount) = surging
        .iter()
        .find(|(resource, amount)| surge.get(resource.as_str()) > 0 && *amount > team.limits(resource).ceiling)?;
    Some(format!(
        "a rolling update would need {amount} {resource} and {} may hold {}: {}",
        team.name,
        team.limits(resource).ceiling,
        facts.demand.surge_hint
    ))
}
