//! Waiting for what a cluster will do in its own time.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// No step takes that long unless something is wrong: two cores may be compiling beside it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Often enough that nobody notices, seldom enough for a small machine.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks `probe` until it has an answer. `what` completes the sentence "waited in vain until ...".
pub async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = probe().await {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            bail!("waited {} s in vain until {what}", PATIENCE.as_secs());
        }
        sleep(PAUSE).await;
    }
}
