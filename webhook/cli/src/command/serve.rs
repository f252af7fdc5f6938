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
use rustls::ServerConfig;
use server::cluster::governor::Reports;
use server::decider::Decider;
use server::ledger::{InMemory, LedgerStore};
use server::metrics::{Metrics, Source};
use server::policy_directory::{self, Audience, Standing};
use server::{Check, DecisionLog, Gate, Readiness, Server, decision_log, listen, runtime};
use tokio::sync::watch;

use crate::inputs::Inputs;
use cluster::Told;

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
    // A directory of policies is followed; the embedded ones cannot change.
    let policies = inputs.policy_directory()?;
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
        let audience = Audience {
            readiness: readiness.clone(),
            counters: Arc::default(),
            standing: watch::Sender::new(Standing::current()),
        };
        if let Some(policies) = policies {
            let (snapshots, audience) = (Arc::clone(&snapshots), audience.clone());
            tokio::spawn(policy_directory::follow(policies, snapshots, audience, policy_directory::LOOK_EVERY));
        }
        let mut counted = vec![
            sources::readiness(readiness.clone()),
            sources::log(log.clone()),
            sources::certificate(Arc::clone(&resolver)),
            sources::policies(Arc::clone(&audience.counters)),
        ];
        let listener = tokio::net::TcpListener::bind(address).await.with_context(|| address.to_string())?;
        let front = Front { listener, tls: listen::tls(resolver)?, log, readiness };
        tracing::info!(%address, "serving");
        match connected {
            Some(connected) => {
                let told = Told { trust: trusted, policies: audience.standing.subscribe() };
                let running =
                    connected.start(Arc::clone(&snapshots), front.readiness.clone(), told, Arc::clone(&reports));
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
