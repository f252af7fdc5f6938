//! Where a pod may land: instance families, the labels that choose nodes, the taints it tolerates.
//!
//! Only what is certain narrows the instance families: required terms that list types. Anything else leaves them open.

use std::collections::BTreeSet;

use super::json::Node;
use super::{FactsError, PodTemplate, instance};

/// The labels that carry the instance type; samples still use the old one.
const INSTANCE_TYPE: [&str; 2] = ["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"];

/// What selectors and affinity leave open.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// `None`: any.
    families: Option<BTreeSet<String>>,
    node_selectors: BTreeSet<String>,
    tolerations: BTreeSet<String>,
    repels_others: bool,
}

impl Placement {
    /// Reads `nodeSelector`, `affinity` and `tolerations`, which a Workspace has under the same names as a pod spec.
    pub(super) fn read(spec: &Node<'_, '_>) -> Result<Self, FactsError> {
        let mut placement = Self::default();
        placement.select(spec)?;
        let affinity = spec.object("affinity")?;
        placement.narrow_by_affinity(&affinity)?;
        placement.repels_others = repels_others(&affinity)?;
        for toleration in spec.objects("tolerations")? {
            let key = toleration?.name("key")?;
            placement.tolerations.insert(key.unwrap_or_else(|| "*".to_owned()));
        }
        Ok(placement)
    }

    /// Reads the `nodeSelector` of `holder`.
    pub(super) fn select(&mut self, holder: &Node<'_, '_>) -> Result<(), FactsError> {
        for (key, value) in holder.string_map("nodeSelector")? {
            if INSTANCE_TYPE.contains(&key.as_str()) {
                self.narrow(Some(BTreeSet::from([family(&value)])));
            }
            self.node_selectors.insert(key);
        }
        Ok(())
    }

    /// Reads the `nodeAffinity` of `holder`.
    pub(super) fn narrow_by_affinity(&mut self, holder: &Node<'_, '_>) -> Result<(), FactsError> {
        let affinity = holder.object("nodeAffinity")?;
        let required = affinity.object("requiredDuringSchedulingIgnoredDuringExecution")?;
        let mut open = Some(BTreeSet::new());
        let mut terms = 0;
        for term in required.objects("nodeSelectorTerms")? {
            terms += 1;
            let families = self.term(&term?)?;
            open = open.zip(families).map(|(open, families)| &open | &families);
        }
        if terms > 0 {
            self.narrow(open);
        }
        // A preference rules nothing out, but it chooses by these labels all the same.
        for preferred in affinity.objects("preferredDuringSchedulingIgnoredDuringExecution")? {
            self.term(&preferred?.object("preference")?)?;
        }
        Ok(())
    }

    /// Pins the instance types that an endpoint kind names.
    pub(super) fn pin<'a>(&mut self, instance_types: impl Iterator<Item = &'a str>) {
        let families: BTreeSet<_> = instance_types.map(family).collect();
        if !families.is_empty() {
            self.narrow(Some(families));
        }
    }

    /// The families that one term (all of its expressions together) leaves open.
    fn term(&mut self, term: &Node<'_, '_>) -> Result<Option<BTreeSet<String>>, FactsError> {
        let mut families = None;
        for expression in term.objects("matchExpressions")? {
            let expression = expression?;
            let key = expression.string("key")?.unwrap_or_default();
            if INSTANCE_TYPE.contains(&key) && expression.string("operator")? == Some("In") {
                let listed = expression.strings("values")?.into_iter().map(family).collect();
                families = both(families, Some(listed));
            }
            self.node_selectors.insert(key.to_owned());
        }
        for field in term.objects("matchFields")? {
            self.node_selectors.insert(field?.string("key")?.unwrap_or_default().to_owned());
        }
        Ok(families)
    }

    fn narrow(&mut self, families: Option<BTreeSet<String>>) {
        self.families = both(self.families.take(), families);
    }

    pub(super) fn write_to(self, template: &mut PodTemplate) {
        let Self { families, node_selectors, tolerations, repels_others } = self;
        template.repels_others = repels_others;
        template.any_instance = families.is_none();
        template.instance_families = families.unwrap_or_default();
        template.node_selectors = node_selectors;
        template.tolerations = tolerations;
    }
}

/// The scheduler keeps to a required anti-affinity in both directions: whatever it selects lands nowhere near this pod.
fn repels_others(affinity: &Node<'_, '_>) -> Result<bool, FactsError> {
    let mut repels = false;
    for term in affinity.object("podAntiAffinity")?.objects("requiredDuringSchedulingIgnoredDuringExecution")? {
        let term = term?;
        repels |= term.has("namespaceSelector") || !term.list("namespaces")?.is_empty();
    }
    Ok(repels)
}

/// What two conditions leave open together. If they exclude each other the pod lands nowhere; the first stands, because
/// an empty set would pass a rule that lists what is allowed.
fn both(first: Option<BTreeSet<String>>, second: Option<BTreeSet<String>>) -> Option<BTreeSet<String>> {
    match (first, second) {
        (Some(first), Some(second)) => {
            let common = &first & &second;
            Some(if common.is_empty() { first } else { common })
        }
        (first, second) => first.or(second),
    }
}

fn family(instance_type: &str) -> String {
    instance::family(instance_type).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn families(spec: &Value) -> Result<Option<Vec<String>>, FactsError> {
        let placement = Placement::read(&Node::root(spec)?)?;
        Ok(placement.families.map(|families| families.into_iter().collect()))
    }

    fn affinity(terms: Value) -> Value {
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
    }

    #[test]
    fn what_is_left_open() {
        let label = "node.kubernetes.io/instance-type";
        let types = |operator: &str, values: &[&str]| json!({"key": label, "operator": operator, "values": values});
        let zone = json!({"key": "topology.kubernetes.io/zone", "operator": "Exists"});
        let table = [
            (json!({}), None),
            (json!({"nodeSelector": {label: "ml.p5.48xlarge"}}), Some(vec!["p5"])),
            (json!({"nodeSelector": {"beta.kubernetes.io/instance-type": "p5en.48xlarge"}}), Some(vec!["p5en"])),
            (json!({"nodeSelector": {"zone": "a"}}), None),
            (
                json!({"affinity": affinity(json!([{"matchExpressions": [types("In", &["ml.g5.xlarge", "ml.g6.xlarge"])]}]))}),
                Some(vec!["g5", "g6"]),
            ),
            (
                json!({"affinity": affinity(json!([
                    {"matchExpressions": [types("In", &["ml.g5.xlarge"])]},
                    {"matchExpressions": [types("In", &["ml.p5.48xlarge"]), zone]},
                ]))}),
                Some(vec!["g5", "p5"]),
            ),
            (
                json!({"affinity": affinity(json!([
                    {"matchExpressions": [types("In", &["ml.g5.xlarge"])]},
                    {"matchExpressions": [zone]},
                ]))}),
                None,
            ),
            (json!({"affinity": affinity(json!([{"matchExpressions": [types("NotIn", &["ml.g5.xlarge"])]}]))}), None),
            (json!({"affinity": affinity(json!([{"matchExpressions": [types("Exists", &[])]}]))}), None),
            (json!({"affinity": affinity(json!([]))}), None),
            (
                json!({
                    "nodeSelector": {label: "ml.g5.xlarge"},
                    "affinity": affinity(json!([{"matchExpressions": [types("In", &["ml.g5.xlarge", "ml.p5.48xlarge"])]}])),
                }),
                Some(vec!["g5"]),
            ),
        ];
        for (spec, expected) in table {
            let expected = expected.map(|list| list.into_iter().map(str::to_owned).collect());
            assert_eq!(families(&spec), Ok(expected), "{spec}");
        }
    }

    #[test]
    fn labels_and_taints() -> Result<(), FactsError> {
        let spec = json!({
            "nodeSelector": {"a": "1"},
            "tolerations": [{"operator": "Exists"}, {"key": "nvidia.com/gpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "b", "operator": "Exists"}]},
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]},
                ]},
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchExpressions": [{"key": "c", "operator": "Exists"}]}},
                ],
            }},
        });
        let placement = Placement::read(&Node::root(&spec)?)?;
        assert_eq!(placement.node_selectors, ["a", "b", "c", "metadata.name"].map(str::to_owned).into());
        assert_eq!(placement.tolerations, ["*", "nvidia.com/gpu"].map(str::to_owned).into());
        Ok(())
    }
}
