//! The gate itself, as it is installed and run outside the cluster: the chart by helm, the binary with the token of the
//! chart's ServiceAccount, so that what RBAC forgets shows here.
//!
//! ```text
//!  helm install --> configurations (empty), RBAC, ConfigMap, Teams
//!                          ^                 |        |
//!                          +-- fills --- cedargate <--+   <--TLS-- kube-apiserver
//! ```

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context, Result, anyhow, ensure};
use axum::http::Request;
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::{ConfigMap, ServiceAccount},
};
use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tokio::{runtime::Builder, task::spawn_blocking};

use crate::{
    Cluster, Identity,
    access::{TEAM_A, TEAM_B},
    control_plane::free_port,
    process::Process,
    wait::until,
};

/// Release, ServiceAccount and both webhook configurations are called so.
const NAME: &str = "cedargate";

/// Where the chart is installed.
const NAMESPACE: &str = "cedargate-system";

/// Of `tests/data/identities`.
const ACCOUNT: &str = "111122223333";

/// What a cluster holds before the first replica runs, and how one is started.
#[derive(Debug, Clone)]
pub struct Release {
    target: Target,
    identity: Identity,
    config: PathBuf,
    program: PathBuf,
}

/// How API servers find the gate.
#[derive(Debug, Clone)]
enum Target {
    /// Outside the cluster.
    Url(String),
    /// By the chart's Service, behind which it listens here.
    Service(SocketAddr),
}

/// One gate, with the starter policies or those of a directory. Ends when dropped.
#[derive(Debug)]
pub struct Gate {
    process: Process,
}

impl Release {
    /// `helm install`, as the platform's administrator, for a gate that API servers find at `url`; with the teams of
    /// `policies/teams`, and the service accounts that those name.
    pub async fn install(cluster: &Cluster, url: &str) -> Result<Self> {
        Self::install_for(cluster, Target::Url(url.to_owned())).await
    }

    /// The same, with the chart as it is by default: API servers find the gate by its Service. The pods of its Deployment run
    /// nothing here, so that the Service selects none; its one endpoint is `listen`, which must not be on loopback.
    pub async fn install_behind_its_service(cluster: &Cluster, listen: SocketAddr) -> Result<Self> {
        let release = Self::install_for(cluster, Target::Service(listen)).await?;
        let root = &cluster.callers.root;
        let no_selector = r#"[{"op": "remove", "path": "/spec/selector"}]"#;
        let patch = ["patch", "--namespace", NAMESPACE, "service", NAME, "--type=json", "--patch", no_selector];
        cluster.kubectl(root, &patch, "").await?.success()?;
        let only = endpoints(NAME, Some(listen)).to_string();
        cluster.kubectl(root, &["apply", "--server-side", "--force-conflicts", "-f", "-"], &only).await?.success()?;
        Ok(release)
    }

    async fn install_for(cluster: &Cluster, target: Target) -> Result<Self> {
        let program = spawn_blocking(program).await??;
        let root = cluster.callers.root.client().await?;
        for (namespace, account) in [(TEAM_A, "team-a"), (TEAM_B, "team-b")] {
            add_service_account(&root, namespace, account).await?;
        }
        let values = cluster.directory().join("values.json");
        fs::write(&values, values_for(&target)?.to_string())?;
        let (chart, values) =
            (repository().join("charts/cedargate").display().to_string(), values.display().to_string());
        let arguments = ["install", NAME, &chart, "--namespace", NAMESPACE, "--create-namespace", "--values", &values];
        cluster.helm(&cluster.people.admin, &arguments).await?.success().context("helm install")?;
        let config = cluster.directory().join("cedargate.yaml");
        fs::write(&config, configuration(&root).await?)?;
        let identity = cluster.service_account(NAMESPACE, NAME, None).await?;
        Ok(Self { target, identity, config, program })
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// For one replica.
    pub fn arguments(&self, listen: SocketAddr) -> Vec<String> {
        let target = match &self.target {
            Target::Url(url) => format!("--webhook-url={url}"),
            Target::Service(_) => format!("--service={NAMESPACE}/{NAME}"),
        };
        vec![
            "serve".to_owned(),
            format!("--listen={listen}"),
            format!("--kubeconfig={}", self.identity.kubeconfig().display()),
            format!("--config={}", self.config.display()),
            target,
            format!("--certificate-secret={NAMESPACE}/cedargate-certificate"),
        ]
    }

    /// Returns once a gate is ready, both configurations hold the teams' namespaces, and every Team says so.
    pub async fn governs(&self, cluster: &Cluster) -> Result<()> {
        let root = cluster.callers.root.client().await?;
        let authority = until("both configurations hold the namespaces", async || authority(&root).await).await?;
        let gate = self.client(&authority)?;
        let ready = async || gate.request_text(Request::get("/readyz").body(Vec::new()).ok()?).await.ok();
        until("the gate is ready", ready).await?;
        let teams: Api<DynamicObject> = Api::all_with(root, &ApiResource::from_gvk(&team()));
        until("all Teams are governed", async || {
            let teams = teams.list(&Default::default()).await.ok()?.items;
            (!teams.is_empty() && teams.iter().all(is_governed)).then_some(())
        })
        .await
    }

    /// Asks the gate's own endpoints, trusting whom API servers are told to trust.
    fn client(&self, authority_pem: &[u8]) -> Result<Client> {
        let (url, name) = match &self.target {
            Target::Url(url) => (url.clone(), None),
            Target::Service(listen) => (format!("https://{listen}"), Some(format!("{NAME}.{NAMESPACE}.svc"))),
        };
        let mut config = Config::new(url.parse()?);
        config.tls_server_name = name;
        config.root_cert = Some(certificates(authority_pem)?);
        config.proxy_url = None;
        Ok(Client::try_from(config)?)
    }
}

impl Gate {
    /// Installs and runs it, with the starter policies. Blocks until it governs; may be called from anywhere, like
    /// [`Cluster::start`].
    pub fn start(cluster: &Cluster) -> Result<Self> {
        Self::run(cluster, None)
    }

    /// The same, with the policies of a directory.
    pub fn with_policies(cluster: &Cluster, directory: &Path) -> Result<Self> {
        Self::run(cluster, Some(directory))
    }

    fn run(cluster: &Cluster, policies: Option<&Path>) -> Result<Self> {
        thread::scope(|scope| {
            let starting = scope.spawn(|| {
                let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
                runtime.block_on(Self::install_and_run(cluster, policies))
            });
            starting.join().map_err(|_panic| anyhow!("a panic while the gate started"))?
        })
    }

    async fn install_and_run(cluster: &Cluster, policies: Option<&Path>) -> Result<Self> {
        let listen = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let release = Release::install(cluster, &format!("https://{listen}")).await?;
        let policies = policies.map(|directory| format!("--policies={}", directory.display()));
        let arguments = release.arguments(listen).into_iter().chain(policies);
        let process = Process::start(NAME, cluster.directory(), release.program(), arguments)?;
        let governs = release.governs(cluster).await;
        governs.with_context(|| process.tail())?;
        Ok(Self { process })
    }

    /// The end of what it said, decision log and messages.
    pub fn tail(&self) -> String {
        self.process.tail()
    }
}

/// The `cedargate` binary of this workspace, built if it is not up to date. Its features are those of a build of the whole
/// workspace for tests (`--examples` is a kind of target that makes cargo choose them, and there are none): otherwise all
/// dependencies would be built a second time.
pub(crate) fn program() -> Result<PathBuf> {
    let test = env::current_exe()?; // <target>/<profile>/deps/<test>
    let profile_folder = test.parent().and_then(Path::parent).context("tests run in a target folder")?;
    let target = profile_folder.parent().context("tests run in a target folder")?;
    let profile = if profile_folder.ends_with("debug") { "dev" } else { "release" };
    let built = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--locked", "--workspace", "--bin", NAME, "--examples", "--profile", profile])
        .arg("--target-dir")
        .arg(target)
        .current_dir(repository())
        .stdin(Stdio::null())
        .status()
        .context("cannot run cargo")?;
    ensure!(built.success(), "the gate cannot be built: {built}");
    Ok(profile_folder.join(NAME))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

async fn add_service_account(root: &Client, namespace: &str, name: &str) -> Result<()> {
    let account = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
    Api::<ServiceAccount>::namespaced(root.clone(), namespace).create(&PostParams::default(), &account).await?;
    Ok(())
}

fn values_for(target: &Target) -> Result<Value> {
    let teams = ["platform", "team-a", "team-b"].map(|name| -> Result<Value> {
        let file = repository().join(format!("policies/teams/{name}.yaml"));
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let team: Value = serde_saphyr::from_str(&text)?;
        Ok(json!({ "name": name, "spec": team["spec"] }))
    });
    let teams: Vec<Value> = teams.into_iter().collect::<Result<_>>()?;
    let mut values = json!({ "config": { "accounts": [ACCOUNT] }, "teams": teams });
    match target {
        Target::Url(url) => values["external"] = json!({ "url": url }),
        Target::Service(_) => values["image"] = json!({ "repository": "registry.example.com/cedargate" }),
    }
    Ok(values)
}

/// The endpoints of a Service in the chart's namespace. This version's API server reads them here, not in EndpointSlices.
pub fn endpoints(service: &str, listen: Option<SocketAddr>) -> Value {
    let subset = |listen: SocketAddr| {
        let ports = json!([{ "name": "https", "protocol": "TCP", "port": listen.port() }]);
        json!({ "addresses": [{ "ip": listen.ip() }], "ports": ports })
    };
    json!({
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": { "name": service, "namespace": NAMESPACE },
        "subsets": listen.map(subset).into_iter().collect::<Vec<_>>(),
    })
}

/// What a pod of the chart would have mounted.
async fn configuration(root: &Client) -> Result<String> {
    let mounted = Api::<ConfigMap>::namespaced(root.clone(), NAMESPACE).get("cedargate-config").await?;
    mounted.data.unwrap_or_default().remove("config.yaml").context("the chart renders a configuration")
}

/// Whom both configurations trust, once they hold the namespaces.
async fn authority(root: &Client) -> Option<Vec<u8>> {
    let mutating = Api::<MutatingWebhookConfiguration>::all(root.clone()).get(NAME).await.ok()?.webhooks?;
    let validating = Api::<ValidatingWebhookConfiguration>::all(root.clone()).get(NAME).await.ok()?.webhooks?;
    let holds = |selector: &Value| {
        let values = selector["matchExpressions"][0]["values"].as_array().cloned().unwrap_or_default();
        [TEAM_A, TEAM_B].iter().all(|namespace| values.contains(&json!(namespace)))
    };
    let first = serde_json::to_value(&mutating.first()?.namespace_selector).ok()?;
    let second = serde_json::to_value(&validating.first()?.namespace_selector).ok()?;
    (holds(&first) && holds(&second))
        .then(|| mutating.into_iter().next()?.client_config.ca_bundle)
        .flatten()
        .map(|pem| pem.0)
}

fn team() -> GroupVersionKind {
    GroupVersionKind::gvk("cedargate.dev", "v1alpha1", "Team")
}

fn is_governed(team: &DynamicObject) -> bool {
    let conditions = team.data["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["type"] == "Governed" && condition["status"] == "True")
}

/// DER, as the client wants it.
fn certificates(pem: &[u8]) -> Result<Vec<Vec<u8>>> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    CertificateDer::pem_slice_iter(pem).map(|certificate| Ok(certificate?.to_vec())).collect()
}
