//! What differs between two objects, leaf by leaf: the whole of what a patch did, in a form that does not depend on how
//! the patch was cut into operations.

use std::collections::BTreeMap;

use serde_json::Value;

/// JSON pointer to what stands there afterwards; `null` where something was taken away. An element that is appended to a
/// list counts as one leaf.
pub fn difference(before: &Value, after: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    compare(String::new(), Some(before), Some(after), &mut found);
    found
}

fn compare(path: String, before: Option<&Value>, after: Option<&Value>, found: &mut BTreeMap<String, Value>) {
    let is_new = before.is_none_or(Value::is_null);
    match (before, after) {
        (before, after) if before == after => {}
        (before, Some(Value::Object(after)))
            if before.is_some_and(Value::is_object) || (is_new && !after.is_empty()) =>
        {
            let old = before.and_then(Value::as_object);
            for key in old.into_iter().flat_map(|old| old.keys()).chain(after.keys()) {
                compare(below(&path, key), old.and_then(|old| old.get(key)), after.get(key), found);
            }
        }
        (before, Some(Value::Array(after))) if before.is_some_and(Value::is_array) || (is_new && !after.is_empty()) => {
            let old = before.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            for index in 0..old.len().max(after.len()) {
                let path = below(&path, &index.to_string());
                match (old.get(index), after.get(index)) {
                    (None, Some(new)) => {
                        found.insert(path, new.clone());
                    }
                    (old, new) => compare(path, old, new, found),
                }
            }
        }
        (_, after) => {
            found.insert(path, after.cloned().unwrap_or(Value::Null));
        }
    }
}

fn below(path: &str, key: &str) -> String {
    format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn leaves_and_nothing_else() {
        let before =
            json!({"a": {"b": 1, "gone": 2}, "emptied": {"c": 1}, "list": [{"x": 1}], "same": [1, {"y": null}]});
        let after = json!({"a": {"b": 2}, "emptied": {}, "list": [{"x": 1, "new": {"z~/": 3}}, {"x": 2}], "same": [1, {"y": null}],
                           "made": {"l": ["e"]}});
        let expected = json!({
            "/a/b": 2, "/a/gone": null, "/emptied/c": null, "/list/0/new/z~0~1": 3, "/list/1": {"x": 2}, "/made/l/0": "e",
        });
        assert_eq!(json!(difference(&before, &after)), expected);
        assert!(difference(&before, &before).is_empty());
    }
}
