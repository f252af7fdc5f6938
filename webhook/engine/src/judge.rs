//! Asks the policies, tries exemptions, and turns answers into refusals that name what was asked, which policy decided and
//! what would do instead.

use std::collections::BTreeSet;

use cedar_policy::Entities;

use crate::policies::{Answer, Decision, Policies};
use crate::questions::Asked;
use crate::verdict::{ReasonCode, Refusal};
use crate::vocabulary::Action;

/// A question with its answer.
#[derive(Debug, Clone)]
pub struct Judged {
    pub asked: Asked,
    pub answer: Answer,
    /// Forbids set aside, each with the permit that did it.
    pub exemptions: Vec<Exemption>,
}

/// A forbid that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Exemption {
    pub policy: String,
    pub by: Vec<String>,
}

/// Decides one question. An exemption is looked for only where forbids alone refuse: a permit is needed all the same.
pub fn judge(asked: Asked, policies: &Policies, entities: &Entities) -> Judged {
    let answer = policies.ask(&asked.question, entities);
    if !answer.refused_by_forbids_alone() {
        return Judged { asked, answer, exemptions: Vec::new() };
    }
    let exemptions: Vec<Exemption> = answer
        .forbids
        .iter()
        .filter_map(|forbid| {
            let answer = policies.ask(&asked.exemption(&forbid.id), entities);
            let by = || answer.permits.iter().map(|permit| permit.id.clone()).collect();
            (answer.decision == Decision::Allow).then(|| Exemption { policy: forbid.id.clone(), by: by() })
        })
        .collect();
    if exemptions.is_empty() {
        return Judged { asked, answer, exemptions };
    }
    let set_aside: BTreeSet<String> = exemptions.iter().map(|exemption| exemption.policy.clone()).collect();
    let answer = policies.ask_setting_aside(&asked.question, entities, &set_aside);
    Judged { asked, answer, exemptions }
}

impl Judged {
    pub fn is_allowed(&self) -> bool {
        self.answer.decision == Decision::Allow
    }

    /// Why not; empty when it is allowed.
    pub fn refusals(&self) -> Vec<Refusal> {
        let Answer { decision, forbids, errors, fault, .. } = &self.answer;
        if *decision == Decision::Allow {
            return Vec::new();
        }
        let subject = &self.asked.subject;
        if let Some(fault) = fault {
            let message = format!("{subject}: the question could not be asked ({fault})");
            return vec![Refusal {
                reason: ReasonCode::PolicyFault,
                message,
                hint: Some(TELL_PLATFORM.into()),
                policy: None,
            }];
        }
        let failed = errors.iter().filter(|_| self.answer.has_failed_forbid()).map(|error| Refusal {
            reason: ReasonCode::PolicyFault,
            message: format!("{subject}: a policy failed to evaluate, so the answer is no"),
            hint: Some(TELL_PLATFORM.into()),
            policy: Some(error.id.clone()),
        });
        let forbidden = forbids.iter().map(|policy| Refusal {
            reason: if self.asked.question.action == Action::Consume {
                ReasonCode::Quota
            } else {
                ReasonCode::Forbidden
            },
            message: format!("{subject}: {}", policy.message),
            hint: policy.hint.clone(),
            policy: Some(policy.id.clone()),
        });
        let mut refusals: Vec<Refusal> = failed.chain(forbidden).collect();
        // Without a permit, what would do instead helps beside what is forbidden about this.
        if let (Some(first), true, Some(alternatives)) =
            (refusals.first_mut(), self.answer.permits.is_empty(), &self.asked.alternatives)
        {
            first.hint = Some(first.hint.iter().map(|hint| format!("{hint} ")).collect::<String>() + alternatives);
        }
        if refusals.is_empty() { vec![self.not_permitted()] } else { refusals }
    }

    fn not_permitted(&self) -> Refusal {
        let Asked { subject, alternatives, question, .. } = &self.asked;
        let message = format!("{subject}: no policy permits you to {} it", verb(question.action));
        Refusal { reason: ReasonCode::NotPermitted, message, hint: alternatives.clone(), policy: None }
    }

    /// What is said without refusing.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.answer.warnings.iter().map(|policy| {
            let hint = policy.hint.as_deref().map(|hint| format!(" {hint}")).unwrap_or_default();
            format!("{}: {}{hint} [{}]", self.asked.subject, policy.message, policy.id)
        })
    }
}

const TELL_PLATFORM: &str = "tell the platform team: this is a fault of the policies or of the gate";

fn verb(action: Action) -> &'static str {
    match action {
        Action::Create => "create",
        Action::Update => "update",
        Action::Scale => "scale",
        Action::Resize => "resize",
        Action::Resume => "resume",
        Action::Exec => "open a shell in",
        Action::Attach => "attach to",
        Action::PortForward => "forward ports of",
        Action::Proxy => "reach",
        Action::Debug => "debug",
        Action::Delete => "delete",
        Action::Evict => "evict",
        Action::Open => "open",
        Action::Schedule => "schedule",
        Action::Run => "run",
        Action::Mount => "mount",
        Action::Assume => "use",
        Action::Read => "read",
        Action::Write => "write to",
        Action::Enqueue => "use",
        Action::Charge => "charge",
        Action::Consume => "consume",
        Action::Exempt => "be exempted for",
    }
}
