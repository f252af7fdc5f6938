//! Kubernetes quantities and amounts of extended resources.
/// Placeholder until the amounts land.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct ResourceName(pub String);
impl std::fmt::Display for ResourceName { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(&self.0) } }
/// Placeholder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Amounts(pub std::collections::BTreeMap<ResourceName, u64>);
