//! Reading JSON that somebody else wrote: every read names the field it looked at, so that a refusal can, too.

use serde_json::{Map, Value};

/// A field that is there but is not what it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` must be {expected}")]
pub struct WrongType {
    pub path: String,
    pub expected: &'static str,
}

impl WrongType {
    pub fn new(path: impl Into<String>, expected: &'static str) -> Self {
        Self { path: path.into(), expected }
    }
}

/// Absent and `null` are the same to the API server, and so they are here.
pub fn present<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

/// Follows `keys` through objects; absent or `null` anywhere on the way is `None`.
pub fn at<'a>(object: &'a Value, keys: &[&str]) -> Option<&'a Value> {
    keys.iter().try_fold(object, |value, key| present(value, key))
}

/// Follows `keys` through objects and lists.
pub fn walk<'a>(value: &'a Value, keys: &[&str]) -> Option<&'a Value> {
    keys.iter().try_fold(value, |value, key| match value.as_array() {
        Some(items) => items.get(key.parse::<usize>().ok()?),
        None => present(value, key),
    })
}

/// The string at `keys`, if it is one.
pub fn text<'a>(object: &'a Value, keys: &[&str]) -> Option<&'a str> {
    at(object, keys).and_then(Value::as_str)
}

/// A map of strings such as labels. Other values are an error: the API server would have refused them.
pub fn strings(object: &Value, keys: &[&str]) -> Result<Vec<(String, String)>, WrongType> {
    let Some(value) = at(object, keys) else { return Ok(Vec::new()) };
    let path = || keys.join(".");
    let map = value.as_object().ok_or_else(|| WrongType::new(path(), "a map of strings"))?;
    map.iter()
        .map(|(key, value)| match value.as_str() {
            Some(text) => Ok((key.clone(), text.to_owned())),
            None => Err(WrongType::new(format!("{}.{key}", path()), "a string")),
        })
        .collect()
}

static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);

/// The object at `keys`, or an empty one.
pub fn object<'a>(value: &'a Value, keys: &[&str]) -> &'a Map<String, Value> {
    at(value, keys).and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// The members of the list at `keys`, or none.
pub fn list<'a>(value: &'a Value, keys: &[&str]) -> &'a [Value] {
    at(value, keys).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
