//! Which certificate the gate serves with: files that somebody else renews, or a Secret that the gate keeps itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use certs::{Names, Resolver, UnixTime};
use server::cluster::chain;
use server::cluster::governor::{Reports, Trust};
use server::cluster::secret::{self, SharedCertificate};
use server::cluster::webhooks::Target;
use server::{Readiness, certificate};
use tokio::sync::watch;

use super::cluster::{Connected, pair};

#[derive(Debug, clap::Args)]
#[group(id = "certificate", required = true, multiple = false)]
#[command(next_help_heading = "Certificate")]
pub(super) struct Arguments {
    /// Directory with tls.crt and tls.key (and ca.crt, whom API servers must trust), as a mounted Secret has them; changes
    /// are noticed.
    #[arg(long, value_name = "DIR")]
    certificates: Option<PathBuf>,
    /// Secret in which all replicas share an authority of their own and the certificate; made, renewed and rotated by them.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    certificate_secret: Option<String>,
}

/// How often to ask for the first certificate while the API server does not answer.
const RETRY_EVERY: Duration = Duration::from_secs(2);

impl Arguments {
    /// The first certificate, and tasks that keep it up to date.
    pub(super) async fn serve(
        self,
        connected: Option<&Connected>,
        trust: watch::Sender<Option<Trust>>,
        reports: Arc<Reports>,
        readiness: Readiness,
    ) -> Result<Arc<Resolver>> {
        let Self { certificates, certificate_secret } = self;
        match (certificates, certificate_secret) {
            (Some(directory), _) => files(directory, trust, readiness),
            (None, Some(name)) => shared(shared_certificate(&name, connected)?, trust, reports, readiness).await,
            (None, None) => bail!("--certificates or --certificate-secret is needed"),
        }
    }
}

fn files(directory: PathBuf, trust: watch::Sender<Option<Trust>>, readiness: Readiness) -> Result<Arc<Resolver>> {
    let first = certs::files::read(&directory).with_context(|| directory.display().to_string())?;
    let resolver = Arc::new(Resolver::new(first, UnixTime::now())?);
    tokio::spawn(certificate::follow_trust(directory.clone(), trust, certificate::LOOK_EVERY));
    tokio::spawn(certificate::follow(directory, Arc::clone(&resolver), readiness, certificate::LOOK_EVERY));
    Ok(resolver)
}

fn shared_certificate(name: &str, connected: Option<&Connected>) -> Result<SharedCertificate> {
    let (namespace, name) = pair(name, "--certificate-secret")?;
    let Connected { api_server, target } =
        connected.ok_or_else(|| anyhow!("--certificate-secret needs --in-cluster or --kubeconfig"))?;
    let host = match target {
        Some(Target::Service { namespace, name }) => format!("{name}.{namespace}.svc"),
        Some(Target::Url(url)) => host(url)?,
        None => bail!("--certificate-secret needs --service or --webhook-url: the certificate speaks for that name"),
    };
    Ok(SharedCertificate { api_server: api_server.clone(), namespace, name, names: Names::parse([host.as_str()])? })
}

fn host(url: &str) -> Result<String> {
    let parsed: reqwest::Url = url.parse().with_context(|| format!("--webhook-url `{url}`"))?;
    let host = parsed.host_str().ok_or_else(|| anyhow!("--webhook-url `{url}` names no host"))?;
    Ok(host.trim_matches(['[', ']']).to_owned())
}

async fn shared(
    shared: SharedCertificate,
    trust: watch::Sender<Option<Trust>>,
    reports: Arc<Reports>,
    readiness: Readiness,
) -> Result<Arc<Resolver>> {
    let held = loop {
        match shared.look(|_| false, UnixTime::now()).await {
            Ok(held) => break held,
            Err(error) => {
                tracing::warn!(error = chain(&error), "no certificate yet");
                tokio::time::sleep(RETRY_EVERY).await;
            }
        }
    };
    let resolver = Arc::new(Resolver::new(held.leaf.certificate()?, UnixTime::now())?);
    tokio::spawn(secret::follow(shared, Arc::clone(&resolver), trust, reports, readiness));
    Ok(resolver)
}
