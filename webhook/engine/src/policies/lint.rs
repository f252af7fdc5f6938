//! Rules for policies that Cedar's validator does not have. Each catches something that loads, and then is silent.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cedar_policy::{ActionConstraint, Effect, Policy, PolicySet, PrincipalConstraint};
use serde_json::Value;

use super::values::EntityType;
use super::{Mode, PolicyInfo, UnknownLiteral};

/// Of a message or hint: longer ones do not fit an admission warning.
const MAX_TEXT_CHARS: usize = 256;

/// What is wrong and what to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) sentence: String,
    pub(super) help: &'static str,
}

fn finding(sentence: impl Into<String>, help: &'static str) -> Finding {
    Finding { sentence: sentence.into(), help }
}

/// The `@id`, if it may be one.
pub(super) fn id(policy: &Policy) -> Result<&str, Finding> {
    let is_slug = |id: &str| {
        !id.is_empty() && id.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    const HELP: &str = "write @id(\"what-it-holds\") with lower-case letters, digits and hyphens; it appears in every \
                        record of a decision";
    match policy.annotation("id") {
        None => Err(finding("this policy has no @id", HELP)),
        Some(id) if is_slug(id) => Ok(id),
        Some(id) => Err(finding(format!("`{id}` cannot be an @id"), HELP)),
    }
}

/// Everything else that one policy must keep to.
pub(super) fn findings(policy: &Policy) -> Vec<Finding> {
    let mut found = annotation_findings(policy);
    match policy.effect() {
        Effect::Permit => found.extend(permit_scope(policy)),
        Effect::Forbid => found.extend(forbid_scope(policy)),
    }
    found
}

/// Call it on what has no findings.
pub(super) fn mode(policy: &Policy) -> Mode {
    match policy.annotation("mode") {
        Some("warn") => Mode::Warn,
        Some("audit") => Mode::Audit,
        _ => Mode::Enforce,
    }
}

fn annotation_findings(policy: &Policy) -> Vec<Finding> {
    let forbids = policy.effect() == Effect::Forbid;
    let mut found = Vec::new();
    let mut annotations: Vec<(&str, &str)> = policy.annotations().collect();
    annotations.sort_unstable();
    for (key, value) in annotations {
        match key {
            "id" => {}
            "message" => found.extend(text_finding("@message", value)),
            "hint" if forbids => found.extend(text_finding("@hint", value)),
            "hint" => found.push(finding("a permit has no @hint", "nobody is refused by a permit: remove the @hint")),
            "mode" if !forbids => {
                found.push(finding("a permit has no @mode", "only forbids may warn or audit: remove the @mode"));
            }
            "mode" if ["enforce", "warn", "audit"].contains(&value) => {}
            "mode" => found.push(finding(
                format!("`{value}` is no @mode"),
                "write @mode(\"enforce\"), @mode(\"warn\") or @mode(\"audit\")",
            )),
            _ => found.push(finding(
                format!("there is no annotation @{key}"),
                "policies have @id, @message, @hint and @mode; write anything else as a comment",
            )),
        }
    }
    if policy.annotation("message").is_none() {
        found.push(finding("this policy has no @message", "say in @message(\"...\") what the person should read"));
    }
    if forbids && policy.annotation("hint").is_none() {
        found.push(finding("this forbid has no @hint", "say in @hint(\"...\") what to do instead"));
    }
    found
}

fn text_finding(name: &str, text: &str) -> Option<Finding> {
    const HELP: &str = "it is shown on one line, as an admission warning too";
    if text.trim().is_empty() {
        return Some(finding(format!("{name} is empty"), HELP));
    }
    if text.chars().count() > MAX_TEXT_CHARS {
        return Some(finding(format!("{name} is longer than {MAX_TEXT_CHARS} characters"), HELP));
    }
    text.chars().any(char::is_control).then(|| finding(format!("{name} has a line break or control character"), HELP))
}

fn permit_scope(policy: &Policy) -> Option<Finding> {
    (policy.action_constraint() == ActionConstraint::Any).then(|| {
        finding(
            "this permit names no action",
            "list the actions or groups of actions: a bare `action` would also grant exemptions, and whatever a later \
             version adds",
        )
    })
}

fn forbid_scope(policy: &Policy) -> Option<Finding> {
    let name = match policy.principal_constraint() {
        PrincipalConstraint::Is(name) | PrincipalConstraint::IsIn(name, _) => name,
        PrincipalConstraint::Any | PrincipalConstraint::In(_) | PrincipalConstraint::Eq(_) => {
            return None;
        }
    };
    Some(finding(
        format!("this forbid holds for `{name}` only, so that every other type of principal gets through"),
        "write a bare `principal` and leave people out with `unless { ... }`",
    ))
}

/// Ids of a type of entity that policies name and that do not exist.
pub(super) fn unknown_entities(
    policies: &PolicySet,
    infos: &[Arc<PolicyInfo>],
    entity_type: EntityType,
    known: &BTreeSet<String>,
) -> Vec<UnknownLiteral> {
    collect(policies, infos, |policy| {
        let literals = policy.entity_literals().into_iter();
        literals
            .filter(|uid| uid.type_name() == entity_type.cedar())
            .map(|uid| uid.id().unescaped().to_owned())
            .filter(|id| !known.contains(id))
            .collect()
    })
}

/// Strings compared with `context.policy` that are the id of no forbid.
pub(super) fn unknown_exemptions(policies: &PolicySet, infos: &[Arc<PolicyInfo>]) -> Vec<UnknownLiteral> {
    let forbids = infos.iter().filter(|info| info.effect == Effect::Forbid);
    let known: BTreeSet<&str> = forbids.map(|info| info.id.as_str()).collect();
    collect(policies, infos, |policy| {
        let mut found = BTreeSet::new();
        if let Ok(json) = policy.to_json() {
            compared_with_policy(&json, &mut found);
        }
        found.into_iter().filter(|id| !known.contains(id.as_str())).collect()
    })
}

fn collect(
    policies: &PolicySet,
    infos: &[Arc<PolicyInfo>],
    literals: impl Fn(&Policy) -> BTreeSet<String>,
) -> Vec<UnknownLiteral> {
    let by_id: HashMap<String, &Policy> = policies.policies().map(|policy| (policy.id().to_string(), policy)).collect();
    let unknown = |info: &Arc<PolicyInfo>| {
        let found = by_id.get(&info.id).map(|policy| literals(policy)).unwrap_or_default();
        let PolicyInfo { id, file, line, .. } = (**info).clone();
        found.into_iter().map(move |literal| UnknownLiteral { policy: id.clone(), file: file.clone(), line, literal })
    };
    infos.iter().flat_map(unknown).collect()
}

/// Walks Cedar's JSON form for `x == context.policy` and `[x].contains(context.policy)`. The scanner bounds its depth.
fn compared_with_policy(json: &Value, found: &mut BTreeSet<String>) {
    match json {
        Value::Object(fields) => {
            for (operator, operands) in fields {
                if matches!(operator.as_str(), "==" | "!=" | "contains") {
                    let (left, right) = (&operands["left"], &operands["right"]);
                    if is_context_policy(right) {
                        strings(left, found);
                    } else if is_context_policy(left) {
                        strings(right, found);
                    }
                }
                compared_with_policy(operands, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| compared_with_policy(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_context_policy(json: &Value) -> bool {
    json["."]["left"]["Var"] == "context" && json["."]["attr"] == "policy"
}

fn strings(json: &Value, found: &mut BTreeSet<String>) {
    found.extend(json["Value"].as_str().map(str::to_owned));
    for item in json["Set"].as_array().into_iter().flatten() {
        strings(item, found);
    }
}
