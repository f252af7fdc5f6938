//! Autoscalers: what they may let another object grow to. Each step that they take is judged when they take it; what can
//! never fit is said to whoever writes them.

use super::json::Node;
use super::{FactsError, KindRef, Scales};
use crate::cluster::group_version;

/// Group, plural, kind, the field of the maximum, and what holds where it is absent.
const SCALERS: &[(&str, &str, &str, &str, u64)] = &[
    ("autoscaling", "horizontalpodautoscalers", "HorizontalPodAutoscaler", "maxReplicas", 1),
    ("keda.sh", "scaledobjects", "ScaledObject", "maxReplicaCount", 100),
];

pub(super) fn read(kind: &KindRef<'_>, object: &Node<'_, '_>) -> Result<Option<Scales>, FactsError> {
    let scaler = SCALERS.iter().find(|(group, plural, name, ..)| kind.is(group, plural, name));
    let Some((.., field, default)) = scaler else { return Ok(None) };
    let spec = object.object("spec")?;
    let target = spec.object("scaleTargetRef")?;
    let (group, _) = group_version(target.string("apiVersion")?.unwrap_or("apps/v1"));
    Ok(Some(Scales {
        group: group.to_owned(),
        kind: target.string("kind")?.unwrap_or("Deployment").to_owned(),
        name: target.string("name")?.unwrap_or_default().to_owned(),
        most: spec.count(field)?.unwrap_or(*default),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn targets_and_maxima() -> Result<(), FactsError> {
        let scales = |group: &str, kind: &str, name: &str, most| {
            Some(Scales { group: group.to_owned(), kind: kind.to_owned(), name: name.to_owned(), most })
        };
        let lws = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "a"});
        for (group, kind, spec, expected) in [
            (
                "autoscaling",
                "HorizontalPodAutoscaler",
                json!({"scaleTargetRef": lws, "maxReplicas": 7}),
                scales("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "a", 7),
            ),
            (
                "keda.sh",
                "ScaledObject",
                json!({"scaleTargetRef": {"name": "b"}}),
                scales("apps", "Deployment", "b", 100),
            ),
            ("keda.sh", "TriggerAuthentication", json!({}), None),
        ] {
            let object = json!({"spec": spec});
            assert_eq!(read(&KindRef { group, kind, resource: "" }, &Node::root(&object)?)?, expected);
        }
        Ok(())
    }
}
