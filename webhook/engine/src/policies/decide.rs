//! Asks one question. The one way to allow: a satisfied permit, no enforced forbid that is satisfied, none that failed to
//! evaluate, and no fault in what was handed in.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use cedar_policy::{
    AuthorizationError, Authorizer, Context, Effect, Entities, Entity, EntityUid, EvalResult, PolicySet, Request,
};

use super::{Mode, Policies, PolicyInfo};
use crate::vocabulary::Action;

/// May this principal do this to that?
#[derive(Debug, Clone)]
pub struct Question {
    pub principal: EntityUid,
    pub action: Action,
    pub resource: EntityUid,
    /// As [`super::context`] builds it.
    pub context: Context,
}

/// What the policies say. Lists are sorted by policy id, so that the same question has the same answer byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub decision: Decision,
    /// Satisfied permits, also of a refusal.
    pub permits: Vec<Arc<PolicyInfo>>,
    /// Satisfied forbids that refuse.
    pub forbids: Vec<Arc<PolicyInfo>>,
    /// Satisfied forbids that were set aside by an exemption.
    pub set_aside: Vec<Arc<PolicyInfo>>,
    /// Satisfied forbids that only warn.
    pub warnings: Vec<Arc<PolicyInfo>>,
    /// Satisfied forbids that are only logged.
    pub audits: Vec<Arc<PolicyInfo>>,
    /// Policies that failed to evaluate. An enforced forbid among them refuses.
    pub errors: Vec<PolicyFault>,
    /// The question could not be asked as it was handed in: a defect of the gate, answered by a refusal.
    pub fault: Option<Fault>,
}

/// The outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    Allow,
    Deny,
}

/// A policy that failed to evaluate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyFault {
    pub id: String,
    pub effect: Effect,
    pub mode: Mode,
    pub message: String,
}

/// Why a question could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Cedar finds an entity that is not there in nothing and with nothing, and says no word.
    #[error("{role} {uid} is not among the entities")]
    EntityMissing { role: Role, uid: String },
    /// The schema has no such pair of action and resource type.
    #[error("`{action}` is not asked about {resource}")]
    NoSuchQuestion { action: &'static str, resource: String },
    /// Something does not conform to the schema.
    #[error("{0}")]
    Malformed(String),
}

/// What an entity is to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Principal,
    PrincipalAncestor,
    Resource,
    ResourceAncestor,
    Action,
    Context,
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Principal => "the principal",
            Self::PrincipalAncestor => "the principal's ancestor",
            Self::Resource => "the resource",
            Self::ResourceAncestor => "the resource's ancestor",
            Self::Action => "the action",
            Self::Context => "the context's entity",
        })
    }
}

impl Answer {
    /// Nothing but forbids that evaluated stands in the way: the case in which `exempt` is asked.
    pub fn refused_by_forbids_alone(&self) -> bool {
        self.fault.is_none() && !self.permits.is_empty() && !self.forbids.is_empty() && !self.has_failed_forbid()
    }

    /// An enforced forbid failed to evaluate.
    pub fn has_failed_forbid(&self) -> bool {
        self.errors.iter().any(|error| error.effect == Effect::Forbid && error.mode == Mode::Enforce)
    }

    fn undecided() -> Self {
        Self {
            decision: Decision::Deny,
            permits: Vec::new(),
            forbids: Vec::new(),
            set_aside: Vec::new(),
            warnings: Vec::new(),
            audits: Vec::new(),
            errors: Vec::new(),
            fault: None,
        }
    }

    fn faulty(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::undecided() }
    }

    fn decided(mut self) -> Self {
        let Self { decision: _, permits, forbids, set_aside, warnings, audits, errors, fault: _ } = &mut self;
        for list in [permits, forbids, set_aside, warnings, audits] {
            list.sort_by(|a, b| a.id.cmp(&b.id));
        }
        errors.sort();
        let allow =
            self.fault.is_none() && !self.permits.is_empty() && self.forbids.is_empty() && !self.has_failed_forbid();
        self.decision = if allow { Decision::Allow } else { Decision::Deny };
        self
    }
}

impl Policies {
    /// Asks a question over entities that [`Policies::entities_from`] made.
    pub fn ask(&self, question: &Question, entities: &Entities) -> Answer {
        self.ask_setting_aside(question, entities, &BTreeSet::new())
    }

    /// The same without the forbids that `exempt` has set aside here. A permit is needed all the same, and a forbid
    /// that fails to evaluate refuses whether it is named or not.
    pub fn ask_setting_aside(&self, question: &Question, entities: &Entities, set_aside: &BTreeSet<String>) -> Answer {
        match self.prepared(question, entities) {
            Ok(request) => self.evaluate(question, &request, entities, set_aside),
            Err(fault) => Answer::faulty(fault),
        }
    }

    /// A store for questions: the entities of a review with the action hierarchy. Debug builds check them against the
    /// schema; in release they are right because they are built from types, and the check would double the cost of the
    /// store.
    pub fn entities_from(&self, entities: Vec<Entity>) -> Result<Entities, Fault> {
        let schema = cfg!(debug_assertions).then_some(&self.schema);
        self.actions.clone().add_entities(entities, schema).map_err(|error| Fault::Malformed(error.to_string()))
    }

    fn prepared(&self, question: &Question, entities: &Entities) -> Result<Request, Fault> {
        let Question { principal, action, resource, context } = question;
        let action = self.index.action_uid(*action);
        present(principal, Role::Principal, Role::PrincipalAncestor, entities)?;
        present(resource, Role::Resource, Role::ResourceAncestor, entities)?;
        present(action, Role::Action, Role::Action, entities)?;
        for name in ["team", "workload", "old"] {
            if let Some(EvalResult::EntityUid(uid)) = context.get(name) {
                present(&uid, Role::Context, Role::Context, entities)?;
            }
        }
        let schema = cfg!(debug_assertions).then_some(&self.schema);
        Request::new(principal.clone(), action.clone(), resource.clone(), context.clone(), schema)
            .map_err(|error| Fault::Malformed(error.to_string()))
    }

    fn evaluate(
        &self,
        question: &Question,
        request: &Request,
        entities: &Entities,
        set_aside: &BTreeSet<String>,
    ) -> Answer {
        let Some(rules) = self.index.rules(question.action, &question.resource, entities) else {
            let action = question.action.id();
            return Answer::faulty(Fault::NoSuchQuestion { action, resource: question.resource.to_string() });
        };
        let mut answer = Answer::undecided();
        for rules in rules {
            self.collect(&mut answer, request, &rules.permits, entities, set_aside);
            self.collect(&mut answer, request, &rules.forbids, entities, set_aside);
        }
        answer.decided()
    }

    /// Adds what a set of permits alone, or of forbids alone, has to say.
    fn collect(
        &self,
        answer: &mut Answer,
        request: &Request,
        policies: &PolicySet,
        entities: &Entities,
        set_aside: &BTreeSet<String>,
    ) {
        if policies.is_empty() {
            return;
        }
        let response = Authorizer::new().is_authorized(request, policies, entities);
        for id in response.diagnostics().reason() {
            let info = self.index.info(id);
            let list = match (info.effect, info.mode) {
                (Effect::Permit, _) => &mut answer.permits,
                (Effect::Forbid, Mode::Warn) => &mut answer.warnings,
                (Effect::Forbid, Mode::Audit) => &mut answer.audits,
                (Effect::Forbid, Mode::Enforce) if set_aside.contains(&info.id) => &mut answer.set_aside,
                (Effect::Forbid, Mode::Enforce) => &mut answer.forbids,
            };
            list.push(Arc::clone(info));
        }
        for AuthorizationError::PolicyEvaluationError(error) in response.diagnostics().errors() {
            let PolicyInfo { id, effect, mode, .. } = &**self.index.info(error.policy_id());
            let message = error.inner().to_string();
            answer.errors.push(PolicyFault { id: id.clone(), effect: *effect, mode: *mode, message });
        }
    }
}

/// An entity and all its ancestors are in the store.
fn present(uid: &EntityUid, role: Role, ancestor_role: Role, entities: &Entities) -> Result<(), Fault> {
    let missing = |role: Role, uid: &EntityUid| Fault::EntityMissing { role, uid: uid.to_string() };
    let mut ancestors = entities.ancestors(uid).ok_or_else(|| missing(role, uid))?;
    match ancestors.find(|ancestor| entities.get(ancestor).is_none()) {
        Some(ancestor) => Err(missing(ancestor_role, ancestor)),
        None => Ok(()),
    }
}
