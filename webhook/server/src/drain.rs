//! Leaves without losing a review.
//!
//! A terminating pod goes on receiving reviews until every API server has heard that it is not ready, and longer on
//! connections that stand. So it leaves in steps:
//!
//! ```text
//!  Serving --signal--> Draining ----propagation---->  Stopping ------finish------> whatever is left is cut off
//!                      not ready; serves on,          no new connections; idle
//!                      HTTP/1.1 answers say           ones close, HTTP/2 is told
//!                      `Connection: close`            to go away
//! ```

use std::time::Duration;

use tokio::sync::watch;

use crate::{Check, Readiness};

/// How long reviews may still come after the pod is not ready: the readiness probe (twice 5 s at most in the chart),
/// the endpoint's way to each API server, and what they have under way.
pub const PROPAGATION: Duration = Duration::from_secs(15);

/// How long the reviews under way may take once nothing new is taken: the longest deadline.
pub const FINISH: Duration = crate::deadline::DEFAULT_TIMEOUT;

/// The length of each step; together less than the pod's `terminationGracePeriodSeconds`.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub propagation: Duration,
    pub finish: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { propagation: PROPAGATION, finish: FINISH }
    }
}

/// Where a server stands. Only ever moves on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Serving,
    Draining,
    Stopping,
}

/// Follows the phase; clones follow the same one.
#[derive(Debug, Clone)]
pub(crate) struct Phases(watch::Receiver<Phase>);

impl Phases {
    pub(crate) fn now(&self) -> Phase {
        *self.0.borrow()
    }

    /// Ends when `phase` is reached, or when whoever conducts is gone.
    pub(crate) async fn reached(&mut self, phase: Phase) {
        // An error is a conductor that is gone, and with it every reason to go on.
        let _ = self.0.wait_for(|now| *now >= phase).await;
    }
}

/// Moves the phase.
#[derive(Debug)]
pub(crate) struct Conductor(watch::Sender<Phase>);

pub(crate) fn phases() -> (Conductor, Phases) {
    let (sender, receiver) = watch::channel(Phase::Serving);
    (Conductor(sender), Phases(receiver))
}

impl Conductor {
    /// Waits for `shutdown`, then walks through the steps up to [`Phase::Stopping`].
    pub(crate) async fn conduct(&self, shutdown: impl Future<Output = ()>, readiness: &Readiness, times: Times) {
        let Times { propagation, finish: _ } = times;
        shutdown.await;
        readiness.fail(Check::Serving, "shutting down");
        self.0.send_replace(Phase::Draining);
        tokio::time::sleep(propagation).await;
        self.0.send_replace(Phase::Stopping);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn is_not_ready_before_it_drains_and_drains_before_it_stops() {
        let readiness = Readiness::requiring([]);
        let (conductor, mut phases) = phases();
        let (stop, stopped) = oneshot::channel::<()>();
        let times = Times { propagation: Duration::from_millis(20), finish: Duration::ZERO };

        let mut seen = phases.clone();
        let watched = readiness.clone();
        let watcher = tokio::spawn(async move {
            assert_eq!((seen.now(), watched.is_ready()), (Phase::Serving, true));
            seen.reached(Phase::Draining).await;
            assert!(!watched.is_ready());
        });
        tokio::task::yield_now().await;
        stop.send(()).expect("is waited for");
        conductor.conduct(async { stopped.await.expect("is sent") }, &readiness, times).await;
        phases.reached(Phase::Stopping).await;
        assert_eq!(phases.now(), Phase::Stopping);
        watcher.await.expect("saw the order");
    }
}
