//! Which cluster the gate lives in, and how the cluster finds it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use arc_swap::ArcSwap;
use engine::snapshot::Snapshot;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use server::Readiness;
use server::cluster::governor::{Reports, Trust};
use server::cluster::webhooks::Target;
use server::cluster::{ApiServer, Options, Running, start};
use server::policy_directory::Standing;
use tokio::sync::watch;

use crate::inputs::Inputs;

#[derive(Debug, clap::Args)]
#[group(id = "cluster")]
#[command(next_help_heading = "Cluster")]
pub(super) struct Arguments {
    /// Live in the cluster whose pod this is. Without this and --kubeconfig the gate serves what --teams and --state say.
    #[arg(long, conflicts_with = "kubeconfig")]
    in_cluster: bool,
    /// Live in the cluster that this file leads to.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The Service by which API servers reach the gate; fills the webhook configurations.
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "webhook_url")]
    service: Option<String>,
    /// The URL by which API servers reach a gate outside the cluster; fills the webhook configurations.
    #[arg(long, value_name = "URL")]
    webhook_url: Option<String>,
}

/// Where the gate lives.
#[derive(Debug)]
pub(super) enum Place {
    /// On files: Teams and state are what was read.
    Nowhere,
    Cluster {
        kubeconfig: Option<PathBuf>,
        target: Option<Target>,
    },
}

impl Arguments {
    pub(super) fn place(self) -> Result<Place> {
        let Self { in_cluster, kubeconfig, service, webhook_url } = self;
        let target = match (service, webhook_url) {
            (Some(service), _) => {
                let (namespace, name) = pair(&service, "--service")?;
                Some(Target::Service { namespace, name })
            }
            (None, Some(url)) if url.starts_with("https://") => Some(Target::Url(url)),
            (None, Some(url)) => bail!("--webhook-url `{url}`: API servers call https only"),
            (None, None) => None,
        };
        match (in_cluster || kubeconfig.is_some(), target) {
            (true, target) => Ok(Place::Cluster { kubeconfig, target }),
            (false, None) => Ok(Place::Nowhere),
            (false, Some(_)) => bail!("--service and --webhook-url need --in-cluster or --kubeconfig"),
        }
    }
}

impl Place {
    /// In a cluster, Teams and objects come from there; which accounts are believed must be said.
    pub(super) fn inputs(&self, inputs: Inputs) -> Result<Inputs> {
        match self {
            Self::Nowhere => Ok(inputs),
            Self::Cluster { .. } if inputs.teams.is_some() || inputs.state.is_some() => {
                bail!("--teams and --state are for a gate without a cluster")
            }
            Self::Cluster { .. } if inputs.config.is_none() => {
                bail!("in a cluster --config must say whose accounts are believed")
            }
            Self::Cluster { .. } => Ok(inputs),
        }
    }

    /// Without what a cluster says itself.
    pub(super) fn snapshot(&self, loaded: Snapshot) -> Snapshot {
        match self {
            Self::Nowhere => loaded,
            Self::Cluster { .. } => Snapshot { teams: Arc::default(), cluster: Arc::default(), ..loaded },
        }
    }

    pub(super) async fn connect(self) -> Result<Option<Connected>> {
        let Self::Cluster { kubeconfig, target } = self else { return Ok(None) };
        let config = match kubeconfig {
            Some(path) => {
                let read = Kubeconfig::read_from(&path).with_context(|| path.display().to_string())?;
                Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.context("kubeconfig")?
            }
            None => Config::incluster().context("not in a pod of a cluster")?,
        };
        let client = Client::try_from(config).context("no client for the API server")?;
        Ok(Some(Connected { api_server: ApiServer::new(client), target }))
    }
}

/// A cluster that can be asked; that it answers is found out while serving.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) api_server: ApiServer,
    pub(super) target: Option<Target>,
}

/// What others in this process know and the cluster is told.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) trust: watch::Receiver<Option<Trust>>,
    pub(super) policies: watch::Receiver<Standing>,
}

impl Connected {
    pub(super) fn start(
        self,
        snapshots: Arc<ArcSwap<Snapshot>>,
        readiness: Readiness,
        told: Told,
        reports: Arc<Reports>,
    ) -> Running {
        let Self { api_server, target } = self;
        let Told { trust, policies } = told;
        start(Options { api_server, snapshots, readiness, target, trust, policies, reports })
    }
}

/// `namespace/name`.
pub(super) fn pair(text: &str, flag: &str) -> Result<(String, String)> {
    let pair = text
        .split_once('/')
        .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty() && !name.contains('/'));
    let (namespace, name) = pair.ok_or_else(|| anyhow!("{flag} `{text}`: expected NAMESPACE/NAME"))?;
    Ok((namespace.to_owned(), name.to_owned()))
}
