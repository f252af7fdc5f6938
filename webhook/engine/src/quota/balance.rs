//! What counts: sums over a ledger, kept up to date while reservations are added, so that a ledger of thousands of entries is
//! summed once for a whole round.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Adds, Entry, Fence, Ledger, Reservation};
use crate::amounts::{Amounts, MAX, ResourceName};
use crate::vocabulary::Class;

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

/// A ledger with its sums.
#[derive(Debug, Clone, Default)]
pub struct Balance {
    ledger: Ledger,
    /// Roots that share a name.
    namesakes: BTreeMap<RootName, BTreeSet<String>>,
    totals: Totals,
}

/// Group, kind, namespace, name.
type RootName = (String, String, String, String);

/// By class and person.
type Totals = BTreeMap<(Class, Option<String>), Amounts>;

impl From<Ledger> for Balance {
    fn from(ledger: Ledger) -> Self {
        let mut balance = Self { ledger, ..Self::default() };
        for (uid, entry) in &balance.ledger.entries {
            balance.namesakes.entry(name_of(entry)).or_default().insert(uid.clone());
        }
        for uids in balance.namesakes.values() {
            add(&mut balance.totals, &charges(uids.iter().filter_map(|uid| balance.ledger.entries.get(uid))));
        }
        balance
    }
}

impl Balance {
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn into_ledger(self) -> Ledger {
        self.ledger
    }

    pub(super) fn set_fence(&mut self, fence: Fence) {
        self.ledger.fence = Some(fence);
    }

    /// What is used of everything.
    pub fn used(&self) -> Amounts {
        self.sum(|_| true)
    }

    /// Enters a reservation.
    pub fn add(&mut self, reservation: &Reservation) {
        let name = name_of(self.ledger.entries.get(&reservation.root).unwrap_or(&reservation.entry));
        let namesakes = self.namesakes.entry(name).or_default();
        namesakes.insert(reservation.root.clone());
        let before = charges(namesakes.iter().filter_map(|uid| self.ledger.entries.get(uid)));
        self.ledger.add(reservation);
        let after = charges(namesakes.iter().filter_map(|uid| self.ledger.entries.get(uid)));
        subtract(&mut self.totals, &before);
        add(&mut self.totals, &after);
    }

    /// What a reservation would change, for every resource that `counts` and of which it needs more than was promised. Most
    /// often the sum grows then. Where it does not, since another pod of that name or pods beyond the floor are counted already,
    /// it is asked about all the same: what is counted already will end, and above a limit that is no reason to let in more.
    pub fn growth(&self, reservation: &Reservation, counts: impl Fn(&ResourceName) -> bool) -> Vec<Usage> {
        let asked: Vec<&ResourceName> = reservation
            .adds
            .amounts()
            .iter()
            .map(|(resource, _)| resource)
            .filter(|resource| counts(resource))
            .collect();
        if asked.is_empty() || self.has_already(reservation) {
            return Vec::new();
        }
        let totals = self.totals_with(reservation);
        let (needs, promised) = self.needs(reservation);
        let Entry { class, person, .. } = &reservation.entry;
        let person = person.as_ref();
        let used = self.used();
        let after = sum(&totals, |_| true);
        let of_class = sum(&totals, |(of, _)| of == class);
        let of_person = sum(&totals, |(_, of)| person.is_some() && of.as_ref() == person);
        let of_both = sum(&totals, |(of_class, of)| person.is_some() && of_class == class && of.as_ref() == person);
        let usage = |resource: &ResourceName| {
            let name = resource.as_str();
            Usage {
                resource: resource.clone(),
                used: used.get(name),
                after: after.get(name),
                class_after: of_class.get(name),
                person_after: person.map(|_| of_person.get(name)),
                person_class_after: person.map(|_| of_both.get(name)),
            }
        };
        let exceeds = |resource: &str| needs.get(resource) > promised.get(resource);
        let grows = |usage: &Usage| usage.after > usage.used || exceeds(usage.resource.as_str());
        asked.into_iter().map(usage).filter(grows).collect()
    }

    /// What the root would need with the reservation, and what it has been promised.
    fn needs(&self, reservation: &Reservation) -> (Amounts, Amounts) {
        let mut entry = self.ledger.entries.get(&reservation.root).unwrap_or(&reservation.entry).clone();
        match &reservation.adds {
            Adds::Floor { amounts, .. } => (amounts.clone(), entry.floor),
            Adds::Pod { uid, pod } => {
                entry.pods.insert(uid.clone(), pod.clone());
                (entry.pods(), entry.floor)
            }
        }
    }

    /// A review that comes again.
    fn has_already(&self, reservation: &Reservation) -> bool {
        let Some(entry) = self.ledger.entries.get(&reservation.root) else { return false };
        match &reservation.adds {
            Adds::Floor { amounts, .. } => amounts.fits_within(&entry.floor),
            Adds::Pod { uid, pod } => entry.pods.get(uid) == Some(pod),
        }
    }

    fn totals_with(&self, reservation: &Reservation) -> Totals {
        let name = name_of(self.ledger.entries.get(&reservation.root).unwrap_or(&reservation.entry));
        let uids = self.namesakes.get(&name);
        let entries = uids.into_iter().flatten().filter_map(|uid| Some((uid, self.ledger.entries.get(uid)?)));
        let mut touched =
            Ledger { entries: entries.map(|(uid, entry)| (uid.clone(), entry.clone())).collect(), ..Ledger::default() };
        let mut totals = self.totals.clone();
        subtract(&mut totals, &charges(touched.entries.values()));
        touched.add(reservation);
        add(&mut totals, &charges(touched.entries.values()));
        totals
    }

    fn sum(&self, counts: impl Fn(&(Class, Option<String>)) -> bool) -> Amounts {
        sum(&self.totals, counts)
    }
}

fn name_of(Entry { group, kind, namespace, name, .. }: &Entry) -> RootName {
    (group.clone(), kind.clone(), namespace.clone(), name.clone())
}

/// What roots of one name are charged. Every pod counts for its own root; of what is kept beyond the pods only the largest,
/// since only one of these roots can exist.
fn charges<'a>(namesakes: impl Iterator<Item = &'a Entry>) -> Totals {
    let mut totals = Totals::new();
    let mut promised: BTreeMap<ResourceName, (u64, (Class, Option<String>))> = BTreeMap::new();
    let mut largest_bare: Option<((Class, Option<String>), Amounts)> = None;
    for entry in namesakes {
        let holder = (entry.class, entry.person.clone());
        let pods = entry.pods();
        for (resource, amount) in entry.promised(&pods).iter() {
            if promised.get(resource).is_none_or(|(largest, _)| amount > *largest) {
                promised.insert(resource.clone(), (amount, holder.clone()));
            }
        }
        // A pod that is a root may own more than itself, and what it owns has names of its own and may outlive it.
        let itself = entry.itself();
        add(&mut totals, &Totals::from([(holder.clone(), pods.saturating_sub(&itself))]));
        if !itself.is_empty() {
            let most = largest_bare.map(|(_, most)| most).unwrap_or_default();
            largest_bare = Some((holder, most.max(&itself)));
        }
    }
    add(&mut totals, &largest_bare.into_iter().collect());
    for (resource, (amount, holder)) in promised {
        add(&mut totals, &Totals::from([(holder, Amounts::of(resource, amount))]));
    }
    totals
}

fn sum(totals: &Totals, counts: impl Fn(&(Class, Option<String>)) -> bool) -> Amounts {
    let counted = totals.iter().filter(|(holder, _)| counts(holder));
    counted.fold(Amounts::default(), |sum, (_, amounts)| sum.saturating_add(amounts))
}

fn add(totals: &mut Totals, more: &Totals) {
    for (holder, amounts) in more {
        let total = totals.entry(holder.clone()).or_default();
        *total = total.saturating_add(amounts);
    }
}

/// A sum that has stuck at the largest number stays there: what it was before is not known any more.
fn subtract(totals: &mut Totals, less: &Totals) {
    for (holder, amounts) in less {
        let Some(total) = totals.get_mut(holder) else { continue };
        let rest = total.saturating_sub(amounts);
        *total = total
            .iter()
            .map(|(name, sum)| (name.clone(), if sum == MAX { MAX } else { rest.get(name.as_str()) }))
            .collect();
    }
}
