//! How much a pod and a workload ask for: one arithmetic, for templates and for pods.
//!
//! A pod asks for the larger of what its containers hold together while it runs and what an init container needs while
//! it starts, beside the sidecars that are up by then:
//!
//! ```text
//! init 1 | sidecar 1 ------------------ |      while starting: max(1, 1, 1 + 2) = 3
//!                    | init 2 | main 1  |      while running:  1 + 1            = 2
//! ```

use super::json::Node;
use super::{Bound, Container, Demand, FactsError, PodTemplate};
use crate::amounts::{self, Amounts, MAX, ResourceName};
use crate::vocabulary::ContainerKind;

/// Pods of one template.
pub(super) struct Group<'a> {
    pub(super) per_pod: &'a Amounts,
    pub(super) count: Count,
}

/// How many pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    /// What runs at first.
    pub(super) now: u64,
    /// What may run without another admission.
    pub(super) most: u64,
}

impl Count {
    pub(super) const fn fixed(count: u64) -> Self {
        Self { now: count, most: count }
    }
}

/// Templates with their counts, in the same order.
pub(super) fn groups(templates: &[PodTemplate], counts: impl IntoIterator<Item = Count>) -> Vec<Group<'_>> {
    templates.iter().zip(counts).map(|(template, count)| Group { per_pod: &template.per_pod, count }).collect()
}

/// The counted resources of a `resources` field. Kubernetes copies limits to requests only in real Pods, never in
/// templates, and refuses the two to differ only there: so the larger counts.
pub(super) fn counted(resources: &Node<'_, '_>) -> Result<Amounts, FactsError> {
    let mut amounts = Amounts::new();
    for key in ["requests", "limits"] {
        amounts = amounts.max(&counted_map(resources, key)?);
    }
    Ok(amounts)
}

/// The counted resources of a map of quantities. Others are left alone, whatever stands there.
pub(super) fn counted_map(holder: &Node<'_, '_>, key: &str) -> Result<Amounts, FactsError> {
    let map = holder.object(key)?;
    let mut amounts = Amounts::new();
    for (name, value) in map.fields().filter(|(name, _)| amounts::is_counted(name)) {
        let amount = amounts::whole_amount(value).map_err(|problem| map.error(name, problem))?;
        amounts.set(ResourceName::new(name), amount);
    }
    Ok(amounts)
}

/// What one pod asks for. Init containers start in the order of the list.
pub(super) fn per_pod(containers: &[Container], pod_level: &Amounts, overhead: &Amounts) -> Amounts {
    let (mut main, mut sidecars, mut starting) = (Amounts::new(), Amounts::new(), Amounts::new());
    for container in containers {
        match container.kind {
            ContainerKind::Main => main = main.saturating_add(&container.amounts),
            ContainerKind::Init => starting = starting.max(&sidecars.saturating_add(&container.amounts)),
            ContainerKind::Sidecar => sidecars = sidecars.saturating_add(&container.amounts),
            // May not ask for resources: it lives off those of its pod.
            ContainerKind::Ephemeral => {}
        }
    }
    // Pod-level resources cover all containers; Kubernetes allows no extended resource there yet.
    main.saturating_add(&sidecars).max(&starting).max(pod_level).saturating_add(overhead)
}

/// The demand of pods whose number has a bound.
pub(super) fn bounded(groups: &[Group<'_>], suspended: bool) -> Demand {
    let sum = |count: fn(&Count) -> u64| {
        groups.iter().fold((Amounts::new(), 0_u64), |(amounts, pods), Group { per_pod, count: pods_of_group }| {
            let more = count(pods_of_group);
            (amounts.saturating_add(&per_pod.saturating_scale(more)), pods.saturating_add(more).min(MAX))
        })
    };
    let (ceiling, pods_ceiling) = sum(|count| count.most);
    let (floor, pods) = if suspended { (Amounts::new(), 0) } else { sum(|count| count.now) };
    Demand {
        floor,
        ceiling: Bound::AtMost(ceiling),
        pods,
        pods_ceiling: Some(pods_ceiling),
        reserves: true,
        estimated: false,
        surge: Amounts::new(),
        surge_hint: String::new(),
    }
}

/// The demand of pods whose number has none: nothing as long as no pod asks for what is counted.
pub(super) fn unbounded(groups: &[Group<'_>], problem: String, hint: String) -> Demand {
    let demand = bounded(groups, false);
    let nothing = groups.iter().all(|group| group.per_pod.is_empty());
    let ceiling = if nothing { Bound::AtMost(Amounts::new()) } else { Bound::Unbounded { problem, hint } };
    Demand { ceiling, pods_ceiling: None, ..demand }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::kinds::Kinds;
    use super::super::{Facts, FactsError, KindRef, extract};

    fn gpus_of_pod(spec: &Value) -> Result<u64, FactsError> {
        let kind = KindRef { group: "", kind: "Pod", resource: "pods" };
        match extract(Kinds::defaults(), &kind, &json!({"spec": spec}))? {
            Facts::Workload(workload) => Ok(workload.templates[0].per_pod.get("nvidia.com/gpu")),
            Facts::Object(_) => unreachable!("a pod is a workload"),
        }
    }

    /// `(name, GPUs)` of one container, `+` in front of the name for a sidecar.
    fn containers(list: &[(&str, u64)]) -> Vec<Value> {
        let container = |(name, gpus): &(&str, u64)| {
            let resources = json!({"limits": {"nvidia.com/gpu": gpus}, "requests": {"nvidia.com/gpu": gpus}});
            match name.strip_prefix('+') {
                Some(name) => json!({"name": name, "restartPolicy": "Always", "resources": resources}),
                None => json!({"name": name, "resources": resources}),
            }
        };
        list.iter().map(container).collect()
    }

    #[test]
    fn init_containers_peak_and_sidecars_stay() {
        type Case = (&'static [(&'static str, u64)], &'static [(&'static str, u64)], u64);
        let table: &[Case] = &[
            // init containers, containers, GPUs of the pod
            (&[], &[], 0),
            (&[], &[("a", 1), ("b", 2)], 3),
            (&[("i", 2)], &[("a", 1)], 2),
            (&[("i", 1), ("j", 4), ("k", 2)], &[("a", 1)], 4),
            (&[("+s", 1)], &[("a", 2)], 3),
            (&[("+s", 1), ("+t", 2)], &[("a", 1)], 4),
            (&[("i", 1), ("+s", 1), ("j", 2)], &[("a", 1)], 3),
            (&[("i", 1), ("j", 2), ("+s", 1)], &[("a", 1)], 2),
            (&[("z", 0), ("i", 1), ("+s", 1), ("j", 2)], &[("a", 1)], 3),
            (&[("+s", 1), ("i", 3), ("+t", 1), ("j", 3)], &[("a", 1)], 5),
        ];
        for (init, main, expected) in table {
            let spec = json!({"initContainers": containers(init), "containers": containers(main)});
            assert_eq!(gpus_of_pod(&spec), Ok(*expected), "{init:?} {main:?}");
        }
    }

    #[test]
    fn overhead_and_pod_level_resources() {
        let one = containers(&[("a", 1)]);
        let overhead = json!({"containers": one, "overhead": {"nvidia.com/gpu": 1, "cpu": "x"}});
        assert_eq!(gpus_of_pod(&overhead), Ok(2));
        let pod_level = json!({"containers": one, "resources": {"limits": {"nvidia.com/gpu": "3"}}});
        assert_eq!(gpus_of_pod(&pod_level), Ok(3));
    }

    #[test]
    fn the_larger_of_requests_and_limits_counts() {
        for (requests, limits, expected) in [
            (json!(null), json!({"nvidia.com/gpu": 4}), 4),
            (json!({"nvidia.com/gpu": 0}), json!({"nvidia.com/gpu": 4}), 4),
            (json!({"nvidia.com/gpu": 4}), json!({}), 4),
            (json!({"nvidia.com/gpu": "1"}), json!({"nvidia.com/gpu": "1.0"}), 1),
        ] {
            let resources = json!({"requests": requests, "limits": limits});
            let spec = json!({"containers": [{"name": "a", "resources": resources}]});
            assert_eq!(gpus_of_pod(&spec), Ok(expected), "{spec}");
        }
    }

    #[test]
    fn a_wrong_amount_is_named_with_its_place() {
        let spec = json!({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "0.5"}}}]});
        let error = gpus_of_pod(&spec).expect_err("half a GPU");
        assert_eq!(
            error.to_string(),
            "`/spec/containers/0/resources/limits/nvidia.com~1gpu` is `0.5` but must be a whole number"
        );
    }
}
