//! The starter policies: they load, and they say what the sketch of them promised.

use super::super::EntityType::{Bucket, Container, IamPrincipal, Quota, Volume, Workload};
use super::world::{context_for, plain, question, with};
use super::*;
use crate::vocabulary::{Action, Class, VolumeKind};

#[test]
fn starter_policies_load() {
    let policies = starter();
    assert_eq!(policies.infos().len(), 86);
    assert_eq!(policies.infos().iter().filter(|info| info.mode == Mode::Warn).count(), 3);
    assert_eq!(policies.infos().iter().filter(|info| info.mode == Mode::Audit).count(), 1);
    assert_eq!(policies.unknown_exemptions(), []);
}

#[test]
fn examples_load_beside_them() {
    let files = [starter_files(), examples()].concat();
    let policies = Policies::load(&starter_schema(), &files).expect("to load");
    assert_eq!(policies.infos().len(), starter().infos().len() + 13);
    assert_eq!(policies.unknown_exemptions(), []);
}

#[test]
fn the_example_of_the_documentation_loads() {
    let page = include_str!("../../../../../docs/policies.md");
    let examples: Vec<&str> = page.split("```cedar\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 1);
    let files = [starter_files(), vec![SourceFile::new("policies.md", examples[0])]].concat();
    assert!(Policies::load(&starter_schema(), &files).is_ok());
}

/// A file that is added to `policies/` and forgotten here would be shipped and never tested.
#[test]
fn every_shipped_file_is_embedded() {
    let paths = |files: Vec<SourceFile>| files.into_iter().map(|file| file.path).collect::<BTreeSet<_>>();
    assert_eq!(paths(starter_files()), shipped("", ""));
    assert_eq!(paths(examples()), shipped("/examples", "examples/"));
}

/// Policy files of a folder below `policies/`.
fn shipped(folder: &str, prefix: &str) -> BTreeSet<String> {
    let directory = format!("{}/../../policies{folder}", env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(directory).expect("the directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".cedar")).map(|name| format!("{prefix}{name}")).collect()
}

#[test]
fn groups_that_no_team_file_declares_are_found() {
    let policies = starter();
    let known = ["contractors", "platform-admins", "platform-automation"].map(str::to_owned).into();
    let unknown = policies.unknown_groups(&known);
    assert_eq!(unknown.len(), 1);
    assert_eq!((unknown[0].policy.as_str(), unknown[0].literal.as_str()), ("break-glass", "break-glass"));
    assert_eq!(policies.unknown_teams(&BTreeSet::new()), []);
}

#[test]
fn exemptions_of_what_is_not_there_are_found() {
    let exempt = "@id(\"e\") @message(\"m\") permit (principal, action == Action::\"exempt\", resource)
        when { [\"quota\", \"qouta\"].contains(context.policy) || context.policy == \"e\" };";
    let policies =
        loaded(&format!("{PERMIT_ALL}{exempt}{}", policy("quota", "enforce", "forbid (principal, action, resource);")));
    let unknown: Vec<String> = policies.unknown_exemptions().into_iter().map(|unknown| unknown.literal).collect();
    assert_eq!(unknown, ["e", "qouta"]);
}

#[test]
fn a_member_gets_what_is_the_teams() {
    let policies = starter();
    let entities = plain(&policies);
    for (action, resource) in [
        (Action::Create, Workload),
        (Action::Mount, Volume),
        (Action::Run, Container),
        (Action::Consume, Quota),
        (Action::Read, Bucket),
        (Action::Delete, Workload),
    ] {
        let answer = policies.ask(&question(action, resource), &entities);
        assert_eq!(answer.decision, Decision::Allow, "{action:?}: {answer:?}");
    }
}

#[test]
fn a_member_of_another_team_gets_nothing() {
    let policies = starter();
    let entities = plain(&policies);
    for (action, resource) in [(Action::Create, Workload), (Action::Mount, Volume), (Action::Exec, Workload)] {
        let asked = Question { principal: uid(IamPrincipal, "b"), ..question(action, resource) };
        assert_eq!(policies.ask(&asked, &entities).decision, Decision::Deny, "{action:?}");
    }
}

#[test]
fn nobody_brings_one_teams_things_into_anothers_namespace() {
    let policies = starter();
    let asked = Question {
        principal: uid(IamPrincipal, "admin"),
        resource: uid(Bucket, "b"),
        ..question(Action::Read, Bucket)
    };
    let answer = policies.ask(&asked, &plain(&policies));
    assert_eq!(ids(&answer.forbids), ["things-stay-in-their-team"]);
}

/// A claim with `posix: off` is not `shared`, and only the declared sub-path keeps people apart on it.
#[test]
fn a_claim_is_mounted_as_declared() {
    let policies = starter();
    let volume = || uid(Volume, "a");
    for shared in [true, false] {
        let changes = vec![(volume(), "shared", boolean(shared)), (volume(), "declared", boolean(false))];
        let answer = policies.ask(&question(Action::Mount, Volume), &with(&policies, changes));
        assert_eq!(ids(&answer.forbids), ["shared-claims-by-declared-path"]);
    }
    let scratch = vec![
        (volume(), "shared", boolean(false)),
        (volume(), "declared", boolean(false)),
        (volume(), "kind", entity(VolumeKind::EmptyDir)),
    ];
    assert_eq!(policies.ask(&question(Action::Mount, Volume), &with(&policies, scratch)).decision, Decision::Allow);
}

#[test]
fn a_space_of_nobody_known_gets_no_gpu() {
    let policies = starter();
    let entities = with(&policies, vec![(uid(Workload, "a"), "class", entity(Class::Space))]);
    let asked = |changes| {
        let context = context_for(Action::Consume, "a", changes);
        policies.ask(&Question { context, ..question(Action::Consume, Quota) }, &entities)
    };
    assert_eq!(ids(&asked(vec![]).forbids), ["spaces-two-gpus-a-person"]);
    assert_eq!(asked(vec![("personClassAfter", long(2))]).decision, Decision::Allow);
    assert_eq!(asked(vec![("personClassAfter", long(3))]).decision, Decision::Deny);
}

#[test]
fn the_quota_is_borrowed_at_night_up_to_the_ceiling() {
    let policies = starter();
    let entities = plain(&policies);
    let decision = |after: i64, hour: i64| {
        let context = context_for(Action::Consume, "a", vec![("after", long(after)), ("hour", long(hour))]);
        policies.ask(&Question { context, ..question(Action::Consume, Quota) }, &entities).decision
    };
    let cases = [(16, 10), (17, 10), (17, 22), (32, 3), (33, 3)];
    let expected = [Decision::Allow, Decision::Deny, Decision::Allow, Decision::Allow, Decision::Deny];
    assert_eq!(cases.map(|(after, hour)| decision(after, hour)), expected);
}
