//! What one replica remembers of a team's ledger between rounds, in its own time. Nothing of it is shared: a replica that
//! starts again begins to wait again, and lets go later, never earlier.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Fence, Ledger};
use crate::amounts::Amounts;

/// Since this process began: no clock that anybody sets.
pub(super) type Elapsed = Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Memory {
    /// Roots and pods of the ledger that the watches have never shown, and pods that they show and the ledger does not have: since
    /// when.
    missing: BTreeMap<String, Elapsed>,
    /// Floors as they were last asked for, by root.
    floors: BTreeMap<String, Floor>,
    /// What a quorum read has not found, long after any request that could create it.
    absent: BTreeSet<String>,
    /// Pods without an entry that a quorum read has found running.
    present: BTreeSet<String>,
    /// Pods without an entry that a quorum read has not found: the watch lags.
    departed: BTreeSet<String>,
    /// The fence that was last seen, and what this replica knew then.
    seen: Option<(u64, Revision)>,
    /// What this replica meant to write over which fence: it may have been written or not, whatever was heard of it.
    claims: Vec<(u64, Revision)>,
    /// Which ledger is settling, and since when this replica has seen it do so.
    settling: Option<(String, Elapsed)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Floor {
    asked: u64,
    since: Elapsed,
    /// Every request that could have raised it is over, so that a quorum read tells.
    is_doubted: bool,
    /// What a quorum read has found that the root needs since.
    proof: Option<Proof>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Proof {
    /// It exists. What it needs the watch shows.
    Exists,
    Needs(Amounts),
}

/// What a replica decides by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Revision {
    /// Digest of the policies.
    pub policies: String,
    /// The Team's uid and `metadata.generation`.
    pub team: String,
    pub generation: i64,
}

/// Who knows more: this replica, or whoever wrote the fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    Current,
    /// The fence is to be moved on.
    Newer(Fence),
    Older,
}

impl Memory {
    /// A quorum read has answered: whether the object with this uid exists, and has not finished.
    pub fn learn(&mut self, uid: &str, runs: bool, is_stray: bool) {
        match (runs, is_stray) {
            (true, true) => drop(self.present.insert(uid.to_owned())),
            (false, true) => {
                self.present.remove(uid);
                self.departed.insert(uid.to_owned());
            }
            // The watch will show it; until then the waiting begins anew.
            (true, false) => {
                self.missing.remove(uid);
                self.prove(uid, Proof::Exists);
            }
            (false, false) => drop(self.absent.insert(uid.to_owned())),
        }
    }

    /// A quorum read has found a root that exists and has not finished, and that it needs so much. Say this where you can: a
    /// watch that is stuck shows an old size, and by that a promise would be broken.
    pub fn learn_floor(&mut self, uid: &str, needs: Amounts) {
        self.missing.remove(uid);
        self.prove(uid, Proof::Needs(needs));
    }

    fn prove(&mut self, root: &str, proof: Proof) {
        if let Some(floor) = self.floors.get_mut(root).filter(|floor| floor.is_doubted) {
            floor.proof = Some(proof);
        }
    }

    /// Once: the root may be asked to grow at any time after.
    pub(super) fn take_proof(&mut self, root: &str) -> Option<Proof> {
        let floor = self.floors.get_mut(root)?;
        floor.is_doubted = true;
        floor.proof.take()
    }

    pub(super) fn is_absent(&self, uid: &str) -> bool {
        self.absent.contains(uid)
    }

    pub(super) fn is_present(&self, uid: &str) -> bool {
        self.present.contains(uid)
    }

    /// What was found running may have ended since: whoever needs to know asks again.
    pub(super) fn forget_present(&mut self) {
        self.present.clear();
    }

    pub(super) fn has_departed(&self, uid: &str) -> bool {
        self.departed.contains(uid)
    }

    /// How long something has not been shown.
    pub(super) fn missing_for(&mut self, uid: &str, now: Elapsed) -> Duration {
        now.saturating_sub(*self.missing.entry(uid.to_owned()).or_insert(now))
    }

    /// For how long nobody has asked for a floor.
    pub(super) fn floor_stood_for(&mut self, root: &str, asked: u64, now: Elapsed) -> Duration {
        let new = Floor { asked, since: now, is_doubted: false, proof: None };
        let floor = self.floors.entry(root.to_owned()).or_insert_with(|| new.clone());
        if floor.asked != asked {
            *floor = new;
        }
        now.saturating_sub(floor.since)
    }

    pub(super) fn shown(&mut self, uid: &str) {
        self.missing.remove(uid);
    }

    /// Forgets what no longer matters.
    pub(super) fn keep(&mut self, ledger: &Ledger, strays: &BTreeSet<&str>) {
        let in_ledger: BTreeSet<&str> = ledger
            .entries
            .iter()
            .flat_map(|(root, entry)| std::iter::once(root).chain(entry.pods.keys()))
            .map(String::as_str)
            .collect();
        self.missing.retain(|uid, _| in_ledger.contains(uid.as_str()) || strays.contains(uid.as_str()));
        self.absent.retain(|uid| in_ledger.contains(uid.as_str()));
        self.floors.retain(|uid, _| ledger.entries.contains_key(uid));
        self.present.retain(|uid| strays.contains(uid.as_str()));
        self.departed.retain(|uid| strays.contains(uid.as_str()));
    }

    /// How much longer a ledger that was written anew must settle. `uid` tells one such ledger from another.
    pub fn settles_for(&mut self, uid: &str, patience: Duration, now: Elapsed) -> Duration {
        let since = match &self.settling {
            Some((known, since)) if known == uid => *since,
            Some(_) | None => {
                self.settling = Some((uid.to_owned(), now));
                now
            }
        };
        patience.saturating_sub(now.saturating_sub(since))
    }

    /// Policies have no order of their own. A replica takes its own for newer if they have changed since it last looked at the
    /// fence, or if it has just begun and read them a moment ago; and for older if the fence has moved under it. Two that both
    /// take themselves for newer agree once the slower has read what the faster has.
    pub(super) fn standing(&mut self, fence: Option<&Fence>, mine: &Revision) -> Standing {
        let number = fence.map_or(0, |fence| fence.number);
        self.claims.retain(|(over, _)| over.saturating_add(1) >= number);
        let seen = self.seen.replace((number, mine.clone())).map(|(_, before)| before);
        let Some(fence) = fence.filter(|fence| !self.knows_more(fence, seen.as_ref(), mine)) else {
            self.claims.retain(|claim| *claim != (number, mine.clone()));
            self.claims.push((number, mine.clone()));
            return Standing::Newer(mine.fence(number.saturating_add(1)));
        };
        match fence.is_of(mine) && fence.generation == mine.generation {
            true => Standing::Current,
            false => Standing::Older,
        }
    }

    /// Whether this replica knows more than whoever wrote the fence.
    fn knows_more(&self, fence: &Fence, seen: Option<&Revision>, mine: &Revision) -> bool {
        if fence.team == mine.team && fence.generation > mine.generation {
            return false;
        }
        if fence.is_of(mine) {
            return fence.generation < mine.generation;
        }
        let is_same = |by: &Revision| by.policies == mine.policies && by.team == mine.team;
        let own = self.claims.iter().find(|(over, by)| over.saturating_add(1) == fence.number && fence.is_of(by));
        let is_claimed = self.claims.iter().any(|(over, by)| *over == fence.number && is_same(by));
        let before = own.map(|(_, by)| by).or(seen);
        is_claimed || !before.is_some_and(is_same)
    }
}

impl Fence {
    fn is_of(&self, by: &Revision) -> bool {
        self.team == by.team && self.policies == by.policies
    }
}

impl Revision {
    fn fence(&self, number: u64) -> Fence {
        Fence { number, policies: self.policies.clone(), team: self.team.clone(), generation: self.generation }
    }
}
