//! HyperPodPyTorchJob of the HyperPod training operator. Its CRD is not public: fields are those of the CLI's model.

use super::demand::{self, Count};
use super::json::Node;
use super::workload::workload;
use super::{FactsError, Workload, pod_spec};
use crate::vocabulary::Class;

/// Where a new field could raise the number of pods, it is noted.
const REPLICA_FIELDS: &[&str] = &["maxReplicas", "name", "replicas", "spares", "template"];
const ELASTIC_FIELDS: &[&str] = &[
    "faultyScaleDownTimeoutInSeconds",
    "gracefulShutdownTimeoutInSeconds",
    "maxReplicas",
    "minReplicas",
    "replicaDiscreteValues",
    "replicaIncrementStep",
    "scalingTimeoutInSeconds",
];

pub(super) fn read(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let spec = object.object("spec")?;
    let suspended = spec.object("runPolicy")?.flag("suspend")?;
    let elastic = spec.object("elasticPolicy")?;
    let grows_to = largest_elastic_size(&elastic)?;

    let mut unknown_fields = std::collections::BTreeSet::new();
    elastic.note_unknown(ELASTIC_FIELDS, &mut unknown_fields);
    let mut templates = Vec::new();
    let mut counts = Vec::new();
    for replica in spec.objects("replicaSpecs")? {
        let replica = replica?;
        replica.note_unknown(REPLICA_FIELDS, &mut unknown_fields);
        counts.push(count(&replica, grows_to)?);
        templates.push(pod_spec::template(&replica.object("template")?)?);
    }
    let groups = demand::groups(&templates, counts);
    let demand = demand::bounded(&groups, suspended);
    Ok(Workload { suspended, unknown_fields, ..workload(object, Class::Training, templates, demand)? })
}

/// Spares run beside the replicas from the start: four replicas and two spares are six pods.
fn count(replica: &Node<'_, '_>, grows_to: u64) -> Result<Count, FactsError> {
    let replicas = replica.count("replicas")?.unwrap_or(0);
    let max_replicas = replica.count("maxReplicas")?.unwrap_or(0);
    let spares = replica.count("spares")?.unwrap_or(0);
    let most = replicas.max(max_replicas).max(grows_to);
    Ok(Count { now: replicas.saturating_add(spares), most: most.saturating_add(spares) })
}

/// An elastic job names its sizes as a range or as a list.
fn largest_elastic_size(elastic: &Node<'_, '_>) -> Result<u64, FactsError> {
    let mut largest = elastic.count("maxReplicas")?.unwrap_or(0);
    for size in elastic.integers("replicaDiscreteValues")? {
        largest = largest.max(u64::try_from(size).unwrap_or(0));
    }
    Ok(largest)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::facts::Bound;

    fn job(elastic: Value, replica: Value) -> Result<Workload, FactsError> {
        let mut replica = replica;
        replica["template"] = json!({"spec": {"containers": [
            {"name": "pytorch", "resources": {"requests": {"nvidia.com/gpu": "8"}}},
        ]}});
        let object = json!({"spec": {"elasticPolicy": elastic, "replicaSpecs": [replica]}});
        read(&Node::root(&object)?)
    }

    #[test]
    fn replicas_spares_and_elastic_sizes() -> Result<(), FactsError> {
        for (elastic, replica, expected) in [
            (json!(null), json!({}), (0, 0)),
            (json!(null), json!({"replicas": 4}), (32, 32)),
            (json!(null), json!({"replicas": 4, "spares": 2}), (48, 48)),
            (json!(null), json!({"replicas": 1, "maxReplicas": 3, "spares": 1}), (16, 32)),
            (json!({"maxReplicas": 5}), json!({"replicas": 1, "maxReplicas": 3}), (8, 40)),
            (json!({"replicaDiscreteValues": [1, 2, 6]}), json!({"replicas": 1}), (8, 48)),
        ] {
            let job = job(elastic.clone(), replica.clone())?;
            let Bound::AtMost(ceiling) = &job.demand.ceiling else { unreachable!("there is a bound") };
            let gpus = (job.demand.floor.get("nvidia.com/gpu"), ceiling.get("nvidia.com/gpu"));
            assert_eq!(gpus, expected, "{elastic} {replica}");
        }
        Ok(())
    }

    #[test]
    fn new_ways_to_grow_are_noted() -> Result<(), FactsError> {
        let job = job(json!({"burst": 1}), json!({"replicas": 1, "standby": 3}))?;
        let noted = ["/spec/elasticPolicy/burst", "/spec/replicaSpecs/0/standby"].map(str::to_owned);
        assert_eq!(job.unknown_fields, noted.into());
        Ok(())
    }
}
