//! etcd, the API server and the controllers, on loopback, with keys of their own.

use std::{
    fs,
    net::{IpAddr, TcpListener, UdpSocket},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use axum::http::Request;
use certs::{Authority, Names, UnixTime};
use kube::Client;
use rcgen::KeyPair;

use crate::{
    Components,
    https::{Https, LIFETIME},
    kubeconfig::{Endpoint, Identity, of_webhook},
    process::Process,
    wait::until,
};

/// The controllers that make and clean up what teams run, with what those need to work. Names as of kube 1.27.
const CONTROLLERS: [&str; 20] = [
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "horizontal-pod-autoscaler-controller",
    "job-controller",
    "namespace-controller",
    "persistentvolume-protection-controller", // else a namespace with a claim never goes
    "persistentvolumeclaim-protection-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "ttl-after-finished-controller",
];

/// What EKS turns on beyond the API server's defaults.
const ADMISSION_PLUGINS: &str = "NodeRestriction,ExtendedResourceToleration";

/// What an API server gets to finish what is in flight. It would wait a minute for watches to end by themselves.
const GRACE: Duration = Duration::from_secs(5);

/// Everything that is written, request and answer, because a generated name is in the answer alone, and every way into a
/// pod. Reads would only make it slow, and of Secrets and tokens not even a test should keep the content.
const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
omitManagedFields: true
rules:
  - {level: Metadata, resources: [{group: "", resources: [pods/exec, pods/attach, pods/portforward, pods/proxy, services/proxy]}]}
  - {level: None, verbs: [get, list, watch]}
  - {level: None, resources: [{group: "", resources: [events]}, {group: events.k8s.io}, {group: apiextensions.k8s.io}]}
  - {level: None, resources: [{group: authorization.k8s.io}, {group: authentication.k8s.io}]}
  - level: Metadata
    resources: [{group: "", resources: [secrets, serviceaccounts/token]}, {group: coordination.k8s.io}]
  - {level: RequestResponse}
"#;

#[derive(Debug)]
pub(crate) struct ControlPlane {
    components: Components,
    endpoint: Endpoint,
    etcd: Process,
    api_server: Process,
    api_server_arguments: Vec<String>,
    controllers: Option<Process>,
}

impl ControlPlane {
    /// Starts etcd and the API server; it answers once [`Self::ready`] has returned.
    pub(crate) fn start(
        components: &Components,
        endpoint: &Endpoint,
        port: u16,
        authenticator: &Https,
    ) -> Result<Self> {
        let etcd_url = format!("http://127.0.0.1:{}", free_port()?);
        let etcd = start_etcd(components, endpoint, &etcd_url)?;
        let api_server_arguments = api_server_arguments(endpoint, port, &etcd_url, authenticator)?;
        let api_server = Process::start(
            "kube-apiserver",
            &endpoint.directory,
            &components.kube_apiserver(),
            api_server_arguments.iter().cloned(),
        )?;
        Ok(Self {
            components: components.clone(),
            endpoint: endpoint.clone(),
            etcd,
            api_server,
            api_server_arguments,
            controllers: None,
        })
    }

    pub(crate) async fn ready(&mut self, client: &Client) -> Result<()> {
        let Self { components: _, endpoint: _, etcd, api_server, api_server_arguments: _, controllers: _ } = self;
        let answers = until("the API server is ready", async || {
            if [&mut *etcd, &mut *api_server].into_iter().any(|process| process.ended().is_some()) {
                return Some(false);
            }
            let request = Request::get("/readyz").body(Vec::new()).ok()?;
            client.request_text(request).await.is_ok().then_some(true)
        });
        ensure!(answers.await?, "etcd or the API server has ended");
        Ok(())
    }

    /// After the kinds are installed: the garbage collector learns about later ones only within half a minute.
    pub(crate) fn start_controllers(&mut self, identity: &Identity) -> Result<()> {
        let directory = &self.endpoint.directory;
        let path = |name: &str| directory.join(name).display().to_string();
        let arguments = [
            format!("--kubeconfig={}", identity.kubeconfig().display()),
            "--use-service-account-credentials".to_owned(),
            format!("--service-account-private-key-file={}", path("service-account.key")),
            format!("--root-ca-file={}", path("authority.crt")),
            format!("--controllers={}", CONTROLLERS.join(",")),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            // Nobody scrapes these metrics here; what matters is that scaling is seen within a test's patience.
            "--horizontal-pod-autoscaler-sync-period=2s".to_owned(),
            // Its own limits are for clusters of thousands of nodes that share one API server.
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
        ];
        let program = self.components.kube_controller_manager();
        self.controllers = Some(Process::start("kube-controller-manager", directory, &program, arguments)?);
        Ok(())
    }

    /// As an upgrade of the control plane does it: everything in flight ends, and every watch with it.
    pub(crate) async fn restart_api_server(&mut self, client: &Client) -> Result<()> {
        self.api_server.terminate(GRACE).await;
        self.api_server = Process::start(
            "kube-apiserver",
            &self.endpoint.directory,
            &self.components.kube_apiserver(),
            self.api_server_arguments.iter().cloned(),
        )?;
        self.ready(client).await
    }

    pub(crate) fn tails(&self) -> String {
        [Some(&self.etcd), Some(&self.api_server), self.controllers.as_ref()]
            .into_iter()
            .flatten()
            .map(Process::tail)
            .collect()
    }
}

/// A port that is free now. Somebody else may take it before we do; a retry by hand is cheaper than a lock.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0").context("no free port")?.local_addr()?.port())
}

/// An address of this machine that is not loopback's: endpoints take no other.
pub fn own_address() -> Result<IpAddr> {
    let asking = UdpSocket::bind("0.0.0.0:0").context("cannot bind")?;
    // Nothing is sent: the kernel says from which address it would be.
    let routed = asking.connect("198.51.100.1:9").and_then(|()| asking.local_addr());
    let address = routed.ok().map(|address| address.ip()).filter(|address| !address.is_loopback());
    address.context(
        "this machine has no address but loopback's, which no endpoint may have: run it where there is a network",
    )
}

fn start_etcd(components: &Components, endpoint: &Endpoint, url: &str) -> Result<Process> {
    let peer_url = format!("http://127.0.0.1:{}", free_port()?);
    let arguments = [
        format!("--data-dir={}", endpoint.directory.join("etcd").display()),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        format!("--listen-peer-urls={peer_url}"),
        format!("--initial-advertise-peer-urls={peer_url}"),
        format!("--initial-cluster=default={peer_url}"),
        // The data dies with the test, so no write waits for the disk.
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    Process::start("etcd", &endpoint.directory, &components.etcd(), arguments)
}

fn api_server_arguments(endpoint: &Endpoint, port: u16, etcd_url: &str, authenticator: &Https) -> Result<Vec<String>> {
    let Endpoint { url: _, authority_pem: _, directory } = endpoint;
    let file = |name: &str, contents: &str| -> Result<String> {
        let path = directory.join(name);
        fs::write(&path, contents).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.display().to_string())
    };
    let webhook = of_webhook(&authenticator.url("/authenticate"), authenticator.authority_pem());
    let webhook = file("authenticator.kubeconfig", &webhook.to_string())?;
    let audit_policy = file("audit-policy.yaml", AUDIT_POLICY)?;
    let service_account = KeyPair::generate()?;
    let service_account_key = file("service-account.key", &service_account.serialize_pem())?;
    let service_account_public = file("service-account.pub", &service_account.public_key_pem())?;
    let path = |name: &str| directory.join(name).display().to_string();
    Ok([
        ("etcd-servers", etcd_url.to_owned()),
        ("bind-address", "127.0.0.1".to_owned()),
        ("secure-port", port.to_string()),
        ("tls-cert-file", path("api-server.crt")),
        ("tls-private-key-file", path("api-server.key")),
        ("authentication-token-webhook-config-file", webhook),
        ("authentication-token-webhook-version", "v1".to_owned()),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("service-account-issuer", "https://kubernetes.default.svc.cluster.local".to_owned()),
        ("service-account-key-file", service_account_public),
        ("service-account-signing-key-file", service_account_key),
        ("service-cluster-ip-range", "10.100.0.0/16".to_owned()),
        // Webhooks behind a Service are called at its endpoints: nobody here carries what is sent to a ClusterIP.
        ("enable-aggregator-routing", "true".to_owned()),
        // Loopback is no address that an Endpoints object may hold.
        ("endpoint-reconciler-type", "none".to_owned()),
        ("enable-admission-plugins", ADMISSION_PLUGINS.to_owned()),
        ("allow-privileged", "true".to_owned()),
        ("audit-policy-file", audit_policy),
        ("audit-log-path", path("audit.log")),
        ("audit-log-maxsize", "1024".to_owned()), // MB: one file for the life of a cluster
    ]
    .map(|(name, value)| format!("--{name}={value}"))
    .into())
}

/// The API server's certificate, and the authority that every client trusts. Gives that authority's PEM.
pub(crate) fn issue_certificates(directory: &Path) -> Result<String> {
    let now = UnixTime::now();
    let authority = Authority::create("cedargate test cluster", LIFETIME, now)?;
    let names = Names::parse(["127.0.0.1", "localhost", "kubernetes.default.svc"])?;
    let issued = authority.issue(&names, LIFETIME, now)?;
    for (name, contents) in [
        ("authority.crt", authority.certificate_pem()),
        ("api-server.crt", &issued.chain_pem),
        ("api-server.key", &issued.key_pem),
    ] {
        fs::write(directory.join(name), contents).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(authority.certificate_pem().to_owned())
}
