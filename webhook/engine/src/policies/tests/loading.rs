//! What does not load, and how it is said.

use cedar_policy::{ValidationMode, Validator};

use super::super::EntityType::Workload;
use super::world::{plain, question};
use super::*;
use crate::vocabulary::Action;

fn stack<T: Send + 'static>(mebibytes: usize, run: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().stack_size(mebibytes << 20).spawn(run).expect("a thread");
    thread.join().expect("no panic")
}

fn when(condition: &str) -> String {
    format!(
        "{PERMIT_ALL}{}",
        policy("no", "enforce", &format!("forbid (principal, action, resource) when {{ {condition} }};"))
    )
}

#[test]
fn problems_say_where_they_are() {
    let good = SourceFile::new("good.cedar", PERMIT_ALL);
    let bad = SourceFile::new(
        "bad.cedar",
        "// a comment\n@message(\"m\")\npermit (principal, action, resource);\n\n  @id(\"Bad Id\") forbid (principal, \
         action, resource) when { resource.nosuch };\n",
    );
    let worse = SourceFile::new("worse.cedar", "permit (principal, action, resource)\nwhen { é && };\n");
    let error = Policies::load(&starter_schema(), &[good, bad, worse]).expect_err("not to load");
    let places: Vec<String> =
        error.problems.iter().map(|problem| format!("{}:{}:{}", problem.path, problem.line, problem.column)).collect();
    assert!(places.contains(&"bad.cedar:2:1".to_owned()), "{error}");
    assert!(places.contains(&"bad.cedar:5:3".to_owned()), "{error}");
    assert!(places.iter().any(|place| place.starts_with("bad.cedar:5:6")), "{error}");
    assert!(places.iter().any(|place| place.starts_with("worse.cedar:2:")), "{error}");
}

#[test]
fn a_refusal_reads_like_this() {
    let error = load("@id(\"x\")\n@message(\"m\")\nforbid (principal is IamPrincipal, action, resource);")
        .expect_err("not to load");
    insta::assert_snapshot!(error, @r#"
    no policy was loaded, 2 to put right:
    test.cedar:1:1: this forbid has no @hint
      help: say in @hint("...") what to do instead
    test.cedar:1:1: this forbid holds for `IamPrincipal` only, so that every other type of principal gets through
      help: write a bare `principal` and leave people out with `unless { ... }`
    "#);
}

#[test]
fn annotations_are_required_and_known() {
    let permit = "permit (principal, action == Action::\"create\", resource);";
    let forbid = "forbid (principal, action, resource);";
    for (text, expected) in [
        (format!("@message(\"m\") {permit}"), "this policy has no @id"),
        (format!("@id(\"A_b\") @message(\"m\") {permit}"), "`A_b` cannot be an @id"),
        (format!("@id @message(\"m\") {permit}"), "`` cannot be an @id"),
        (format!("@id(\"a\") {permit}"), "this policy has no @message"),
        (format!("@id(\"a\") @message {permit}"), "@message is empty"),
        (format!("@id(\"a\") @message(\"a\\nb\") {permit}"), "@message has a line break or control character"),
        (format!("@id(\"a\") @message(\"{}\") {permit}", "x".repeat(257)), "@message is longer than 256 characters"),
        (format!("@id(\"a\") @message(\"m\") @hint(\"h\") {permit}"), "a permit has no @hint"),
        (format!("@id(\"a\") @message(\"m\") @mode(\"warn\") {permit}"), "a permit has no @mode"),
        (format!("@id(\"a\") @message(\"m\") {forbid}"), "this forbid has no @hint"),
        (format!("@id(\"a\") @message(\"m\") @hint(\"h\") @mode(\"warm\") {forbid}"), "`warm` is no @mode"),
        (format!("@id(\"a\") @message(\"m\") @hint(\"h\") @mod(\"warn\") {forbid}"), "there is no annotation @mod"),
    ] {
        assert!(problems(&text).contains(&expected.to_owned()), "{expected}: {:?}", problems(&text));
    }
}

#[test]
fn permits_name_their_actions() {
    let text = "@id(\"a\") @message(\"m\") permit (principal is IamPrincipal, action, resource);";
    assert_eq!(problems(text), ["this permit names no action"]);
}

/// `principal in Group::"contractors"` is fine: a group holds for whoever comes in it.
#[test]
fn forbids_name_no_principal_type() {
    for scope in ["principal is IamPrincipal", "principal is IamPrincipal in Team::\"a\""] {
        let text = format!("{PERMIT_ALL}{}", policy("a", "enforce", &format!("forbid ({scope}, action, resource);")));
        assert!(problems(&text)[0].starts_with("this forbid holds for `IamPrincipal` only"), "{scope}");
    }
    for scope in ["principal", "principal in Group::\"contractors\"", "principal == IamPrincipal::\"a\""] {
        let text = format!("{PERMIT_ALL}{}", policy("a", "enforce", &format!("forbid ({scope}, action, resource);")));
        assert!(load(&text).is_ok(), "{scope}");
    }
}

#[test]
fn ids_are_unique_over_all_files() {
    let files = [SourceFile::new("a.cedar", PERMIT_ALL), SourceFile::new("b.cedar", PERMIT_ALL)];
    let error = Policies::load(&starter_schema(), &files).expect_err("not to load");
    assert_eq!(error.problems.len(), 1);
    let Problem { path, line, sentence, help, .. } = &error.problems[0];
    assert_eq!((path.as_str(), *line), ("b.cedar", 2));
    assert_eq!(sentence, "two policies have the @id `permit-all`");
    assert!(help.as_deref().is_some_and(|help| help.starts_with("the other is at a.cedar:2")));
}

#[test]
fn nothing_and_no_permit_do_not_load() {
    let none = ["no policy permits anything, so that everything would be refused"];
    assert_eq!(problems(""), none);
    assert_eq!(problems("// only a comment"), none);
    assert_eq!(problems(&policy("a", "enforce", "forbid (principal, action, resource);")), none);
    assert!(Policies::load(&starter_schema(), &[]).is_err());
}

/// 3.8.
#[test]
fn templates_do_not_load() {
    let text = format!(
        "{PERMIT_ALL} @id(\"t\") @message(\"m\")
         permit (principal == ?principal, action == Action::\"create\", resource);"
    );
    assert_eq!(problems(&text), ["templates are not used"]);
}

/// 3.3: each of these is a warning to Cedar, with `validation_passed() == true`.
#[test]
fn warnings_do_not_load() {
    for (text, part) in [
        (when("resource is Workload && resource is Volume"), "impossible"),
        (
            format!(
                "{PERMIT_ALL}{}",
                policy("no", "enforce", "forbid (principal, action == Action::\"mount\", resource is Workload);")
            ),
            "",
        ),
        (when("context has reason && context.reason == \"\u{202e}evil\""), "BIDI"),
        (when("context has reason && context.reason == \"say_һello\""), "script"),
    ] {
        let found = problems(&text);
        assert!(found.iter().any(|sentence| sentence.contains(part)), "{part}: {found:?}");
    }
}

#[test]
fn validation_is_strict() {
    for condition in [
        "resource.nosuch == 1",
        "context.team.level == Level::\"baseline\"",
        "context.hour == \"ten\"",
        "context.origin == Origin::\"pot\"",
        "context has reason && context.reason == 1",
        "[1, \"a\"].contains(context.hour)",
        "[].contains(context.hour)",
        "context.reason like \"a*\"",
    ] {
        assert!(load(&when(condition)).is_err(), "{condition}");
    }
}

/// 3.9: the schema lets no policy follow more than two references, which bounds the entities that a question needs.
#[test]
fn policies_follow_two_references_at_most() {
    let update = "forbid (principal, action == Action::\"update\", resource is Workload)";
    let condition = "context has old && context.old has owner && context.old.owner.name == \"x\"";
    let longest = policy("no", "enforce", &format!("{update} when {{ {condition} }};"));
    let policies = loaded(&format!("{PERMIT_ALL}{longest}"));
    let validator = Validator::new(policies.schema().clone());
    let passes = |level| {
        let result = validator.validate_with_level(policies.policy_set(), ValidationMode::Strict, level);
        result.validation_passed_without_warnings()
    };
    assert_eq!((passes(1), passes(2)), (false, true));
}

/// 3.4: each of these ends the process when the parser sees it.
#[test]
fn deep_text_is_refused_on_a_small_stack() {
    stack(1, || {
        for part in ["(", "[", "{", "!", "-", "!(", "if true then ", "if ", "((((!"] {
            let problems = problems(&when(&part.repeat(10_000)));
            assert_eq!(problems, ["this is nested more than 64 levels deep"], "{part}");
        }
        for part in ["true || ", "true && ", "1 + ", "1 - ", "context.hour * "] {
            let problems = problems(&when(&part.repeat(10_000)));
            assert_eq!(problems, ["this policy has more than 256 operators"], "{part}");
        }
        for part in [".a", " has a.b"] {
            let problems = problems(&when(&format!("context{}", part.repeat(10_000))));
            assert_eq!(problems, ["this policy has more than 256 operators"], "{part}");
        }
        assert_eq!(problems(&"(".repeat(1 << 20)), ["this is nested more than 64 levels deep"]);
        let schema = SourceFile::new("schema", format!("entity A = {};", "{ \"a\": ".repeat(10_000)));
        assert!(Policies::load(&schema, &[]).is_err());
    });
}

#[test]
fn long_text_is_refused() {
    let long = format!("context has reason && context.reason == \"{}\"", "x".repeat(64 << 10));
    assert_eq!(problems(&when(&long)), ["this is longer than 64 KiB"]);
    let comment = SourceFile::new("c.cedar", "//\n".repeat(3 << 20));
    let error = Policies::load(&starter_schema(), &[comment]).expect_err("not to load");
    assert!(error.to_string().contains("the policy files have 9437184 bytes"), "{error}");
}

#[test]
fn the_schema_is_held_against_the_vocabulary() {
    for (from, to, expected) in [
        ("\"direct\", \"controller\", \"pod\"", "\"direct\", \"pod\", \"ghost\"", "lacks `controller`"),
        ("\"direct\", \"controller\", \"pod\"", "\"direct\", \"controller\", \"pod\", \"ghost\"", "has `ghost`"),
        ("action \"exempt\" appliesTo", "action \"exempt\" in [Action::\"use\"] appliesTo", "must be in no group"),
        ("action \"open\" appliesTo", "action \"opened\" appliesTo", "lacks the action `open`"),
    ] {
        let SourceFile { path, text } = starter_schema();
        assert!(text.contains(from), "{from}");
        let schema = SourceFile::new(path, text.replace(from, to));
        let error = Policies::load(&schema, &starter_files()).expect_err("not to load");
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
}

#[test]
fn the_revision_depends_on_names_and_texts_alone() {
    let file = |path: &str, text: &str| SourceFile::new(path, text);
    let load = |files: &[SourceFile]| Policies::load(&starter_schema(), files).expect("to load").revision().to_owned();
    let other = PERMIT_ALL.replace("permit-all", "other");
    let revision = load(&[file("/etc/a.cedar", PERMIT_ALL), file("/etc/b.cedar", &other)]);
    assert_eq!(revision, load(&[file("b.cedar", &other), file("a.cedar", PERMIT_ALL)]));
    assert_ne!(revision, load(&[file("a.cedar", &other), file("b.cedar", PERMIT_ALL)]));
    assert_ne!(revision, load(&[file("a.cedar", PERMIT_ALL)]));
    assert!(revision.starts_with("sha256:") && revision.len() == 23, "{revision}");
}

/// The deepest texts that the scanner lets through, loaded and evaluated with a quarter of the promised stack.
#[test]
fn the_deepest_text_that_is_allowed_fits_the_stack() {
    for (name, text) in deepest() {
        let answer = stack(2, move || {
            let policies = loaded(&text);
            policies.ask(&question(Action::Create, Workload), &plain(&policies))
        });
        assert_eq!(answer.errors, [], "{name}");
    }
}

/// Shapes that fill either limit, or both.
fn deepest() -> Vec<(&'static str, String)> {
    let repeat = |text: &str, times: usize| text.repeat(times);
    // `when {` is a level, and the scope and `when` are operators.
    let (levels, operators) = (62, 250);
    let both = format!("{}true{}", repeat("(true && ", levels), repeat(")", levels));
    vec![
        ("brackets", when(&format!("{}context.dryRun{}", repeat("(", levels), repeat(")", levels)))),
        ("negations", when(&format!("{}context.dryRun{}", repeat("!(", levels / 2), repeat(")", levels / 2)))),
        ("sets", when(&format!("{}context.hour{} == {0}1{1}", repeat("[", levels), repeat("]", levels)))),
        ("or", when(&format!("context.dryRun{}", repeat(" || context.dryRun", operators / 2 - 2)))),
        ("or of constants", when(&format!("context.dryRun{}", repeat(" || false", operators - 2)))),
        ("and", when(&format!("true{}", repeat(" && true", operators)))),
        ("sum", when(&format!("1{} == 1", repeat(" + 1", operators - 1)))),
        ("ifs", when(&format!("{}true", repeat("if context.dryRun then true else ", levels)))),
        ("both", when(&format!("{both}{}", repeat(" && true", operators - levels)))),
        ("both, inside", when(&both.replacen("true)", &format!("true{})", repeat(" && true", operators - levels)), 1))),
    ]
}
