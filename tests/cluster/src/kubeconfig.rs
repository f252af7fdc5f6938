//! Who somebody is to the API server, and the kubeconfig that makes kubectl be that.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

/// One caller: a person, a controller, an operator.
#[derive(Debug, Clone)]
pub struct Identity {
    name: String,
    user: UserInfo,
    namespace: Option<String>,
    kubeconfig: PathBuf,
}

impl Identity {
    /// A short name, unique in the cluster: `alice`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As admission will see it.
    pub fn user(&self) -> &UserInfo {
        &self.user
    }

    pub fn username(&self) -> &str {
        self.user.username.as_deref().unwrap_or_default()
    }

    /// Where this identity works unless told otherwise.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client of the runtime that this is called on: it ends with that runtime, so make one in each test.
    pub async fn client(&self) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.proxy_url = None; // the API server is on loopback, whatever the environment says
        Ok(Client::try_from(config)?)
    }
}

/// Where the API server is, for those who write kubeconfigs.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) url: String,
    pub(crate) authority_pem: String,
    pub(crate) directory: PathBuf,
}

impl Endpoint {
    pub(crate) fn identity(
        &self,
        name: &str,
        user: UserInfo,
        token: &str,
        namespace: Option<&str>,
    ) -> Result<Identity> {
        let kubeconfig = self.directory.join(format!("{name}.kubeconfig"));
        let text = self.kubeconfig(token, namespace.unwrap_or("default"));
        fs::write(&kubeconfig, text.to_string()).with_context(|| format!("cannot write {}", kubeconfig.display()))?;
        Ok(Identity { name: name.to_owned(), user, namespace: namespace.map(str::to_owned), kubeconfig })
    }

    /// JSON is YAML.
    fn kubeconfig(&self, token: &str, namespace: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{
                "name": "test",
                "cluster": {
                    "server": self.url,
                    "certificate-authority-data": BASE64.encode(&self.authority_pem),
                },
            }],
            "users": [{ "name": "test", "user": { "token": token } }],
            "contexts": [{
                "name": "test",
                "context": { "cluster": "test", "user": "test", "namespace": namespace },
            }],
        })
    }
}

/// The same shape, but for the API server as client: how it reaches a webhook that knows everybody.
pub(crate) fn of_webhook(url: &str, authority_pem: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "webhook",
        "clusters": [{
            "name": "webhook",
            "cluster": { "server": url, "certificate-authority-data": BASE64.encode(authority_pem) },
        }],
        "users": [{ "name": "api-server", "user": {} }],
        "contexts": [{ "name": "webhook", "context": { "cluster": "webhook", "user": "api-server" } }],
    })
}
