//! Puts listener, gate and drain together.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::net::TcpListener;

use crate::{
    Decide, Gate,
    drain::{self, Times},
    listen::{self, Bounds},
};

/// Everything that serving takes.
#[derive(Debug)]
pub struct Server<D> {
    pub listener: TcpListener,
    /// From [`listen::tls`].
    pub tls: Arc<ServerConfig>,
    pub gate: Gate<D>,
    pub bounds: Bounds,
    pub drain: Times,
}

impl<D: Decide> Server<D> {
    /// Serves until `shutdown` ends, then drains. Gives the number of connections that were cut off because their
    /// reviews took longer than [`Times::finish`].
    ///
    /// Close the decision log after this, not before.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> usize {
        let Self { listener, tls, gate, bounds, drain } = self;
        let readiness = gate.readiness().clone();
        let (conductor, phases) = drain::phases();
        let ((), cut_off) = tokio::join!(
            conductor.conduct(shutdown, &readiness, drain),
            listen::serve(listener, tls, gate.router(), bounds, phases, drain.finish),
        );
        cut_off
    }
}
