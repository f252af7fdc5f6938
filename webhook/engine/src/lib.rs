//! Decides one admission review. Pure: no clock, file, socket, task or environment, so that the same inputs give the
//! same answer byte for byte. That is what makes replay, tests and the ledger's compare-and-swap loop honest.
//!
//! ```text
//! bytes -> review -> facts -> identity -> attribution -> questions -> policies -> mutation | quota -> verdict -> record
//! ```

pub mod amounts;
pub mod attribution;
pub mod changes;
pub mod cluster;
pub mod config;
pub mod facts;
pub mod identity;
pub mod json;
pub mod judge;
pub mod mutation;
pub mod offline;
pub mod patch;
pub mod pipeline;
pub mod placed;
pub mod policies;
pub mod questions;
pub mod queues;
pub mod quota;
pub mod record;
pub mod review;
pub mod snapshot;
pub mod stamp;
pub mod team;
pub mod verdict;
pub mod vocabulary;
pub mod world;

/// Digest of revisions and label suffixes: `sha256:` and sixteen hex digits, enough to tell texts apart.
pub fn digest(bytes: &[u8]) -> String {
    use sha2::Digest;
    let hash = sha2::Sha256::digest(bytes);
    let hex: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
