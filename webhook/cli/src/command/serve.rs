//! `cedargate serve`: the webhook itself.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use certs::{Resolver, UnixTime};
use server::decider::Decider;
use server::ledger::InMemory;
use server::{Check, Gate, Readiness, Server, certificate, decision_log, listen, runtime};

use crate::inputs::Inputs;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    inputs: Inputs,
    /// Address to listen on.
    #[arg(long, default_value = "[::]:8443")]
    listen: SocketAddr,
    /// Directory with tls.crt and tls.key, as a mounted Secret has them; changes are noticed.
    #[arg(long, value_name = "DIR")]
    certificates: PathBuf,
    /// Decision log. Default: standard output.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { inputs, listen: address, certificates, log } = arguments;
    // The decision log has standard output; everything else goes to standard error.
    tracing_subscriber::fmt().json().with_writer(std::io::stderr).init();
    let loaded = inputs.load()?;
    let readiness = Readiness::requiring([Check::Certificate, Check::Policies, Check::State]);
    let sink = match &log {
        Some(path) => decision_log::file(path)?,
        None => decision_log::stdout()?,
    };
    let (log, writer) = decision_log::start(sink, Default::default(), readiness.clone())?;
    readiness.pass(Check::Policies);
    readiness.pass(Check::State);
    let ledgers = Arc::new(InMemory::new(loaded.state.ledgers()));
    let decider = Decider::new(Arc::new(ArcSwap::from_pointee(loaded.snapshot)), ledgers);
    runtime::build()?.block_on(async {
        let first = certs::files::read(&certificates).with_context(|| certificates.display().to_string())?;
        let resolver = Arc::new(Resolver::new(first, UnixTime::now())?);
        tokio::spawn(certificate::follow(
            certificates,
            Arc::clone(&resolver),
            readiness.clone(),
            certificate::LOOK_EVERY,
        ));
        let server = Server {
            listener: tokio::net::TcpListener::bind(address).await.with_context(|| address.to_string())?,
            tls: listen::tls(resolver)?,
            gate: Gate::new(Arc::new(decider), Some(log), readiness, Default::default()),
            bounds: Default::default(),
            drain: Default::default(),
        };
        tracing::info!(%address, "serving");
        server.run(runtime::shutdown_signal()?).await;
        anyhow::Ok(())
    })?;
    // Longer than any write to a healthy disk; what is still unwritten then is lost, and the exit says so.
    writer.close(Duration::from_secs(5)).map_err(|_| anyhow::anyhow!("the decision log was not written out"))?;
    Ok(ExitCode::SUCCESS)
}
