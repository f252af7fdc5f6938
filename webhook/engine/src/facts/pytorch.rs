//! PyTorchJob of the Kubeflow training operator.

use super::demand::{self, Count};
use super::json::Node;
use super::workload::workload;
use super::{FactsError, Workload, pod_spec};
use crate::vocabulary::Class;

pub(super) fn read(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let spec = object.object("spec")?;
    let run_policy = spec.object("runPolicy")?;
    let suspended = run_policy.flag("suspend")?;
    let elastic = spec.object("elasticPolicy")?.count("maxReplicas")?;

    let mut templates = Vec::new();
    let mut counts = Vec::new();
    for member in spec.object("pytorchReplicaSpecs")?.members() {
        let (role, replica) = member?;
        let now = replica.count("replicas")?.unwrap_or(1);
        // Only workers are elastic. The operator knows the role in any case.
        let grows_to = elastic.filter(|_| role.eq_ignore_ascii_case("worker")).unwrap_or(0);
        counts.push(Count { now, most: now.max(grows_to) });
        templates.push(pod_spec::template(&replica.object("template")?)?);
    }
    let groups = demand::groups(&templates, counts);
    let demand = demand::bounded(&groups, suspended);
    let mut job = workload(object, Class::Training, templates, demand)?;
    job.suspended = suspended;
    job.priority_classes.extend(run_policy.object("schedulingPolicy")?.name("priorityClass")?);
    Ok(job)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::facts::Bound;

    fn replica(fields: Value) -> Value {
        let mut replica = fields;
        replica["template"] = json!({"spec": {"containers": [
            {"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": 4}}},
        ]}});
        replica
    }

    #[test]
    fn replicas_and_elastic_workers() -> Result<(), FactsError> {
        let both = json!({"Master": replica(json!({})), "Worker": replica(json!({}))});
        let worker = |replicas: Value| json!({"Worker": replica(json!({"replicas": replicas}))});
        for (specs, elastic, suspend, expected) in [
            (both.clone(), json!(null), false, (8, 8)),
            (json!({"Master": replica(json!({}))}), json!(null), false, (4, 4)),
            (json!({"Master": replica(json!({}))}), json!({"maxReplicas": 4}), false, (4, 4)),
            (both, json!({"maxReplicas": 4}), false, (8, 20)),
            (worker(json!(3)), json!({"maxReplicas": 36}), false, (12, 144)),
            (json!({"worker": replica(json!({"replicas": 3}))}), json!({"maxReplicas": 4}), false, (12, 16)),
            (worker(json!(3)), json!({"maxReplicas": 2}), false, (12, 12)),
            (worker(json!(3)), json!({"minReplicas": 1}), true, (0, 12)),
            (json!(null), json!(null), false, (0, 0)),
        ] {
            let object = json!({"spec": {
                "pytorchReplicaSpecs": specs,
                "elasticPolicy": elastic,
                "runPolicy": {"suspend": suspend, "schedulingPolicy": {"priorityClass": "high"}},
            }});
            let job = read(&Node::root(&object)?)?;
            let Bound::AtMost(ceiling) = &job.demand.ceiling else { unreachable!("there is a bound") };
            let gpus = (job.demand.floor.get("nvidia.com/gpu"), ceiling.get("nvidia.com/gpu"));
            assert_eq!(gpus, expected, "{object}");
            assert_eq!(job.suspended, suspend);
            assert_eq!(job.priority_classes, ["high".to_owned()].into());
        }
        Ok(())
    }
}
