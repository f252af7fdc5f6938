//! From the index to the snapshot that decisions read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use engine::snapshot::Snapshot;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::index::{Index, View};
use super::resources::{self, KindName};
use crate::{Check, Readiness};

/// Changes within this time become one snapshot. The first change after one makes the index copy its two maps, which takes
/// milliseconds with tens of thousands of objects; a job that starts five hundred pods would do it five hundred times.
/// Nothing depends on the delay: what a decision does not find, it asks the API server for.
const PUBLISH_EVERY: Duration = Duration::from_millis(20);

/// How often time alone is looked at: what was kept for a while, and the first lists that never come.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A custom resource whose first list has failed for so long does not keep the gate from starting: one broken conversion
/// webhook would stop every team. The walk asks the API server for its objects instead.
const WAIT_FOR_CUSTOM: Duration = Duration::from_secs(30);

/// The index with whoever waits for news of it.
#[derive(Debug)]
pub struct State {
    index: Mutex<Index>,
    /// Something to publish.
    news: Notify,
    /// Something that the governor must look at.
    governance: Notify,
    pub counters: Counters,
}

/// Plain numbers for whoever shows them.
#[derive(Debug, Default)]
pub struct Counters {
    pub published: AtomicU64,
    /// Unix milliseconds of the last one.
    pub published_at_unix_millis: AtomicU64,
    /// How long the oldest change of the last one had waited.
    pub lag_micros: AtomicU64,
    /// The longest of those.
    pub lag_micros_max: AtomicU64,
}

impl State {
    pub fn new(index: Index) -> Self {
        Self { index: Mutex::new(index), news: Notify::new(), governance: Notify::new(), counters: Counters::default() }
    }

    /// Never held over an await.
    pub fn index(&self) -> MutexGuard<'_, Index> {
        // Nothing panics halfway through a change; and the next list would repair it.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the index, and wakes whoever publishes it.
    pub fn change(&self, change: impl FnOnce(&mut Index)) {
        let mut index = self.index();
        change(&mut index);
        let dirty = index.is_dirty();
        drop(index);
        if dirty {
            self.news.notify_one();
        }
    }

    /// Ends when Teams may have changed.
    pub async fn governance_changed(&self) {
        self.governance.notified().await;
    }

    pub fn look_at_governance(&self) {
        self.governance.notify_one();
    }
}

/// Publishes for ever. [`Check::State`] passes once everything required has been listed, and stays passed: with an API
/// server out of reach, what is known is better than nobody answering.
pub async fn publish(state: Arc<State>, snapshots: Arc<ArcSwap<Snapshot>>, readiness: Readiness) {
    let started = Instant::now();
    let mut looked = started;
    let mut complete = false;
    loop {
        // An error is the time being up.
        let _ = tokio::time::timeout(LOOK_EVERY, state.news.notified()).await;
        if looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            state.index().tidy(Timestamp::now());
        }
        if !complete {
            if started.elapsed() >= WAIT_FOR_CUSTOM {
                do_without_custom(&state);
            }
            complete = is_complete(&state, &readiness);
            if !complete {
                continue;
            }
        }
        let view = state.index().take();
        if let Some(view) = view {
            let since = view.since;
            let other_teams = !Arc::ptr_eq(&view.teams, &snapshots.load().teams);
            swap(&snapshots, view);
            state.counters.published(since, Timestamp::now());
            if other_teams {
                state.look_at_governance();
            }
        }
        match state.index().trouble().note() {
            None => readiness.pass(Check::State),
            Some(note) => readiness.pass_with(Check::State, note),
        }
        tokio::time::sleep(PUBLISH_EVERY).await;
    }
}

fn swap(snapshots: &ArcSwap<Snapshot>, View { teams, cluster, since: _ }: View) {
    // Policies are swapped by another task: neither may undo the other.
    snapshots.rcu(|current| Snapshot {
        teams: Arc::clone(&teams),
        cluster: Arc::clone(&cluster),
        ..Snapshot::clone(current)
    });
}

fn is_complete(state: &State, readiness: &Readiness) -> bool {
    let index = state.index();
    let pending = index.pending();
    let Some((first, error)) = pending.first() else { return true };
    let error = error.map(|error| format!(" ({error})")).unwrap_or_default();
    let more = match pending.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    readiness.fail(Check::State, format!("the first list of {first}{more} is not complete{error}"));
    false
}

fn do_without_custom(state: &State) {
    let built_in: Vec<KindName> = resources::built_in().iter().map(KindName::of).collect();
    let own = [KindName::teams(), KindName::namespaces()];
    let mut index = state.index();
    let failing: Vec<KindName> = index
        .pending()
        .into_iter()
        .filter(|(kind, error)| error.is_some() && !built_in.contains(kind) && !own.contains(kind))
        .map(|(kind, _)| kind.clone())
        .collect();
    for kind in failing {
        tracing::warn!(%kind, "cannot be listed; the gate starts without it, and asks for each object that it needs");
        index.do_without(&kind);
    }
}

impl Counters {
    fn published(&self, since: Timestamp, now: Timestamp) {
        let lag = u64::try_from(now.duration_since(since).as_micros()).unwrap_or(0);
        self.published.fetch_add(1, Ordering::Relaxed);
        self.published_at_unix_millis.store(u64::try_from(now.as_millisecond()).unwrap_or(0), Ordering::Relaxed);
        self.lag_micros.store(lag, Ordering::Relaxed);
        self.lag_micros_max.fetch_max(lag, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use engine::policies::{Policies, starter_files, starter_schema};
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;

    fn empty() -> Arc<ArcSwap<Snapshot>> {
        let load = || Policies::load(&starter_schema(), &starter_files()).expect("load");
        let stack = std::thread::Builder::new().stack_size(64 << 20);
        let policies = stack.spawn(load).expect("a thread").join().expect("does not panic");
        Arc::new(ArcSwap::from_pointee(Snapshot {
            config: Arc::default(),
            teams: Arc::default(),
            policies: Arc::new(policies),
            cluster: Arc::default(),
        }))
    }

    fn pod(name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": name, "uid": name}})
    }

    #[tokio::test(start_paused = true)]
    async fn publishes_bursts_as_one_and_only_once_complete() {
        let mut index = Index::new(Arc::default());
        index.expect(KindName::pods(), true);
        let state = Arc::new(State::new(index));
        let (snapshots, readiness) = (empty(), Readiness::requiring([Check::State]));
        let running = tokio::spawn(publish(Arc::clone(&state), Arc::clone(&snapshots), readiness.clone()));
        let feed = |event| state.change(|index| index.feed(&KindName::pods(), event, Timestamp::now()));

        feed(Event::Init);
        feed(Event::InitApply(pod("first")));
        tokio::time::sleep(PUBLISH_EVERY * 3).await;
        assert!(!readiness.is_ready());
        assert!(snapshots.load().cluster.of_uid("first").is_none(), "half a list is not the cluster");

        feed(Event::InitDone);
        tokio::time::sleep(PUBLISH_EVERY * 3).await;
        assert!(readiness.is_ready());
        assert!(snapshots.load().cluster.of_uid("first").is_some());

        let before = state.counters.published.load(Ordering::Relaxed);
        (0..500).for_each(|number| feed(Event::Apply(pod(&format!("p{number}")))));
        tokio::time::sleep(PUBLISH_EVERY * 3).await;
        assert_eq!(snapshots.load().cluster.objects().count(), 501);
        assert!(state.counters.published.load(Ordering::Relaxed) - before <= 2);
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_custom_resource_that_cannot_be_listed_is_done_without_and_a_built_in_one_is_not() {
        let broken = KindName::new("ray.io", "RayJob");
        let mut index = Index::new(Arc::default());
        [KindName::pods(), broken.clone()].into_iter().for_each(|kind| index.expect(kind, true));
        index.failed(&broken, "conversion webhook failed".to_owned());
        index.failed(&KindName::pods(), "forbidden".to_owned());
        let state = Arc::new(State::new(index));
        let readiness = Readiness::requiring([Check::State]);
        let running = tokio::spawn(publish(Arc::clone(&state), empty(), readiness.clone()));
        tokio::time::sleep(WAIT_FOR_CUSTOM + LOOK_EVERY * 2).await;
        let report = readiness.report().to_string();
        assert!(report.contains("[-]state failed: the first list of Pod is not complete (forbidden)"), "{report}");
        state.change(|index| {
            index.feed(&KindName::pods(), Event::Init, Timestamp::now());
            index.feed(&KindName::pods(), Event::InitDone, Timestamp::now());
        });
        tokio::time::sleep(LOOK_EVERY * 2).await;
        assert!(readiness.is_ready());
        running.abort();
    }
}
