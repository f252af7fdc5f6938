//! The cluster as a scenario holds it.

use std::{future::Future, path::Path, thread};

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec, UserInfo},
    core::v1::{ConfigMap, Pod, ServiceAccount},
};
use kube::{Api, Client, ResourceExt, api::PostParams};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Mutex,
    task::spawn_blocking,
    try_join,
};

use crate::{
    Audit, Callers, Components, EndpointOperator, Identity, Node, Output, People, SpaceOperator,
    access::{self, TEAM_A, TEAM_B},
    commands,
    control_plane::{ControlPlane, free_port, issue_certificates},
    crds::{self, Kind},
    directory::Directory,
    https::Https,
    kubeconfig::Endpoint,
    people::Register,
    tokens::Tokens,
    wait::until,
};

/// Ends with all its processes, files and threads when dropped, and when we end without that.
#[derive(Debug)]
pub struct Cluster {
    pub people: People,
    pub callers: Callers,
    components: Components,
    endpoint: Endpoint,
    tokens: Tokens,
    node: Option<Node>,
    kinds: Vec<Kind>,
    control_plane: Mutex<ControlPlane>,
    _authenticator: Https,
    runtime: Option<Runtime>,
    directory: Directory, // the last to go: what is above writes into it
}

impl Cluster {
    /// Blocks until everything runs; from nothing it builds the components first. May be called from anywhere, also
    /// within a runtime: the cluster has its own.
    pub fn start() -> Result<Self> {
        thread::spawn(|| {
            let components = Components::find()?;
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().thread_name("cluster").build()?;
            let mut cluster = runtime.block_on(Self::assemble(components))?;
            cluster.runtime = Some(runtime);
            Ok(cluster)
        })
        .join()
        .map_err(|_panic| anyhow!("a panic while the cluster started"))?
    }

    async fn assemble(components: Components) -> Result<Self> {
        let directory = Directory::create()?;
        let authority_pem = issue_certificates(directory.path())?;
        let port = free_port()?;
        let url = format!("https://127.0.0.1:{port}");
        let endpoint = Endpoint { url, authority_pem, directory: directory.path().to_owned() };
        let tokens = Tokens::default();
        let authenticator = tokens.serve().await?;
        let register = Register { tokens: &tokens, endpoint: &endpoint };
        let mut cluster = Self {
            people: People::create(&register)?,
            callers: Callers::create(&register)?,
            control_plane: Mutex::new(ControlPlane::start(&components, &endpoint, port, &authenticator)?),
            components,
            endpoint,
            tokens,
            node: None,
            kinds: Vec::new(),
            _authenticator: authenticator,
            runtime: None,
            directory,
        };
        match cluster.set_up().await {
            Ok(()) => Ok(cluster),
            Err(error) => {
                cluster.directory.keep();
                Err(error.context(cluster.logs()))
            }
        }
    }

    async fn set_up(&mut self) -> Result<()> {
        let definitions = spawn_blocking(crds::read);
        let root = self.callers.root.client().await?;
        let control_plane = self.control_plane.get_mut();
        control_plane.ready(&root).await?;
        let definitions = definitions.await??;
        let ((), kinds) = try_join!(access::lay_out(&root, &self.callers), crds::install(&root, definitions))?;
        self.kinds = kinds;
        control_plane.start_controllers(&self.callers.controller_manager)?;
        self.node = Some(Node::start(&self.callers).await?);
        for namespace in ["default", TEAM_A, TEAM_B] {
            takes_pods(&root, namespace).await?;
        }
        Ok(())
    }

    /// Where the API server is.
    pub fn url(&self) -> &str {
        &self.endpoint.url
    }

    /// Whom its clients must trust.
    pub fn authority_pem(&self) -> &str {
        &self.endpoint.authority_pem
    }

    /// Logs, kubeconfigs, and what a scenario puts there; gone with the cluster.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn components(&self) -> &Components {
        &self.components
    }

    pub fn audit(&self) -> Audit {
        Audit::new(self.directory().join("audit.log"))
    }

    pub fn node(&self) -> &Node {
        self.node.as_ref().expect("a cluster that has started has a node")
    }

    /// Every kind that a definition adds.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Runs kubectl as a person would, in their namespace unless the arguments say otherwise.
    pub async fn kubectl(&self, who: &Identity, arguments: &[&str], stdin: &str) -> Result<Output> {
        commands::run(&self.components.kubectl(), who, self.directory(), arguments, stdin).await
    }

    pub async fn helm(&self, who: &Identity, arguments: &[&str]) -> Result<Output> {
        commands::run(&self.components.helm(), who, self.directory(), arguments, "").await
    }

    /// Somebody new, with exactly this userInfo. RBAC knows nothing of them yet.
    pub fn register(&self, name: &str, user: UserInfo, namespace: Option<&str>) -> Result<Identity> {
        let register = Register { tokens: &self.tokens, endpoint: &self.endpoint };
        register.add(name, user, namespace)
    }

    /// Lets somebody do in `namespace` what its team's members may do. The platform's administrator does it: a gate
    /// lets nobody else.
    pub async fn grant(&self, who: &Identity, namespace: &str) -> Result<()> {
        let admin = self.people.admin.client().await?;
        access::grant(&admin, namespace, who.username(), who.name()).await
    }

    /// A service account with a token of its own, as the API server issues them; bound to `pod` it is what the pod's
    /// containers hold, and kubelet fetches it once the pod is its own. The account must be there.
    pub async fn service_account(&self, namespace: &str, account: &str, pod: Option<&Pod>) -> Result<Identity> {
        let requester = if pod.is_some() { &self.callers.kubelet } else { &self.people.admin };
        let accounts: Api<ServiceAccount> = Api::namespaced(requester.client().await?, namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec { bound_object_ref: pod.map(bound_to), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let ask = async || accounts.create_token_request(account, &PostParams::default(), &request).await.ok();
        let issued = until(&format!("{account} has a token"), ask).await?;
        let token = issued.status.context("the API server issued no token")?.token;
        let username = format!("system:serviceaccount:{namespace}:{account}");
        let name =
            pod.map_or_else(|| format!("{namespace}.{account}"), |pod| format!("{namespace}.{}", pod.name_any()));
        let user = UserInfo { username: Some(username), ..UserInfo::default() };
        self.endpoint.identity(&name, user, &token, Some(namespace))
    }

    /// Works while it is held.
    pub async fn space_operator(&self) -> Result<SpaceOperator> {
        let identity = self.callers.space_operator.clone();
        self.apart(async move { SpaceOperator::start(&identity).await }).await
    }

    /// Works while it is held.
    pub async fn endpoint_operator(&self) -> Result<EndpointOperator> {
        let identity = self.callers.inference_operator.clone();
        self.apart(async move { EndpointOperator::start(&identity).await }).await
    }

    /// Everything in flight ends, and every watch with it. Returns when it answers again.
    pub async fn restart_api_server(&self) -> Result<()> {
        let root = self.callers.root.client().await?;
        self.control_plane.lock().await.restart_api_server(&root).await
    }

    /// The ends of all logs.
    pub fn logs(&self) -> String {
        self.control_plane.try_lock().map_or_else(|_busy| String::new(), |control_plane| control_plane.tails())
    }

    /// On our own runtime, since what is started there outlives the caller's.
    async fn apart<T: Send + 'static>(&self, task: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let runtime = self.runtime.as_ref().context("the cluster has started")?;
        runtime.spawn(task).await?
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.directory.keep();
            say(&format!("{}kept: {}", self.logs(), self.directory().display()));
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // we may be dropped within another one, where waiting is not allowed
        }
    }
}

#[expect(clippy::print_stderr, reason = "a test has failed, and this is why")]
fn say(text: &str) {
    eprintln!("{text}");
}

/// The controllers have been here: pods need the account, and its token's volume the authority.
async fn takes_pods(root: &Client, namespace: &str) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(root.clone(), namespace);
    let authorities: Api<ConfigMap> = Api::namespaced(root.clone(), namespace);
    until(&format!("{namespace} takes pods"), async || {
        accounts.get_opt("default").await.ok()??;
        authorities.get_opt("kube-root-ca.crt").await.ok()?.map(drop)
    })
    .await
}

fn bound_to(pod: &Pod) -> BoundObjectReference {
    BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
    }
}
