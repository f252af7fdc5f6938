//! A real API server with its controllers, for scenarios that a mock could not be believed about.
//!
//! ```text
//!  kubectl, helm, kube::Client --token--> kube-apiserver --> etcd
//!                                          |  ^      ^
//!              TokenReview (as on EKS)     |  |      +-- kube-controller-manager, one service account per controller
//!                                          v  |
//!                            `tokens`: userInfo of `people`
//!                                             ^
//!        `node`: scheduler and kubelet -------+------- `operators`: a Space's and an endpoint's, stand-ins
//! ```
//!
//! [`Cluster::start`] is all that a scenario needs. The cluster lives on threads of its own, so that the tests of one
//! binary can share it from a static; and it dies with the process, however that ends ([`process`]).
//!
//! Errors are `anyhow`: what goes wrong here is read by a person, and no caller tells one failure from another.

mod access;
mod audit;
pub mod burst;
mod cluster;
mod commands;
mod components;
mod control_plane;
mod crds;
mod directory;
mod gate;
mod https;
mod kubeconfig;
pub mod manifests;
mod node;
mod operators;
mod people;
mod process;
mod replicas;
mod tokens;
mod wait;
mod webhook;
pub mod workloads;

pub use access::{TEAM_A, TEAM_B};
pub use audit::{Audit, Event, ObjectReference, ResponseStatus};
pub use cluster::Cluster;
pub use commands::Output;
pub use components::Components;
pub use control_plane::{free_port, own_address};
pub use crds::Kind;
pub use gate::{Gate, Release, endpoints};
pub use kubeconfig::Identity;
pub use node::{Fate, NODE, Node};
pub use operators::{EndpointOperator, SpaceOperator};
pub use people::{Callers, People};
pub use process::Process;
pub use replicas::{
    CERTIFICATE, GATE, GATE_NAME, Readiness, Replicas, condition, governed, install_definition, mount,
    starter_policies, teams,
};
pub use wait::{PATIENCE, until};
pub use webhook::{Answer, Webhook};
