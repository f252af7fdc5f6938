//! What is watched: Kubernetes' own kinds that run pods; of the installed custom resources every kind that a trusted
//! controller may act for, since the walk from a pod to its root passes through those; and Kueue's queues, which say how much
//! a team whose work is queued could ever have.

use std::collections::{BTreeMap, BTreeSet};

use engine::config::Config;
use engine::queues;
use kube::core::discovery::ApiResource;

/// Group and kind: what tells one watch from another. Versions are views of the same objects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindName {
    pub group: String,
    pub kind: String,
}

impl KindName {
    pub fn new(group: &str, kind: &str) -> Self {
        Self { group: group.to_owned(), kind: kind.to_owned() }
    }

    pub fn of(resource: &ApiResource) -> Self {
        Self::new(&resource.group, &resource.kind)
    }

    pub fn pods() -> Self {
        Self::new("", "Pod")
    }

    pub fn namespaces() -> Self {
        Self::new("", "Namespace")
    }

    pub fn teams() -> Self {
        Self::new(super::team_object::GROUP, super::team_object::KIND)
    }
}

impl std::fmt::Display for KindName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group.as_str() {
            "" => f.write_str(&self.kind),
            group => write!(f, "{}.{group}", self.kind),
        }
    }
}

/// Group, version, kind, plural: served by every cluster, so the gate waits for all of them before it is ready.
const BUILT_IN: [(&str, &str, &str, &str); 8] = [
    ("", "v1", "Pod", "pods"),
    ("", "v1", "ReplicationController", "replicationcontrollers"),
    ("apps", "v1", "Deployment", "deployments"),
    ("apps", "v1", "ReplicaSet", "replicasets"),
    ("apps", "v1", "StatefulSet", "statefulsets"),
    ("apps", "v1", "DaemonSet", "daemonsets"),
    ("batch", "v1", "Job", "jobs"),
    ("batch", "v1", "CronJob", "cronjobs"),
];

pub fn built_in() -> Vec<ApiResource> {
    BUILT_IN.iter().map(|(group, version, kind, plural)| resource(group, version, kind, plural)).collect()
}

pub fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// API groups beside the built-in ones whose kinds some controller acts for, or that configuration tells to run pods.
pub fn custom_groups(config: &Config) -> BTreeSet<String> {
    let own: BTreeSet<&str> = BUILT_IN.iter().map(|(group, ..)| *group).collect();
    let groups = config.controllers.iter().flat_map(|controller| &controller.owners);
    let groups = groups.filter_map(|owner| owner.rsplit_once('/')).map(|(group, _)| group);
    let configured = config.kinds.iter().map(|kind| kind.group.as_str());
    groups.chain(configured).filter(|group| !own.contains(group)).map(str::to_owned).collect()
}

/// Whether a kind is one of Kueue's queues; these are read and never written.
pub fn is_queue(group: &str, kind: &str) -> bool {
    group == queues::GROUP && queues::KINDS.contains(&kind)
}

/// Whether a kind of such a group is one that the walk may pass, or that is scaled.
pub fn is_owner(config: &Config, group: &str, kind: &str) -> bool {
    config.controllers.iter().any(|controller| controller.acts_for(group, kind))
        || config.kinds.named(group, kind).is_some()
}

/// How to reach each kind, by its name and by its plural.
#[derive(Debug, Clone, Default)]
pub struct Resources(BTreeMap<KindName, ApiResource>);

impl Resources {
    pub fn new(resources: impl IntoIterator<Item = ApiResource>) -> Self {
        Self(resources.into_iter().map(|resource| (KindName::of(&resource), resource)).collect())
    }

    pub fn of_kind(&self, group: &str, kind: &str) -> Option<&ApiResource> {
        self.0.values().find(|resource| resource.group == group && resource.kind.eq_ignore_ascii_case(kind))
    }

    pub fn of_plural(&self, group: &str, plural: &str) -> Option<&ApiResource> {
        self.0.values().find(|resource| resource.group == group && resource.plural == plural)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&KindName, &ApiResource)> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_groups_are_those_of_the_default_controllers() {
        let groups = custom_groups(&Config::default());
        let expected = [
            "inference.sagemaker.aws.amazon.com",
            "jobset.x-k8s.io",
            "keda.sh",
            "kubeflow.org",
            "leaderworkerset.x-k8s.io",
            "ray.io",
            "sagemaker.amazonaws.com",
            "trainer.kubeflow.org",
            "workspace.jupyter.org",
        ];
        assert_eq!(groups, expected.map(str::to_owned).into());
    }

    #[test]
    fn a_group_alone_means_all_its_kinds_and_a_kind_just_itself() {
        let config = Config::default();
        assert!(is_owner(&config, "ray.io", "RayCluster"));
        assert!(is_owner(&config, "apps", "Deployment"));
        assert!(!is_owner(&config, "example.org", "Thing"));
    }

    #[test]
    fn resources_are_found_by_kind_without_case_and_by_plural() {
        let resources = Resources::new(built_in());
        assert_eq!(resources.of_kind("apps", "replicaset").map(|found| found.plural.as_str()), Some("replicasets"));
        assert_eq!(resources.of_plural("", "pods").map(|found| found.kind.as_str()), Some("Pod"));
        assert!(resources.of_plural("apps", "pods").is_none());
    }
}
