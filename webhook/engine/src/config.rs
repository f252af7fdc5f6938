//! What a site configures about its cluster: whom to believe, and which parts of the cluster are trusted to act for others.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::facts::kinds::Kinds;
use crate::vocabulary::{Change, ComponentKind};

/// The default list of trusted controllers, with the service accounts that Kubernetes and HyperPod use.
pub const DEFAULT_CONTROLLERS: &str = include_str!("config/controllers.yaml");

/// What was typed; every field has a default.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Config {
    /// Accounts whose roles are believed. Empty: none is.
    pub accounts: BTreeSet<String>,
    pub partitions: BTreeSet<String>,
    /// IANA time zone of `context.hour` and `context.weekday`.
    pub time_zone: String,
    /// Only sessions with temporary credentials (`ASIA...`) count.
    pub require_temporary_credentials: bool,
    /// Service-account tokens must carry a credential id (Kubernetes 1.32 or later, and EKS). Impersonation does not.
    pub require_credential_id: bool,
    /// Parts of the cluster that act for others.
    pub controllers: Vec<Controller>,
    /// Kinds that run pods, beside those that the gate knows.
    pub kinds: Kinds,
    /// Namespaces that belong to the cluster: never a team's.
    pub system_namespaces: BTreeSet<String>,
    /// Our own service account, `namespace/name`.
    pub own_service_account: String,
    /// Seconds after which no request can be under way any more that the gate has let in: the API server's `--request-timeout`
    /// (60), the webhooks' timeouts, and a margin. So long a reservation without an object is kept.
    pub request_lifetime_seconds: u32,
}

/// A part of the cluster that is trusted to create children of other people's objects.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Controller {
    /// `namespace/name`.
    pub service_account: Option<String>,
    /// A plain username, where the cluster gives the part no service account.
    pub user: Option<String>,
    /// Pins one incarnation of the service account, or the one IAM role behind a plain username
    /// (`aws-iam-authenticator:<account>:<role id>`).
    pub uid: Option<String>,
    pub kind: Option<ComponentKind>,
    /// Owners it acts for, `group/Kind`; the group alone (`kubeflow.org/*`) means all its kinds. Empty: it creates nothing.
    pub owners: Vec<String>,
    /// Changes to others' objects that are its job and need no question of the submitter.
    pub may_add: BTreeSet<Change>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            accounts: BTreeSet::new(),
            partitions: BTreeSet::from(["aws".to_owned()]),
            time_zone: "UTC".to_owned(),
            require_temporary_credentials: false,
            require_credential_id: true,
            controllers: default_controllers(),
            kinds: Kinds::default(),
            system_namespaces: default_system_namespaces(),
            own_service_account: "cedargate-system/cedargate".to_owned(),
            request_lifetime_seconds: 120,
        }
    }
}

/// A configuration that must not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("configuration: {0}")]
pub struct ConfigError(pub String);

impl Config {
    /// Reads YAML; absent fields take their defaults.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_saphyr::from_str(text).map_err(|error| ConfigError(error.to_string()))?;
        config.checked()
    }

    /// How long a request that was let in may still take to store its object.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.request_lifetime_seconds.into())
    }

    fn checked(mut self) -> Result<Self, ConfigError> {
        self.trust_controllers_of_kinds();
        if self.request_lifetime_seconds == 0 {
            return Err(ConfigError("requestLifetimeSeconds must not be 0: requests take time".to_owned()));
        }
        if jiff::tz::TimeZone::get(&self.time_zone).is_err() {
            return Err(ConfigError(format!("timeZone `{}` is unknown", self.time_zone)));
        }
        for controller in &self.controllers {
            let named = usize::from(controller.service_account.is_some()) + usize::from(controller.user.is_some());
            if named != 1 || controller.kind.is_none() {
                let name = controller.name();
                return Err(ConfigError(format!(
                    "controllers: `{name}` needs a kind and one of serviceAccount and user"
                )));
            }
        }
        Ok(self)
    }

    /// Whoever is said to make the pods of a kind acts for its objects.
    fn trust_controllers_of_kinds(&mut self) {
        for kind in self.kinds.iter() {
            let owner = format!("{}/{}", kind.group, kind.kind);
            for name in &kind.controllers {
                let known = self.controllers.iter_mut().find(|known| known.service_account.as_ref() == Some(name));
                match known {
                    Some(known) => known.owners.push(owner.clone()),
                    None => self.controllers.push(Controller {
                        service_account: Some(name.clone()),
                        kind: Some(ComponentKind::Operator),
                        owners: vec![owner.clone()],
                        ..Controller::default()
                    }),
                }
            }
        }
    }

    /// A trusted controller inside a governed namespace is refused: a member could mint its token.
    pub fn check_against<'a>(&self, governed: impl Fn(&str) -> Option<&'a str>) -> Result<(), ConfigError> {
        for controller in &self.controllers {
            let namespace = controller.service_account.as_deref().and_then(|id| id.split_once('/')).map(|(ns, _)| ns);
            if let Some((namespace, team)) = namespace.and_then(|namespace| Some((namespace, governed(namespace)?))) {
                let name = controller.name();
                return Err(ConfigError(format!(
                    "controllers: `{name}` lives in `{namespace}`, a namespace of team {team}, whose members could mint its token"
                )));
            }
        }
        // The cluster's own parts must never wait for the gate.
        for namespace in &self.system_namespaces {
            if let Some(team) = governed(namespace) {
                return Err(ConfigError(format!("systemNamespaces: `{namespace}` is a namespace of team {team}")));
            }
        }
        Ok(())
    }

    pub fn zone(&self) -> jiff::tz::TimeZone {
        jiff::tz::TimeZone::get(&self.time_zone).unwrap_or(jiff::tz::TimeZone::UTC)
    }
}

impl Controller {
    pub fn name(&self) -> &str {
        self.service_account.as_deref().or(self.user.as_deref()).unwrap_or_default()
    }

    pub fn component(&self) -> ComponentKind {
        self.kind.unwrap_or(ComponentKind::KubernetesController)
    }

    /// Whether it may act for an owner of this group and kind.
    pub fn acts_for(&self, group: &str, kind: &str) -> bool {
        self.owners.iter().any(|owner| match owner.rsplit_once('/') {
            Some((owner_group, "*")) => owner_group == group,
            Some((owner_group, owner_kind)) => owner_group == group && owner_kind.eq_ignore_ascii_case(kind),
            None => group.is_empty() && owner.eq_ignore_ascii_case(kind),
        })
    }
}

fn default_controllers() -> Vec<Controller> {
    serde_saphyr::from_str(DEFAULT_CONTROLLERS).expect("the embedded list is read by a test")
}

fn default_system_namespaces() -> BTreeSet<String> {
    [
        "kube-system",
        "kube-public",
        "kube-node-lease",
        "kueue-system",
        "aws-hyperpod",
        "hyperpod-inference-system",
        "jupyter-k8s-system",
        "cert-manager",
        "amazon-cloudwatch",
        "amazon-guardduty",
        "cedargate-system",
    ]
    .map(str::to_owned)
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_controllers_are_whole() {
        let config = Config::parse("accounts: [\"111122223333\"]").expect("defaults are a configuration");
        assert!(config.controllers.len() > 30);
        let job = config.controllers.iter().find(|entry| entry.name() == "kube-system/job-controller");
        assert!(job.is_some_and(|entry| entry.acts_for("batch", "Job") && !entry.acts_for("batch", "CronJob")));
        let training = config.controllers.iter().find(|entry| entry.name() == "kubeflow/training-operator");
        assert!(training.is_some_and(|entry| entry.acts_for("kubeflow.org", "TFJob") && !entry.acts_for("", "TFJob")));
    }

    #[test]
    fn the_documented_kind_is_one_and_its_controller_is_trusted_with_it() {
        let documentation = include_str!("../../../docs/configuration.md");
        let example = documentation.split_once("```yaml\n").and_then(|(_, rest)| rest.split_once("```"));
        let config = Config::parse(example.expect("an example").0).expect("a configuration");
        assert!(config.kinds.of_resource("ml.example.org", "sweeps").is_some_and(|kind| kind.has_scale()));
        let sweeper = config.controllers.iter().find(|entry| entry.name() == "sweeper-system/sweeper");
        assert!(sweeper.is_some_and(|entry| entry.acts_for("ml.example.org", "Sweep")));
        let governed = |namespace: &str| (namespace == "sweeper-system").then_some("team-a");
        assert!(config.check_against(governed).is_err(), "a member could mint its token");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let texts = [
            "account: []",
            "timeZone: Mars/Olympus",
            "controllers: [{serviceAccount: a/b}]",
            "controllers: [{kind: operator}]",
            "controllers: [{kind: operator, serviceAccount: a/b, user: c}]",
        ];
        for text in texts {
            assert!(Config::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn teams_have_neither_controllers_nor_system_namespaces() {
        let config = Config::default();
        let governed = |theirs: &'static str| move |namespace: &str| (namespace == theirs).then_some("team-a");
        for namespace in ["kubeflow", "kube-system"] {
            let error = config.check_against(governed(namespace)).expect_err("a member could mint its token");
            assert!(error.to_string().contains("team-a"), "{error}");
        }
        assert_eq!(config.check_against(governed("hyperpod-ns-team-a")), Ok(()));
    }
}
