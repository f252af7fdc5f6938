//! A Pod: one template, itself.

use super::demand::{self, Count, Group};
use super::json::Node;
use super::workload::workload;
use super::{FactsError, Workload, pod_spec};
use crate::vocabulary::Class;

pub(super) fn read(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let template = pod_spec::template(object)?;
    let demand = demand::bounded(&[Group { per_pod: &template.per_pod, count: Count::fixed(1) }], false);
    workload(object, Class::Pod, vec![template], demand)
}
