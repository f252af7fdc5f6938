//! What the configurations hold now, and how it goes together with what this replica knows.

use std::collections::BTreeSet;

use engine::json;
use engine::team::served::ServedTeam;
use serde_json::Value;

use super::{GOVERNED, TEAMS_VERSION, VANISHED_TEAMS};
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
    pub teams_version: u64,
}

/// What a configuration is made from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wanted {
    pub namespaces: BTreeSet<String>,
    pub label_keys: BTreeSet<String>,
    pub vanished: Vec<ServedTeam>,
    pub teams_version: u64,
}

impl Live {
    pub fn read(configuration: &Value) -> Self {
        let text = |key: &str| json::text(configuration, &["metadata", key]).unwrap_or_default().to_owned();
        let annotation = |key: &str| json::text(configuration, &["metadata", "annotations", key]);
        let webhooks = json::list(configuration, &["webhooks"]);
        let vanished = annotation(VANISHED_TEAMS).and_then(|text| serde_json::from_str(text).ok());
        Self {
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            is_empty: webhooks.is_empty(),
            namespaces: webhooks.iter().filter(|webhook| is_governed(webhook)).flat_map(namespaces).collect(),
            vanished: vanished.unwrap_or_default(),
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
    let Governance { namespaces, label_keys, teams: _, vanished, teams_version } = mine;
    let mut wanted = Wanted {
        namespaces: namespaces.clone(),
        label_keys: label_keys.clone(),
        vanished: vanished.clone(),
        teams_version: *teams_version,
    };
    if live.teams_version > *teams_version {
        wanted.namespaces.extend(live.namespaces.iter().cloned());
        let known: BTreeSet<&String> = vanished.iter().map(|team| &team.name).collect();
        wanted.vanished.extend(live.vanished.iter().filter(|team| !known.contains(&team.name)).cloned());
        wanted.teams_version = live.teams_version;
    }
    wanted
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
            teams_version: 7,
        };
        let (mutating, validating) = render(&wanted, &Config::default(), None, &Target::Url("https://gate".to_owned()));
        for configuration in [serde_json::to_value(mutating), serde_json::to_value(validating)] {
            let live = Live::read(&configuration.expect("serialises"));
            let Live { uid: _, resource_version: _, is_empty, namespaces, vanished, teams_version } = live;
            assert!(!is_empty);
            assert_eq!((namespaces, vanished, teams_version), (wanted.namespaces.clone(), wanted.vanished.clone(), 7));
        }
    }

    #[test]
    fn an_empty_configuration_is_empty() {
        let empty = Live::read(&json!({"metadata": {"uid": "u", "resourceVersion": "1"}}));
        let expected =
            Live { uid: "u".to_owned(), resource_version: "1".to_owned(), is_empty: true, ..Live::default() };
        assert_eq!(empty, expected);
    }
}
