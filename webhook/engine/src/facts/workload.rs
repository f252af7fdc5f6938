//! Puts a workload together: what every kind carries in the same places.

use std::collections::BTreeSet;

use super::json::Node;
use super::{Demand, FactsError, PodTemplate, Workload};
use crate::vocabulary::Class;

/// Of the keys by which one speaks to Kueue.
const QUEUE_PREFIX: &str = "kueue.x-k8s.io/";
const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";

/// A workload with its queues and priorities, which may be named on the object or on its templates. What only some kinds
/// have is for the kind to add.
pub(super) fn workload(
    object: &Node<'_, '_>,
    class: Class,
    templates: Vec<PodTemplate>,
    demand: Demand,
) -> Result<Workload, FactsError> {
    let labels = object.object("metadata")?.string_map("labels")?;
    let named = |label: &str| -> BTreeSet<String> {
        let labels = std::iter::once(&labels).chain(templates.iter().map(|template| &template.labels));
        labels.filter_map(|labels| labels.get(label)).filter(|name| !name.is_empty()).cloned().collect()
    };
    let annotations = object.object("metadata")?.string_map("annotations")?;
    let of_templates = templates.iter().flat_map(|template| [&template.labels, &template.annotations]);
    let keys = [&labels, &annotations].into_iter().chain(of_templates).flat_map(|map| map.keys());
    let queue_keys = keys.filter(|key| key.starts_with(QUEUE_PREFIX)).cloned().collect();
    let mut is_controlled = false;
    for owner in object.object("metadata")?.objects("ownerReferences")? {
        is_controlled |= owner?.flag("controller")?;
    }
    let queues = named(QUEUE_LABEL);
    let mut priority_classes = named(PRIORITY_LABEL);
    priority_classes.extend(templates.iter().filter_map(|template| template.priority_class.clone()));
    Ok(Workload {
        class,
        templates,
        demand,
        is_one_pod_set: false,
        suspended: false,
        queues,
        priority_classes,
        queue_keys,
        is_controlled,
        service_account: None,
        roles: BTreeSet::new(),
        storage: BTreeSet::new(),
        doors: BTreeSet::new(),
        claim_templates: BTreeSet::new(),
        unknown_fields: BTreeSet::new(),
    })
}
