//! Reads JSON field by field and remembers where it is, so that an error names the field by its JSON pointer.
//!
//! The way back to the root is a chain on the stack: nothing is allocated unless a pointer is asked for. Absent and null
//! are the same everywhere, as they are for Kubernetes: an absent object has no fields, an absent list no items.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde_json::{Map, Value};

use super::FactsError;
use crate::amounts::{MAX, shown};

/// An object and where it stands.
#[derive(Clone, Copy)]
pub(super) struct Node<'j, 'p> {
    fields: Option<&'j Map<String, Value>>,
    place: Place<'p>,
}

/// A field of the parent, or an item of a list that is a field of the parent.
#[derive(Clone, Copy)]
struct Place<'p> {
    parent: Option<&'p Place<'p>>,
    key: &'p str,
    index: Option<usize>,
}

impl<'j, 'p> Node<'j, 'p> {
    pub(super) fn root(value: &'j Value) -> Result<Self, FactsError> {
        Self::read(Some(value), Place { parent: None, key: "", index: None })
    }

    /// What a kind has no field for.
    pub(super) const fn nothing() -> Self {
        Self { fields: None, place: Place { parent: None, key: "", index: None } }
    }

    fn read(value: Option<&'j Value>, place: Place<'p>) -> Result<Self, FactsError> {
        match value {
            None | Some(Value::Null) => Ok(Self { fields: None, place }),
            Some(Value::Object(fields)) => Ok(Self { fields: Some(fields), place }),
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                Err(FactsError { pointer: place.pointer(), problem: "must be an object".to_owned() })
            }
        }
    }

    pub(super) fn pointer(&self) -> String {
        self.place.pointer()
    }

    /// An error about one field.
    pub(super) fn error(&self, key: &str, problem: impl Display) -> FactsError {
        FactsError { pointer: self.place.child(key, None).pointer(), problem: problem.to_string() }
    }

    fn error_at(&self, key: &str, index: usize, problem: impl Display) -> FactsError {
        FactsError { pointer: self.place.child(key, Some(index)).pointer(), problem: problem.to_string() }
    }

    /// Is there an object at all?
    pub(super) fn exists(&self) -> bool {
        self.fields.is_some()
    }

    /// Present and not null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    pub(super) fn value(&self, key: &str) -> Option<&'j Value> {
        self.fields?.get(key).filter(|value| !value.is_null())
    }

    /// The fields that are not null.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'j str, &'j Value)> + use<'j> {
        let fields = self.fields.into_iter().flatten();
        fields.filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.as_str(), value))
    }

    pub(super) fn object<'s>(&'s self, key: &'s str) -> Result<Node<'j, 's>, FactsError> {
        Node::read(self.value(key), self.place.child(key, None))
    }

    /// What stands at the end of a way through fields and items of lists; an object without fields if nothing does.
    pub(super) fn at<R, F>(&self, tokens: &[String], read: F) -> Result<R, FactsError>
    where
        F: FnOnce(&Node<'j, '_>) -> Result<R, FactsError>,
    {
        match tokens {
            [] => read(self),
            [key, item, rest @ ..] if self.value(key).is_some_and(Value::is_array) => {
                let index = item.parse().ok();
                let value = index.and_then(|index: usize| self.value(key)?.get(index));
                Node::read(value, self.place.child(key, index))?.at(rest, read)
            }
            [key, rest @ ..] => self.object(key)?.at(rest, read),
        }
    }

    /// The items of a list of objects.
    pub(super) fn objects<'s>(
        &'s self,
        key: &'s str,
    ) -> Result<impl Iterator<Item = Result<Node<'j, 's>, FactsError>>, FactsError> {
        let items = self.list(key)?.iter().enumerate();
        Ok(items.map(move |(index, value)| Node::read(Some(value), self.place.child(key, Some(index)))))
    }

    /// Every object that is a field, or an item of a list that is a field. Lists of lists are passed over: no kind of
    /// Kubernetes keeps objects in one.
    pub(super) fn nested<'s>(&'s self) -> impl Iterator<Item = (&'j str, Node<'j, 's>)> {
        self.fields().flat_map(move |(key, value)| {
            let (object, items) = match value {
                Value::Object(_) => (Some(value), [].as_slice()),
                Value::Array(items) => (None, items.as_slice()),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => (None, [].as_slice()),
            };
            let object = object.map(|value| (value, None));
            let items = items.iter().enumerate().map(|(index, value)| (value, Some(index)));
            object.into_iter().chain(items).filter_map(move |(value, index)| {
                let fields = value.as_object()?;
                Some((key, Node { fields: Some(fields), place: self.place.child(key, index) }))
            })
        })
    }

    pub(super) fn list(&self, key: &str) -> Result<&'j [Value], FactsError> {
        match self.value(key) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(self.error(key, "must be a list")),
        }
    }

    pub(super) fn strings(&self, key: &str) -> Result<Vec<&'j str>, FactsError> {
        let items = self.list(key)?.iter().enumerate();
        items.map(|(i, item)| item.as_str().ok_or_else(|| self.error_at(key, i, "must be a string"))).collect()
    }

    pub(super) fn integers(&self, key: &str) -> Result<Vec<i64>, FactsError> {
        let items = self.list(key)?.iter().enumerate();
        items.map(|(i, item)| item.as_i64().ok_or_else(|| self.error_at(key, i, "must be a whole number"))).collect()
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<&'j str>, FactsError> {
        let read = |value: &'j Value| value.as_str().ok_or_else(|| self.error(key, "must be a string"));
        self.value(key).map(read).transpose()
    }

    /// A name: the empty string is the same as none.
    pub(super) fn name(&self, key: &str) -> Result<Option<String>, FactsError> {
        Ok(self.string(key)?.filter(|name| !name.is_empty()).map(str::to_owned))
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, FactsError> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| self.error(key, "must be true or false"));
        self.value(key).map(read).transpose()
    }

    /// A flag that is off unless it is set.
    pub(super) fn flag(&self, key: &str) -> Result<bool, FactsError> {
        Ok(self.boolean(key)?.unwrap_or(false))
    }

    pub(super) fn integer(&self, key: &str) -> Result<Option<i64>, FactsError> {
        let read = |value: &Value| value.as_i64().ok_or_else(|| self.error(key, "must be a whole number"));
        self.value(key).map(read).transpose()
    }

    /// How many of something.
    pub(super) fn count(&self, key: &str) -> Result<Option<u64>, FactsError> {
        self.value(key).map(|value| count(value).map_err(|problem| self.error(key, problem))).transpose()
    }

    /// A map of strings, as labels are. A null value is the empty string, as Kubernetes reads it.
    pub(super) fn string_map(&self, key: &str) -> Result<BTreeMap<String, String>, FactsError> {
        let map = self.object(key)?;
        let fields = map.fields.into_iter().flatten();
        fields
            .map(|(key, value)| match value {
                Value::Null => Ok((key.clone(), String::new())),
                Value::String(text) => Ok((key.clone(), text.clone())),
                Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                    Err(map.error(key, "must be a string"))
                }
            })
            .collect()
    }

    /// Notes every field that is not on the list.
    pub(super) fn note_unknown(&self, known: &[&str], unknown: &mut BTreeSet<String>) {
        for (key, _) in self.fields().filter(|(key, _)| !known.contains(key)) {
            unknown.insert(self.place.child(key, None).pointer());
        }
    }
}

/// A count as JSON: a whole number, not negative, that every later sum can hold. `4.0` is four: some clients write it.
pub(super) fn count(value: &Value) -> Result<u64, String> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53: above it a float says nothing exact
    let Value::Number(number) = value else { return Err("must be a whole number".to_owned()) };
    if let Some(count) = number.as_u64() {
        return if count <= MAX {
            Ok(count)
        } else {
            Err(format!("is {}, which is too large", shown(&count.to_string())))
        };
    }
    match number.as_f64() {
        Some(float) if float < 0.0 => Err(format!("is {} but must not be negative", shown(&number.to_string()))),
        Some(float) if float > EXACT => Err(format!("is {}, which is too large", shown(&number.to_string()))),
        Some(float) if float.fract() == 0.0 => Ok(float as u64),
        Some(_) | None => Err(format!("is {} but must be a whole number", shown(&number.to_string()))),
    }
}

impl<'p> Place<'p> {
    const fn child<'s>(&'s self, key: &'s str, index: Option<usize>) -> Place<'s> {
        Place { parent: Some(self), key, index }
    }

    fn pointer(&self) -> String {
        let mut chain = Vec::new();
        let mut place = self;
        while let Some(parent) = place.parent {
            chain.push(place);
            place = parent;
        }
        let mut pointer = String::new();
        for place in chain.into_iter().rev() {
            pointer.push('/');
            push_escaped(place.key, &mut pointer);
            if let Some(index) = place.index {
                pointer.push('/');
                pointer.push_str(&index.to_string());
            }
        }
        pointer
    }
}

fn push_escaped(key: &str, pointer: &mut String) {
    for character in key.chars() {
        match character {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_point_to_the_field() -> Result<(), FactsError> {
        let object = json!({"a": [{}, {"b/~": {"c": 1}}]});
        let root = Node::root(&object)?;
        let item = root.objects("a")?.nth(1).expect("two items")?;
        let inner = item.object("b/~")?;
        assert_eq!(inner.string("c").expect_err("a number").to_string(), "`/a/1/b~1~0/c` must be a string");
        assert_eq!(root.object("a").err().map(|e| e.to_string()), Some("`/a` must be an object".to_owned()));
        Ok(())
    }

    #[test]
    fn counts() {
        assert_eq!(count(&json!(4)), Ok(4));
        assert_eq!(count(&json!(4.0)), Ok(4));
        for (value, problem) in [
            (json!(-1), "is `-1` but must not be negative"),
            (json!(1.5), "is `1.5` but must be a whole number"),
            (json!(1_u64 << 63), "is `9223372036854775808`, which is too large"),
            (json!(1e300), "is `1e+300`, which is too large"),
            (json!("4"), "must be a whole number"),
        ] {
            assert_eq!(count(&value), Err(problem.to_owned()), "{value}");
        }
    }
}
