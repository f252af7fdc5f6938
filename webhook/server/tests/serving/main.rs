//! The server as an API server meets it: real TLS on loopback, a scripted decision behind it.

mod answers;
mod connections;
mod draining;
mod harness;
mod logging;
