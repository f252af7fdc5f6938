//! `kueue` mode: task governance counts and lets work wait. The gate refuses what it could never let in, and asks what the
//! policies say to it.
//!
//! Only what people submit is looked at: Kueue has let in whatever a controller makes of it, or holds it. The question is asked
//! once, with the most that the workload may ever hold, since afterwards Kueue starts and stops it as it likes. Nothing is
//! reserved and nothing written.

use super::Evaluation;
use super::reserve::{cannot_fit, counted};
use super::step::{Judging, Step};
use super::words::{as_it_asks, never_given, too_large_for_a_flavor};
use crate::amounts::{Amounts, ResourceName};
use crate::facts::{Bound, Workload};
use crate::judge::Judged;
use crate::queues::{Capacity, Missing};
use crate::quota::Usage;
use crate::team::{Limits, Team};
use crate::verdict::Refusal;
use crate::vocabulary::Origin;

/// A Job with this annotation may be let in with fewer pods than it asks for.
const MIN_PARALLELISM: &str = "kueue.x-k8s.io/job-min-parallelism";

impl Step<'_> {
    pub(super) fn ask_the_queue(
        &self,
        evaluation: &mut Evaluation,
        facts: &Workload,
        old: Option<&Workload>,
        team: &Team,
    ) -> Judging {
        let most = match &facts.demand.ceiling {
            Bound::Unbounded { problem, hint } => return Err(cannot_fit(problem.clone(), hint)),
            Bound::AtMost(most) => most,
        };
        if self.attribution.actor_origin == Origin::Controller {
            return Ok(());
        }
        let queue = facts.queues.first().or(team.spec.queue.as_ref());
        let capacity = self.capacity(queue.map(String::as_str), team);
        let asked = match &capacity {
            Ok(capacity) => of_concern(most, team, capacity),
            Err(_) => counted(most, team),
        };
        let before = match old.map(|old| &old.demand.ceiling) {
            Some(Bound::AtMost(before)) => before.clone(),
            Some(Bound::Unbounded { .. }) | None => Amounts::new(),
        };
        match capacity {
            Ok(capacity) => {
                let waits = capacity.waits().filter(|_| old.is_none());
                evaluation.warnings.extend(waits.map(|why| waiting(queue, &capacity, why)));
                let grows = |(resource, amount): &(&ResourceName, u64)| *amount > before.get(resource.as_str());
                let grown: Vec<_> = asked.iter().filter(grows).collect();
                grown.iter().try_for_each(|(resource, _)| fits(facts, resource, queue, &capacity, team))?;
                self.ask_to_consume(evaluation, facts, &grown, &before, &capacity, team);
                Ok(())
            }
            Err(refusal) if !asked.is_empty() && !asked.fits_within(&before) => Err(refusal),
            // What takes no accelerator waits for ever, and does no harm.
            Err(refusal) if old.is_none() => {
                evaluation.warnings.push(refusal.message);
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    fn capacity(&self, queue: Option<&str>, team: &Team) -> Result<Capacity<'_>, Refusal> {
        let namespace = self.review.namespace.as_deref().unwrap_or_default();
        let Some(queue) = queue else {
            return Err(cannot_fit(
                format!("{} names no queue, so Kueue would never start it", team.name),
                "ask the platform team to set `queue` in the Team",
            ));
        };
        self.snapshot.cluster.queues().behind(namespace, queue).map_err(|missing| match missing {
            Missing::LocalQueue => cannot_fit(
                format!("there is no queue `{queue}` in {namespace}, so Kueue would never start it"),
                "ask the platform team: the LocalQueue is missing, or Kueue is, or the gate may not read its queues",
            ),
            Missing::ClusterQueue(name) => cannot_fit(
                format!("queue `{queue}` leads to ClusterQueue `{name}`, which does not exist, so Kueue would never start it"),
                "ask the platform team to make it, or to lead the LocalQueue to another",
            ),
        })
    }

    /// `used` is Kueue's word of a moment ago, and of persons and classes nothing is known but what this workload asks.
    fn ask_to_consume(
        &self,
        evaluation: &mut Evaluation,
        facts: &Workload,
        grown: &[(&ResourceName, u64)],
        before: &Amounts,
        capacity: &Capacity<'_>,
        team: &Team,
    ) {
        let usage = |(resource, amount): &(&ResourceName, u64)| {
            let (name, used) = (resource.as_str(), capacity.reserved().get(resource.as_str()));
            Usage {
                resource: (*resource).clone(),
                used,
                after: used.saturating_add(amount.saturating_sub(before.get(name))),
                class_after: *amount,
                person_after: None,
                person_class_after: None,
            }
        };
        let usages: Vec<Usage> = grown.iter().map(usage).collect();
        let limits = |resource: &ResourceName| limits(resource, capacity, team);
        let judged: Vec<Judged> = self.ask_for(facts, &usages, &limits);
        evaluation.judged.extend(judged);
        let lines = usages.into_iter().map(|usage| {
            let limits = limits(&usage.resource);
            super::quota_line(usage, limits)
        });
        evaluation.queued = lines.collect();
    }
}

/// Every accelerator, and what else the queue gives: without that, Kueue would say nothing of it either.
fn of_concern(most: &Amounts, team: &Team, capacity: &Capacity<'_>) -> Amounts {
    let given = capacity.resources();
    let mut asked = counted(most, team);
    for (resource, amount) in most.iter().filter(|(resource, _)| given.contains(resource)) {
        asked.set(resource.clone(), amount);
    }
    asked
}

/// The queue's, and the Team's own where it declares less.
fn limits(resource: &ResourceName, capacity: &Capacity<'_>, team: &Team) -> Limits {
    let (limit, ceiling) = (capacity.nominal(resource.as_str()), capacity.most(resource.as_str()));
    match team.declared(resource) {
        Some(declared) => Limits { limit: limit.min(declared.limit), ceiling: ceiling.min(declared.ceiling) },
        None => Limits { limit, ceiling },
    }
}

fn fits(
    facts: &Workload,
    resource: &ResourceName,
    queue: Option<&String>,
    capacity: &Capacity<'_>,
    team: &Team,
) -> Judging {
    let Bound::AtMost(most) = &facts.demand.ceiling else { return Ok(()) };
    let name = resource.as_str();
    let (amount, queue) = (most.get(name), queue.map_or("", String::as_str));
    let (how, hint) = as_it_asks(facts, resource, amount);
    let declared = team.declared(resource).filter(|declared| declared.ceiling < capacity.most(name));
    if let Some(declared) = declared.filter(|declared| amount > declared.ceiling) {
        return Err(cannot_fit(
            format!("{how}, and {} may never hold more than {}", team.name, declared.ceiling),
            hint,
        ));
    }
    if facts.queue_keys.contains(MIN_PARALLELISM) && capacity.most(name) > 0 {
        return Ok(());
    }
    if amount > capacity.most(name) {
        return Err(cannot_fit(format!("{how}, and {}", never_given(queue, resource, capacity)), hint));
    }
    // All pods of a template get one flavor, and a Job has one template.
    let whole = (facts.templates.len() == 1 && facts.is_one_pod_set).then_some(amount);
    let per_pod = facts.templates.iter().map(|template| template.per_pod.get(name)).max();
    let at_once = whole.or(per_pod).unwrap_or(0);
    match capacity.largest_flavor(name).filter(|(_, most)| at_once > *most) {
        Some(largest) => Err(cannot_fit(too_large_for_a_flavor(queue, resource, at_once, largest, capacity), hint)),
        None => Ok(()),
    }
}

fn waiting(queue: Option<&String>, capacity: &Capacity<'_>, why: &str) -> String {
    let queue = queue.map_or("", String::as_str);
    format!(
        "Kueue starts nothing of queue `{queue}` (ClusterQueue `{}`) at present: {why}. This waits until it does",
        capacity.cluster_queue()
    )
}
