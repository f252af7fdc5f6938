//! The gate in its cluster: what it watches, what it writes.
//!
//! ```text
//!  API server --watch--> watches --> index --publish--> Snapshot --> Decider <--lookup-- (one GET for what is missing)
//!       ^                              |
//!       |                              +--> governor, usage --> webhook configurations, status of Teams, Events
//!       +--<-- ledgers <-- one actor for each team (crate::ledger)
//!       +--<-- Secret: authority and serving certificate --> Resolver
//! ```
//!
//! The index is synchronous and knows no client; everything that waits is around it. [`start`] puts it together.

pub mod governor;
pub mod index;
pub mod ledger_object;
pub mod ledgers;
pub mod lookup;
pub mod policy_report;
pub mod publish;
pub mod resources;
pub mod secret;
pub mod team_object;
pub mod team_write;
pub mod usage;
pub mod watches;
pub mod webhooks;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use engine::snapshot::Snapshot;
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use tokio::sync::watch;

use crate::Readiness;
use crate::policy_directory::Standing;
use governor::{Governor, Reports, Trust};
use index::Index;
use ledgers::KubeLedgers;
use lookup::{ApiLookup, Lookup};
use publish::State;
use resources::Resources;
use watches::Watches;
use webhooks::{Live, Target};

/// How long to wait before asking an API server again that did not answer at the start.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// A client that may stand in what is printed. Clones share its connections.
#[derive(Clone)]
pub struct ApiServer(Client);

impl ApiServer {
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    pub fn client(&self) -> Client {
        self.0.clone()
    }
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").finish_non_exhaustive()
    }
}

/// An error with what is behind it: kube keeps the reason (forbidden, certificate, refused) several levels down.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        // Some errors repeat their source in their own text.
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}

/// What it takes to live in a cluster.
#[derive(Debug)]
pub struct Options {
    pub api_server: ApiServer,
    /// Holds configuration and policies; Teams and objects are put in as they become known.
    pub snapshots: Arc<ArcSwap<Snapshot>>,
    pub readiness: Readiness,
    /// Where API servers find the gate; `None` leaves the webhook configurations and the Teams' status alone.
    pub target: Option<Target>,
    pub trust: watch::Receiver<Option<Trust>>,
    /// How the policies stand that this replica decides by; the Teams are told.
    pub policies: watch::Receiver<Standing>,
    pub reports: Arc<Reports>,
}

/// What runs, for whoever asks it.
#[derive(Debug)]
pub struct Running {
    /// For [`crate::decider::Decider::with_lookup`].
    pub lookup: Arc<dyn Lookup>,
    /// For metrics: [`publish::State::counters`], and [`Index::report`] of its index.
    pub state: Arc<State>,
    /// Where the ledgers are kept.
    pub ledgers: Arc<KubeLedgers>,
}

/// Starts everything and returns at once; [`crate::Check::State`] passes when the cluster is known. Call it within a
/// runtime: its tasks end with that.
pub fn start(options: Options) -> Running {
    let Options { api_server, snapshots, readiness, target, trust, policies, reports } = options;
    let config = Arc::clone(&snapshots.load().config);
    let known = Arc::new(ArcSwap::from_pointee(Resources::new(resources::built_in())));
    let state = Arc::new(State::new(Index::new(Arc::clone(&config))));
    let ledgers = KubeLedgers::start(&api_server);
    let running = Running {
        lookup: Arc::new(ApiLookup::new(api_server.clone(), Arc::clone(&known))),
        state: Arc::clone(&state),
        ledgers: Arc::clone(&ledgers),
    };
    tokio::spawn(usage::tell(api_server.clone(), ledgers, Arc::clone(&state)));
    tokio::spawn(async move {
        if target.is_some() {
            remember(&api_server, &state).await;
        }
        let watches = Watches::start(api_server.clone(), Arc::clone(&config), Arc::clone(&state), known).await;
        tokio::spawn(watches.follow_definitions());
        tokio::spawn(publish::publish(Arc::clone(&state), snapshots, readiness.clone()));
        if let Some(target) = target {
            let governor = Governor { api_server, config, target, state, readiness, trust, policies, reports };
            governor::govern(governor).await;
        }
    });
    running
}

/// The gate's own resources, as the API server must know them.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    vec![team_object::definition(), ledger_object::definition()]
}

/// Before any Team is known, so that what vanished while nobody ran is not taken for free.
async fn remember(api_server: &ApiServer, state: &State) {
    loop {
        match governor::remembered(&api_server.client()).await {
            Ok(Live { vanished, left, teams_version, .. }) => {
                let left = vanished.into_iter().chain(left);
                return state.change(|index| index.remember(left, teams_version, Timestamp::now()));
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "cannot read the webhook configuration");
                tokio::time::sleep(RETRY_EVERY).await;
            }
        }
    }
}
