//! Workspace: a Space of SageMaker Studio on the cluster (jupyter-k8s).
//!
//! Its template and access strategy may add to what stands here (resources, an image, sidecars), so the demand is an
//! estimate and absent settings say nothing: the pod is judged in its turn.

use super::demand::{self, Count, Group};
use super::json::Node;
use super::placement::Placement;
use super::pod_security::{Absence, Pod};
use super::pod_spec::{self, Parts};
use super::workload::workload;
use super::{Demand, FactsError, PodTemplate, Workload, volume};
use crate::amounts::Amounts;
use crate::vocabulary::{Class, ContainerKind};

pub(super) fn read(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let spec = object.object("spec")?;
    let suspended = spec.string("desiredStatus")? == Some("Stopped");
    let template = template(object, &spec)?;
    let group = Group { per_pod: &template.per_pod, count: Count::fixed(1) };
    let demand = Demand { estimated: true, ..demand::bounded(&[group], suspended) };
    let mut space = workload(object, Class::Space, vec![template], demand)?;
    space.suspended = suspended;
    space.service_account = spec.name("serviceAccountName")?;
    // The operator makes the home claim, under this name.
    let name = object.object("metadata")?.name("name")?.filter(|_| spec.has("storage"));
    space.claim_templates.extend(name.map(|name| format!("workspace-{name}-pvc")));
    Ok(space)
}

fn template(object: &Node<'_, '_>, spec: &Node<'_, '_>) -> Result<PodTemplate, FactsError> {
    let metadata = object.object("metadata")?;
    let pod_security = spec.object("podSecurityContext")?;
    let pod = Pod::read(spec, &pod_security, Absence::SaysNothing)?;
    let mut template = PodTemplate { synthetic: true, ..pod_spec::blank(spec.pointer()) };
    // The operator copies both to the pod.
    template.labels = metadata.string_map("labels")?;
    template.annotations = metadata.string_map("annotations")?;

    let parts = Parts {
        node: spec,
        name: "workspace",
        security: &spec.object("containerSecurityContext")?,
        resources: &spec.object("resources")?,
        probes: spec,
        env: "env",
    };
    let mut container = pod_spec::container(&parts, ContainerKind::Main, &pod, &mut template)?;
    for (claim, mount) in volume::read_claims(spec)? {
        template.volumes.push(claim);
        container.mounts.push(mount);
    }
    template.containers.push(container);
    pod_spec::read_init_containers(spec, &pod, &mut template)?;
    template.per_pod = demand::per_pod(&template.containers, &Amounts::new(), &Amounts::new());
    pod_spec::read_identity(&pod_security, &pod, &mut template)?;
    template.service_account = spec.name("serviceAccountName")?;
    Placement::read(spec)?.write_to(&mut template);
    Ok(template)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::facts::Bound;

    #[test]
    fn a_space_with_everything() -> Result<(), FactsError> {
        let object = json!({
            "metadata": {"name": "lab", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
            "spec": {
                "image": "jupyter/scipy-notebook:latest",
                "resources": {"limits": {"nvidia.com/gpu": 1}},
                "storage": {"size": "5Gi", "mountPath": "/home/lab"},
                "volumes": [{"name": "data", "persistentVolumeClaimName": "shared", "mountPath": "/data"}],
                "serviceAccountName": "sa",
                "podSecurityContext": {"runAsUser": 1000, "fsGroup": 1000},
                "containerSecurityContext": {"privileged": true},
                "initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": 2}}}],
                "nodeSelector": {"node.kubernetes.io/instance-type": "ml.g6e.xlarge"},
                "tolerations": [{"key": "nvidia.com/gpu"}],
                "desiredStatus": "Running",
            },
        });
        let space = read(&Node::root(&object)?)?;
        let template = &space.templates[0];
        assert_eq!(space.demand.floor.accelerators(), 2);
        assert_eq!(space.service_account.as_deref(), Some("sa"));
        assert_eq!(space.claim_templates, ["workspace-lab-pvc".to_owned()].into());
        assert_eq!(space.queues, ["q".to_owned()].into());
        assert_eq!(template.volumes[0].source.as_deref(), Some("shared"));
        assert_eq!(template.containers[0].mounts[0].path, "/data");
        assert_eq!(template.containers[0].image.repository, "jupyter/scipy-notebook");
        assert!(template.containers[0].privileged);
        assert_eq!((template.uid, template.gids.clone()), (Some(1000), [1000].into()));
        assert_eq!(template.instance_families, ["g6e".to_owned()].into());
        Ok(())
    }

    #[test]
    fn a_stopped_space_holds_nothing() -> Result<(), FactsError> {
        let object = json!({"spec": {"desiredStatus": "Stopped", "resources": {"limits": {"nvidia.com/gpu": 1}}}});
        let space = read(&Node::root(&object)?)?;
        assert!(space.suspended && space.demand.floor.is_empty() && space.demand.pods == 0);
        let Bound::AtMost(ceiling) = space.demand.ceiling else { unreachable!("one pod at most") };
        assert_eq!(ceiling.accelerators(), 1);
        Ok(())
    }
}
