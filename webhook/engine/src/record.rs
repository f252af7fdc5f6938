//! The record: one JSON line for every answer. It says what the gate answered, not that the object exists. Names, ids and
//! policy texts only: never the object, an env value or an access-key id.

use serde::Serialize;

use crate::attribution::Note;
use crate::judge::{Exemption, Judged};
use crate::policies::Decision;
use crate::quota::Usage;
use crate::review::{GroupVersionKind, Operation, Review};
use crate::stamp::SubmitterName;
use crate::verdict::{ReasonCode, Verdict};
use crate::vocabulary::Origin;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// RFC 3339.
    pub time: jiff::Timestamp,
    pub uid: String,
    /// `mutate` or `validate`: the second is the one that counts.
    pub endpoint: &'static str,
    pub operation: Option<Operation>,
    pub kind: Option<GroupVersionKind>,
    pub resource: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subresource: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    pub dry_run: bool,
    pub who: Who,
    /// Whose size and stamp count, where that is not the object itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<RootLine>,
    /// Why an exemption is asked for, as the person says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub questions: Vec<Line>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// Pointers of what the patch sets; its length is the number of operations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub injected: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quota: Vec<QuotaLine>,
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What the person reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    pub revisions: Revisions,
    /// Filled in by whoever has a clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took: Option<Took>,
}

/// Who asked, and for whom.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Who {
    /// Canonical role or user ARN, or the Kubernetes username.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// What the submitter came as: account, and permission set, role, user or service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submitter: Option<SubmitterName>,
    /// Whose work it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// The team of the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_team: Option<String>,
    /// How it was established: `iam`, `pod-token`, `owner-walk`, `component`, ...
    pub established: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// The object that a person submitted, above the one under review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RootLine {
    pub kind: String,
    pub name: String,
    pub uid: String,
}

/// A question with its answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    pub action: &'static str,
    pub subject: String,
    pub allowed: bool,
    /// Ids of the policies that decided: the permits of an allow, the forbids of a refusal.
    pub policies: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warned: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audited: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exempted: Vec<Exemption>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaLine {
    #[serde(flatten)]
    pub usage: Usage,
    pub requested: u64,
    pub limit: u64,
    pub ceiling: u64,
}

/// Digests of what the decision was made with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Revisions {
    pub policies: String,
    pub teams: String,
    pub schema: String,
}

/// Microseconds of each stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Took {
    pub evaluate_micros: u64,
    pub reserve_micros: u64,
}

impl Who {
    /// A part of the cluster acting for itself: clean-up and upkeep.
    pub fn is_of_the_cluster(&self) -> bool {
        matches!(self.established, "component" | "node")
    }
}

impl Line {
    pub fn of(judged: &Judged) -> Self {
        let ids = |infos: &[std::sync::Arc<crate::policies::PolicyInfo>]| {
            infos.iter().map(|info| info.id.clone()).collect::<Vec<_>>()
        };
        let answer = &judged.answer;
        let allowed = answer.decision == Decision::Allow;
        let errors = answer.errors.iter().map(|error| format!("{}: {}", error.id, error.message));
        Self {
            action: judged.asked.question.action.id(),
            subject: judged.asked.subject.clone(),
            allowed,
            policies: ids(if allowed { &answer.permits } else { &answer.forbids }),
            warned: ids(&answer.warnings),
            audited: ids(&answer.audits),
            exempted: judged.exemptions.clone(),
            errors: errors.chain(answer.fault.iter().map(ToString::to_string)).collect(),
        }
    }
}

impl Record {
    /// The line of something that could not be judged.
    pub fn unjudged(
        review: Option<&Review>,
        uid: &str,
        endpoint: &'static str,
        verdict: Verdict,
        message: Option<String>,
        time: jiff::Timestamp,
        revisions: Revisions,
    ) -> Self {
        Self {
            time,
            uid: uid.to_owned(),
            endpoint,
            operation: review.map(|review| review.operation),
            kind: review.map(|review| review.kind.clone()),
            resource: review.map(|review| review.resource.resource.clone()),
            subresource: review.and_then(|review| review.subresource.clone()),
            namespace: review.and_then(|review| review.namespace.clone()),
            name: review.map(Review::display_name).unwrap_or_default(),
            dry_run: review.is_some_and(|review| review.dry_run),
            who: Who {
                name: review.map(|review| review.user.username.clone()).unwrap_or_default(),
                established: "nothing",
                ..Who::default()
            },
            root: None,
            reason: None,
            questions: Vec::new(),
            notes: Vec::new(),
            injected: Vec::new(),
            quota: Vec::new(),
            verdict,
            message,
            warnings: Vec::new(),
            revisions,
            took: None,
        }
    }

    /// The codes of a refusal, for metrics.
    pub fn reasons(&self) -> Vec<ReasonCode> {
        match &self.verdict {
            Verdict::Allow => Vec::new(),
            Verdict::Deny { refusals } => refusals.iter().map(|refusal| refusal.reason).collect(),
            Verdict::RetryLater { reason, .. } => vec![*reason],
        }
    }

    /// One line, without a newline.
    pub fn line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}
