//! Loads policies, refuses what does not validate strictly, finds those of a question by an index and decides.
//!
//! ```text
//! files -> scan (bounds) -> parse -> lint, validate (strict, no warnings) -> Index
//!                                                                              |
//!                        Question + Entities -> fault? -> rules of the question -> Answer
//! ```
//!
//! Policies load as a whole or not at all, so that a bad file never takes the good ones away: the caller keeps what it
//! has and shows the error.

mod decide;
mod index;
mod lint;
mod load;
mod scan;
mod schema;
mod starter;
mod values;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use cedar_policy::{Entities, PolicySet, Schema};
use serde::{Deserialize, Serialize};

pub use cedar_policy::Effect;
pub use decide::{Answer, Decision, Fault, PolicyFault, Question};
pub use load::{LoadError, Problem, SourceFile};
pub use scan::{MAX_NESTING, MAX_OPERATORS, MAX_POLICIES, MAX_POLICY_BYTES, MAX_TOTAL_BYTES};
pub use starter::{examples, starter, starter_files, starter_schema};
pub use values::{
    EntityType, boolean, build_entity, context, datetime, entities, entity, long, long_set, string, string_set, uid,
};

/// A loaded set of policies. Cheap to share behind an `Arc`; a reload makes a new one.
#[derive(Debug, Clone)]
pub struct Policies {
    schema: Schema,
    /// The action hierarchy. Without it in the store, `action in Action::"use"` is false and no error says so.
    actions: Entities,
    /// Everything, for what looks at policies rather than asks them.
    all: PolicySet,
    /// Sorted by id.
    infos: Vec<Arc<PolicyInfo>>,
    index: index::Index,
    revision: String,
    schema_revision: String,
}

impl Policies {
    /// What each policy says of itself, sorted by id.
    pub fn infos(&self) -> &[Arc<PolicyInfo>] {
        &self.infos
    }

    /// A digest of the files, the same on every replica that has the same files in whatever directory.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// A digest of the schema.
    pub fn schema_revision(&self) -> &str {
        &self.schema_revision
    }

    /// The schema, for what builds entities or analyses policies.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// All policies in one set, with `@id` as id, for analysis. Decisions go through [`Policies::ask`].
    pub fn policy_set(&self) -> &PolicySet {
        &self.all
    }

    /// Groups that policies name and `known` (those of the team files) lacks. The validator cannot know them, and a
    /// misspelt one matches nobody and is silent.
    pub fn unknown_groups(&self, known: &BTreeSet<String>) -> Vec<UnknownLiteral> {
        lint::unknown_entities(&self.all, &self.infos, EntityType::Group, known)
    }

    /// Teams that policies name and `known` lacks.
    pub fn unknown_teams(&self, known: &BTreeSet<String>) -> Vec<UnknownLiteral> {
        lint::unknown_entities(&self.all, &self.infos, EntityType::Team, known)
    }

    /// Policy ids that are compared with `context.policy` and that no policy has: an exemption of nothing, or, in a
    /// forbid like `never-exempt`, a rule that may be set aside after all.
    pub fn unknown_exemptions(&self) -> Vec<UnknownLiteral> {
        lint::unknown_exemptions(&self.all, &self.infos)
    }
}

/// What a policy says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyInfo {
    /// `@id`.
    pub id: String,
    pub effect: Effect,
    /// `@mode`; permits are always enforced.
    pub mode: Mode,
    /// `@message`: what the person reads.
    pub message: String,
    /// `@hint`: what to do instead; every forbid has one.
    pub hint: Option<String>,
    /// The file, as the caller named it.
    pub file: String,
    /// Where in the file it starts.
    pub line: usize,
}

/// What a forbid does when it is satisfied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Refuses.
    Enforce,
    /// Lets pass, with an admission warning.
    Warn,
    /// Lets pass; only the decision log shows it.
    Audit,
}

/// A string in a policy that stands for something that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownLiteral {
    /// Of the policy.
    pub policy: String,
    /// The file of the policy.
    pub file: String,
    pub line: usize,
    /// As it is written.
    pub literal: String,
}
