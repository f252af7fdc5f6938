//! Three replicas on one store that loses races, replies and writes: no admission above the limit, and none too few.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use engine::cluster::Cluster;
use engine::offline::review_of;
use engine::quota::{Balance, Ledger};
use engine::review::Operation;
use engine::snapshot::Snapshot;
use engine::team::Teams;
use serde_json::{Value, json};
use server::decider::Decider;
use server::ledger::{InMemory, LedgerStore, Stored, Swap, Unavailable, Version};
use tests::api_server::{ApiServer, Ledgers};
use tests::people::named;
use tests::world::{Plan, World, read};

const GPU: &str = "nvidia.com/gpu";

const LIMIT: usize = 40;

/// Answers as a busy API server does.
#[derive(Debug, Default)]
struct Flaky {
    kept: InMemory,
    asked: AtomicU64,
}

impl LedgerStore for Flaky {
    fn known(&self, team: &str) -> Option<Stored> {
        self.kept.known(team)
    }

    async fn read(&self, team: &str) -> Result<Stored, Unavailable> {
        self.kept.read(team).await
    }

    async fn swap(&self, team: &str, version: &Version, ledger: &Ledger) -> Result<Swap, Unavailable> {
        let lost = || Err(Unavailable("no reply".to_owned()));
        match self.asked.fetch_add(1, Ordering::Relaxed) % 7 {
            1 => Ok(Swap::Lost),
            // Written, and nobody learns of it.
            2 | 5 => {
                self.kept.swap(team, version, ledger).await?;
                lost()
            }
            4 => lost(),
            _ => self.kept.swap(team, version, ledger).await,
        }
    }

    async fn create(&self, _team: &str) -> Result<(), Unavailable> {
        Ok(())
    }
}

struct Shared(Arc<Flaky>);

impl Ledgers for Shared {
    fn of(&self, team: &str) -> Ledger {
        self.0.kept.peek(team)
    }
}

fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("p-{number}"), "namespace": "hyperpod-ns-team-a", "labels": {"project": "p"}},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "main",
            "image": "111122223333.dkr.ecr.us-west-2.amazonaws.com/train:1",
            "resources": {"limits": {GPU: 1}, "requests": {GPU: 1}},
        }]},
    })
}

#[test]
fn exactly_the_limit_is_admitted_whatever_the_store_answers() {
    let World { config, policies, .. } = Plan::of_data().expect("is read").build().expect("a world");
    let team = read("data/teams/team-a.yaml").expect("is read").replace("{nvidia.com/gpu: 8}", "{nvidia.com/gpu: 40}");
    let teams = Arc::new(Teams::parse([("team-a.yaml", team.as_str())]).expect("a team"));
    let snapshot = Snapshot { config, teams, policies, cluster: Arc::new(Cluster::default()) };
    let store = Arc::new(Flaky::default());
    let mut replicas: Vec<_> = (0..3)
        .map(|_| {
            let snapshot = Arc::new(ArcSwap::from_pointee(snapshot.clone()));
            let decider = Decider::new(Arc::clone(&snapshot), Arc::clone(&store));
            ApiServer::before(decider, snapshot, Shared(Arc::clone(&store))).expect("a runtime")
        })
        .collect();
    let alice = serde_json::from_value(named("alice").expect("is there")).expect("a userInfo");
    for number in 0..52 {
        let review = review_of(&pod(number), None, &alice, Operation::Create, false);
        let outcome = replicas[number % 3].admit(&review).expect("answers");
        assert_eq!(outcome.violations, Vec::<String>::new());
        let last = outcome.answers.last().expect("an answer");
        assert_eq!(last.is_allowed(), number < LIMIT, "{number}: {}", last.text);
        let held = Balance::from(store.kept.peek("team-a")).used().get(GPU);
        assert_eq!(held, LIMIT.min(number + 1) as u64, "{number}");
    }
    assert!(store.asked.load(Ordering::Relaxed) > 45, "some swaps were lost");
}
