//! Builds a JSON Patch from what is meant, on the raw JSON: never a typed round trip, which would drop the fields that this
//! version does not know, and never a whole list, which would undo what another webhook did.
//!
//! Each operation is applied to a working copy as it is made, so that the next one sees it and a value that is there
//! already makes no operation: applied twice, the patch changes nothing the second time.

use jsonptr::PointerBuf;
use serde::Serialize;
use serde_json::{Map, Value};

/// One operation of RFC 6902.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Operation {
    Add { path: String, value: Value },
    Replace { path: String, value: Value },
    Remove { path: String },
}

impl Operation {
    /// JSON pointer of what it changes.
    pub fn path(&self) -> &str {
        match self {
            Self::Add { path, .. } | Self::Replace { path, .. } | Self::Remove { path } => path,
        }
    }
}

/// A patch under construction.
#[derive(Debug, Clone)]
pub struct PatchBuilder {
    working: Value,
    operations: Vec<Operation>,
}

impl PatchBuilder {
    pub fn new(object: Value) -> Self {
        Self { working: object, operations: Vec::new() }
    }

    /// The object as the patch leaves it, and the patch.
    pub fn finish(self) -> (Value, Vec<Operation>) {
        (self.working, self.operations)
    }

    pub fn object(&self) -> &Value {
        &self.working
    }

    /// Sets a member of an object. Parents that are absent come in one operation, with the member in them.
    pub fn set(&mut self, path: &[&str], value: Value) {
        if lookup(&self.working, path) == Some(&value) {
            return;
        }
        let depth = self.existing_depth(path);
        // Below an absent or null parent everything comes as one value.
        let (at, value) = match path.get(depth + 1..) {
            Some(rest) if !rest.is_empty() => (&path[..=depth], nest(rest, value)),
            Some(_) | None => (path, value),
        };
        let pointer = pointer(at);
        let operation = match lookup(&self.working, at) {
            Some(Value::Null) | None => Operation::Add { path: pointer, value: value.clone() },
            Some(_) => Operation::Replace { path: pointer, value: value.clone() },
        };
        if put(&mut self.working, at, value) {
            self.operations.push(operation);
        }
    }

    /// Appends to a list, which is made if it is absent.
    pub fn append(&mut self, path: &[&str], value: Value) {
        match lookup_mut(&mut self.working, path) {
            Some(Value::Array(list)) => {
                list.push(value.clone());
                let path = pointer(&[path, &["-"]].concat());
                self.operations.push(Operation::Add { path, value });
            }
            Some(_) | None => self.set(path, Value::Array(vec![value])),
        }
    }

    /// Removes a member, if it is there.
    pub fn remove(&mut self, path: &[&str]) {
        let Some((last, parent)) = path.split_last() else { return };
        let removed = lookup_mut(&mut self.working, parent).and_then(Value::as_object_mut);
        if removed.is_some_and(|map| map.shift_remove(*last).is_some()) {
            self.operations.push(Operation::Remove { path: pointer(path) });
        }
    }

    /// How many leading tokens lead to something that is neither absent nor null.
    fn existing_depth(&self, path: &[&str]) -> usize {
        (1..path.len())
            .take_while(|depth| lookup(&self.working, &path[..*depth]).is_some_and(|value| !value.is_null()))
            .count()
    }
}

fn nest(path: &[&str], value: Value) -> Value {
    path.iter().rev().fold(value, |value, key| {
        let mut map = Map::new();
        map.insert((*key).to_owned(), value);
        Value::Object(map)
    })
}

fn lookup<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| match value {
        Value::Object(map) => map.get(*key),
        Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })
}

fn lookup_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, key| match value {
        Value::Object(map) => map.get_mut(*key),
        Value::Array(list) => list.get_mut(key.parse::<usize>().ok()?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })
}

/// Puts a member into the object that its path leads to; false if that is no object.
fn put(working: &mut Value, path: &[&str], value: Value) -> bool {
    let Some((last, parent)) = path.split_last() else { return false };
    match lookup_mut(working, parent).and_then(Value::as_object_mut) {
        Some(map) => {
            map.insert((*last).to_owned(), value);
            true
        }
        None => false,
    }
}

/// RFC 6901: `~` before `/`, done by the library.
fn pointer(path: &[&str]) -> String {
    PointerBuf::from_tokens(path.iter().copied()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn build(object: Value, edit: impl Fn(&mut PatchBuilder)) -> (Value, Vec<Operation>) {
        let mut builder = PatchBuilder::new(object);
        edit(&mut builder);
        builder.finish()
    }

    fn apply(mut object: Value, operations: &[Operation]) -> Value {
        let patch = serde_json::from_value::<json_patch::Patch>(json!(operations)).expect("operations are a patch");
        json_patch::patch(&mut object, &patch).expect("the patch applies");
        object
    }

    fn edit(builder: &mut PatchBuilder) {
        builder.set(&["metadata", "labels", "a/b~c"], "x".into());
        builder.set(&["metadata", "labels", "d"], "y".into());
        builder.remove(&["metadata", "annotations", "gone"]);
        if !crate::json::list(builder.object(), &["spec", "volumes"]).contains(&json!({"name": "v"})) {
            builder.append(&["spec", "volumes"], json!({"name": "v"}));
        }
    }

    #[test]
    fn absent_parents_come_once_and_keys_are_escaped() {
        let (object, operations) = build(json!({}), edit);
        assert_eq!(
            json!(operations),
            json!([
                {"op": "add", "path": "/metadata", "value": {"labels": {"a/b~c": "x"}}},
                {"op": "add", "path": "/metadata/labels/d", "value": "y"},
                {"op": "add", "path": "/spec", "value": {"volumes": [{"name": "v"}]}},
            ])
        );
        assert_eq!(apply(json!({}), &operations), object);
        let (_, operations) =
            build(json!({"metadata": {"labels": {}}}), |b| b.set(&["metadata", "labels", "a/b~c"], 1.into()));
        assert_eq!(json!(operations), json!([{"op": "add", "path": "/metadata/labels/a~1b~0c", "value": 1}]));
    }

    proptest! {
        #[test]
        fn twice_is_once(labels in prop::option::of(prop::collection::btree_map("[a-d]/?~?", "[xy]", 0..4)),
                         volumes in prop::option::of(prop::collection::vec("[uv]", 0..3)), null in any::<bool>()) {
            let mut object = json!({"metadata": {"annotations": {"gone": "1"}}, "spec": {}});
            if let Some(labels) = labels { object["metadata"]["labels"] = json!(labels); }
            if null { object["spec"]["volumes"] = Value::Null; }
            if let Some(volumes) = volumes {
                object["spec"]["volumes"] = volumes.iter().map(|name| json!({"name": name})).collect();
            }
            let (once, operations) = build(object.clone(), edit);
            prop_assert_eq!(apply(object, &operations), once.clone());
            let (twice, operations) = build(once.clone(), edit);
            prop_assert_eq!(twice, once);
            prop_assert!(operations.is_empty());
        }
    }
}
