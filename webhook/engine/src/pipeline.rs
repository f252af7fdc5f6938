//! The pipeline on one screen, and its steps below.
//!
//! [`evaluate`] does everything that does not depend on the ledger. [`Evaluation::consume`] asks for accelerators with one
//! copy of the ledger; the caller repeats it with a fresh copy when it lost the race. [`Evaluation::conclude`] makes the
//! answer and its record.

mod ask;
mod complete;
mod queued;
mod reserve;
mod step;
mod words;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::amounts::{ResourceName, is_accelerator};
use crate::attribution::{Attribution, AttributionError, Note, Phase, Principal, Root, attribute};
use crate::cluster::{Meta, OwnerReference};
use crate::facts::Workload;
use crate::identity::{Caller, identify};
use crate::json;
use crate::judge::Judged;
use crate::patch::Operation as PatchOperation;
use crate::quota::{Balance, Ledger, Reservation, Usage};
use crate::record::{Line, QuotaLine, Record, Revisions, RootLine, Who};
use crate::review::Review;
use crate::snapshot::Snapshot;
use crate::stamp;
use crate::team::{Limits, Team};
use crate::verdict::{Answer, ReasonCode, Refusal, Verdict};
use crate::vocabulary::Origin;
pub(crate) use reserve::counted;
use step::Step;
use words::{REWRITTEN, audit, headline, held, over_ceiling, refusal_of};

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
    /// In `kueue` mode: what is asked of the queue, for the record.
    pub queued: Vec<QuotaLine>,
    /// An owner that one quorum GET may still find; then the evaluation is worth repeating.
    pub missing_owner: Option<OwnerReference>,
    revisions: Revisions,
}

/// One try at the ledger.
#[derive(Debug, Clone, Default)]
pub struct Consumption {
    pub judged: Vec<Judged>,
    pub refusals: Vec<Refusal>,
    pub usage: Vec<QuotaLine>,
}

impl Consumption {
    pub fn is_permitted(&self) -> bool {
        self.refusals.is_empty()
    }
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
            queued: Vec::new(),
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

    /// Asks for the accelerators with this balance.
    pub fn consume(&self, review: &Review, snapshot: &Snapshot, balance: &Balance) -> Consumption {
        let (Some(reservation), Some(team), Some(attribution)) = (&self.reservation, &self.team, &self.attribution)
        else {
            return Consumption::default();
        };
        let counts = |resource: &ResourceName| is_accelerator(resource.as_str()) || team.lists(resource);
        let usages = balance.growth(reservation, counts);
        let step = Step { review, snapshot, team: self.team.clone(), attribution, now: self.now };
        let judged = match &self.workload {
            Some(workload) => step.ask_for(workload, &usages, &|resource| team.limits(resource)),
            None => Vec::new(),
        };
        let mut refusals: Vec<Refusal> = usages
            .iter()
            .filter(|usage| usage.after > team.limits(&usage.resource).ceiling)
            .map(|usage| over_ceiling(usage, team))
            .collect();
        // The ceiling's sentence says more than the policy's; a policy that is tighter than it speaks for itself.
        if refusals.is_empty() {
            refusals = judged.iter().flat_map(Judged::refusals).collect();
        }
        for refusal in &mut refusals {
            refusal.message.push_str(&held(&usages, team, balance.ledger()));
        }
        let lines = usages.into_iter().map(|usage| {
            let limits = team.limits(&usage.resource);
            quota_line(usage, limits)
        });
        let usage = lines.collect();
        Consumption { judged, refusals, usage }
    }

    /// Asks for the accelerators where nobody else can ask at the same time, and enters them if they are permitted.
    pub fn consume_alone(&self, review: &Review, snapshot: &Snapshot, ledger: &mut Ledger) -> Consumption {
        let balance = Balance::from(ledger.clone());
        let consumption = self.consume(review, snapshot, &balance);
        if let (Some(reservation), true, false) = (&self.reservation, consumption.is_permitted(), review.dry_run) {
            ledger.add(reservation);
        }
        consumption
    }

    /// The answer and its record. `consumption` is the last try at the ledger, if there was one.
    pub fn conclude(self, review: &Review, consumption: Option<Consumption>) -> (Answer, Record) {
        let (judged, refused, usage) = match consumption {
            Some(Consumption { judged, refusals, usage, .. }) => (judged, refusals, usage),
            None => (Vec::new(), Vec::new(), self.queued.clone()),
        };
        let mut refusals = self.refusals.clone();
        refusals.extend(refused);
        let verdict = if refusals.is_empty() { Verdict::Allow } else { Verdict::Deny { refusals } };
        self.answer(review, verdict, &judged, usage)
    }

    /// The answer when the ledger could not be written in time: never an allow. A person's client comes again `after` that.
    pub fn retry_later(self, review: &Review, reason: ReasonCode, message: &str, after: Duration) -> (Answer, Record) {
        // A controller's client would sleep in a worker that serves the whole cluster.
        let retry_after_seconds = match &self.caller {
            Caller::Component(_) | Caller::Node { .. } => None,
            Caller::Iam(_)
            | Caller::PodToken { .. }
            | Caller::ServiceAccount { .. }
            | Caller::Stranger { .. }
            | Caller::Untrusted { .. } => Some(u32::try_from(after.as_secs().max(1)).unwrap_or(u32::MAX)),
        };
        let verdict = Verdict::RetryLater { reason, message: message.to_owned(), retry_after_seconds };
        self.answer(review, verdict, &[], Vec::new())
    }

    fn answer(self, review: &Review, verdict: Verdict, consumed: &[Judged], quota: Vec<QuotaLine>) -> (Answer, Record) {
        let mut warnings = self.warnings.clone();
        warnings.extend(consumed.iter().flat_map(Judged::warnings));
        let who = self.who(review);
        let allowed = verdict == Verdict::Allow;
        let notes = self.attribution.as_ref().map(|attribution| attribution.notes.as_slice()).unwrap_or_default();
        if allowed && self.phase == Phase::Validate && notes.contains(&Note::Rewritten) {
            warnings.push(REWRITTEN.to_owned());
        }
        let questions: Vec<Line> = self.judged.iter().chain(consumed).map(Line::of).collect();
        let answer = Answer {
            uid: review.uid.clone(),
            headline: headline(review, &who),
            verdict: verdict.clone(),
            warnings: warnings.clone(),
            patch: if allowed { self.patch.clone() } else { Vec::new() },
            audit: match (allowed, self.phase) {
                // The decision that counts is still to come, and the API server keeps the first word under a key.
                (true, Phase::Mutate) => BTreeMap::new(),
                (true, Phase::Validate) | (false, _) => audit(&who, &verdict, &questions, &self.revisions),
            },
        };
        let record = Record {
            endpoint: match self.phase {
                Phase::Mutate => "mutate",
                Phase::Validate => "validate",
            },
            who,
            root: self.root(),
            reason: self.reason(review),
            questions,
            notes: self.attribution.as_ref().map(|attribution| attribution.notes.clone()).unwrap_or_default(),
            injected: answer.patch.iter().map(|operation| operation.path().to_owned()).collect(),
            quota,
            warnings,
            ..Record::unjudged(
                Some(review),
                &review.uid,
                "",
                verdict,
                answer.message(),
                self.now,
                self.revisions.clone(),
            )
        };
        (answer, record)
    }

    fn root(&self) -> Option<RootLine> {
        let Root::Stored(root) = &self.attribution.as_ref()?.root else { return None };
        let Meta { kind, name, uid, .. } = &root.meta;
        Some(RootLine { kind: kind.clone(), name: name.clone(), uid: uid.clone() })
    }

    fn reason(&self, review: &Review) -> Option<String> {
        let object = match &self.attribution.as_ref()?.root {
            Root::Itself => review.subject()?,
            Root::Stored(root) => &root.object,
        };
        let reason = json::text(object, &["metadata", "annotations", stamp::REASON])?;
        Some(reason.chars().take(REASON_CHARACTERS).collect())
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
            Some(Principal::ServiceAccount { .. } | Principal::Component { .. } | Principal::Stranger { .. })
            | None => None,
        };
        let origin = self.attribution.as_ref().map(|attribution| attribution.user_origin);
        // What a controller makes is the submitter's; what it keeps going, it does itself.
        let walked = self.attribution.as_ref().is_some_and(|attribution| {
            attribution.actor_origin == Origin::Controller && matches!(attribution.actor, Principal::Submitter(_))
        });
        Who {
            name,
            session,
            submitter: submitter.map(|submitter| submitter.name.clone()),
            person: submitter.and_then(|submitter| submitter.person.clone()),
            team: submitter.map(|submitter| submitter.team.clone()),
            namespace_team: self.team.as_ref().map(|team| team.name.clone()),
            established: if walked { "owner-walk" } else { established },
            origin,
        }
    }
}

/// Who says more writes a ticket.
const REASON_CHARACTERS: usize = 256;

fn quota_line(usage: Usage, limits: Limits) -> QuotaLine {
    QuotaLine { requested: usage.after.saturating_sub(usage.used), limit: limits.limit, ceiling: limits.ceiling, usage }
}

/// Digests of what the snapshot holds.
pub fn revisions(snapshot: &Snapshot) -> Revisions {
    Revisions {
        policies: snapshot.policies.revision().to_owned(),
        teams: snapshot.teams.revision().to_owned(),
        schema: snapshot.policies.schema_revision().to_owned(),
    }
}
