//! The stamp: who submitted a root, written by the gate into metadata and by nobody else.
//!
//! The exact value is an annotation, where any text is legal. Labels carry what billing and `kubectl -l` need; a value
//! that is no label value becomes a slug with eight hex digits of its digest, so that `alice@example.com` and
//! `alice-example.com` stay two people.

use serde::{Deserialize, Serialize};

use crate::team::{PersonFrom, Teams, is_label_value};

/// Every key below this prefix is the gate's, but for [`REASON`].
pub const PREFIX: &str = "cedargate.dev/";
/// Annotation: the stamp.
pub const SUBMITTED_BY: &str = "cedargate.dev/submitted-by";
/// Annotation that a person may set on a root: why an exemption is asked for.
pub const REASON: &str = "cedargate.dev/reason";
/// Annotation: where the queue has put a workload's pods (see `placed.rs`).
pub const PLACED: &str = "cedargate.dev/placed-by-queue";
/// Labels.
pub const TEAM: &str = "cedargate.dev/team";
pub const PERSON: &str = "cedargate.dev/person";
pub const COST_CENTER: &str = "cedargate.dev/cost-center";
/// Label: what the root is for. A pod carries it, because its own stamp ends the walk before the root is reached.
pub const CLASS: &str = "cedargate.dev/class";

/// Who submitted, as far as it outlives a role's suffix: permission set or role name, never principal ids.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Submitter {
    pub team: String,
    #[serde(flatten)]
    pub name: SubmitterName,
    /// Absent when a shared role submitted, or when another person has rewritten what runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub person: Option<String>,
}

/// What the submitter came as.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SubmitterName {
    PermissionSet {
        partition: String,
        account: String,
        name: String,
    },
    Role {
        partition: String,
        account: String,
        name: String,
    },
    User {
        partition: String,
        account: String,
        name: String,
    },
    /// `namespace/name` of a service account that the team lists.
    ServiceAccount(String),
    /// The team itself: the submitter has left, or is not known.
    Team,
}

impl Submitter {
    pub fn of_team(team: &str) -> Self {
        Self { team: team.to_owned(), name: SubmitterName::Team, person: None }
    }

    /// As the annotation holds it. Fields are in a fixed order, so equal stamps are equal texts.
    pub fn annotation(&self) -> String {
        let name = match &self.name {
            SubmitterName::PermissionSet { partition, account, name } => {
                serde_json::json!({"permissionSet": name, "account": account, "partition": partition})
            }
            SubmitterName::Role { partition, account, name } => {
                serde_json::json!({"role": name, "account": account, "partition": partition})
            }
            SubmitterName::User { partition, account, name } => {
                serde_json::json!({"user": name, "account": account, "partition": partition})
            }
            SubmitterName::ServiceAccount(name) => serde_json::json!({"serviceAccount": name}),
            SubmitterName::Team => serde_json::json!({}),
        };
        let mut stamp = serde_json::Map::new();
        stamp.insert("team".to_owned(), self.team.clone().into());
        if let Some(person) = &self.person {
            stamp.insert("person".to_owned(), person.clone().into());
        }
        for key in ["permissionSet", "role", "user", "serviceAccount", "account", "partition"] {
            if let Some(value) = name.get(key) {
                stamp.insert(key.to_owned(), value.clone());
            }
        }
        serde_json::Value::Object(stamp).to_string()
    }

    /// Reads the annotation; anything that this did not write is `None`.
    pub fn parse(annotation: &str) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(annotation).ok()?;
        let text = |key: &str| value.get(key).and_then(serde_json::Value::as_str).map(str::to_owned);
        let (account, partition) = (text("account"), text("partition"));
        let iam = |name: String| Some((partition.clone()?, account.clone()?, name));
        let name = match (text("permissionSet"), text("role"), text("user"), text("serviceAccount")) {
            (Some(name), None, None, None) => {
                iam(name).map(|(partition, account, name)| SubmitterName::PermissionSet { partition, account, name })?
            }
            (None, Some(name), None, None) => {
                iam(name).map(|(partition, account, name)| SubmitterName::Role { partition, account, name })?
            }
            (None, None, Some(name), None) => {
                iam(name).map(|(partition, account, name)| SubmitterName::User { partition, account, name })?
            }
            (None, None, None, Some(name)) => SubmitterName::ServiceAccount(name),
            (None, None, None, None) => SubmitterName::Team,
            _ => return None,
        };
        let stamp = Self { team: text("team")?, name, person: text("person") };
        (stamp.annotation() == annotation).then_some(stamp)
    }

    /// The submitter as the team files have it now, or `None` if they are no longer a member of the team.
    pub fn still_member(&self, teams: &Teams) -> Option<Self> {
        let team = teams.named(&self.team)?;
        let member = team.spec.members.iter().find(|member| self.is(member))?;
        // A member entry that no longer says who the person is takes the person away.
        let person = match member.person_from {
            Some(PersonFrom::None) => None,
            Some(PersonFrom::SessionName | PersonFrom::RoleName | PersonFrom::Fixed) | None => self.person.clone(),
        };
        Some(Self { person, ..self.clone() })
    }

    fn is(&self, member: &crate::team::Member) -> bool {
        let pinned = |pin: &Option<String>, value: &str| pin.as_deref().is_none_or(|pin| pin == value);
        let iam =
            |partition: &str, account: &str| pinned(&member.partition, partition) && pinned(&member.account, account);
        match &self.name {
            SubmitterName::PermissionSet { partition, account, name } => {
                member.permission_set.as_ref() == Some(name) && iam(partition, account)
            }
            SubmitterName::Role { partition, account, name } => {
                let role = member.role.as_deref().and_then(|role| role.rsplit('/').next());
                role.is_some_and(|role| role.eq_ignore_ascii_case(name)) && iam(partition, account)
            }
            SubmitterName::User { partition, account, name } => {
                member.user.as_deref().map(|user| user.trim_start_matches('/')) == Some(name) && iam(partition, account)
            }
            SubmitterName::ServiceAccount(name) => member.service_account.as_ref() == Some(name),
            SubmitterName::Team => true,
        }
    }

    /// For messages: the person, or what they came as.
    pub fn display(&self) -> &str {
        self.person.as_deref().unwrap_or(match &self.name {
            SubmitterName::PermissionSet { name, .. }
            | SubmitterName::Role { name, .. }
            | SubmitterName::User { name, .. }
            | SubmitterName::ServiceAccount(name) => name,
            SubmitterName::Team => &self.team,
        })
    }
}

/// A label value that stands for any text.
pub fn label_value(text: &str) -> String {
    if is_label_value(text) && !text.is_empty() {
        return text.to_owned();
    }
    let legal = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let slug: String = text.chars().map(legal).take(54).collect();
    let digest = crate::digest(text.as_bytes());
    let suffix = digest.trim_start_matches("sha256:").get(..8).unwrap_or_default();
    format!("{}-{suffix}", slug.trim_matches(|c: char| !c.is_ascii_alphanumeric())).trim_start_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_legal_and_keep_people_apart() {
        for text in ["alice@example.com", "alice-example.com", "", "@", "ü".repeat(80).as_str(), &"a".repeat(64)] {
            let value = label_value(text);
            assert!(is_label_value(&value) && !value.is_empty(), "{text} became {value}");
        }
        assert_eq!(label_value("alice-example.com"), "alice-example.com");
        assert_ne!(label_value("alice@example.com"), label_value("alice-example.com"));
    }

    #[test]
    fn a_stamp_reads_back() {
        let names = [
            SubmitterName::PermissionSet { partition: "aws".into(), account: "1".into(), name: "TeamA".into() },
            SubmitterName::Role { partition: "aws".into(), account: "1".into(), name: "R".into() },
            SubmitterName::User { partition: "aws".into(), account: "1".into(), name: "ml/e".into() },
            SubmitterName::ServiceAccount("ci/deployer".into()),
            SubmitterName::Team,
        ];
        for name in names {
            for person in [None, Some("alice@example.com".to_owned())] {
                let stamp = Submitter { team: "team-a".into(), name: name.clone(), person };
                assert_eq!(Submitter::parse(&stamp.annotation()), Some(stamp));
            }
        }
        for forged in ["", "{}", "alice", r#"{"team":"team-a","person":"alice","extra":1}"#] {
            assert_eq!(Submitter::parse(forged), None, "{forged}");
        }
    }
}
