//! Where ledgers are kept. The engine decides what a ledger becomes; a store only says whether somebody was faster.

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::sync::Mutex;

use engine::quota::Ledger;

/// Compare-and-swap by team.
pub trait LedgerStore: Send + Sync + 'static {
    /// The ledger as it is, with what [`LedgerStore::swap`] must be given to replace just this one.
    fn load(&self, team: &str) -> impl Future<Output = Result<Versioned, Unavailable>> + Send;

    /// Replaces the ledger if it is still the one that `version` names.
    fn swap(
        &self,
        team: &str,
        version: Version,
        ledger: Ledger,
    ) -> impl Future<Output = Result<Swap, Unavailable>> + Send;
}

/// A ledger that was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Versioned {
    pub ledger: Ledger,
    pub version: Version,
}

/// Opaque to everybody but the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Version(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    Done,
    /// Somebody wrote in between: read again and decide again.
    Lost,
}

/// The store does not answer. Never admit on doubt: retry later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the ledger cannot be reached: {0}")]
pub struct Unavailable(pub String);

/// Ledgers of one process: exact for one replica, gone with it.
#[derive(Debug, Default)]
pub struct InMemory(Mutex<BTreeMap<String, Versioned>>);

impl InMemory {
    pub fn new(ledgers: BTreeMap<String, Ledger>) -> Self {
        let versioned = |(team, ledger)| (team, Versioned { ledger, version: Version(0) });
        Self(Mutex::new(ledgers.into_iter().map(versioned).collect()))
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Versioned>> {
        // Nothing panics while it holds the lock; and if something did, the map is whole between statements.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The ledger of a team, for whoever only looks.
    pub fn peek(&self, team: &str) -> Ledger {
        self.locked().get(team).map(|versioned| versioned.ledger.clone()).unwrap_or_default()
    }
}

impl LedgerStore for InMemory {
    fn load(&self, team: &str) -> impl Future<Output = Result<Versioned, Unavailable>> + Send {
        ready(Ok(self.locked().get(team).cloned().unwrap_or_default()))
    }

    fn swap(
        &self,
        team: &str,
        version: Version,
        ledger: Ledger,
    ) -> impl Future<Output = Result<Swap, Unavailable>> + Send {
        let mut ledgers = self.locked();
        let stored = ledgers.entry(team.to_owned()).or_default();
        if stored.version != version {
            return ready(Ok(Swap::Lost));
        }
        *stored = Versioned { ledger, version: Version(version.0 + 1) };
        ready(Ok(Swap::Done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_slower_writer_loses() {
        let store = InMemory::default();
        let first = store.load("team-a").await.expect("in memory");
        let second = store.load("team-a").await.expect("in memory");
        assert_eq!(store.swap("team-a", first.version, Ledger::default()).await, Ok(Swap::Done));
        assert_eq!(store.swap("team-a", second.version, Ledger::default()).await, Ok(Swap::Lost));
    }
}
