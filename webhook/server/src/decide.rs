//! What the HTTP layer asks of whoever decides.

use axum::{body::Bytes, http::StatusCode};
use tokio::time::Instant;

/// Decides reviews. One value serves all requests at once.
pub trait Decide: Send + Sync + 'static {
    /// Decides one review; `body` is the request as it came.
    ///
    /// Runs as a task of its own: a panic becomes [`Refusal::Internal`], and a caller that hangs up does not stop it,
    /// so that a reservation is never left half made. At `deadline` it is dropped where it waits, and the answer is
    /// [`Refusal::TooLate`]; whoever reserves something stops before that.
    fn decide(&self, endpoint: Endpoint, body: Bytes, deadline: Instant) -> impl Future<Output = Answered> + Send;

    /// The answer when there is no decision. It carries the review's uid where that can still be read (an answer with
    /// another uid, or none, counts as a failed webhook); where it cannot, it is a sentence with an HTTP status.
    ///
    /// Quick and without waiting: it is called when time or capacity has run out.
    fn refuse(&self, endpoint: Endpoint, body: &[u8], why: Refusal) -> Answered;
}

/// The webhook that was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    Mutate,
    Validate,
}

impl Endpoint {
    pub const ALL: [Self; 2] = [Self::Mutate, Self::Validate];

    pub const fn path(self) -> &'static str {
        match self {
            Self::Mutate => "/mutate",
            Self::Validate => "/validate",
        }
    }
}

/// Why there is no decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The deadline passed. Trying again may help.
    TooLate,
    /// More reviews are being decided than the gate takes at once. Trying again helps.
    Overloaded,
    /// The decision cannot be recorded. Trying again helps once the log is written again.
    LogFull,
    /// A broken invariant of ours. Trying again does not help.
    Internal,
}

impl Refusal {
    pub const ALL: [Self; 4] = [Self::TooLate, Self::Overloaded, Self::LogFull, Self::Internal];
}

/// An answer, and the line that must be handed to the decision log before it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    pub status: StatusCode,
    pub content: Content,
    pub body: Vec<u8>,
    pub line: Line,
}

impl Answered {
    /// A serialised `AdmissionReview`, whatever its verdict: the API server reads only what comes with 200.
    pub fn review(body: Vec<u8>, line: Line) -> Self {
        Self { status: StatusCode::OK, content: Content::Json, body, line }
    }

    /// An answer to what is no review. The API server counts it as a failed call, and shows a plain sentence (and
    /// nothing else) to the person.
    pub fn sentence(status: StatusCode, sentence: impl Into<String>) -> Self {
        Self { status, content: Content::Text, body: sentence.into().into_bytes(), line: Line::None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Json,
    Text,
}

/// The decision-log line of an answer, and what the answer is worth without it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// Nothing was decided.
    None,
    /// With the queue full, the answer becomes [`Refusal::LogFull`]: governed writes.
    Required(String),
    /// With the queue full, the answer is sent all the same and the loss is counted: what must never be held up by a
    /// full disk, such as clean-up, and every refusal.
    Optional(String),
}
