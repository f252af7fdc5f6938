//! The webhook configurations, as one function of what is governed.
//!
//! | webhook | where | if the gate is down |
//! |---|---|---|
//! | `governed` | the Teams' namespaces | refused: nothing of a team runs unjudged |
//! | `outside` | all other namespaces but the cluster's own, people only | let through |
//! | `teams` | Teams and ledgers | refused: an overlap must not slip in |
//! | `cluster` | Namespaces and PersistentVolumes | let through |
//! | `queues` | Kueue's ClusterQueues, flavors, priorities, people only | let through |
//!
//! Namespaces are told by `kubernetes.io/metadata.name`, which the API server sets and nobody can change. The gate fills
//! configurations that are there and never creates one: the chart installs them empty and removes them first, and what is
//! being removed must not come back.

mod conditions;
mod live;
mod rules;

use std::collections::{BTreeMap, BTreeSet};

use engine::config::Config;
use engine::team::served::ServedTeam;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::ObjectMeta;

pub use live::{Live, Wanted, settle};

use crate::Endpoint;

/// Name of both configurations. Mutating ones run in the order of their names: before Kueue's (`kueue-...`), so that the
/// queue is there, and before `pod-identity-webhook`, so that the service account is.
pub const NAME: &str = "cedargate";

/// The webhook whose namespaces are the governed ones.
const GOVERNED: &str = "governed.cedargate.dev";

/// The version of Teams that a configuration was made from, so that a replica that is behind does not take away.
const TEAMS_VERSION: &str = "cedargate.dev/teams-version";

/// What is left of Teams that vanished while pods ran: a gate that starts anew knows them from here.
const VANISHED_TEAMS: &str = "cedargate.dev/vanished-teams";

/// What would be left of each Team, should it vanish while no gate runs to see it.
const GOVERNED_TEAMS: &str = "cedargate.dev/governed-teams";

/// Above the gate's own deadline, which is made from it; the longest that a person waits for one webhook.
const TIMEOUT_SECONDS: i32 = 10;

/// Where the API server finds the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Service {
        namespace: String,
        name: String,
    },
    /// Base URL, for a gate outside the cluster.
    Url(String),
}

/// Both configurations, to be applied server-side. `ca_bundle` is PEM; without it the API server trusts what its system
/// trusts.
pub fn render(
    wanted: &Wanted,
    config: &Config,
    ca_bundle: Option<&str>,
    target: &Target,
) -> (MutatingWebhookConfiguration, ValidatingWebhookConfiguration) {
    let metadata =
        || ObjectMeta { name: Some(NAME.to_owned()), annotations: Some(annotations(wanted)), ..ObjectMeta::default() };
    let client = |endpoint| client(target, ca_bundle, endpoint);
    let mutating = mutating(wanted, config).into_iter().map(|webhook| webhook.mutating(client(Endpoint::Mutate)));
    let validating =
        validating(wanted, config).into_iter().map(|webhook| webhook.validating(client(Endpoint::Validate)));
    (
        MutatingWebhookConfiguration { metadata: metadata(), webhooks: some(mutating.collect()) },
        ValidatingWebhookConfiguration { metadata: metadata(), webhooks: some(validating.collect()) },
    )
}

/// An empty list that is applied is stored as none, and each time counts as a change.
fn some<T>(webhooks: Vec<T>) -> Option<Vec<T>> {
    (!webhooks.is_empty()).then_some(webhooks)
}

/// What differs from one webhook to the next.
struct Webhook {
    name: &'static str,
    fails: bool,
    namespaces: Option<LabelSelector>,
    rules: Vec<RuleWithOperations>,
    conditions: Vec<MatchCondition>,
}

fn mutating(wanted: &Wanted, config: &Config) -> Vec<Webhook> {
    let governed = governed_namespaces(wanted).map(|namespaces| Webhook {
        name: GOVERNED,
        fails: true,
        namespaces: Some(namespaces),
        rules: rules::mutated(&config.kinds),
        conditions: vec![conditions::changes(config, &wanted.label_keys)],
    });
    governed.into_iter().collect()
}

fn validating(wanted: &Wanted, config: &Config) -> Vec<Webhook> {
    let changes = || conditions::changes(config, &wanted.label_keys);
    let governed = governed_namespaces(wanted).map(|namespaces| Webhook {
        name: GOVERNED,
        fails: true,
        namespaces: Some(namespaces),
        rules: rules::validated(&config.kinds),
        conditions: vec![
            changes(),
            conditions::not_upkeep_by_a_node(),
            conditions::not_the_scheduler(),
            conditions::not_the_queue(config),
        ],
    });
    let elsewhere = wanted.namespaces.iter().chain(&config.system_namespaces).cloned().collect();
    let outside = Webhook {
        name: "outside.cedargate.dev",
        fails: false,
        namespaces: selector("NotIn", &elsewhere),
        rules: rules::validated(&config.kinds),
        conditions: vec![conditions::by_iam(), changes()],
    };
    let teams = Webhook {
        name: "teams.cedargate.dev",
        fails: true,
        namespaces: None,
        rules: rules::own(),
        conditions: vec![conditions::not_by_the_gate(config)],
    };
    let cluster = Webhook {
        name: "cluster.cedargate.dev",
        fails: false,
        namespaces: None,
        rules: rules::of_the_cluster(),
        conditions: vec![conditions::not_by_the_gate(config), conditions::changes_at_all()],
    };
    // People only: task governance writes these under names that differ from one version to the next.
    let queues = Webhook {
        name: "queues.cedargate.dev",
        fails: false,
        namespaces: None,
        rules: rules::of_the_queue(),
        conditions: vec![conditions::by_iam(), conditions::changes_at_all()],
    };
    governed.into_iter().chain([outside, teams, cluster, queues]).collect()
}

impl Webhook {
    fn mutating(self, client_config: WebhookClientConfig) -> MutatingWebhook {
        let Self { name, fails, namespaces, rules, conditions } = self;
        MutatingWebhook {
            admission_review_versions: vec!["v1".to_owned()],
            client_config,
            failure_policy: Some(failure_policy(fails)),
            match_conditions: Some(conditions),
            match_policy: Some("Equivalent".to_owned()),
            name: name.to_owned(),
            namespace_selector: namespaces,
            object_selector: None,
            // A container that a later webhook adds gets its mounts, too.
            reinvocation_policy: Some("IfNeeded".to_owned()),
            rules: Some(rules),
            side_effects: "NoneOnDryRun".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
        }
    }

    fn validating(self, client_config: WebhookClientConfig) -> ValidatingWebhook {
        let Self { name, fails, namespaces, rules, conditions } = self;
        ValidatingWebhook {
            admission_review_versions: vec!["v1".to_owned()],
            client_config,
            failure_policy: Some(failure_policy(fails)),
            match_conditions: Some(conditions),
            match_policy: Some("Equivalent".to_owned()),
            name: name.to_owned(),
            namespace_selector: namespaces,
            object_selector: None,
            rules: Some(rules),
            side_effects: "NoneOnDryRun".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
        }
    }
}

fn failure_policy(fails: bool) -> String {
    if fails { "Fail" } else { "Ignore" }.to_owned()
}

/// `None` without namespaces: `In` with an empty list is refused.
fn governed_namespaces(wanted: &Wanted) -> Option<LabelSelector> {
    selector("In", &wanted.namespaces)
}

fn selector(operator: &str, namespaces: &BTreeSet<String>) -> Option<LabelSelector> {
    (!namespaces.is_empty()).then(|| LabelSelector {
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: live::NAMESPACE_NAME.to_owned(),
            operator: operator.to_owned(),
            values: Some(namespaces.iter().cloned().collect()),
        }]),
        match_labels: None,
    })
}

fn client(target: &Target, ca_bundle: Option<&str>, endpoint: Endpoint) -> WebhookClientConfig {
    let ca_bundle = ca_bundle.map(|bundle| ByteString(bundle.as_bytes().to_vec()));
    match target {
        Target::Service { namespace, name } => WebhookClientConfig {
            ca_bundle,
            service: Some(ServiceReference {
                name: name.clone(),
                namespace: namespace.clone(),
                path: Some(endpoint.path().to_owned()),
                port: None,
            }),
            url: None,
        },
        Target::Url(base) => WebhookClientConfig {
            ca_bundle,
            service: None,
            url: Some(format!("{}{}", base.trim_end_matches('/'), endpoint.path())),
        },
    }
}

fn annotations(wanted: &Wanted) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([(TEAMS_VERSION.to_owned(), wanted.teams_version.to_string())]);
    let texts = [(VANISHED_TEAMS, vanished_text(&wanted.vanished)), (GOVERNED_TEAMS, governed_text(&wanted.left))];
    for (key, text) in texts {
        annotations.extend(text.map(|text| (key.to_owned(), text)));
    }
    annotations
}

/// Half of what all annotations of an object may hold. What does not fit is kept by the running replicas, as long as one
/// of them does.
const MAX_VANISHED_BYTES: usize = 128 * 1024;

/// A quarter of it: without people, a Team takes a few hundred bytes.
const MAX_GOVERNED_BYTES: usize = 64 * 1024;

fn vanished_text(vanished: &[ServedTeam]) -> Option<String> {
    what_fits(vanished, MAX_VANISHED_BYTES)
}

/// Of too many, what keeps them governed.
fn governed_text(left: &[ServedTeam]) -> Option<String> {
    let whole = what_fits(left, MAX_GOVERNED_BYTES).filter(|text| text_of(left).as_ref() == Some(text));
    whole.or_else(|| what_fits(&left.iter().map(ServedTeam::bare).collect::<Vec<_>>(), MAX_GOVERNED_BYTES))
}

fn what_fits(teams: &[ServedTeam], bytes: usize) -> Option<String> {
    let fits = |count| text_of(&teams[..count]).filter(|text| text.len() <= bytes);
    (1..=teams.len()).rev().find_map(fits)
}

fn text_of(teams: &[ServedTeam]) -> Option<String> {
    serde_json::to_string(teams).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(namespaces: &[&str]) -> Wanted {
        Wanted {
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            label_keys: ["cost-center".to_owned()].into(),
            vanished: Vec::new(),
            left: Vec::new(),
            teams_version: 42,
        }
    }

    fn service() -> Target {
        Target::Service { namespace: "cedargate-system".to_owned(), name: "cedargate".to_owned() }
    }

    #[test]
    fn two_teams_behind_a_service() {
        let wanted = wanted(&["hyperpod-ns-team-a", "hyperpod-ns-team-b"]);
        let (mutating, validating) =
            render(&wanted, &Config::default(), Some("-----BEGIN CERTIFICATE-----\n"), &service());
        insta::assert_json_snapshot!("mutating", mutating);
        insta::assert_json_snapshot!("validating", validating);
    }

    #[test]
    fn without_teams_nothing_is_governed_and_the_rest_is_valid() {
        let target = Target::Url("https://127.0.0.1:8443/".to_owned());
        let (mutating, validating) = render(&wanted(&[]), &Config::default(), None, &target);
        assert_eq!(mutating.webhooks, None);
        let webhooks = validating.webhooks.expect("some");
        let names: Vec<_> = webhooks.iter().map(|webhook| webhook.name.as_str()).collect();
        assert_eq!(
            names,
            ["outside.cedargate.dev", "teams.cedargate.dev", "cluster.cedargate.dev", "queues.cedargate.dev"]
        );
        let client = &webhooks[0].client_config;
        assert_eq!(client.url.as_deref(), Some("https://127.0.0.1:8443/validate"));
        assert_eq!((&client.ca_bundle, &client.service), (&None, &None));
    }

    #[test]
    fn runs_before_the_webhooks_it_prepares_for() {
        for later in ["kueue-mutating-webhook-configuration", "pod-identity-webhook"] {
            assert!(NAME < later);
        }
    }

    #[test]
    fn the_clusters_own_namespaces_are_never_governed_outside() {
        let (_, validating) = render(&wanted(&["ns-a"]), &Config::default(), None, &service());
        let outside = validating.webhooks.into_iter().flatten().find(|webhook| webhook.name.starts_with("outside"));
        let selector =
            outside.and_then(|webhook| webhook.namespace_selector).and_then(|selector| selector.match_expressions);
        let values =
            selector.into_iter().flatten().flat_map(|requirement| requirement.values).flatten().collect::<Vec<_>>();
        assert!(["ns-a", "kube-system", "cedargate-system"].iter().all(|name| values.contains(&(*name).to_owned())));
    }
}
