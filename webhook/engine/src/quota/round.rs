//! One round: everything that waits is judged against one copy of the ledger, and what has ended is let go. The server and the
//! model test drive it alike: they bring the ledger and the view, write what it says, and come again if that was too late.

use std::time::Duration;

use super::memory::{Memory, Proof, Revision, Standing};
use super::{Balance, Entry, Fence, Ledger, Reservation};
use crate::amounts::Amounts;

/// A ledger as it was read.
#[derive(Debug, Clone)]
pub struct Known {
    pub ledger: Ledger,
    /// By a quorum read in this round. Nobody is refused for what was known before.
    pub fresh: bool,
}

/// What the watches of this replica show. It may lag; what it has shown to be over is over.
pub trait View {
    fn pod(&self, uid: &str) -> PodSight;
    fn root(&self, uid: &str) -> RootSight;
    /// Running pods that hold something and that the ledger does not have: they came past the gate, or the watch lags.
    fn strays(&self, ledger: &Ledger) -> Vec<Stray>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodSight {
    /// Not shown so far.
    Unknown,
    /// Terminating counts.
    Runs,
    /// Finished, or deleted.
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootSight {
    Unknown,
    /// As it is stored, it needs this much to be kept; of which generation it is, where its kind has them.
    Stands {
        floor: Amounts,
        generation: Option<i64>,
    },
    Over,
}

/// A pod that the ledger does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub reservation: Reservation,
}

/// Somebody who waits for a reservation.
pub trait Waiter {
    fn reservation(&self) -> &Reservation;
    /// What the request was evaluated with; `None` where there is but one replica.
    fn revision(&self) -> Option<&Revision>;
    /// A rehearsal is judged like the rest and leaves nothing behind.
    fn is_dry_run(&self) -> bool;
    /// Asks the policies, with what is used now.
    fn may(&mut self, balance: &Balance) -> bool;
}

/// What a waiter is told, once the round's ledger is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    Held,
    Refused,
    Later(Why),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// The ledger was lost and written anew.
    Settling,
    /// Another replica has decided by newer policies, or a newer Team.
    Behind,
}

/// Only a quorum read can tell whether it exists.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Doubt {
    pub uid: String,
    pub group: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// A pod that the view shows and the ledger does not have.
    pub is_stray: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Round {
    /// To be written before anybody is told that something is held; the rest can be told all the same.
    pub write: Option<Ledger>,
    /// In the order of the waiters.
    pub words: Vec<Word>,
    /// Somebody would be refused, or told that something is held already, for what may not be true any more: settle the doubts,
    /// read the ledger again, and hold the round again.
    pub read_again: bool,
    pub doubts: Vec<Doubt>,
    /// What was let go, and what was entered without an admission: for metrics.
    pub released: usize,
    pub adopted: usize,
    /// Of what was let go, what never came to exist.
    pub leaked: usize,
}

/// When a round is held, and by whom.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// Since this process began.
    pub now: Duration,
    /// How long a request that was let in may still take to store its object.
    pub patience: Duration,
    /// What this replica decides by now; `None` where there is but one replica.
    pub mine: Option<&'a Revision>,
}

/// Holds a round.
pub fn round<W: Waiter>(
    known: &Known,
    view: &impl View,
    memory: &mut Memory,
    at: &Moment<'_>,
    waiting: &mut [W],
) -> Round {
    let mut round = Round::default();
    let mut ledger = known.ledger.clone();
    if !is_of_a_later_team(&ledger, at.mine) {
        round.let_go(&mut ledger, view, memory, at);
    }
    let strays = view.strays(&ledger);
    memory.keep(&known.ledger, &strays.iter().map(|stray| stray.uid.as_str()).collect());
    let mut writing = Balance::from(ledger);
    let (adopted, unproved) = round.adopt(&mut writing, strays, memory);
    if writing.ledger().settling {
        round.words = waiting.iter().map(|_| Word::Later(Why::Settling)).collect();
    } else {
        let is_current = move_fence(&mut writing, memory, at.mine);
        round.judge(&mut writing, &unproved, is_current.then_some(at.mine), waiting);
        round.read_again = round.words.contains(&Word::Refused) && (!known.fresh || !unproved.is_empty());
    }
    if round.read_again {
        // What was found in another round may have ended before anybody of these asked.
        let found_before = adopted.iter().filter(|_| !known.fresh);
        round.doubts.extend(unproved.iter().chain(found_before).take(MAX_PROOFS).map(Stray::doubt));
    } else {
        memory.forget_present();
        round.doubt_strays(&unproved, memory, at);
    }
    let ledger = writing.into_ledger();
    round.write = (ledger != known.ledger).then_some(ledger);
    // Held already, by a ledger that may not be there any more: no write would show that.
    let is_held = |(waiter, word): (&W, &Word)| *word == Word::Held && !waiter.is_dry_run();
    round.read_again |= round.write.is_none() && !known.fresh && waiting.iter().zip(&round.words).any(is_held);
    round
}

/// Quorum reads for one round; the rest is settled in the next.
const MAX_PROOFS: usize = 32;

impl Round {
    /// Lets go of what is over, and lowers floors to what is stored.
    fn let_go(&mut self, ledger: &mut Ledger, view: &impl View, memory: &mut Memory, at: &Moment<'_>) {
        for (root, entry) in &mut ledger.entries {
            let pods: Vec<String> = entry.pods.keys().cloned().collect();
            for uid in pods {
                let over = match view.pod(&uid) {
                    PodSight::Over => true,
                    PodSight::Runs => {
                        memory.shown(&uid);
                        false
                    }
                    PodSight::Unknown => self.is_lost(&uid, entry, memory, at),
                };
                if over {
                    entry.pods.remove(&uid);
                    self.released += 1;
                }
            }
            if !entry.floor.is_empty() {
                self.lower(root, entry, view, memory, at);
            }
        }
        ledger.entries.retain(|_, entry| !entry.is_empty());
    }

    fn lower(&mut self, root: &str, entry: &mut Entry, view: &impl View, memory: &mut Memory, at: &Moment<'_>) {
        let stood = memory.floor_stood_for(root, entry.asked, at.now);
        match view.root(root) {
            RootSight::Over => entry.floor = Amounts::default(),
            RootSight::Stands { floor, generation } => {
                memory.shown(root);
                // The request that asked for the floor is over: its object is stored, or it came to nothing.
                let is_stored = generation.zip(entry.generation).is_some_and(|(stored, asked)| stored >= asked);
                if is_stored {
                    entry.floor = entry.floor.min(&floor);
                } else if stood >= at.patience && !entry.floor.fits_within(&floor) {
                    self.lower_by_proof(root, entry, &floor, memory);
                }
            }
            RootSight::Unknown => {
                if self.is_lost(root, entry, memory, at) {
                    entry.floor = Amounts::default();
                }
            }
        }
    }

    /// The watch may show a size from before it got stuck.
    fn lower_by_proof(&mut self, root: &str, entry: &mut Entry, shown: &Amounts, memory: &mut Memory) {
        match memory.take_proof(root) {
            Some(Proof::Needs(needs)) => entry.floor = entry.floor.min(&needs),
            Some(Proof::Exists) => entry.floor = entry.floor.min(shown),
            None if self.doubts.len() < MAX_PROOFS => self.doubts.push(doubt(root, entry)),
            None => {}
        }
    }

    /// Never shown for longer than any request takes, and a quorum read has not found it.
    fn is_lost(&mut self, uid: &str, entry: &Entry, memory: &mut Memory, at: &Moment<'_>) -> bool {
        if memory.is_absent(uid) {
            self.leaked += 1;
            return true;
        }
        if memory.missing_for(uid, at.now) >= at.patience && self.doubts.len() < MAX_PROOFS {
            self.doubts.push(doubt(uid, entry));
        }
        false
    }

    /// Enters what a quorum read has found; the rest counts, and is not written.
    fn adopt(&mut self, writing: &mut Balance, mut strays: Vec<Stray>, memory: &Memory) -> (Vec<Stray>, Vec<Stray>) {
        strays.retain(|stray| !memory.has_departed(&stray.uid));
        let (found, unproved): (Vec<Stray>, Vec<Stray>) =
            strays.into_iter().partition(|stray| memory.is_present(&stray.uid));
        found.iter().for_each(|stray| writing.add(&stray.reservation));
        self.adopted = found.len();
        (found, unproved)
    }

    /// What the ledger has not had for so long has come past the gate, whether somebody is refused for it or not.
    fn doubt_strays(&mut self, unproved: &[Stray], memory: &mut Memory, at: &Moment<'_>) {
        let unasked = MAX_PROOFS.saturating_sub(self.doubts.len());
        let overdue = unproved.iter().filter(|stray| memory.missing_for(&stray.uid, at.now) >= at.patience);
        self.doubts.extend(overdue.take(unasked).map(Stray::doubt));
    }

    /// Each in turn, with what those before it have taken.
    fn judge<W: Waiter>(
        &mut self,
        writing: &mut Balance,
        unproved: &[Stray],
        by: Option<Option<&Revision>>,
        waiting: &mut [W],
    ) {
        let mut counting = writing.clone();
        unproved.iter().for_each(|stray| counting.add(&stray.reservation));
        for waiter in waiting {
            let word = match by {
                // Whoever was evaluated with what has been replaced since is evaluated again.
                Some(revision) if revision == waiter.revision() => {
                    // What came past the gate may hide what a reservation adds, and may end at any time.
                    match (unproved.is_empty() || waiter.may(writing)) && waiter.may(&counting) {
                        true => Word::Held,
                        false => Word::Refused,
                    }
                }
                Some(_) | None => Word::Later(Why::Behind),
            };
            if word == Word::Held && !waiter.is_dry_run() {
                counting.add(waiter.reservation());
                writing.add(waiter.reservation());
            }
            self.words.push(word);
        }
    }
}

/// A Team as it was does not list the namespaces that came since: what was let in there would be taken for another team's.
fn is_of_a_later_team(ledger: &Ledger, mine: Option<&Revision>) -> bool {
    let is_later = |(fence, mine): (&Fence, &Revision)| fence.team != mine.team || fence.generation > mine.generation;
    ledger.fence.as_ref().zip(mine).is_some_and(is_later)
}

/// Whether this replica may decide now; moves the fence where it knows more than whoever decided last.
fn move_fence(writing: &mut Balance, memory: &mut Memory, mine: Option<&Revision>) -> bool {
    let Some(mine) = mine else { return true };
    match memory.standing(writing.ledger().fence.as_ref(), mine) {
        Standing::Current => true,
        Standing::Newer(fence) => {
            writing.set_fence(fence);
            true
        }
        Standing::Older => false,
    }
}

impl Stray {
    fn doubt(&self) -> Doubt {
        let Self { uid, namespace, name, .. } = self;
        Doubt {
            uid: uid.clone(),
            group: String::new(),
            kind: "Pod".to_owned(),
            namespace: namespace.clone(),
            name: name.clone(),
            is_stray: true,
        }
    }
}

/// A pod of the entry, or its root.
fn doubt(uid: &str, entry: &Entry) -> Doubt {
    let of = |group: &str, kind: &str, name: &str| Doubt {
        uid: uid.to_owned(),
        group: group.to_owned(),
        kind: kind.to_owned(),
        namespace: entry.namespace.clone(),
        name: name.to_owned(),
        is_stray: false,
    };
    match entry.pods.get(uid) {
        Some(pod) => of("", "Pod", &pod.name),
        None => of(&entry.group, &entry.kind, &entry.name),
    }
}
