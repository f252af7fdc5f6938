//! The engine behind the HTTP layer: read, evaluate on one snapshot, hold what must be held, answer with its record.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::body::Bytes;
use axum::http::StatusCode;
use engine::attribution::Phase;
use engine::pipeline::{self, Consumption, Evaluation};
use engine::record::{Record, Took};
use engine::review::{Review, ReviewError};
use engine::snapshot::Snapshot;
use engine::verdict::{Answer, ReasonCode};
use tokio::time::Instant;

use crate::cluster::lookup::{self, Lookup};
use crate::cluster::team_write::judge_team_write;
use crate::decide::{Answered, Decide, Endpoint, Line, Refusal};
use crate::ledger::{Ask, LedgerStore, Ledgers, Told};
use crate::metrics::Metrics;

/// Decides with the engine.
#[derive(Debug)]
pub struct Decider<L> {
    snapshot: Arc<ArcSwap<Snapshot>>,
    ledgers: Arc<Ledgers<L>>,
    lookup: Option<Arc<dyn Lookup>>,
    metrics: Option<Metrics>,
    time: Option<jiff::Timestamp>,
}

/// What is left of the time when the ledger is given up: enough to answer and to write the record.
const ANSWER_IN: Duration = Duration::from_millis(200);

/// When a person's client is to come again.
const PROMPTLY: Duration = Duration::from_secs(1);

/// kubectl comes again ten times at most, and says nothing meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// How often to look for the policies or the Team that another replica has already.
const BEHIND_FOR: Duration = Duration::from_millis(100);

/// A Team comes by its watch within this; policies may take kubelet a minute, and nobody is kept that long.
const BEHIND_AT_MOST: Duration = Duration::from_secs(2);

/// Owners between a pod and its root that may all be too new to be known here. Each is asked for once.
const MAX_LOOKUPS: usize = 4;

impl<L: LedgerStore> Decider<L> {
    pub fn new(snapshot: Arc<ArcSwap<Snapshot>>, ledgers: Arc<L>) -> Self {
        let ledgers = Arc::new(Ledgers::new(ledgers, Arc::clone(&snapshot)));
        Self { snapshot, ledgers, lookup: None, metrics: None, time: None }
    }

    /// Who reserves.
    pub fn ledgers(&self) -> Arc<Ledgers<L>> {
        Arc::clone(&self.ledgers)
    }

    /// Asks there for an owner or a target that the snapshot does not hold.
    pub fn with_lookup(self, lookup: Arc<dyn Lookup>) -> Self {
        self.ledgers.look_up_in(Arc::clone(&lookup));
        Self { lookup: Some(lookup), ..self }
    }

    /// Counts what is decided.
    pub fn with_metrics(self, metrics: Metrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Stops the clock, for tests of what hangs on the hour; `None` lets it go on.
    pub fn set_time(&mut self, time: Option<jiff::Timestamp>) {
        self.time = time;
    }

    fn now(&self) -> jiff::Timestamp {
        self.time.unwrap_or_else(jiff::Timestamp::now)
    }

    fn count(&self, record: &Record, started: Instant) {
        if let Some(metrics) = &self.metrics {
            metrics.decided(record, started.elapsed());
        }
    }

    async fn judged(&self, review: Review, phase: Phase, deadline: Instant) -> (Answer, Record) {
        let (review, began) = (Arc::new(review), Instant::now());
        let mut spent = Spent::default();
        loop {
            // One snapshot to the end: a policy swap in the middle of a review must not mix two sets.
            let snapshot = self.snapshot.load_full();
            let from = Instant::now();
            let evaluated = self.evaluated(&review, phase, snapshot, deadline).await;
            spent.evaluating += from.elapsed();
            let (evaluation, snapshot) = match evaluated {
                Evaluated::Final(evaluation, snapshot) => (Arc::new(evaluation), snapshot),
                Evaluated::Unknown(evaluation, message) => {
                    return evaluation.retry_later(&review, ReasonCode::Unattributed, &message, PROMPTLY);
                }
            };
            let from = Instant::now();
            let reserved = self.reserved(&review, phase, &evaluation, snapshot, deadline).await;
            spent.reserving += from.elapsed();
            let evaluation = Arc::unwrap_or_clone(evaluation);
            let (answer, record) = match reserved {
                Reserved::Concluded(consumption) => evaluation.conclude(&review, consumption),
                Reserved::Later { message, after } => {
                    evaluation.retry_later(&review, ReasonCode::LedgerBusy, &message, after)
                }
                Reserved::Behind if began.elapsed() < BEHIND_AT_MOST && Instant::now() < deadline - ANSWER_IN => {
                    tokio::time::sleep(BEHIND_FOR).await;
                    continue;
                }
                Reserved::Behind => {
                    let message = "another replica of the gate knows newer policies; try again in a moment";
                    evaluation.retry_later(&review, ReasonCode::LedgerBusy, message, PROMPTLY)
                }
            };
            return (answer, Record { took: Some(spent.took()), ..record });
        }
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
            let mut evaluation = pipeline::evaluate(review, phase, &snapshot, self.now());
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

    /// Reserves what `/validate` must hold before it may allow. Policies are asked by whoever writes the ledger, so that what
    /// they see of the usage is exact.
    async fn reserved(
        &self,
        review: &Arc<Review>,
        phase: Phase,
        evaluation: &Arc<Evaluation>,
        snapshot: Arc<Snapshot>,
        deadline: Instant,
    ) -> Reserved {
        let needs = phase == Phase::Validate && evaluation.reservation.is_some() && !evaluation.is_refused();
        let Some(team) = evaluation.team.clone().filter(|_| needs) else { return Reserved::Concluded(None) };
        let name = team.name.clone();
        let (review, evaluation) = (Arc::clone(review), Arc::clone(evaluation));
        let ask = Ask { review, evaluation, snapshot, team, deadline: deadline - ANSWER_IN };
        match self.ledgers.reserve(ask).await {
            Told::Held(consumption) | Told::Refused(consumption) => Reserved::Concluded(Some(consumption)),
            Told::Behind => Reserved::Behind,
            Told::Settling(left) => Reserved::Later {
                message: format!(
                    "the ledger of {name} was lost and is made anew, which takes {} more seconds; try again then",
                    left.as_secs().max(1)
                ),
                after: left.clamp(PROMPTLY, LONGEST_WAIT),
            },
            Told::Busy(why) => Reserved::Later {
                message: format!("the ledger of {name} is busy ({why}); try again in a moment"),
                after: PROMPTLY,
            },
        }
    }

    fn unjudged(&self, uid: &str, review: Option<&Review>, endpoint: Endpoint, answer: Answer) -> Answered {
        let snapshot = self.snapshot.load();
        let record = Record::unjudged(
            review,
            uid,
            name_of(endpoint),
            answer.verdict.clone(),
            answer.message(),
            self.now(),
            pipeline::revisions(&snapshot),
        );
        self.count(&record, Instant::now());
        Answered::review(body(&answer), Line::Optional(record.line()))
    }
}

/// Whether what must be held is held.
enum Reserved {
    /// Nothing had to be, or it was decided.
    Concluded(Option<Consumption>),
    Later {
        message: String,
        after: Duration,
    },
    /// By newer policies than these.
    Behind,
}

/// Where the time went.
#[derive(Default)]
struct Spent {
    evaluating: Duration,
    reserving: Duration,
}

impl Spent {
    fn took(&self) -> Took {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Took { evaluate_micros: micros(self.evaluating), reserve_micros: micros(self.reserving) }
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
        let (answer, record) = self.judged(review, phase, deadline).await;
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
