//! Sentences: what a person reads, above all when the answer is no, and what the API server's audit log keeps.

use std::collections::BTreeMap;

use crate::amounts::ResourceName;
use crate::attribution::AttributionError;
use crate::facts::Workload;
use crate::queues::Capacity;
use crate::quota::{Ledger, Usage};
use crate::record::{Line, Revisions, Who};
use crate::review::Review;
use crate::team::Team;
use crate::verdict::{ReasonCode, Refusal, Verdict};

/// Told to whoever changed another person's work, once that is allowed.
pub(super) const REWRITTEN: &str = "You changed what another person's workload runs: from now on it is the team's, and \
                                    runs without their home and ids";

pub(super) fn over_ceiling(usage: &Usage, team: &Team) -> Refusal {
    let Usage { resource, used, after, .. } = usage;
    let limits = team.limits(resource);
    let requested = after.saturating_sub(*used);
    let borrowed = if limits.ceiling > limits.limit {
        format!(" (limit {}, the rest borrowed)", limits.limit)
    } else {
        String::new()
    };
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

/// How much a workload asks of a resource, and what its author could do about it.
pub(super) fn as_it_asks(facts: &Workload, resource: &ResourceName, amount: u64) -> (String, &'static str) {
    let floor = facts.demand.floor.get(resource.as_str());
    let grows = floor < amount && !facts.suspended && facts.demand.reserves;
    match grows {
        true => (
            format!("it starts with {floor} and may grow to {amount} {resource}"),
            "lower its maximum (maxReplicas, maxReplicaCount), which is what counts here",
        ),
        false => (format!("it asks for {amount} {resource}"), "ask for fewer"),
    }
}

/// What a queue could give at most, and where that comes from.
pub(super) fn never_given(queue: &str, resource: &ResourceName, capacity: &Capacity<'_>) -> String {
    let name = resource.as_str();
    let (nominal, most) = (capacity.nominal(name), capacity.most(name));
    let cluster_queue = capacity.cluster_queue();
    match (most, most.saturating_sub(nominal)) {
        (0, _) => format!("queue `{queue}` (ClusterQueue `{cluster_queue}`) has none of it"),
        (_, 0) => format!(
            "queue `{queue}` never gives more than {most} (ClusterQueue `{cluster_queue}`: nominal {nominal}, nothing to borrow)"
        ),
        (_, borrowed) => format!(
            "queue `{queue}` never gives more than {most} (ClusterQueue `{cluster_queue}`: nominal {nominal}, and {borrowed} to borrow)"
        ),
    }
}

/// Several flavors together would do, and one does not.
pub(super) fn too_large_for_a_flavor(
    queue: &str,
    resource: &ResourceName,
    asked: u64,
    (flavor, most): (&str, u64),
    capacity: &Capacity<'_>,
) -> String {
    format!(
        "its pods ask for {asked} {resource} of one kind of node, and queue `{queue}` (ClusterQueue `{}`) never gives more than \
         {most} of one (`{flavor}`)",
        capacity.cluster_queue()
    )
}

/// Who holds it: used, limit and the three largest holders, for each resource that was asked.
pub(super) fn held(usages: &[Usage], team: &Team, ledger: &Ledger) -> String {
    let describe = |usage: &Usage| {
        let resource = &usage.resource;
        let holders: Vec<String> = ledger
            .holders(resource.as_str())
            .into_iter()
            .take(3)
            .map(|(entry, amount)| {
                let person = entry.person.as_deref().map(|person| format!(" of {person}")).unwrap_or_default();
                format!("{} `{}`{person} {amount}", entry.kind, entry.name)
            })
            .collect();
        let limit = team.limits(resource).limit;
        let holders = if holders.is_empty() { String::new() } else { format!("; held by {}", holders.join(", ")) };
        format!(
            " ({resource}: {} used, {} asked, limit {limit}{holders})",
            usage.used,
            usage.after.saturating_sub(usage.used)
        )
    };
    usages.iter().map(describe).collect()
}

pub(super) fn malformed(problem: &str) -> Refusal {
    Refusal { reason: ReasonCode::Malformed, message: problem.to_owned(), hint: None, policy: None }
}

pub(super) fn refusal_of(error: &AttributionError) -> Refusal {
    let (reason, hint) = match error {
        AttributionError::Untrusted { username, .. } if username.starts_with("system:serviceaccount:") => (
            ReasonCode::UntrustedIdentity,
            "use a token that the API server issued to it: to impersonate it is not enough",
        ),
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
        AttributionError::ForeignStamp => {
            (ReasonCode::Stamp, "apply it again without the cedargate.dev annotations and labels")
        }
        AttributionError::ByStatus { .. } => {
            (ReasonCode::Stamp, "write the status alone, and change metadata of the object")
        }
        AttributionError::ControllerMade { .. } => (ReasonCode::ControllerMade, "change the object that owns it"),
        AttributionError::TooDeep => (ReasonCode::Unattributed, "the chain of owners is a loop or too long"),
    };
    Refusal { reason, message: error.to_string(), hint: Some(hint.to_owned()), policy: None }
}

pub(super) fn headline(review: &Review, who: &Who) -> String {
    let name = who.person.as_deref().or(who.session.as_deref()).unwrap_or(&who.name);
    let team = match &who.team {
        Some(team) => format!(" of {team}"),
        // It never came to whose work it is.
        None if who.origin.is_none() => String::new(),
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
pub(super) fn audit(
    who: &Who,
    verdict: &Verdict,
    questions: &[Line],
    revisions: &Revisions,
) -> BTreeMap<String, String> {
    let mut audit = BTreeMap::from([
        (
            "verdict".to_owned(),
            match verdict {
                Verdict::Allow => "allow",
                Verdict::Deny { .. } => "deny",
                Verdict::RetryLater { .. } => "retry-later",
            }
            .to_owned(),
        ),
        ("principal".to_owned(), who.name.clone()),
        ("policies-revision".to_owned(), revisions.policies.clone()),
    ]);
    let optional = [("person", &who.person), ("team", &who.team)];
    audit.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?))));
    let mut refusing: Vec<&str> = questions
        .iter()
        .filter(|line| !line.allowed)
        .flat_map(|line| line.policies.iter().map(String::as_str))
        .collect();
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
