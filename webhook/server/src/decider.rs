//! The engine behind the HTTP layer: read, evaluate on one snapshot, hold what must be held, answer with its record.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::body::Bytes;
use axum::http::StatusCode;
use engine::attribution::Phase;
use engine::pipeline::{self, Evaluation};
use engine::record::{Record, Took};
use engine::review::{Review, ReviewError};
use engine::snapshot::Snapshot;
use engine::verdict::{Answer, ReasonCode};
use tokio::time::Instant;

use crate::cluster::lookup::{self, Lookup};
use crate::cluster::team_write::judge_team_write;
use crate::decide::{Answered, Decide, Endpoint, Line, Refusal};
use crate::ledger::{LedgerStore, Swap};
use crate::metrics::Metrics;

/// Decides with the engine.
#[derive(Debug)]
pub struct Decider<L> {
    snapshot: Arc<ArcSwap<Snapshot>>,
    ledgers: Arc<L>,
    lookup: Option<Arc<dyn Lookup>>,
    metrics: Option<Metrics>,
}

/// What is left of the time when the ledger is given up: enough to answer and to write the record.
const ANSWER_IN: Duration = Duration::from_millis(200);

/// Owners between a pod and its root that may all be too new to be known here. Each is asked for once.
const MAX_LOOKUPS: usize = 4;

impl<L: LedgerStore> Decider<L> {
    pub fn new(snapshot: Arc<ArcSwap<Snapshot>>, ledgers: Arc<L>) -> Self {
        Self { snapshot, ledgers, lookup: None, metrics: None }
    }

    /// Asks there for an owner or a target that the snapshot does not hold.
    pub fn with_lookup(self, lookup: Arc<dyn Lookup>) -> Self {
        Self { lookup: Some(lookup), ..self }
    }

    /// Counts what is decided.
    pub fn with_metrics(self, metrics: Metrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    fn count(&self, record: &Record, started: Instant) {
        if let Some(metrics) = &self.metrics {
            metrics.decided(record, started.elapsed());
        }
    }

    async fn judged(&self, review: &Review, phase: Phase, deadline: Instant) -> (Answer, Record) {
        // One snapshot to the end: a policy swap in the middle of a review must not mix two sets.
        let snapshot = self.snapshot.load_full();
        let started = Instant::now();
        let (evaluation, snapshot) = match self.evaluated(review, phase, snapshot, deadline).await {
            Evaluated::Final(evaluation, snapshot) => (evaluation, snapshot),
            Evaluated::Unknown(evaluation, message) => {
                return evaluation.retry_later(review, ReasonCode::Unattributed, &message);
            }
        };
        let evaluated = Instant::now();
        let (answer, record) = match phase {
            Phase::Validate if evaluation.reservation.is_some() && !evaluation.is_refused() => {
                self.reserve(review, evaluation, &snapshot, deadline).await
            }
            Phase::Mutate | Phase::Validate => evaluation.conclude(review, None),
        };
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let took = Took { evaluate_micros: micros(evaluated - started), reserve_micros: micros(evaluated.elapsed()) };
        (answer, Record { took: Some(took), ..record })
    }

    /// Evaluates, and once more with each object that was missing.
    async fn evaluated(
        &self,
        review: &Review,
        phase: Phase,
        mut snapshot: Arc<Snapshot>,
        deadline: Instant,
    ) -> Evaluated {
        let mut asked = BTreeSet::new();
        loop {
            let mut evaluation = pipeline::evaluate(review, phase, &snapshot, jiff::Timestamp::now());
            if phase == Phase::Validate {
                judge_team_write(review, &snapshot, &mut evaluation);
            }
            let Some(lookup) = self.lookup.as_ref().filter(|_| asked.len() < MAX_LOOKUPS) else {
                return Evaluated::Final(evaluation, snapshot);
            };
            let wanted = lookup::wanted(review, &evaluation, &snapshot).filter(|wanted| asked.insert(wanted.clone()));
            let Some(wanted) = wanted else { return Evaluated::Final(evaluation, snapshot) };
            match tokio::time::timeout_at(deadline - ANSWER_IN, lookup.fetch(&wanted)).await {
                Ok(Ok(Some(object))) => snapshot = Arc::new(lookup::with(&snapshot, object)),
                Ok(Ok(None)) => return Evaluated::Final(evaluation, snapshot),
                Ok(Err(error)) => return Evaluated::Unknown(evaluation, unknown(&wanted.name, &error.to_string())),
                Err(_) => return Evaluated::Unknown(evaluation, unknown(&wanted.name, "no time is left")),
            }
        }
    }

    /// The compare-and-swap loop. Policies are asked inside it, so that what they see of the usage is exact.
    async fn reserve(
        &self,
        review: &Review,
        evaluation: Evaluation,
        snapshot: &Snapshot,
        deadline: Instant,
    ) -> (Answer, Record) {
        let Some(team) = evaluation.team.clone() else { return evaluation.conclude(review, None) };
        while Instant::now() + ANSWER_IN < deadline {
            let Ok(before) = self.ledgers.load(&team.name).await else { break };
            let consumption = evaluation.consume(review, snapshot, &before.ledger);
            let nothing_to_write =
                review.dry_run || !consumption.refusals.is_empty() || consumption.ledger == before.ledger;
            if nothing_to_write {
                return evaluation.conclude(review, Some(consumption));
            }
            match self.ledgers.swap(&team.name, before.version, consumption.ledger.clone()).await {
                Ok(Swap::Done) => return evaluation.conclude(review, Some(consumption)),
                Ok(Swap::Lost) => tokio::task::yield_now().await,
                Err(_) => break,
            }
        }
        let message = format!("the ledger of {} is busy; try again in a moment", team.name);
        evaluation.retry_later(review, ReasonCode::LedgerBusy, &message)
    }

    fn unjudged(&self, uid: &str, review: Option<&Review>, endpoint: Endpoint, answer: Answer) -> Answered {
        let snapshot = self.snapshot.load();
        let record = Record::unjudged(
            review,
            uid,
            name_of(endpoint),
            answer.verdict.clone(),
            answer.message(),
            jiff::Timestamp::now(),
            pipeline::revisions(&snapshot),
        );
        self.count(&record, Instant::now());
        Answered::review(body(&answer), Line::Optional(record.line()))
    }
}

/// What became of an evaluation that may have had to ask the API server.
enum Evaluated {
    /// With the snapshot that it was made on.
    Final(Evaluation, Arc<Snapshot>),
    /// Nobody knows what is missing: not now, and why.
    Unknown(Evaluation, String),
}

fn unknown(name: &str, why: &str) -> String {
    format!("whether `{name}` exists cannot be found out now ({why}); try again in a moment")
}

impl<L: LedgerStore> Decide for Decider<L> {
    async fn decide(&self, endpoint: Endpoint, body_of_request: Bytes, deadline: Instant) -> Answered {
        let started = Instant::now();
        let review = match Review::parse(&body_of_request) {
            Ok(review) => review,
            Err(ReviewError::Unanswerable(sentence)) => return Answered::sentence(StatusCode::BAD_REQUEST, sentence),
            Err(ReviewError::Malformed { uid, problem }) => {
                let answer = Answer::refusal(&uid, ReasonCode::Malformed, problem);
                return self.unjudged(&uid, None, endpoint, answer);
            }
        };
        let phase = match endpoint {
            Endpoint::Mutate => Phase::Mutate,
            Endpoint::Validate => Phase::Validate,
        };
        let (answer, record) = self.judged(&review, phase, deadline).await;
        self.count(&record, started);
        Answered::review(body(&answer), line(&answer, &record))
    }

    fn refuse(&self, endpoint: Endpoint, body_of_request: &[u8], why: Refusal) -> Answered {
        let (reason, message, retry) = match why {
            Refusal::TooLate => (ReasonCode::TooLate, "the gate could not decide in time; try again", Some(1)),
            Refusal::Overloaded => (ReasonCode::Overloaded, "the gate has too much to do; try again", Some(1)),
            Refusal::LogFull => (ReasonCode::LogFull, "the decision cannot be recorded now; try again", Some(1)),
            Refusal::Internal => (ReasonCode::Internal, "the gate failed; tell the platform team", None),
        };
        let Some(uid) = Review::parse_uid(body_of_request) else {
            return Answered::sentence(StatusCode::SERVICE_UNAVAILABLE, message);
        };
        let answer = match why {
            Refusal::TooLate | Refusal::Overloaded | Refusal::LogFull => Answer::retry(&uid, reason, message, retry),
            Refusal::Internal => Answer::refusal(&uid, reason, message.to_owned()),
        };
        self.unjudged(&uid, None, endpoint, answer)
    }
}

const fn name_of(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Mutate => "mutate",
        Endpoint::Validate => "validate",
    }
}

fn body(answer: &Answer) -> Vec<u8> {
    answer.response().to_string().into_bytes()
}

/// A governed write is worth nothing without its line. What the cluster's own parts do must not wait for a full disk.
fn line(answer: &Answer, record: &Record) -> Line {
    let governed = record.who.namespace_team.is_some() && answer.is_allowed();
    if governed && !record.who.is_of_the_cluster() {
        Line::Required(record.line())
    } else {
        Line::Optional(record.line())
    }
}

#[cfg(test)]
mod tests;
