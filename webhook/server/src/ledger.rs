//! Ledgers: where they are kept, and who writes them. The engine decides what a ledger becomes; a store only says whether
//! somebody was faster.
//!
//! ```text
//!  Decider --ask--> Ledgers --> one actor for each team: holds rounds (engine::quota::round), one write at a time
//!                                  |         |
//!                        LedgerStore         Lookup: quorum reads that settle doubts
//! ```

mod actor;

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, ready};
use std::sync::Mutex;

use engine::quota::Ledger;

pub use actor::{Ask, Counters, Ledgers, Told};

/// Compare-and-swap by team.
pub trait LedgerStore: Send + Sync + 'static {
    /// The newest that is known here without asking anybody.
    fn known(&self, team: &str) -> Option<Stored>;

    /// As it is now: no cache stands in between.
    fn read(&self, team: &str) -> impl Future<Output = Result<Stored, Unavailable>> + Send;

    /// Replaces the ledger if it is still the one that `version` names. An error says nothing about what was written.
    fn swap(
        &self,
        team: &str,
        version: &Version,
        ledger: &Ledger,
    ) -> impl Future<Output = Result<Swap, Unavailable>> + Send;

    /// Makes one that is not filled yet, unless there is one.
    fn create(&self, team: &str) -> impl Future<Output = Result<(), Unavailable>> + Send;
}

/// What a store has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// None, or none any more.
    Absent,
    /// It was made and not filled: nothing is known of what the team holds.
    Unbuilt(Version),
    Built(Versioned),
}

/// A ledger that was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Versioned {
    pub ledger: Ledger,
    pub version: Version,
}

/// Opaque to everybody but the store; `uid` tells a ledger from one that was made after it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Version {
    pub uid: String,
    pub resource_version: String,
}

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
pub struct InMemory(Mutex<BTreeMap<String, (u64, Ledger)>>);

impl InMemory {
    pub fn new(ledgers: BTreeMap<String, Ledger>) -> Self {
        Self(Mutex::new(ledgers.into_iter().map(|(team, ledger)| (team, (0, ledger))).collect()))
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, (u64, Ledger)>> {
        // Nothing panics while it holds the lock; and if something did, the map is whole between statements.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn versioned(&self, team: &str) -> Versioned {
        let (number, ledger) = self.locked().get(team).cloned().unwrap_or_default();
        Versioned { ledger, version: version(number) }
    }

    /// The ledger of a team, for whoever only looks.
    pub fn peek(&self, team: &str) -> Ledger {
        self.versioned(team).ledger
    }
}

fn version(number: impl fmt::Display) -> Version {
    Version { uid: String::new(), resource_version: number.to_string() }
}

impl LedgerStore for InMemory {
    fn known(&self, team: &str) -> Option<Stored> {
        Some(Stored::Built(self.versioned(team)))
    }

    fn read(&self, team: &str) -> impl Future<Output = Result<Stored, Unavailable>> + Send {
        ready(Ok(Stored::Built(self.versioned(team))))
    }

    fn swap(
        &self,
        team: &str,
        seen: &Version,
        ledger: &Ledger,
    ) -> impl Future<Output = Result<Swap, Unavailable>> + Send {
        let mut ledgers = self.locked();
        let (number, stored) = ledgers.entry(team.to_owned()).or_default();
        if *seen != version(*number) {
            return ready(Ok(Swap::Lost));
        }
        *number += 1;
        *stored = ledger.clone();
        ready(Ok(Swap::Done))
    }

    fn create(&self, _team: &str) -> impl Future<Output = Result<(), Unavailable>> + Send {
        ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_slower_writer_loses() {
        let store = InMemory::default();
        let (first, second) = (store.versioned("team-a"), store.versioned("team-a"));
        assert_eq!(store.swap("team-a", &first.version, &Ledger::default()).await, Ok(Swap::Done));
        assert_eq!(store.swap("team-a", &second.version, &Ledger::default()).await, Ok(Swap::Lost));
    }
}
