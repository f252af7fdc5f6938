//! The index answers like one set of all policies.

use cedar_policy::{Authorizer, EntityUid, PolicySet, Request};
use proptest::prelude::*;

use super::super::EntityType::{Component, IamPrincipal, ServiceAccount, Stranger};
use super::world::{RESOURCES, context_for, plain};
use super::*;
use crate::vocabulary::Action;

const ACTION_SCOPES: [&str; 9] = [
    "action == Action::\"create\"",
    "action == Action::\"mount\"",
    "action == Action::\"exempt\"",
    "action in Action::\"use\"",
    "action in Action::\"change\"",
    "action in [Action::\"create\", Action::\"use\"]",
    "action in [Action::\"remove\", Action::\"access\", Action::\"open\"]",
    "action in [Action::\"exempt\"]",
    "action in [Action::\"read\", Action::\"write\", Action::\"consume\", Action::\"schedule\", Action::\"run\"]",
];

fn resource_scope() -> impl Strategy<Value = String> {
    let id = prop_oneof![Just("a"), Just("b"), Just("c")];
    let kind = prop::sample::select(RESOURCES.map(EntityType::name).to_vec());
    let around = prop::sample::select(vec!["Team", "Namespace", "Workload"]);
    prop_oneof![
        Just("resource".to_owned()),
        kind.clone().prop_map(|kind| format!("resource is {kind}")),
        (kind.clone(), id.clone()).prop_map(|(kind, id)| format!("resource == {kind}::\"{id}\"")),
        (around.clone(), id.clone()).prop_map(|(around, id)| format!("resource in {around}::\"{id}\"")),
        (kind, around, id).prop_map(|(kind, around, id)| format!("resource is {kind} in {around}::\"{id}\"")),
    ]
}

fn principal_scope() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["principal", "principal in Team::\"a\"", "principal in Group::\"platform-admins\""])
}

/// Effect, mode and scope of a policy; the condition errors, holds, or holds outside a dry run.
fn random_policy() -> impl Strategy<Value = (bool, &'static str, String)> {
    let mode = prop::sample::select(vec!["enforce", "enforce", "warn", "audit"]);
    let action = prop::sample::select(ACTION_SCOPES.to_vec());
    let condition =
        prop::sample::select(vec!["", "when { context.hour * 9223372036854775807 > 1 }", "when { !context.dryRun }"]);
    (any::<bool>(), mode, principal_scope(), action, resource_scope(), condition).prop_map(
        |(permit, mode, principal, action, resource, condition)| {
            (permit, mode, format!("({principal}, {action}, {resource}) {condition};"))
        },
    )
}

/// A policy whose scope can match nothing does not load, and is left out.
fn load_what_validates(random: &[(bool, &'static str, String)]) -> Policies {
    let mut texts = vec![PERMIT_ALL.to_owned()];
    for (number, (permit, mode, rest)) in random.iter().enumerate() {
        let text = if *permit {
            format!("@id(\"p-{number}\") @message(\"m\") permit {rest}\n")
        } else {
            policy(&format!("p-{number}"), mode, &format!("forbid {rest}"))
        };
        if load(&format!("{PERMIT_ALL}{text}")).is_ok() {
            texts.push(text);
        }
    }
    loaded(&texts.concat())
}

/// Straight from Cedar, over everything.
fn one_set(policies: &Policies, request: &Request, entities: &Entities, effect: Effect) -> (Vec<String>, Vec<String>) {
    let of_effect = policies.policy_set().policies().filter(|policy| policy.effect() == effect).cloned();
    let set = PolicySet::from_policies(of_effect).expect("unique ids");
    let response = Authorizer::new().is_authorized(request, &set, entities);
    let mut reasons: Vec<String> = response.diagnostics().reason().map(ToString::to_string).collect();
    let mut errors: Vec<String> = response
        .diagnostics()
        .errors()
        .map(|error| match error {
            cedar_policy::AuthorizationError::PolicyEvaluationError(error) => error.policy_id().to_string(),
        })
        .collect();
    reasons.sort();
    errors.sort();
    (reasons, errors)
}

fn compare(policies: &Policies, entities: &Entities, principal: EntityUid, action: Action, resource: EntityUid) {
    let context = context_for(action, "a", vec![]);
    let uid = EntityUid::from(action);
    let request = Request::new(principal.clone(), uid, resource.clone(), context.clone(), Some(policies.schema()));
    // Not every pair of action and resource is a question.
    let Ok(request) = request else { return };
    let answer = policies.ask(&Question { principal, action, resource, context }, entities);
    assert_eq!(answer.fault, None);
    let (permits, permit_errors) = one_set(policies, &request, entities, Effect::Permit);
    let (forbids, forbid_errors) = one_set(policies, &request, entities, Effect::Forbid);
    assert_eq!(ids(&answer.permits), permits);
    let mut found = [&answer.forbids, &answer.warnings, &answer.audits].map(|list| ids(list)).concat();
    found.sort_unstable();
    assert_eq!(found, forbids);
    let mut errors = [permit_errors, forbid_errors].concat();
    errors.sort();
    let found: Vec<&str> = answer.errors.iter().map(|error| error.id.as_str()).collect();
    assert_eq!(found, errors);
}

fn compare_everything(policies: &Policies) {
    let entities = plain(policies);
    let principals = [
        uid(IamPrincipal, "a"),
        uid(IamPrincipal, "admin"),
        uid(ServiceAccount, "b"),
        uid(Component, "queue"),
        uid(Stranger, "eve"),
    ];
    for principal in principals {
        for action in Action::ALL {
            for resource in RESOURCES {
                for id in world::TEAMS {
                    compare(policies, &entities, principal.clone(), *action, uid(resource, id));
                }
            }
        }
    }
}

#[test]
fn index_decides_like_one_set_for_the_starter_policies() {
    compare_everything(&super::super::starter());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn index_decides_like_one_set(random in prop::collection::vec(random_policy(), 1..25)) {
        compare_everything(&load_what_validates(&random));
    }
}

/// What the index is for: the policies of a hundred teams cost a question of one team nothing.
#[test]
fn policies_of_other_teams_are_not_evaluated() {
    let mut text = PERMIT_ALL.to_owned();
    for team in 0..100 {
        let body = format!("forbid (principal, action in Action::\"use\", resource in Team::\"team-{team}\");");
        text += &policy(&format!("team-{team}"), "enforce", &body);
    }
    let policies = loaded(&text);
    let entities = plain(&policies);
    let volume = uid(EntityType::Volume, "a");
    let rules = policies.index.rules(Action::Mount, &volume, &entities).expect("a question");
    let evaluated: usize = rules.map(|rules| rules.permits.num_of_policies() + rules.forbids.num_of_policies()).sum();
    assert_eq!(evaluated, 1);
}
