//! Decides one admission review. Pure: no clock, file, socket, task or environment, so that the same inputs give the
//! same answer byte for byte. That is what makes replay, tests and the ledger's compare-and-swap loop honest.
//!
//! ```text
//! bytes -> review -> facts -> identity -> attribution -> questions -> policies -> mutation | quota -> verdict -> record
//! ```

pub mod amounts;
pub mod facts;
pub mod policies;
pub mod vocabulary;
