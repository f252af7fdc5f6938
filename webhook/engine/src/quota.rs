//! The ledger of a team: what each root holds, and how that changes. Pure: whoever stores a ledger decides by
//! compare-and-swap, and asks again with a fresh copy when it lost.
//!
//! ```text
//!  Ledger ----------> Balance: what counts, and what a reservation would make of it
//!     |                  ^
//!  round (one pass) -----+---- Waiter: may it, with this balance?
//!     |    ^
//!     |    +-- View: what the watches of this replica show; Memory: since when they have not shown something
//!     v
//!  the ledger to be written, a word for each waiter, and doubts that only a quorum read can settle
//! ```
//!
//! Why no admission goes above a limit: every pod that was admitted is in the ledger before it can exist and until after it is
//! gone. It enters by the compare-and-swap that justified it against everything that had entered before; it leaves when the
//! watch has shown it finished or deleted, or when no request that could create it can be under way any more and a quorum read
//! does not find it. A watch that lags only adds what the ledger has let go already, so it errs to refusing; and no refusal is
//! final before a quorum read. The rest of the argument is the model test (`model.rs`).
//!
//! The charge of a root is `max(floor, sum of its pods)` for each resource. The floor is set when the root is admitted,
//! because there a person sees the refusal. Admission only raises it; only what the watch shows of the stored object lowers
//! it. Amounts are absolute and keyed by uid, so that a repeated review changes nothing.
//!
//! Two objects of one name never exist at once. So of roots of one name only one floor counts, and of pods of one name only
//! the largest: somebody whom another webhook refuses again and again leaves no pile of reservations behind.

mod balance;
mod memory;
#[cfg(test)]
mod model;
mod observed;
mod round;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::balance::{Balance, Usage};
pub use self::memory::{Memory, Revision};
pub use self::observed::{Observed, complete, needs, rebuilt};
pub use self::round::{Doubt, Known, Moment, PodSight, RootSight, Round, Stray, View, Waiter, Why, Word, round};
use crate::amounts::Amounts;
use crate::vocabulary::Class;

/// Everything a team holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ledger {
    /// What each root holds, by the root's uid.
    pub entries: BTreeMap<String, Entry>,
    /// Which policies and which Team decided last. Who knows older ones reserves nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// Written anew while requests may have been under way that the ledger before it had let in: until those are over, nothing
    /// is reserved.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub settling: bool,
    /// What a newer version of the gate has written.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// What one root holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    #[schemars(with = "String")]
    pub class: Class,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
    /// What is kept for the root, whether its pods are there or not; in units of the resource.
    #[serde(default, skip_serializing_if = "Amounts::is_empty")]
    pub floor: Amounts,
    /// The `metadata.generation` that the floor comes from: once an object of that generation is stored, it decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// How often the floor was asked for. Each time the request may be under way still, whatever the stored object says: nobody
    /// lowers the floor before that is over.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub asked: u64,
    /// The floor was worked out from an instance type: the pods' real amounts replace it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// By uid; Terminating pods are still in here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pods: BTreeMap<String, HeldPod>,
    /// What a newer version of the gate has written.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A pod that was let in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeldPod {
    pub name: String,
    /// In units of the resource.
    pub amounts: Amounts,
}

/// Tells older policies and Teams from newer ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fence {
    /// Grows with every change.
    pub number: u64,
    /// Digest of the policies.
    pub policies: String,
    /// The Team's uid and `metadata.generation`.
    pub team: String,
    pub generation: i64,
}

/// What an admission adds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reservation {
    pub root: String,
    /// The entry to make if the root has none; its amounts are added by `adds`.
    pub entry: Entry,
    pub adds: Adds,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Adds {
    /// The root itself: its floor is at least this, by the object of this generation.
    Floor { amounts: Amounts, generation: Option<i64> },
    /// One pod.
    Pod { uid: String, pod: HeldPod },
}

impl Adds {
    pub fn amounts(&self) -> &Amounts {
        match self {
            Self::Floor { amounts, .. } => amounts,
            Self::Pod { pod, .. } => &pod.amounts,
        }
    }
}

impl Entry {
    /// An entry that holds nothing yet.
    pub fn new(kind: &str, namespace: &str, name: &str, class: Class) -> Self {
        Self {
            group: String::new(),
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            class,
            person: None,
            floor: Amounts::default(),
            generation: None,
            asked: 0,
            estimated: false,
            pods: BTreeMap::new(),
            unknown: Map::new(),
        }
    }

    /// What its pods hold; of two with one name, the larger.
    fn pods(&self) -> Amounts {
        let mut by_name: BTreeMap<&str, Amounts> = BTreeMap::new();
        for pod in self.pods.values() {
            let largest = by_name.entry(&pod.name).or_default();
            *largest = largest.max(&pod.amounts);
        }
        by_name.values().fold(Amounts::default(), |sum, pod| sum.saturating_add(pod))
    }

    /// Of what its pods hold, what the root itself does, if it is a pod.
    fn itself(&self) -> Amounts {
        let is_itself = |pod: &&HeldPod| self.kind == "Pod" && self.group.is_empty() && pod.name == self.name;
        self.pods.values().filter(is_itself).fold(Amounts::default(), |most, pod| most.max(&pod.amounts))
    }

    /// What is kept beyond what its pods hold.
    fn promised(&self, pods: &Amounts) -> Amounts {
        match self.estimated && !self.pods.is_empty() {
            true => Amounts::default(),
            false => self.floor.saturating_sub(pods),
        }
    }

    /// What counts, if no other root of this name holds anything.
    pub fn charge(&self) -> Amounts {
        let pods = self.pods();
        pods.saturating_add(&self.promised(&pods))
    }

    fn is_empty(&self) -> bool {
        self.floor.is_empty() && self.pods.is_empty()
    }
}

impl Ledger {
    /// Enters a reservation. Only ever adds: lowering is for whoever has seen the persisted object.
    pub fn add(&mut self, reservation: &Reservation) {
        let entry = self.entries.entry(reservation.root.clone()).or_insert_with(|| reservation.entry.clone());
        // Another person's edit takes the person away; nothing gives one back.
        if entry.person != reservation.entry.person {
            entry.person = None;
        }
        match &reservation.adds {
            Adds::Floor { amounts, generation } => {
                entry.floor = entry.floor.max(amounts);
                // Of two requests that are under way, the later decides; what says nothing is waited for.
                entry.generation = generation.map(|generation| entry.generation.unwrap_or(generation).max(generation));
                entry.asked = entry.asked.saturating_add(1);
            }
            Adds::Pod { uid, pod } => {
                entry.pods.insert(uid.clone(), pod.clone());
            }
        }
    }

    /// What pods hold, without what is kept for others.
    pub fn of_pods(&self) -> Amounts {
        self.entries.values().fold(Amounts::default(), |sum, entry| sum.saturating_add(&entry.pods()))
    }

    /// Whether some entry has the pod.
    #[cfg(test)]
    pub(crate) fn holds_pod(&self, uid: &str) -> bool {
        self.entries.values().any(|entry| entry.pods.contains_key(uid))
    }

    /// The largest holders of a resource, largest first.
    pub fn holders(&self, resource: &str) -> Vec<(&Entry, u64)> {
        let mut holders: Vec<_> = self
            .entries
            .values()
            .map(|entry| (entry, entry.charge().get(resource)))
            .filter(|(_, amount)| *amount > 0)
            .collect();
        holders.sort_by(|(a, held_a), (b, held_b)| held_b.cmp(held_a).then_with(|| a.name.cmp(&b.name)));
        holders
    }
}
