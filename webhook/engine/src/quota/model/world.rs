//! The world around the ledger: what the API server has stored, requests on their way, replicas, and all that can go wrong.

use std::collections::BTreeMap;

use super::super::{Adds, Entry, HeldPod, Ledger, Reservation, Revision};
use super::replica::Replica;
use super::setup::{Action, Ask, Budget, Mutant, Setup, Uid};
use crate::amounts::Amounts;
use crate::vocabulary::Class;

/// One state of a stored object, as a watch shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum State {
    Runs { terminating: bool },
    Finished,
    Stands { floor: Amounts, generation: Option<i64> },
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Object {
    pub(super) name: String,
    pub(super) root: Option<Uid>,
    pub(super) amounts: Amounts,
    /// It came through the gate.
    pub(super) admitted: bool,
    pub(super) history: Vec<State>,
}

impl Object {
    pub(super) fn state(&self) -> &State {
        self.history.last().expect("has a beginning")
    }

    pub(super) fn exists(&self) -> bool {
        *self.state() != State::Gone
    }

    pub(super) fn is_pod(&self) -> bool {
        matches!(self.history.first(), Some(State::Runs { .. }))
    }

    pub(super) fn runs(&self) -> bool {
        matches!(self.state(), State::Runs { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    New,
    Waiting,
    Allowed,
    /// Refused, failed, or done.
    Over,
}

/// One ask, in its present attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) phase: Phase,
    pub(super) attempt: u8,
    /// When the API server took it.
    pub(super) born: u64,
    /// Of a raise: how many states of the root it was based on.
    pub(super) base: usize,
    pub(super) generation: Option<i64>,
}

/// The ledger in the API server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Copy {
    pub(super) version: u64,
    /// Of the object that holds it.
    pub(super) uid: u64,
    pub(super) ledger: Ledger,
}

#[derive(Debug, Clone, Hash)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) budget: Budget,
    pub(super) stored: Option<Copy>,
    /// etcd's count of writes.
    pub(super) version: u64,
    pub(super) objects: BTreeMap<Uid, Object>,
    pub(super) requests: Vec<Request>,
    pub(super) replicas: Vec<Replica>,
    pub(super) policies: usize,
    pub(super) generation: usize,
    /// The newest policies and Team by which anybody has decided.
    pub(super) fenced: (usize, usize),
}

impl World {
    pub(super) fn new(setup: &Setup) -> Self {
        let request = Request { phase: Phase::New, attempt: 0, born: 0, base: 0, generation: None };
        Self {
            now: 0,
            budget: setup.budget,
            stored: Some(Copy { version: 1, uid: 1, ledger: Ledger::default() }),
            version: 1,
            objects: BTreeMap::new(),
            requests: vec![request; setup.script.len()],
            replicas: (0..setup.replicas).map(|_| Replica::new()).collect(),
            policies: 0,
            generation: 0,
            fenced: (0, 0),
        }
    }

    pub(super) fn uid(&self, ask: usize) -> Uid {
        Uid(ask, self.requests[ask].attempt)
    }

    /// The root that an ask made or is making.
    pub(super) fn root_of(&self, ask: &Ask) -> Option<Uid> {
        match ask {
            Ask::Pod { root, .. } | Ask::Stray { root, .. } => root.map(|root| self.uid(root)),
            Ask::Raise { root, .. } => Some(self.uid(*root)),
            Ask::Root { .. } => None,
        }
    }

    /// What the gate reserves for it.
    pub(super) fn reservation(&self, setup: &Setup, ask: usize) -> Reservation {
        let uid = self.uid(ask);
        match &setup.script[ask] {
            Ask::Pod { amounts, name, .. } | Ask::Stray { amounts, name, .. } => {
                let held = HeldPod { name: format!("pod-{name}"), amounts: amounts.clone() };
                let root = self.root_of(&setup.script[ask]);
                let entry = match root {
                    Some(root) => entry_of_root(setup, root),
                    None => Entry::new("Pod", "ns", &held.name, Class::Pod),
                };
                let adds = Adds::Pod { uid: uid.to_string(), pod: held };
                Reservation { root: root.unwrap_or(uid).to_string(), entry, adds }
            }
            Ask::Root { floor, has_generation, .. } => {
                let adds = Adds::Floor { amounts: floor.clone(), generation: has_generation.then_some(1) };
                Reservation { root: uid.to_string(), entry: entry_of_root(setup, uid), adds }
            }
            Ask::Raise { root, floor, .. } => {
                let root = self.uid(*root);
                let adds = Adds::Floor { amounts: floor.clone(), generation: self.requests[ask].generation };
                Reservation { root: root.to_string(), entry: entry_of_root(setup, root), adds }
            }
        }
    }

    pub(super) fn revision(knows: (usize, usize)) -> Revision {
        let generation = i64::try_from(knows.1).expect("small");
        Revision { policies: format!("policies-{}", knows.0), team: "team".to_owned(), generation }
    }

    pub(super) fn is_taken(&self, name: &str) -> bool {
        self.objects.values().any(|object| object.exists() && object.name == name)
    }

    /// What could still be stored of what was let in.
    pub(super) fn may_store(&self, setup: &Setup, ask: usize) -> bool {
        let request = &self.requests[ask];
        request.phase == Phase::Allowed && self.now < request.born + setup.patience
    }

    /// Everything that can happen now.
    pub(super) fn actions(&self, setup: &Setup) -> Vec<Action> {
        let mut actions = Vec::new();
        self.of_requests(setup, &mut actions);
        self.of_objects(setup, &mut actions);
        self.of_replicas(setup, &mut actions);
        if self.budget.time > 0 {
            actions.push(Action::Pass);
        }
        if self.policies + 1 < setup.policies {
            actions.push(Action::Publish);
        }
        if self.generation + 1 < setup.limits.len() {
            actions.push(Action::ChangeTeam);
        }
        if self.budget.ledger_losses > 0 && self.stored.is_some() {
            actions.push(Action::LoseLedger);
        }
        actions
    }

    fn of_requests(&self, setup: &Setup, actions: &mut Vec<Action>) {
        let up = || self.replicas.iter().enumerate().filter(|(_, replica)| replica.up).map(|(index, _)| index);
        for (ask, request) in self.requests.iter().enumerate() {
            let is_stray = matches!(setup.script[ask], Ask::Stray { .. });
            match request.phase {
                Phase::New if is_stray && self.can_be_sent(setup, ask) => actions.push(Action::Store(ask)),
                Phase::New if self.can_be_sent(setup, ask) => actions.extend(up().map(|to| Action::Send(ask, to))),
                Phase::New => {}
                Phase::Waiting => {
                    if self.budget.failures > 0 {
                        actions.push(Action::Fail(ask));
                    }
                    if self.budget.redeliveries > 0 {
                        let idle = up().filter(|to| !self.replicas[*to].waits(ask));
                        actions.extend(idle.map(|to| Action::Redeliver(ask, to)));
                    }
                }
                Phase::Allowed => {
                    if self.may_store(setup, ask) {
                        actions.push(Action::Store(ask));
                    }
                    if self.budget.failures > 0 || !self.may_store(setup, ask) {
                        actions.push(Action::Fail(ask));
                    }
                }
                Phase::Over => {
                    let done = self.objects.contains_key(&self.uid(ask));
                    if self.budget.retries > 0 && !done && !is_stray {
                        actions.push(Action::Retry(ask));
                    }
                }
            }
        }
    }

    /// Controllers make pods for what they have seen; only what is stored grows.
    fn can_be_sent(&self, setup: &Setup, ask: usize) -> bool {
        let Some(root) = self.root_of(&setup.script[ask]) else { return true };
        let Some(object) = self.objects.get(&root) else { return false };
        match (&setup.script[ask], object.state()) {
            (Ask::Raise { floor, .. }, State::Stands { floor: stored, .. }) => !floor.fits_within(stored),
            (Ask::Raise { .. }, _) => false,
            _ => true,
        }
    }

    fn of_objects(&self, _: &Setup, actions: &mut Vec<Action>) {
        if self.budget.ends == 0 {
            return;
        }
        for (uid, object) in &self.objects {
            match object.state() {
                State::Runs { terminating } => {
                    if !terminating {
                        actions.push(Action::Terminate(*uid));
                    }
                    actions.extend([Action::Finish(*uid), Action::Delete(*uid)]);
                }
                State::Finished => actions.push(Action::Delete(*uid)),
                State::Stands { floor, .. } => {
                    if !floor.is_empty() {
                        actions.push(Action::ScaleDown(*uid));
                    }
                    actions.push(Action::Delete(*uid));
                }
                State::Gone => {}
            }
        }
    }

    fn of_replicas(&self, setup: &Setup, actions: &mut Vec<Action>) {
        for (index, replica) in self.replicas.iter().enumerate() {
            if !replica.up {
                actions.push(Action::Restart(index));
                continue;
            }
            if replica.has_work() {
                actions.push(Action::Work(index));
                if replica.is_swapping() && self.budget.lost > 0 {
                    actions.extend([true, false].map(|written| Action::WorkUnanswered(index, written)));
                }
            } else if self.budget.ticks > 0 && setup.mutant != Some(Mutant::NeverLooks) {
                actions.push(Action::Tick(index));
            }
            actions.extend(self.unshown(replica).into_iter().map(|uid| Action::Show(index, uid)));
            if self.stored.as_ref().map(|copy| copy.version) != replica.known.as_ref().map(|copy| copy.version) {
                actions.push(Action::ShowLedger(index));
            }
            if self.budget.relists > 0 {
                actions.push(Action::Relist(index));
            }
            if self.budget.crashes > 0 {
                actions.push(Action::Crash(index));
            }
            if replica.knows.0 < self.policies {
                actions.push(Action::LearnPolicies(index));
            }
            if replica.knows.1 < self.generation {
                actions.push(Action::LearnTeam(index));
            }
        }
    }

    pub(super) fn unshown(&self, replica: &Replica) -> Vec<Uid> {
        let unshown = self.objects.iter().filter(|(uid, object)| {
            let shown = replica.sight.get(uid).copied().unwrap_or(0);
            shown < object.history.len() && !replica.missed.contains(uid)
        });
        unshown.map(|(uid, _)| *uid).collect()
    }

    /// Does it, or says which law that broke. What cannot be done now changes nothing.
    pub(super) fn apply(&mut self, setup: &Setup, action: Action) -> Result<(), String> {
        match action {
            Action::Send(ask, to) => self.send(setup, ask, to),
            Action::Redeliver(ask, to) => {
                self.budget.redeliveries = self.budget.redeliveries.saturating_sub(1);
                self.queue(setup, ask, to);
            }
            Action::Work(replica) => self.work(setup, replica, None)?,
            Action::WorkUnanswered(replica, written) => {
                self.budget.lost = self.budget.lost.saturating_sub(1);
                self.work(setup, replica, Some(written))?;
            }
            Action::Tick(replica) => {
                self.budget.ticks = self.budget.ticks.saturating_sub(1);
                self.tick(setup, replica)?;
            }
            Action::Store(ask) => self.store(setup, ask),
            Action::Fail(ask) => {
                self.budget.failures = self.budget.failures.saturating_sub(1);
                self.requests[ask].phase = Phase::Over;
            }
            Action::Retry(ask) => {
                self.budget.retries = self.budget.retries.saturating_sub(1);
                let request = &mut self.requests[ask];
                *request = Request { phase: Phase::New, attempt: request.attempt + 1, ..*request };
            }
            Action::Terminate(uid) => self.become_(uid, State::Runs { terminating: true }),
            Action::Finish(uid) => self.become_(uid, State::Finished),
            Action::Delete(uid) => self.become_(uid, State::Gone),
            Action::ScaleDown(uid) => self.scale_down(uid),
            Action::Show(replica, uid) => self.show(replica, uid),
            Action::ShowLedger(replica) => {
                let newest = self.stored.clone();
                self.replicas[replica].note(newest);
            }
            Action::Relist(replica) => {
                self.budget.relists = self.budget.relists.saturating_sub(1);
                self.relist(replica);
            }
            Action::Crash(replica) => {
                self.budget.crashes = self.budget.crashes.saturating_sub(1);
                let knows = (self.policies, self.generation);
                self.replicas[replica] = Replica { up: false, knows, ..Replica::new() };
            }
            Action::Restart(replica) => {
                self.replicas[replica].up = true;
                self.replicas[replica].knows = (self.policies, self.generation);
                self.relist(replica);
            }
            Action::Pass => {
                self.budget.time = self.budget.time.saturating_sub(1);
                self.now += 1;
            }
            Action::Publish => self.policies += 1,
            Action::LearnPolicies(replica) => self.replicas[replica].knows.0 += 1,
            Action::ChangeTeam => self.generation += 1,
            Action::LearnTeam(replica) => self.replicas[replica].knows.1 += 1,
            Action::LoseLedger => {
                self.budget.ledger_losses = self.budget.ledger_losses.saturating_sub(1);
                self.stored = None;
                // With it goes the fence.
                self.fenced = (0, 0);
            }
        }
        self.check_live(setup)
    }

    fn send(&mut self, setup: &Setup, ask: usize, to: usize) {
        let (mut base, mut next) = (0, None);
        if let Ask::Raise { root, by_scale, .. } = setup.script[ask] {
            let Some(object) = self.objects.get(&self.uid(root)) else { return };
            base = object.history.len();
            if let State::Stands { generation, .. } = object.state() {
                next = generation.filter(|_| !by_scale).map(|generation| generation + 1);
            }
        }
        let request = &mut self.requests[ask];
        *request = Request { phase: Phase::Waiting, born: self.now, base, generation: next, ..*request };
        self.queue(setup, ask, to);
    }

    /// Two objects of one name never exist at once; who writes an object that has changed meanwhile comes again.
    fn store(&mut self, setup: &Setup, ask: usize) {
        let uid = self.uid(ask);
        let root = self.root_of(&setup.script[ask]);
        self.requests[ask].phase = Phase::Over;
        match &setup.script[ask] {
            Ask::Pod { name, amounts, dry_run: false, .. } => {
                self.create(
                    uid,
                    format!("pod-{name}"),
                    root,
                    amounts.clone(),
                    State::Runs { terminating: false },
                    true,
                );
            }
            Ask::Pod { dry_run: true, .. } => {}
            Ask::Stray { name, amounts, .. } => {
                self.create(
                    uid,
                    format!("pod-{name}"),
                    root,
                    amounts.clone(),
                    State::Runs { terminating: false },
                    false,
                );
            }
            Ask::Root { name, floor, has_generation } => {
                let state = State::Stands { floor: floor.clone(), generation: has_generation.then_some(1) };
                self.create(uid, format!("root-{name}"), None, Amounts::default(), state, true);
            }
            Ask::Raise { floor, root, .. } => {
                let base = self.requests[ask].base;
                let object = self.objects.get_mut(&Uid(*root, self.requests[*root].attempt));
                let Some(object) = object.filter(|object| object.exists()) else { return };
                if object.history.len() != base {
                    self.requests[ask].phase = Phase::New;
                    return;
                }
                let State::Stands { generation, .. } = object.state() else { return };
                let generation = generation.map(|generation| generation + 1);
                object.history.push(State::Stands { floor: floor.clone(), generation });
            }
        }
    }

    fn create(&mut self, uid: Uid, name: String, root: Option<Uid>, amounts: Amounts, state: State, admitted: bool) {
        if !self.is_taken(&name) {
            let object = Object { name, root, amounts, admitted, history: vec![state] };
            self.objects.insert(uid, object);
        }
    }

    fn become_(&mut self, uid: Uid, state: State) {
        let Some(object) = self.objects.get_mut(&uid).filter(|object| object.exists()) else { return };
        self.budget.ends = self.budget.ends.saturating_sub(1);
        object.history.push(state);
    }

    fn scale_down(&mut self, uid: Uid) {
        let Some(object) = self.objects.get_mut(&uid) else { return };
        let State::Stands { floor, generation } = object.state().clone() else { return };
        self.budget.ends = self.budget.ends.saturating_sub(1);
        let half = floor.iter().map(|(name, amount)| (name.clone(), amount / 2)).collect();
        object.history.push(State::Stands { floor: half, generation: generation.map(|generation| generation + 1) });
    }

    /// In order for each object, in any order between them.
    fn show(&mut self, replica: usize, uid: Uid) {
        let Some(object) = self.objects.get(&uid) else { return };
        let Replica { sight, missed, .. } = &mut self.replicas[replica];
        let shown = sight.entry(uid).or_insert(0);
        if *shown < object.history.len() && !missed.contains(&uid) {
            *shown += 1;
        }
    }

    /// A list shows what there is now, and what of that was shown before and is not there. What came and went unseen stays unseen.
    fn relist(&mut self, replica: usize) {
        let Replica { sight, missed, .. } = &mut self.replicas[replica];
        for (uid, object) in &self.objects {
            if object.exists() || sight.contains_key(uid) {
                sight.insert(*uid, object.history.len());
            } else {
                missed.insert(*uid);
            }
        }
    }

    /// Enters everything that a list shows.
    pub(super) fn listed(&self, setup: &Setup, ledger: &mut Ledger) {
        for (uid, object) in &self.objects {
            match object.state() {
                State::Runs { .. } if !ledger.holds_pod(&uid.to_string()) => {
                    ledger.add(&object.reservation(setup, *uid));
                }
                State::Stands { floor, generation } if !floor.is_empty() => {
                    let adds = Adds::Floor { amounts: floor.clone(), generation: *generation };
                    let entry = entry_of_root(setup, *uid);
                    ledger.add(&Reservation { root: uid.to_string(), entry, adds });
                }
                State::Runs { .. } | State::Stands { .. } | State::Finished | State::Gone => {}
            }
        }
    }
}

impl Object {
    /// As whoever finds it stored enters it.
    pub(super) fn reservation(&self, setup: &Setup, uid: Uid) -> Reservation {
        let held = HeldPod { name: self.name.clone(), amounts: self.amounts.clone() };
        let entry = match self.root {
            Some(root) => entry_of_root(setup, root),
            None => Entry::new("Pod", "ns", &self.name, Class::Pod),
        };
        Reservation {
            root: self.root.unwrap_or(uid).to_string(),
            entry,
            adds: Adds::Pod { uid: uid.to_string(), pod: held },
        }
    }
}

fn entry_of_root(setup: &Setup, root: Uid) -> Entry {
    let Ask::Root { name, .. } = &setup.script[root.0] else { unreachable!("{root} is no root") };
    Entry { group: "batch".to_owned(), ..Entry::new("Job", "ns", &format!("root-{name}"), Class::Training) }
}
