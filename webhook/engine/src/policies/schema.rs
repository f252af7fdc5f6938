//! Reads the schema and holds it against the vocabulary of this version: a member that only one side knows would match
//! nothing and be silent.

use std::collections::{BTreeMap, BTreeSet};

use cedar_policy::{Entities, Schema, SchemaFragment};

use super::values::ActionUids;
use crate::vocabulary::{
    Action, Change, Class, ComponentKind, ContainerKind, Control, DoorKind, Level, Origin, QuotaMode, VolumeKind,
    Weekday,
};

/// Every enum entity type with its members, as this version knows them.
fn vocabulary() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    macro_rules! lists {
        ($($list:ident),+ $(,)?) => {
            BTreeMap::from([$(($list::TYPE, $list::ALL.iter().map(|member| member.id()).collect())),+])
        };
    }
    lists!(
        Change,
        Class,
        ComponentKind,
        ContainerKind,
        Control,
        DoorKind,
        Level,
        Origin,
        QuotaMode,
        VolumeKind,
        Weekday
    )
}

/// What keeps this schema from being used, in sentences.
pub(super) fn mismatches(fragment: &SchemaFragment, schema: &Schema, actions: &Entities) -> Vec<String> {
    let mut found = enum_mismatches(fragment);
    found.extend(action_mismatches(schema));
    found.extend(grouped(actions));
    found
}

fn enum_mismatches(fragment: &SchemaFragment) -> Vec<String> {
    let Some(declared) = enums(fragment) else {
        return vec!["the schema cannot be taken apart".to_owned()];
    };
    let known = vocabulary();
    let names: BTreeSet<&str> = declared.keys().map(String::as_str).chain(known.keys().copied()).collect();
    let mut found = Vec::new();
    for name in names {
        let declared: BTreeSet<&str> = declared.get(name).into_iter().flatten().map(String::as_str).collect();
        let known = known.get(name).cloned().unwrap_or_default();
        let missing: Vec<&str> = known.difference(&declared).copied().collect();
        let unknown: Vec<&str> = declared.difference(&known).copied().collect();
        if !missing.is_empty() {
            found.push(format!("the schema's enum `{name}` lacks `{}`", missing.join("`, `")));
        }
        if !unknown.is_empty() {
            found.push(format!("the schema's enum `{name}` has `{}`, unknown to this version", unknown.join("`, `")));
        }
    }
    found
}

/// The enum entity types of the schema: Cedar shows them only in its JSON form.
fn enums(fragment: &SchemaFragment) -> Option<BTreeMap<String, BTreeSet<String>>> {
    let json = fragment.clone().to_json_value().ok()?;
    let types = json[""]["entityTypes"].as_object().into_iter().flatten();
    let enums = types
        .filter_map(|(name, declared)| {
            let members = declared["enum"].as_array()?;
            let members = members.iter().filter_map(|member| member.as_str().map(str::to_owned)).collect();
            Some((name.clone(), members))
        })
        .collect();
    Some(enums)
}

fn action_mismatches(schema: &Schema) -> Vec<String> {
    let groups: BTreeSet<String> = schema.action_groups().map(|uid| uid.id().unescaped().to_owned()).collect();
    let declared: BTreeSet<String> =
        schema.actions().map(|uid| uid.id().unescaped().to_owned()).filter(|id| !groups.contains(id)).collect();
    let known: BTreeSet<String> = Action::ALL.iter().map(|action| action.id().to_owned()).collect();
    let missing = known.difference(&declared).map(|id| format!("the schema lacks the action `{id}`"));
    let unknown = declared.difference(&known).map(|id| format!("the schema's action `{id}` is never asked"));
    missing.chain(unknown).collect()
}

/// A group that held them would let a broad permit grant exemptions or open doors.
fn grouped(actions: &Entities) -> Vec<String> {
    let uids = ActionUids::new();
    [Action::Exempt, Action::Open]
        .into_iter()
        .filter(|action| actions.ancestors(uids.of(*action)).is_some_and(|mut groups| groups.next().is_some()))
        .map(|action| format!("the action `{}` must be in no group", action.id()))
        .collect()
}
