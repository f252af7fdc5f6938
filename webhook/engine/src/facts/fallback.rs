//! Kinds that have no reader of their own.
//!
//! Where something in the object looks like a pod spec, the kind runs pods: its templates are judged like all others, and
//! because nobody knows how many pods it makes of them, accelerators in it have no bound. Any other object is looked at
//! for doors.

use serde_json::Value;

use super::demand::{self, Count};
use super::json::Node;
use super::workload::workload;
use super::{Demand, Facts, FactsError, KindRef, Object, PodTemplate, doors, pod_spec, scaler};
use crate::amounts::shown;
use crate::vocabulary::Class;

/// Kinds that hold pod templates and run nothing: what is made from them is reviewed itself.
const RUN_NOTHING: &[(&str, &str, &str)] = &[
    ("", "podtemplates", "PodTemplate"),
    ("apps", "controllerrevisions", "ControllerRevision"),
    ("workspace.jupyter.org", "workspacetemplates", "WorkspaceTemplate"),
    ("workspace.jupyter.org", "workspaceaccessstrategies", "WorkspaceAccessStrategy"),
    ("trainer.kubeflow.org", "trainingruntimes", "TrainingRuntime"),
    ("trainer.kubeflow.org", "clustertrainingruntimes", "ClusterTrainingRuntime"),
];

/// Kueue's record of a workload holds its pod sets.
const QUEUE_GROUP: &str = "kueue.x-k8s.io";

/// As deep as the JSON parser goes.
const DEEPEST: usize = 128;

pub(super) fn read(kind: &KindRef<'_>, object: &Node<'_, '_>) -> Result<Facts, FactsError> {
    let runs_nothing =
        kind.group == QUEUE_GROUP || RUN_NOTHING.iter().any(|(group, plural, name)| kind.is(group, plural, name));
    let mut templates = Vec::new();
    if !runs_nothing {
        find_templates(object, 0, &mut templates)?;
    }
    if templates.is_empty() {
        return Ok(Facts::Object(Object { doors: doors::read(kind, object)?, scales: scaler::read(kind, object)? }));
    }
    let demand = demand(kind, &templates);
    Ok(Facts::Workload(workload(object, Class::Other, templates, demand)?))
}

/// At least one pod of each template.
fn demand(kind: &KindRef<'_>, templates: &[PodTemplate]) -> Demand {
    let groups = demand::groups(templates, std::iter::repeat(Count::fixed(1)));
    let problem = format!("nothing tells the gate how many pods a {} runs", shown(kind.kind));
    let resource = if kind.resource.is_empty() { kind.kind } else { kind.resource };
    let hint = format!(
        "use a kind that it knows, such as Job, JobSet or PyTorchJob, or ask the platform team to describe \
         {} under `kinds` in the gate's configuration",
        shown(&format!("{resource}.{}", kind.group))
    );
    Demand { estimated: true, ..demand::unbounded(&groups, problem, hint) }
}

/// Walks everything but metadata and status, which only repeats.
pub(super) fn find_templates(
    node: &Node<'_, '_>,
    depth: usize,
    templates: &mut Vec<PodTemplate>,
) -> Result<(), FactsError> {
    if depth > DEEPEST {
        return Err(FactsError { pointer: node.pointer(), problem: "is nested too deeply".to_owned() });
    }
    for (key, child) in node.nested() {
        if depth == 0 && ["metadata", "status"].contains(&key) {
            continue;
        }
        if looks_like_pod_spec(&child) {
            templates.push(if key == "spec" { pod_spec::template(node)? } else { bare_template(&child)? });
        }
        find_templates(&child, depth + 1, templates)?;
    }
    Ok(())
}

/// A pod spec that no template holds, and that therefore has no metadata.
fn bare_template(spec: &Node<'_, '_>) -> Result<PodTemplate, FactsError> {
    let mut template = PodTemplate { synthetic: true, ..pod_spec::blank(spec.pointer()) };
    pod_spec::read_spec(spec, &mut template)?;
    Ok(template)
}

fn looks_like_pod_spec(node: &Node<'_, '_>) -> bool {
    let containers = node.value("containers").and_then(|list| list.as_array());
    let is_container = |item: &Value| item.get("name").is_some() || item.get("image").is_some();
    containers.is_some_and(|list| list.iter().any(is_container))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::facts::{Bound, Workload};

    const WIDGET: KindRef<'static> = KindRef { group: "example.org", kind: "Widget", resource: "widgets" };

    fn pod_spec(gpus: u64) -> Value {
        json!({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]})
    }

    fn read_workload(object: &Value) -> Workload {
        match read(&WIDGET, &Node::root(object).expect("an object")).expect("facts") {
            Facts::Workload(workload) => workload,
            Facts::Object(object) => unreachable!("no templates: {object:?}"),
        }
    }

    #[test]
    fn templates_are_found_wherever_they_are() {
        let object = json!({
            "metadata": {"managed": pod_spec(1)},
            "status": {"template": {"spec": pod_spec(1)}},
            "spec": {
                "headGroupSpec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": pod_spec(1)}},
                "workerGroupSpecs": [{"replicas": 4, "template": {"spec": pod_spec(2)}}],
                "podTemplate": pod_spec(4),
            },
        });
        let workload = read_workload(&object);
        let found: Vec<_> = workload.templates.iter().map(|t| (t.pointer.as_str(), t.synthetic)).collect();
        let expected = [
            ("/spec/headGroupSpec/template", false),
            ("/spec/workerGroupSpecs/0/template", false),
            ("/spec/podTemplate", true),
        ];
        assert_eq!(found, expected);
        assert_eq!(workload.class, Class::Other);
        assert_eq!(workload.demand.floor.accelerators(), 7);
        let Bound::Unbounded { problem, hint } = workload.demand.ceiling else { unreachable!("nobody knows one") };
        assert_eq!(problem, "nothing tells the gate how many pods a `Widget` runs");
        assert!(hint.contains("describe `widgets.example.org` under `kinds`"), "{hint}");
    }

    #[test]
    fn without_accelerators_there_is_nothing_to_bound() {
        let object = json!({"spec": {"template": {"spec": {"containers": [{"image": "a"}]}}}});
        let demand = read_workload(&object).demand;
        assert_eq!((demand.ceiling, demand.pods_ceiling), (Bound::AtMost(crate::amounts::Amounts::new()), None));
    }

    #[test]
    fn what_runs_nothing_is_an_object() -> Result<(), FactsError> {
        let template =
            json!({"template": {"spec": pod_spec(1)}, "spec": {"podSets": [{"template": {"spec": pod_spec(1)}}]}});
        for kind in [
            KindRef { group: "", kind: "PodTemplate", resource: "podtemplates" },
            KindRef { group: "kueue.x-k8s.io", kind: "Workload", resource: "workloads" },
        ] {
            assert!(matches!(read(&kind, &Node::root(&template)?)?, Facts::Object(_)), "{kind:?}");
        }
        let plain = json!({"spec": {"containers": ["a"]}});
        assert!(matches!(read(&WIDGET, &Node::root(&plain)?)?, Facts::Object(_)));
        Ok(())
    }

    #[test]
    fn bottomless_objects_are_refused() -> Result<(), FactsError> {
        let mut object = json!({});
        for _ in 0..200 {
            object = json!({"a": object});
        }
        let error = read(&WIDGET, &Node::root(&object)?).expect_err("too deep");
        assert!(error.problem.contains("nested too deeply"));
        Ok(())
    }
}
