//! Ledgers as custom resources: compare-and-swap is the API server's own, by `resourceVersion`.
//!
//! What is known here is the newest of what the watch has shown and what this replica has read or written itself, so that a
//! lagging watch does not cost the next write a conflict.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::quota::Ledger;
use futures::{StreamExt, pin_mut};
use kube::api::{Api, DynamicObject, PostParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use tokio::time::Duration;

use super::{ApiServer, chain, ledger_object, watches};
use crate::ledger::{LedgerStore, Stored, Swap, Unavailable, Version, Versioned};

/// A healthy API server answers in milliseconds; whoever waits has ten seconds.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// All ledgers of a cluster.
pub struct KubeLedgers {
    api: Api<DynamicObject>,
    known: Mutex<BTreeMap<String, Versioned>>,
}

impl fmt::Debug for KubeLedgers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeLedgers").finish_non_exhaustive()
    }
}

impl KubeLedgers {
    /// Begins to watch. Call it within a runtime.
    pub fn start(api_server: &ApiServer) -> Arc<Self> {
        let api = Api::all_with(api_server.client(), &ledger_object::resource());
        let ledgers = Arc::new(Self { api: api.clone(), known: Mutex::default() });
        tokio::spawn(follow(api, Arc::clone(&ledgers)));
        ledgers
    }

    /// Every ledger that is known, by team.
    pub fn all(&self) -> BTreeMap<String, Ledger> {
        self.locked().iter().map(|(team, versioned)| (team.clone(), versioned.ledger.clone())).collect()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, Versioned>> {
        // Nothing panics while it holds the lock, and the map is whole between statements.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the newest.
    fn note(&self, team: &str, versioned: Versioned) {
        let mut known = self.locked();
        let newer = known.get(team).is_none_or(|known| number(&versioned.version) >= number(&known.version));
        if newer {
            known.insert(team.to_owned(), versioned);
        }
    }

    /// What is gone is gone, unless another has been made in its place since.
    fn forget(&self, team: &str, gone: &Version) {
        let mut known = self.locked();
        if known.get(team).is_some_and(|known| known.version.uid == gone.uid) {
            known.remove(team);
        }
    }

    fn take_up(&self, object: &Value) -> Result<Stored, Unavailable> {
        let team = engine::json::text(object, &["metadata", "name"]).unwrap_or_default();
        let stored = ledger_object::read(object).map_err(Unavailable)?;
        if let Stored::Built(versioned) = &stored {
            self.note(team, versioned.clone());
        }
        Ok(stored)
    }
}

/// etcd counts one revision for everything it holds.
fn number(version: &Version) -> u64 {
    version.resource_version.parse().unwrap_or(0)
}

async fn follow(api: Api<DynamicObject>, ledgers: Arc<KubeLedgers>) {
    let resource = ledger_object::resource();
    let events = watcher(api, watcher::Config::default()).default_backoff();
    pin_mut!(events);
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.extend(object.metadata.name.clone());
                told(&ledgers, &watches::whole(&resource, object));
            }
            Ok(Event::InitDone) => ledgers.locked().retain(|team, _| listed.contains(team)),
            Ok(Event::Apply(object)) => told(&ledgers, &watches::whole(&resource, object)),
            Ok(Event::Delete(object)) => {
                let name = object.metadata.name.clone().unwrap_or_default();
                let uid = object.metadata.uid.unwrap_or_default();
                ledgers.forget(&name, &Version { uid, resource_version: String::new() });
            }
            // The stream recovers by itself.
            Err(error) => tracing::debug!(error = chain(&error), "watch of ledgers failed"),
        }
    }
}

fn told(ledgers: &KubeLedgers, object: &Value) {
    if let Err(Unavailable(problem)) = ledgers.take_up(object) {
        let team = engine::json::text(object, &["metadata", "name"]).unwrap_or_default();
        tracing::warn!(team, problem, "a ledger cannot be used");
    }
}

/// In good time, or not at all.
async fn within<T>(asked: impl Future<Output = kube::Result<T>>) -> Result<kube::Result<T>, Unavailable> {
    tokio::time::timeout(ANSWERS_WITHIN, asked)
        .await
        .map_err(|_| Unavailable("the API server does not answer in time".to_owned()))
}

impl LedgerStore for KubeLedgers {
    fn known(&self, team: &str) -> Option<Stored> {
        self.locked().get(team).cloned().map(Stored::Built)
    }

    async fn read(&self, team: &str) -> Result<Stored, Unavailable> {
        // Without a resourceVersion: a quorum read.
        match within(self.api.get_opt(team)).await? {
            Ok(Some(object)) => self.take_up(&watches::whole(&ledger_object::resource(), object)),
            Ok(None) => {
                self.locked().remove(team);
                Ok(Stored::Absent)
            }
            Err(error) => Err(Unavailable(chain(&error))),
        }
    }

    async fn swap(&self, team: &str, version: &Version, ledger: &Ledger) -> Result<Swap, Unavailable> {
        let object = object(ledger_object::written(team, version, ledger))?;
        match within(self.api.replace_status(team, &PostParams::default(), &object)).await? {
            Ok(object) => {
                self.take_up(&watches::whole(&ledger_object::resource(), object))?;
                Ok(Swap::Done)
            }
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(Swap::Lost),
            Err(error) => Err(Unavailable(chain(&error))),
        }
    }

    async fn create(&self, team: &str) -> Result<(), Unavailable> {
        let resource = ledger_object::resource();
        let empty = json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": team}});
        match within(self.api.create(&PostParams::default(), &object(empty)?)).await? {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(Unavailable(chain(&error))),
        }
    }
}

fn object(value: Value) -> Result<DynamicObject, Unavailable> {
    serde_json::from_value(value).map_err(|error| Unavailable(error.to_string()))
}
