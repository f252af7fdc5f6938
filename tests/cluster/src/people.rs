//! Who calls: people as EKS reports them, and the components of a HyperPod cluster.
//!
//! The samples are `tests/data/identities`; whoever has no sample of their own is one of them under another name, so
//! that uid, groups and extra keep the shape that was seen on EKS.

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::UserInfo;
use serde_json::json;

use crate::{
    access::{TEAM_A, TEAM_B},
    kubeconfig::{Endpoint, Identity},
    node::NODE,
    tokens::Tokens,
};

macro_rules! sample {
    ($name:literal) => {
        include_str!(concat!("../../data/identities/", $name, ".json"))
    };
}

const ALICE: &str = sample!("01-sso-teama-default-username");
const CHEN: &str = sample!("02-sso-teamb-custom-username-sessionname");
const STUDIO: &str = sample!("04-studio-shared-domain-role");
const NODE_ROLE: &str = sample!("09-ec2-linux-node");
const TRAINING_OPERATOR: &str = sample!("12-hyperpod-training-operator");
const SERVICE_LINKED_ROLE: &str = sample!("13-hyperpod-service-linked-role");

const TEAM_A_ROLE: &str = "AWSReservedSSO_TeamA_1234567890abcdef";
const TEAM_A_ROLE_ID: &str = "AROAEXAMPLETEAMASSO01";
const TEAM_A_GROUP: &str = "hyperpod-ns-team-a-namespace-level-group";

/// The group that the platform's access entry names; it is bound to `cluster-admin`.
pub(crate) const ADMINS: &str = "platform-admins";

/// The people of `policies/teams`.
#[derive(Debug, Clone)]
pub struct People {
    /// Of team A, by its permission set.
    pub alice: Identity,
    /// Lead of team A, in the same role session family as alice.
    pub amir: Identity,
    /// Of team B, by its permission set; the username is one that the access entry shortens.
    pub bob: Identity,
    /// Lead of team B.
    pub chen: Identity,
    /// Team B's Studio domain role: says which team, not which person.
    pub bob_in_studio: Identity,
    /// Of the permission set `PlatformAdmin`, with `cluster-admin`.
    pub admin: Identity,
    /// Of a role that no team knows, but RBAC lets it work in every namespace: somebody's mistake.
    pub intruder: Identity,
}

/// What runs in a HyperPod cluster beside people.
#[derive(Debug, Clone)]
pub struct Callers {
    /// `system:masters`. What the harness itself does, so that no audit line of a person is ours.
    pub root: Identity,
    pub controller_manager: Identity,
    pub scheduler: Identity,
    pub kubelet: Identity,
    pub space_operator: Identity,
    pub inference_operator: Identity,
    pub training_operator: Identity,
    pub kueue: Identity,
    pub service_linked_role: Identity,
}

impl People {
    pub(crate) fn create(register: &Register<'_>) -> Result<Self> {
        let admin = [(TEAM_A_ROLE, "AWSReservedSSO_PlatformAdmin_fedcba0987654321"), (TEAM_A_GROUP, ADMINS)];
        let intruder = [(TEAM_A_ROLE, "SomeOtherRole"), (TEAM_A_GROUP, "somebody-elses-group")];
        let studio = [("TeamA-role", "TeamB-studio"), ("team-a", "team-b"), ("STUDIOTA04", "STUDIOTB06")];
        Ok(Self {
            alice: register.person("alice", ALICE, &[], Some(TEAM_A))?,
            amir: register.person("amir", ALICE, &[("alice.martin", "amir.haddad")], Some(TEAM_A))?,
            bob: register.person("bob", CHEN, &[("chen.wei", "bob.osei")], Some(TEAM_B))?,
            chen: register.person("chen", CHEN, &[], Some(TEAM_B))?,
            bob_in_studio: register.person("bob-in-studio", STUDIO, &studio, Some(TEAM_B))?,
            admin: register.person("admin", ALICE, &person("ada.lind", "AROAEXAMPLEADMINSSO07", admin), None)?,
            intruder: register.person(
                "intruder",
                ALICE,
                &person("eve.stone", "AROAEXAMPLEOTHER00008", intruder),
                None,
            )?,
        })
    }
}

/// What to write over alice's sample to get somebody of another role.
fn person<'a>(name: &'a str, role_id: &'a str, role: [(&'a str, &'a str); 2]) -> Vec<(&'a str, &'a str)> {
    [("alice.martin", name), (TEAM_A_ROLE_ID, role_id)].into_iter().chain(role).collect()
}

impl Callers {
    pub(crate) fn create(register: &Register<'_>) -> Result<Self> {
        let node = [("ip-10-0-12-34.us-west-2.compute.internal", NODE)];
        Ok(Self {
            root: register.named("root", "cedargate-test-harness", &["system:masters"])?,
            controller_manager: register.named("controller-manager", "system:kube-controller-manager", &[])?,
            scheduler: register.named("scheduler", "system:kube-scheduler", &[])?,
            kubelet: register.person("kubelet", NODE_ROLE, &node, None)?,
            space_operator: register.operator(
                "space-operator",
                "5d1d0001",
                "jupyter-k8s-system",
                "jupyter-k8s-controller-manager",
            )?,
            inference_operator: register.operator(
                "inference-operator",
                "5d1d0002",
                "hyperpod-inference-system",
                "hyperpod-inference-operator-controller-manager",
            )?,
            training_operator: register.person("training-operator", TRAINING_OPERATOR, &[], None)?,
            kueue: register.operator("kueue", "5d1d0003", "kueue-system", "kueue-controller-manager")?,
            service_linked_role: register.person("service-linked-role", SERVICE_LINKED_ROLE, &[], None)?,
        })
    }
}

/// Makes identities: a token that the authenticator knows, and a kubeconfig with it.
#[derive(Debug)]
pub(crate) struct Register<'a> {
    pub(crate) tokens: &'a Tokens,
    pub(crate) endpoint: &'a Endpoint,
}

impl Register<'_> {
    pub(crate) fn add(&self, name: &str, user: UserInfo, namespace: Option<&str>) -> Result<Identity> {
        let token = self.tokens.issue(name, user.clone());
        self.endpoint.identity(name, user, &token, namespace)
    }

    fn person(&self, name: &str, sample: &str, changes: &[(&str, &str)], namespace: Option<&str>) -> Result<Identity> {
        let text = changes.iter().fold(sample.to_owned(), |text, (from, to)| text.replace(from, to));
        let user = serde_json::from_str(&text).with_context(|| format!("the sample of {name}"))?;
        self.add(name, user, namespace)
    }

    fn named(&self, name: &str, username: &str, groups: &[&str]) -> Result<Identity> {
        let user = json!({ "username": username, "groups": groups });
        self.add(name, serde_json::from_value(user)?, None)
    }

    /// A pod-bound service account, as the sample of the training operator has it, with a uid that begins so.
    fn operator(&self, name: &str, uid: &str, namespace: &str, account: &str) -> Result<Identity> {
        let changes = [
            ("5d1d0944", uid),
            ("aws-hyperpod", namespace),
            ("hp-training-operator-controller-manager", account),
            ("hp-training-operator-hp-training-controller-manager", account),
        ];
        self.person(name, TRAINING_OPERATOR, &changes, None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn everybody(directory: &std::path::Path) -> (People, Callers) {
        let endpoint = Endpoint {
            url: "https://127.0.0.1:1".to_owned(),
            authority_pem: String::new(),
            directory: directory.to_owned(),
        };
        let tokens = Tokens::default();
        let register = Register { tokens: &tokens, endpoint: &endpoint };
        (People::create(&register).expect("people"), Callers::create(&register).expect("callers"))
    }

    #[test]
    fn whoever_is_made_from_a_sample_is_as_consistent_as_the_sample() {
        let directory = tempfile::tempdir().expect("a directory");
        let (people, _) = everybody(directory.path());
        let People { alice, amir, bob, chen, bob_in_studio, admin, intruder } = people;
        let mut usernames = BTreeSet::new();
        for identity in [alice, amir, bob, chen, bob_in_studio, admin, intruder] {
            let extra = identity.user().extra.clone().expect("people have extra");
            let one = |key: &str| extra[key][0].clone();
            let role = one("canonicalArn").replace(":iam:", ":sts:").replace(":role/", ":assumed-role/");
            assert_eq!(one("arn"), format!("{role}/{}", one("sessionName")), "{}", identity.name());
            let uid = identity.user().uid.clone().expect("people have a uid");
            assert_eq!(
                uid,
                format!("aws-iam-authenticator:111122223333:{}", one("principalId")),
                "{}",
                identity.name()
            );
            assert!(usernames.insert(identity.username().to_owned()), "{} is somebody else too", identity.name());
        }
    }

    #[test]
    fn operators_are_different_service_accounts() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_, callers) = everybody(directory.path());
        let operators = [callers.space_operator, callers.inference_operator, callers.training_operator, callers.kueue];
        let uids: BTreeSet<_> = operators.iter().map(|operator| operator.user().uid.clone()).collect();
        assert_eq!(uids.len(), operators.len());
        assert_eq!(operators[3].username(), "system:serviceaccount:kueue-system:kueue-controller-manager");
        assert_eq!(callers.kubelet.username(), format!("system:node:{NODE}"));
    }
}
