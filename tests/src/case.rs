//! What a case file says. `cases/README.md` explains it to whoever writes one.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use engine::offline::review_of;
use engine::review::Operation;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::expect::Expect;
use crate::people;

/// A file; or, within one, a variant or a later step.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Case {
    #[serde(alias = "name")]
    pub case: String,
    /// Where it was met.
    #[serde(default)]
    pub source: Vec<String>,
    #[serde(default)]
    pub essence: String,
    /// What we decided where the field leaves it open.
    #[serde(default)]
    pub choice: Vec<String>,

    /// Overlays of `data/with/`, in this order.
    #[serde(default)]
    pub with: Vec<String>,
    /// By team: a merge patch of its file. `null` takes the team away.
    #[serde(default)]
    pub teams: Value,
    /// A merge patch of `data/config.yaml`.
    #[serde(default)]
    pub config: Value,
    #[serde(default)]
    pub policies: Policies,
    /// When it is asked; otherwise now.
    pub time: Option<jiff::Timestamp>,
    /// An [`engine::offline::State`]; in a variant, a JSON Patch of the one before.
    #[serde(default)]
    pub state: Value,

    /// Whoever asks: see [`people`].
    #[serde(rename = "as")]
    pub caller: Option<String>,
    /// A whole AdmissionReview; in a variant or a later step, a JSON Patch of the one before.
    #[serde(default)]
    pub review: Value,
    /// A request in few words, in place of the review; then `review` is a JSON Patch of what it makes.
    pub ask: Option<Ask>,
    /// Bytes that are no review.
    pub body: Option<String>,

    pub expect: Expect,
    /// A gap that somebody else closes, and why it is one: the case must fail until then.
    pub pending: Option<String>,
    /// What is asked next, one after the other, in the world that the request left.
    #[serde(default)]
    pub then: Vec<Case>,
    /// Each from the start, with something changed.
    #[serde(default)]
    pub variants: Vec<Case>,
}

/// The starter policies, without some and with others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policies {
    /// By `@id`.
    pub omit: Vec<String>,
    /// Files of `policies/examples/`, without the ending.
    pub examples: Vec<String>,
    /// Cedar text.
    pub add: String,
}

/// A request in few words.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ask {
    /// Default: UPDATE where there is an `edit` or a `subresource` other than those that one connects to, else CREATE.
    pub operation: Option<Operation>,
    pub object: Option<Value>,
    /// `Kind/name` of an object of the state: what is edited, deleted, scaled or entered.
    pub stored: Option<String>,
    /// A merge patch of `stored`.
    pub edit: Option<Value>,
    /// `scale`, `exec` ... of `stored`; then `object` is the subresource's own.
    pub subresource: Option<String>,
    #[serde(default)]
    pub dry_run: bool,
}

impl Case {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let case: Self = serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?;
        ensure!(!case.essence.is_empty(), "{}: a case says what its essence is", path.display());
        Ok(case)
    }

    /// What is sent, given the review and the caller of the case around it and the objects that there are.
    pub fn request(&self, before: Option<&Value>, caller: Option<&str>, objects: &[Value]) -> Result<Request> {
        if let Some(body) = &self.body {
            return Ok(Request::Bytes(body.clone()));
        }
        let mut review = match (&self.ask, &self.review, before) {
            (Some(ask), Value::Array(_) | Value::Null, _) => patched(&ask.review(objects)?, &self.review)?,
            (None, Value::Object(_), _) => self.review.clone(),
            (None, Value::Array(_) | Value::Null, Some(before)) => patched(before, &self.review)?,
            _ => bail!("`{}` needs one of review, ask and body", self.case),
        };
        let asked = caller.filter(|_| self.ask.is_some());
        if let Some(caller) = self.caller.as_deref().or(asked) {
            review["request"]["userInfo"] = people::named(caller)?;
        }
        Ok(Request::Review(review))
    }

    /// The state to start from.
    pub fn state(&self, before: &Value) -> Result<Value> {
        match &self.state {
            Value::Null => Ok(before.clone()),
            Value::Array(_) => patched(before, &self.state),
            Value::Object(_) | Value::String(_) | Value::Number(_) | Value::Bool(_) => Ok(self.state.clone()),
        }
    }
}

/// What is sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    Review(Value),
    Bytes(String),
}

impl Ask {
    fn review(&self, objects: &[Value]) -> Result<Value> {
        let stored = self.stored.as_deref().map(|name| find(objects, name)).transpose()?;
        let operation = self.operation();
        let (object, old) = match (&self.object, stored, &self.edit) {
            (None, Some(stored), Some(edit)) => (merged(stored, edit), Some(stored)),
            (None, Some(stored), None) => (stored.clone(), Some(stored)),
            (Some(object), stored, None) => (object.clone(), stored),
            _ => bail!("ask: an `object`, or `stored` with an `edit`"),
        };
        let user = serde_json::from_value(people::named("alice")?)?;
        let mut review = review_of(&object, old, &user, operation, self.dry_run);
        if let (Some(subresource), Some(stored)) = (&self.subresource, stored) {
            let request = &mut review["request"];
            let of_stored = review_of(stored, None, &user, operation, false);
            for field in ["resource", "requestResource", "name", "namespace"] {
                request[field] = of_stored["request"][field].clone();
            }
            request["subResource"] = subresource.as_str().into();
            request["requestSubResource"] = subresource.as_str().into();
            // The old object of a subresource is the subresource's own, and nobody connects to anything old.
            request["oldObject"] = match (operation, subresource.as_str()) {
                (Operation::Update, "ephemeralcontainers" | "resize" | "status") => stored.clone(),
                (Operation::Update, "scale") => json!({"spec": {"replicas": stored["spec"]["replicas"]}}),
                _ => Value::Null,
            };
        }
        Ok(review)
    }

    fn operation(&self) -> Operation {
        let of_subresource = self.subresource.as_deref().map(|subresource| match subresource {
            "exec" | "attach" | "portforward" | "proxy" => Operation::Connect,
            "eviction" | "token" | "binding" => Operation::Create,
            _ => Operation::Update,
        });
        let of_object = if self.edit.is_some() { Operation::Update } else { Operation::Create };
        self.operation.or(of_subresource).unwrap_or(of_object)
    }
}

fn find<'a>(objects: &'a [Value], name: &str) -> Result<&'a Value> {
    let called = |object: &&Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"])) == name
    };
    objects.iter().rev().find(called).with_context(|| format!("the state has no {name}"))
}

/// Applies a JSON Patch.
pub fn patched(before: &Value, patch: &Value) -> Result<Value> {
    let mut after = before.clone();
    if !patch.is_null() {
        let patch: json_patch::Patch = serde_json::from_value(patch.clone()).context("not a JSON Patch")?;
        json_patch::patch(&mut after, &patch)?;
    }
    Ok(after)
}

/// Applies a merge patch (RFC 7396).
pub fn merged(before: &Value, patch: &Value) -> Value {
    let mut after = before.clone();
    json_patch::merge(&mut after, patch);
    after
}
