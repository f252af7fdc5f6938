//! Routes a request to a decision and its answer to the decision log, within bounds of time and number.
//!
//! Whatever goes wrong on the way has an answer here: the HTTP layer never drops a request that it has read.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::{
    Answered, Decide, DecisionLog, Endpoint, Line, Readiness, Refusal,
    body::{self, Held, Unread},
    deadline::{self, deadline},
    decide::Content,
    metrics::Metrics,
};

/// How many reviews are decided at once. A decision takes a fraction of a millisecond of processor time; most of those
/// at once wait for the ledger, some tens of milliseconds each, so this is thousands of reviews a second.
pub const CONCURRENT_DECISIONS: usize = 128;

/// How long a review waits for its turn. Longer, and the queue only grows: better to answer "try again" while there
/// is time for it.
pub const TURN_WAIT: Duration = Duration::from_secs(1);

/// The bounds of a request. [`Default`] gives the constants of this crate, each with its reason.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub timeout: Duration,
    pub answer_margin: Duration,
    pub concurrent_decisions: usize,
    pub turn_wait: Duration,
    pub body_bytes: usize,
    pub bodies_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: deadline::DEFAULT_TIMEOUT,
            answer_margin: deadline::ANSWER_MARGIN,
            concurrent_decisions: CONCURRENT_DECISIONS,
            turn_wait: TURN_WAIT,
            body_bytes: body::BODY_LIMIT_BYTES,
            bodies_bytes: body::BODIES_LIMIT_BYTES,
        }
    }
}

/// A decider behind its bounds, with the log it answers to.
pub struct Gate<D> {
    decider: Arc<D>,
    log: Option<DecisionLog>,
    readiness: Readiness,
    limits: Limits,
    turns: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    metrics: Option<Metrics>,
}

/// OpenMetrics, as Prometheus asks for it.
fn told(metrics: &Metrics) -> Response {
    match metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(_) => sentence(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written"),
    }
}

impl<D: Decide> Gate<D> {
    /// Without a log (a demonstration, a test), lines are dropped.
    pub fn new(decider: Arc<D>, log: Option<DecisionLog>, readiness: Readiness, limits: Limits) -> Self {
        let turns = Arc::new(Semaphore::new(limits.concurrent_decisions));
        let memory = Arc::new(Semaphore::new(limits.bodies_bytes));
        Self { decider, log, readiness, limits, turns, memory, metrics: None }
    }

    /// Serves these at `/metrics`.
    pub fn with_metrics(self, metrics: Metrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Everything that is served.
    pub fn router(self) -> Router {
        let mut router = Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(|State(gate): State<Arc<Self>>| async move { readyz(&gate.readiness) }));
        if let Some(metrics) = self.metrics.clone() {
            router = router.route("/metrics", get(move || async move { told(&metrics) }));
        }
        for endpoint in Endpoint::ALL {
            let review = move |State(gate): State<Arc<Self>>, request: Request| async move {
                gate.review(endpoint, request).await
            };
            router = router.route(endpoint.path(), post(review));
        }
        router.fallback(not_found).method_not_allowed_fallback(not_allowed).with_state(Arc::new(self))
    }

    async fn review(self: Arc<Self>, endpoint: Endpoint, request: Request) -> Response {
        let arrived = Instant::now();
        if !is_json(&request) {
            return unsupported_media_type();
        }
        let Limits { timeout, answer_margin, body_bytes, .. } = self.limits;
        let deadline = deadline(arrived, request.uri().query(), timeout, answer_margin);
        match body::read(request.into_body(), body_bytes, &self.memory, deadline).await {
            Ok(held) => {
                // A task, so that a caller who hangs up leaves no decision without its line.
                let answering = tokio::spawn(async move { self.answer(endpoint, held, deadline).await });
                respond(answering.await.unwrap_or_else(|_panicked| broken()))
            }
            Err(Unread::Overloaded) => {
                let refused = self.refuse(endpoint, &[], Refusal::Overloaded);
                respond(self.record(endpoint, &[], refused))
            }
            Err(Unread::TooLarge) => too_large(body_bytes),
            Err(Unread::TooLate) => sentence(StatusCode::REQUEST_TIMEOUT, "the review did not arrive in time"),
            Err(Unread::Broken) => sentence(StatusCode::BAD_REQUEST, "the review broke off"),
        }
    }

    async fn answer(&self, endpoint: Endpoint, held: Held, deadline: Instant) -> Answered {
        let bytes = held.bytes.clone();
        let answered = match self.decide(endpoint, held, deadline).await {
            Ok(answered) => answered,
            Err(why) => self.refuse(endpoint, &bytes, why),
        };
        self.record(endpoint, &bytes, answered)
    }

    /// The decision is a task of its own, so that its panic ends there, its lateness is noticed even while it
    /// computes, and a caller that hangs up does not stop it halfway. It keeps its turn until it has really ended.
    async fn decide(&self, endpoint: Endpoint, held: Held, deadline: Instant) -> Result<Answered, Refusal> {
        let turn = timeout_at(deadline.min(Instant::now() + self.limits.turn_wait), self.turns.clone().acquire_owned());
        let Ok(Ok(turn)) = turn.await else {
            return Err(Refusal::Overloaded);
        };
        let Held { bytes, share } = held;
        let decider = Arc::clone(&self.decider);
        let task = tokio::spawn(async move {
            let _held = (turn, share);
            timeout_at(deadline, decider.decide(endpoint, bytes, deadline)).await
        });
        match timeout_at(deadline, task).await {
            Ok(Ok(Ok(answered))) => Ok(answered),
            Ok(Ok(Err(_late))) | Err(_late) => Err(Refusal::TooLate),
            Ok(Err(_panicked)) => Err(Refusal::Internal),
        }
    }

    /// Hands the line to the writer; only then may the answer go out.
    fn record(&self, endpoint: Endpoint, body: &[u8], mut answered: Answered) -> Answered {
        let Some(log) = &self.log else {
            return answered;
        };
        match std::mem::replace(&mut answered.line, Line::None) {
            Line::None => answered,
            Line::Required(line) => match log.try_write(line) {
                Ok(()) => answered,
                Err(_full) => self.refuse(endpoint, body, Refusal::LogFull),
            },
            Line::Optional(line) => {
                // The log counts what it could not take.
                let _ = log.try_write(line);
                answered
            }
        }
    }

    /// Even what refuses may have a fault. The panic hook has said where; the caller learns that it was ours.
    fn refuse(&self, endpoint: Endpoint, body: &[u8], why: Refusal) -> Answered {
        let endpoint_path = endpoint.path();
        match why {
            Refusal::Internal => tracing::error!(endpoint_path, "the decision panicked"),
            // Thousands a second when there is too much to do; the decision log has them, and metrics will.
            Refusal::TooLate | Refusal::Overloaded | Refusal::LogFull => {
                tracing::debug!(endpoint_path, ?why, "review refused without a decision");
            }
        }
        catch_unwind(AssertUnwindSafe(|| self.decider.refuse(endpoint, body, why))).unwrap_or_else(|_panicked| broken())
    }
}

impl<D> fmt::Debug for Gate<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decider: _, log, readiness, limits, turns, memory, metrics: _ } = self;
        f.debug_struct("Gate")
            .field("log", log)
            .field("readiness", readiness)
            .field("limits", limits)
            .field("free_turns", &turns.available_permits())
            .field("free_bytes", &memory.available_permits())
            .finish_non_exhaustive()
    }
}

fn broken() -> Answered {
    Answered::sentence(StatusCode::INTERNAL_SERVER_ERROR, "the admission webhook failed to answer")
}

fn is_json(request: &Request) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.and_then(|value| value.split(';').next());
    media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

fn respond(answered: Answered) -> Response {
    let Answered { status, content, body, line: _ } = answered;
    let content_type = match content {
        Content::Json => "application/json",
        Content::Text => "text/plain; charset=utf-8",
    };
    let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static(content_type))];
    (status, content_type, Bytes::from(body)).into_response()
}

/// `text/plain`: the API server shows the body of a failed call to the person only if it is text.
fn sentence(status: StatusCode, sentence: impl Into<String>) -> Response {
    respond(Answered::sentence(status, sentence))
}

fn too_large(limit_bytes: usize) -> Response {
    let limit = format!("the review is larger than the {limit_bytes} bytes that are read");
    sentence(StatusCode::PAYLOAD_TOO_LARGE, limit)
}

fn unsupported_media_type() -> Response {
    sentence(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a review is sent with content type `application/json`")
}

fn readyz(readiness: &Readiness) -> Response {
    let report = readiness.report();
    let status = if report.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    sentence(status, report.to_string())
}

async fn not_found(request: Request) -> Response {
    let path = request.uri().path();
    sentence(StatusCode::NOT_FOUND, format!("nothing is served at `{path}`"))
}

async fn not_allowed(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    sentence(StatusCode::METHOD_NOT_ALLOWED, format!("`{path}` does not answer {method}"))
}
