//! The watches themselves: kube's own list, watch, resume and back-off, one for each kind, each feeding the index.
//!
//! A watch covers the cluster and leaves out the cluster's own namespaces at the source, which hold most of the churn. It is
//! not one for each team namespace: twenty teams would be five hundred watches for each replica, and a namespace that joins
//! a Team would be unknown until it was listed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use engine::cluster::Cluster;
use engine::config::Config;
use engine::queues;
use futures::{Stream, StreamExt, pin_mut};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, ListParams, PartialObjectMeta};
use kube::core::discovery::{ApiCapabilities, ApiResource, Scope, verbs};
use kube::core::gvk::GroupVersion;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Client, discovery};
use serde_json::{Map, Value};
use tokio::task::AbortHandle;

use super::publish::State;
use super::resources::{self, KindName, Resources};
use super::team_object;
use super::{ApiServer, chain};

/// CRDs come in bundles, and each changes a few times until it is established.
const SETTLE: Duration = Duration::from_millis(500);

/// In case news of a CRD was missed.
const REDISCOVER_EVERY: Duration = Duration::from_secs(60);

/// How long to wait before asking again what the API server serves.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// The watches that run.
#[derive(Debug)]
pub struct Watches {
    api_server: ApiServer,
    config: Arc<Config>,
    state: Arc<State>,
    known: Arc<ArcSwap<Resources>>,
    running: BTreeMap<KindName, (ApiResource, AbortHandle)>,
}

impl Watches {
    /// Begins to watch everything. Ends when it is known what the API server serves, so that no kind is forgotten when
    /// the first lists are counted.
    pub async fn start(
        api_server: ApiServer,
        config: Arc<Config>,
        state: Arc<State>,
        known: Arc<ArcSwap<Resources>>,
    ) -> Self {
        let mut watches = Self { api_server, config, state, known, running: BTreeMap::new() };
        watches.state.index().expect(KindName::namespaces(), true);
        for resource in resources::built_in().into_iter().chain([team_object::resource()]) {
            watches.run(resource, true);
        }
        tokio::spawn(namespaces(watches.api_server.client(), Arc::clone(&watches.state)));
        while let Err(error) = watches.discover(true).await {
            tracing::warn!(error = chain(&error), "cannot find out what the API server serves");
            tokio::time::sleep(RETRY_EVERY).await;
        }
        watches
    }

    /// Follows CRDs as they come and go. Never ends.
    pub async fn follow_definitions(mut self) {
        let api = Api::<PartialObjectMeta<CustomResourceDefinition>>::all(self.api_server.client());
        let news = watch(api, watcher::Config::default()).default_backoff();
        pin_mut!(news);
        loop {
            // An error is the time being up.
            let _ = tokio::time::timeout(REDISCOVER_EVERY, news.next()).await;
            while tokio::time::timeout(SETTLE, news.next()).await.is_ok() {}
            self.run_again_what_never_began();
            if let Err(error) = self.discover(false).await {
                tracing::warn!(error = chain(&error), "cannot find out what the API server serves");
            }
        }
    }

    /// Starts a watch for each custom resource that the walk may pass, and stops those of kinds that are gone.
    async fn discover(&mut self, required: bool) -> kube::Result<()> {
        let found = owners(&self.api_server.client(), &self.config).await?;
        let fixed: Vec<ApiResource> = resources::built_in().into_iter().chain([team_object::resource()]).collect();
        let resources = Resources::new(found.iter().cloned().chain(fixed));
        let gone: Vec<KindName> =
            self.running.keys().filter(|kind| resources.iter().all(|(found, _)| found != *kind)).cloned().collect();
        gone.iter().for_each(|kind| self.stop(kind));
        found.into_iter().for_each(|resource| self.run(resource, required));
        self.known.store(Arc::new(resources));
        Ok(())
    }

    fn run(&mut self, resource: ApiResource, required: bool) {
        let kind = KindName::of(&resource);
        match self.running.get(&kind) {
            Some((running, _)) if *running == resource => return,
            // Another version is preferred now; its list replaces the objects.
            Some((_, handle)) => handle.abort(),
            None => tracing::info!(%kind, version = resource.version, "watching"),
        }
        self.state.index().expect(kind.clone(), required);
        let following =
            follow(self.api_server.client(), resource.clone(), self.selector(&resource), Arc::clone(&self.state));
        let handle = tokio::spawn(following).abort_handle();
        self.running.insert(kind, (resource, handle));
    }

    fn stop(&mut self, kind: &KindName) {
        if let Some((_, handle)) = self.running.remove(kind) {
            tracing::info!(%kind, "not served any more");
            handle.abort();
            self.state.change(|index| index.forget(kind, Timestamp::now()));
        }
    }

    /// A definition that has just come is watched at once, not when the back-off of its watch ends.
    fn run_again_what_never_began(&mut self) {
        let failing: Vec<KindName> = {
            let index = self.state.index();
            index
                .report()
                .into_iter()
                .filter(|watch| !watch.complete && watch.error.is_some())
                .map(|watch| watch.kind)
                .collect()
        };
        for kind in failing {
            if let Some((resource, handle)) = self.running.remove(&kind) {
                handle.abort();
                self.run(resource, false);
            }
        }
    }

    fn selector(&self, resource: &ApiResource) -> watcher::Config {
        let is_of_the_cluster = resource.group == team_object::GROUP
            || resources::is_queue(&resource.group, &resource.kind) && resource.kind != "LocalQueue";
        // What is in no namespace cannot be selected by one.
        if is_of_the_cluster {
            return watcher::Config::default();
        }
        watcher::Config::default().fields(&outside(self.config.system_namespaces.iter().map(String::as_str)))
    }
}

/// Everything but these namespaces.
fn outside<'a>(namespaces: impl Iterator<Item = &'a str>) -> String {
    namespaces.map(|namespace| format!("metadata.namespace!={namespace}")).collect::<Vec<_>>().join(",")
}

async fn follow(client: Client, resource: ApiResource, config: watcher::Config, state: Arc<State>) {
    let kind = KindName::of(&resource);
    let events = watch(Api::<DynamicObject>::all_with(client, &resource), config).default_backoff();
    feed(&kind, events, |object| whole(&resource, object), &state).await;
}

/// Their names and uids suffice.
async fn namespaces(client: Client, state: Arc<State>) {
    let api = Api::<PartialObjectMeta<Namespace>>::all(client);
    let events = watch(api, watcher::Config::default()).default_backoff();
    let resource = resources::resource("", "v1", "Namespace", "namespaces");
    let only_metadata = |object: PartialObjectMeta<Namespace>| with_type(&resource, Map::new(), &object.metadata);
    feed(&KindName::namespaces(), events, only_metadata, &state).await;
}

async fn feed<K>(
    kind: &KindName,
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    plain: impl Fn(K) -> Value,
    state: &State,
) {
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let event = match event {
                    Event::Apply(object) => Event::Apply(plain(object)),
                    Event::Delete(object) => Event::Delete(plain(object)),
                    Event::InitApply(object) => Event::InitApply(plain(object)),
                    Event::Init => Event::Init,
                    Event::InitDone => Event::InitDone,
                };
                state.change(|index| index.feed(kind, event, Timestamp::now()));
            }
            // The stream recovers by itself.
            Err(error) => {
                tracing::debug!(%kind, error = chain(&error), "watch failed");
                state.index().failed(kind, chain(&error));
            }
        }
    }
}

/// Items of a list do not say what they are.
pub(super) fn whole(resource: &ApiResource, object: DynamicObject) -> Value {
    let DynamicObject { types: _, metadata, data } = object;
    let fields = match data {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    with_type(resource, fields, &metadata)
}

fn with_type(resource: &ApiResource, mut fields: Map<String, Value>, metadata: &impl serde::Serialize) -> Value {
    fields.insert("apiVersion".to_owned(), Value::from(resource.api_version.as_str()));
    fields.insert("kind".to_owned(), Value::from(resource.kind.as_str()));
    fields.insert("metadata".to_owned(), serde_json::to_value(metadata).unwrap_or_default());
    Value::Object(fields)
}

/// Of the groups that controllers own kinds of, and of Kueue's: what is served and can be watched. Not all kinds of a group are
/// served in the version that it prefers: MPIJob of v2beta1 stands beside PyTorchJob of v1.
async fn owners(client: &Client, config: &Config) -> kube::Result<Vec<ApiResource>> {
    let wanted = resources::custom_groups(config);
    let mut found: Vec<ApiResource> = Vec::new();
    for group in client.list_api_groups().await?.groups {
        if group.name == queues::GROUP {
            found.extend(queue_kinds(client).await?);
        }
        if !wanted.contains(&group.name) {
            continue;
        }
        let preferred = group.preferred_version.into_iter().map(|version| version.version);
        let versions: Vec<String> =
            preferred.chain(group.versions.into_iter().map(|version| version.version)).collect();
        for (index, version) in versions.iter().enumerate() {
            if versions.iter().take(index).any(|earlier| earlier == version) {
                continue;
            }
            let kinds = kinds(client, &GroupVersion::gv(&group.name, version), config).await?;
            found.extend(not_yet(&found, kinds));
        }
    }
    Ok(found)
}

/// Of one version, the kinds that no better version serves.
fn not_yet(found: &[ApiResource], kinds: Vec<ApiResource>) -> Vec<ApiResource> {
    let is_known = |resource: &ApiResource| found.iter().any(|known| KindName::of(known) == KindName::of(resource));
    kinds.into_iter().filter(|resource| !is_known(resource)).collect()
}

async fn kinds(client: &Client, version: &GroupVersion, config: &Config) -> kube::Result<Vec<ApiResource>> {
    let group = discovery::pinned_group(client, version).await?;
    let owners = group.recommended_resources().into_iter().filter(|(resource, capabilities)| {
        capabilities.scope == Scope::Namespaced
            && is_watchable(capabilities)
            && resources::is_owner(config, &resource.group, &resource.kind)
    });
    Ok(owners.map(|(resource, _)| resource).collect())
}

/// Each in the latest version that is served: the group's versions need not all have it.
async fn queue_kinds(client: &Client) -> kube::Result<Vec<ApiResource>> {
    let group = discovery::group(client, queues::GROUP).await?;
    let queues = group.resources_by_stability().into_iter().filter(|(resource, capabilities)| {
        is_watchable(capabilities) && resources::is_queue(&resource.group, &resource.kind)
    });
    Ok(queues.map(|(resource, _)| resource).collect())
}

/// All of Kueue's queues, read once; none where Kueue is not installed.
pub async fn queues(client: &Client) -> kube::Result<Cluster> {
    let mut cluster = Cluster::default();
    let resources = match queue_kinds(client).await {
        Ok(resources) => resources,
        Err(kube::Error::Discovery(_)) => return Ok(cluster),
        Err(error) => return Err(error),
    };
    for resource in resources {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let listed = api.list(&ListParams::default()).await?.items;
        listed.into_iter().for_each(|object| cluster.insert(whole(&resource, object)));
    }
    Ok(cluster)
}

fn is_watchable(capabilities: &ApiCapabilities) -> bool {
    capabilities.supports_operation(verbs::LIST) && capabilities.supports_operation(verbs::WATCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_of_a_list_is_told_what_it_is() {
        let resource = resources::resource("ray.io", "v1", "RayJob", "rayjobs");
        let item: DynamicObject =
            serde_json::from_value(serde_json::json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"x": [1]}}))
                .expect("an object");
        assert_eq!(
            whole(&resource, item),
            serde_json::json!({
                "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "j", "uid": "u"}, "spec": {"x": [1]}
            })
        );
    }

    #[test]
    fn each_kind_is_watched_in_the_best_version_that_serves_it() {
        let preferred = vec![resources::resource("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs")];
        let other = vec![
            resources::resource("kubeflow.org", "v2beta1", "PyTorchJob", "pytorchjobs"),
            resources::resource("kubeflow.org", "v2beta1", "MPIJob", "mpijobs"),
        ];
        let added: Vec<_> = not_yet(&preferred, other).into_iter().map(|resource| resource.api_version).collect();
        assert_eq!(added, ["kubeflow.org/v2beta1"]);
    }

    #[test]
    fn the_clusters_own_namespaces_are_left_out() {
        assert_eq!(outside(["a", "b"].into_iter()), "metadata.namespace!=a,metadata.namespace!=b");
    }
}
