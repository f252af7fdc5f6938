//! A replica: what it knows, and the steps in which its actor works. This is the server's actor without its transport; between
//! two of its steps anything may happen, and it may die.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::{
    Balance, Doubt, Known, Ledger, Memory, Moment, PodSight, Reservation, Revision, RootSight, Stray, View, Waiter,
    Word, round,
};
use super::setup::{Ask, Mutant, Setup, Uid};
use super::world::{Copy, Object, Phase, State, World};
use crate::amounts::Amounts;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Replica {
    pub(super) up: bool,
    pub(super) memory: Memory,
    /// How many of an object's states the watch has shown.
    pub(super) sight: BTreeMap<Uid, usize>,
    /// Came and went while the watch was broken.
    pub(super) missed: BTreeSet<Uid>,
    pub(super) known: Option<Copy>,
    /// Policies and generation of the Team.
    pub(super) knows: (usize, usize),
    /// It has written what it decides by: before that nobody can tell its policies from newer ones.
    pub(super) has_looked: bool,
    pub(super) queue: Vec<Waiting>,
    pub(super) job: Job,
}

/// What the actor does next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Job {
    Idle,
    Settle { waiting: Vec<Waiting>, doubts: Vec<Doubt>, then_read: bool, over_before: BTreeSet<Uid> },
    Read { waiting: Vec<Waiting>, over_before: BTreeSet<Uid> },
    Swap { told: Vec<(Waiting, Word)>, seen: Option<u64>, write: Ledger, doubts: Vec<Doubt>, is_round: bool },
    Tell { told: Vec<(Waiting, Word)>, doubts: Vec<Doubt> },
}

/// A request that waits for a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    pub(super) ask: usize,
    pub(super) attempt: u8,
    pub(super) reservation: Reservation,
    pub(super) knows: (usize, usize),
    pub(super) revision: Revision,
    pub(super) limit: Amounts,
    pub(super) dry_run: bool,
}

impl Waiter for Waiting {
    fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    fn revision(&self) -> Option<&Revision> {
        Some(&self.revision)
    }

    fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    fn may(&mut self, balance: &Balance) -> bool {
        balance
            .growth(&self.reservation, |_| true)
            .iter()
            .all(|usage| usage.after <= self.limit.get(usage.resource.as_str()))
    }
}

/// What a replica's watches show.
pub(super) struct Sight<'a> {
    pub(super) objects: &'a BTreeMap<Uid, Object>,
    pub(super) sight: &'a BTreeMap<Uid, usize>,
    pub(super) setup: &'a Setup,
}

impl Sight<'_> {
    pub(super) fn of(&self, uid: &str) -> Option<&State> {
        let uid = Uid::parse(uid);
        let shown = *self.sight.get(&uid)?;
        self.objects.get(&uid)?.history.get(shown.checked_sub(1)?)
    }
}

impl View for Sight<'_> {
    fn pod(&self, uid: &str) -> PodSight {
        match self.of(uid) {
            None => PodSight::Unknown,
            Some(State::Runs { terminating: true }) if self.setup.mutant == Some(Mutant::CountsTerminatingAsGone) => {
                PodSight::Over
            }
            Some(State::Runs { .. }) => PodSight::Runs,
            Some(State::Finished | State::Gone | State::Stands { .. }) => PodSight::Over,
        }
    }

    fn root(&self, uid: &str) -> RootSight {
        match self.of(uid) {
            None => RootSight::Unknown,
            Some(State::Stands { floor, generation }) => {
                RootSight::Stands { floor: floor.clone(), generation: *generation }
            }
            Some(State::Finished | State::Gone) => RootSight::Over,
            // A bare pod is its own root, and keeps nothing beyond itself.
            Some(State::Runs { .. }) => RootSight::Stands { floor: Amounts::default(), generation: None },
        }
    }

    fn strays(&self, ledger: &Ledger) -> Vec<Stray> {
        let uids = self.sight.keys().filter(|uid| self.objects[uid].is_pod());
        let shown = uids.filter(|uid| {
            let uid = uid.to_string();
            self.pod(&uid) == PodSight::Runs && !ledger.holds_pod(&uid)
        });
        let stray = |uid: &Uid| {
            let object = &self.objects[uid];
            let (uid, reservation) = (*uid, object.reservation(self.setup, *uid));
            Stray { uid: uid.to_string(), namespace: "ns".to_owned(), name: object.name.clone(), reservation }
        };
        shown.map(stray).collect()
    }
}

impl Replica {
    pub(super) fn new() -> Self {
        Self {
            up: true,
            memory: Memory::default(),
            sight: BTreeMap::new(),
            missed: BTreeSet::new(),
            known: None,
            knows: (0, 0),
            has_looked: false,
            queue: Vec::new(),
            job: Job::Idle,
        }
    }

    pub(super) fn waits(&self, ask: usize) -> bool {
        self.queue.iter().any(|waiting| waiting.ask == ask) || self.job.waits(ask)
    }

    pub(super) fn has_work(&self) -> bool {
        self.job != Job::Idle || !self.queue.is_empty()
    }

    pub(super) fn is_swapping(&self) -> bool {
        matches!(self.job, Job::Swap { .. })
    }

    /// Keeps the newest; what is gone is gone.
    pub(super) fn note(&mut self, copy: Option<Copy>) {
        let newest = self.known.as_ref().map_or(0, |copy| copy.version);
        if copy.as_ref().is_none_or(|copy| copy.version > newest) {
            self.known = copy;
        }
    }
}

impl Job {
    fn waits(&self, ask: usize) -> bool {
        match self {
            Self::Idle => false,
            Self::Settle { waiting, .. } | Self::Read { waiting, .. } => waiting.iter().any(|w| w.ask == ask),
            Self::Swap { told, .. } | Self::Tell { told, .. } => told.iter().any(|(w, _)| w.ask == ask),
        }
    }
}

impl World {
    pub(super) fn queue(&mut self, setup: &Setup, ask: usize, to: usize) {
        let reservation = self.reservation(setup, ask);
        let knows = self.replicas[to].knows;
        let waiting = Waiting {
            ask,
            attempt: self.requests[ask].attempt,
            reservation,
            knows,
            revision: Self::revision(knows),
            limit: setup.limits[knows.1].clone(),
            dry_run: matches!(setup.script[ask], Ask::Pod { dry_run: true, .. }),
        };
        self.replicas[to].queue.push(waiting);
    }

    /// A look in the background.
    pub(super) fn tick(&mut self, setup: &Setup, index: usize) -> Result<(), String> {
        match self.replicas[index].known.clone() {
            Some(copy) => self.hold(setup, index, copy, false, Vec::new(), BTreeSet::new()),
            None => self.read(setup, index, Vec::new(), BTreeSet::new()),
        }
    }

    /// The actor's next step. `unanswered`: nobody hears what became of the swap.
    pub(super) fn work(&mut self, setup: &Setup, index: usize, unanswered: Option<bool>) -> Result<(), String> {
        match std::mem::replace(&mut self.replicas[index].job, Job::Idle) {
            Job::Idle => self.begin(setup, index),
            Job::Settle { waiting, doubts, then_read, over_before } => {
                self.settle(setup, index, &doubts);
                if then_read {
                    self.replicas[index].job = Job::Read { waiting, over_before };
                }
                Ok(())
            }
            Job::Read { waiting, over_before } => self.read(setup, index, waiting, over_before),
            Job::Swap { told, seen, write, doubts, is_round } => {
                let swapped = unanswered != Some(false) && self.swap(setup, index, &told, seen, &write)?;
                self.swapped(index, swapped && unanswered.is_none(), told, doubts, is_round);
                Ok(())
            }
            Job::Tell { told, doubts } => {
                self.tell(told);
                if !doubts.is_empty() {
                    let (waiting, over_before) = (Vec::new(), BTreeSet::new());
                    self.replicas[index].job = Job::Settle { waiting, doubts, then_read: false, over_before };
                }
                Ok(())
            }
        }
    }

    fn begin(&mut self, setup: &Setup, index: usize) -> Result<(), String> {
        let waiting = std::mem::take(&mut self.replicas[index].queue);
        let over_before = self.objects.iter().filter(|(_, o)| !o.runs()).map(|(uid, _)| *uid).collect();
        match self.replicas[index].known.clone() {
            Some(copy) => self.hold(setup, index, copy, false, waiting, over_before),
            None => self.read(setup, index, waiting, over_before),
        }
    }

    fn settle(&mut self, setup: &Setup, index: usize, doubts: &[Doubt]) {
        for Doubt { uid, is_stray, .. } in doubts {
            let found = self.objects.get(&Uid::parse(uid));
            let mut runs = found.is_some_and(|object| object.runs() || matches!(object.state(), State::Stands { .. }));
            if setup.mutant == Some(Mutant::BelievesAbsenceUnproved) && !is_stray {
                runs = false;
            }
            let memory = &mut self.replicas[index].memory;
            match found.map(Object::state) {
                Some(State::Stands { floor, .. }) if runs && setup.mutant != Some(Mutant::BelievesAStuckWatch) => {
                    memory.learn_floor(uid, floor.clone())
                }
                _ => memory.learn(uid, runs, *is_stray),
            }
        }
    }

    fn read(
        &mut self,
        setup: &Setup,
        index: usize,
        waiting: Vec<Waiting>,
        over_before: BTreeSet<Uid>,
    ) -> Result<(), String> {
        self.replicas[index].note(self.stored.clone());
        if let Some(copy) = self.stored.clone() {
            return self.hold(setup, index, copy, true, waiting, over_before);
        }
        // It is lost. What was let in by it may still come.
        let mut write = Ledger::default();
        self.listed(setup, &mut write);
        write.settling = true;
        let told = waiting.into_iter().map(|waiting| (waiting, Word::Refused)).collect();
        self.replicas[index].job = Job::Swap { told, seen: None, write, doubts: Vec::new(), is_round: false };
        Ok(())
    }

    fn hold(
        &mut self,
        setup: &Setup,
        index: usize,
        copy: Copy,
        fresh: bool,
        mut waiting: Vec<Waiting>,
        over_before: BTreeSet<Uid>,
    ) -> Result<(), String> {
        let now = Duration::from_secs(self.now);
        let patience = Duration::from_secs(setup.patience);
        if copy.ledger.settling {
            let uid = copy.uid.to_string();
            if self.replicas[index].memory.settles_for(&uid, patience, now).is_zero() {
                return self.end_settling(setup, index, copy, waiting);
            }
        }
        let patience = if setup.mutant == Some(Mutant::WaitsForNothing) { Duration::ZERO } else { patience };
        let known = Known { ledger: copy.ledger.clone(), fresh };
        let revision = Self::revision(self.replicas[index].knows);
        let fence = known.ledger.fence.clone();
        let mine = match (setup.mutant, fence) {
            (Some(Mutant::IgnoresTheFence), _) => None,
            _ => Some(&revision),
        };
        let moment = Moment { now, patience, mine };
        let Replica { memory, sight, .. } = &mut self.replicas[index];
        let view = Sight { objects: &self.objects, sight, setup };
        let held = match mine {
            Some(_) => round(&known, &view, memory, &moment, &mut waiting),
            None => {
                let mut unfenced: Vec<Unfenced> = waiting.iter().cloned().map(Unfenced).collect();
                round(&known, &view, memory, &moment, &mut unfenced)
            }
        };
        let by_old_news = setup.mutant == Some(Mutant::RefusesByOldNews);
        if held.read_again && !by_old_news {
            if fresh && held.doubts.is_empty() {
                return Err("a round that was held with fresh news asks for more".to_owned());
            }
            self.replicas[index].job = Job::Settle { waiting, doubts: held.doubts, then_read: true, over_before };
            return Ok(());
        }
        self.check_refusals(
            setup,
            index,
            &copy,
            fresh,
            &waiting,
            &held.words,
            held.write.as_ref().unwrap_or(&copy.ledger),
            &over_before,
        )?;
        let told: Vec<(Waiting, Word)> = waiting.into_iter().zip(held.words).collect();
        let doubts = held.doubts;
        self.replicas[index].job = match held.write {
            Some(mut write) => {
                if setup.mutant == Some(Mutant::ForgetsAPod) {
                    let first =
                        write.entries.iter().find(|(_, entry)| entry.pods.len() > 1).map(|(uid, _)| uid.clone());
                    if let Some(entry) = first.and_then(|uid| write.entries.get_mut(&uid)) {
                        entry.pods.pop_first();
                    }
                }
                if setup.mutant == Some(Mutant::AnswersBeforeTheSwap) {
                    self.tell(told.clone());
                }
                Job::Swap { told, seen: Some(copy.version), write, doubts, is_round: true }
            }
            None => {
                self.check_held_already(setup, &told)?;
                Job::Tell { told, doubts }
            }
        };
        Ok(())
    }

    /// Whatever was under way when the ledger was lost has come or will never come.
    fn end_settling(&mut self, setup: &Setup, index: usize, copy: Copy, waiting: Vec<Waiting>) -> Result<(), String> {
        let mut write = copy.ledger;
        if setup.mutant != Some(Mutant::SettlesUnseen) {
            self.listed(setup, &mut write);
        }
        write.settling = false;
        let told = waiting.into_iter().map(|waiting| (waiting, Word::Refused)).collect();
        self.replicas[index].job =
            Job::Swap { told, seen: Some(copy.version), write, doubts: Vec::new(), is_round: false };
        Ok(())
    }

    /// Compare-and-swap.
    fn swap(
        &mut self,
        setup: &Setup,
        index: usize,
        told: &[(Waiting, Word)],
        seen: Option<u64>,
        write: &Ledger,
    ) -> Result<bool, String> {
        let stored = self.stored.as_ref().map(|copy| copy.version);
        if stored != seen && setup.mutant != Some(Mutant::SwapsBlindly) {
            return Ok(false);
        }
        self.check_held(setup, index, told, write)?;
        self.version += 1;
        let uid = self.stored.as_ref().map_or(self.version, |copy| copy.uid);
        self.stored = Some(Copy { version: self.version, uid, ledger: write.clone() });
        Ok(true)
    }

    fn swapped(&mut self, index: usize, heard: bool, told: Vec<(Waiting, Word)>, doubts: Vec<Doubt>, is_round: bool) {
        if heard {
            let copy = self.stored.clone();
            self.replicas[index].note(copy);
        }
        self.replicas[index].job = match heard && is_round {
            true => Job::Tell { told, doubts },
            false if told.is_empty() => Job::Idle,
            false => {
                let waiting = told.into_iter().map(|(waiting, _)| waiting).collect();
                let over_before = self.objects.iter().filter(|(_, o)| !o.runs()).map(|(uid, _)| *uid).collect();
                Job::Read { waiting, over_before }
            }
        };
    }

    fn tell(&mut self, told: Vec<(Waiting, Word)>) {
        for (Waiting { ask, attempt, dry_run, .. }, word) in told {
            let request = &mut self.requests[ask];
            let listens = request.attempt == attempt && request.phase == Phase::Waiting;
            match word {
                Word::Held if listens && !dry_run => request.phase = Phase::Allowed,
                Word::Held | Word::Refused | Word::Later(_) if listens => request.phase = Phase::Over,
                Word::Held | Word::Refused | Word::Later(_) => {}
            }
        }
    }
}

/// Nobody asks it what it was evaluated with.
struct Unfenced(Waiting);

impl Waiter for Unfenced {
    fn reservation(&self) -> &Reservation {
        &self.0.reservation
    }

    fn revision(&self) -> Option<&Revision> {
        None
    }

    fn is_dry_run(&self) -> bool {
        self.0.dry_run
    }

    fn may(&mut self, balance: &Balance) -> bool {
        self.0.may(balance)
    }
}
