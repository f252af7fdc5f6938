//! What the watches show of one team, from the cluster that decisions read.

use std::collections::HashSet;

use serde_json::Value;

use super::memory::Revision;
use super::round::{PodSight, RootSight, Stray, View};
use super::{Adds, Entry, HeldPod, Ledger, Reservation};
use crate::amounts::Amounts;
use crate::cluster::{Cluster, Meta, StoredObject, is_finished};
use crate::facts::class_of;
use crate::facts::kinds::Kinds;
use crate::mutation::label;
use crate::pipeline::counted;
use crate::stamp::{self, Submitter};
use crate::team::Team;
use crate::vocabulary::Class;

/// One team in one copy of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    pub cluster: &'a Cluster,
    pub team: &'a Team,
    pub kinds: &'a Kinds,
}

/// Owners between a pod and its root; more is a loop.
const MOST_OWNERS: usize = 16;

impl View for Observed<'_> {
    fn pod(&self, uid: &str) -> PodSight {
        match self.cluster.of_uid(uid) {
            Some(pod) if self.is_ours(pod) && !is_finished(&pod.object) => PodSight::Runs,
            Some(_) => PodSight::Over,
            None if self.cluster.has_departed(uid) => PodSight::Over,
            None => PodSight::Unknown,
        }
    }

    fn root(&self, uid: &str) -> RootSight {
        match self.cluster.of_uid(uid) {
            Some(root) if self.is_ours(root) => RootSight::Stands {
                floor: counted(root.holds(self.kinds), self.team),
                generation: root.meta.generation,
            },
            Some(_) => RootSight::Over,
            None if self.cluster.has_departed(uid) => RootSight::Over,
            None => RootSight::Unknown,
        }
    }

    fn strays(&self, ledger: &Ledger) -> Vec<Stray> {
        let held: HashSet<&String> = ledger.entries.values().flat_map(|entry| entry.pods.keys()).collect();
        let pods = self.cluster.objects().filter(|stored| is_pod(stored) && self.is_ours(stored));
        let strays = pods.filter(|pod| !held.contains(&pod.meta.uid)).filter_map(|pod| self.stray(pod, ledger));
        let mut strays: Vec<Stray> = strays.collect();
        strays.sort_by(|a, b| a.uid.cmp(&b.uid));
        strays
    }
}

impl<'a> Observed<'a> {
    /// Of a team that was declared elsewhere since, it is no longer ours.
    fn is_ours(&self, stored: &StoredObject) -> bool {
        self.team.spec.namespaces.contains(&stored.meta.namespace)
    }

    fn reserves(&self, stored: &StoredObject) -> bool {
        self.kinds.reserves(&stored.meta.group, &stored.meta.kind)
    }

    fn stray(&self, pod: &StoredObject, ledger: &Ledger) -> Option<Stray> {
        let amounts = counted(pod.holds(self.kinds), self.team);
        if amounts.is_empty() {
            return None;
        }
        let uid = pod.meta.uid.clone();
        let root = self.root_of(pod);
        // What the ledger knows of the root it knows better than its pods do.
        let entry = ledger.entries.get(&root.meta.uid).cloned().unwrap_or_else(|| self.entry(root, pod));
        let held = HeldPod { name: pod.meta.name.clone(), amounts };
        Some(Stray {
            uid: uid.clone(),
            namespace: pod.meta.namespace.clone(),
            name: pod.meta.name.clone(),
            reservation: Reservation { root: root.meta.uid.clone(), entry, adds: Adds::Pod { uid, pod: held } },
        })
    }

    /// The topmost owner that reserves; the pod itself if it has none.
    fn root_of(&self, pod: &'a StoredObject) -> &'a StoredObject {
        let (mut root, mut at) = (pod, pod);
        for _ in 0..MOST_OWNERS {
            let owner = at.meta.controller().and_then(|owner| self.cluster.of_uid(&owner.uid));
            let Some(owner) = owner else { break };
            if self.reserves(owner) {
                root = owner;
            }
            at = owner;
        }
        root
    }

    /// The stamps are believed as far as caps for each person and the text of a refusal go, and no further.
    fn entry(&self, root: &StoredObject, pod: &StoredObject) -> Entry {
        let stamp = [root, pod].into_iter().find_map(|stored| Submitter::parse(stored.meta.stamp.as_deref()?));
        let class =
            label(&pod.object, stamp::CLASS).and_then(Class::of_id).unwrap_or_else(|| class_of(self.kinds, root));
        Entry {
            group: root.meta.group.clone(),
            person: stamp.filter(|stamp| stamp.team == self.team.name).and_then(|stamp| stamp.person),
            ..Entry::new(&root.meta.kind, &root.meta.namespace, &root.meta.name, class)
        }
    }
}

/// What a stored object needs of its team's quota.
pub fn needs(object: Value, team: &Team, kinds: &Kinds) -> Amounts {
    let meta = Meta::read(&object, None);
    counted(StoredObject::new(meta, object).holds(kinds), team)
}

/// A ledger made from what is stored, for one that was lost: every pod that runs, and for every root what it needs now.
/// `observed` must hold the pods of a quorum read.
pub fn rebuilt(observed: &Observed<'_>) -> Ledger {
    let mut ledger = Ledger::default();
    complete(&mut ledger, observed);
    ledger
}

/// Enters whatever is stored and the ledger does not have: what was under way when it was made anew has been stored since, pods
/// and what roots need. `observed` must hold the pods of a quorum read.
pub fn complete(ledger: &mut Ledger, observed: &Observed<'_>) {
    for stray in observed.strays(ledger) {
        ledger.add(&stray.reservation);
    }
    let roots = observed.cluster.objects().filter(|stored| {
        !is_pod(stored) && observed.is_ours(stored) && observed.reserves(stored) && is_topmost(observed, stored)
    });
    for root in roots {
        let amounts = counted(root.holds(observed.kinds), observed.team);
        let kept = ledger.entries.get(&root.meta.uid).map(|entry| &entry.floor);
        if !amounts.fits_within(kept.unwrap_or(&Amounts::default())) {
            let generation = root.meta.generation;
            let known = ledger.entries.get(&root.meta.uid).cloned();
            let entry = known.unwrap_or_else(|| observed.entry(root, root));
            let adds = Adds::Floor { amounts, generation };
            ledger.add(&Reservation { root: root.meta.uid.clone(), entry, adds });
        }
    }
}

fn is_topmost(observed: &Observed<'_>, stored: &StoredObject) -> bool {
    std::ptr::eq(observed.root_of(stored), stored)
}

fn is_pod(stored: &StoredObject) -> bool {
    stored.meta.kind == "Pod" && stored.meta.group.is_empty()
}

impl Team {
    /// What a decision on this team's quota depends on.
    pub fn quota_revision(&self, policies: &str) -> Revision {
        Revision {
            policies: policies.to_owned(),
            team: self.revision.uid.clone(),
            generation: self.revision.generation,
        }
    }
}
