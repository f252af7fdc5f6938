//! Finds the policies of a question. Cedar's cost is linear in the policies it is given, and most cannot match.
//!
//! A policy is kept under each action that its scope reaches and under the resource that its scope names:
//!
//! ```text
//! resource in Team::"a", resource is Volume in Namespace::"n", resource == Bucket::"b"  -> under that entity
//! resource is Volume, resource                                                          -> under the resource types
//! ```
//!
//! Exact, because `in X` is false where X is no ancestor of the resource, and because a decision over several sets is
//! the decision over all: a forbid of any refuses, a permit of any permits (`index_decides_like_one_set`).

use std::collections::HashMap;
use std::sync::Arc;

use cedar_policy::{
    ActionConstraint, Effect, Entities, EntityTypeName, EntityUid, Policy, PolicyId, PolicySet, ResourceConstraint,
    Schema,
};

use super::PolicyInfo;
use super::values::ActionUids;
use crate::vocabulary::Action;

#[derive(Debug, Clone)]
pub(super) struct Index {
    actions: ActionUids,
    by_type: HashMap<Action, HashMap<EntityTypeName, Rules>>,
    by_entity: HashMap<EntityUid, HashMap<Action, Rules>>,
    infos: HashMap<PolicyId, Arc<PolicyInfo>>,
}

/// Permits apart from forbids: of a mixed set Cedar names no permit once a forbid is satisfied.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    pub(super) permits: PolicySet,
    pub(super) forbids: PolicySet,
}

impl Rules {
    fn add(&mut self, policy: &Policy) {
        let set = match policy.effect() {
            Effect::Permit => &mut self.permits,
            Effect::Forbid => &mut self.forbids,
        };
        set.add(policy.clone()).expect("ids are unique, and a policy stands once in a place");
    }
}

impl Index {
    /// `infos` holds every policy of `policies`.
    pub(super) fn new(
        schema: &Schema,
        hierarchy: &Entities,
        policies: &PolicySet,
        infos: HashMap<PolicyId, Arc<PolicyInfo>>,
    ) -> Self {
        let actions = ActionUids::new();
        let mut index = Self { by_type: empty_rules(schema, &actions), actions, by_entity: HashMap::new(), infos };
        for policy in policies.policies() {
            let scope = policy.action_constraint();
            for action in Action::ALL {
                if reaches(&scope, index.actions.of(*action), hierarchy) {
                    index.insert(*action, policy);
                }
            }
        }
        index
    }

    fn insert(&mut self, action: Action, policy: &Policy) {
        let types = self.by_type.entry(action).or_default();
        match policy.resource_constraint() {
            ResourceConstraint::Any => types.values_mut().for_each(|rules| rules.add(policy)),
            // A type that the action is never asked about has no rules.
            ResourceConstraint::Is(name) => {
                if let Some(rules) = types.get_mut(&name) {
                    rules.add(policy);
                }
            }
            ResourceConstraint::In(uid) | ResourceConstraint::Eq(uid) | ResourceConstraint::IsIn(_, uid) => {
                self.by_entity.entry(uid).or_default().entry(action).or_default().add(policy);
            }
        }
    }

    pub(super) fn action_uid(&self, action: Action) -> &EntityUid {
        self.actions.of(action)
    }

    /// What a policy says of itself.
    pub(super) fn info(&self, id: &PolicyId) -> &Arc<PolicyInfo> {
        self.infos.get(id).expect("the index knows the policies that it holds")
    }

    /// The rules of a question; none if the schema does not know it. Needs the resource in `entities`.
    pub(super) fn rules<'a>(
        &'a self,
        action: Action,
        resource: &'a EntityUid,
        entities: &'a Entities,
    ) -> Option<impl Iterator<Item = &'a Rules>> {
        let by_type = self.by_type.get(&action)?.get(resource.type_name())?;
        let around = entities.ancestors(resource).into_iter().flatten().chain([resource]);
        let by_entity = around.filter_map(move |uid| self.by_entity.get(uid)?.get(&action));
        Some(by_entity.chain([by_type]))
    }
}

/// A place for each pair of action and resource type that may be asked.
fn empty_rules(schema: &Schema, actions: &ActionUids) -> HashMap<Action, HashMap<EntityTypeName, Rules>> {
    let types = |action: &Action| {
        let types = schema.resources_for_action(actions.of(*action)).into_iter().flatten();
        types.map(|name| (name.clone(), Rules::default())).collect()
    };
    Action::ALL.iter().map(|action| (*action, types(action))).collect()
}

fn reaches(scope: &ActionConstraint, action: &EntityUid, hierarchy: &Entities) -> bool {
    let is_in = |group: &EntityUid| group == action || hierarchy.is_ancestor_of(group, action);
    match scope {
        ActionConstraint::Any => true,
        ActionConstraint::Eq(uid) => uid == action,
        ActionConstraint::In(uids) => uids.iter().any(is_in),
    }
}
