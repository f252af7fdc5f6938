//! Who is asking: the samples of `data/identities` with the reading that their README gives, and every way of spoiling
//! one. Teams and configuration stand here, because they are half of each expectation.
//!
//! Loading policies recurses deeply; run with `RUST_MIN_STACK=16777216`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::attribution::{Phase, Principal};
use engine::cluster::Cluster;
use engine::config::Config;
use engine::identity::{Caller, IamName, identify};
use engine::offline::review_of;
use engine::pipeline::evaluate;
use engine::review::{Operation, Review, UserInfo};
use engine::snapshot::Snapshot;
use engine::stamp::Submitter;
use engine::team::Teams;
use engine::verdict::ReasonCode;
use engine::vocabulary::Origin;
use serde_json::{Value, json};
use tests::gate::{self, sample};

const TEAM_A: &str = "
apiVersion: cedargate.dev/v1alpha1
kind: Team
metadata: {name: team-a}
spec:
  namespaces: [hyperpod-ns-team-a]
  members:
    - {permissionSet: TeamA, partition: aws, account: '111122223333'}
    - {permissionSet: TeamA, partition: aws-us-gov, account: '444455556666', username: 'sso:{{SessionNameRaw}}'}
    - {role: teams/ml/TeamA-role, account: '111122223333', partition: aws}
    - {role: TeamA-legacy, username: team-a-dev}
";

const TEAM_B: &str = "
apiVersion: cedargate.dev/v1alpha1
kind: Team
metadata: {name: team-b}
spec:
  namespaces: [hyperpod-ns-team-b]
  members:
    - {permissionSet: TeamB_ML, username: 'team-b:{{SessionName}}'}
    - {role: TeamB-studio-chen-wei, personFrom: fixed, person: chen.wei@example.com}
";

/// The account of every sample but the third.
const AWS: &str = "accounts: ['111122223333']";
/// Both accounts and both partitions.
const AWS_AND_GOVCLOUD: &str = "{accounts: ['111122223333', '444455556666'], partitions: [aws, aws-us-gov]}";

const ALICE: &str = "alice.martin@example.com";

#[test]
fn every_sample_is_read_as_its_readme_says() {
    let table = [
        ("01-sso-teama-default-username", AWS, "IAM permission set TeamA of team-a: alice.martin@example.com"),
        (
            "02-sso-teamb-custom-username-sessionname",
            AWS,
            "IAM permission set TeamB_ML of team-b: chen.wei@example.com",
        ),
        (
            "03-sso-govcloud-sessionnameraw",
            AWS_AND_GOVCLOUD,
            "IAM permission set TeamA of team-a: dana.fox@example.com",
        ),
        ("03-sso-govcloud-sessionnameraw", AWS, "untrusted: the account is not one of the configuration"),
        (
            "03-sso-govcloud-sessionnameraw",
            "accounts: ['444455556666']",
            "untrusted: the partition is not one of the configuration",
        ),
        ("04-studio-shared-domain-role", AWS, "IAM role TeamA-role of team-a: nobody known"),
        ("05-studio-user-profile-role", AWS, "IAM role TeamB-studio-chen-wei of team-b: chen.wei@example.com"),
        ("06-iam-user-with-path", AWS, "IAM user ml/erik.olsen of no team"),
        ("07-aws-auth-static-username", AWS, "IAM role TeamA-legacy of team-a: nobody known"),
        ("08-assume-role-chosen-session-name", AWS, "IAM role TeamA-role of team-a: nobody known"),
        ("09-ec2-linux-node", AWS, "node ip-10-0-12-34.us-west-2.compute.internal"),
        ("10-team-pod-service-account", AWS, "pod ray-llm-head-7k2xq for team-a: alice.martin@example.com"),
        ("11-kcm-job-controller", AWS, "kubernetes-controller kube-system/job-controller"),
        ("12-hyperpod-training-operator", AWS, "operator aws-hyperpod/hp-training-operator-controller-manager"),
        ("13-hyperpod-service-linked-role", AWS, "hyperpod hyperpod-service-linked-role"),
        ("14-eks-control-plane-identity", AWS, "stranger eks:certificate-controller"),
        ("15-impersonated-forged", AWS, "untrusted: extra key `canonicalarn` is spelt as impersonation leaves it"),
    ];
    for (file, config, expected) in table {
        assert_eq!(World::new(config).reads(&sample(file)), expected, "{file} with {config}");
    }
    let samples = gate::files(&gate::repository().join("tests/data/identities"), "json");
    let read: BTreeSet<_> = table.iter().map(|(file, ..)| file).collect();
    assert_eq!(samples.len(), read.len(), "each sample has its line in the table");
}

#[test]
fn a_service_account_that_is_impersonated_is_not_believed() {
    for file in ["10-team-pod-service-account", "11-kcm-job-controller"] {
        let whole = sample(file);
        let without_uid = UserInfo { uid: String::new(), ..whole.clone() };
        let without_extra = UserInfo { extra: BTreeMap::new(), ..whole.clone() };
        let without_either = UserInfo { uid: String::new(), extra: BTreeMap::new(), ..whole };
        for (user, lacks) in [(without_uid, "uid"), (without_extra, "credential id"), (without_either, "uid")] {
            let expected = format!("untrusted: a service account without {lacks}, as impersonation leaves it");
            assert_eq!(World::new(AWS).reads(&user), expected, "{file}");
        }
    }
}

/// Clusters before Kubernetes 1.32 write no credential id: the site says so, and the uid is insisted on all the same.
#[test]
fn credential_ids_may_be_switched_off() {
    let world = World::new("{accounts: ['111122223333'], requireCredentialId: false}");
    let bare = UserInfo { extra: BTreeMap::new(), ..sample("11-kcm-job-controller") };
    assert_eq!(world.reads(&bare), "kubernetes-controller kube-system/job-controller");
    assert!(world.reads(&UserInfo { uid: String::new(), ..bare }).starts_with("untrusted"));
}

#[test]
fn names_are_compared_as_aws_compares_them() {
    let world = World::new(AWS);
    let sso =
        |role: &str| renamed(&sample("01-sso-teama-default-username"), "AWSReservedSSO_TeamA_1234567890abcdef", role);
    let studio = |role: &str| renamed(&sample("04-studio-shared-domain-role"), "TeamA-role", role);
    let alice = "IAM permission set TeamA of team-a: alice.martin@example.com";
    let table = [
        ("the suffix says nothing", sso("AWSReservedSSO_TeamA_fedcba0987654321"), alice),
        (
            "a longer name",
            sso("AWSReservedSSO_TeamA_Admin_1234567890abcdef"),
            "IAM permission set TeamA_Admin of no team",
        ),
        ("a shorter name", sso("AWSReservedSSO_Team_1234567890abcdef"), "IAM permission set Team of no team"),
        ("no suffix", sso("AWSReservedSSO_TeamA"), "IAM role AWSReservedSSO_TeamA of no team"),
        ("a suffix too short", sso("AWSReservedSSO_TeamA_1234"), "IAM role AWSReservedSSO_TeamA_1234 of no team"),
        ("a role of the set's name", sso("TeamA"), "IAM role TeamA of no team"),
        ("roles have no case", studio("TEAMA-ROLE"), "IAM role TEAMA-ROLE of team-a: nobody known"),
        ("a longer role", studio("TeamA-role-admin"), "IAM role TeamA-role-admin of no team"),
    ];
    for (what, user, expected) in table {
        assert_eq!(world.reads(&user), expected, "{what}");
    }
}

/// Session names are kept as they are: whoever is spelt otherwise is somebody else.
#[test]
fn session_names_are_exact() {
    let alice = sample("01-sso-teama-default-username");
    for (session, username) in [
        ("Alice.Martin@example.com", "Alice.Martin-example.com"),
        ("alice.martin-example.com", "alice.martin-example.com"),
    ] {
        let other = renamed(&renamed(&alice, ALICE, session), "alice.martin-example.com", username);
        assert_eq!(World::new(AWS).reads(&other), format!("IAM permission set TeamA of team-a: {session}"));
    }
}

#[test]
fn the_same_name_in_another_account_or_partition_is_another_principal() {
    let studio = sample("04-studio-shared-domain-role");
    let account = renamed(&studio, "111122223333", "444455556666");
    let partition = renamed(&studio, "arn:aws:", "arn:aws-us-gov:");
    for user in [account, partition] {
        assert!(World::new(AWS).reads(&user).starts_with("untrusted"), "neither is configured");
        assert_eq!(World::new(AWS_AND_GOVCLOUD).reads(&user), "IAM role TeamA-role of no team", "the member pins both");
    }
}

/// A path never reaches the gate, so it is left out on both sides; an ARN would say more than the field keeps.
#[test]
fn members_name_roles_and_users() {
    let named = |member: &str| {
        let member = format!("members: [{member}]");
        TEAM_A.split("  members:").next().map(|head| format!("{head}  {member}\n")).expect("team-a has members")
    };
    let reads = |member: &str, file: &str| World::with(AWS, &[&named(member)]).reads(&sample(file));
    let role = "IAM role TeamA-role of team-a: nobody known";
    assert_eq!(reads("{role: TeamA-role}", "04-studio-shared-domain-role"), role);
    assert_eq!(reads("{role: any/path/TeamA-role}", "04-studio-shared-domain-role"), role);
    let user = "IAM user ml/erik.olsen of team-a: nobody known";
    assert_eq!(reads("{user: ml/erik.olsen}", "06-iam-user-with-path"), user);
    assert_eq!(reads("{user: /ml/erik.olsen}", "06-iam-user-with-path"), user);
    for other in ["erik.olsen", "ops/erik.olsen", "ml/Erik.Olsen"] {
        let expected = "IAM user ml/erik.olsen of no team";
        assert_eq!(
            reads(&format!("{{user: {other}}}"), "06-iam-user-with-path"),
            expected,
            "a user's path is part of it"
        );
    }
    for arn in
        ["role: 'arn:aws:iam::444455556666:role/TeamA-role'", "user: 'arn:aws:iam::111122223333:user/ml/erik.olsen'"]
    {
        let team = named(&format!("{{{arn}}}"));
        let errors = Teams::parse([("a.yaml", team.as_str())]).expect_err("an ARN would not pin its account");
        assert!(errors[0].problem.contains("`account`"), "{errors:?}");
    }
}

/// One change to one field, every kind of change to every field.
#[test]
fn nothing_that_was_tampered_with_is_believed() {
    let table = [
        ("01-sso-teama-default-username", "IAM permission set TeamA of team-a: alice.martin@example.com"),
        ("06-iam-user-with-path", "IAM user ml/erik.olsen of no team"),
    ];
    for (file, itself) in table {
        let user = sample(file);
        let world = World::new(AWS);
        let is_believed = |(_, user): &Tampered| !world.reads(user).starts_with("untrusted");
        let believed: BTreeMap<_, _> = tampered(&user).into_iter().filter(is_believed).collect();
        // These say nothing about who it is: groups, the id of the key, and what older authenticators leave out.
        let harmless = [
            "accessKeyId changed",
            "accessKeyId removed",
            "groups changed",
            "groups doubled",
            "groups removed",
            "groups with a second value",
            "sigs.k8s.io/aws-iam-authenticator/principalId removed",
        ];
        assert_eq!(believed.keys().collect::<Vec<_>>(), harmless, "{file}");
        assert!(believed.values().all(|user| world.reads(user) == itself), "{file}");
    }
}

/// What is not believed does nothing to a team, and is told so.
#[test]
fn untrusted_callers_are_refused_in_team_namespaces() {
    let world = World::new(AWS);
    let review = world.review(&sample("15-impersonated-forged"));
    let evaluation = evaluate(&review, Phase::Validate, &world.snapshot, gate::noon());
    let reasons: Vec<_> = evaluation.refusals.iter().map(|refusal| refusal.reason).collect();
    assert_eq!(reasons, [ReasonCode::UntrustedIdentity]);
}

/// Names a user, and what was done to one field of it.
type Tampered = (String, UserInfo);

fn tampered(user: &UserInfo) -> Vec<Tampered> {
    let strings = [("username", &user.username), ("uid", &user.uid)];
    let with = |field: &str, value: String| match field {
        "username" => UserInfo { username: value, ..user.clone() },
        _ => UserInfo { uid: value, ..user.clone() },
    };
    let of_strings = strings.into_iter().flat_map(|(field, value)| {
        [
            (format!("{field} removed"), with(field, String::new())),
            (format!("{field} changed"), with(field, changed(value))),
            (format!("{field} doubled"), with(field, format!("{value}{value}"))),
            (format!("{field} in upper case"), with(field, value.to_ascii_uppercase())),
        ]
    });
    let lists = |name: &str, list: &[String]| {
        let second = list.iter().cloned().chain(["other".to_owned()]).collect::<Vec<_>>();
        vec![
            (format!("{name} changed"), list.iter().map(|value| changed(value)).collect()),
            (format!("{name} doubled"), [list, list].concat()),
            (format!("{name} with a second value"), second),
        ]
    };
    let of_groups = lists("groups", &user.groups)
        .into_iter()
        .chain([("groups removed".to_owned(), Vec::new())])
        .map(|(name, groups)| (name, UserInfo { groups, ..user.clone() }));
    let of_extra = user.extra.iter().flat_map(|(key, list)| {
        let set = |key: &str, list: Vec<String>| {
            let mut extra = user.extra.clone();
            extra.insert(key.to_owned(), list);
            UserInfo { extra, ..user.clone() }
        };
        let without = || {
            let mut extra = user.extra.clone();
            extra.remove(key);
            extra
        };
        let lower = key.to_ascii_lowercase();
        let of_values = lists(key, list).into_iter().map(|(name, list)| (name, set(key, list)));
        let mut all: Vec<_> = of_values.collect();
        all.push((format!("{key} removed"), UserInfo { extra: without(), ..user.clone() }));
        all.push((format!("{key} emptied"), set(key, Vec::new())));
        if lower != *key {
            let mut extra = without();
            extra.insert(lower.clone(), list.clone());
            all.push((format!("{key} in lower case"), UserInfo { extra, ..user.clone() }));
            all.push((format!("{key} beside its lower case"), set(&lower, list.clone())));
        }
        all
    });
    of_strings.chain(of_groups).chain(of_extra).collect()
}

/// Another value of the same shape: the last letter or digit is another.
fn changed(value: &str) -> String {
    let mut value = value.to_owned();
    match value.pop() {
        Some('x') => value + "y",
        Some(_) => value + "x",
        None => "x".to_owned(),
    }
}

/// A text replaced in every field.
fn renamed(user: &UserInfo, from: &str, to: &str) -> UserInfo {
    let text = serde_json::to_string(user).expect("a user").replace(from, to);
    serde_json::from_str(&text).expect("still a user")
}

struct World {
    snapshot: Snapshot,
}

impl World {
    fn new(config: &str) -> Self {
        Self::with(config, &[TEAM_A, TEAM_B])
    }

    fn with(config: &str, teams: &[&str]) -> Self {
        let teams = Teams::parse(teams.iter().map(|text| ("teams.yaml", *text))).expect("the teams of the test");
        let mut cluster = Cluster::default();
        cluster.insert(ray_head());
        let config = Config::parse(config).expect("the configuration of the test");
        Self {
            snapshot: Snapshot {
                config: Arc::new(config),
                teams: Arc::new(teams),
                policies: gate::policies(),
                cluster: Arc::new(cluster),
            },
        }
    }

    /// Who this is, in one line: how it was established, whose, and for whom.
    fn reads(&self, user: &UserInfo) -> String {
        let Snapshot { config, teams, .. } = &self.snapshot;
        match identify(user, config, teams) {
            Caller::Iam(caller) => {
                let kind = match caller.name {
                    IamName::PermissionSet(_) => "permission set",
                    IamName::Role(_) => "role",
                    IamName::User(_) => "user",
                };
                format!("IAM {kind} {} of {}", caller.name.text(), self.acts_as(user, Origin::Direct))
            }
            Caller::PodToken { pod_name, .. } => format!("pod {pod_name} for {}", self.acts_as(user, Origin::Pod)),
            Caller::ServiceAccount { namespace, name } => format!("service account {namespace}/{name}"),
            Caller::Component(component) => format!("{} {}", component.kind.id(), component.name),
            Caller::Node { name } => format!("node {name}"),
            Caller::Stranger { username } => format!("stranger {username}"),
            Caller::Untrusted { why, .. } => format!("untrusted: {why}"),
        }
    }

    /// As whom the pipeline asks.
    fn acts_as(&self, user: &UserInfo, origin: Origin) -> String {
        let evaluation = evaluate(&self.review(user), Phase::Mutate, &self.snapshot, gate::noon());
        let attribution = evaluation.attribution.expect("whoever is believed is somebody");
        assert_eq!(attribution.actor_origin, origin);
        match attribution.actor {
            Principal::Submitter(submitter) => {
                let person = submitter.person.as_deref().unwrap_or("nobody known");
                format!("{}: {person}", submitter.team)
            }
            Principal::Stranger { .. } => "no team".to_owned(),
            Principal::ServiceAccount { namespace, name } => format!("{namespace}/{name}"),
            Principal::Component { name, .. } => name,
        }
    }

    fn review(&self, user: &UserInfo) -> Review {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "hyperpod-ns-team-a"},
        });
        let body = review_of(&object, None, user, Operation::Create, false);
        Review::parse(body.to_string().as_bytes()).expect("a review")
    }
}

/// The pod that sample 10 speaks from, as the gate stamped it for Alice.
fn ray_head() -> Value {
    let stamp = Submitter::parse(
        r#"{"team":"team-a","person":"alice.martin@example.com","permissionSet":"TeamA","account":"111122223333","partition":"aws"}"#,
    );
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "ray-llm-head-7k2xq", "namespace": "hyperpod-ns-team-a", "uid": "e9518537-b347-4264-a6bb-bc82db55ae65",
            "annotations": {engine::stamp::SUBMITTED_BY: stamp.expect("a stamp").annotation()},
        },
        "spec": {"containers": [{"name": "head", "image": "ray"}]},
    })
}
