//! Black-box tests: cases that are files, and what stands in for an API server to run them.
//!
//! ```text
//! cases/field/O01-*.yaml --> case --> world (teams, policies, state)  --> api_server: mutate, apply, validate, persist
//!                              |                                               |
//!                              +--> expect ------------- compares with <-------+ outcome
//! ```
//!
//! A case carries its own input and expectation, so that adding one needs no code: `cases/README.md` explains the format.

pub mod api_server;
pub mod case;
pub mod difference;
pub mod expect;
pub mod gate;
pub mod people;
pub mod published;
pub mod run;
pub mod world;
