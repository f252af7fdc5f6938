//! `make cluster`: a cluster to try things in, until Ctrl-C.

use std::time::{Duration, Instant};

use anyhow::Result;
use cluster::{Callers, Cluster, Identity, People};

#[tokio::main]
async fn main() -> Result<()> {
    let begun = Instant::now();
    let cluster = Cluster::start()?;
    let _operators = (cluster.space_operator().await?, cluster.endpoint_operator().await?);
    introduce(&cluster, begun.elapsed());
    tokio::signal::ctrl_c().await?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "this is what the command is for")]
fn introduce(cluster: &Cluster, took: Duration) {
    let People { alice, amir, bob, chen, bob_in_studio, admin, intruder } = &cluster.people;
    let Callers { root, space_operator, inference_operator, .. } = &cluster.callers;
    println!("\n# {} started in {} s, logs in {}", cluster.url(), took.as_secs(), cluster.directory().display());
    println!("# Copy the line of whom you want to be into another terminal; Ctrl-C here ends it all.\n");
    for identity in [alice, amir, bob, chen, bob_in_studio, admin, intruder, root, space_operator, inference_operator] {
        println!("{}", line(identity));
    }
}

fn line(identity: &Identity) -> String {
    let place = identity.namespace().unwrap_or("every namespace");
    format!("export KUBECONFIG={}   # {}, {place}", identity.kubeconfig().display(), identity.name())
}
