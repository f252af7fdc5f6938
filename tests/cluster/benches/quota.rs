//! What a quota costs those who submit, with three replicas and a real API server: `make bench-quota`.
//!
//! A burst of pods with a GPU each, and beside it pods without: how long a create takes as its client sees it, and how many
//! writes the gate makes for one. Ratios are to creates without a GPU and without a burst, in the same run; times are this
//! machine's, on which the API server, etcd, three gates and the clients share the cores.

#![expect(clippy::print_stdout, reason = "the figures are the result")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot run has nothing to say")]

use std::time::Duration;

use cluster::{
    Cluster, GATE_NAME, Replicas, TEAM_A,
    burst::{Ended, Submitted, submit, with_gpus},
    manifests::pod,
    until,
};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
};
use tokio::time::sleep;

/// As many as the limit of team A lets in.
const BURST: u64 = 64;

const BURSTS: u64 = 4;

/// Creates beside a burst, one after the other in so many rows.
const ROWS: u64 = 4;

#[tokio::main]
async fn main() {
    let cluster = Cluster::start().expect("the cluster starts");
    let _replicas = Replicas::start(&cluster, 3).await.expect("the gate starts");
    let root = cluster.callers.root.client().await.expect("connects");
    let alice = cluster.people.alice.client().await.expect("connects");
    // Connections are made, and everything has been compiled that compiles itself.
    steady(&alice, "warm", 8).await;

    println!(
        "{:<44}{:>8}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "creates", "count", "p50 ms", "p99 ms", "p50 x", "p99 x", "writes"
    );
    let before = writes(&cluster);
    let alone = steady(&alice, "alone", 64).await;
    let floor = Figures::of(&alone);
    floor.print("without a GPU, nobody beside", &floor, writes(&cluster) - before);

    let crowd = burst(&root, &alice, &cluster, 0).await;
    let crowd_figures = Figures::of(&crowd.asked);
    crowd_figures.print("without a GPU, 64 at once, nobody beside", &floor, crowd.writes);

    let (mut gpu, mut beside, mut written) = (Vec::new(), Vec::new(), 0);
    for _ in 0..BURSTS {
        let told = burst(&root, &alice, &cluster, 1).await;
        gpu.extend(told.asked);
        beside.extend(told.beside);
        written += told.writes;
    }
    Figures::of(&gpu).print("with a GPU each, 64 at once", &floor, written);
    Figures::of(&beside).print("without a GPU, beside that burst", &floor, 0);
    let admitted = gpu.iter().filter(|submitted| submitted.ended == Ended::Admitted).count();
    println!("\nwrites of ledgers for one admission with a GPU: {:.2}", ratio(written, admitted));
    println!("without: {} (nobody beside, and 64 at once)", crowd.writes);
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

struct Told {
    asked: Vec<Submitted>,
    beside: Vec<Submitted>,
    writes: usize,
}

/// Everybody at once, and beside them a few who ask for no GPU; then all is cleared away.
async fn burst(root: &Client, alice: &Client, cluster: &Cluster, gpus: u64) -> Told {
    let before = writes(cluster);
    let kind = if gpus > 0 { "gpu" } else { "crowd" };
    let many = (0..BURST).map(|number| {
        let plain = pod(&format!("{kind}-{number}"));
        submit(alice, TEAM_A, if gpus > 0 { with_gpus(plain, gpus) } else { plain })
    });
    let beside = async {
        match gpus {
            0 => Vec::new(),
            _ => steady(alice, "beside", ROWS * 4).await,
        }
    };
    let (asked, beside) = tokio::join!(join_all(many), beside);
    // What is let go afterwards is written too, and is not counted here.
    let writes = writes(cluster) - before;
    clear(root).await;
    Told { asked, beside, writes }
}

/// In rows, one after the other.
async fn steady(alice: &Client, name: &str, count: u64) -> Vec<Submitted> {
    let row = |row: u64| async move {
        let mut submitted = Vec::new();
        for number in 0..count / ROWS {
            submitted.push(submit(alice, TEAM_A, pod(&format!("{name}-{row}-{number}"))).await);
        }
        submitted
    };
    join_all((0..ROWS).map(row)).await.into_iter().flatten().collect()
}

async fn clear(root: &Client) {
    let pods: Api<Pod> = Api::namespaced(root.clone(), TEAM_A);
    let all = ListParams::default();
    until("all is cleared away", async || {
        pods.delete_collection(&DeleteParams::default(), &all).await.ok()?;
        pods.list(&all).await.ok()?.items.is_empty().then_some(())
    })
    .await
    .expect("is deleted");
    until("the ledger is empty", async || {
        cluster::burst::ledger(root, "team-a").await.ok()?.entries.is_empty().then_some(())
    })
    .await
    .expect("is let go");
    sleep(Duration::from_secs(1)).await;
}

/// Successful writes of ledgers by the gate so far, as the API server's audit log has them.
fn writes(cluster: &Cluster) -> usize {
    let of_the_gate = |event: &&cluster::Event| {
        event.username().ends_with(&format!(":{GATE_NAME}"))
            && event.resource().starts_with("quotaledgers")
            && (200..300).contains(&event.code())
    };
    cluster.audit().events().iter().filter(of_the_gate).count()
}

struct Figures {
    count: usize,
    median: Duration,
    highest: Duration,
}

impl Figures {
    fn of(submitted: &[Submitted]) -> Self {
        let admitted = submitted.iter().filter(|submitted| submitted.ended == Ended::Admitted);
        let mut times: Vec<Duration> = admitted.map(|submitted| submitted.took).collect();
        times.sort_unstable();
        let at = |hundredth: usize| times.get((times.len() * hundredth / 100).min(times.len() - 1)).copied();
        Self {
            count: times.len(),
            median: at(50).expect("some are admitted"),
            highest: at(99).expect("some are admitted"),
        }
    }

    fn print(&self, what: &str, floor: &Self, writes: usize) {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "{what:<44}{:>8}{:>10.1}{:>10.1}{:>10.1}{:>10.1}{writes:>10}",
            self.count,
            millis(self.median),
            millis(self.highest),
            self.median.as_secs_f64() / floor.median.as_secs_f64(),
            self.highest.as_secs_f64() / floor.highest.as_secs_f64(),
        );
    }
}
