//! What the configurations hold now, and how it goes together with what this replica knows.

use std::collections::BTreeSet;

use engine::json;
use engine::team::served::ServedTeam;
use serde_json::Value;

use super::{GOVERNED, GOVERNED_TEAMS, TEAMS_VERSION, VANISHED_TEAMS};
use crate::cluster::index::Governance;

/// Set by the API server, immutable, equal to the name.
pub(super) const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// A configuration as the API server has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Live {
    pub uid: String,
    pub resource_version: String,
    /// Nothing in it yet: the chart has just installed it.
    pub is_empty: bool,
    pub namespaces: BTreeSet<String>,
    pub vanished: Vec<ServedTeam>,
    /// What would be left of the others.
    pub left: Vec<ServedTeam>,
    pub teams_version: u64,
}

/// What a configuration is made from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wanted {
    pub namespaces: BTreeSet<String>,
    pub label_keys: BTreeSet<String>,
    pub vanished: Vec<ServedTeam>,
    /// What would be left of the others.
    pub left: Vec<ServedTeam>,
    pub teams_version: u64,
}

impl Live {
    pub fn read(configuration: &Value) -> Self {
        let text = |key: &str| json::text(configuration, &["metadata", key]).unwrap_or_default().to_owned();
        let annotation = |key: &str| json::text(configuration, &["metadata", "annotations", key]);
        let webhooks = json::list(configuration, &["webhooks"]);
        let teams = |key| annotation(key).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        Self {
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            is_empty: webhooks.is_empty(),
            namespaces: webhooks.iter().filter(|webhook| is_governed(webhook)).flat_map(namespaces).collect(),
            vanished: teams(VANISHED_TEAMS),
            left: teams(GOVERNED_TEAMS),
            teams_version: annotation(TEAMS_VERSION).and_then(|version| version.parse().ok()).unwrap_or(0),
        }
    }
}

fn is_governed(webhook: &Value) -> bool {
    json::text(webhook, &["name"]) == Some(GOVERNED)
}

fn namespaces(webhook: &Value) -> Vec<String> {
    let by_name = json::list(webhook, &["namespaceSelector", "matchExpressions"])
        .iter()
        .filter(|requirement| json::text(requirement, &["key"]) == Some(NAMESPACE_NAME));
    by_name
        .flat_map(|requirement| json::list(requirement, &["values"]))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// What to apply. A replica that has seen less of the Teams than the one that wrote last adds and takes nothing away: what
/// it does not know may be new. It takes away once it has caught up.
pub fn settle(mine: &Governance, live: &Live) -> Wanted {
    let Governance { namespaces, label_keys, teams: _, vanished, left, teams_version } = mine;
    let mut wanted = Wanted {
        namespaces: namespaces.clone(),
        label_keys: label_keys.clone(),
        vanished: vanished.clone(),
        left: left.clone(),
        teams_version: *teams_version,
    };
    if live.teams_version > *teams_version {
        wanted.namespaces.extend(live.namespaces.iter().cloned());
        wanted.vanished = together(vanished, &live.vanished);
        wanted.left = together(&live.left, left);
        wanted.teams_version = live.teams_version;
    }
    wanted
}

/// The first ones, and those of the others that are not among them.
fn together(first: &[ServedTeam], others: &[ServedTeam]) -> Vec<ServedTeam> {
    let known: BTreeSet<&String> = first.iter().map(|team| &team.name).collect();
    first.iter().chain(others.iter().filter(|team| !known.contains(&team.name))).cloned().collect()
}

#[cfg(test)]
mod tests {
    use engine::config::Config;
    use serde_json::json;

    use super::super::{Target, render};
    use super::*;

    fn governance(namespaces: &[&str], teams_version: u64) -> Governance {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        Governance { namespaces, teams_version, ..Governance::default() }
    }

    fn live(namespaces: &[&str], teams_version: u64) -> Live {
        Live {
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            teams_version,
            ..Live::default()
        }
    }

    fn settled(mine: &Governance, live: &Live) -> Vec<String> {
        settle(mine, live).namespaces.into_iter().collect()
    }

    #[test]
    fn who_is_behind_takes_nothing_away() {
        assert_eq!(settled(&governance(&["a"], 5), &live(&["a", "new"], 6)), ["a", "new"]);
        assert_eq!(settled(&governance(&["a"], 6), &live(&["a", "old"], 5)), ["a"]);
        assert_eq!(settled(&governance(&["a"], 6), &live(&["a", "edited-by-hand"], 6)), ["a"]);
        assert_eq!(settle(&governance(&[], 5), &live(&[], 6)).teams_version, 6);
    }

    #[test]
    fn what_was_rendered_is_read_back() {
        let team =
            ServedTeam::read(&json!({"metadata": {"name": "gone"}, "spec": {"namespaces": ["left"], "queue": "q"}}));
        let wanted = Wanted {
            namespaces: ["a".to_owned(), "left".to_owned()].into(),
            label_keys: BTreeSet::new(),
            vanished: vec![team.vanish(["left".to_owned()].into())],
            left: vec![team.vanish(["a".to_owned()].into())],
            teams_version: 7,
        };
        let (mutating, validating) = render(&wanted, &Config::default(), None, &Target::Url("https://gate".to_owned()));
        for configuration in [serde_json::to_value(mutating), serde_json::to_value(validating)] {
            let live = Live::read(&configuration.expect("serialises"));
            let Live { uid: _, resource_version: _, is_empty, namespaces, vanished, left, teams_version } = live;
            assert!(!is_empty);
            let expected = (wanted.namespaces.clone(), wanted.vanished.clone(), wanted.left.clone(), 7);
            assert_eq!((namespaces, vanished, left, teams_version), expected);
        }
    }

    #[test]
    fn of_teams_that_are_too_many_the_namespaces_are_kept() {
        let team = |number: u32| {
            let spec = json!({"namespaces": [format!("ns-{number}")], "queue": "q".repeat(1000)});
            ServedTeam::read(&json!({"metadata": {"name": format!("t-{number}")}, "spec": spec}))
        };
        let teams = |count| (0..count).map(team).collect::<Vec<_>>();
        let read_back = |left: Vec<ServedTeam>| {
            let wanted = Wanted { left, ..Wanted::default() };
            let (mutating, _) = render(&wanted, &Config::default(), None, &Target::Url("https://gate".to_owned()));
            Live::read(&serde_json::to_value(mutating).expect("serialises")).left
        };
        assert_eq!(read_back(teams(10)), teams(10));
        assert_eq!(read_back(teams(100)), teams(100).iter().map(ServedTeam::bare).collect::<Vec<_>>());
    }

    #[test]
    fn an_empty_configuration_is_empty() {
        let empty = Live::read(&json!({"metadata": {"uid": "u", "resourceVersion": "1"}}));
        let expected =
            Live { uid: "u".to_owned(), resource_version: "1".to_owned(), is_empty: true, ..Live::default() };
        assert_eq!(empty, expected);
    }
}
