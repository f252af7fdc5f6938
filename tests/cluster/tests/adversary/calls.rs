//! Requests as they are sent: kubectl has no flag for half of them.

use cluster::TEAM_A;
use serde_json::Value;

/// A request before somebody sends it.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) body: Value,
    pub(crate) headers: Vec<(String, String)>,
}

const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Kinds of the cluster, which are in no namespace.
const CLUSTER_SCOPED: [&str; 9] = [
    "CertificateSigningRequest",
    "ClusterRole",
    "ClusterRoleBinding",
    "Namespace",
    "PersistentVolume",
    "PriorityClass",
    "RuntimeClass",
    "StorageClass",
    "ValidatingWebhookConfiguration",
];

impl Call {
    pub(crate) fn of(method: &'static str, path: &str, body: Value) -> Self {
        Self { method, path: path.to_owned(), content_type: JSON, body, headers: Vec::new() }
    }

    /// To a subresource.
    pub(crate) fn below(mut self, subresource: &str) -> Self {
        self.path = format!("{}/{subresource}", self.path);
        self
    }

    pub(crate) fn in_namespace(mut self, namespace: &str) -> Self {
        self.path = self.path.replace(&format!("/namespaces/{TEAM_A}/"), &format!("/namespaces/{namespace}/"));
        self
    }

    /// Lists are merged by their keys.
    pub(crate) fn strategic(self) -> Self {
        Self { content_type: STRATEGIC_PATCH, ..self }
    }

    pub(crate) fn rehearsed(mut self) -> Self {
        self.path.push_str("?dryRun=All");
        self
    }

    /// By server-side apply instead.
    pub(crate) fn applied(self) -> Self {
        let name = text(&self.body["metadata"]["name"]);
        let path = format!("{}/{name}?fieldManager=adversary&force=true", self.path);
        Self { method: "PATCH", content_type: APPLY_PATCH, path, ..self }
    }

    /// As somebody else.
    pub(crate) fn posing(mut self, username: &str, group: Option<&str>) -> Self {
        self.headers.push(("Impersonate-User".to_owned(), username.to_owned()));
        self.headers.extend(group.map(|group| ("Impersonate-Group".to_owned(), group.to_owned())));
        self
    }
}

/// In its own namespace, or else in team A's.
pub(crate) fn create(object: &Value) -> Call {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or(TEAM_A);
    let path = collection(text(&object["apiVersion"]), text(&object["kind"]), Some(namespace));
    create_in(&path, object)
}

pub(crate) fn create_in(path: &str, object: &Value) -> Call {
    Call::of("POST", path, object.clone())
}

/// A JSON patch if it is a list, else a merge patch.
pub(crate) fn patch(version: &str, kind: &str, name: &str, body: &Value) -> Call {
    let content_type = if body.is_array() { JSON_PATCH } else { MERGE_PATCH };
    let path = format!("{}/{name}", collection(version, kind, Some(TEAM_A)));
    Call { content_type, ..Call::of("PATCH", &path, body.clone()) }
}

pub(crate) fn connect(path: &str) -> Call {
    Call::of("GET", path, Value::Null)
}

/// Where objects of a kind are created.
pub(crate) fn collection(version: &str, kind: &str, namespace: Option<&str>) -> String {
    let root = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    match namespace.filter(|_| !CLUSTER_SCOPED.contains(&kind)) {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{}", plural(kind)),
        None => format!("{root}/{}", plural(kind)),
    }
}

fn plural(kind: &str) -> String {
    let kind = kind.to_ascii_lowercase();
    match kind.strip_suffix('y') {
        Some(stem) if !kind.ends_with("ay") => format!("{stem}ies"),
        _ if kind.ends_with('s') => format!("{kind}{}", if kind.ends_with("ss") { "es" } else { "" }),
        _ => format!("{kind}s"),
    }
}

/// The object with one place changed; what is missing on the way is made.
pub(crate) fn with(mut object: Value, path: &str, value: Value) -> Value {
    let mut place = &mut object;
    for key in path.split('/').skip(1) {
        place = match key.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) => &mut place[key],
        };
    }
    *place = value;
    object
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
