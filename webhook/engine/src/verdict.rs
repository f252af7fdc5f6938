//! The answer, and the one function that makes a response of it.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde::Serialize;
use serde_json::{Value, json};

use crate::patch::Operation;
use crate::review::API_VERSION;

/// What the gate says.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    Allow,
    /// No, and the same request will get the same answer.
    Deny {
        refusals: Vec<Refusal>,
    },
    /// Not now: HTTP 429. With `retry_after_seconds` client-go repeats it for a person; controllers get it without, since
    /// their client would sleep in a worker that serves the whole cluster, and use their own back-off.
    RetryLater {
        reason: ReasonCode,
        message: String,
        retry_after_seconds: Option<u32>,
    },
}

/// One reason for a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    pub reason: ReasonCode,
    /// What was asked, and why not.
    pub message: String,
    /// What to do instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Id of the policy that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// Closed and stable: dashboards and tests name these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReasonCode {
    /// The review or the object cannot be read.
    Malformed,
    /// The identity contradicts itself.
    UntrustedIdentity,
    /// A `forbid` refuses.
    Forbidden,
    /// No `permit` allows.
    NotPermitted,
    /// A `forbid` failed to evaluate, or a question could not be asked.
    PolicyFault,
    /// Over the limit or the ceiling.
    Quota,
    /// The most it may grow to can never fit.
    CannotFit,
    /// Nobody knows whose work it is.
    Unattributed,
    /// A reserved key, or a stamp that is not ours.
    Stamp,
    /// A controller's object edited by hand.
    ControllerMade,
    /// The target of a subresource cannot be read.
    UnknownTarget,
    /// Somebody else is writing the ledger.
    LedgerBusy,
    /// The decision log takes no more lines.
    LogFull,
    /// The deadline has passed.
    TooLate,
    /// Too many reviews at once.
    Overloaded,
    /// A defect of the gate.
    Internal,
}

impl ReasonCode {
    /// As records and audit annotations spell it.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UntrustedIdentity => "untrusted-identity",
            Self::Forbidden => "forbidden",
            Self::NotPermitted => "not-permitted",
            Self::PolicyFault => "policy-fault",
            Self::Quota => "quota",
            Self::CannotFit => "cannot-fit",
            Self::Unattributed => "unattributed",
            Self::Stamp => "stamp",
            Self::ControllerMade => "controller-made",
            Self::UnknownTarget => "unknown-target",
            Self::LedgerBusy => "ledger-busy",
            Self::LogFull => "log-full",
            Self::TooLate => "too-late",
            Self::Overloaded => "overloaded",
            Self::Internal => "internal",
        }
    }
}

/// A complete answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub uid: String,
    /// Who asked for what, for the first line of a refusal.
    pub headline: String,
    pub verdict: Verdict,
    pub warnings: Vec<String>,
    /// Empty in `/validate`, on DELETE and on a refusal.
    pub patch: Vec<Operation>,
    /// Copied into the API server's audit log under the webhook's name.
    pub audit: BTreeMap<String, String>,
}

/// A longer message helps nobody, and etcd events cut it anyway.
const MAX_REFUSALS_SHOWN: usize = 6;
/// kube-apiserver drops longer ones (`warning.AddWarning`), and all beyond 4096 characters.
const MAX_WARNING: usize = 256;
const MAX_WARNINGS_TOTAL: usize = 4096;

impl Answer {
    /// A refusal of something that could not be judged at all.
    pub fn refusal(uid: &str, reason: ReasonCode, message: String) -> Self {
        let refusal = Refusal { reason, message, hint: None, policy: None };
        Self::plain(uid, Verdict::Deny { refusals: vec![refusal] })
    }

    /// "Not now" for something that has not been judged.
    pub fn retry(uid: &str, reason: ReasonCode, message: &str, retry_after_seconds: Option<u32>) -> Self {
        Self::plain(uid, Verdict::RetryLater { reason, message: message.to_owned(), retry_after_seconds })
    }

    fn plain(uid: &str, verdict: Verdict) -> Self {
        Self {
            uid: uid.to_owned(),
            headline: String::new(),
            verdict,
            warnings: Vec::new(),
            patch: Vec::new(),
            audit: BTreeMap::new(),
        }
    }

    pub fn is_allowed(&self) -> bool {
        match self.verdict {
            Verdict::Allow => true,
            Verdict::Deny { .. } | Verdict::RetryLater { .. } => false,
        }
    }

    /// What the person reads. `None` when it is allowed.
    pub fn message(&self) -> Option<String> {
        match &self.verdict {
            Verdict::Allow => None,
            Verdict::RetryLater { message, .. } => Some(message.clone()),
            Verdict::Deny { refusals } => Some(refused(&self.headline, refusals)),
        }
    }

    /// The AdmissionReview that goes back.
    pub fn response(&self) -> Value {
        let mut response = json!({"uid": self.uid, "allowed": self.is_allowed()});
        match &self.verdict {
            Verdict::Allow => {}
            Verdict::Deny { .. } => {
                response["status"] =
                    json!({"status": "Failure", "code": 403, "reason": "Forbidden", "message": self.message()});
            }
            Verdict::RetryLater { message, retry_after_seconds, .. } => {
                let reason = "TooManyRequests";
                response["status"] = json!({"status": "Failure", "code": 429, "reason": reason, "message": message});
                if let Some(seconds) = retry_after_seconds {
                    response["status"]["details"] = json!({"retryAfterSeconds": seconds});
                }
            }
        }
        // `patch` and `patchType` come together or not at all.
        if self.is_allowed() && !self.patch.is_empty() {
            let patch = serde_json::to_vec(&self.patch).unwrap_or_default();
            response["patchType"] = "JSONPatch".into();
            response["patch"] = base64::engine::general_purpose::STANDARD.encode(patch).into();
        }
        let warnings = fitting(&self.warnings);
        if !warnings.is_empty() {
            response["warnings"] = json!(warnings);
        }
        if !self.audit.is_empty() {
            response["auditAnnotations"] = json!(self.audit);
        }
        json!({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
    }
}

fn refused(headline: &str, refusals: &[Refusal]) -> String {
    let line = |refusal: &Refusal| {
        let Refusal { reason: _, message, hint, policy } = refusal;
        let policy = policy.as_ref().map(|policy| format!(" [{policy}]")).unwrap_or_default();
        let hint = hint.as_ref().map(|hint| format!("\n      hint: {hint}")).unwrap_or_default();
        format!("\n  - {message}{policy}{hint}")
    };
    match (headline, refusals) {
        ("", [only]) => only.message.clone(),
        _ => {
            let lines: String = refusals.iter().take(MAX_REFUSALS_SHOWN).map(line).collect();
            let more = refusals.len().saturating_sub(MAX_REFUSALS_SHOWN);
            let more = if more > 0 { format!("\n  - and {more} more") } else { String::new() };
            format!("{headline}:{lines}{more}")
        }
    }
}

/// Warnings travel in HTTP headers: one line each, and not too many.
fn fitting(warnings: &[String]) -> Vec<String> {
    let mut total = 0;
    let clean = |warning: &String| {
        let line: String = warning.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        match line.char_indices().nth(MAX_WARNING - 3) {
            Some((cut, _)) if line.chars().count() > MAX_WARNING => format!("{}...", &line[..cut]),
            Some(_) | None => line,
        }
    };
    let fits = |warning: &String| {
        total += warning.chars().count();
        total <= MAX_WARNINGS_TOTAL
    };
    warnings.iter().map(clean).take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deny() -> Answer {
        Answer::refusal("u", ReasonCode::Malformed, "`request.kind` must be a kind".to_owned())
    }

    #[test]
    fn a_denial_is_403_and_carries_no_patch() {
        let answer = Answer { patch: vec![Operation::Remove { path: "/a".into() }], ..deny() };
        insta::assert_json_snapshot!(answer.response());
    }

    #[test]
    fn not_now_is_429() {
        let answer = Answer::retry("u", ReasonCode::LedgerBusy, "the ledger is busy", Some(1));
        insta::assert_json_snapshot!(answer.response());
    }

    #[test]
    fn warnings_fit_into_headers() {
        let long = format!("line\nbreak {}", "ü".repeat(400));
        let answer = Answer { warnings: vec![long; 40], verdict: Verdict::Allow, ..deny() };
        let response = answer.response();
        let warnings: Vec<&str> =
            response["response"]["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert_eq!(warnings.len(), 16);
        assert!(warnings.iter().all(|warning| warning.chars().count() <= 256 && !warning.contains('\n')));
    }
}
