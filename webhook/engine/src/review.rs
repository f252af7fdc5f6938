//! The envelope: `admission.k8s.io/v1` AdmissionReview, read in the order that lets us answer.
//!
//! The uid comes first. What has none, is not JSON or is another version cannot be answered as a review and gets HTTP
//! 400; anything else that is wrong is refused in a review that carries the uid, because the API server counts an answer
//! without it as a failed webhook. Objects stay as they are: JSON values, never typed and written back.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::json::WrongType;

/// The one version that is answered, and that the webhook configurations list.
pub const API_VERSION: &str = "admission.k8s.io/v1";

/// What the API server asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Review {
    pub uid: String,
    pub operation: Operation,
    pub kind: GroupVersionKind,
    pub resource: GroupVersionResource,
    /// `scale`, `exec`, `ephemeralcontainers` ...
    pub subresource: Option<String>,
    /// Absent on CREATE with `generateName`.
    pub name: Option<String>,
    /// The only namespace that counts: `metadata.namespace` may be blank.
    pub namespace: Option<String>,
    pub user: UserInfo,
    /// `None` on DELETE. On CONNECT an options object without metadata.
    pub object: Option<Value>,
    /// `None` on CREATE and CONNECT.
    pub old_object: Option<Value>,
    pub dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, Deserialize)]
pub struct GroupVersionKind {
    #[serde(default)]
    pub group: String,
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, Deserialize)]
pub struct GroupVersionResource {
    #[serde(default)]
    pub group: String,
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub resource: String,
}

/// Whoever the API server authenticated. See `identity` for what of this can be believed.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    #[serde(deserialize_with = "null_is_default")]
    pub username: String,
    #[serde(deserialize_with = "null_is_default")]
    pub uid: String,
    #[serde(deserialize_with = "null_is_default")]
    pub groups: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub extra: BTreeMap<String, Vec<String>>,
}

fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Why a body is no review that can be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// HTTP 400: there is no uid to answer to.
    #[error("{0}")]
    Unanswerable(String),
    /// A refusal that carries the uid.
    #[error("{problem}")]
    Malformed { uid: String, problem: String },
}

type Fields<'a> = BTreeMap<String, &'a RawValue>;

impl Review {
    /// Reads a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ReviewError> {
        let request = answerable(body)?;
        let uid = uid_of(&request)?;
        Self::read(&uid, &request).map_err(|problem| ReviewError::Malformed { uid, problem: problem.to_string() })
    }

    /// The uid alone, for whoever must refuse without judging.
    pub fn parse_uid(body: &[u8]) -> Option<String> {
        answerable(body).and_then(|request| uid_of(&request)).ok()
    }

    fn read(uid: &str, request: &Fields<'_>) -> Result<Self, WrongType> {
        let review = Self {
            uid: uid.to_owned(),
            operation: required(request, "operation", "CREATE, UPDATE, DELETE or CONNECT")?,
            kind: required(request, "kind", "a group, version and kind")?,
            resource: required(request, "resource", "a group, version and resource")?,
            subresource: optional::<String>(request, "subResource", "a string")?.filter(|name| !name.is_empty()),
            name: optional::<String>(request, "name", "a string")?.filter(|name| !name.is_empty()),
            namespace: optional::<String>(request, "namespace", "a string")?.filter(|name| !name.is_empty()),
            user: optional(request, "userInfo", "a user with string fields")?.unwrap_or_default(),
            object: object(request, "object")?,
            old_object: object(request, "oldObject")?,
            dry_run: optional(request, "dryRun", "true or false")?.unwrap_or(false),
        };
        review.has_its_objects()?;
        Ok(review)
    }

    /// Without them there would be nothing to ask about, and nothing asked is nothing refused.
    fn has_its_objects(&self) -> Result<(), WrongType> {
        let missing = match self.operation {
            Operation::Create if self.object.is_none() => Some("object"),
            Operation::Update if self.object.is_none() => Some("object"),
            Operation::Update if self.old_object.is_none() => Some("oldObject"),
            Operation::Create | Operation::Update | Operation::Delete | Operation::Connect => None,
        };
        match missing {
            Some(key) => Err(WrongType::new(format!("request.{key}"), "an object")),
            None => Ok(()),
        }
    }

    /// `generateName` counts as a name followed by `*`, so that no message shows an empty one.
    pub fn display_name(&self) -> String {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let metadata = |object: &Value, key| crate::json::text(object, &["metadata", key]).map(str::to_owned);
        let object = self.object.as_ref().or(self.old_object.as_ref());
        object
            .and_then(|object| metadata(object, "name").or_else(|| metadata(object, "generateName").map(|n| n + "*")))
            .unwrap_or_else(|| "(unnamed)".to_owned())
    }

    /// What the object is, as facts are read from it.
    pub fn kind_ref(&self) -> crate::facts::KindRef<'_> {
        let Self { kind, resource, .. } = self;
        crate::facts::KindRef { group: &kind.group, kind: &kind.kind, resource: &resource.resource }
    }

    /// The object as it will be, or on DELETE as it was.
    pub fn subject(&self) -> Option<&Value> {
        self.object.as_ref().or(self.old_object.as_ref())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        })
    }
}

fn answerable(body: &[u8]) -> Result<Fields<'_>, ReviewError> {
    let unanswerable = |problem: String| ReviewError::Unanswerable(problem);
    let envelope: Fields<'_> = serde_json::from_slice(body)
        .map_err(|error| unanswerable(format!("the body is not a JSON object: {error}")))?;
    let field = |key: &str| envelope.get(key).and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
    match (field("apiVersion").as_deref(), field("kind").as_deref()) {
        (Some(API_VERSION), Some("AdmissionReview")) => {}
        (version, kind) => {
            return Err(unanswerable(format!(
                "only `{API_VERSION}` AdmissionReview is answered, not `{}` `{}`",
                version.unwrap_or_default(),
                kind.unwrap_or_default()
            )));
        }
    }
    let request = envelope.get("request").ok_or_else(|| unanswerable("`request` is missing".to_owned()))?;
    serde_json::from_str(request.get()).map_err(|_| unanswerable("`request` must be an object".to_owned()))
}

fn uid_of(request: &Fields<'_>) -> Result<String, ReviewError> {
    optional::<String>(request, "uid", "a string").ok().flatten().filter(|uid| !uid.is_empty()).ok_or_else(|| {
        ReviewError::Unanswerable("`request.uid` is missing, so there is nothing to answer to".to_owned())
    })
}

fn required<T: serde::de::DeserializeOwned>(
    request: &Fields<'_>,
    key: &str,
    expected: &'static str,
) -> Result<T, WrongType> {
    optional(request, key, expected)?.ok_or_else(|| WrongType::new(format!("request.{key}"), expected))
}

fn optional<T: serde::de::DeserializeOwned>(
    request: &Fields<'_>,
    key: &str,
    expected: &'static str,
) -> Result<Option<T>, WrongType> {
    let Some(raw) = request.get(key) else { return Ok(None) };
    serde_json::from_str(raw.get()).map_err(|_| WrongType::new(format!("request.{key}"), expected))
}

fn object(request: &Fields<'_>, key: &str) -> Result<Option<Value>, WrongType> {
    match optional::<Value>(request, key, "an object nested less than 128 deep")? {
        None | Some(Value::Null) => Ok(None),
        Some(object @ Value::Object(_)) => Ok(Some(object)),
        Some(_) => Err(WrongType::new(format!("request.{key}"), "an object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(request: &str) -> Result<Review, ReviewError> {
        let body = format!(r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{request}}}"#);
        Review::parse(body.as_bytes())
    }

    #[test]
    fn what_has_no_uid_is_unanswerable() {
        let bodies = [
            "",
            "{",
            "[]",
            "null",
            "\"x\"",
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#,
            r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"u"}}"#,
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"Pod","request":{"uid":"u"}}"#,
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":[]}"#,
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":""}}"#,
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":7}}"#,
        ];
        for body in bodies {
            assert!(matches!(Review::parse(body.as_bytes()), Err(ReviewError::Unanswerable(_))), "{body}");
        }
    }

    #[test]
    fn wrong_types_are_refused_with_the_uid() {
        let base = r#""uid":"u","kind":{"kind":"Pod"},"resource":{"resource":"pods"}"#;
        let requests = [
            format!(r#"{{{base}}}"#),
            format!(r#"{{{base},"operation":"PATCH"}}"#),
            format!(r#"{{{base},"operation":"CREATE","object":{{}},"userInfo":5}}"#),
            format!(r#"{{{base},"operation":"CREATE","object":{{}},"userInfo":{{"extra":{{"arn":"x"}}}}}}"#),
            format!(r#"{{{base},"operation":"CREATE","object":[]}}"#),
            format!(r#"{{{base},"operation":"CREATE","object":null}}"#),
            format!(r#"{{{base},"operation":"UPDATE","object":{{}}}}"#),
            format!(r#"{{{base},"operation":"UPDATE","oldObject":{{}}}}"#),
            format!(r#"{{{base},"operation":"CREATE","object":{{}},"dryRun":"no"}}"#),
            format!(r#"{{{base},"operation":"CREATE","object":{}1{}}}"#, "{\"a\":".repeat(10_000), "}".repeat(10_000)),
        ];
        for request in requests {
            let refused = review(&request);
            assert!(matches!(&refused, Err(ReviewError::Malformed { uid, .. }) if uid == "u"), "{refused:?}");
        }
    }

    #[test]
    fn what_the_api_server_leaves_out_is_normal() {
        let review = review(
            r#"{"uid":"u","operation":"DELETE","kind":{"kind":"Pod"},"resource":{"resource":"pods"},
                "object":null,"oldObject":null,"userInfo":{"username":"x","groups":null,"extra":null},"subResource":""}"#,
        )
        .expect("a review");
        assert_eq!((review.object, review.old_object, review.subresource), (None, None, None));
        assert_eq!(review.user.username, "x");
    }
}
