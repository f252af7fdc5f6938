//! Kubernetes quantities and amounts of extended resources.
