//! Builds what a question is made of. Only through here do strings of a request become Cedar values, so that text such
//! as `{"__entity": ...}` in a label stays text: Cedar's JSON readers would turn it into a reference to an entity.

use std::sync::LazyLock;

use cedar_policy::{Context, Entity, EntityId, EntityTypeName, EntityUid, RestrictedExpression};
use jiff::Timestamp;

use crate::vocabulary::{
    Action, Change, Class, ComponentKind, ContainerKind, Control, DoorKind, Level, Origin, QuotaMode, VolumeKind,
    Weekday,
};

/// Declares the entity types of the schema beside the enums of the vocabulary.
macro_rules! entity_types {
    ($($name:ident),+ $(,)?) => {
        /// The entity types of the schema, beside the closed lists of the vocabulary.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EntityType { $(#[expect(missing_docs, reason = "documented in the schema")] $name),+ }

        impl EntityType {
            /// Every type.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// As policies write it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }
        }
    };
}

entity_types!(
    Bucket,
    Component,
    Container,
    CostCenter,
    Door,
    FileSystem,
    Group,
    IamPrincipal,
    IamRole,
    Model,
    Namespace,
    Object,
    Person,
    PodTemplate,
    PriorityClass,
    Queue,
    Quota,
    ServiceAccount,
    Stranger,
    Team,
    Volume,
    Workload,
);

/// The name of each type, parsed once: parsing one takes longer than building an entity.
static TYPE_NAMES: LazyLock<Vec<EntityTypeName>> =
    LazyLock::new(|| EntityType::ALL.iter().map(|entity_type| type_name(entity_type.name())).collect());

fn type_name(name: &str) -> EntityTypeName {
    name.parse().expect("the names of our entity types are identifiers")
}

impl EntityType {
    pub(super) fn cedar(self) -> &'static EntityTypeName {
        &TYPE_NAMES[self as usize]
    }
}

/// An entity of the schema; `id` may be any text.
pub fn uid(entity_type: EntityType, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(entity_type.cedar().clone(), EntityId::new(id))
}

/// Gives each member of a closed list its entity, made once.
macro_rules! members {
    ($($list:ident),+ $(,)?) => {$(
        impl From<$list> for EntityUid {
            fn from(member: $list) -> Self {
                static UIDS: LazyLock<Vec<EntityUid>> = LazyLock::new(|| {
                    let name = type_name($list::TYPE);
                    let ids = $list::ALL.iter().map(|member| EntityId::new(member.id()));
                    ids.map(|id| EntityUid::from_type_name_and_id(name.clone(), id)).collect()
                });
                UIDS[member as usize].clone()
            }
        }
    )+};
}

members!(
    Action,
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
);

/// The entity of each action.
#[derive(Debug, Clone)]
pub(super) struct ActionUids(Vec<EntityUid>);

impl ActionUids {
    pub(super) fn new() -> Self {
        Self(Action::ALL.iter().map(|action| EntityUid::from(*action)).collect())
    }

    pub(super) fn of(&self, action: Action) -> &EntityUid {
        &self.0[action as usize]
    }
}

/// A string; never looked into.
pub fn string(value: impl Into<String>) -> RestrictedExpression {
    RestrictedExpression::new_string(value.into())
}

/// A Long.
pub fn long(value: i64) -> RestrictedExpression {
    RestrictedExpression::new_long(value)
}

/// A Bool.
pub fn boolean(value: bool) -> RestrictedExpression {
    RestrictedExpression::new_bool(value)
}

/// A reference to an entity, or a member of a closed list.
pub fn entity(value: impl Into<EntityUid>) -> RestrictedExpression {
    RestrictedExpression::new_entity_uid(value.into())
}

/// A set of references.
pub fn entities<T: Into<EntityUid>>(values: impl IntoIterator<Item = T>) -> RestrictedExpression {
    RestrictedExpression::new_set(values.into_iter().map(entity))
}

/// A set of strings.
pub fn string_set<T: Into<String>>(values: impl IntoIterator<Item = T>) -> RestrictedExpression {
    RestrictedExpression::new_set(values.into_iter().map(string))
}

/// A set of Longs.
pub fn long_set(values: impl IntoIterator<Item = i64>) -> RestrictedExpression {
    RestrictedExpression::new_set(values.into_iter().map(long))
}

/// A datetime, to the millisecond. Costs more than the rest of a context: make it once a review, not once a question.
pub fn datetime(time: Timestamp) -> RestrictedExpression {
    // Cedar reads years of four digits; before 1970 no request came.
    let time = time.max(Timestamp::UNIX_EPOCH);
    RestrictedExpression::new_datetime(time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string())
}

/// The context of a question.
pub fn context(pairs: impl IntoIterator<Item = (&'static str, RestrictedExpression)>) -> Context {
    Context::from_pairs(pairs.into_iter().map(|(name, value)| (name.to_owned(), value)))
        .expect("the values above evaluate, and a context names each fact once")
}

/// An entity with its facts and labels.
pub fn build_entity(
    uid: EntityUid,
    attributes: impl IntoIterator<Item = (&'static str, RestrictedExpression)>,
    parents: impl IntoIterator<Item = EntityUid>,
    tags: impl IntoIterator<Item = (String, RestrictedExpression)>,
) -> Entity {
    let attributes = attributes.into_iter().map(|(name, value)| (name.to_owned(), value));
    Entity::new_with_tags(uid, attributes, parents, tags).expect("the values above evaluate")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::policies::starter;

    /// 3.5 of the pitfalls: JSON in user data stays a string.
    #[test]
    fn json_in_a_string_is_a_string() {
        let text = r#"{"__entity":{"type":"Team","id":"root"}}"#;
        let context = context([("reason", string(text))]);
        assert_eq!(context.get("reason"), Some(cedar_policy::EvalResult::String(text.to_owned())));
    }

    #[test]
    fn entity_types_are_those_of_the_schema() {
        let enums = [
            "Change",
            "Class",
            "ComponentKind",
            "ContainerKind",
            "Control",
            "DoorKind",
            "Level",
            "Origin",
            "QuotaMode",
            "VolumeKind",
            "Weekday",
        ];
        let schema = starter();
        let declared: BTreeSet<String> = schema.schema().entity_types().map(ToString::to_string).collect();
        let known = EntityType::ALL.iter().map(|entity_type| entity_type.name()).chain(enums);
        assert_eq!(declared, known.map(str::to_owned).collect());
    }

    #[test]
    fn times_are_read_back_as_they_were() {
        let time: Timestamp = "2027-02-28T23:59:59.5Z".parse().expect("a time");
        let value = context([("now", datetime(time))]).get("now").map(|value| value.to_string());
        assert_eq!(value.as_deref(), Some(r#"datetime("2027-02-28T23:59:59.500Z")"#));
    }

    #[test]
    fn times_that_cedar_cannot_hold_are_clamped() {
        for time in [Timestamp::MIN, Timestamp::MAX, Timestamp::UNIX_EPOCH] {
            assert!(context([("now", datetime(time))]).get("now").is_some());
        }
    }
}
