//! The ledger of a team: what each root holds. Pure: whoever stores it decides by compare-and-swap, and asks again with a
//! fresh copy when it lost.
//!
//! The charge of a root is `max(floor, sum of its pods)` for each resource. The floor is set when the root is admitted,
//! because there a person sees the refusal; every pod is entered before it can exist and leaves by proof. Amounts are
//! absolute and keyed by uid, so that a repeated review changes nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::amounts::{Amounts, ResourceName};
use crate::vocabulary::Class;

/// Everything a team holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ledger {
    /// By the root's uid.
    pub entries: BTreeMap<String, Entry>,
}

/// What one root holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub class: Class,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
    #[serde(default)]
    pub floor: Amounts,
    /// The floor was worked out from an instance type: the pods' real amounts replace it.
    #[serde(default)]
    pub estimated: bool,
    /// By uid; Terminating pods are still in here.
    #[serde(default)]
    pub pods: BTreeMap<String, Amounts>,
}

/// What an admission adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub root: String,
    /// The entry to make if the root has none; its amounts are added by `adds`.
    pub entry: Entry,
    pub adds: Adds,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adds {
    /// The root itself: its floor is at least this.
    Floor(Amounts),
    /// One pod.
    Pod { uid: String, amounts: Amounts },
}

/// One resource, before and after a reservation; units of the resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    pub resource: ResourceName,
    pub used: u64,
    pub after: u64,
    /// Of `after`, by workloads of the same class.
    pub class_after: u64,
    /// Of `after`, by the same person; absent when nobody is known.
    pub person_after: Option<u64>,
    pub person_class_after: Option<u64>,
}

impl Entry {
    /// What counts.
    pub fn charge(&self) -> Amounts {
        let pods = self.pods.values().fold(Amounts::default(), |sum, pod| sum.saturating_add(pod));
        match self.estimated && !self.pods.is_empty() {
            true => pods,
            false => self.floor.max(&pods),
        }
    }
}

impl Ledger {
    /// The ledger with a reservation in it. Only ever adds: lowering is for whoever has seen the persisted object.
    pub fn with(&self, reservation: &Reservation) -> Self {
        let mut after = self.clone();
        let entry = after.entries.entry(reservation.root.clone()).or_insert_with(|| reservation.entry.clone());
        // Another person's edit takes the person away; nothing gives one back.
        if entry.person != reservation.entry.person {
            entry.person = None;
        }
        match &reservation.adds {
            Adds::Floor(floor) => entry.floor = entry.floor.max(floor),
            Adds::Pod { uid, amounts } => {
                entry.pods.insert(uid.clone(), amounts.clone());
            }
        }
        after
    }

    /// A pod is gone: seen deleted, seen terminal, or proved absent.
    pub fn release_pod(&mut self, uid: &str) {
        for entry in self.entries.values_mut() {
            entry.pods.remove(uid);
        }
    }

    /// A root is gone; what its pods still hold stays until they are.
    pub fn release_root(&mut self, root: &str) {
        if let Some(entry) = self.entries.get_mut(root) {
            entry.floor = Amounts::default();
        }
        self.entries.retain(|_, entry| !entry.charge().is_empty());
    }

    pub fn used(&self, resource: &ResourceName) -> u64 {
        self.sum(resource, |_| true)
    }

    fn sum(&self, resource: &ResourceName, counts: impl Fn(&Entry) -> bool) -> u64 {
        let entries = self.entries.values().filter(|entry| counts(entry));
        entries.fold(0, |sum: u64, entry| sum.saturating_add(entry.charge().get(resource.as_str())))
    }

    /// What the reservation would change, for every resource that grows.
    pub fn growth(
        &self,
        after: &Self,
        reservation: &Reservation,
        counts: impl Fn(&ResourceName) -> bool,
    ) -> Vec<Usage> {
        let Entry { class, person, .. } = &reservation.entry;
        let amounts = match &reservation.adds {
            Adds::Floor(amounts) | Adds::Pod { amounts, .. } => amounts,
        };
        let usage = |resource: &ResourceName| Usage {
            resource: resource.clone(),
            used: self.used(resource),
            after: after.used(resource),
            class_after: after.sum(resource, |entry| entry.class == *class),
            person_after: person.as_ref().map(|_| after.sum(resource, |entry| entry.person == *person)),
            person_class_after: person
                .as_ref()
                .map(|_| after.sum(resource, |entry| entry.person == *person && entry.class == *class)),
        };
        amounts
            .iter()
            .map(|(resource, _)| resource)
            .filter(|resource| counts(resource))
            .map(usage)
            .filter(|usage| usage.after > usage.used)
            .collect()
    }

    /// The largest holders of a resource, largest first.
    pub fn holders(&self, resource: &ResourceName) -> Vec<(&Entry, u64)> {
        let mut holders: Vec<_> = self
            .entries
            .values()
            .map(|entry| (entry, entry.charge().get(resource.as_str())))
            .filter(|(_, amount)| *amount > 0)
            .collect();
        holders.sort_by(|(a, held_a), (b, held_b)| held_b.cmp(held_a).then_with(|| a.name.cmp(&b.name)));
        holders
    }
}
