//! The certificates the gate serves with: made, read and replaced while it serves.
//!
//! ```text
//! authority --issue--> Issued (PEM) --> a Secret --mounted--> files::read --> Certificate --> Resolver --> rustls
//!                                                                                  ^ checked before it is swapped in
//! ```
//!
//! In a cluster cert-manager comes first; `authority` is the fallback for clusters without it, for the demonstration
//! on one machine, and for tests. Only aws-lc-rs does cryptography here: a second provider in the build makes rustls
//! panic when it looks for the default one.
//!
//! `rotation` says when to renew and to rotate; whoever stores the result is outside.
//!
//! Time is an argument wherever a validity is judged.

pub mod authority;
mod certificate;
mod error;
pub mod files;
pub mod issue;
pub mod resolver;
pub mod rotation;

pub use authority::Authority;
pub use certificate::Certificate;
pub use error::Error;
pub use issue::{Issued, Names};
pub use resolver::Resolver;
pub use rustls_pki_types::UnixTime;
