//! Instance types: their families, and the accelerators on each that SageMaker HyperPod offers.
//!
//! The numbers are those of the HyperPod CLI (`INSTANCE_RESOURCES`, `INSTANCE_TYPE_MIG_PROFILES`). They are used where an
//! object names an instance type instead of an amount; the pods' own requests replace the estimate.

use crate::amounts::{Amounts, ResourceName};

/// What an instance type carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    pub gpus: u64,
    /// Trainium devices, which hold several Neuron cores each.
    pub neuron_devices: u64,
    pub efa_interfaces: u64,
}

/// Type without `ml.`, then GPUs, Neuron devices, EFA interfaces.
const INSTANCES: &[(&str, u64, u64, u64)] = &[
    ("p4d.24xlarge", 8, 0, 4),
    ("p4de.24xlarge", 8, 0, 4),
    ("p5.4xlarge", 1, 0, 1),
    ("p5.48xlarge", 8, 0, 32),
    ("p5e.48xlarge", 8, 0, 32),
    ("p5en.48xlarge", 8, 0, 16),
    ("p6-b200.48xlarge", 8, 0, 8),
    ("p6-b300.48xlarge", 8, 0, 16),
    ("p6e-gb200.36xlarge", 4, 0, 0),
    ("trn1.32xlarge", 0, 16, 8),
    ("trn1n.32xlarge", 0, 16, 16),
    ("trn2.3xlarge", 0, 1, 1),
    ("trn2.48xlarge", 0, 16, 16),
    ("g5.xlarge", 1, 0, 0),
    ("g5.2xlarge", 1, 0, 0),
    ("g5.4xlarge", 1, 0, 0),
    ("g5.8xlarge", 1, 0, 1),
    ("g5.12xlarge", 4, 0, 1),
    ("g5.16xlarge", 1, 0, 1),
    ("g5.24xlarge", 4, 0, 1),
    ("g5.48xlarge", 8, 0, 1),
    ("g6.xlarge", 1, 0, 0),
    ("g6.2xlarge", 1, 0, 0),
    ("g6.4xlarge", 1, 0, 0),
    ("g6.8xlarge", 1, 0, 1),
    ("g6.12xlarge", 4, 0, 1),
    ("g6.16xlarge", 1, 0, 1),
    ("g6.24xlarge", 4, 0, 1),
    ("g6.48xlarge", 8, 0, 1),
    ("gr6.4xlarge", 1, 0, 0),
    ("gr6.8xlarge", 1, 0, 1),
    ("g6e.xlarge", 1, 0, 0),
    ("g6e.2xlarge", 1, 0, 0),
    ("g6e.4xlarge", 1, 0, 0),
    ("g6e.8xlarge", 1, 0, 1),
    ("g6e.12xlarge", 4, 0, 1),
    ("g6e.16xlarge", 1, 0, 1),
    ("g6e.24xlarge", 4, 0, 2),
    ("g6e.48xlarge", 8, 0, 4),
    ("g7e.2xlarge", 1, 0, 0),
    ("g7e.4xlarge", 1, 0, 0),
    ("g7e.8xlarge", 1, 0, 1),
    ("g7e.12xlarge", 2, 0, 1),
    ("g7e.24xlarge", 4, 0, 2),
    ("g7e.48xlarge", 8, 0, 4),
];

/// Families with accelerators, whether or not the table above knows the size.
const ACCELERATED: &[&str] = &["p", "g", "gr", "trn", "inf", "dl", "vt", "f"];

/// MIG profiles by family.
const MIG_PROFILES: &[(&str, &[&str])] = &[
    ("p4d", &["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]),
    ("p4de", &["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
    ("p5", &["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]),
    ("p5e", &["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]),
    ("p5en", &["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]),
    ("p6-b200", &["1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"]),
    ("p6-b300", &["1g.34gb", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb"]),
    ("p6e-gb200", &["1g.23gb", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb"]),
];

/// The family of an instance type: `p5` for `ml.p5.48xlarge` and for `p5.48xlarge`.
pub fn family(instance_type: &str) -> &str {
    let bare = bare(instance_type);
    bare.split_once('.').map_or(bare, |(family, _)| family)
}

/// What a type carries; `None` for one that is not in the table.
pub fn instance(instance_type: &str) -> Option<Instance> {
    let bare = bare(instance_type);
    let (_, gpus, neuron_devices, efa_interfaces) = *INSTANCES.iter().find(|(name, ..)| *name == bare)?;
    Some(Instance { gpus, neuron_devices, efa_interfaces })
}

/// The MIG profiles of a family, as `1g.5gb`; none if its GPUs cannot be parted.
pub fn mig_profiles(family: &str) -> &'static [&'static str] {
    MIG_PROFILES.iter().find(|(name, _)| *name == family).map_or(&[], |(_, profiles)| profiles)
}

/// All accelerators of one instance; `None` if it has some and this version does not know how many.
pub(super) fn accelerators(instance_type: &str) -> Option<Amounts> {
    match instance(instance_type) {
        Some(Instance { gpus, neuron_devices, efa_interfaces: _ }) => Some(
            [
                (ResourceName::new("nvidia.com/gpu"), gpus),
                (ResourceName::new("aws.amazon.com/neurondevice"), neuron_devices),
            ]
            .into_iter()
            .collect(),
        ),
        None if may_be_accelerated(family(instance_type)) => None,
        None => Some(Amounts::new()),
    }
}

/// Letters up to the generation say the series: `g` in `g6e`, `gr` in `gr6`.
fn may_be_accelerated(family: &str) -> bool {
    let series = family.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
    series.is_empty() || ACCELERATED.contains(&series)
}

fn bare(instance_type: &str) -> &str {
    instance_type.strip_prefix("ml.").unwrap_or(instance_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families() {
        for (instance_type, expected) in [
            ("ml.p5.48xlarge", "p5"),
            ("p5.48xlarge", "p5"),
            ("ml.p6-b200.48xlarge", "p6-b200"),
            ("ml.p6e-gb200.36xlarge", "p6e-gb200"),
            ("ml.g6e.xlarge", "g6e"),
            ("", ""),
        ] {
            assert_eq!(family(instance_type), expected, "{instance_type}");
        }
    }

    #[test]
    fn every_partitioned_family_is_in_the_table() {
        for (name, profiles) in MIG_PROFILES {
            assert!(INSTANCES.iter().any(|(instance, ..)| family(instance) == *name), "{name}");
            assert_eq!(mig_profiles(name), *profiles);
        }
        assert!(mig_profiles("g5").is_empty());
    }

    #[test]
    fn accelerators_of_an_instance() {
        let gpus = |instance_type| accelerators(instance_type).map(|amounts| amounts.get("nvidia.com/gpu"));
        assert_eq!(gpus("ml.g5.8xlarge"), Some(1));
        assert_eq!(gpus("ml.p5.48xlarge"), Some(8));
        assert_eq!(gpus("ml.m5.large"), Some(0));
        assert_eq!(gpus("ml.c6i.large"), Some(0));
        for unknown in ["ml.p7.48xlarge", "ml.g4dn.xlarge", "ml.inf2.xlarge", "ml.gr7.xlarge", "ml.", ""] {
            assert_eq!(gpus(unknown), None, "{unknown}");
        }
        let neuron = accelerators("ml.trn2.48xlarge").map(|amounts| amounts.get("aws.amazon.com/neurondevice"));
        assert_eq!(neuron, Some(16));
    }
}
