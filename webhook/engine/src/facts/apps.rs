//! The kinds of `apps` that keep pods running, and ReplicationController, which is an older ReplicaSet.

use serde_json::Value;

use super::demand::{self, Count, Group};
use super::json::{self, Node};
use super::kinds::{percent, share_rounded_up};
use super::workload::workload;
use super::{Demand, FactsError, PodTemplate, Workload, pod_spec};
use crate::vocabulary::Class;

pub(super) fn replica_set(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let (template, demand, _) = replicated(object)?;
    workload(object, Class::Service, vec![template], demand)
}

pub(super) fn deployment(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let (template, demand, replicas) = replicated(object)?;
    let surge = template.per_pod.saturating_scale(surge_pods(object, replicas)?);
    workload(object, Class::Service, vec![template], Demand { surge, surge_hint: SURGE_HINT.to_owned(), ..demand })
}

const SURGE_HINT: &str = "set maxSurge: 0, or strategy Recreate";

pub(super) fn stateful_set(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let (template, demand, _) = replicated(object)?;
    let mut stateful_set = workload(object, Class::Service, vec![template], demand)?;
    for claim in object.object("spec")?.objects("volumeClaimTemplates")? {
        stateful_set.claim_templates.extend(claim?.object("metadata")?.name("name")?);
    }
    Ok(stateful_set)
}

/// One pod for each matching node, and nobody knows how many those will be. The object reserves nothing now; each pod is
/// counted when it comes.
pub(super) fn daemon_set(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let template = pod_spec::template(&object.object("spec")?.object("template")?)?;
    let problem = "a DaemonSet runs a pod on every node, however many there will be".to_owned();
    let hint = "leave accelerators out of `/spec/template`, or use a Job or a Deployment".to_owned();
    let group = Group { per_pod: &template.per_pod, count: Count::fixed(0) };
    let demand = demand::unbounded(&[group], problem, hint);
    workload(object, Class::Service, vec![template], demand)
}

/// Template, demand and number of `spec.replicas` pods.
fn replicated(object: &Node<'_, '_>) -> Result<(PodTemplate, Demand, u64), FactsError> {
    let spec = object.object("spec")?;
    let template = pod_spec::template(&spec.object("template")?)?;
    let replicas = spec.count("replicas")?.unwrap_or(1);
    let demand = demand::bounded(&[Group { per_pod: &template.per_pod, count: Count::fixed(replicas) }], false);
    Ok((template, demand, replicas))
}

/// Pods that a rolling update may run beside `replicas`.
fn surge_pods(object: &Node<'_, '_>, replicas: u64) -> Result<u64, FactsError> {
    let spec = object.object("spec")?;
    let strategy = spec.object("strategy")?;
    if strategy.string("type")? == Some("Recreate") {
        return Ok(0);
    }
    let rolling = strategy.object("rollingUpdate")?;
    match rolling.value("maxSurge") {
        None => Ok(share_rounded_up(25, replicas)), // Kubernetes' default
        Some(Value::String(text)) => {
            let percent = percent(text).map_err(|problem| rolling.error("maxSurge", problem))?;
            Ok(share_rounded_up(percent, replicas))
        }
        Some(value) => json::count(value).map_err(|problem| rolling.error("maxSurge", problem)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::facts::Bound;

    fn template() -> Value {
        json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 2}}}]}})
    }

    #[test]
    fn surge_of_a_deployment() -> Result<(), FactsError> {
        let rolling = |surge: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge}});
        for (replicas, strategy, surge) in [
            (json!(null), json!(null), 2),
            (json!(4), json!(null), 2),
            (json!(5), json!(null), 4),
            (json!(5), json!({"type": "Recreate"}), 0),
            (json!(5), rolling(json!(0)), 0),
            (json!(5), rolling(json!(3)), 6),
            (json!(10), rolling(json!("11%")), 4),
            (json!(10), rolling(json!("0%")), 0),
            (json!(10), rolling(json!("200%")), 40),
            (json!(0), json!(null), 0),
        ] {
            let object = json!({"spec": {"replicas": replicas, "strategy": strategy, "template": template()}});
            let deployment = deployment(&Node::root(&object)?)?;
            assert_eq!(deployment.demand.surge.get("nvidia.com/gpu"), surge, "{object}");
        }
        let object = json!({"spec": {"strategy": rolling(json!("some")), "template": template()}});
        let error = deployment(&Node::root(&object)?).expect_err("no share");
        assert_eq!(
            error.to_string(),
            "`/spec/strategy/rollingUpdate/maxSurge` is `some` but must be a number or a percentage"
        );
        Ok(())
    }

    #[test]
    fn a_daemon_set_with_accelerators_has_no_bound() -> Result<(), FactsError> {
        let object = json!({"spec": {"template": template()}});
        let demand = daemon_set(&Node::root(&object)?)?.demand;
        assert!(matches!(demand.ceiling, Bound::Unbounded { .. }) && demand.floor.is_empty());
        let plain = json!({"spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}});
        let demand = daemon_set(&Node::root(&plain)?)?.demand;
        assert_eq!((demand.ceiling, demand.pods_ceiling), (Bound::AtMost(crate::amounts::Amounts::new()), None));
        Ok(())
    }

    #[test]
    fn claims_of_a_stateful_set() -> Result<(), FactsError> {
        let object = json!({"spec": {
            "replicas": 3,
            "template": template(),
            "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
        }});
        let stateful_set = stateful_set(&Node::root(&object)?)?;
        assert_eq!(stateful_set.claim_templates, ["data".to_owned()].into());
        assert_eq!(stateful_set.demand.floor.get("nvidia.com/gpu"), 6);
        Ok(())
    }
}
