//! `cedargate serve`: the webhook itself, in a cluster or on files alone.

mod certificate;
mod cluster;
mod sources;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use engine::policies::{SourceFile, starter_schema};
use engine::snapshot::Snapshot;
use rustls::ServerConfig;
use server::cluster::governor::Reports;
use server::decider::Decider;
use server::ledger::{InMemory, LedgerStore};
use server::metrics::{Metrics, Source};
use server::policy_directory::{self, PolicyDirectory};
use server::{Check, DecisionLog, Gate, Readiness, Server, decision_log, listen, runtime};
use tokio::sync::watch;

use crate::inputs::{Inputs, read};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    inputs: Inputs,
    /// Address to listen on.
    #[arg(long, default_value = "[::]:8443")]
    listen: SocketAddr,
    /// Decision log. Default: standard output.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    cluster: cluster::Arguments,
    #[command(flatten)]
    certificate: certificate::Arguments,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { inputs, cluster, certificate, listen: address, log } = arguments;
    // The decision log has standard output; everything else goes to standard error.
    tracing_subscriber::fmt().json().with_writer(std::io::stderr).init();
    let place = cluster.place()?;
    let policies = reloading(&inputs)?;
    let loaded = place.inputs(inputs)?.load()?;
    let readiness = Readiness::requiring([Check::Certificate, Check::Policies, Check::State]);
    let sink = match &log {
        Some(path) => decision_log::file(path)?,
        None => decision_log::stdout()?,
    };
    let (log, writer) = decision_log::start(sink, Default::default(), readiness.clone())?;
    readiness.pass(Check::Policies);
    let ledgers = Arc::new(InMemory::new(loaded.state.ledgers()));
    let snapshots = Arc::new(ArcSwap::from_pointee(place.snapshot(loaded.snapshot)));
    runtime::build()?.block_on(async {
        let connected = place.connect().await?;
        let (trust, trusted) = watch::channel(None);
        let reports = Arc::new(Reports::default());
        let resolver = certificate.serve(connected.as_ref(), trust, Arc::clone(&reports), readiness.clone()).await?;
        let counters = Arc::new(policy_directory::Counters::default());
        if let Some(policies) = policies {
            follow(policies, &snapshots, &readiness, Arc::clone(&counters));
        }
        let mut counted = vec![
            sources::readiness(readiness.clone()),
            sources::log(log.clone()),
            sources::certificate(Arc::clone(&resolver)),
            sources::policies(counters),
        ];
        let listener = tokio::net::TcpListener::bind(address).await.with_context(|| address.to_string())?;
        let front = Front { listener, tls: listen::tls(resolver)?, log, readiness };
        tracing::info!(%address, "serving");
        match connected {
            Some(connected) => {
                let running =
                    connected.start(Arc::clone(&snapshots), front.readiness.clone(), trusted, Arc::clone(&reports));
                counted.push(sources::cluster(running.state, reports));
                let decider = Decider::new(Arc::clone(&snapshots), Arc::clone(&running.ledgers));
                let decider = decider.with_lookup(running.lookup);
                let keepers = decider.ledgers();
                counted.push(sources::ledgers(keepers.counters(), running.ledgers, snapshots));
                tokio::spawn(async move { keepers.follow_teams().await });
                front.serve(decider, counted).await
            }
            None => {
                front.readiness.pass(Check::State);
                front.serve(Decider::new(snapshots, ledgers), counted).await
            }
        }?;
        anyhow::Ok(())
    })?;
    // Longer than any write to a healthy disk; what is still unwritten then is lost, and the exit says so.
    writer.close(Duration::from_secs(5)).map_err(|_| anyhow::anyhow!("the decision log was not written out"))?;
    Ok(ExitCode::SUCCESS)
}

/// What faces the API server, whatever keeps the ledgers.
struct Front {
    listener: tokio::net::TcpListener,
    tls: Arc<ServerConfig>,
    log: DecisionLog,
    readiness: Readiness,
}

impl Front {
    /// Until the process is told to end, and has drained.
    async fn serve<L: LedgerStore>(self, decider: Decider<L>, counted: Vec<Source>) -> Result<()> {
        let Self { listener, tls, log, readiness } = self;
        let metrics = Metrics::new(counted);
        let decider = decider.with_metrics(metrics.clone());
        let gate = Gate::new(Arc::new(decider), Some(log), readiness, Default::default()).with_metrics(metrics);
        let server = Server { listener, tls, gate, bounds: Default::default(), drain: Default::default() };
        server.run(runtime::shutdown_signal()?).await;
        Ok(())
    }
}

/// A directory of policies is followed; the embedded ones cannot change.
fn reloading(inputs: &Inputs) -> Result<Option<PolicyDirectory>> {
    let Some(directory) = inputs.policies.clone() else { return Ok(None) };
    let schema = match &inputs.schema {
        Some(path) => SourceFile::new(path.display().to_string(), read(path)?),
        None => starter_schema(),
    };
    Ok(Some(PolicyDirectory { directory, schema }))
}

fn follow(
    policies: PolicyDirectory,
    snapshots: &Arc<ArcSwap<Snapshot>>,
    readiness: &Readiness,
    counters: Arc<policy_directory::Counters>,
) {
    tokio::spawn(policy_directory::follow(
        policies,
        Arc::clone(snapshots),
        readiness.clone(),
        counters,
        policy_directory::LOOK_EVERY,
    ));
}
