//! The starter policies, embedded: `demo` and `test` run without a directory, and a site starts from `policies/`.

use super::{Policies, SourceFile};

macro_rules! embedded {
    ($path:literal) => {
        SourceFile::new($path, include_str!(concat!("../../../../policies/", $path)))
    };
}

/// The schema that policies are written against.
pub fn starter_schema() -> SourceFile {
    embedded!("schema.cedarschema")
}

/// The files of `policies/` that a site copies.
pub fn starter_files() -> Vec<SourceFile> {
    vec![
        embedded!("changes.cedar"),
        embedded!("exemptions.cedar"),
        embedded!("host.cedar"),
        embedded!("identity.cedar"),
        embedded!("images.cedar"),
        embedded!("placement.cedar"),
        embedded!("pod-security.cedar"),
        embedded!("queue.cedar"),
        embedded!("quota.cedar"),
        embedded!("storage.cedar"),
        embedded!("tenancy.cedar"),
    ]
}

/// Policies to start a file of one's own from. Not part of [`starter`]: each holds only where a site wants it.
pub fn examples() -> Vec<SourceFile> {
    vec![
        embedded!("examples/borrow-at-night.cedar"),
        embedded!("examples/contractors-off-p5.cedar"),
        embedded!("examples/exempt-team-a-checkpointless-until-2027-03-01.cedar"),
        embedded!("examples/exempt-team-a-dev-shm-until-2027-03-01.cedar"),
        embedded!("examples/exempt-team-a-neuron-paths-until-2027-03-01.cedar"),
        embedded!("examples/exempt-team-a-node-disks-until-2027-03-01.cedar"),
        embedded!("examples/exempt-team-a-profiling-until-2027-03-01.cedar"),
        embedded!("examples/last-fifth-for-high-priority.cedar"),
        embedded!("examples/spaces-take-slices.cedar"),
        embedded!("examples/spaces-two-gpus-leads-four.cedar"),
        embedded!("examples/workload-cap.cedar"),
    ]
}

/// The starter policies, loaded. Run it with 8 MiB of stack, like [`Policies::load`].
pub fn starter() -> Policies {
    Policies::load(&starter_schema(), &starter_files()).expect("the starter policies load: a test holds them to it")
}
