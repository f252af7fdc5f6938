//! One file each.

pub(crate) mod check;
pub(crate) mod crds;
pub(crate) mod demo;
pub(crate) mod explain;
pub(crate) mod quota;
pub(crate) mod serve;
