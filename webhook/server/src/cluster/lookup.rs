//! What the snapshot does not hold yet: one quorum GET, and then the answer is final.
//!
//! A controller makes a pod milliseconds after its owner, often before the watch has brought the owner here.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwap;
use engine::attribution::stored_target;
use engine::cluster::{Cluster, OwnerReference};
use engine::json;
use engine::pipeline::Evaluation;
use engine::review::Review;
use engine::snapshot::Snapshot;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::discovery::ApiResource;
use kube::discovery;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::resources::{self, Resources};
use super::{ApiServer, chain};

/// An object to be fetched.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    pub group: String,
    pub kind: WantedKind,
    pub namespace: String,
    pub name: String,
    /// Another uid is another object.
    pub uid: Option<String>,
}

/// References name a kind, requests a plural.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WantedKind {
    Kind(String),
    Plural(String),
}

/// The API server did not say whether the object exists: not now, rather than no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the API server does not answer: {0}")]
pub struct Unanswered(pub String);

pub type Fetching<'a> = Pin<Box<dyn Future<Output = Result<Option<Value>, Unanswered>> + Send + 'a>>;

pub type Listing<'a> = Pin<Box<dyn Future<Output = Result<Vec<Value>, Unanswered>> + Send + 'a>>;

/// Quorum reads.
pub trait Lookup: Debug + Send + Sync + 'static {
    /// A single object. `None`: there is no such object, now or ever.
    fn fetch<'a>(&'a self, wanted: &'a Wanted) -> Fetching<'a>;

    /// All pods of a namespace.
    fn pods<'a>(&'a self, namespace: &'a str) -> Listing<'a>;
}

impl Wanted {
    fn owner(owner: &OwnerReference, namespace: &str) -> Self {
        Self {
            group: owner.group.clone(),
            kind: WantedKind::Kind(owner.kind.clone()),
            namespace: namespace.to_owned(),
            name: owner.name.clone(),
            uid: Some(owner.uid.clone()),
        }
    }
}

/// What would change the evaluation if it were known: the owner that the walk missed, or in a team's namespace the target
/// of a subresource.
pub fn wanted(review: &Review, evaluation: &Evaluation, snapshot: &Snapshot) -> Option<Wanted> {
    let namespace = review.namespace.as_deref()?;
    if let Some(owner) = &evaluation.missing_owner {
        return Some(Wanted::owner(owner, namespace));
    }
    let (Some(name), Some(_), Some(_)) = (&review.name, &review.subresource, &evaluation.team) else { return None };
    if stored_target(review, &snapshot.cluster).is_some() {
        return None;
    }
    Some(Wanted {
        group: review.resource.group.clone(),
        kind: WantedKind::Plural(review.resource.resource.clone()),
        namespace: namespace.to_owned(),
        name: name.clone(),
        uid: None,
    })
}

/// The snapshot with one object more. It goes no further: the watch brings the object in its own order.
pub fn with(snapshot: &Snapshot, object: Value) -> Snapshot {
    let mut cluster = Cluster::clone(&snapshot.cluster);
    cluster.insert(object);
    Snapshot { cluster: Arc::new(cluster), ..snapshot.clone() }
}

/// How many are under way at once. People can ask for pods that do not exist; that must not become load on the API server.
const MAX_AT_ONCE: usize = 32;

/// Objects of one page of a list.
const PAGE: u32 = 500;

/// Asks the API server.
#[derive(Debug)]
pub struct ApiLookup {
    api_server: ApiServer,
    known: Arc<ArcSwap<Resources>>,
    slots: Semaphore,
}

impl ApiLookup {
    pub fn new(api_server: ApiServer, known: Arc<ArcSwap<Resources>>) -> Self {
        Self { api_server, known, slots: Semaphore::new(MAX_AT_ONCE) }
    }

    async fn get(&self, wanted: &Wanted) -> Result<Option<Value>, Unanswered> {
        let unanswered = |error: kube::Error| Unanswered(chain(&error));
        let _slot = self.slots.acquire().await.map_err(|error| Unanswered(error.to_string()))?;
        let Some(resource) = self.resource(wanted).await.map_err(unanswered)? else { return Ok(None) };
        let api: Api<DynamicObject> = Api::namespaced_with(self.api_server.client(), &wanted.namespace, &resource);
        // Without a resourceVersion: a quorum read.
        let found = api.get_opt(&wanted.name).await.map_err(unanswered)?;
        let found = found.map(|object| super::watches::whole(&resource, object));
        Ok(found.filter(|object| is_wanted(wanted, object)))
    }

    async fn list(&self, namespace: &str) -> Result<Vec<Value>, Unanswered> {
        let unanswered = |error: kube::Error| Unanswered(chain(&error));
        let resource = resources::resource("", "v1", "Pod", "pods");
        let api: Api<DynamicObject> = Api::namespaced_with(self.api_server.client(), namespace, &resource);
        let mut pods = Vec::new();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            // Without a resourceVersion: a quorum read.
            let list = api.list(&page).await.map_err(unanswered)?;
            pods.extend(list.items.into_iter().map(|pod| super::watches::whole(&resource, pod)));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(pods),
            }
        }
    }

    /// A kind that is not watched (its definition has just come) is looked up for this once.
    async fn resource(&self, wanted: &Wanted) -> kube::Result<Option<ApiResource>> {
        let known = self.known.load();
        match &wanted.kind {
            WantedKind::Plural(plural) => Ok(known.of_plural(&wanted.group, plural).cloned()),
            WantedKind::Kind(kind) => match known.of_kind(&wanted.group, kind) {
                Some(resource) => Ok(Some(resource.clone())),
                None if wanted.group.is_empty() => Ok(None),
                None => match discovery::group(&self.api_server.client(), &wanted.group).await {
                    Ok(group) => Ok(group.recommended_kind(kind).map(|(resource, _)| resource)),
                    Err(kube::Error::Discovery(_)) => Ok(None),
                    Err(error) => Err(error),
                },
            },
        }
    }
}

fn is_wanted(wanted: &Wanted, object: &Value) -> bool {
    wanted.uid.as_deref().is_none_or(|uid| json::text(object, &["metadata", "uid"]) == Some(uid))
}

impl Lookup for ApiLookup {
    fn fetch<'a>(&'a self, wanted: &'a Wanted) -> Fetching<'a> {
        Box::pin(self.get(wanted))
    }

    fn pods<'a>(&'a self, namespace: &'a str) -> Listing<'a> {
        Box::pin(self.list(namespace))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn another_uid_is_another_object() {
        let owner = OwnerReference {
            group: "apps".to_owned(),
            kind: "ReplicaSet".to_owned(),
            name: "web".to_owned(),
            uid: "one".to_owned(),
            controller: true,
        };
        let wanted = Wanted::owner(&owner, "ns");
        assert!(is_wanted(&wanted, &json!({"metadata": {"uid": "one"}})));
        assert!(!is_wanted(&wanted, &json!({"metadata": {"uid": "two"}})));
        assert!(is_wanted(&Wanted { uid: None, ..wanted }, &json!({"metadata": {"uid": "two"}})));
    }
}
