//! How answers come about.

use super::super::EntityType::{Bucket, Container, Namespace, PodTemplate, Quota, Team, Volume, Workload};
use super::world::{build, context_for, plain, question};
use super::*;
use crate::vocabulary::{Action, Change};

fn allow_then(forbid: &str) -> Policies {
    loaded(&format!("{PERMIT_ALL}{forbid}"))
}

fn overflow(mode: &str) -> String {
    let body = "forbid (principal, action == Action::\"create\", resource is Workload)
                when { resource.accelerators * 9223372036854775807 > 10 };";
    policy("overflow", mode, body)
}

#[test]
fn a_permit_allows_and_is_named() {
    let policies = loaded(PERMIT_ALL);
    let answer = policies.ask(&question(Action::Create, Workload), &plain(&policies));
    assert_eq!(answer.decision, Decision::Allow);
    assert_eq!(ids(&answer.permits), ["permit-all"]);
}

#[test]
fn without_a_permit_the_answer_is_no() {
    let body = "permit (principal, action == Action::\"delete\", resource);";
    let policies = loaded(&format!("@id(\"p\") @message(\"m\") {body}"));
    let answer = policies.ask(&question(Action::Create, Workload), &plain(&policies));
    assert_eq!((answer.decision, answer.permits.len()), (Decision::Deny, 0));
    assert!(!answer.refused_by_forbids_alone());
}

/// 3.7: Cedar lists no permit beside a forbid, so permits and forbids are asked apart.
#[test]
fn a_refusal_names_forbids_and_permits() {
    let policies = allow_then(&policy("no", "enforce", "forbid (principal, action, resource);"));
    let answer = policies.ask(&question(Action::Create, Workload), &plain(&policies));
    assert_eq!(answer.decision, Decision::Deny);
    assert_eq!((ids(&answer.permits), ids(&answer.forbids)), (vec!["permit-all"], vec!["no"]));
    assert!(answer.refused_by_forbids_alone());
}

/// 3.1: strictly valid, and Cedar alone says Allow.
#[test]
fn a_forbid_that_overflows_refuses() {
    let policies = allow_then(&overflow("enforce"));
    let answer = policies.ask(&question(Action::Create, Workload), &plain(&policies));
    assert_eq!(answer.decision, Decision::Deny);
    assert_eq!(answer.errors.len(), 1);
    assert_eq!(answer.errors[0].id, "overflow");
    assert!(answer.errors[0].message.contains("overflow"), "{}", answer.errors[0].message);
    assert!(!answer.refused_by_forbids_alone(), "what failed to evaluate cannot be exempted");
}

#[test]
fn a_failed_forbid_cannot_be_set_aside() {
    let policies = allow_then(&overflow("enforce"));
    let set_aside = BTreeSet::from(["overflow".to_owned()]);
    let answer = policies.ask_setting_aside(&question(Action::Create, Workload), &plain(&policies), &set_aside);
    assert_eq!(answer.decision, Decision::Deny);
}

#[test]
fn a_forbid_that_warns_or_audits_only_reports_when_it_fails() {
    for mode in ["warn", "audit"] {
        let policies = allow_then(&overflow(mode));
        let answer = policies.ask(&question(Action::Create, Workload), &plain(&policies));
        assert_eq!((answer.decision, answer.errors.len()), (Decision::Allow, 1), "{mode}");
    }
}

#[test]
fn a_permit_that_fails_grants_nothing() {
    let body = "permit (principal, action == Action::\"create\", resource is Workload)
                when { resource.accelerators * 9223372036854775807 > 10 };";
    let policies = loaded(&format!("@id(\"p\") @message(\"m\") {body}"));
    let answer = policies.ask(&question(Action::Create, Workload), &plain(&policies));
    assert_eq!((answer.decision, answer.errors.len()), (Decision::Deny, 1));

    let policies = allow_then(&format!("@id(\"p\") @message(\"m\") {body}"));
    let answer = policies.ask(&question(Action::Create, Workload), &plain(&policies));
    assert_eq!((answer.decision, answer.errors.len()), (Decision::Allow, 1), "another permit still grants");
}

#[test]
fn modes_sort_forbids() {
    let forbid = "forbid (principal, action, resource);";
    let modes = [("e", "enforce"), ("w", "warn"), ("u", "audit")];
    let text: String = modes.iter().map(|(id, mode)| policy(id, mode, forbid)).collect();
    let policies = allow_then(&text);
    let entities = plain(&policies);
    let answer = policies.ask(&question(Action::Create, Workload), &entities);
    assert_eq!(answer.decision, Decision::Deny);
    assert_eq!((ids(&answer.forbids), ids(&answer.warnings), ids(&answer.audits)), (vec!["e"], vec!["w"], vec!["u"]));

    let set_aside = BTreeSet::from(["e".to_owned()]);
    let answer = policies.ask_setting_aside(&question(Action::Create, Workload), &entities, &set_aside);
    assert_eq!(answer.decision, Decision::Allow);
    assert_eq!((ids(&answer.forbids), ids(&answer.set_aside)), (vec![], vec!["e"]));
}

#[test]
fn setting_a_forbid_aside_grants_nothing() {
    let text = policy("no", "enforce", "forbid (principal, action, resource);")
        + "@id(\"p\") @message(\"m\") permit (principal, action == Action::\"delete\", resource);";
    let policies = loaded(&text);
    let set_aside = BTreeSet::from(["no".to_owned()]);
    let answer = policies.ask_setting_aside(&question(Action::Create, Workload), &plain(&policies), &set_aside);
    assert_eq!(answer.decision, Decision::Deny);
}

/// 3.7: Cedar's reasons come in another order in each run.
#[test]
fn answers_are_sorted() {
    let forbids: String = (0..50)
        .rev()
        .map(|number| policy(&format!("no-{number:02}"), "enforce", "forbid (principal, action, resource);"))
        .collect();
    let policies = allow_then(&forbids);
    let answer = policies.ask(&question(Action::Create, Workload), &plain(&policies));
    let expected: Vec<String> = (0..50).map(|number| format!("no-{number:02}")).collect();
    assert_eq!(ids(&answer.forbids), expected);
}

/// 3.2: without the hierarchy `action in Action::"use"` is false, and this forbid would be gone.
#[test]
fn the_action_hierarchy_is_there() {
    let policies = allow_then(&policy("no", "enforce", "forbid (principal, action in Action::\"use\", resource);"));
    let entities = plain(&policies);
    for (action, resource) in [(Action::Mount, Volume), (Action::Consume, Quota), (Action::Read, Bucket)] {
        assert_eq!(ids(&policies.ask(&question(action, resource), &entities).forbids), ["no"]);
    }
    assert_eq!(policies.ask(&question(Action::Create, Workload), &entities).decision, Decision::Allow);
}

#[test]
fn a_store_without_the_action_hierarchy_is_a_fault() {
    let policies = loaded(PERMIT_ALL);
    let bare = Entities::from_entities(build(vec![]), None).expect("entities");
    let answer = policies.ask(&question(Action::Mount, Volume), &bare);
    assert_eq!(answer.decision, Decision::Deny);
    assert!(matches!(answer.fault, Some(Fault::EntityMissing { role: decide::Role::Action, .. })), "{answer:?}");
}

/// 3.2: `in`, `has` and `hasTag` are false of what is not there, and Cedar says no word.
#[test]
fn a_missing_entity_is_a_fault() {
    let policies =
        allow_then(&policy("no", "enforce", "forbid (principal, action, resource) when { resource in Team::\"a\" };"));
    let answer = policies.ask(&question(Action::Run, Container), &plain(&policies));
    assert_eq!(ids(&answer.forbids), ["no"]);

    let asked = [
        (uid(EntityType::IamPrincipal, "a"), "the principal IamPrincipal::\"a\" is not among the entities"),
        (uid(EntityType::Person, "a"), "the principal's ancestor Person::\"a\" is not among the entities"),
        (uid(Container, "a"), "the resource Container::\"a\" is not among the entities"),
        (uid(Namespace, "a"), "the resource's ancestor Namespace::\"a\" is not among the entities"),
    ];
    for (missing, sentence) in asked {
        let entities = build(vec![]).into_iter().filter(|entity| entity.uid() != missing).collect();
        let entities = policies.entities_from(entities).expect("entities");
        let answer = policies.ask(&question(Action::Run, Container), &entities);
        assert_eq!(answer.decision, Decision::Deny, "{missing}");
        assert_eq!(answer.fault.map(|fault| fault.to_string()).as_deref(), Some(sentence));
    }
}

#[test]
fn a_missing_entity_of_the_context_is_a_fault() {
    let policies = loaded(PERMIT_ALL);
    let entities = plain(&policies);
    let team = ("team", entity(uid(Team, "nobody")));
    let workload = ("workload", entity(uid(Workload, "nothing")));
    let old = ("old", entity(uid(Workload, "nothing")));
    for (action, resource, change) in
        [(Action::Run, Container, team), (Action::Run, Container, workload), (Action::Update, Workload, old)]
    {
        let name = change.0;
        let context = context_for(action, "a", vec![change]);
        let answer = policies.ask(&Question { context, ..question(action, resource) }, &entities);
        assert!(matches!(answer.fault, Some(Fault::EntityMissing { .. })), "{name}: {answer:?}");
    }
}

#[test]
fn a_question_that_the_schema_does_not_know_is_a_fault() {
    let policies = loaded(PERMIT_ALL);
    let context = context_for(Action::Mount, "a", vec![]);
    let answer = policies
        .ask(&Question { context, action: Action::Mount, ..question(Action::Run, Container) }, &plain(&policies));
    assert_eq!(answer.decision, Decision::Deny);
    assert!(answer.fault.is_some());
}

/// In release a context is not checked, so that a fact that is missing shows as an error, which refuses.
#[test]
fn a_context_that_does_not_conform_is_a_fault_in_debug_builds() {
    let policies = loaded(PERMIT_ALL);
    let context = context(vec![("hour", string("ten"))]);
    let answer = policies.ask(&Question { context, ..question(Action::Create, Workload) }, &plain(&policies));
    assert_eq!(answer.fault.is_some(), cfg!(debug_assertions));
}

#[test]
fn an_entity_that_does_not_conform_is_refused_in_debug_builds() {
    let policies = loaded(PERMIT_ALL);
    let wrong = vec![build_entity(uid(Bucket, "c"), [("name", long(1))], [], [])];
    assert_eq!(policies.entities_from(wrong).is_err(), cfg!(debug_assertions));
}

/// `registry` is compared whole; the sketch of a wildcard would let the second through.
#[test]
fn a_registry_that_only_begins_like_ours_is_not_ours() {
    let policies = starter();
    let ours = "111122223333.dkr.ecr.us-west-2.amazonaws.com";
    for (registry, warned) in [
        (ours.to_owned(), false),
        (format!("{ours}.attacker.example"), true),
        ("763104351884.dkr.ecr.eu-west-1.amazonaws.com".to_owned(), false),
        ("763104351884.dkr.ecr.eu-west-1.amazonaws.com.cn".to_owned(), true),
        ("docker.io".to_owned(), true),
    ] {
        let entities = world::with(&policies, vec![(uid(Container, "a"), "registry", string(registry.clone()))]);
        let answer = policies.ask(&question(Action::Run, Container), &entities);
        assert_eq!(answer.decision, Decision::Allow, "{registry}");
        assert_eq!(!answer.warnings.is_empty(), warned, "{registry}");
    }
}

/// 3.6: an empty set is in every list.
#[test]
fn a_contractor_on_any_instance_is_refused() {
    let policies = starter();
    let template = || uid(PodTemplate, "a");
    for (families, any, allowed) in [(vec!["g5"], false, true), (vec!["p5"], false, false), (vec![], true, false)] {
        let mut all = build(vec![
            (template(), "instanceFamilies", string_set(families)),
            (template(), "anyInstance", boolean(any)),
        ]);
        all.retain(|entity| entity.uid() != uid(EntityType::IamPrincipal, "a"));
        let leads = ("leads", entities::<cedar_policy::EntityUid>([]));
        all.push(build_entity(
            uid(EntityType::IamPrincipal, "a"),
            [("account", string("1")), ("role", string("r")), leads],
            [uid(Team, "a"), uid(EntityType::Group, "contractors")],
            [],
        ));
        let store = policies.entities_from(all).expect("entities");
        let answer = policies.ask(&question(Action::Schedule, PodTemplate), &store);
        assert_eq!(answer.decision == Decision::Allow, allowed, "{answer:?}");
    }
}

#[test]
fn labels_are_read_as_tags() {
    let policies = allow_then(&policy(
        "no",
        "enforce",
        "forbid (principal, action == Action::\"update\", resource is Workload)
         when { context.changed.contains(Change::\"labels\") }
         unless { resource.hasTag(\"a/b\") && resource.getTag(\"a/b\") like \"p-*\" };",
    ));
    for (value, decision) in [("p-1", Decision::Allow), ("q", Decision::Deny)] {
        let mut all = build(vec![]);
        let plain = all.iter().position(|entity| entity.uid() == uid(Workload, "a")).expect("the workload");
        let (workload, attributes, parents) = all.swap_remove(plain).into_inner();
        let tagged =
            cedar_policy::Entity::new_with_tags(workload, attributes, parents, [("a/b".to_owned(), string(value))]);
        all.push(tagged.expect("an entity"));
        let store = policies.entities_from(all).expect("entities");
        let context = context_for(Action::Update, "a", vec![("changed", entities([Change::Labels]))]);
        let answer = policies.ask(&Question { context, ..question(Action::Update, Workload) }, &store);
        assert_eq!(answer.decision, decision, "{value}");
    }
}
