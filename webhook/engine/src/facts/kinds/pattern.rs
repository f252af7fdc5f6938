//! Where something stands in an object: a JSON pointer in which `*` stands for each item of a list or each value of a map.

use std::fmt;

use jsonptr::PointerBuf;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::facts::FactsError;

/// `/spec/workerGroupSpecs/*/template`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(Vec<Token>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Token {
    Key(String),
    Each,
}

/// A value that a pattern led to.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::facts) struct Found<'j> {
    /// The way to it, without any `*`.
    pub(in crate::facts) tokens: Vec<String>,
    pub(in crate::facts) value: &'j Value,
}

impl Pattern {
    /// Every place that it leads to. What is absent or null on the way is no place; what has no fields is an error, because
    /// what cannot be read cannot be judged.
    pub(in crate::facts) fn find<'j>(&self, object: &'j Value) -> Result<Vec<Found<'j>>, FactsError> {
        let mut found = vec![Found { tokens: Vec::new(), value: object }];
        for token in &self.0 {
            let mut below = Vec::new();
            for place in &found {
                place.step(token, &mut below)?;
            }
            found = below;
        }
        Ok(found)
    }

    /// The same item as in `place`, as long as both patterns go the same way: beside `/spec/groups/*/template` at
    /// `/spec/groups/2/template`, `/spec/groups/*/replicas` is `/spec/groups/2/replicas`.
    pub(in crate::facts) fn beside(&self, other: &Self, place: &[String]) -> Self {
        let shared = self.0.iter().zip(&other.0).take_while(|(ours, theirs)| ours == theirs).count();
        let known = place.iter().take(shared).cloned().map(Token::Key);
        Self(known.chain(self.0.iter().skip(shared).cloned()).collect())
    }

    /// The place in an object that holds another's `spec` at `at`.
    pub(in crate::facts) fn within(&self, at: &Self) -> Self {
        let below_spec = self.0.iter().skip(1).cloned();
        Self(at.0.iter().cloned().chain(below_spec).collect())
    }

    pub(in crate::facts) fn is_in_spec(&self) -> bool {
        self.0.first() == Some(&Token::Key("spec".to_owned()))
    }

    pub(in crate::facts) fn has_each(&self) -> bool {
        self.0.contains(&Token::Each)
    }

    /// The way, if there is only one.
    pub fn tokens(&self) -> Option<Vec<String>> {
        let key = |token: &Token| match token {
            Token::Key(key) => Some(key.clone()),
            Token::Each => None,
        };
        self.0.iter().map(key).collect()
    }
}

impl<'j> Found<'j> {
    pub(in crate::facts) fn pointer(&self) -> String {
        pointer(&self.tokens)
    }

    fn step(&self, token: &Token, below: &mut Vec<Self>) -> Result<(), FactsError> {
        let mut add = |key: String, value: &'j Value| {
            if !value.is_null() {
                let tokens = self.tokens.iter().cloned().chain([key]).collect();
                below.push(Found { tokens, value });
            }
        };
        let problem = match (token, self.value) {
            (Token::Key(key), Value::Object(fields)) => {
                fields.get(key).into_iter().for_each(|value| add(key.clone(), value));
                return Ok(());
            }
            (Token::Key(key), Value::Array(items)) => {
                let item = key.parse::<usize>().ok().and_then(|index| items.get(index));
                item.into_iter().for_each(|value| add(key.clone(), value));
                return Ok(());
            }
            (Token::Each, Value::Object(fields)) => {
                fields.iter().for_each(|(key, value)| add(key.clone(), value));
                return Ok(());
            }
            (Token::Each, Value::Array(items)) => {
                items.iter().enumerate().for_each(|(index, value)| add(index.to_string(), value));
                return Ok(());
            }
            (_, Value::Null) => return Ok(()),
            (Token::Key(_), _) => "must be an object",
            (Token::Each, _) => "must be a list or a map",
        };
        Err(FactsError { pointer: self.pointer(), problem: problem.to_owned() })
    }
}

/// RFC 6901.
pub(in crate::facts) fn pointer(tokens: &[String]) -> String {
    PointerBuf::from_tokens(tokens.iter().map(String::as_str)).to_string()
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let pointer = PointerBuf::parse(text.as_str())
            .map_err(|_| format!("`{text}` is no JSON pointer: it begins with `/`, and `~` in a key is `~0`"))?;
        let token = |token: jsonptr::Token<'_>| match token.encoded() {
            "*" => Token::Each,
            _ => Token::Key(token.decoded().into_owned()),
        };
        let tokens: Vec<Token> = pointer.tokens().map(token).collect();
        if tokens.is_empty() {
            return Err("a pointer to the whole object says nothing".to_owned());
        }
        Ok(Self(tokens))
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|token| match token {
            Token::Key(key) => f.write_str(&pointer(std::slice::from_ref(key))),
            Token::Each => f.write_str("/*"),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::try_from(text.to_owned()).expect("a pointer")
    }

    fn pointers(text: &str, object: &Value) -> Result<Vec<String>, FactsError> {
        Ok(pattern(text).find(object)?.iter().map(Found::pointer).collect())
    }

    #[test]
    fn stars_stand_for_items_and_values() {
        let object = json!({"spec": {"a": [{"x": 1}, null, {"y": 1}, {"x": 2}], "m": {"k/~": {"x": 3}, "n": null}}});
        assert_eq!(pointers("/spec/a/*/x", &object), Ok(vec!["/spec/a/0/x".to_owned(), "/spec/a/3/x".to_owned()]));
        assert_eq!(pointers("/spec/m/*/x", &object), Ok(vec!["/spec/m/k~1~0/x".to_owned()]));
        assert_eq!(pointers("/spec/m/k~1~0/x", &object), Ok(vec!["/spec/m/k~1~0/x".to_owned()]));
        assert_eq!(pointers("/spec/none/*/x", &object), Ok(Vec::new()));
        assert_eq!(pattern("/spec/m/k~1~0/*").to_string(), "/spec/m/k~1~0/*");
    }

    #[test]
    fn what_has_no_fields_is_an_error() {
        let object = json!({"spec": {"a": 1}});
        for (text, message) in [("/spec/a/b", "must be an object"), ("/spec/a/*", "must be a list or a map")] {
            assert_eq!(pointers(text, &object).expect_err("a number").to_string(), format!("`/spec/a` {message}"));
        }
    }

    #[test]
    fn the_same_item_as_the_template() {
        let template = pattern("/spec/groups/*/template");
        let place = ["spec", "groups", "2", "template"].map(str::to_owned);
        for (text, expected) in [
            ("/spec/groups/*/replicas", "/spec/groups/2/replicas"),
            ("/spec/groups/*/sizes/*", "/spec/groups/2/sizes/*"),
            ("/spec/others/*", "/spec/others/*"),
        ] {
            assert_eq!(pattern(text).beside(&template, &place).to_string(), expected);
        }
    }

    #[test]
    fn a_spec_that_stands_in_another() {
        let within = pattern("/spec/groups/*/template").within(&pattern("/spec/cluster"));
        assert_eq!(within.to_string(), "/spec/cluster/groups/*/template");
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        for text in ["", "spec", "/spec/~2"] {
            assert!(Pattern::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
